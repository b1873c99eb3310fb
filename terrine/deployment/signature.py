"""Detached Ed25519 signature of a release: statement, pages and student; and signing keys for other tools.

The private key is PKCS#8 in PEM, readable by its owner only. Recipients get the public key, or a certificate of it,
through a different channel than releases. A signature contains the public key, which suffices to check integrity; only
a key received separately identifies the signer.

    >>> key = signing_key(Path("private/signing.pem"))
    >>> write_signature(Path("release/signature.json"), sign(key, {"release": "01", ...}))
    >>> read_signature(Path("release/signature.json")).check(expected_key("site.pem"))
"""

import base64
import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from terrine.errors import ArtefactError, InputError
from terrine.extras import from_extra
from terrine.files import atomic_file, private_folder

with from_extra("statement", "Signatures"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_LARGEST = 2**18
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class Signed:
    """Base of signed contents.

    Attributes:
        signed: Time, ISO 8601 in UTC.
        public_key: Public key, PEM.
        signature: Ed25519 signature of all other fields, base64.
    """

    purpose: ClassVar[str]
    """First line of the signed bytes, so that one kind of content cannot pass for another."""

    signed: str
    public_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        if self.when.utcoffset() is None:
            raise ValueError("a date has a time zone")

    @property
    def when(self) -> datetime:
        """Time of the signature, as stated in it."""
        return datetime.fromisoformat(self.signed)

    @property
    def public(self) -> Ed25519PublicKey:
        """Public key in the signature."""
        return _public(self.public_key.encode())

    @property
    def key(self) -> str:
        """Fingerprint of the public key in the signature."""
        return fingerprint(self.public)

    @property
    def content(self) -> bytes:
        """Signed bytes."""
        unsigned = {**vars(self), "signature": ""}
        return f"{self.purpose}\n".encode() + json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()

    def check(self, key: str | None = None) -> None:
        """Raise ArtefactError unless the signature is valid, by the key of this fingerprint, and not of the future."""
        if key not in (None, self.key):
            raise ArtefactError(f"It was signed with the key {self.key}, and the one that was given is {key}.")
        try:
            self.public.verify(base64.b64decode(self.signature, validate=True), self.content)
        except (InvalidSignature, ValueError) as error:
            raise ArtefactError("It was changed after it was signed.") from error
        if self.when > datetime.now(UTC) + _SKEW:
            raise ArtefactError(f"Its date, {self.signed}, is in the future.")


@dataclass(frozen=True, kw_only=True)
class Signature(Signed):
    """Signed content and its signature.

    Attributes:
        release: Release ID of the statement.
        files: SHA-256 of the statement and its pages, by file name.
        student: SHA-256 of the student's manifest, which covers its folder; None without a student.
        terrine: Version of Terrine that wrote the pages.
    """

    purpose = "terrine statement"

    release: str
    files: dict[str, str]
    student: str | None
    terrine: str

    def __post_init__(self) -> None:
        texts = (self.release, self.terrine, self.signed, self.public_key, self.signature, self.student or "")
        if not isinstance(self.files, dict) or not all(
            isinstance(text, str) for text in (*texts, *self.files.values())
        ):
            raise ValueError("a signature consists of texts")
        if any(Path(name).name != name for name in self.files):
            raise ValueError("what is signed lies beside the signature")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Approval(Signed):
    """A person's signed decision about releases, before their noise is drawn. The decision may be published.

    Attributes:
        run: Name of the run.
        releases: IDs of the releases.
        decision: `approved` or `refused`.
        role: Role of the person.
        signer: `person`, signed with the person's own key; or `site`, signed with the site's key for a person who used
            the form of the Prefect server or gave no key.
        subject: Keyed digest of everything that was decided on, and of the person's name and reason.
    """

    purpose = "terrine approval"

    run: str
    releases: list[str]
    decision: str
    role: str
    signer: str
    subject: str

    def __post_init__(self) -> None:
        texts = [value for name, value in vars(self).items() if name != "releases"]
        if not isinstance(self.releases, list) or not all(isinstance(text, str) for text in texts + self.releases):
            raise ValueError("an approval consists of texts")
        if self.decision not in ("approved", "refused") or self.signer not in ("person", "site"):
            raise ValueError(f"{self.decision} or {self.signer} is unknown")
        super().__post_init__()


SignedContent = TypeVar("SignedContent", bound=Signed)


def sign(key: Ed25519PrivateKey, content: Mapping[str, Any]) -> Signature:
    """Return a signature of `content`, which has all attributes of `Signature` except the last two."""
    return _sign(key, content, Signature)


def sign_approval(key: Ed25519PrivateKey, content: Mapping[str, Any]) -> Approval:
    """Return a signed decision with `content`, which has all attributes of `Approval` except the last two."""
    return _sign(key, content, Approval)


def _sign(key: Ed25519PrivateKey, content: Mapping[str, Any], kind: Callable[..., SignedContent]) -> SignedContent:
    public = public_pem(key.public_key()).decode()
    value = base64.b64encode(key.sign(kind(**content, public_key=public).content)).decode()
    return kind(**content, public_key=public, signature=value)


def write_signature(path: Path, signature: Signature) -> None:
    """Write a signature to a file."""
    with atomic_file(path) as file:
        file.write((json.dumps(asdict(signature), indent=2, sort_keys=True) + "\n").encode())


def read_signature(path: Path) -> Signature:
    """Return the signature in a file, unchecked. Raises InputError for an invalid file."""
    try:
        with path.open("rb") as file:
            found = Signature(**json.loads(file.read(_LARGEST)))
        _public(found.public_key.encode())
        return found
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"{path} is damaged or not a signature of a statement. Ask for it again.") from error


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the site's private key; it is created on first use.

    Raises:
        ArtefactError: The file is not a private key, or others may read it.
    """
    key: Ed25519PrivateKey = _private_key(path, Ed25519PrivateKey, "an Ed25519", Ed25519PrivateKey.generate)
    return key


def model_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the site's P-256 key for OpenSSF model signatures; it is created on first use.

    Raises:
        ArtefactError: The file is not a private key, or others may read it.
    """
    key: ec.EllipticCurvePrivateKey = _private_key(
        path, ec.EllipticCurvePrivateKey, "a P-256", lambda: ec.generate_private_key(ec.SECP256R1())
    )
    if not isinstance(key.curve, ec.SECP256R1):
        raise ArtefactError(f"{path} is not a P-256 key.")
    return key


