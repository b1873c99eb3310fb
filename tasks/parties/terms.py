"""terms.yaml: the agreement of a collaboration, the same file at every party, public and signed by all.

The terms decide the privacy of the release: how many teachers vote, which queries, which noise, the fewest teachers,
the budget that the guardian enforces, the protected unit (`unit`) and at how many parties one person's data may be
(`overlap`). They also decide whether the votes of all parties have the same meaning: class names, digests of queries
and backbone, how teachers are trained (`teaching`), and the version of Terrine. They list every party's public key, and
URL and TLS certificate of both services. The digest of the terms is in the path of every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from tasks.config.values import digest
from tasks.parties.keys import Fingerprint, PublicKey, check_name, check_url
from terrine.aggregation.fixed_point import FixedPoint, SummedRounds
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.mechanism import MECHANISMS, parse_mechanism
from terrine.collaboration.protocol.agreement import Agreement, Reveal
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

Role = Literal["teacher", "guardian", "student"]

T = TypeVar("T", bound="Terms")

_OF_SUMS = ("length", "records")
_OF_GRADIENTS = ("rounds", "clip", "learning_rate", "sigma_gradients")
_OF_AVERAGES = ("noise_multiplier", "weights", "features")


class Teaching(Settings):
    """How every party trains its teachers. They are numbered from 0 at each party, and the seed is the same for all."""

    seed: int = Field(0, ge=0)
    """The `seed` of a run."""
    teachers: dict[str, Any]
    """The section `teachers` of a run, without `per_task`."""

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
        if (reason := settings.party_restriction) is not None:
            raise ValueError(reason)
        return settings.model_dump(mode="json", exclude={"per_task"})

    @property
    def settings(self) -> Teachers:
        """The section."""
        return TEACHERS.of(self.teachers[TEACHERS.key]).model_validate(self.teachers)


class Service(Settings):
    """Where a service is reached."""

    url: Annotated[str, AfterValidator(check_url)]
    """https://host:port."""
    certificate: Fingerprint | None = None
    """The pinned TLS certificate; null: one that the client's system trusts for the host."""


