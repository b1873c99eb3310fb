"""terms.yaml: what the parties of a collaboration agree on before anything is computed, the same file at every party.

A party whose terms differ is refused when it connects, with what differs. The numbers in it are public. What decides
the privacy of the release is all here: how many teachers vote (and so what the noise is measured in), which queries,
which noise, how many must be there, the budget that the guardian holds the release to, whom it protects (`unit`) and at
how many parties somebody's data may be (`overlap`). What decides whether the votes of all parties mean the same is here
as well: the classes by name, the bytes of queries and backbone, and the version of Terrine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from tasks.config.values import digest
from terrine.aggregation.course import Course
from terrine.aggregation.fixed_point import FixedPoint
from terrine.aggregation.registry import MECHANISMS, mechanism_of
from terrine.collaboration.protocol.party import Agreement, Reveal
from terrine.collaboration.transport.credentials import CredentialError, Role, check_name
from terrine.data.images import Fit
from terrine.data.source import Window
from terrine.errors import SettingError
from terrine.geometry import Size, as_size, in_json, is_size
from terrine.privacy.accounting.events import Event, of_several
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of
from terrine.settings import Settings

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""SHA-256."""

T = TypeVar("T", bound="Terms")

_OF_SUMS = ("length", "records")
_OF_GRADIENTS = ("rounds", "clip", "learning_rate", "sigma_gradients")


