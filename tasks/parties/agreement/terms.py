"""terms.yaml: what the parties of a collaboration agree on before anything is computed, the same file at every party.

A party whose terms differ is refused when it connects, with what differs. The numbers in it are public. What decides
the privacy of the release is all here: how many teachers vote (and so what the noise is measured in), which queries,
which noise, how many must be there, the budget that the guardian holds the release to, whom it protects (`unit`) and at
how many parties somebody's data may be (`overlap`). What decides whether the votes of all parties mean the same is here
as well: the classes by name, the bytes of queries and backbone, how teachers are trained (`teaching`), and the version
of Terrine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from tasks.config.values import digest
from terrine.aggregation.fixed_point import FixedPoint, SummedRounds
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.mechanism import MECHANISMS, mechanism_of
from terrine.collaboration.protocol.party import Agreement, Reveal
from terrine.collaboration.transport.credentials import CredentialError, Role, check_name
from terrine.data.images import Fit
from terrine.data.source import Window
from terrine.errors import SettingError
from terrine.geometry import Size, as_size, in_json, is_size
from terrine.privacy.accounting.events import Event, compose, of_several
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of
from terrine.settings import Settings
from terrine.teachers.averaging.averaged import AveragedTeachers
from terrine.teachers.averaging.private import PrivateAveraging
from terrine.teachers.averaging.shared import SharedAverages
from terrine.teachers.base import TEACHERS, Teachers

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""SHA-256."""

T = TypeVar("T", bound="Terms")

_OF_SUMS = ("length", "records")
_OF_GRADIENTS = ("rounds", "clip", "learning_rate", "sigma_gradients")
_OF_AVERAGES = ("noise_multiplier", "weights", "features")


