"""party.yaml: what one party is, where its files are and how it reaches the others.

Relative paths are taken from the file's own folder. What is unknown, impossible or not for the party's role is refused
with the key and the remedy. This module is light: a party's process loads no torch and no Prefect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from tasks.config.privacy import Privacy
from tasks.config.values import read_yaml
from tasks.parties.agreement.acceptance import ACCEPTANCE, accepted_by
from tasks.parties.agreement.terms import Terms, sentence_of
from terrine.collaboration.transport.credentials import Credentials, Role, load_credentials
from terrine.errors import SettingError
from terrine.settings import Settings
from terrine.spans import Seconds

TERMS = "terms.yaml"
SQLITE = "sqlite:///"

Address = str

NEEDS: dict[str, tuple[str, ...]] = {
    "teacher": ("guardian", "student"),
    "guardian": ("listen", "ledger"),
    "student": ("listen", "guardian", "answers"),
}
"""What must be set, by role."""
MAY: dict[str, tuple[str, ...]] = {"teacher": ("votes", "unit", "own", "ledger"), "guardian": (), "student": ("learn",)}


class OwnTeachers(Settings):
    """A teacher party that trains its teachers on its own data, and has them vote on the public batch."""

    params: dict[str, Any]
    """Parameters as in params.yaml, as far as they concern this party: data, teachers, seed."""
    images: Path
    """The folder of the public query images, as a run has it in data/public/RUN/images."""
    backbone: Path
    """The folder of the public backbone, as a run has it in data/public/RUN/backbone."""
    work: Path = Path("work")
    """Where the party's own dataset, partition and teachers are kept."""

    @property
    def unit(self) -> str:
        """What lies with one teacher alone, as the parameters say it or as is their default."""
        given = self.params.get("privacy") or {}
        return str(given.get("unit", Privacy().unit)) if isinstance(given, dict) else str(given)


class Learning(Settings):
    """A student party that makes a student of its answers: `terrine party finish`."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters as in params.yaml, as far as they concern it: student, data (size and channels are the images'),
    seed, device, tracking."""
    images: Path
    """The folder of the public query images, as a run has it in data/public/RUN/images."""
    backbone: Path
    """The folder of the public backbone, as a run has it in data/public/RUN/backbone."""
    work: Path = Path("work")
    """Where the student is written, and its statement: data/release/student."""


class GuardianLedger(Settings):
    """Where the guardian keeps account; or a teacher party, of its own people alone over all collaborations."""

    url: str = "sqlite:///ledger/ledger.db"
    key: Path = Path("ledger/key")
    store: Path = Path("ledger/releases")
    account: str = Field(min_length=1)
    """The name of the data that all parties hold together; with `named` false, its keyed digest itself."""
    named: bool = True
    epsilon: float | None = Field(None, gt=0)
    """Budget of the account over all releases; null records and never refuses (public benchmark data only)."""
    run: str | None = None
    """What the ledger says a release was for; null: what its terms are called. No release is known by it."""
    site: Path | None = None
    """Folder in which the site remembers which ledger data were released through."""
    people: Path | None = None
    """Of a trial, in which one site has the records of all: the digests by which the ledger recognises them."""
    task: dict[str, Any] | None = None
    """Of a trial: the run's task and edition (`terrine.privacy.ledger.task`); null: the classes of the terms."""