def _private_key(path: Path, kind: type, name: str, generate: Callable[[], Any]) -> Any:
    try:
        if not path.exists():
            private_folder(path.parent)
            made: bytes = generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            # If several processes create it at once, all get the first one.
            with contextlib.suppress(FileExistsError), atomic_file(path, replace=False, owner_only=True) as file:
                file.write(made)
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ArtefactError(f"The site's key {path} can be neither read nor made: {error.strerror}.") from error
    except (ValueError, TypeError) as error:
        raise ArtefactError(
            f"{path} is not a private key in PEM without a password. Restore it from a backup."
        ) from error
    if not isinstance(key, kind):
        raise ArtefactError(f"{path} is not {name} key.")
    if os.name == "posix" and mode & 0o077:
        raise ArtefactError(
            f"{path} is readable by other users, who could sign in the site's name. Run chmod 600 {path}, and find out "
            "who could read it."
        )
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in a PEM file: a key, or a certificate that is valid now.

    Raises:
        InputError: The file is invalid, a private key, or an expired certificate.
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
        raise InputError(f"{path} is neither an Ed25519 public key in PEM nor a certificate of one.") from error
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(f"{path} is not a certificate of an Ed25519 key.")
    if not valid:
        raise InputError(f"The certificate {path} has expired ({ends:%Y-%m-%d}) or is not valid yet. Ask for another.")
    return found


def expected_key(text: str) -> str:
    """Return the fingerprint of a key that is given as text or as a file (`public_key`). Raises InputError."""
    digits = "".join(text.lower().split())
    if len(digits) == 32 and not set(digits) - set("0123456789abcdef"):
        return _grouped(digits)
    if not Path(text).is_file():
        raise InputError(f"{text} is neither a fingerprint, which has 32 hexadecimal digits, nor a file.")
    return fingerprint(public_key(Path(text)))


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return a public key as PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the fingerprint of a key: the first 128 bits of its SHA-256, in groups."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _grouped(hashlib.sha256(der).hexdigest())


def _grouped(digits: str) -> str:
    return " ".join(digits[place : place + 4] for place in range(0, 32, 4))


def _public(pem: bytes) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except UnsupportedAlgorithm as error:
        raise ValueError("the key is of another kind") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the key is of another kind")
    return key
