"""Upload of a teacher party: make the report of a round, send one body to each service, and exit.

The report of a round is made once and stored before the first upload, so the command can be repeated at any time: the
same bytes are sent again and the same receipts come back. With several rounds the command is repeated, or `watch` waits
for the next round.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.config.values import digest
from tasks.parties.client import CollaborationError, ServiceClient
from tasks.parties.config import PartyConfig
from tasks.parties.keys import ACCEPTANCE_HEADER, acceptance_content, check_receipt, sign
from tasks.parties.store import Store, StoredFacts
from terrine.collaboration.protocol.report import make_report
from terrine.errors import InputError
from terrine.files import json_object, write_text

log = logging.getLogger("terrine.party")

Report = Callable[[int, np.ndarray | None], np.ndarray]
"""Returns the report of a round, given its weights (None in the first round): integers [queries, own teachers], or sums
[numbers, 1]."""
SERVICES: tuple[Literal["guardian", "student"], ...] = ("guardian", "student")
CLOSED = "closed.json"
"""File with the last round of every release in which a party was counted, in its state folder and at its ledger."""


def submit(
    config: PartyConfig,
    report_source: Callable[[PartyConfig], Report],
    *,
    watch: bool = False,
    interval: float = 2.0,
) -> dict[str, Any]:
    """Upload the report of the open round; return the state of the collaboration, with `receipts` of this command.

    Args:
        config: The party.
        report_source: Function that returns the party's report source; called only if a report must be made.
        watch: Whether to stay until the last round is closed.
        interval: Seconds between two checks of the state, with `watch`.

    Raises:
        CollaborationError: A service refused the report or cannot be reached.
        TerrineError: Data, terms or account cannot be used. Nothing was uploaded.
    """
    submission = _Submission(config, report_source)
    try:
        while True:
            status = submission.step()
            if not watch or status["state"] in ("complete", "stopped") or status["round_closed"]:
                return status | {"receipts": submission.receipts}
            time.sleep(interval)
    finally:
        submission.store.close()


class _Submission:
    """State of one call of `submit`."""

    def __init__(self, config: PartyConfig, report_source: Callable[[PartyConfig], Report]) -> None:
        self._config, self._report_source, self._terms = config, report_source, config.terms
        self._report: Report | None = None
        self.name, self.store = config.name, Store(config.state)
        self._clients = {service: ServiceClient(config, service) for service in SERVICES}
        self._part = digest([config.terms.identity(), self.name], 64)
        self.receipts: list[dict[str, str]] = []
        self._sent: set[int] = set()

    def step(self) -> dict[str, Any]:
        """Upload the open round's report if necessary; return the state, and whether the last round is closed."""
        status: dict[str, Any] = self._clients["student"].json("GET", "status")
        last, number = self._terms.last, int(status["round"])
        closed = self._remember(status["counted"])
        status["round_closed"] = str(last) in status["counted"]
        if status["round_closed"] or status["state"] in ("complete", "computing"):
            return status
        if status["reports"].get(self.name) == "refused":
            raise CollaborationError(
                f"The services refused the report of {self.name}: it is not of votes of its teachers. It is not "
                "counted. Take part in another edition, with the data and the version of the terms."
            )
        if number in self._sent:
            return status
        if number <= closed:
            raise CollaborationError(
                f"{self.name} has reported in round {number}, and it was counted. A service that asks again has lost "
                "its state: other noise on the same votes would be a second release at the same price. "
                "Nothing was uploaded. Restore the services' backups, or agree on another edition."
            )
        self._upload(number)
        self._sent.add(number)
        return status

    def _upload(self, number: int) -> None:
        facts, name = self.store.facts(self._terms.digest, number), self.name
        if facts.get("student") is None:
            self._make(facts, number)
        log.info("%s: uploading the report of round %d", name, number)
        acceptance = {ACCEPTANCE_HEADER: sign(self._config.key, acceptance_content(self._terms.digest))}
        path = f"rounds/{number}/reports/{name}"
        for service, client in self._clients.items():
            body = facts.get(service)
            assert body is not None
            receipt = json.loads(client.request("PUT", path, body, acceptance))
            check_receipt(receipt, client.public_key, client.receiver, f"{client.base}/{path}", name, body)
            facts.keep(f"receipt/{service}", receipt)
            self.receipts.append(receipt)

    def _make(self, facts: StoredFacts, number: int) -> None:
        """Make the report of a round, charge the party's own account, and store the report."""
        account = None
        if self._config.ledger is not None:
            from tasks.parties.ledgers import OwnAccount

            account = OwnAccount(self._config)
            account.check()
        self._report = self._report or self._report_source(self._config)
        agreement, weights = self._terms.agreement(number), None
        if number:
            weights = np.frombuffer(self._clients["student"].request("GET", f"rounds/{number}/weights"), "<f8")
            if weights.shape != (agreement.weights,) or not np.isfinite(weights).all():
                raise InputError(f"The weights of round {number} are not {agreement.weights:,} finite numbers.")
        bodies = make_report(agreement, self.name, self._report(number, weights))
        if account is not None:
            account.charge()
        with self.store.transaction():
            for service, body in zip(SERVICES, bodies, strict=True):
                facts.setdefault(service, body)

    def _remember(self, counted: dict[str, list[str]]) -> int:
        """Store in which rounds this party was counted; return the last one, −1 for none.

        The account that the party keeps has its own copy, since it outlives the folder of one agreement.
        """
        places = [self._config.state / CLOSED]
        if self._config.ledger is not None:
            places.append(self._config.ledger.store.parent / CLOSED)
        known = {part: number for place in places for part, number in _closed(place).items()}
        now = max((int(number) for number, names in counted.items() if self.name in names), default=-1)
        if now > known.get(self._part, -1):
            for place in places:
                write_text(place, json.dumps(known | {self._part: now}, indent=2, sort_keys=True) + "\n")
            if now == self._terms.last:
                self.store.clear(self._terms.digest)
        return int(max(known.get(self._part, -1), now))


def _closed(path: Path) -> dict[str, int]:
    found = json_object(path)
    if found is None and path.exists():
        raise CollaborationError(
            f"{path} says what this party has reported, and cannot be read. Restore it from a backup: without it the "
            "same votes could be reported again, for other noise at no charge. Nothing was uploaded."
        )
    return found or {}
