"""Enrolment by mail: who has no token, or has used it, gets no certificate; what was changed on its way is refused."""

import json
import stat

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from terrine.collaboration.transport.credentials import (
    CredentialError,
    Identity,
    certify,
    create_authority,
    issue,
    load_credentials,
    signature_of,
    signed_by,
)
from terrine.collaboration.transport.enrolment import install, install_renewed, make_token, renew, request, sign


@pytest.fixture
def authority(tmp_path):
    return create_authority(tmp_path / "authority")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return path


def test_a_party_has_its_certificate_and_the_authority_never_its_key(authority, tmp_path):
    token = make_token(authority, "north", "teacher")
    typed = "-".join([token.secret[:20].upper(), token.secret[20:]])
    asked = request(tmp_path / "north", "north", "teacher", typed)
    assert "PRIVATE" not in asked.read_text()
    answer = sign(authority, asked)
    assert "PRIVATE" not in answer.read_text()
    install(tmp_path / "north", answer, typed)
    assert load_credentials(tmp_path / "north", "teacher").identity == Identity("north", "teacher")
    assert stat.S_IMODE((tmp_path / "north" / "key.pem").stat().st_mode) == 0o600
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in authority.glob("tokens/*.token.json"))


def test_what_was_asked_twice_is_answered_once(authority, tmp_path):
    token = make_token(authority, "north", "teacher").secret
    first = sign(authority, request(tmp_path / "north", "north", "teacher", token)).read_bytes()
    # The mail was lost: the same key asks again.
    assert sign(authority, request(tmp_path / "north", "north", "teacher", token)).read_bytes() == first
    thief = request(tmp_path / "thief", "north", "teacher", token)
    with pytest.raises(
        CredentialError, match="the token of north was used, and a certificate was given to another key"
    ):
        sign(authority, thief)
    with pytest.raises(CredentialError, match="north has its certificate from"):
        make_token(authority, "north", "teacher")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"token": "0" * 40}, "was not made with the token that north was told, or was changed on its way"),
        ({"role": "guardian"}, "asks for the role guardian, and the token of north is for a teacher"),
        ({"name": "south"}, "no token was made for 'south'"),
        ({"days": -1}, "the token of north expired on"),
    ],
)
def test_a_request_without_a_right_to_it_is_refused(asked, sentence, authority, tmp_path):
    token = make_token(authority, "north", "teacher", days=asked.get("days", 7)).secret
    values = {"name": "north", "role": "teacher", "token": token} | asked
    path = request(tmp_path / "own", values["name"], values["role"], values["token"])
    with pytest.raises(CredentialError, match=sentence):
        sign(authority, path)
    assert not list(authority.glob("tokens/*.enrolment.json"))


def test_what_was_changed_on_its_way_is_refused_at_both_ends(authority, tmp_path):
    tokens = {name: make_token(authority, name, "teacher").secret for name in ("north", "south")}
    asked = {name: request(tmp_path / name, name, "teacher", token) for name, token in tokens.items()}
    other = json.loads(asked["south"].read_text())
    plain = asked["north"].read_text()
    for values in ({"request": other["request"]}, {"mac": other["mac"]}, {"mac": "\ud800"}):
        with pytest.raises(CredentialError, match="changed on its way"):
            sign(authority, change(asked["north"], **values))
        asked["north"].write_text(plain)
    for damaged in ({"more": 1}, {"mac": 1}):
        with pytest.raises(CredentialError, match="is damaged"):
            sign(authority, change(asked["north"], **damaged))
        asked["north"].write_text(plain)
    answer = sign(authority, asked["north"])
    own = create_authority(tmp_path / "own")
    with pytest.raises(CredentialError, match="changed on its way"):
        install(tmp_path / "north", change(answer, authority=(own / "certificate.pem").read_text()), tokens["north"])
    assert not (tmp_path / "north" / "certificate.pem").exists()


def test_an_answer_to_somebody_elses_key_leaves_nothing_behind(authority, tmp_path):
    token = make_token(authority, "north", "teacher").secret
    answer = sign(authority, request(tmp_path / "north", "north", "teacher", token))
    request(tmp_path / "other", "north", "teacher", token)
    with pytest.raises(CredentialError, match="is not the key of"):
        install(tmp_path / "other", answer, token)
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["key.pem", "request.json"]


