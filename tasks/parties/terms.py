"""terms.yaml: the agreement of a collaboration, the same file at every party, public and signed by all.

The terms decide the privacy of the release: number and minimum of teachers, queries, noise, the budget that the
guardian enforces, the protected unit (`unit`) and the number of parties that may hold data of one person (`overlap`).
The terms also ensure that the votes of all parties have the same meaning: class names, digests of queries and backbone,
the training of teachers (`teaching`), and the version of Terrine. The terms list every party's public key, and URL and
TLS certificate of both services. The digest of the terms is in the path of every request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

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
_NOT_OF_THE_RELEASE = (
    *("query_shards", "size", "channels", "backbone", "backbone_manifest", "deadline", "version", "keys", "services"),
    *("name", "learning"),
)


class Teaching(Settings):
    """Training of the teachers at every party. Each party numbers its teachers from 0; all parties use one seed."""

    seed: int = Field(0, ge=0)
    """The `seed` of a run."""
    teachers: dict[str, Any]
    """The section `teachers` of a run, without `per_task`."""

    @field_validator("teachers")
    @classmethod
    def _complete(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            settings = TEACHERS.of(str(value.get(TEACHERS.key, TEACHERS.default))).model_validate(value)
        except (ValidationError, SettingError) as error:
            text = describe_errors(error) if isinstance(error, ValidationError) else str(error)
            raise ValueError(text.rstrip(".")) from error
        if (reason := settings.party_restriction) is not None:
            raise ValueError(reason)
        return settings.model_dump(mode="json", exclude={"per_task"})

    @property
    def settings(self) -> Teachers:
        """The section `teachers` of a run."""
        return TEACHERS.of(self.teachers[TEACHERS.key]).model_validate(self.teachers)


class TableColumns(Settings):
    """Columns of every party's table."""

    target: str = Field(min_length=1)
    """Column to predict."""
    columns: dict[str, tuple[StrictInt | StrictFloat | StrictStr, ...]] = Field(min_length=1)
    """Features and their possible values (`data.columns`), in the order of the encoding."""
    categorical: tuple[str, ...] = ()
    """Columns of words that look like numbers."""

    @model_validator(mode="after")
    def _check(self) -> TableColumns:
        self.describe()
        return self

    def describe(self) -> list[dict[str, Any]]:
        """Return the description of the encoding. Raise ValueError for impossible columns."""
        from terrine.data.encoding import declare  # imports pandas

        return declare(self.columns, self.categorical).describe()


class Service(Settings):
    """Address of a service."""

    url: Annotated[str, AfterValidator(check_url)]
    """https://host:port."""
    certificate: Fingerprint | None = None
    """The pinned TLS certificate; null for one that the client's system trusts."""