class Teaching(Settings):
    """How every party trains its teachers. Their numbers count from 0 at each party, and the seed is the same at all:
    what is drawn for teachers alike, as a start that they share, is alike at all parties."""

    seed: int = Field(0, ge=0)
    """As the `seed` of a run."""
    teachers: dict[str, Any]
    """As the section `teachers` of a run, without `per_task`: how teachers share a machine is each party's own."""

    @field_validator("teachers")
    @classmethod
    def _said_in_full(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            kind = TEACHERS.of(str(value.get(TEACHERS.key, TEACHERS.default)))
            settings = kind.model_validate(value)
        except ValidationError as error:
            raise ValueError(sentence_of(error).rstrip(".")) from error
        except SettingError as error:
            raise ValueError(str(error).rstrip(".")) from error
        if (reason := settings.not_at_parties) is not None:
            raise ValueError(reason)
        return settings.model_dump(mode="json", exclude={"per_task"})

    @property
    def settings(self) -> Teachers:
        """The section."""
        return TEACHERS.of(self.teachers[TEACHERS.key]).model_validate(self.teachers)


class Terms(Settings):
    """What all parties agree on."""

    name: str = Field("", max_length=100)
    """What people call this collaboration, on pages about it."""
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
    teaching: Teaching | None = None
    """How teachers are trained; None where every party says that for itself."""
    noise_multiplier: float | None = Field(None, gt=0)
    """Of teachers that average: the noise on every vector, in units of the norm that it is clipped to."""
    weights: int | None = Field(None, ge=1, le=4_900_000)
    """Of teachers that average: how many numbers an update is. At most what one round of a session carries."""
    features: int | None = Field(None, ge=1)
    """Of teachers that average about a shared centre: its length."""
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
            raise ValueError(f"minimum={self.minimum} is above the {self.held(self.total)} there are")
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
        self._check_averages()
        if (sums := self.fixed_point) is not None:
            try:
                most = sums.most_units // self.total
            except SettingError as error:
                raise ValueError(str(error).rstrip(".")) from error
            if self.records is not None and self.records > most:
                raise ValueError(
                    f"records={self.records} of each of {self.held(self.total)} could wrap sums around: with this "
                    f"noise they hold {most:,} at most"
                )

    def _check_averages(self) -> None:
        """Raise ValueError unless what is said of averages fits the teachers."""
        settings = None if self.teaching is None else self.teaching.settings
        wanted: tuple[str, ...] = ()
        if isinstance(settings, AveragedTeachers) and settings.releases_averages:
            wanted = _OF_AVERAGES if settings.centre == "shared" else _OF_AVERAGES[:-1]
        for key in _OF_AVERAGES:
            if (key in wanted) != (getattr(self, key) is not None):
                which = "teachers that average" if wanted else "teachers that learn each by itself"
                raise ValueError(f"{key} is {'missing' if key in wanted else 'not a part'} of {which}")
        if wanted and MECHANISMS.of(self.mechanism).reveals == "sums":
            raise ValueError(f"mechanism={self.mechanism} sums records, and no teacher learns: leave teaching out")
        try:
            _ = self.averages
        except SettingError as error:
            raise ValueError(str(error).rstrip(".")) from error

    @property
    def classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, however they are written down."""
        return digest(self.public(), 64)

    @property
    def agreed(self) -> str:
        """Digest of the terms that parties have accepted."""
        return self.digest

    @property
    def reveals(self) -> Reveal:
        """What the student party opens."""
        return self.described.reveals

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
        return FixedPoint(self.length, self.classes, RoundSchedule(self.sigma, **course))

    @property
    def averages(self) -> SharedAverages | None:
        """What is averaged before anybody votes, where teachers learn from one another.

        Raises SettingError for what cannot be averaged so; terms that were made have none of it.
        """
        if self.noise_multiplier is None or self.weights is None or self.teaching is None:
            return None
        settings = self.teaching.settings
        assert isinstance(settings, AveragedTeachers)
        averaging = PrivateAveraging(settings, self.noise_multiplier)
        return SharedAverages(averaging, self.total, self.weights, self.features or 0)

    @property
    def summed(self) -> SummedRounds | None:
        """The rounds of sums: over records, or of averages before votes."""
        return self.fixed_point or self.averages

    @property
    def votes(self) -> bool:
        """Whether teachers vote: in the last round."""
        return self.fixed_point is None

    @property
    def last(self) -> int:
        """The number of the last round; the first is 0."""
        return (0 if self.summed is None else self.summed.passes) - (not self.votes)

    @property
    def numbers(self) -> int:
        """How many numbers with noise are drawn at most."""
        summed = 0 if self.summed is None else self.summed.numbers
        return summed + self.asked * (self.classes + 1) * self.votes

    @property
    def total(self) -> int:
        """N, the teachers of all parties; of sums the parts."""
        return sum(self.teachers.values())

    @property
    def called(self) -> str:
        """The collaboration's name, and the edition."""
        return ", edition ".join(filter(None, (self.name or "collaboration", self.edition)))

    def held(self, count: int) -> str:
        """Return so many of what `teachers` counts, in words: teachers; of sums, where nobody trains any, parts of
        `records` each."""
        return f"{count:,} {'teacher' if self.votes else 'part'}{'s' * (count != 1)}"

    def roles(self) -> dict[str, Role]:
        """The role of every party."""
        return {self.guardian: "guardian", self.student: "student", **dict.fromkeys(self.teachers, "teacher")}

    def public(self) -> dict[str, Any]:
        """The terms as JSON values, as parties compare them; those of votes say nothing of sums, and so on."""
        strange = [*(_OF_SUMS if self.length is None else ()), *(_OF_GRADIENTS if self.rounds is None else ())]
        strange += [key for key in ("teaching", *_OF_AVERAGES) if getattr(self, key) is None]
        strange += ["name"] * (not self.name)
        return self.model_dump(mode="json", exclude=set(strange))

    def identity(self) -> dict[str, Any]:
        """What the release is known by, as JSON values. Not what only says how it is come by: by when, with which
        version, by which teachers, unless they release averages; nor what follows from the queries and the edition:
        which bytes; nor what people call it."""
        about = self.public()
        for key in ("query_shards", "size", "channels", "backbone", "deadline", "version"):
            del about[key]
        for key, usual in (("overlap", 1), ("fit", "stretch"), ("window", None)):
            if about[key] == usual:
                del about[key]
        about.pop("name", None)
        if self.averages is None:
            about.pop("teaching", None)
        return about

    def event(self, passed: int | None = None) -> Event:
        """What the release costs whoever is absent, where so many queries passed the test: at most, for None.

        A unit at `overlap` parties is one unit of each. Each of them moves what all parties add up by what one unit
        moves it by, so together they move it at most so many times as far (`events.of_several`).
        """
        events = [] if self.summed is None else [self.summed.event]
        if self.votes:
            events.append(self.described.cost(self.asked, self.asked if passed is None else passed))
        return of_several(compose(*events), self.overlap)

    def check_version(self) -> None:
        """Raise SettingError where another version of Terrine runs here than the parties agreed on."""
        if (here := version("terrine")) != self.version:
            raise SettingError(
                f"The parties agreed on Terrine {self.version}, and this is {here}: teachers and students may come out "
                f"differently. Install it (pip install terrine=={self.version}), or agree on terms with {here}."
            )

    def agreement(self, session: str, release: str, number: int = 0) -> Agreement:
        """The agreement of one session, on its round of this number."""
        summed = self.summed
        sums = None if summed is None or number >= summed.passes else summed
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
            reveal=self.reveals if sums is None else "sums",
            threshold=self.threshold if sums is None else None,
            sigma=self.described.deviation if sums is None else sums.parts(number)[0][1],
            sigma_threshold=self.sigma1 if sums is None else None,
            round=number,
            head=0 if summed is None else summed.asked(number),
        )


def certain(
    mechanism: Any, queries: int, epsilon: float, delta: float, overlap: int, averages: SharedAverages | None = None
) -> int:
    """Return how many of so many queries a budget is sure to pay for, where a person may be at `overlap` parties and
    teachers average before."""
    spent = compose() if averages is None else averages.event
    return mechanism.certain(queries, of_one(epsilon, delta, overlap), delta, spent)


def of_one(epsilon: float, delta: float, overlap: int) -> float:
    """Return the ε that one unit may cost where a person at `overlap` parties, who is as many units, may cost ε."""
    return epsilon if overlap == 1 else epsilon_of(mu_of(epsilon, delta) / overlap, delta)


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
