"""The release that a guardian pays for: what it is known by, what it may cost, where its noise comes from.

The worst case is reserved before the first noise is drawn, whatever happens to sessions in between, and what it cost is
charged when the last round is over (`Ledger.reserve`). Nothing else of a collaboration touches its ledger.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tasks.parties.account import account_in_ledger, task_agreed
from tasks.parties.config import PartyConfig
from terrine.errors import LedgerError, SettingError
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import check_together
from terrine.privacy.ledger.identity import canonical_json, keyed_digest, load_or_create_key
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.ledger.people import People
from terrine.privacy.ledger.release_protocol import Reservation
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise, check_slack


class PaidRelease:
    """A collaboration's release in its guardian's ledger.

    identity: what it is known by: what the parties agreed to release, whose data it is, and where noise comes from.
    """

    def __init__(self, config: PartyConfig) -> None:
        assert config.ledger is not None
        self._config, self._settings, self._terms = config, config.ledger, config.terms
        self._key = load_or_create_key(config.ledger.key)
        self._noise = noise_of(config)
        self._account = account_in_ledger(self._key, config.ledger)
        self.identity = release_of(self._key, config, self._account, self._noise)
        self._drawn_of: int | None = None  # the round that noise was drawn for last
        self._reservation: Reservation | None = None
        self._request: dict[str, Any] = {
            "dataset": self._account,
            "release_id": self.identity,
            "run": config.ledger.run or config.terms.called,
            "worst_case": config.terms.event(),
            "delta": config.terms.delta,
            "noise_kind": self._noise.kind,
            "data": None if config.ledger.people is None else People.load(config.ledger.people),
            "task": task_agreed(config),
        }

    def _ledger(self) -> Ledger:
        settings = self._settings
        return Ledger(settings.url, settings.store, self._key, draw_patience=self._config.patience, site=settings.site)

    def was_made(self) -> bool:
        """Whether it was made before; what was not and could not be paid for is refused, before anybody computes
        anything."""
        ledger = self._ledger()
        if ledger.committed(self.identity):
            return True
        terms = self._terms
        worst = terms.event()
        if not price(worst, terms.delta) <= terms.epsilon * (1 + 1e-9):  # rounding aside
            raise SettingError(
                f"The terms ask {terms.asked} queries, which may cost ε={round_up(price(worst, terms.delta)):g} at "
                f"δ={terms.delta:g}, more than the ε={terms.epsilon:g} agreed on. Ask fewer, or use more noise."
            )
        check_slack(terms.numbers, terms.epsilon, terms.delta)
        # An account for public benchmark data takes secure noise as well.
        public = self._account in ledger.datasets() and ledger.budget(self._account).mode == "replay"
        mode: Literal["release", "replay"] = "replay" if public or self._noise.kind == "replay" else "release"
        ledger.register(self._account, self._settings.epsilon, terms.delta, mode, unit=terms.unit)
        if not ledger.reserved([self.identity]):
            check_together(ledger.together(self._account), [worst], self._noise.kind)
        return False

    def open(self) -> StoredRelease | None:
        """Reserve the worst case unless it is reserved; return the release if it was made before."""
        if self._reservation is None:
            self._reservation = self._ledger().reserve(**self._request)
        return self._reservation.release

    def draw(self, number: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return noise for the guardian's sums of a round; the worst case is charged before the first of it is drawn.

        kind: what it is for, as `terrine.collaboration.protocol.guardian` says it.
        """
        agreement = self._terms.agreement("0" * 32, self.identity, number)
        if self.open() is not None:
            raise LedgerError("This batch was answered before. Nothing was drawn.")
        summed, source = self._terms.summed, self._source(number)
        if summed is not None and number < summed.passes:
            return summed.noise(source, number).reshape(shape)
        sigma = agreement.sigma_threshold if kind == "threshold" else agreement.sigma
        assert sigma is not None
        return source.gaussian(shape, sigma)

    def _source(self, number: int) -> NoiseSource:
        """Where the noise of a round comes from. Of replayed noise there is one stream for all rounds, whoever was
        started again between them."""
        summed = self._terms.summed
        if self._drawn_of != number:
            self._drawn_of = number
            if self._config.replay_seed is not None and summed is not None:
                self._noise = ReplayNoise(self._config.replay_seed)
                for earlier in range(number):
                    summed.noise(self._noise, earlier)
        return self._noise

    def settle(self, passed: np.ndarray) -> StoredRelease:
        """Charge what it cost: `passed` says which queries are answered."""
        if self._reservation is None:
            raise LedgerError("Nothing was reserved, so nothing can be charged.")
        return self._reservation.commit({"passed": passed}, self._terms.event(int(passed.sum())))

    def abandon(self) -> None:
        """Nothing comes of it in this process; what was reserved stays charged."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def record(self, release: StoredRelease, counted: list[str] | None, *, reused: bool) -> dict[str, Any]:
        """What there is to say of it once it is made, and nothing about any vote.

        counted: whose shares are in it, as far as that is known. reused: whether it was made before.
        """
        terms, passed = self._terms, release.arrays["passed"]
        return {
            "release_id": release.release_id,
            "event": to_json(release.event),
            "digest": release.digest,
            "account": self._account,
            "epsilon_account": release.guarantee,
            "epsilon": round_up(price(release.event, terms.delta)),
            "delta": terms.delta,
            "epsilon_total": release.epsilon_total,
            "noise": self._noise.kind,
            "asked": terms.asked,
            "answered": int(passed.sum()),
            "counted": counted,
            "reused": reused,
            "edition": None if release.task is None else release.task.edition,
            "task": None if release.task is None else release.task.to_json(),
        }


def noise_of(config: PartyConfig) -> NoiseSource:
    """Where the guardian's noise comes from."""
    return SecureNoise() if config.replay_seed is None else ReplayNoise(config.replay_seed)


def release_of(key: bytes, config: PartyConfig, account: str, noise: NoiseSource) -> str:
    """The identity of the release: what the parties agreed to release, whose data it is, and where noise comes from."""
    content = {"terms": config.terms.identity(), "account": account, "noise": noise.describe()}
    return keyed_digest(key, "terrine collaboration release", canonical_json(content))
