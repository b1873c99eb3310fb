"""party.yaml: role, files and addresses of one party.

Relative paths start at the folder of the file. Settings that are unknown, impossible or not for the party's role are
refused with an error that names the key and the remedy. This module loads neither torch nor Prefect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, ValidationError, model_validator

from tasks.config.sections import Privacy
from tasks.config.values import read_yaml
from tasks.parties.keys import own_key, public_text
from tasks.parties.terms import Role, Terms, describe_errors
from terrine.errors import SettingError
from terrine.settings import Settings
from terrine.spans import Seconds

CONFIG, TERMS = "party.yaml", "terms.yaml"
SQLITE = "sqlite:///"

NEEDS: dict[str, tuple[str, ...]] = {
    "teacher": ("own",),
    "guardian": ("listen", "ledger"),
    "student": ("listen", "answers"),
}
"""Settings that a role needs."""
MAY: dict[str, tuple[str, ...]] = {"teacher": ("ledger",), "guardian": (), "student": ("learn",)}
"""Further settings of a role."""


class Learning(Settings):
    """A student party that trains a student on its answers: `terrine party finish`."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of a run that concern this party: data, teachers, seed; or student, data, seed, device, tracking."""
    images: Path = Path("proposal/images")
    """Folder of the public query images."""
    backbone: Path = Path("proposal/backbone")
    """Folder of the public backbone."""
    work: Path = Path("work")
    """Folder of the party's own dataset and teachers; or of the student and its statement: data/release/student."""


class OwnTeachers(Learning):
    """A teacher party that trains its teachers on its own data."""

    params: dict[str, Any]

    @property
    def unit(self) -> str:
        """Unit whose records one teacher holds, from the parameters or their default."""
        given = self.params.get("privacy") or {}
        return str(given.get("unit", Privacy().unit)) if isinstance(given, dict) else str(given)


class GuardianLedger(Settings):
    """The ledger of the guardian; or of a teacher party, for its own people over all collaborations."""

    url: str = "sqlite:///ledger/ledger.db"
    key: Path = Path("ledger/key")
    store: Path = Path("ledger/releases")
    account: str = Field(min_length=1)
    """Name of the data that all parties hold together; with `named` false, its keyed digest."""
    named: bool = True
    epsilon: float | None = Field(None, gt=0)
    """Budget of the account over all releases; null records and never refuses (public benchmark data only)."""
    run: str | None = None
    """Name of the release in the ledger; null for the name of the terms."""
    site: Path | None = None
    """Folder in which the site records through which ledger data were released."""
    people: Path | None = None
    """In a trial: digests by which the ledger recognises records."""
    task: dict[str, Any] | None = None
    """In a trial: the run's task and edition (`terrine.privacy.ledger.task`); null: the classes of the terms."""


class PartyConfig(Settings):
    """One party."""

    role: Role
    terms: Terms
    folder: Path = Path()
    """Folder of the party's keys."""
    state: Path = Path("state")
    """Folder of what must survive a crash. Private."""
    patience: Seconds = Field(60.0, gt=0)
    """Time for which a request is repeated while a service is unreachable: seconds, or `15min`."""
    listen: str | None = Field(None, pattern=r"^.+:\d+$")
    """guardian and student: host:port to listen at."""
    tls: bool = True
    """guardian and student: whether the service itself speaks TLS; false behind a proxy that does."""
    urls: dict[Literal["guardian", "student"], str] = Field(default_factory=dict)
    """Addresses that replace those of the terms, for a site with its own names."""
    own: OwnTeachers | None = None
    """teacher: how its teachers are trained."""
    ledger: GuardianLedger | None = None
    replay_seed: int | None = Field(None, ge=0)
    """guardian: seed of replayed noise, for tests; NOT PRIVATE. null: secure noise."""
    answers: Path | None = None
    """student: folder of the answers."""
    learn: Learning | None = None
    """student: how the student is trained."""

    @model_validator(mode="after")
    def _settings_of_the_role(self) -> PartyConfig:
        for key in NEEDS[self.role]:
            if getattr(self, key) is None:
                raise ValueError(f"{key} is missing: a {self.role} needs it")
        known = {key for keys in (*NEEDS.values(), *MAY.values()) for key in keys}
        for key in sorted(known - set(NEEDS[self.role]) - set(MAY[self.role])):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} has no meaning for a {self.role}. Remove it")
        agreed = self.terms.unit
        if self.own is not None and (own := self.own.unit) != agreed:
            raise ValueError(
                f"own.params.privacy.unit={own}, and the terms protect a {agreed}: the guardian's ε would not hold for "
                f"these teachers. Set it to {agreed}, or agree on other terms"
            )
        return self

    @property
    def key(self) -> Ed25519PrivateKey:
        """Private Ed25519 key of the party."""
        return own_key(self.folder)

    @property
    def name(self) -> str:
        """Name of the party that has this key in the terms.

        Raises:
            SettingError: The terms have another role for it, or were made for another version of Terrine.
        """
        self.terms.check_version()
        name = self.terms.party_of(public_text(self.key))
        if self.terms.roles()[name] != self.role:
            raise SettingError(
                f"{name} is the {self.terms.roles()[name]} in the terms, and party.yaml says {self.role}."
            )
        return name

    def with_terms(self, terms: Terms) -> PartyConfig:
        """Return the configuration for terms of an accuracy: other answers, the same account and name in the ledger."""
        if terms.digest == self.terms.digest:
            return self
        changes: dict[str, Any] = {"terms": terms}
        if self.answers is not None:
            changes["answers"] = self.answers / "accuracy" / terms.digest[:16]
        if self.ledger is not None:
            changes["ledger"] = self.ledger.model_copy(update={"run": self.ledger.run or self.terms.called})
        return self.model_copy(update=changes)

    def url(self, service: Literal["guardian", "student"]) -> str:
        """Return the URL at which this party reaches a service."""
        return self.urls.get(service, self.terms.services[service].url)


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
        raise SettingError(f"{path}: {describe_errors(error)}") from error
    if role is not None and config.role != role:
        raise SettingError(f"{path} is the configuration of a {config.role}, and this command is for a {role} party.")
    return _placed(config, path.resolve().parent)


def _placed(config: PartyConfig, folder: Path) -> PartyConfig:
    """Return the configuration with its paths resolved against `folder`."""
    changes: dict[str, Any] = {
        key: folder / value for key in ("folder", "state", "answers") if (value := getattr(config, key)) is not None
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
