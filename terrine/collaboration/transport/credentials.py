"""Certificates of parties: who a party is, as the others can check it.

A party is known by the name in its certificate, and a certificate is good for one role: teacher, guardian or student,
its organisational unit. All certificates of a collaboration are signed by one authority that everybody trusts. The
authority made here is for trials; hospitals bring certificates of their own, with the name as common name and as DNS
name, and the role as organisational unit.

Keys are on the curve P-256 (gRPC's TLS takes no Ed25519), written in PKCS#8, readable by their owner alone.

    >>> authority = create_authority(Path("authority"))
    >>> issue(authority, Path("parties/hospital-1"), "hospital-1", "teacher")
    >>> load_credentials(Path("parties/hospital-1"), "teacher").name
    'hospital-1'
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from terrine.errors import TerrineError
from terrine.files import atomic_file

Role = Literal["teacher", "guardian", "student"]
ROLES: tuple[Role, ...] = get_args(Role)

KEY, CERTIFICATE, AUTHORITY = "key.pem", "certificate.pem", "authority.pem"
"""The files of a party's credentials; an authority has the same first two."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SKEW = timedelta(minutes=5)  # a certificate is good at once on machines whose clocks are a little behind


class CredentialError(TerrineError):
    """A certificate or key is missing, unusable, expired, or another party's."""


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names, and for which role."""

    name: str
    role: Role


@dataclass(frozen=True)
class Credentials:
    """What a party shows, and whom it trusts; PEM.

    Attributes:
        certificate: Its certificate, followed by those between it and the authority, if any.
    """

    identity: Identity
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)
    expires: datetime

    @property
    def name(self) -> str:
        """The party's name."""
        return self.identity.name