@pytest.fixture
def north(authority, tmp_path):
    """A party whose certificate expired yesterday."""
    token = make_token(authority, "north", "teacher").secret
    answer = sign(authority, request(tmp_path / "north", "north", "teacher", token), days=-1)
    with pytest.raises(CredentialError, match=r"expired on .* terrine party enrol renew"):
        install(tmp_path / "north", answer, token)
    for name in ("certificate", "authority"):
        (tmp_path / "north" / f"{name}.pem").write_text(json.loads(answer.read_text())[name])
    return tmp_path / "north"


def test_a_certificate_is_renewed_for_the_same_key_and_needs_no_token(authority, north):
    key = (north / "key.pem").read_bytes()
    renewed = install_renewed(north, renew(authority, "north", days=30))
    assert renewed.identity == Identity("north", "teacher") == load_credentials(north, "teacher").identity
    assert (north / "key.pem").read_bytes() == key
    # It is good for a request that was made under the token, as the one before was.
    assert sign(authority, north / "request.json").name == "north.enrolment.json"
    with pytest.raises(CredentialError, match="no longer than the certificate in"):
        install_renewed(north, renew(authority, "north", days=20))
    with pytest.raises(CredentialError, match="south has no certificate from"):
        renew(authority, "south")


def test_nobody_elses_certificate_is_taken_for_a_renewed_one(authority, north, tmp_path):
    before = (north / "certificate.pem").read_bytes()
    token = make_token(authority, "south", "student").secret
    answer = sign(authority, request(tmp_path / "south", "south", "student", token))
    other = create_authority(tmp_path / "other")
    key = load_pem_private_key((north / "key.pem").read_bytes(), None).public_key()
    mailed = {
        "another party's": json.loads(answer.read_text())["certificate"],
        "another authority's": certify(other, Identity("north", "teacher"), key)[0].decode(),
        "another role's": certify(authority, Identity("north", "guardian"), key)[0].decode(),
        "none": "nonsense",
    }
    for certificate in mailed.values():
        with pytest.raises(CredentialError, match=r"renews no certificate of|is for north, a guardian"):
            install_renewed(north, change(answer, certificate=certificate))
    assert (north / "certificate.pem").read_bytes() == before
    (north / "key.pem").unlink()
    with pytest.raises(CredentialError, match=r"is missing\. Restore it"):
        install_renewed(north, answer)
    assert not (north / "key.pem").exists()


def test_there_is_no_token_of_nobody(tmp_path, authority):
    for folder, name, role, sentence in (
        (tmp_path / "none", "north", "teacher", "There is no authority in"),
        (authority, "../north", "teacher", "cannot be a party's name"),
        (authority, "north", "nurse", "A party is a teacher, guardian, student, not 'nurse'"),
    ):
        with pytest.raises(CredentialError, match=sentence):
            make_token(folder, name, role)


def test_a_signature_is_taken_from_the_certificate_of_the_authority_alone(authority, tmp_path):
    own = issue(authority, tmp_path / "north", "north", "teacher")
    signature = signature_of(own, b"agreed")
    assert signed_by(own.certificate, own.authority, b"agreed", signature) == Identity("north", "teacher")
    forged = issue(create_authority(tmp_path / "forged"), tmp_path / "thief", "north", "teacher")
    late = issue(authority, tmp_path / "late", "south", "teacher", days=-1)
    # One party signs a certificate for another name: it is no authority.
    (tmp_path / "trust").mkdir()
    for name in ("key.pem", "certificate.pem"):
        (tmp_path / "trust" / name).write_bytes((tmp_path / "north" / name).read_bytes())
    posing = issue(tmp_path / "trust", tmp_path / "posing", "guardian", "guardian")
    for certificate, content, given, sentence in (
        (own.certificate, b"other", signature, "was not signed with a certificate of the authority"),
        (
            forged.certificate,
            b"agreed",
            signature_of(forged, b"agreed"),
            "was not signed with a certificate of the auth",
        ),
        (late.certificate, b"agreed", signature_of(late, b"agreed"), "has expired"),
        (
            posing.certificate + own.certificate,
            b"agreed",
            signature_of(posing, b"agreed"),
            "somebody who is no authority",
        ),
        (b"nonsense", b"agreed", signature, "was not signed with a certificate of the authority"),
    ):
        with pytest.raises(CredentialError, match=sentence):
            signed_by(certificate, own.authority, content, given)