class Terms(Settings):
    """What all parties agree on."""

    guardian: str = "guardian"
    student: str = "student"
    teachers: dict[str, int] = Field(min_length=1)
    """Every teacher party by its name, with the number of teachers it holds; of sums, how many times `records`."""
    unit: Literal["record", "group"]
    """Whom the budget protects: one record, or all records of a person (a group), which lie with one teacher alone. The
    guardian accounts for this, and every teacher party must have dealt its records by it."""
    overlap: int = Field(1, ge=1)
    """At how many teacher parties the data of one person may be at most. The guardian accounts for it."""
    minimum: int = Field(ge=1)
    """The fewest teachers whose votes must be there; with fewer the round ends, and costs nothing."""
    queries: int = Field(ge=1)
    """How many queries the batch has; of sums 1, what they are."""
    asked: int = Field(ge=1)
    """How many of them, the first ones, are asked: as many as the budget is sure to pay for."""
    queries_digest: Digest
    """Of the manifest of the query images: their order, their batches."""
    query_shards: list[Digest] = Field(min_length=1)
    """Of the bytes of each file of query images, in order."""
    size: Annotated[Size, AfterValidator(as_size)] | None = None
    """Side of every image, in pixels, or height and width; of a table's rows none."""
    fit: Fit = "stretch"
    """How a record's picture of another shape gets this one."""
    window: Window | None = None
    """The values that become black and white in pictures of more than 8 bits, DICOM's after rescaling; None where each
    file says it, and where 8 bits are all there is."""
    channels: Literal[1, 3] | None = None
    """Grey or colour; of a table's rows none."""
    backbone: Digest
    """Of the backbone that teachers and students share."""
    class_names: list[Annotated[str, Field(min_length=1)]] = Field(min_length=2)
    """By label. Each party finds its own classes here by name, in whatever order its data have them."""
    mechanism: str
    sigma: float | None = Field(None, gt=0)
    """Of sums, the noise on label moments."""
    threshold: float | None = None
    sigma1: float | None = Field(None, gt=0)
    sigma2: float | None = Field(None, gt=0)
    length: int | None = Field(None, ge=2)
    """Of sums: the coordinates of a record's vector."""
    records: int | None = Field(None, ge=1)
    """Of sums: the most records (or groups) of a party, for each of its `teachers`. A public bound, not a count."""
    rounds: int | None = Field(None, ge=1)
    """Of gradients: how many are summed, one after the other, after the moments."""
    clip: float | None = Field(None, gt=0, le=1)
    """Of gradients: the largest length of a record's."""
    learning_rate: float | None = Field(None, gt=0)
    """Of gradients: the step that the student party takes along each."""
    sigma_gradients: float | None = Field(None, gt=0)
    """Of gradients: the noise on each of their coordinates."""
    epsilon: float = Field(gt=0)
    """What the release may cost at most, at `delta`."""
    delta: float = Field(gt=0, lt=1)
    edition: str = Field("", max_length=200)
    """Names this very vote. With the same terms a batch is answered once; when teachers were trained again and are to
    be asked again, choose another edition. It costs again."""
    deadline: float | None = Field(None, gt=0)
    """Seconds that the guardian waits for teacher parties, from when it begins; None where its party.yaml says it."""
    version: str = Field(default_factory=lambda: version("terrine"))
    """Of Terrine, which all parties have: another may train other teachers of the same records."""

    @field_validator("size")
    @classmethod
    def _size_has_pixels(cls, value: Size | None) -> Size | None:
        if value is not None and not is_size(value):
            raise ValueError(f"size={in_json(value)} has no pixels: give the side of images, or height and width")
        return value

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
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError(f"class_names={', '.join(self.class_names)} names a class twice")
        if self.overlap > len(self.teachers):
            raise ValueError(f"overlap={self.overlap} is above the {len(self.teachers)} teacher parties there are")
        if self.asked > self.queries:
            raise ValueError(f"asked={self.asked} is above queries={self.queries}")
        self._check_mechanism()
        return self

    def _check_mechanism(self) -> None:
        """Raise ValueError unless the mechanism is one that parties can run together, with all its parts."""
        kind = MECHANISMS.of(self.mechanism)
        if not kind.by_parties:
            raise ValueError(f"mechanism={self.mechanism} is none that parties can run together")
        parts = kind.parameters()
        if kind.reveals == "sums":
            parts = ("sigma", *_OF_SUMS, *(_OF_GRADIENTS if "rounds" in parts else ()))
        for key in ("sigma", "threshold", "sigma1", "sigma2", *_OF_SUMS, *_OF_GRADIENTS):
            if (key in parts) != (getattr(self, key) is not None):
                raise ValueError(f"{key} is {'missing' if key in parts else 'not a part of'} {self.mechanism}")
        if (sums := self.fixed_point) is not None:
            try:
                most = sums.most_units // self.total
            except SettingError as error:
                raise ValueError(str(error).rstrip(".")) from error
            if self.records is not None and self.records > most:
                raise ValueError(
                    f"records={self.records} of {self.total} teachers in all could wrap sums around: with this noise "
                    f"they hold {most:,} at most"
                )

    @property
    def classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def agreed(self) -> str:
        """Digest of the terms that parties have accepted."""
        return digest(self.public(), 64)

    @property
    def reveals(self) -> Reveal:
        """What the student party opens."""
        found: Reveal = self.described.reveals
        return found

    @property
    def described(self) -> Any:
        """The mechanism, with those of its parameters that stand here."""
        return mechanism_of(self.public())

    @property
    def fixed_point(self) -> FixedPoint | None:
        """What is summed, where sums are released."""
        if self.length is None or self.sigma is None:
            return None
        course = {key: value for key in _OF_GRADIENTS if (value := getattr(self, key)) is not None}
        return FixedPoint(self.length, self.classes, Course(self.sigma, **course))

    @property
    def last(self) -> int:
        """The number of the last round; the first is 0."""
        return self.rounds or 0

    @property
    def numbers(self) -> int:
        """How many numbers with noise are drawn at most."""
        return self.asked * (self.classes + 1) if self.fixed_point is None else self.fixed_point.numbers

    @property
    def total(self) -> int:
        """N, the teachers of all parties."""
        return sum(self.teachers.values())

    def roles(self) -> dict[str, Role]:
        """The role of every party."""
        return {self.guardian: "guardian", self.student: "student", **dict.fromkeys(self.teachers, "teacher")}

    def public(self) -> dict[str, Any]:
        """The terms as JSON values, as parties compare them; those of votes say nothing of sums, and so on."""
        strange = (*(_OF_SUMS if self.length is None else ()), *(_OF_GRADIENTS if self.rounds is None else ()))
        return self.model_dump(mode="json", exclude=set(strange))

    def identity(self) -> dict[str, Any]:
        """What the release is known by, as JSON values. Not what only says how it is come by: by when, with which
        version; nor what follows from the queries and the edition: which bytes, which names of classes."""
        about = self.public() | {"classes": self.classes}
        for key in ("class_names", "query_shards", "size", "channels", "backbone", "deadline", "version"):
            del about[key]
        for key, usual in (("overlap", 1), ("fit", "stretch"), ("window", None)):
            if about[key] == usual:
                del about[key]
        return about

    def event(self, passed: int | None = None) -> Event:
        """What the release costs whoever is absent, where so many queries passed the test: at most, for None.

        A unit at `overlap` parties is one unit of each. Each of them moves what all parties add up by what one unit
        moves it by, so together they move it at most so many times as far (`events.of_several`).
        """
        if (sums := self.fixed_point) is not None:
            return of_several(sums.course.event, self.overlap)
        answered = self.asked if passed is None else passed
        event: Event = self.described.cost(self.asked, answered)
        return of_several(event, self.overlap)

    def check_version(self) -> None:
        """Raise SettingError where another version of Terrine runs here than the parties agreed on."""
        if (here := version("terrine")) != self.version:
            raise SettingError(
                f"The parties agreed on Terrine {self.version}, and this is {here}: teachers and students may come out "
                f"differently. Install it (pip install terrine=={self.version}), or agree on terms with {here}."
            )

    def agreement(self, session: str, release: str, number: int = 0) -> Agreement:
        """The agreement of one session, on its round of this number."""
        sums = self.fixed_point
        return Agreement(
            session=session,
            release=release,
            guardian=self.guardian,
            student=self.student,
            teachers=tuple(self.teachers.items()),
            minimum=self.minimum,
            queries=self.asked if sums is None else sums.counts[number],
            classes=self.classes if sums is None else 1,
            queries_digest=self.queries_digest,
            reveal=self.reveals,
            threshold=self.threshold,
            sigma=self.described.deviation if sums is None else sums.parts(number)[0][1],
            sigma_threshold=self.sigma1,
            round=number,
            head=0 if sums is None else sums.course.asked(sums.length, sums.classes, number),
        )


