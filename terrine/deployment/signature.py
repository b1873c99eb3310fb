"""A detached signature: a small file that says, signed with a site's key, which statement, pages and student it gave.

The key is Ed25519, written as parties' keys are: PKCS#8 in PEM, readable by its owner alone. Its public half goes to
whoever is to check signatures, on another way than what is signed; a certificate of it will do, too. A signature
carries the public half, so that what is signed can be told to be whole; from whom it is, only a key that the reader was
given can tell.

    >>> key = signing_key(Path("private/signing.pem"))
    >>> write_signature(Path("release/signature.json"), sign(key, {"release": "01", ...}))
    >>> read_signature(Path("release/signature.json")).check(public_key(Path("site.pem")))
"""

import base64
import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from terrine.errors import ArtefactError, InputError
from terrine.extras import from_extra
from terrine.files import atomic_file, private_folder

with from_extra("statement", "Signatures"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_LARGEST = 2**18
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Signature:
    """What a site signed.

    Attributes:
        release: Identity of the release, as the statement has it.
        files: SHA-256 of the statement and its pages, by their names.
        student: SHA-256 of the student's manifest, and so of all that is in its folder; None where there is none.
        terrine: The version that drew the pages.
        signed: When, ISO 8601 in UTC.
        public_key: PEM.
        signature: Ed25519 over all of the above, base64.
    """

    release: str
    files: dict[str, str]
    student: str | None
    terrine: str
    signed: str
    public_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        texts = (self.release, self.terrine, self.signed, self.public_key, self.signature, self.student or "")
        if not isinstance(self.files, dict) or not all(
            isinstance(text, str) for text in (*texts, *self.files.values())
        ):
            raise ValueError("a signature consists of texts")
        if any(Path(name).name != name for name in self.files):
            raise ValueError("what is signed lies beside the signature")
        if self.when.utcoffset() is None:
            raise ValueError("a date has a time zone")

    @property
    def when(self) -> datetime:
        """When it says it was made."""
        return datetime.fromisoformat(self.signed)

    @property
    def key(self) -> str:
        """The fingerprint of the key that it carries."""
        return fingerprint(_public(self.public_key.encode()))

    @property
    def content(self) -> bytes:
        """What is signed."""
        unsigned = {**asdict(self), "signature": ""}
        return b"terrine statement\n" + json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()

    def check(self, key: Ed25519PublicKey | None = None) -> None:
        """Raise ArtefactError unless this key signed it, not in the future; without a key, that which it carries."""
        own = _public(self.public_key.encode())
        if key is not None and fingerprint(key) != fingerprint(own):
            raise ArtefactError(
                f"It was signed with the key {fingerprint(own)}, and the one that was given is {fingerprint(key)}."
            )
        try:
            own.verify(base64.b64decode(self.signature, validate=True), self.content)
        except (InvalidSignature, ValueError) as error:
            raise ArtefactError("It is not what its key signed: it was changed afterwards.") from error
        if self.when > datetime.now(UTC) + _SKEW:
            raise ArtefactError(f"It says that it was signed on {self.signed}, which is yet to come.")


def sign(key: Ed25519PrivateKey, content: Mapping[str, Any]) -> Signature:
    """Return a signature of `content`: the attributes of `Signature` but its last two."""
    public = public_pem(key.public_key()).decode()
    unsigned = Signature(**content, public_key=public)
    value = base64.b64encode(key.sign(unsigned.content)).decode()
    return Signature(**content, public_key=public, signature=value)


def write_signature(path: Path, signature: Signature) -> None:
    """Write a signature to a file."""
    with atomic_file(path) as file:
        file.write((json.dumps(asdict(signature), indent=2, sort_keys=True) + "\n").encode())


def read_signature(path: Path) -> Signature:
    """Read a signature, unchecked. Raises InputError for a file that is none."""
    try:
        with path.open("rb") as file:
            found = Signature(**json.loads(file.read(_LARGEST)))
        _public(found.public_key.encode())
        return found
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"{path} is damaged, or is no signature of a statement. Have it sent again.") from error


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the site's private key, made the first time.

    Raises ArtefactError where it is none, or others may read it.
    """
    try:
        if not path.exists():
            private_folder(path.parent)
            made = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            # Of several processes at once one makes it, and all get the same.
            with contextlib.suppress(FileExistsError), atomic_file(path, replace=False, owner_only=True) as file:
                file.write(made)
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ArtefactError(f"The site's key {path} can be neither read nor made: {error.strerror}.") from error
    except (ValueError, TypeError) as error:
        raise ArtefactError(f"{path} is no private key in PEM without a password. Restore it from a backup.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ArtefactError(f"{path} is a key of another kind. Statements are signed with Ed25519.")
    if os.name == "posix" and mode & 0o077:
        raise ArtefactError(
            f"{path} can be read by others than its owner, who could sign in the site's name. Close it, chmod 600 "
            f"{path}, and find out who could read it until now."
        )
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key, or a certificate of one that is valid now; PEM.

    Raises InputError for anything else: a file that is none, a private key, a certificate that has expired.
    """
    try:
        content = path.read_bytes()[:_LARGEST]
    except OSError as error:
        raise InputError(f"The key {path} cannot be read: {error.strerror}.") from error
    if b"PRIVATE KEY" in content:
        raise InputError(f"{path} is a private key, which must not leave its site. Ask for the public one.")
    try:
        if b"BEGIN CERTIFICATE" not in content:
            return _public(content)
        certificate = x509.load_pem_x509_certificate(content)
        found = certificate.public_key()
        ends = certificate.not_valid_after_utc
        valid = certificate.not_valid_before_utc <= datetime.now(UTC) <= ends
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is no Ed25519 public key in PEM, and no certificate of one.") from error
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(f"{path} is a certificate of another kind of key. Statements are signed with Ed25519.")
    if not valid:
        raise InputError(f"The certificate {path} has expired ({ends:%Y-%m-%d}), or is not valid yet. Ask for another.")
    return found


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return a public key as PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return what people compare of a key: the first 128 bits of a SHA-256, in groups."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.sha256(der).hexdigest()
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


def _public(pem: bytes) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except UnsupportedAlgorithm as error:
        raise ValueError("the key is of another kind") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the key is of another kind")
    return key