class Terms(Settings):
    """The agreement of a collaboration."""

    name: str = Field("", max_length=100)
    """Name of the collaboration on its pages."""
    guardian: str = "guardian"
    student: str = "student"
    teachers: dict[str, int] = Field(min_length=1)
    """Number of teachers of every teacher party; for sums, number of parts of `records` each."""
    keys: dict[str, PublicKey]
    """Public key of every party."""
    services: dict[Literal["guardian", "student"], Service] = Field(min_length=2)
    """URL and certificate of guardian and student party."""
    unit: Literal["record", "group"]
    """Protected unit: one record, or all records of a person (a group), which one teacher holds."""
    overlap: int = Field(1, ge=1)
    """Largest number of teacher parties that have data of one person."""
    minimum: int = Field(ge=1)
    """Smallest number of teachers whose reports a round needs."""
    queries: int = Field(ge=1)
    """Number of queries of the batch; 1 for sums."""
    queried: int = Field(ge=1)
    """Number of queries that are asked: the first ones, as many as the budget certainly pays for."""
    queries_digest: Digest
    """Digest of the manifest of the query images: their order and batches."""
    query_shards: list[Digest] = Field(min_length=1)
    """Digest of each file of query images, in order."""
    size: Annotated[Size, AfterValidator(as_size)] | None = None
    """Image size in pixels, one side or height and width; null for rows of a table."""
    fit: Fit = "stretch"
    """Conversion of images of another shape."""
    window: Window | None = None
    """Values that become black and white in images of more than 8 bits (DICOM after rescaling); null: the window of
    each file."""
    channels: Literal[1, 3] | None = None
    """Number of channels; null for rows of a table."""
    table: TableColumns | None = None
    """Columns of a table; null for images."""
    backbone: Digest
    """Digest of the backbone that teachers and students share."""
    backbone_manifest: Digest | None = None
    """Digest of the backbone's manifest, which describes its training."""
    class_names: list[Annotated[str, Field(min_length=1)]] = Field(min_length=2)
    """Class names by label. Each party finds its classes by name, in any order."""
    mechanism: str
    sigma: float | None = Field(None, gt=0)
    """Noise on every count, in votes; for sums, noise on label moments."""
    threshold: float | None = None
    sigma1: float | None = Field(None, gt=0)
    sigma2: float | None = Field(None, gt=0)
    length: int | None = Field(None, ge=2)
    """Number of coordinates of a record's vector, for sums."""
    records: int | None = Field(None, ge=1)
    """With sums: largest number of records (or groups) of a party per teacher. A public bound, not a count."""
    rounds: int | None = Field(None, ge=1)
    """Number of gradient rounds after the moments, for gradients."""
    clip: float | None = Field(None, gt=0, le=1)
    """Clipping norm of a record's gradient, for gradients."""
    learning_rate: float | None = Field(None, gt=0)
    """Step size of the descent, for gradients."""
    sigma_gradients: float | None = Field(None, gt=0)
    """Noise on each coordinate, for gradients."""
    teaching: Teaching | None = None
    """Training of teachers; null leaves it to each party."""
    noise_multiplier: float | None = Field(None, gt=0)
    """Noise on every average, in units of its clipping norm."""
    weights: int | None = Field(None, ge=1, le=4_900_000)
    """Length of an update, for averages."""
    features: int | None = Field(None, ge=1)
    """Length of the shared centre of features, for averages."""
    learning: dict[str, Any] = Field(default_factory=dict)
    """Training of the student: `seed` and `student`, sections of a run."""
    epsilon: float = Field(gt=0)
    """Highest cost of the release, at `delta`."""
    delta: float = Field(gt=0, lt=1)
    edition: str = Field("", max_length=200)
    """Name of the release. The same terms are answered once; another edition asks again, at new cost."""
    deadline: float = Field(14 * 86_400.0, gt=0)
    """Seconds after which a round closes without the missing parties."""
    version: str = Field(default_factory=lambda: version("terrine"))
    """Version of Terrine at all parties."""

    @field_validator("size")
    @classmethod
    def _check_size(cls, value: Size | None) -> Size | None:
        if value is not None and not is_size(value):
            raise ValueError(f"size={in_json(value)} has no pixels: give the side of images, or height and width")
        return value

    @model_validator(mode="after")
    def _check_all(self) -> Terms:
        try:
            self._check_parties()
            self._check_mechanism()
        except SettingError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return self

    def _check_parties(self) -> None:
        for name, count in self.teachers.items():
            if count < 1:
                raise ValueError(f"{name} holds {count} teachers; a teacher party holds at least one")
        names = [self.guardian, self.student, *self.teachers]
        for name in names:
            check_name(name)
        if len(set(names)) < len(names):
            raise ValueError(
                "guardian, student and teacher parties must have different names: a party with two roles would see "
                "both shares"
            )
        if {*self.keys} != {*names}:
            different = ", ".join(sorted({*self.keys} ^ {*names}))
            raise ValueError(f"keys must have one public key for each party, and no others: see {different}")
        if len({*self.keys.values()}) < len(names):
            raise ValueError("keys names one key for two parties")
        if self.minimum > self.total:
            raise ValueError(f"minimum={self.minimum} is above the {self.held(self.total)}")
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError(f"class_names={', '.join(self.class_names)} names a class twice")
        if self.overlap > len(self.teachers):
            raise ValueError(f"overlap={self.overlap} is above the {len(self.teachers)} teacher parties")
        if self.queried > self.queries:
            raise ValueError(f"queried={self.queried} is above queries={self.queries}")

    def _check_mechanism(self) -> None:
        """Raise ValueError or SettingError unless parties can run the mechanism, and all its parameters are given."""
        kind = MECHANISMS.of(self.mechanism)
        if not kind.by_parties:
            raise ValueError(f"mechanism={self.mechanism} cannot be computed by parties")
        parts = kind.parameters()
        if kind.reveals == "sums":
            parts = ("sigma", *_OF_SUMS, *(_OF_GRADIENTS if "rounds" in parts else ()))
        self._check_given(("sigma", "threshold", "sigma1", "sigma2", *_OF_SUMS, *_OF_GRADIENTS), parts, self.mechanism)
        settings = None if self.teaching is None else self.teaching.settings
        wanted: tuple[str, ...] = ()
        if isinstance(settings, AveragedTeachers) and settings.releases_averages:
            wanted = _OF_AVERAGES if settings.centre == "shared" else _OF_AVERAGES[:-1]
        self._check_given(_OF_AVERAGES, wanted, f"teachers that {'average' if wanted else 'do not average'}")
        if wanted and kind.reveals == "sums":
            raise ValueError(f"mechanism={self.mechanism} sums records, and no teacher learns: leave teaching out")
        _ = self.averages
        if (sums := self.fixed_point) is not None:
            most = sums.most_units // self.total
            if self.records is not None and self.records > most:
                raise ValueError(
                    f"records={self.records} of each of {self.held(self.total)} could wrap sums around: with this "
                    f"noise the maximum is {most:,}"
                )

    def _check_given(self, keys: Sequence[str], wanted: Sequence[str], owner: str) -> None:
        for key in keys:
            if (key in wanted) != (getattr(self, key) is not None):
                raise ValueError(f"{key} is {'missing' if key in wanted else 'not a part'} of {owner}")

    @property
    def classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @property
    def digest(self) -> str:
        """SHA-256 of the terms, independent of their formatting."""
        return digest(self.public(), 64)

    @property
    def reveals(self) -> Reveal:
        """Kind of result that the student party opens: `argmax`, `histogram` or `sums`."""
        return self.described.reveals

    @property
    def described(self) -> Any:
        """The mechanism, with its parameters."""
        return parse_mechanism(self.public())

    @property
    def fixed_point(self) -> FixedPoint | None:
        """The rounds of sums over records, or None if teachers vote."""
        if self.length is None or self.sigma is None:
            return None
        schedule = {key: value for key in _OF_GRADIENTS if (value := getattr(self, key)) is not None}
        return FixedPoint(self.length, self.classes, RoundSchedule(self.sigma, **schedule))

    @property
    def averages(self) -> SharedAverages | None:
        """The rounds of averages before the votes, or None. Raises SettingError for impossible parameters."""
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
        """True if teachers vote, in the last round."""
        return self.fixed_point is None

    @property
    def last(self) -> int:
        """Number of the last round; the first is 0."""
        return (0 if self.summed is None else self.summed.passes) - (not self.votes)

    @property
    def numbers(self) -> int:
        """Largest number of values to which noise is added."""
        summed = 0 if self.summed is None else self.summed.numbers
        return summed + self.queried * (self.classes + 1) * self.votes

    @property
    def total(self) -> int:
        """N, the number of teachers of all parties; for sums, of parts."""
        return sum(self.teachers.values())

    @property
    def called(self) -> str:
        """The collaboration's name, and the edition."""
        return ", edition ".join(filter(None, (self.name or "collaboration", self.edition)))

    def held(self, count: int) -> str:
        """Return a number of teachers in words; for sums, of parts of `records` each."""
        return f"{count:,} {'teacher' if self.votes else 'part'}{'s' * (count != 1)}"

    def roles(self) -> dict[str, Role]:
        """Return the role of every party."""
        return {self.guardian: "guardian", self.student: "student", **dict.fromkeys(self.teachers, "teacher")}

    def public(self) -> dict[str, Any]:
        """Return the terms as JSON values, without the settings of other mechanisms."""
        strange = [*(_OF_SUMS if self.length is None else ()), *(_OF_GRADIENTS if self.rounds is None else ())]
        strange += [key for key in ("teaching", "backbone_manifest", *_OF_AVERAGES) if getattr(self, key) is None]
        strange += [key for key in ("name", "learning", "table") if not getattr(self, key)]
        return self.model_dump(mode="json", exclude=set(strange))

    def identity(self) -> dict[str, Any]:
        """Return the values that identify the release, as JSON values.

        Excluded are keys, services, deadline, version, names, files that follow from queries and edition, and the
        training of teachers unless their averages are released.
        """
        about = self.public()
        left_out = {*_NOT_OF_THE_RELEASE, *(() if self.averages else ("teaching",))}
        usual = {"overlap": 1, "fit": "stretch", "window": None}
        return {
            key: value
            for key, value in about.items()
            if key not in left_out and not (key in usual and value == usual[key])
        }

    def event(self, passed: int | None = None) -> Event:
        """Return the privacy event of the release, for any number of missing parties.

        A unit at `overlap` parties is one unit of each. Each of these units moves the total by at most the sensitivity
        of one unit, so together they move it at most `overlap` times as far (`events.of_several`).

        Args:
            passed: Number of queries that passed the test; None for the worst case.
        """
        events = [] if self.summed is None else [self.summed.event]
        if self.votes:
            events.append(self.described.cost(self.queried, self.queried if passed is None else passed))
        return of_several(compose(*events), self.overlap)

    def check_version(self) -> None:
        """Raise SettingError if another version of Terrine is installed than the parties agreed on."""
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
            queries=self.queried if sums is None else sums.counts[number],
            classes=self.classes if sums is None else 1,
            queries_digest=self.queries_digest,
            reveal=self.reveals if sums is None else "sums",
            threshold=self.threshold if sums is None else None,
            sigma=self.described.deviation if sums is None else sums.parts(number)[0][1],
            sigma_threshold=self.sigma1 if sums is None else None,
            round=number,
            weights=0 if summed is None else summed.broadcast_size(number),
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


def epsilon_per_unit(epsilon: float, delta: float, overlap: int) -> float:
    """Return the ε of one unit if a person is a unit at each of `overlap` parties, and may cost `epsilon` in total."""
    return epsilon if overlap == 1 else epsilon_of(mu_of(epsilon, delta) / overlap, delta)


def checked(values: Mapping[str, Any], kind: type[T] = Terms) -> T:  # type: ignore[assignment]
    """Return validated terms.

    Raises:
        SettingError: A key is unknown, missing or impossible; the message names all of them.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingError(f"The terms are invalid. {describe_errors(error)}") from error


def describe_errors(error: ValidationError) -> str:
    """Return the errors of settings as sentences that name each key."""
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
