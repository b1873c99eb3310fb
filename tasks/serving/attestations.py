"""Signatures of a release for tools of the supply chain, beside signature.json.

attestation.json     in-toto Statement v1 in a DSSE envelope: digests of all signed files, and privacy.json as predicate
model.sig            OpenSSF model signature of the folder `student`, a Sigstore bundle
model-key.pem        public key of model.sig

The attestation is signed with the site's Ed25519 key. OpenSSF `model_signing` supports elliptic-curve keys only, so
model.sig has a second, independent key. The attestation covers that public key and therefore vouches for it.

Formats: https://github.com/in-toto/attestation/tree/main/spec/v1, https://github.com/secure-systems-lab/dsse,
https://github.com/sigstore/model-transparency.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.runtime.store import atomic_file, write_text
from tasks.serving.pages import ATTESTATION, FIGURES, MODEL_KEY, MODEL_SIGNATURE, SIGNATURE, STUDENT, pages_in
from terrine.errors import ArtefactError
from terrine.extras import from_extra
from terrine.files import file_digest, files_below
from terrine.privacy.statement import SCHEMA_VERSION

with from_extra("statement", "Signatures"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from terrine.deployment.signature import model_key, signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PREDICATE = f"urn:terrine:schema:privacy-statement:{SCHEMA_VERSION}"
"""Type of the predicate: the identifier of the JSON Schema that privacy.json follows."""
MODEL_SIGNING = "model-signing.pem"
"""File name of the site's key for model signatures, in the folder of its signing key."""

_TYPE, _PAYLOAD = "https://in-toto.io/Statement/v1", "application/vnd.in-toto+json"
_MODEL_PREDICATE = "https://model_signing/signature/v1.0"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_LARGEST = 2**24
_ECDSA = ec.ECDSA(hashes.SHA256())


def sign_for_tools(folder: Path, signing: Path) -> list[str]:
    """Write model.sig, if there is a student, and attestation.json; signature.json must be written before.

    Args:
        folder: The release's folder.
        signing: File of the site's signing key. The key of model.sig is in the same folder and is created on first use.

    Returns:
        Names of the written files.
    """
    if (folder / STUDENT).is_dir():
        write_model_signature(folder, model_key(signing.with_name(MODEL_SIGNING)))
    write_attestation(folder, signing_key(signing))
    return [name for name in (ATTESTATION, MODEL_SIGNATURE, MODEL_KEY) if (folder / name).is_file()]