def create_authority(folder: Path, *, days: float = 365) -> Path:
    """Make a certificate authority for trials, its key and certificate in `folder`, which no party has; return it.

    Raises CredentialError where there is one already: certificates it issued would no longer be trusted.
    """
    if (folder / KEY).exists():
        raise CredentialError(f"There is an authority in {folder} already. Use it, or choose another folder.")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Terrine trial authority")])
    builder = (
        _unsigned(subject, key.public_key(), subject, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    write_private(folder / KEY, _bytes_of(key))
    write_private(folder / CERTIFICATE, _pem(builder.sign(key, hashes.SHA256())))
    return folder


def issue(authority: Path, folder: Path, name: str, role: Role, *, days: float = 90) -> Credentials:
    """Make a key and a certificate for one party in one role, in `folder` with the authority's certificate.

    Args:
        authority: The folder of the authority that signs.
        folder: Where the party's credentials are written.
        name: The party's name: lower-case letters, digits and hyphens, as in the name of a host.
        days: For how long the certificate is good; not after a negative number it is expired, for tests.

    Raises CredentialError for a name that cannot be one, or a folder that has credentials.
    """
    check_name(name)
    check_role(role)
    if (folder / KEY).exists():
        raise CredentialError(f"{folder} holds credentials already. Keep them, or choose another folder.")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, root = certify(authority, Identity(name, role), key.public_key(), days=days)
    write_private(folder / KEY, _bytes_of(key))
    write_private(folder / CERTIFICATE, certificate)
    write_private(folder / AUTHORITY, root)
    expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return Credentials(Identity(name, role), _bytes_of(key), certificate, root, expires)


def certify(
    authority: Path, identity: Identity, key: ec.EllipticCurvePublicKey, *, days: float = 90
) -> tuple[bytes, bytes]:
    """Return a certificate of a party's public key, and the authority's own; PEM. Arguments are those of `issue`."""
    signer = _read_key(authority / KEY)
    root = _read_certificate(authority / CERTIFICATE)
    name, role = identity.name, identity.role
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)]
    )
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([] if role == "teacher" else [ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        _unsigned(subject, key, root.subject, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
    )
    return _pem(builder.sign(cast(ec.EllipticCurvePrivateKey, signer), hashes.SHA256())), _pem(root)


def new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a party's private key, or return the one that is there. Raises CredentialError for a file that is none."""
    if path.exists():
        key = _read_key(path)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CredentialError(f"{path} is a key of another kind. Terrine's are on an elliptic curve.")
        return key
    made = ec.generate_private_key(ec.SECP256R1())
    write_private(path, _bytes_of(made))
    return made


def load_credentials(folder: Path, role: Role | None = None) -> Credentials:
    """Read a party's credentials, and check that they are usable now: for `role`, where that is given.

    Raises CredentialError for a file that is missing or not what it should be, a key that others may read or that is
    not the certificate's, a certificate that has expired, is not valid yet, was signed by another authority, or is
    for another role.
    """
    key_path, path = folder / KEY, folder / CERTIFICATE
    key, certificate = _read_key(key_path), _read_certificate(path)
    authority = _read_certificate(folder / AUTHORITY)
    if os.name == "posix" and stat.S_IMODE(key_path.stat().st_mode) & 0o077:
        raise CredentialError(f"{key_path} can be read by others than its owner. Run: chmod 600 {key_path}")
    if key.public_key() != certificate.public_key():
        raise CredentialError(f"{key_path} is not the key of {path}. Put the two that belong together there.")
    now = datetime.now(UTC)
    for file, found in ((path, certificate), (folder / AUTHORITY, authority)):
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            when = "expired on" if now > found.not_valid_after_utc else "is not valid before"
            date = found.not_valid_after_utc if now > found.not_valid_after_utc else found.not_valid_before_utc
            raise CredentialError(
                f"{file} {when} {date:%Y-%m-%d %H:%M} UTC. Ask the authority for another "
                "of the same key: terrine party enrol renew."
            )
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        if len(x509.load_pem_x509_certificates(path.read_bytes())) == 1:
            raise CredentialError(
                f"{path} was not signed by {folder / AUTHORITY}. Ask the authority that the other parties trust."
            ) from error
    identity = identity_of(path.read_bytes())
    if role is not None and identity.role != role:
        raise CredentialError(
            f"{path} is a certificate for a {identity.role}, not for a {role}: a certificate is good for one role. "
            "Ask the authority for one of this role, under a name of its own."
        )
    return Credentials(
        identity, key_path.read_bytes(), path.read_bytes(), _pem(authority), certificate.not_valid_after_utc
    )


def identity_of(pem: bytes) -> Identity:
    """Return whom a certificate names, and for which role; of several, the first certificate's.

    Raises CredentialError when it names nobody, several parties, or no role.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CredentialError("This is not a certificate in PEM.") from error
    names = _attributes(certificate, NameOID.COMMON_NAME)
    roles = _attributes(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = extension.value.get_values_for_type(x509.DNSName)
    except (x509.ExtensionNotFound, ValueError):
        hosts = []
    if len(names) != 1 or names[0] not in hosts:
        raise CredentialError(
            f"A party's certificate has one common name that is also a DNS name; this one has {names} and {hosts}."
        )
    if len(roles) != 1 or roles[0] not in ROLES:
        raise CredentialError(
            f"The certificate of {names[0]} has the organisational units {roles}; it must be one of {', '.join(ROLES)}."
        )
    check_name(names[0])
    return Identity(names[0], cast(Role, roles[0]))


def check_name(name: str) -> None:
    """Raise CredentialError unless a party may have this name."""
    if not _NAME.fullmatch(name):
        raise CredentialError(
            f"{name!r} cannot be a party's name: use at most 63 lower-case letters, digits and hyphens, as in the name "
            "of a host."
        )


def check_role(role: str) -> None:
    """Raise CredentialError for what is no role."""
    if role not in ROLES:
        raise CredentialError(f"A party is a {', '.join(ROLES)}, not {role!r}.")


def signature_of(credentials: Credentials, content: bytes) -> bytes:
    """Return a party's signature of `content` (ECDSA, SHA-256). Raises CredentialError for a key of another kind."""
    key = serialization.load_pem_private_key(credentials.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialError(f"The key of {credentials.name} cannot sign: Terrine's are on an elliptic curve.")
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


def signed_by(certificate: bytes, authority: bytes, content: bytes, signature: bytes) -> Identity:
    """Return whose certificate this is, once it was signed by the authority and `content` with its key.

    certificate: PEM, followed by those between it and the authority, if any. Raises CredentialError otherwise.
    """
    try:
        chain = x509.load_pem_x509_certificates(certificate)
        root = x509.load_pem_x509_certificate(authority)
        for between in chain[1:]:
            if not between.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                raise CredentialError("It was signed by somebody who is no authority.")
        for one, signer in pairwise([*chain, root]):
            one.verify_directly_issued_by(signer)
        now, key = datetime.now(UTC), chain[0].public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise CredentialError("Its key is of another kind than Terrine's, which are on an elliptic curve.")
        if not all(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in (*chain, root)):
            raise CredentialError("Its certificate has expired, or is not valid yet.")
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise CredentialError(
            "It was not signed with a certificate of the authority that this party trusts."
        ) from error
    return identity_of(certificate)


def _attributes(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]


def _unsigned(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now - _SKEW, end - timedelta(days=1)))
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _bytes_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, owner_only=True) as file:
        file.write(content)


def _read_key(path: Path) -> PrivateKeyTypes:
    return _read(path, lambda content: serialization.load_pem_private_key(content, password=None), "private key")


def _read_certificate(path: Path) -> x509.Certificate:
    return _read(path, x509.load_pem_x509_certificate, "certificate")


def _read(path: Path, parse: Callable[[bytes], object], what: str):  # type: ignore[no-untyped-def]
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise CredentialError(
            f"{path} cannot be read: {error.strerror}. `terrine party enrol` makes credentials, and `terrine party "
            "init` those of a trial."
        ) from error
    except (ValueError, TypeError) as error:
        raise CredentialError(f"{path} is not a {what} in PEM without a password.") from error
