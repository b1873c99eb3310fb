"""Requests for approval and decisions about them, as the ledger's rows store them.

A `request` row contains everything that an approval covers. A `decision` row contains the signed decision of a person
and the position of its request. The ledger's chain makes both tamper-evident, and the signature covers a keyed digest
of the request. So no decision applies to another request, and a holder of the ledger's key cannot forge one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from terrine.errors import TerrineError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.pricing import covers
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.release_protocol import ReleaseRequest
from terrine.privacy.ledger.site_key import canonical_json, keyed_digest
from terrine.privacy.ledger.transaction import LedgerTransaction

if TYPE_CHECKING:
    from terrine.deployment.signature import Approval

REQUEST: Final = "request"
DECISION: Final = "decision"
EACH = ("releases", "inputs", "settings", "expected")
"""Fields in which the requests of a run's stages differ. All other fields must equal those of the approved request."""

Content = Mapping[str, Any]


class ApprovalNeeded(TerrineError):
    """A run waits for a person's approval. Nothing was drawn and nothing was charged."""

    status = 3
    """Exit status of a command that ends with this error."""


@dataclass(frozen=True)
class Decision:
    """A valid decision.

    Attributes:
        position: Position of its row in the ledger.
        approval: The signed decision.
        request: Content of the request that it decides.
        name: Name of the person, as given. Private.
        why: Reason, as given. Private.
    """

    position: int
    approval: Approval
    request: Content
    name: str
    why: str

    def covers(self, request: Content) -> bool:
        """Return whether the decision is about all releases of a request, with the same inputs, price and facts."""
        known = self.request
        return (
            all(known.get(name) == value for name, value in request.items() if name not in EACH)
            and all(release in known["releases"] for release in request["releases"])
            and all(known["inputs"].get(name) == value for name, value in request["inputs"].items())
        )

    def report(self) -> str:
        """Describe the decision, its date and the person's role, without name and reason."""
        return f"{self.approval.decision} on {self.approval.when:%Y-%m-%d} by the role '{self.approval.role}'"


def subject(key: bytes, request: Content, name: str, why: str) -> str:
    """Return the keyed digest that a signature covers, computed from a request and the person's name and reason."""
    return keyed_digest(key, "terrine approval", canonical_json({"request": request, "name": name, "why": why}))


def valid_decisions(key: bytes, trusted: frozenset[str] | None, rows: Iterable[Row]) -> Iterator[Decision]:
    """Yield, in order, the decisions that a trusted key signed about the request that they name.

    Args:
        key: Key of the site.
        trusted: Fingerprints of the keys that may approve; None: any key.
        rows: Rows of requests and decisions, verified and in order.
    """
    from terrine.deployment.signature import Approval  # slow to import, and most runs need no approval

    requests: dict[int, Content] = {}
    for row in rows:
        if row.kind == REQUEST:
            requests[row.position] = row.content
        elif row.content["request"] in requests:
            body, request = row.content, requests[row.content["request"]]
            try:
                approval = Approval(**body["approval"])
                approval.check()
            except (TerrineError, ValueError, TypeError):  # not a decision, or not signed by this key
                continue
            about = (request["run"], [release["id"] for release in request["releases"]])
            signed = subject(key, request, body["name"], body["why"])
            known = trusted is None or approval.key in trusted
            if known and approval.subject == signed and about == (approval.run, approval.releases):
                yield Decision(row.position, approval, request, body["name"], body["why"])


def refuse_unapproved(
    key: bytes, trusted: frozenset[str], facts: Content, transaction: LedgerTransaction, release: ReleaseRequest
) -> None:
    """Refuse a release in the ledger's transaction unless its last decision approves it with these inputs.

    `tasks.runtime.approval` asks before a stage begins; this check holds for every path to the noise.

    Args:
        key: Key of the site.
        trusted: Fingerprints of the keys that may approve.
        facts: Facts about the run that the approved request must have.
        transaction: The transaction that charges the release.
        release: The release.

    Raises:
        ApprovalNeeded: If it is not approved.
    """
    rows = sorted(
        transaction.verified(kind=REQUEST) + transaction.verified(kind=DECISION), key=lambda row: row.position
    )
    last = None
    for decision in valid_decisions(key, trusted, rows):
        request = decision.request
        same = (
            request["account"] == release.dataset
            and all(request[name] == value for name, value in facts.items())
            and all(request["inputs"].get(name, value) == value for name, value in release.inputs.items())
        )
        for one in request["releases"]:
            if same and one["id"] == release.release_id:
                worst = from_json(one["event"])
                last = decision if covers(worst, release.worst_case, request["delta"]) else last
    if last is None or last.approval.decision != "approved":
        raise ApprovalNeeded(
            f"The release {release.release_id[:16]} of run {release.run} is not approved. Nothing was released or "
            f"charged. Run its stages again: terrine run {release.run}"
        )