def write_model_signature(folder: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Sign the folder `student` of a release for `model_signing`, and write model.sig and model-key.pem.

    Args:
        folder: The release's folder.
        key: A P-256 key (`terrine.deployment.signature.model_key`).
    """
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    envelope = _envelope(_model_statement(folder), lambda message: key.sign(message, _ECDSA), "")
    material = {"publicKey": {"hint": hashlib.sha256(public).hexdigest()}, "tlogEntries": []}
    _write(folder / MODEL_SIGNATURE, {"mediaType": _BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope})
    write_text(folder / MODEL_KEY, public.decode())


def write_attestation(folder: Path, key: Ed25519PrivateKey) -> None:
    """Write attestation.json about the signed files of a release; signature.json must be written before.

    Args:
        folder: The release's folder.
        key: The site's key.
    """
    predicate = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in _digests(folder).items()]
    content = {"_type": _TYPE, "subject": subjects, "predicateType": PREDICATE, "predicate": predicate}
    _write(folder / ATTESTATION, _envelope(content, key.sign, _key_id(key.public_key())))


def check_attestation(folder: Path, key: Ed25519PublicKey | None) -> str:
    """Check attestation.json, and return a sentence about it.

    Args:
        folder: The release's folder.
        key: Public key that must have signed the attestation; None: unknown.

    Raises:
        ArtefactError: The attestation was not signed with this key, or differs from the files in the folder.
    """

    if key is None:
        raise ArtefactError(f"There is no valid {SIGNATURE} that names its key.")
    content = _opened(json.loads(_read(folder / ATTESTATION)), key.verify, ATTESTATION)
    if content.get("_type") != _TYPE or content.get("predicateType") != PREDICATE:
        raise ArtefactError(f"Its predicate is {content.get('predicateType')!r}, not {PREDICATE}.")
    attested, there = {one["name"]: one["digest"]["sha256"] for one in content["subject"]}, _digests(folder)
    for name, digest in there.items():
        if attested.get(name) != digest:
            raise ArtefactError(f"{name} " + ("has another digest." if name in attested else "is not attested."))
    if content["predicate"] != json.loads((folder / FIGURES).read_text(encoding="utf-8")):
        raise ArtefactError("Its predicate differs from privacy.json.")
    missing = f"; {len(attested) - len(there)} of its files are not in the folder" * (len(attested) > len(there))
    return f"in-toto, signed with the site's key: {len(there)} files and the facts of privacy.json{missing}."


def check_model_signature(folder: Path) -> str:
    """Check model.sig with the key in model-key.pem, and return a sentence about it.

    Raises:
        ArtefactError: The model signature was not made with this key, or differs from the student.
    """
    public = _read(folder / MODEL_KEY)
    key = serialization.load_pem_public_key(public)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ArtefactError(f"{MODEL_KEY} is not a P-256 key.")
    bundle = json.loads(_read(folder / MODEL_SIGNATURE))
    if bundle["verificationMaterial"]["publicKey"]["hint"] != hashlib.sha256(public).hexdigest():
        raise ArtefactError(f"It names another key than {MODEL_KEY}.")
    verify = key.verify
    content = _opened(
        bundle["dsseEnvelope"], lambda signature, message: verify(signature, message, _ECDSA), MODEL_SIGNATURE
    )
    if content != _model_statement(folder):
        raise ArtefactError("The student differs from the signed one.")
    return f"OpenSSF model signature of the student, with the key {MODEL_KEY}."


def _digests(folder: Path) -> dict[str, str]:
    """Return SHA-256 digests of the existing files that an attestation covers, by name in the release's folder."""
    names = (FIGURES, *pages_in(folder), SIGNATURE, MODEL_SIGNATURE, MODEL_KEY)
    beside = {name: folder / name for name in names if (folder / name).is_file()}
    student = {f"{STUDENT}/{name}": path for name, path in files_below(folder / STUDENT).items()}
    return {name: file_digest(path) for name, path in (beside | student).items()}


def _model_statement(folder: Path) -> dict[str, Any]:
    """Return what `model_signing` signs: the digest of each file of the student, and a digest of these digests."""
    digests = {name: file_digest(path) for name, path in files_below(folder / STUDENT).items()}
    root = hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests.values())).hexdigest()
    options = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []}
    resources = [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in digests.items()]
    return {
        "_type": _TYPE,
        "subject": [{"name": STUDENT, "digest": {"sha256": root}}],
        "predicateType": _MODEL_PREDICATE,
        "predicate": {"serialization": options, "resources": resources},
    }


def _encoded(payload: bytes) -> bytes:
    """Return the signed bytes of a DSSE envelope: its pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)


def _envelope(content: Mapping[str, Any], sign: Callable[[bytes], bytes], key_id: str) -> dict[str, Any]:
    payload = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    signature = base64.b64encode(sign(_encoded(payload))).decode()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": _PAYLOAD,
        "signatures": [{"keyid": key_id, "sig": signature}],
    }


def _opened(envelope: Mapping[str, Any], verify: Callable[[bytes, bytes], None], name: str) -> dict[str, Any]:
    """Return the content of an envelope whose only signature `verify` accepts."""
    payload = base64.b64decode(envelope["payload"], validate=True)
    (signature,) = envelope["signatures"]
    try:
        verify(base64.b64decode(signature["sig"], validate=True), _encoded(payload))
    except InvalidSignature as error:
        raise ArtefactError("It was changed, or signed with another key.") from error
    content = json.loads(payload)
    if envelope["payloadType"] != _PAYLOAD or not isinstance(content, dict):
        raise ArtefactError(f"{name} contains no in-toto statement.")
    return content


def _key_id(key: Ed25519PublicKey) -> str:
    """Return the key's identifier in securesystemslib: SHA-256 of its canonical JSON."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()
    described = {"keytype": "ed25519", "keyval": {"public": raw}, "scheme": "ed25519"}
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST)
