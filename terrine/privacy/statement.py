"""The privacy statement of a release: data/release/<run>/privacy.json.

A statement is published with the release, so nothing in it may depend on private data except through the release
itself. Callers therefore pass no ε but the *event*, i.e. the mechanisms that were run, and ε is computed from it
without access to data. No field could hold a data-dependent figure, and `statement_from` rejects unknown fields.

    >>> statement = PrivacyStatement(run="digits", event=RepeatedEvent(vote_answer(40.0), 286), ...)
    >>> write_statement(Path("privacy.json"), statement)
    >>> print(statement)                         # the guarantee in a few sentences
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from terrine.errors import ArtefactError, SettingError
from terrine.files import write_text
from terrine.privacy.accounting.events import Event, NonPrivateEvent, from_json, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import TABLE, Facts, sentences
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseKind

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).parent / "schemas" / f"statement-{SCHEMA_VERSION}.json"
"""Published JSON Schema (draft 2020-12) of privacy.json."""

Unit = Literal["record", "group", "label"]
TrustModel = Literal["central", "parties"]

NEIGHBOURS = {
    "record": "one record is replaced, added or removed under its name, and all others are unchanged",
    "group": "the records of one group are replaced, added or removed, and all other groups are unchanged",
    "label": "the label of one record is replaced, and everything else is unchanged",
}
"""Neighbouring relations by unit (docs/privacy.md, "The protected unit")."""
TRUST_MODELS = {
    "central": "the operator, who sees the private data, is trusted; the guarantee holds towards everyone else",
    "parties": "each teacher party sees its own data only. The privacy guardian draws the noise; it is trusted to "
    "follow the protocol and not to collude. The guarantee holds towards the student party, the other teacher parties "
    "and the public, even if they collude or deviate from the protocol, under standard assumptions on AES, SHA-2, "
    "SHA-3 and TLS",
}
NOT_PRIVATE = "NOT PRIVATE"

OUTCOME_DEPENDENT = {"confident", "interactive"}
"""Mechanisms whose number of answers depends on released outcomes. Their guarantee is the budget, fixed in advance; the
ε of the released answers is the part of the budget that was used."""

# Parameters that were chosen before any vote was seen, the parties, and the day. Extend this set deliberately.
MECHANISM_FIELDS = (
    {"mechanism", "sigma", "scale", "threshold", "sigma1", "sigma2", "surprise", "confidence", "select"}
    | {"epsilon", "delta", "rounds", "clip", "noise_multiplier", "samples", "top_k", "beta", "block", "averaging"}
    | {"discriminator", "counted", "moments", "numbers", "learning_rate", "share", "sigma_gradients", "overlap"}
    | {"findings", "findings_bound", "bins", "grades", "parties", "opened", "norm", "iterations"}
    | {"library", "sampling", "phases", "files"}
)
FOUND = next(text for _, key, _, text in TABLE if key == "outside_classes")
"""Sentence of the summary if the class names were not declared."""


def declare(name: str, parameters: Iterable[str], *, outcome_dependent: bool) -> None:
    """Register a plug-in's mechanism so that statements accept it.

    Args:
        name: The mechanism.
        parameters: Names of the mechanism's parameters, all chosen before any vote is seen.
        outcome_dependent: Whether the number of answers depends on released outcomes.
    """
    MECHANISM_FIELDS.update(parameters)
    if outcome_dependent:
        OUTCOME_DEPENDENT.add(name)


# Relative rounding tolerance for the check that a whole costs at least as much as each of its parts.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PublicInput:
    """A public input of the release, such as query images or a backbone.

    Attributes:
        name: Name of the input.
        origin: Origin of the input: a program and its seed, or an address.
        digest: SHA-256 of its content.
    """

    name: str
    origin: str
    digest: str


@dataclass(frozen=True)
class PrivacyStatement:
    """Content of a privacy statement. All fields of a privacy statement may be published.

    Attributes:
        run: Name of the run.
        release_id: Release ID in the ledger; a keyed hash.
        dataset: Keyed fingerprint of the account.
        unit: Protected unit: a record, all records of a group, or a label.
        trust_model: Key in `TRUST_MODELS`.
        event: The mechanisms that were run. Its exact ε, `epsilon`, is the guarantee if the number of answers is fixed.
        delta: δ of every ε in the statement.
        delta_slack: Bound on what the noise's rounding grid adds to δ (`noise.delta_slack`). None like `teachers`,
            `partition_digest` and `partition_disjoint` if another library trained the model.
        epsilon_budget: Budget of the run, fixed before the first query. For mechanisms in `OUTCOME_DEPENDENT` the
            budget is the guarantee, and `epsilon` the part of it that was used.
        epsilon_dataset: ε of all releases of the account so far, from the ledger, as if they had been planned. The
            guarantee over adaptively chosen runs is `epsilon_account`.
        noise: `secure`; `replay`, which is NOT PRIVATE; or `not observed` if another library trained the model.
        mechanism: Name and public parameters.
        teachers: Number of teachers.
        queries: Number of queries.
        queried: Number of queries asked before the budget ended.
        answered: Number of released labels.
        answered_per_class: Released labels by class (`released_per_class`).
        partition_digest: Keyed hash of the partition.
        partition_disjoint: Whether every unit is in exactly one teacher's part.
        public_inputs: Public inputs and their origins.
        facts: Facts about the records, recorded by the stages.
        code_version: Version of Terrine.
        epsilon_tuning: ε including a search for settings that used private outcomes; None without a search.
        audit_epsilon: Lower bound on ε found by an audit; None if none was run.
        audit_confidence: Confidence of the audit's bound.
        epsilon_claimed: ε that the method's paper claims, if it differs.
        epsilon_account: Largest budget of the account under which anything was released; None if it has no budget.
        event_added: `event` under add/remove neighbours, for comparison with other tools; None if no better bound than
            `event` is known.
        task: Classes of the release (`ledger.task.Task.to_json`). Class names are public and not covered by ε.
        approval: Signed approval of the release (`terrine.deployment.signature.Approval`); None if none was required.
    """

    run: str
    release_id: str
    dataset: str
    unit: Unit
    trust_model: TrustModel
    event: Event
    delta: float
    delta_slack: float | None
    epsilon_budget: float
    epsilon_dataset: float
    noise: NoiseKind | Literal["not observed"]
    mechanism: Mapping[str, Any]
    teachers: int | None
    queries: int
    queried: int
    answered: int
    answered_per_class: tuple[int, ...]
    partition_digest: str | None
    partition_disjoint: bool | None
    public_inputs: tuple[PublicInput, ...]
    facts: Facts
    code_version: str
    epsilon_tuning: float | None = None
    audit_epsilon: float | None = None
    audit_confidence: float | None = None
    epsilon_claimed: float | None = None
    epsilon_account: float | None = None
    event_added: Event | None = None
    task: Mapping[str, Any] | None = None
    approval: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("unit", self.unit, get_args(Unit)),
            ("trust_model", self.trust_model, get_args(TrustModel)),
            ("noise", self.noise, ("not observed",) if self.imported else get_args(NoiseKind)),
        ):
            _require(value in allowed, f"{name} is one of {', '.join(allowed)}, got {value!r}")
        for name in ("run", "release_id", "dataset", "code_version"):
            _require(bool(getattr(self, name)), f"{name} is missing")
        for name in ("delta_slack", "teachers", "partition_digest", "partition_disjoint"):
            _require((getattr(self, name) in (None, "")) == self.imported, f"{name} is missing, or was not observed")
        slack = self.delta_slack or 0.0
        _require(0 < self.delta < 1 and 0 <= slack < 1, f"δ={self.delta} or its slack is not a probability")
        _require(
            0 <= self.answered <= self.queried <= self.queries and (self.teachers is None or self.teachers > 0),
            f"{self.answered} answered of {self.queried} asked of {self.queries} queries by {self.teachers} teachers "
            "is impossible",
        )
        _require(
            sum(self.answered_per_class) == self.answered and min(self.answered_per_class, default=0) >= 0,
            f"the released labels per class sum to {sum(self.answered_per_class)}, not to {self.answered}",
        )
        _require(
            (self.audit_epsilon is None) == (self.audit_confidence is None),
            "an audit has both a bound and a confidence",
        )
        _require(
            self.epsilon_account is None or self.epsilon_account >= self.epsilon_dataset * (1 - _ROUNDING),
            f"the account's budget ε={self.epsilon_account} is below the used ε={self.epsilon_dataset}",
        )
        _require(
            self.epsilon_added is None or (self.unit != "label" and self.epsilon_added <= self.epsilon),
            "ε under add/remove neighbours exceeds ε, or the unit is a label, which is never added or removed",
        )
        _require(self.task is None or Task.describes(self.task), f"{self.task} is not a list of classes")
        given = self.approval
        _require(
            given is None or (given["decision"] == "approved" and self.release_id in given["releases"]),
            "the approval is about another release, or a refusal",
        )
        examples = sum(item.count for item in self.facts.examples) * int(self.mechanism.get("findings", 1))
        _require(
            examples in (0, self.queries) or "numbers" in self.mechanism,
            f"the public examples make {examples} queries, not {self.queries}",
        )
        unknown = set(self.mechanism) - MECHANISM_FIELDS
        _require(not unknown, f"{', '.join(sorted(unknown))} is not a public parameter of a mechanism")
        exact = self.epsilon * (1 - _ROUNDING)
        for name in ("epsilon_budget", "epsilon_dataset", "epsilon_tuning"):
            value = getattr(self, name)
            _require(
                value is None or value >= exact or self.epsilon == math.inf,
                f"{name}={value} is below the exact ε={self.epsilon} of the release; statements contain no "
                "data-dependent figures",
            )

    def __str__(self) -> str:
        return summarise(self)

    @property
    def epsilon(self) -> float:
        """Exact, data-independent ε of the release at `delta`; infinite if nothing is guaranteed."""
        return math.inf if isinstance(self.event, NonPrivateEvent) else price(self.event, self.delta)

    @property
    def epsilon_guaranteed(self) -> float | None:
        """Guaranteed ε at `delta`; None if nothing is guaranteed."""
        if not self.private:
            return None
        return self.epsilon_budget if self.mechanism.get("mechanism") in OUTCOME_DEPENDENT else self.epsilon

    @property
    def epsilon_added(self) -> float | None:
        """ε at `delta` under add/remove neighbours, for comparison; None if unknown."""
        return None if self.event_added is None else price(self.event_added, self.delta)

    @property
    def imported(self) -> bool:
        """True if another library trained the model (`terrine.privacy.training`)."""
        return "phases" in self.mechanism

    @property
    def private(self) -> bool:
        """True if the statement guarantees something."""
        sound = self.imported or (self.noise == "secure" and self.partition_disjoint)
        return bool(sound) and math.isfinite(self.epsilon)

    @property
    def warning(self) -> str | None:
        """Reason why nothing is guaranteed; None if the release is private."""
        if self.noise == "replay":
            return f"{NOT_PRIVATE}: the noise was replayed from a seed and can be subtracted again."
        if not (self.imported or self.partition_disjoint):
            return f"{NOT_PRIVATE}: the teachers' parts overlap, so one {self.unit} may change many votes."
        return None if self.private else f"{NOT_PRIVATE}: the method has no differential-privacy guarantee."

    def to_dict(self) -> dict[str, Any]:
        """Return the content of privacy.json: JSON values, every ε rounded up to four decimals.

        `event_added` and `epsilon_added` are absent if unknown.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if (added := given.pop("event_added")) is not None:
            given |= {"event_added": to_json(added), "epsilon_added": self.epsilon_added}
        given |= {"epsilon": self.epsilon, "epsilon_guaranteed": self.epsilon_guaranteed}
        return {
            **given,
            **{name: _round_finite(value) for name, value in given.items() if name.startswith("epsilon")},
            "schema_version": SCHEMA_VERSION,
            "private": self.private,
            "warning": self.warning,
            "neighbouring": neighbouring(self.unit, self.mechanism.get("overlap")),
            "trust_model_text": TRUST_MODELS[self.trust_model],
            # A lower bound is rounded down.
            "audit_epsilon": None if self.audit_epsilon is None else -round_up(-self.audit_epsilon),
            "event": to_json(self.event),
            "mechanism": dict(self.mechanism),
            "answered_per_class": list(self.answered_per_class),
            "public_inputs": [asdict(item) for item in self.public_inputs],
            "facts": self.facts.to_json(),
            "summary": summarise(self),
        }


