"""Keys of parties, signed requests and signed receipts.

Every party has an Ed25519 key. The terms list all public keys. A request is signed over method, receiver, path, party,
time, nonce and the SHA-256 of its body (compare RFC 9421), so it is valid only for one service, collaboration, round
and party. A service refuses a request if its time is more than `WINDOW` seconds off, or its nonce was used before.

A service also has a TLS key and certificate. The terms pin the certificate by its SHA-256.

    north ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29
    trust ed25519:... https://guardian.example.org:7801 sha256:9f86d081...
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID
from pydantic import Field

from terrine.deployment.signature import model_key, signing_key
from terrine.errors import InputError, SettingError, TerrineError
from terrine.files import atomic_file, private_folder
from terrine.privacy.ledger.site_key import canonical_json

KEY, TLS_KEY, CERTIFICATE = "key.pem", "tls-key.pem", "certificate.pem"
ACCEPTANCE_HEADER = "Terrine-Acceptance"
"""Header of a report: the party's signature of the terms."""
WINDOW = 900
"""Seconds by which the clocks of two parties may differ."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

PublicKey = Annotated[str, Field(pattern="^ed25519:[0-9a-f]{64}$")]
"""An Ed25519 public key, hexadecimal."""
Fingerprint = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
"""SHA-256 of a certificate in DER, hexadecimal."""


class SignatureError(TerrineError):
    """A request or a receipt is unsigned, signed by another key, outdated or replayed."""


@dataclass(frozen=True)
class PartyLine:
    """The line that a party sends to the others: its name, public key and, for a service, URL and certificate."""

    name: str
    key: str
    url: str | None = None
    certificate: str | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.key, self.url, self.certificate)))

    @classmethod
    def parse(cls, text: str) -> PartyLine:
        """Parse the line that `terrine party key` prints.

        Raises:
            InputError: The text is not a line of `terrine party key`.
        """
        name, key, *service = text.split() if len(text.split()) > 1 else (text, "")
        url, certificate = [*service, None, None][:2]
        if (
            not _NAME.fullmatch(name)
            or not re.fullmatch("ed25519:[0-9a-f]{64}", key)
            or (certificate and not re.fullmatch("sha256:[0-9a-f]{64}", certificate))
            or len(service) > 2
        ):
            raise InputError(f"{text[:80]!r} is not a line of `terrine party key`: NAME ed25519:... [URL sha256:...].")
        return cls(name, key, url and check_url(url), certificate)


def check_name(name: str) -> str:
    """Check a party's name and return it.

    Raises:
        SettingError: The name does not have the form of a host name.
    """
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"{name!r} cannot be a party's name: use at most 63 lower-case letters, digits and hyphens, as in the name "
            "of a host."
        )
    return name


def check_url(url: str) -> str:
    """Check the URL of a service and return it.

    Raises:
        SettingError: The URL is not https://host:port.
    """
    parts = urlsplit(url)
    try:
        valid = parts.scheme == "https" and parts.hostname and (parts.port or 443) and not parts.query
    except ValueError:
        valid = None
    if not valid:
        raise SettingError(f"The URL of a service is https://host:port, not {url!r}.")
    return url.rstrip("/")


def create_key(folder: Path, name: str, url: str | None = None) -> PartyLine:
    """Create a party's key, and a self-signed TLS certificate for the URL of a service; return the line to send.

    Existing files are not changed.

    Raises:
        SettingError: The name or URL is impossible.
    """
    check_name(name)
    private_folder(folder)
    key = public_text(signing_key(folder / KEY))
    if url is None:
        return PartyLine(name, key)
    if not (folder / CERTIFICATE).exists():
        _self_sign(folder, urlsplit(check_url(url)).hostname or "")
    return PartyLine(name, key, check_url(url), certificate_digest(folder / CERTIFICATE))


def _self_sign(folder: Path, host: str) -> None:
    key = model_key(folder / TLS_KEY)
    try:
        host_name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        host_name = x509.DNSName(host)
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([host_name]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with atomic_file(folder / CERTIFICATE) as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))


def certificate_digest(path: Path) -> str:
    """Return the pin of a certificate in PEM: `sha256:` and the SHA-256 of its DER."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is missing or holds no certificate in PEM ({error}).") from error
    return "sha256:" + certificate.fingerprint(hashes.SHA256()).hex()


