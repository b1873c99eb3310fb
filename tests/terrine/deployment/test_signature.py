"""The site's key and what it signs."""

import base64
import json
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from terrine.deployment.signature import (
    Signature,
    expected_key,
    fingerprint,
    public_key,
    public_pem,
    read_signature,
    sign,
    signing_key,
    write_signature,
)
from terrine.errors import ArtefactError, InputError

CONTENT = {
    "release": "01",
    "files": {"privacy.json": "ab" * 32},
    "student": "cd" * 32,
    "terrine": "1",
    "signed": "2026-03-01T10:00:00+00:00",
}
KEY = Ed25519PrivateKey.generate()


def certificate_of(key, days):
    now, name = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clinic")])
    ends = now + timedelta(days=days)
    builder = x509.CertificateBuilder(name, name, key, x509.random_serial_number(), ends - timedelta(days=9), ends)
    authority = ec.generate_private_key(ec.SECP256R1())
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_what_was_signed_is_read_back_and_holds(tmp_path):
    write_signature(tmp_path / "signature.json", sign(KEY, CONTENT))
    found = read_signature(tmp_path / "signature.json")
    found.check()
    found.check(fingerprint(KEY.public_key()))
    assert found.key == fingerprint(KEY.public_key())
    assert found.when == datetime(2026, 3, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize("name", [*CONTENT, "signature"])
def test_whatever_is_changed_is_found(name):
    values = vars(sign(KEY, CONTENT))
    value = values[name]
    other = {"privacy.json": "ac" * 32} if name == "files" else value.replace("0", "1", 1).replace("c", "b", 1)
    other = base64.b64encode(bytes(64)).decode() if name == "signature" else "2" if name == "terrine" else other
    assert other != value
    with pytest.raises(ArtefactError, match="changed after it was signed"):
        Signature(**{**values, name: other}).check()


def test_another_key_is_told_from_the_one_that_was_given():
    other = Ed25519PrivateKey.generate()
    with pytest.raises(ArtefactError, match=f"signed with the key {fingerprint(KEY.public_key())}"):
        sign(KEY, CONTENT).check(other.public_key())
    stolen = {**vars(sign(KEY, CONTENT)), "public_key": public_pem(other.public_key()).decode()}
    with pytest.raises(ArtefactError, match="changed after it was signed"):
        Signature(**stolen).check()


def test_a_date_that_is_yet_to_come_is_refused():
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with pytest.raises(ArtefactError, match="in the future"):
        sign(KEY, {**CONTENT, "signed": tomorrow}).check()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../privacy.json": "ab"}},
        {"files": {"privacy.json": 1}},
        {"files": ["privacy.json"]},
        {"student": 3},
        {"signed": "yesterday"},
        {"signed": "2026-03-01T10:00:00"},
        {"public_key": "none"},
        {"more": ""},
    ],
)
def test_what_is_no_signature_is_refused_in_a_sentence(tmp_path, change):
    path = tmp_path / "signature.json"
    path.write_text(json.dumps({**vars(sign(KEY, CONTENT)), **change}))
    with pytest.raises(InputError, match="not a signature of a statement"):
        read_signature(path)


def test_the_key_is_made_once_for_its_owner_alone_and_refused_when_others_may_read_it(tmp_path):
    path = tmp_path / "private" / "signing.pem"
    made = signing_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert fingerprint(signing_key(path).public_key()) == fingerprint(made.public_key())
    path.chmod(0o640)
    with pytest.raises(ArtefactError, match="readable by other users"):
        signing_key(path)


def test_a_file_that_is_no_such_key_is_refused(tmp_path):
    path = tmp_path / "signing.pem"
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*encoding))
    with pytest.raises(ArtefactError, match="not an Ed25519 key"):
        signing_key(path)
    path.write_bytes(b"0" * 32)
    with pytest.raises(ArtefactError, match="not a private key"):
        signing_key(path)


def test_a_public_key_is_a_key_or_a_certificate_that_is_valid(tmp_path):
    path = tmp_path / "site.pem"
    for content in (public_pem(KEY.public_key()), certificate_of(KEY.public_key(), days=3)):
        path.write_bytes(content)
        own = fingerprint(KEY.public_key())
        assert {expected_key(text) for text in (str(path), own, own.replace(" ", "").upper())} == {own}
    elliptic = ec.generate_private_key(ec.SECP256R1()).public_key()
    private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for content, message in (
        (certificate_of(KEY.public_key(), days=-1), "has expired"),
        (certificate_of(elliptic, days=3), "not a certificate of an Ed25519"),
        (KEY.private_bytes(*private), "must not leave its site"),
        (b"-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----\n", "neither an Ed25519 public key"),
        (b"", "neither an Ed25519 public key"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            public_key(path)
    with pytest.raises(InputError, match="cannot be read"):
        public_key(tmp_path / "none.pem")
    with pytest.raises(InputError, match="neither a fingerprint, which has 32 hexadecimal digits, nor a file"):
        expected_key("71c4 5f12")
