"""Releases from Python: an account in a site's ledger, with a budget over all its releases.

    with Ledger.open("ledger", budget=8) as ledger:
        release = ledger.release(mechanism, votes, edition="first")

The ledger itself is in `terrine.privacy.ledger.ledger`; the code shared with the pipeline's stage `aggregate` is in
`terrine.aggregation.release`. All noise is secure.
"""

import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from terrine.aggregation.mechanism import BUDGET, Mechanism
from terrine.aggregation.release import (
    Release,
    Votes,
    answer_facts,
    changed_inputs,
    partition_commitment,
    partition_inputs,
    release_histograms,
)
from terrine.aggregation.votes import count_votes
from terrine.errors import ArtefactError, SettingError
from terrine.privacy.facts import Examples, Facts
from terrine.privacy.ledger.ledger import Ledger as SiteLedger
from terrine.privacy.ledger.site_key import account_of, keyed_digest, load_or_create_key, release_identity
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import SecureNoise
from terrine.privacy.statement import PrivacyStatement


class Ledger:
    """An account of a site's ledger.

    Guarantees, even if processes crash or race: all releases of the account together stay within its budget; nothing is
    drawn before its worst case is reserved; repeating a release returns the stored one at no cost. A release is
    identified by public facts: account, edition, classes, mechanism and the voters' settings, never by the votes.

    Args:
        folder: Folder for the key, the database and releases; created if missing. It is private; back up all of it.
        budget: ε over all releases; None, only for public benchmarks, records releases without a limit.
        delta: δ of the budget and of every release.
        account: Name of the people whose records these are; all editions of their data belong to one account.

    Raises:
        SettingError: The budget is invalid.
        LedgerError: The ledger is damaged, or the account has another budget.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, budget: float | None, delta: float = 1e-5, account: str = "default"
    ) -> None:
        folder = Path(folder)
        self.budget, self.delta, self.account = budget, delta, account
        self._key = load_or_create_key(folder / "key")
        site = os.environ.get("TERRINE_SITE")
        self._site = SiteLedger(
            f"sqlite:///{folder / 'ledger.db'}", folder / "releases", self._key, site=Path(site) if site else None
        )
        self._name = account_of(self._key, account)
        if self._name in self._site.datasets():
            self._register()  # raises if its budget differs

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, budget: float | None, delta: float = 1e-5, account: str = "default"
    ) -> Self:
        """Open or create an account; see the class docstring."""
        return cls(folder, budget=budget, delta=delta, account=account)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing stays open between two calls."""

    def spent(self) -> float:
        """Return the ε spent so far at the account's δ, with open reservations at their worst case."""
        return self._site.spent(self._name, self.delta) if self._name in self._site.datasets() else 0.0

    def release(
        self, mechanism: Mechanism, votes: Votes, *, edition: str = "1", epsilon: float | None = None
    ) -> Release:
        """Release noisy answers, or return those released before for the same edition and settings.

        Args:
            mechanism: Aggregation mechanism.
            votes: Votes of the teachers (`Teachers.fit(...).vote(queries)`).
            edition: Your name for this version of the data. A new edition is released and charged again.
            epsilon: Maximum cost of this release, at which answering stops; None for the account's budget.

        Returns:
            The release, which may be published.

        Raises:
            BudgetError: the account's budget does not cover the worst case. Nothing was drawn and nothing was charged.
            SettingError: Private records without a budget, no ε, or a mechanism for several findings or rounds.
            ArtefactError: The stored release was made with other query images.
            LedgerError: the ledger is damaged, or the account protects another unit.
        """
        if self.budget is None and not votes.public:
            raise SettingError(
                "These records are not a public benchmark, so their releases need a budget: "
                "Ledger.open(folder, budget=...). Nothing was released."
            )
        if given := sorted(mechanism.model_fields_set & {*BUDGET}):
            raise SettingError(
                f"{', '.join(given)} of a mechanism are for runs. Set the budget of the account, "
                "Ledger.open(folder, budget=...), or of the release, release(..., epsilon=...). Nothing was released."
            )
        if mechanism.findings > 1 or mechanism.informed:
            raise SettingError(
                "Several findings and rounds with a student are only supported by terrine run: data.findings, "
                "queries.rounds. Nothing was released."
            )
        epsilon = self.budget if epsilon is None else epsilon
        if epsilon is None:
            raise SettingError("Without a budget a release needs its own: release(..., epsilon=8).")
        noise = SecureNoise()
        teachers = votes.values.shape[1]
        histograms = count_votes(votes.values, votes.classes)
        inputs = {
            "votes": keyed_digest(self._key, "terrine votes", str(votes.values.shape).encode(), votes.values.tobytes()),
            "queries": votes.queries,
            **partition_inputs(keyed_digest(self._key, "terrine partition", votes.assignment.astype("<i8").tobytes())),
        }
        names = votes.class_names or tuple(map(str, range(votes.classes)))
        task = Task(edition, "classes", names, found=not votes.declared)
        parameters = {
            **votes.made_from,
            **mechanism.describe(),
            "epsilon": epsilon,
            "delta": self.delta,
            "queried": len(histograms),
            "voters": teachers,
            "task": task.identity(),
        }
        self._register(votes.unit)
        stored = release_histograms(
            self._site,
            mechanism,
            histograms,
            account=self._name,
            release_id=release_identity(
                self._key,
                account=self._name,
                edition=edition,
                release="answers from Python",
                parameters=parameters,
                noise=noise.describe(),
            ),
            run=f"{self.account}, edition {edition}",
            epsilon=epsilon,
            delta=self.delta,
            noise=noise,
            inputs=inputs,
            data=None if votes.people is None else replace(votes.people, edition=edition),
            task=task,
        )
        changed = changed_inputs(stored, inputs)
        if "queries" in changed:
            raise ArtefactError(
                f"The release of edition {edition} was made before with other query images of the same settings, "
                "perhaps by another version of Terrine. Use the old images, or a new edition, which is charged again."
            )
        statement = PrivacyStatement(
            run=f"{self.account}, edition {edition}",
            release_id=stored.release_id,
            dataset=self._name,
            unit=votes.unit,
            trust_model="central",
            epsilon_dataset=stored.epsilon_total,
            epsilon_account=stored.guarantee,
            task=None if stored.task is None else stored.task.to_json(),
            noise=noise.kind,
            mechanism=mechanism.describe(),
            partition_digest=partition_commitment(stored),
            partition_disjoint=votes.disjoint,
            public_inputs=votes.public_inputs,
            facts=votes.facts or Facts("image", (Examples("provided", len(histograms)),)),
            code_version=f"terrine {version('terrine')}",
            **answer_facts(
                stored, mechanism, teachers=teachers, classes=votes.classes, epsilon=epsilon, delta=self.delta
            ),
        )
        return Release(
            mechanism,
            stored.arrays["labels"],
            stored.arrays["answered"],
            stored.arrays.get("histograms"),
            teachers,
            votes.classes,
            votes.queries,
            stored.reused,
            tuple(changed),
            statement,
        )

    def _register(self, unit: str | None = None) -> None:
        self._site.register(self._name, self.budget, self.delta, "release", unit=unit)
