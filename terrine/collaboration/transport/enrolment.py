"""Certificates by files that may be mailed: a private key never leaves its party, and a token is good for one.

    authority    makes a *token* for each named party and role, and tells it to the party by another way than the mails
                 (on paper, by telephone): who has it gets the certificate.
    party        makes its key, and a *request* for a certificate, with a MAC under the token.
    authority    checks it, signs, and sends back the certificate and its own, with a MAC under the token.
    party        checks that, and has its credentials.

Who changes a file on its way has no token, so that its MAC is wrong; who sends one again is told what was answered
before. A certificate that runs out is made anew for the same key, by the authority alone; that one needs no token: the
party takes what the authority signed that it trusts. The authority keeps tokens in its folder, readable by its owner
alone; a token that was used is one in which an answer lies. Keys, requests and certificates are made by
`cryptography`; the MAC is HMAC-SHA256.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from terrine.collaboration.transport.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    CredentialError,
    Credentials,
    Identity,
    Role,
    certify,
    check_name,
    check_role,
    identity_of,
    load_credentials,
    new_key,
    signed_by,
    write_private,
)
from terrine.files import atomic_file
from terrine.privacy.ledger.identity import canonical_json, keyed_digest

TOKENS = "tokens"
"""In an authority's folder: a file for each party that was told a token."""
REQUEST, ANSWER = "request.json", "enrolment.json"
"""What a party mails to the authority, and what comes back."""
_PURPOSES = {REQUEST: "terrine enrolment request", ANSWER: "terrine enrolment answer"}
_TOKEN_FIELDS = ("name", "role", "secret", "expires")
_REQUEST_FIELDS = ("name", "role", "request", "mac")
_ANSWER_FIELDS = ("name", "role", "certificate", "authority", "key", "mac")
_LARGEST = 2**18
_SECRET_BYTES = 20


@dataclass(frozen=True)
class Token:
    """What an authority has promised: one certificate, to whoever knows the secret.

    Attributes:
        secret: 160 random bits, as text.
        expires: Until when, ISO 8601.
    """

    name: str
    role: Role
    secret: str
    expires: str


def make_token(authority: Path, name: str, role: Role, *, days: float = 7) -> Token:
    """Make a token for one party, write it into the authority's folder, and return it; an unused one is replaced.

    Raises CredentialError for a name or role that cannot be, or a party that has its certificate.
    """
    check_name(name)
    check_role(role)
    if not (authority / KEY).is_file():
        raise CredentialError(
            f"There is no authority in {authority}. Make one: terrine party enrol authority {authority}."
        )
    if _answer_path(authority, name).exists():
        raise CredentialError(
            f"{name} has its certificate from {authority}: a token is good for one. If its key was lost or stolen, "
            "take another name for it in the next terms: nobody shall take the one for the other."
        )
    expires = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    token = Token(name, role, secrets.token_hex(_SECRET_BYTES), expires)
    _write(_token_path(authority, name), asdict(token), owner_only=True)
    return token


def request(folder: Path, name: str, role: Role, secret: str) -> Path:
    """Make a party's key in `folder`, and a request for its certificate; return the request's file, to be mailed.

    A key that is there without a certificate is kept: the request is made anew. Raises CredentialError for a name or
    role that cannot be, or a folder that has a certificate.
    """
    check_name(name)
    check_role(role)
    if (folder / CERTIFICATE).exists():
        raise CredentialError(f"{folder} holds a certificate already. Keep it, or choose another folder.")
    key = new_key(folder / KEY)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    wanted = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = wanted.public_bytes(serialization.Encoding.PEM).decode()
    content = {"name": name, "role": role, "request": pem}
    _write(folder / REQUEST, _sealed(REQUEST, secret, content))
    return folder / REQUEST


