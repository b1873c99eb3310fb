"""terms.yaml: what the parties of a collaboration agree on before anything is computed, the same file at every party.

A party whose terms differ is refused when it connects, with what differs. The numbers in it are public. What decides
the privacy of the release is all here: how many teachers vote (and so what the noise is measured in), which queries,
which noise, how many must be there, the budget that the guardian holds the release to, and whom it protects (`unit`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from terrine.aggregation.registry import MECHANISMS, mechanism_of
from terrine.collaboration.protocol.party import Agreement
from terrine.collaboration.transport.credentials import CredentialError, Role, check_name
from terrine.settings import Settings


class Terms(Settings):
    """What all parties agree on."""

    guardian: str = "guardian"
    student: str = "student"
    teachers: dict[str, int] = Field(min_length=1)
    """Every teacher party by its name, with the number of teachers it holds."""
    unit: Literal["record", "group"]
    """Whom the budget protects: one record, or all records of a person (a group), which lie with one teacher alone. The
    guardian accounts for this, and every teacher party must have dealt its records by it."""
    minimum: int = Field(ge=1)
    """The fewest teachers whose votes must be there; with fewer the round ends, and costs nothing."""
    queries: int = Field(ge=1)
    """How many queries the batch has."""
    asked: int = Field(ge=1)
    """How many of them, the first ones, are asked: as many as the budget is sure to pay for."""
    queries_digest: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the manifest of the query images."""
    classes: int = Field(ge=2)
    mechanism: str
    sigma: float | None = Field(None, gt=0)
    threshold: float | None = None
    sigma1: float | None = Field(None, gt=0)
    sigma2: float | None = Field(None, gt=0)
    epsilon: float = Field(gt=0)
    """What the release may cost at most, at `delta`."""
    delta: float = Field(gt=0, lt=1)
    edition: str = Field("", max_length=200)
    """Names this very vote. With the same terms a batch is answered once; when teachers were trained again and are to
    be asked again, choose another edition. It costs again."""

    @field_validator("teachers")
    @classmethod
    def _parties_hold_teachers(cls, value: dict[str, int]) -> dict[str, int]:
        for name, count in value.items():
            if count < 1:
                raise ValueError(f"{name} holds {count} teachers; a teacher party holds at least one")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Terms:
        names = [self.guardian, self.student, *self.teachers]
        for name in names:
            try:
                check_name(name)
            except CredentialError as error:
                raise ValueError(str(error).rstrip(".")) from error
        if len(set(names)) < len(names):
            raise ValueError(
                "guardian, student and teacher parties must have different names: a party that is two of them would "
                "see what only one may see"
            )
        if self.minimum > self.total:
            raise ValueError(f"minimum={self.minimum} is above the {self.total} teachers there are")
        if self.asked > self.queries:
            raise ValueError(f"asked={self.asked} is above queries={self.queries}")
        kind = MECHANISMS.of(self.mechanism)
        if not kind.by_parties:
            raise ValueError(f"mechanism={self.mechanism} is none that parties can run together")
        for key in ("sigma", "threshold", "sigma1", "sigma2"):
            if (key in kind.parameters()) != (getattr(self, key) is not None):
                is_part = key in kind.parameters()
                raise ValueError(f"{key} is {'missing' if is_part else 'not a part of'} {self.mechanism}")
        return self

    @property
    def total(self) -> int:
        """N, the teachers of all parties."""
        return sum(self.teachers.values())

    def roles(self) -> dict[str, Role]:
        """The role of every party."""
        return {self.guardian: "guardian", self.student: "student", **dict.fromkeys(self.teachers, "teacher")}

    def public(self) -> dict[str, Any]:
        """The terms as JSON values, as parties compare them."""
        return self.model_dump(mode="json")

    def agreement(self, session: str, release: str) -> Agreement:
        """The agreement of one session."""
        mechanism = mechanism_of(self.public())
        return Agreement(
            session=session,
            release=release,
            guardian=self.guardian,
            student=self.student,
            teachers=tuple(self.teachers.items()),
            minimum=self.minimum,
            queries=self.asked,
            classes=self.classes,
            queries_digest=self.queries_digest,
            reveal=mechanism.reveals,
            threshold=self.threshold,
            sigma=mechanism.deviation,
            sigma_threshold=self.sigma1,
        )