def write_statement(path: Path, statement: PrivacyStatement) -> None:
    """Write a statement as JSON: the file privacy.json of a release."""
    text = json.dumps(statement.to_dict(), indent=2, sort_keys=True, ensure_ascii=False, default=methodcaller("item"))
    write_text(path, f"{text}\n")


def read_statement(path: Path) -> dict[str, Any]:
    """Return the validated content of a privacy.json (`statement_from`).

    Raises:
        ArtefactError: The file cannot be read, or its content is inconsistent.
    """
    try:
        return statement_from(json.loads(path.read_text(encoding="utf-8"))).to_dict()
    # A file that Terrine did not write may hold values of any type and size.
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ArtefactError(f"{path} is not what Terrine wrote: {error}") from error


def statement_from(content: Mapping[str, Any]) -> PrivacyStatement:
    """Return the statement in the content of a privacy.json.

    Every figure is recomputed from the event.

    Raises:
        SettingError: A field is missing or unknown, or a figure does not follow from the rest.
    """
    version = content.get("schema_version")
    _require(version == SCHEMA_VERSION, f"schema_version is {version!r}; this Terrine reads {SCHEMA_VERSION}")
    names = {field.name for field in fields(PrivacyStatement)}
    if "event_added" not in content:
        names.remove("event_added")
    missing = names - set(content)
    _require(not missing, f"missing fields: {', '.join(sorted(missing))}")
    values = {name: content[name] for name in names}
    values |= {name: from_json(content[name]) for name in ("event", "event_added") if name in names}
    values["answered_per_class"] = tuple(content["answered_per_class"])
    values["public_inputs"] = tuple(PublicInput(**item) for item in content["public_inputs"])
    values["facts"] = Facts.from_json(content["facts"])
    statement = PrivacyStatement(**values)
    written = statement.to_dict()
    unknown = set(content) - set(written)
    _require(not unknown, f"unknown fields: {', '.join(sorted(unknown))}")
    wrong = [name for name, value in written.items() if name not in content or content[name] != value]
    _require(not wrong, f"fields that do not follow from the rest: {', '.join(sorted(wrong))}")
    return statement