def sign(authority: Path, path: Path, *, days: float = 365) -> Path:
    """Answer a request, once for a token; return the answer's file, to be mailed back.

    The same request again has the same answer. Raises CredentialError for a request that is damaged, not under the
    token that this party was told, for another role, too late, or the second under one token.
    """
    sealed = _read(path, _REQUEST_FIELDS)
    name = sealed["name"]
    check_name(name)
    try:
        token = _read(_token_path(authority, name), _TOKEN_FIELDS)
    except CredentialError as error:
        raise CredentialError(
            f"{path}: no token was made for {name!r} by {authority}. Make one: terrine party enrol token {authority} "
            f"--party {name}=ROLE."
        ) from error
    _check_seal(REQUEST, token["secret"], sealed, path, f"the token that {name} was told")
    if sealed["role"] != token["role"]:
        raise CredentialError(
            f"{path} asks for the role {sealed['role']}, and the token of {name} is for a {token['role']}."
        )
    key = _requested(path, sealed["request"])
    spki = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    digest, answered = sha256(key.public_bytes(*spki)).hexdigest(), _answer_path(authority, name)
    if answered.exists():
        if _read(answered, _ANSWER_FIELDS)["key"] == digest:
            return answered
        raise CredentialError(
            f"{path}: the token of {name} was used, and a certificate was given to another key than this. If {name} "
            "did not ask for that one, somebody else has its token: begin again with another authority."
        )
    if datetime.now(UTC) > datetime.fromisoformat(token["expires"]):
        raise CredentialError(
            f"{path}: the token of {name} expired on {token['expires']}. Make another: terrine party enrol token "
            f"{authority} --party {name}={token['role']}."
        )
    certificate, root = certify(authority, Identity(name, cast(Role, token["role"])), key, days=days)
    content = {"name": name, "role": token["role"], "certificate": certificate.decode(), "authority": root.decode()}
    content["key"] = digest
    try:
        _write(answered, _sealed(ANSWER, token["secret"], content), replace=False)
    except FileExistsError:
        return sign(authority, path, days=days)
    return answered


def renew(authority: Path, name: str, *, days: float = 365) -> Path:
    """Certify the key of a party anew, under the name and in the role it has; return the answer's file, to be mailed.

    Raises CredentialError for a name that cannot be, or that has no certificate from here.
    """
    check_name(name)
    path = _answer_path(authority, name)
    if not path.exists():
        raise CredentialError(
            f"{name} has no certificate from {authority}: there is none to renew. Make a token: terrine party enrol "
            f"token {authority} --party {name}=ROLE."
        )
    answered = _read(path, _ANSWER_FIELDS)
    token = _read(_token_path(authority, name), _TOKEN_FIELDS)
    key = x509.load_pem_x509_certificate(answered["certificate"].encode()).public_key()
    identity = Identity(name, cast(Role, answered["role"]))
    certificate, root = certify(authority, identity, cast(ec.EllipticCurvePublicKey, key), days=days)
    content = {field: answered[field] for field in ("name", "role", "key")}
    content |= {"certificate": certificate.decode(), "authority": root.decode()}
    _write(path, _sealed(ANSWER, token["secret"], content))
    return path


def install(folder: Path, path: Path, secret: str) -> Credentials:
    """Take up the authority's answer: write the certificate, and whom to trust, beside the key in `folder`.

    Raises CredentialError for an answer that is damaged, not under this token, or for another key, and for a folder
    that has a certificate.
    """
    sealed = _read(path, _ANSWER_FIELDS)
    _check_seal(ANSWER, secret, sealed, path, "this token")
    if (folder / CERTIFICATE).exists():
        raise CredentialError(f"{folder} holds a certificate already. Keep it, or choose another folder.")
    for name, content in ((CERTIFICATE, sealed["certificate"]), (AUTHORITY, sealed["authority"])):
        write_private(folder / name, content.encode())
    try:
        return load_credentials(folder, cast(Role, sealed["role"]))
    except CredentialError:
        for name in (CERTIFICATE, AUTHORITY):
            (folder / name).unlink()
        raise