def certain(mechanism: Any, queries: int, epsilon: float, delta: float, overlap: int) -> int:
    """Return how many of so many queries a budget is sure to pay for, where a person may be at `overlap` parties."""
    if overlap > 1:
        epsilon = epsilon_of(mu_of(epsilon, delta) / overlap, delta)
    count: int = mechanism.certain(queries, epsilon, delta)
    return count


def checked(values: Mapping[str, Any], kind: type[T] = Terms) -> T:  # type: ignore[assignment]
    """Return terms. Raises SettingError naming every key that is unknown, missing or impossible."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingError(f"These cannot be terms. {sentence_of(error)}") from error


def sentence_of(error: ValidationError) -> str:
    """Return what is wrong with settings: sentences that name each key."""
    lines = []
    for finding in error.errors(include_url=False):
        key = ".".join(str(part) for part in finding["loc"])
        message = finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "extra_forbidden":
            lines.append(f"{key}: there is no such setting.")
        elif finding["type"] == "value_error":
            lines.append(f"{message}." if not key else f"{key}: {message}.")
        elif finding["type"] == "missing":
            lines.append(f"{key} is missing.")
        else:
            lines.append(f"{key}={finding['input']!r}: {message[0].lower()}{message[1:]}.")
    return " ".join(lines)
