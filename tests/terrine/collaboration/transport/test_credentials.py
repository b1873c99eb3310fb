"""Certificates of parties."""

import os
import shutil
import stat

import pytest
from cryptography import x509

from terrine.collaboration.transport.credentials import (
    CredentialError,
    Identity,
    check_name,
    create_authority,
    identity_of,
    issue,
    load_credentials,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return create_authority(tmp_path_factory.mktemp("authority"))


def test_a_certificate_says_name_and_role_and_loads_again(authority, tmp_path):
    issued = issue(authority, tmp_path, "hospital-1", "teacher")
    loaded = load_credentials(tmp_path, "teacher")
    assert loaded == issued
    assert loaded.identity == Identity("hospital-1", "teacher")
    certificate = x509.load_pem_x509_certificate(loaded.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hospital-1"]


def test_keys_are_readable_by_their_owner_alone(authority, tmp_path):
    issue(authority, tmp_path, "hospital-1", "teacher")
    for path in (tmp_path / "key.pem", authority / "key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.chmod(tmp_path / "key.pem", 0o640)
    with pytest.raises(CredentialError, match="chmod 600"):
        load_credentials(tmp_path)


def test_only_parties_that_listen_may_be_servers(authority, tmp_path):
    for role, servers in (("teacher", False), ("student", True), ("guardian", True)):
        pem = issue(authority, tmp_path / role, role, role).certificate
        uses = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (x509.oid.ExtendedKeyUsageOID.SERVER_AUTH in uses) == servers


def test_a_certificate_for_another_role_is_refused(authority, tmp_path):
    issue(authority, tmp_path, "hospital-1", "teacher")
    with pytest.raises(CredentialError, match="certificate for a teacher, not for a guardian"):
        load_credentials(tmp_path, "guardian")


def test_an_expired_certificate_is_refused_with_its_date(authority, tmp_path):
    issue(authority, tmp_path, "hospital-1", "teacher", days=-1)
    with pytest.raises(CredentialError, match=r"expired on \d{4}-\d\d-\d\d"):
        load_credentials(tmp_path)


def test_a_certificate_of_another_authority_is_refused(authority, tmp_path):
    other = create_authority(tmp_path / "other")
    issue(authority, tmp_path / "own", "hospital-1", "teacher")
    shutil.copy(other / "certificate.pem", tmp_path / "own" / "authority.pem")
    with pytest.raises(CredentialError, match="was not signed by"):
        load_credentials(tmp_path / "own")


def test_a_key_of_another_certificate_is_refused(authority, tmp_path):
    for name in ("one", "two"):
        issue(authority, tmp_path / name, name, "teacher")
    shutil.copy(tmp_path / "one" / "key.pem", tmp_path / "two" / "key.pem")
    with pytest.raises(CredentialError, match="is not the key of"):
        load_credentials(tmp_path / "two")


def test_missing_and_damaged_files_are_named(authority, tmp_path):
    with pytest.raises(CredentialError, match=r"key\.pem cannot be read"):
        load_credentials(tmp_path)
    issue(authority, tmp_path, "one", "teacher")
    (tmp_path / "certificate.pem").write_text("-----BEGIN NOTHING-----\n")
    with pytest.raises(CredentialError, match=r"certificate\.pem is not a certificate"):
        load_credentials(tmp_path)
    with pytest.raises(CredentialError, match="not a certificate"):
        identity_of(b"nonsense")


def test_the_authoritys_own_certificate_names_no_party(authority):
    with pytest.raises(CredentialError, match="one common name that is also a DNS name"):
        identity_of((authority / "certificate.pem").read_bytes())


def test_credentials_are_never_overwritten(authority, tmp_path):
    issue(authority, tmp_path, "one", "teacher")
    with pytest.raises(CredentialError, match="holds credentials already"):
        issue(authority, tmp_path, "one", "teacher")
    with pytest.raises(CredentialError, match="There is an authority"):
        create_authority(authority)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a.b", "ü", "a" * 64, "../a"])
def test_names_that_no_host_could_have_are_refused(name, authority, tmp_path):
    with pytest.raises(CredentialError, match="cannot be a party's name"):
        check_name(name)
    with pytest.raises(CredentialError):
        issue(authority, tmp_path, name, "teacher")
    assert not (tmp_path / "key.pem").exists()