def epsilon_added(content: Mapping[str, Any]) -> float | None:
    """Return ε in a privacy.json if a unit is only added or removed; None if unknown.

    Without a better bound it is the guarantee, which covers replaced, added and removed units.
    """
    added: float | None = content.get("epsilon_added")
    return content["epsilon_guaranteed"] if added is None and content["unit"] != "label" else added


def _factor(epsilon: float) -> str:
    """Return e^ε as text: a number rounded up and the power, or only the power if it is huge."""
    return f"{round_up(math.exp(epsilon), 2):,.2f} (e^{epsilon:g})" if epsilon < 20 else f"e^{epsilon:g}"


def summarise(statement: PrivacyStatement) -> str:
    """Return the guarantee in a few sentences."""
    mechanism, unit = statement.mechanism, statement.unit
    questions = "questions, one per finding of a query" if "findings" in mechanism else "queries"
    what = "noisy votes on" if mechanism.get("mechanism") == "histogram" else "answers to"
    released = f"{what} {statement.answered:,} of {statement.queries:,} {questions}"
    if statement.queried != statement.answered:
        released += f" ({statement.queried:,} put to the vote)"
    if numbers := mechanism.get("numbers"):
        released = f"{numbers:,} noisy sums over all records"
    if phases := mechanism.get("phases"):
        released = f"a model trained in {sum(phase[2] for phase in phases):,} noisy steps"
    if statement.epsilon_guaranteed is None:
        return f"{statement.warning} It released {released}; treat them as private data."
    more = {"counted": f"the noisy number of {unit}s", "moments": "noisy moments of the private images"}
    covered = ", ".join([released, *(text for name, text in more.items() if name in mechanism)])
    guaranteed, used = round_up(statement.epsilon_guaranteed), round_up(statement.epsilon)
    total, account = round_up(statement.epsilon_dataset), statement.epsilon_account
    parts = [
        f"Differentially private with ε = {guaranteed:g} and δ = {statement.delta:g} per {unit}. If "
        f"{neighbouring(unit, mechanism.get('overlap'))}, no outcome becomes more than {_factor(guaranteed)} "
        f"times as probable, except with probability δ. This covers {covered}, and everything computed from them."
    ]
    if unit == "label":
        parts.append("Only labels are protected; the records themselves are not.")
    if mechanism.get("mechanism") in OUTCOME_DEPENDENT:
        parts.append(
            f"ε = {guaranteed:g} is the run's budget, fixed before the first query; ε = {used:g} of it was used."
        )
    if statement.epsilon_added is not None:
        added = round_up(statement.epsilon_added)
        parts.append(f"If a {unit} is only added or removed, as most other tools count, ε = {added:g}.")
    limit = "" if account is None else f" of the account's limit, ε = {round_up(account):g}"
    later = (
        "" if statement.facts.accuracy_epsilon is None else ", without this run's accuracy, which is charged separately"
    )
    parts.append(f"All releases about these data so far have used ε = {total:g}{limit}{later}.")
    if statement.trust_model == "central":
        parts.append("The guarantee holds towards everyone except the operator.")
    else:
        parts.append(
            "The guarantee holds towards everyone except the privacy guardian, even if other parties deviate from the "
            "protocol, provided that the guardian follows it and does not collude."
        )
    content = {"facts": statement.facts.to_json(), "mechanism": mechanism}
    parts += sentences(content, "unprotected") + sentences(content, "unobserved")
    if statement.task is not None and statement.task["found"]:
        parts.append(FOUND)
    return " ".join(parts)


def released_per_class(labels: ArrayLike, classes: int) -> tuple[int, ...]:
    """Return the number of released labels of each class; unanswered queries (-1) are not counted.

    Args:
        labels: int64 [queries] as released, in [-1, classes).
        classes: Number of classes.
    """
    given = np.asarray(labels)
    return tuple(np.bincount(given[given >= 0], minlength=classes).tolist())


def neighbouring(unit: Unit, overlap: int | None = None) -> str:
    """Return the neighbouring relation in words, for a unit at one institution or at up to `overlap` of them."""
    return ("" if overlap in (None, 1) else f"at up to {overlap} of the institutions at once, ") + NEIGHBOURS[unit]


def _round_finite(epsilon: float | None) -> float | None:
    """Return ε as published; an infinite ε guarantees nothing and becomes None."""
    return None if epsilon is None or not math.isfinite(epsilon) else round_up(epsilon)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise SettingError(f"Invalid privacy statement: {fault}.")