def install_renewed(folder: Path, path: Path) -> Credentials:
    """Take up a certificate of the key that `folder` has, in the place of the one there, which may have expired.

    Raises CredentialError for a folder without its key, and for an answer that is damaged, not signed by the authority
    that the folder trusts, for another key, name or role, or good for no longer than the one there.
    """
    if not (folder / KEY).exists():  # none is made in its place
        raise CredentialError(
            f"{folder / KEY} is missing. Restore it: a certificate is renewed for the key that it had."
        )
    sealed, key = _read(path, _ANSWER_FIELDS), new_key(folder / KEY)
    before, trusted = (folder / CERTIFICATE).read_bytes(), (folder / AUTHORITY).read_bytes()
    pem = sealed["certificate"].encode()
    proof = key.sign(pem, ec.ECDSA(hashes.SHA256()))
    try:
        identity = signed_by(pem, trusted, pem, proof)
    except CredentialError as error:
        raise CredentialError(f"{path} renews no certificate of {folder}. {error}") from error
    if identity != identity_of(before):
        raise CredentialError(f"{path} is for {identity.name}, a {identity.role}. {folder} is somebody else's.")
    ends = [x509.load_pem_x509_certificate(one).not_valid_after_utc for one in (before, pem)]
    if ends[1] <= ends[0]:
        raise CredentialError(
            f"{path} is good until {ends[1]:%Y-%m-%d %H:%M} UTC, no longer than the certificate in {folder}. Keep that."
        )
    write_private(folder / CERTIFICATE, pem)
    return load_credentials(folder, identity.role)


def _token_path(authority: Path, name: str) -> Path:
    return authority / TOKENS / f"{name}.token.json"


def _answer_path(authority: Path, name: str) -> Path:
    return authority / TOKENS / f"{name}.{ANSWER}"


def _requested(path: Path, pem: str) -> ec.EllipticCurvePublicKey:
    """Return the key that a certificate is asked for by somebody who has its private half."""
    try:
        wanted = x509.load_pem_x509_csr(pem.encode())
        key = wanted.public_key()
        if isinstance(key, ec.EllipticCurvePublicKey) and wanted.is_signature_valid:
            return key
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CredentialError(f"{path} holds no request for a certificate.") from error
    raise CredentialError(f"{path} was not signed with the key that it asks a certificate for.")


def _mac(kind: str, secret: str, content: Mapping[str, str]) -> str:
    # A token is typed from paper: upper case and hyphens say nothing.
    key = "".join(secret.lower().replace("-", " ").split()).encode()
    return keyed_digest(key, _PURPOSES[kind], canonical_json(content))


def _sealed(kind: str, secret: str, content: Mapping[str, str]) -> dict[str, str]:
    return {**content, "mac": _mac(kind, secret, content)}


def _check_seal(kind: str, secret: str, sealed: Mapping[str, str], path: Path, token: str) -> None:
    content = {name: value for name, value in sealed.items() if name != "mac"}
    if not hmac.compare_digest(_mac(kind, secret, content).encode(), sealed["mac"].encode(errors="replace")):
        raise CredentialError(
            f"{path} was not made with {token}, or was changed on its way: its MAC is another. Nothing was taken from "
            "it. Compare the token, and send the file again."
        )


def _read(path: Path, fields: tuple[str, ...]) -> dict[str, str]:
    try:
        if path.stat().st_size > _LARGEST:
            raise CredentialError(f"{path} is too large to be part of an enrolment.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CredentialError(f"{path} is damaged, or is no file of an enrolment.") from error
    if (
        not isinstance(content, dict)
        or {*content} != {*fields}
        or not all(isinstance(v, str) for v in content.values())
    ):
        raise CredentialError(f"{path} is damaged, or is no file of this step of an enrolment.")
    return content


def _write(path: Path, content: Mapping[str, str], *, owner_only: bool = False, replace: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, owner_only=owner_only, replace=replace) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