def own_key(folder: Path) -> Ed25519PrivateKey:
    """Return a party's private key.

    Raises:
        InputError: The key file is missing.
        ArtefactError: The key file is damaged or of another kind, or others may read it.
    """
    if not (folder / KEY).is_file():
        raise InputError(
            f"{folder / KEY} is missing. Create it with `terrine party key {folder}`, or restore it from a backup."
        )
    return signing_key(folder / KEY)


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public key in the form that the terms contain."""
    return "ed25519:" + key.public_key().public_bytes_raw().hex()


def sign(key: Ed25519PrivateKey, content: bytes) -> str:
    """Return a signature, hexadecimal."""
    return key.sign(content).hex()


def check_signature(key: str, content: bytes, signature: str) -> None:
    """Check a signature with a public key of the terms.

    Raises:
        SignatureError: The signature is not by this key over this content.
    """
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.removeprefix("ed25519:")))
        public.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError) as error:
        raise SignatureError("The signature is not by the key that the terms name.") from error


def signed_headers(
    key: Ed25519PrivateKey, party: str, receiver: str, method: str, path: str, body: bytes
) -> dict[str, str]:
    """Return the headers of a signed request."""
    headers = {
        "Terrine-Party": party,
        "Terrine-Created": str(int(time.time())),
        "Terrine-Nonce": secrets.token_hex(16),
        "Terrine-Digest": hashlib.sha256(body).hexdigest(),
    }
    return headers | {"Terrine-Signature": sign(key, _signed_content(headers, receiver, method, path))}


def _signed_content(headers: Mapping[str, str], receiver: str, method: str, path: str) -> bytes:
    names = ("Terrine-Party", "Terrine-Created", "Terrine-Nonce", "Terrine-Digest")
    lines = ["terrine request 1", method, receiver, path, *(headers.get(name, "") for name in names)]
    return "\n".join(lines).encode()


class RequestVerifier:
    """Checks signed requests to one service, and remembers the nonces of valid ones for as long as they are valid."""

    def __init__(self, receiver: str) -> None:
        self._receiver, self._lock = receiver, threading.Lock()
        self._seen: dict[str, int] = {}

    def check(self, keys: Mapping[str, str], headers: Mapping[str, str], method: str, path: str) -> tuple[str, str]:
        """Return the party that signed a request, and the SHA-256 of the body that it announces.

        Raises:
            SignatureError: The request is unsigned, signed by another key, outdated or replayed.
        """
        party, created = headers.get("Terrine-Party", ""), headers.get("Terrine-Created", "")
        nonce, digest = headers.get("Terrine-Nonce", ""), headers.get("Terrine-Digest", "")
        if party not in keys:
            raise SignatureError("The request names no party of this collaboration.")
        if not re.fullmatch("[0-9]{1,12}-[0-9a-f]{32}-[0-9a-f]{64}", f"{created}-{nonce}-{digest}"):
            raise SignatureError("The request is not signed: time, nonce or digest is missing.")
        check_signature(
            keys[party],
            _signed_content(headers, self._receiver, method, path),
            headers.get("Terrine-Signature", ""),
        )
        now = int(time.time())
        if abs(now - int(created)) > WINDOW:
            raise SignatureError(
                f"The request was signed {abs(now - int(created)):,} s away from this service's clock; {WINDOW} s are "
                "allowed. Set the clock."
            )
        with self._lock:
            for old in [old for old, until in self._seen.items() if until < now]:
                del self._seen[old]
            if nonce in self._seen:
                raise SignatureError("The request was received before: it is a replay.")
            self._seen[nonce] = int(created) + WINDOW
        return party, digest


def make_receipt(key: Ed25519PrivateKey, service: str, path: str, party: str, digest: str) -> dict[str, str]:
    """Return the receipt of a service for an upload."""
    about = {"service": service, "path": path, "party": party, "sha256": digest}
    about["at"] = datetime.now(UTC).isoformat(timespec="seconds")
    return about | {"signature": sign(key, _receipt_content(about))}


def check_receipt(receipt: Mapping[str, str], key: str, service: str, path: str, party: str, body: bytes) -> None:
    """Check a receipt for an upload.

    Raises:
        SignatureError: The receipt is for something else, or not signed by the service.
    """
    about = {name: str(value) for name, value in receipt.items() if name != "signature"}
    expected = {"service": service, "path": path, "party": party, "sha256": hashlib.sha256(body).hexdigest()}
    if {name: about.get(name) for name in expected} != expected:
        raise SignatureError(f"The receipt of {service} is for another upload.")
    check_signature(key, _receipt_content(about), str(receipt.get("signature", "")))


def _receipt_content(about: Mapping[str, str]) -> bytes:
    return b"terrine receipt 1\n" + canonical_json(dict(about))


def acceptance_content(digest: str) -> bytes:
    """Return the bytes that a party signs to accept the terms with this digest."""
    return b"terrine acceptance 1\n" + digest.encode()