class Terms(Settings):
    """The agreement of a collaboration."""

    name: str = Field("", max_length=100)
    """Name of the collaboration on its pages."""
    guardian: str = "guardian"
    student: str = "student"
    teachers: dict[str, int] = Field(min_length=1)
    """Number of teachers of every teacher party; for sums, how many times `records`."""
    keys: dict[str, PublicKey]
    """Public key of every party."""
    services: dict[Literal["guardian", "student"], Service] = Field(min_length=2)
    """URL and certificate of guardian and student party."""
    unit: Literal["record", "group"]
    """Protected unit: one record, or all records of a person (a group), which one teacher holds."""
    overlap: int = Field(1, ge=1)
    """Most teacher parties that hold data of one person."""
    minimum: int = Field(ge=1)
    """Fewest teachers whose reports are needed."""
    queries: int = Field(ge=1)
    """Number of queries of the batch; 1 for sums."""
    asked: int = Field(ge=1)
    """Number of queries that are asked, the first ones: as many as the budget is sure to pay for."""
    queries_digest: Digest
    """Digest of the manifest of the query images: their order and batches."""
    query_shards: list[Digest] = Field(min_length=1)
    """Digest of each file of query images, in order."""
    size: Annotated[Size, AfterValidator(as_size)] | None = None
    """Side of every image, in pixels, or height and width; null for rows of a table."""
    fit: Fit = "stretch"
    """How a picture of another shape gets this one."""
    window: Window | None = None
    """Values that become black and white in pictures of more than 8 bits (DICOM after rescaling); null if each file
    says it."""
    channels: Literal[1, 3] | None = None
    """Grey or colour; null for rows of a table."""
    backbone: Digest
    """Digest of the backbone that teachers and students share."""
    backbone_manifest: Digest | None = None
    """Digest of its manifest, which says what it was trained on."""
    class_names: list[Annotated[str, Field(min_length=1)]] = Field(min_length=2)
    """Class names by label. Each party finds its classes by name, in any order."""
    mechanism: str
    sigma: float | None = Field(None, gt=0)
    """For sums, the noise on label moments."""
    threshold: float | None = None
    sigma1: float | None = Field(None, gt=0)
    sigma2: float | None = Field(None, gt=0)
    length: int | None = Field(None, ge=2)
    """For sums: coordinates of a record's vector."""
    records: int | None = Field(None, ge=1)
    """For sums: most records (or groups) of a party for each of its `teachers`. A public bound, not a count."""
    rounds: int | None = Field(None, ge=1)
    """For gradients: number of gradient rounds after the moments."""
    clip: float | None = Field(None, gt=0, le=1)
    """For gradients: largest length of a record's gradient."""
    learning_rate: float | None = Field(None, gt=0)
    """For gradients: the student party's step along each."""
    sigma_gradients: float | None = Field(None, gt=0)
    """For gradients: noise on each coordinate."""
    teaching: Teaching | None = None
    """How teachers are trained; null leaves it to each party."""
    noise_multiplier: float | None = Field(None, gt=0)
    """For averages: noise on every vector, in units of its clipping norm."""
    weights: int | None = Field(None, ge=1, le=4_900_000)
    """For averages: length of an update."""
    features: int | None = Field(None, ge=1)
    """For averages around a shared centre: its length."""
    learning: dict[str, Any] = Field(default_factory=dict)
    """How the student is trained: `seed` and `student`, sections of a run."""
    epsilon: float = Field(gt=0)
    """Most that the release may cost, at `delta`."""
    delta: float = Field(gt=0, lt=1)
    edition: str = Field("", max_length=200)
    """Name of this release. The same terms are answered once; another edition asks again, at new cost."""
    deadline: float = Field(14 * 86_400.0, gt=0)
    """Seconds after which a round closes without the missing parties."""
    version: str = Field(default_factory=lambda: version("terrine"))
    """Version of Terrine at all parties."""

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
            except SettingError as error:
                raise ValueError(str(error).rstrip(".")) from error
        if len(set(names)) < len(names):
            raise ValueError(
                "guardian, student and teacher parties must have different names: a party that is two of them would "
                "see what only one may see"
            )
        if {*self.keys} != {*names}:
            different = ", ".join(sorted({*self.keys} ^ {*names}))
            raise ValueError(f"keys has one public key for each party and no other; not so for {different}")
        if len({*self.keys.values()}) < len(names):
            raise ValueError("keys names one key for two parties")
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
    def reveals(self) -> Reveal:
        """What the student party opens."""
        return self.described.reveals

    @property
    def described(self) -> Any:
        """The mechanism, with those of its parameters that stand here."""
        return parse_mechanism(self.public())

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
        """Return the role of every party."""
        return {self.guardian: "guardian", self.student: "student", **dict.fromkeys(self.teachers, "teacher")}

    def public(self) -> dict[str, Any]:
        """Return the terms as JSON values, without the settings of other mechanisms."""
        strange = [*(_OF_SUMS if self.length is None else ()), *(_OF_GRADIENTS if self.rounds is None else ())]
        strange += [key for key in ("teaching", "backbone_manifest", *_OF_AVERAGES) if getattr(self, key) is None]
        strange += [key for key in ("name", "learning") if not getattr(self, key)]
        return self.model_dump(mode="json", exclude=set(strange))

    def identity(self) -> dict[str, Any]:
        """Return what identifies the release, as JSON values.

        Keys, services, deadline, version and names do not, nor files that follow from queries and edition, nor how
        teachers are trained unless they release averages.
        """
        about = self.public()
        for key in ("query_shards", "size", "channels", "backbone", "deadline", "version", "keys", "services"):
            del about[key]
        about.pop("backbone_manifest", None)
        for key, usual in (("overlap", 1), ("fit", "stretch"), ("window", None)):
            if about[key] == usual:
                del about[key]
        for key in ("name", "learning", *(() if self.averages is not None else ("teaching",))):
            about.pop(key, None)
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

    def agreement(self, number: int = 0) -> Agreement:
        """Return the parameters of a round."""
        summed = self.summed
        sums = None if summed is None or number >= summed.passes else summed
        return Agreement(
            collaboration=self.digest,
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
            weights=0 if summed is None else summed.asked(number),
        )

    def party_of(self, key: str) -> str:
        """Return the party with a public key.

        Raises:
            SettingError: The key belongs to no party.
        """
        for name, known in self.keys.items():
            if known == key:
                return name
        raise SettingError(f"The key {key[:24]}... belongs to no party of these terms. Use the key that was sent.")


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
