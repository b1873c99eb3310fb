"""An acceptance: a small file that says, signed with a party's key, that it agreed to these very terms.

It goes back to whoever proposed. In the folder `accepted` of the guardian it is looked at before every session.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks.parties.agreement.terms import Terms
from terrine.collaboration.transport.credentials import CredentialError, Credentials, Identity, signature_of, signed_by
from terrine.errors import InputError, SettingError
from terrine.files import atomic_file
from terrine.privacy.ledger.identity import canonical_json

ACCEPTANCE = "acceptance.json"
"""What a party signed, beside its party.yaml."""
_LARGEST = 2**18


@dataclass(frozen=True)
class Acceptance:
    """What a party signed, and when (ISO 8601): SHA-256 of the terms and of the proposal's manifest, and so of all in
    it.

    certificate: PEM. signature: ECDSA with SHA-256 over all of the other values, base64.
    """

    party: str
    role: str
    terms: str
    proposal: str
    signed: str
    certificate: str
    signature: str = ""

    @property
    def content(self) -> bytes:
        """What is signed."""
        return b"terrine acceptance\n" + canonical_json({**asdict(self), "signature": ""})


def accept_terms(path: Path, credentials: Credentials, terms: Terms, proposal: str) -> Acceptance:
    """Sign terms as the party of these credentials, and write the acceptance."""
    own = credentials.identity
    when = datetime.now(UTC).isoformat(timespec="seconds")
    unsigned = Acceptance(own.name, own.role, terms.digest, proposal, when, credentials.certificate.decode())
    signature = base64.b64encode(signature_of(credentials, unsigned.content)).decode()
    accepted = Acceptance(**{**asdict(unsigned), "signature": signature})
    with atomic_file(path) as file:
        file.write((json.dumps(asdict(accepted), indent=2) + "\n").encode())
    return accepted


def read_acceptance(path: Path, authority: bytes) -> Acceptance:
    """Return an acceptance, its signature checked with a certificate of the authority (PEM).

    Raises InputError for one that is damaged or not signed by the party that it names.
    """
    try:
        content = json.loads(path.read_bytes()[:_LARGEST])
        accepted = Acceptance(**content)
        signature = base64.b64decode(accepted.signature, validate=True)
        certificate = accepted.certificate.encode()
        who = signed_by(certificate, authority, accepted.content, signature)
    except CredentialError as error:
        raise InputError(f"{path} is not what its party signed. {error}") from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or is no acceptance. Have it sent again.") from error
    if who != Identity(accepted.party, accepted.role):  # type: ignore[arg-type]
        raise InputError(f"{path} says it is of the {accepted.role} {accepted.party!r}, and {who.name!r} signed it.")
    return accepted


def accepted_by(folder: Path, own: Path, terms: Terms, authority: bytes) -> dict[str, Acceptance]:
    """Return the acceptances of these terms in a folder, by party, and the guardian's own, if there are any.

    Raises InputError as `read_acceptance` does, and SettingError for one of other terms, of a party that takes no part,
    or of another proposal than the others accepted: then no two parties need to have the same queries in mind.
    """
    found: dict[str, Acceptance] = {}
    mailed = sorted(folder.glob("*.json"))
    for path in [*mailed, *([own] if mailed and own.is_file() else [])]:
        accepted = read_acceptance(path, authority)
        if terms.roles().get(accepted.party) != accepted.role:
            raise SettingError(
                f"{path}: {accepted.party!r} takes no part in these terms as a {accepted.role}. Remove it."
            )
        if accepted.terms != (here := terms.agreed):
            raise SettingError(
                f"{path}: {accepted.party} accepted other terms on {accepted.signed}, those of digest "
                f"{accepted.terms[:16]}; these have {here[:16]}. Have it accept these, or take those it accepted."
            )
        found[accepted.party] = accepted
    _of_one_proposal(found.values())
    return found


def _of_one_proposal(accepted: Iterable[Acceptance]) -> None:
    by_digest = {one.proposal: one.party for one in accepted}
    if len(by_digest) > 1:
        (first, one), (second, other), *_ = by_digest.items()
        raise SettingError(
            f"{one} accepted the proposal {first[:16]}, and {other} {second[:16]}: somebody's mail was changed, or "
            "there are two proposals. Send all of them the same one."
        )