class PartyConfig(Settings):
    """One party."""

    role: Role
    terms: Terms
    credentials: Path = Path("credentials")
    state: Path = Path("state")
    """Where the party keeps what must survive a crash. Private."""
    deadline: Seconds = Field(60.0, gt=0)
    """How long teacher parties are waited for: seconds, or `15min`, `6h`, `14d`."""
    patience: Seconds = Field(120.0, gt=0)
    """How long any other party is waited for, likewise."""
    listen: Address | None = None
    """guardian and student: host:port to wait at."""
    guardian: Address | None = None
    """teacher and student: where the guardian waits."""
    student: Address | None = None
    """teacher: where the student party waits."""
    votes: Path | None = None
    """teacher: an .npy file of votes, whole numbers [queries, teachers of this party]; or of its sums, whole numbers
    [numbers] in steps (`terrine.aggregation.gradient_rounds.moments_in_steps`)."""
    unit: Literal["record", "group"] | None = None
    """teacher, with `votes`: what lay with one teacher alone when these votes were cast, a record or all records of a
    person. With `own`, own.params.privacy.unit says it."""
    own: OwnTeachers | None = None
    """teacher: train and vote here, instead of a file of votes."""
    ledger: GuardianLedger | None = None
    noise: Literal["secure", "replay"] = "secure"
    """guardian. replay: seeded, for tests; NOT PRIVATE."""
    replay_seed: int | None = Field(None, ge=0)
    answers: Path | None = None
    """student: the folder the answers are written to."""
    learn: Learning | None = None
    """student: what becomes of them."""
    accepted: Path = Path("accepted")
    """guardian: a folder of what parties have signed; each is looked at before a session."""

    @model_validator(mode="after")
    def _settings_of_the_role(self) -> PartyConfig:
        for key in NEEDS[self.role]:
            if getattr(self, key) is None:
                raise ValueError(f"{key} is missing: a {self.role} needs it")
        known = {key for keys in (*NEEDS.values(), *MAY.values()) for key in keys}
        for key in sorted(known - set(NEEDS[self.role]) - set(MAY[self.role])):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} has no meaning for a {self.role}. Remove it")
        if self.role == "teacher" and (self.votes is None) == (self.own is None):
            raise ValueError("votes or own: a teacher party gives a file of votes, or trains teachers of its own")
        if self.votes is not None and self.terms.averages is not None:
            raise ValueError(
                "votes: by the terms teachers learn from those of other parties in the session itself, before they "
                "vote, and a file of votes cannot. Give own data (`own`)"
            )
        self._check_unit()
        if (self.noise == "replay") != (self.replay_seed is not None):
            raise ValueError("replay_seed goes with noise=replay, and only with it")
        return self

    def _check_unit(self) -> None:
        """Raise ValueError unless a teacher party protects whom the terms say."""
        agreed = self.terms.unit
        if self.votes is not None and self.unit is None:
            raise ValueError(
                "unit is missing: say what lay with one teacher alone when these votes were cast, a record or a group "
                f"(all records of a person). The terms say {agreed}"
            )
        if self.own is not None and self.unit is not None:
            raise ValueError("unit goes with a file of votes. Beside own, own.params.privacy.unit says it")
        if self.votes is not None and self.unit != agreed:
            raise ValueError(
                f"unit={self.unit}, and the terms protect a {agreed}: the ε that the guardian accounts for would not "
                f"be that of these votes. Have teachers vote that were dealt by {agreed}, or agree on other terms"
            )
        if self.own is not None and (own := self.own.unit) != agreed:
            raise ValueError(
                f"own.params.privacy.unit={own}, and the terms protect a {agreed}: the ε that the guardian accounts "
                f"for would not be that of these teachers. Set it to {agreed}, or agree on other terms"
            )

    def own_credentials(self) -> Credentials:
        """Read the party's credentials, and check them against the terms.

        Raises CredentialError for credentials that are unusable or for another role, and SettingError for a name that
        the terms do not know in this role, another version of Terrine, and a party that accepted other terms.
        """
        self.terms.check_version()
        credentials = load_credentials(self.credentials, self.role)
        if self.terms.roles().get(credentials.name) != self.role:
            raise SettingError(
                f"{self.credentials} holds the certificate of {credentials.name!r}, and the terms know no {self.role} "
                "of this name. Use the credentials that belong to this party, or correct the terms at all parties."
            )
        if self.role == "guardian":
            accepted_by(self.accepted, self.accepted.parent / ACCEPTANCE, self.terms, credentials.authority)
        return credentials


def read_party(path: Path, role: Role | None = None) -> PartyConfig:
    """Read a party's configuration; `terms` in it is a mapping or the path of a file.

    Raises SettingError naming every key that is unknown, missing or impossible, and a role that is not `role`.
    """
    values = read_yaml(path)
    terms = values.get("terms", TERMS)
    if isinstance(terms, str):
        values["terms"] = read_yaml(path.parent / terms)
    try:
        config = PartyConfig.model_validate(values)
    except ValidationError as error:
        raise SettingError(f"{path}: {sentence_of(error)}") from error
    if role is not None and config.role != role:
        raise SettingError(
            f"{path} is the configuration of a {config.role}, and this is for a {role} party. For its part in the "
            f"session: terrine party vote --config {path}."
        )
    return _placed(config, path.resolve().parent)


def _placed(config: PartyConfig, folder: Path) -> PartyConfig:
    """The configuration with its paths taken from `folder`."""
    changes: dict[str, Any] = {
        key: folder / value
        for key in ("credentials", "state", "votes", "answers", "accepted")
        if (value := getattr(config, key)) is not None
    }
    for key in ("own", "learn"):
        if (own := getattr(config, key)) is not None:
            places = {place: folder / getattr(own, place) for place in ("images", "backbone", "work")}
            changes[key] = own.model_copy(update=places)
    if config.ledger is not None:
        ledger: dict[str, Any] = {key: (folder / getattr(config.ledger, key)).resolve() for key in ("key", "store")}
        if config.ledger.url.startswith(SQLITE):
            ledger["url"] = f"{SQLITE}{(folder / config.ledger.url.removeprefix(SQLITE)).resolve()}"
        changes["ledger"] = config.ledger.model_copy(update=ledger)
    return config.model_copy(update=changes)
