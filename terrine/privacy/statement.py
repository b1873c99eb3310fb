"""What a release says about itself: data/release/privacy.json.

A statement is published beside the release, so nothing in it may depend on private data except through the release
itself. That is why it takes no ε: it takes the *event*, what was done, and prices it without looking at data. There is
no field that a data-dependent figure could go into, and `statement_from` refuses a file with a field too many.

    >>> statement = PrivacyStatement(run="digits", event=RepeatedEvent(vote_answer(40.0), 286), ...)
    >>> print(summary_sentence(statement))
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, NonPrivateEvent, from_json, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import Facts, told
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseKind

SCHEMA_VERSION = 1

Unit = Literal["record", "group", "label"]
TrustModel = Literal["central", "parties"]

NEIGHBOURS = {
    "record": "one record replaced, added or removed, every other record keeping its name and therefore its teacher "
    "(the name of a record is {name}); a record given another name counts as two such steps, one removed and one added",
    "group": "the records of one group replaced, added or removed, however many there are, every other group keeping "
    "its name and therefore its teacher; a group given another name, or split in two, counts as two such steps",
    "label": "the label of one record exchanged, the rest of it and all other records staying as they are",
}
_NAMES = {"row": "its id, or else its place in the file"}
_NAME_OF_FILE = "the path of its file without the class folder, its path in the list of labels, its id or its place"
_AT_ITS_PARTY = "; so does one that moves to another party, since each party is a teacher or has its own"
"""What `NEIGHBOURS` are besides, if parties hold the records and teachers vote."""
PROTECTED = {
    "record": "any one record exchanged, added or removed, all others keeping their names",
    "group": "all records of any one group exchanged, added or removed, all other groups keeping their names",
    "label": "the label of any one record exchanged (the rest of it is not protected)",
}
TRUST_MODELS = {
    "central": "the operator of the pipeline sees the private data, the votes and the noise, and is trusted with them; "
    "everybody else sees what is released",
    "parties": "each teacher party sees only its own data; the privacy guardian draws the noise, follows the protocol "
    "and colludes with no other party; the guarantee holds towards the student party, the other teacher parties and "
    "the public, even if they collude with one another or depart from the protocol, unless they break AES, SHA-2, "
    "SHA-3 or TLS",
}
NOT_PRIVATE = "NOT PRIVATE"

OUTCOME_DEPENDENT = {"confident", "interactive"}
"""Mechanisms whose number of answers depends on what they release: their guarantee is the budget that was fixed before,
and the ε of what they turned out to release is what they used of it."""

# What may describe a mechanism: parameters chosen before any vote was seen, which institutions took part, and the day.
# A new one is added here deliberately.
MECHANISM_FIELDS = (
    {"mechanism", "sigma", "scale", "threshold", "sigma1", "sigma2", "surprise", "confidence", "select"}
    | {"epsilon", "delta", "rounds", "clip", "noise_multiplier", "samples", "top_k", "beta", "block", "averaging"}
    | {"discriminator", "counted", "moments", "numbers", "learning_rate", "share", "sigma_gradients", "overlap"}
    | {"findings", "findings_bound", "bins", "grades", "parties", "opened", "norm", "iterations"}
)
FOUND = " The class names are the labels that occurred in the data. They are published, and ε does not cover them."
"""Sentence of the summary if the class names were not declared."""
BESIDES = {"counted": "the noisy number of {unit}s", "moments": "the noisy moments of private images"}
"""What the event of a release covers besides its answers, by the field of the mechanism that says so."""


def declare(name: str, parameters: Iterable[str], *, outcome_dependent: bool) -> None:
    """Let statements speak of a mechanism by its parameters, which must be chosen before any vote is seen.

    Terrine's own need no declaration: their statements are read alike by whoever has this package alone.
    """
    MECHANISM_FIELDS.update(parameters)
    if outcome_dependent:
        OUTCOME_DEPENDENT.add(name)


# Beyond rounding in the last place, the whole cannot cost less than a part of it.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PublicInput:
    """Something public that the release was made with: query images, a backbone.

    Attributes:
        origin: Where it came from: a program with its seed, or an address.
        digest: SHA-256 of its content, unkeyed: it is public.
    """

    name: str
    origin: str
    digest: str


@dataclass(frozen=True)
class PrivacyStatement:
    """Everything a release says. Every figure in it may be published.

    Attributes:
        release_id: Identity of the release in the ledger; a keyed hash.
        dataset: Keyed fingerprint of the dataset.
        unit: What is protected: a record, all records of a group, or a label alone.
        trust_model: Who is trusted with what.
        event: What was done. Its exact ε, `epsilon`, is the guarantee of a mechanism whose number of answers is fixed.
        delta: δ of every ε in the statement.
        delta_slack: What the lattice of the noise adds to δ at most, `noise.delta_slack`.
        epsilon_budget: The run's own budget: the guarantee that held before the first query was asked, however many
            were going to be answered. For mechanisms of `OUTCOME_DEPENDENT` it is *the* guarantee, and `epsilon` what
            was used of it; `epsilon_guaranteed` is the one that holds.
        epsilon_dataset: ε that was used of the dataset over all runs up to this release, from the ledger: the price of
            all of them as if they had been planned. The guarantee over runs that were chosen one by one is the
            account's budget.
        noise: `secure`, or `replay`: NOT PRIVATE.
        mechanism: Its name and parameters, public values.
        queries: How many there were.
        asked: How many were looked at before the budget ended.
        answered: How many labels were released.
        answered_per_class: The released labels counted by class, `released_per_class`.
        partition_digest: Keyed hash of the partition.
        partition_disjoint: Whether every unit was found in exactly one teacher's part.
        public_inputs: What public material went in, and where it came from.
        facts: What the stages recorded about the records: who is not protected, and what the release contains.
        epsilon_tuning: ε including the search that chose the settings, when one looked at private outcomes.
        audit_epsilon: Lower bound on ε that an audit found, when one ran.
        epsilon_claimed: What the method's own paper claims, when that differs from what holds.
        epsilon_account: What the dataset's account holds to over all runs, past and to come: the largest budget under
            which anything was released; None where it holds to none.
        event_added: The same as `event`, as it is among data of which one has a unit more than the other, and none is
            exchanged: other papers' relation, beside whose figures `epsilon_added` is to be read. None where nothing
            less than `event` is known of it.
        task: The classes that the release is about, `ledger.task.Task.to_json`, as the ledger recorded them. All of it
            is public: names that were `found` in the data are no less so, and no ε covers them.
    """

    run: str
    release_id: str
    dataset: str
    unit: Unit
    trust_model: TrustModel
    event: Event
    delta: float
    delta_slack: float
    epsilon_budget: float
    epsilon_dataset: float
    noise: NoiseKind
    mechanism: Mapping[str, Any]
    teachers: int
    queries: int
    asked: int
    answered: int
    answered_per_class: tuple[int, ...]
    partition_digest: str
    partition_disjoint: bool
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

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("unit", self.unit, get_args(Unit)),
            ("trust_model", self.trust_model, get_args(TrustModel)),
            ("noise", self.noise, get_args(NoiseKind)),
        ):
            _require(value in allowed, f"{name} is one of {', '.join(allowed)}, got {value!r}")
        for name in ("run", "release_id", "dataset", "partition_digest", "code_version"):
            _require(bool(getattr(self, name)), f"{name} is missing")
        _require(0 < self.delta < 1 and 0 <= self.delta_slack < 1, f"δ={self.delta} or its slack is no probability")
        _require(
            0 <= self.answered <= self.asked <= self.queries and self.teachers > 0,
            f"{self.answered} answered of {self.asked} asked of {self.queries} queries by {self.teachers} teachers "
            "cannot be",
        )
        _require(
            sum(self.answered_per_class) == self.answered and min(self.answered_per_class, default=0) >= 0,
            f"the released labels per class sum to {sum(self.answered_per_class)}, not to {self.answered}",
        )
        _require(
            (self.audit_epsilon is None) == (self.audit_confidence is None), "an audit has a bound and a confidence"
        )
        _require(
            self.epsilon_account is None or self.epsilon_account >= self.epsilon_dataset * (1 - _ROUNDING),
            f"an account's budget of ε={self.epsilon_account} is no limit where ε={self.epsilon_dataset} was used",
        )
        _require(
            self.epsilon_added is None or (self.unit != "label" and self.epsilon_added <= self.epsilon),
            "what adding or removing a unit costs is part of what exchanging it does, and no label is added alone",
        )
        _require(self.task is None or Task.describes(self.task), f"{self.task} describes no classes")
        examples = sum(item.count for item in self.facts.examples) * int(self.mechanism.get("findings", 1))
        _require(
            examples in (0, self.queries) or "numbers" in self.mechanism,
            f"the examples that were asked about make {examples} queries, not {self.queries}",
        )
        strange = set(self.mechanism) - MECHANISM_FIELDS
        _require(not strange, f"a mechanism is described by public parameters, not by {', '.join(sorted(strange))}")
        exact = self.epsilon * (1 - _ROUNDING)
        for name in ("epsilon_budget", "epsilon_dataset", "epsilon_tuning"):
            value = getattr(self, name)
            _require(
                value is None or value >= exact or self.epsilon == math.inf,
                f"{name}={value} is below the exact ε={self.epsilon} of the release itself; a data-dependent figure "
                "has no place in a statement",
            )

    def __str__(self) -> str:
        return summary_sentence(self)

    @property
    def epsilon(self) -> float:
        """The exact, data-independent ε of this release at `delta`; infinite where nothing is guaranteed."""
        return math.inf if isinstance(self.event, NonPrivateEvent) else price(self.event, self.delta)

    @property
    def epsilon_guaranteed(self) -> float | None:
        """The ε at `delta` that is guaranteed; None where nothing is."""
        if not self.private:
            return None
        return self.epsilon_budget if self.mechanism.get("mechanism") in OUTCOME_DEPENDENT else self.epsilon

    @property
    def epsilon_added(self) -> float | None:
        """ε at `delta` where a unit is added or removed, and none exchanged; the guarantee is the other one."""
        return None if self.event_added is None else price(self.event_added, self.delta)

    @property
    def private(self) -> bool:
        """Whether the statement is a guarantee at all."""
        return self.noise == "secure" and math.isfinite(self.epsilon) and self.partition_disjoint

    def to_dict(self) -> dict[str, Any]:
        """The content of privacy.json: JSON values, every ε rounded up to four decimals.

        It speaks of adding and removing alone only where that is known.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if (added := given.pop("event_added")) is not None:
            given |= {"event_added": to_json(added), "epsilon_added": self.epsilon_added}
        printed = {name: _printed(value) for name, value in given.items() if name.startswith("epsilon_")}
        return {
            **given,
            **printed,
            "schema_version": SCHEMA_VERSION,
            "private": self.private,
            "warning": None if self.private else _warning(self),
            **_who(self),
            "epsilon_guaranteed": _printed(self.epsilon_guaranteed),
            "epsilon": _printed(self.epsilon),
            # A lower bound is rounded down.
            "audit_epsilon": None if self.audit_epsilon is None else -round_up(-self.audit_epsilon),
            "event": to_json(self.event),
            "mechanism": dict(self.mechanism),
            "answered_per_class": list(self.answered_per_class),
            "public_inputs": [asdict(item) for item in self.public_inputs],
            "facts": self.facts.to_json(),
            "summary": summary_sentence(self),
        }


def statement_from(content: Mapping[str, Any]) -> PrivacyStatement:
    """The statement in a privacy.json, checked: nothing missing, nothing more, every figure what its event costs.

    Raises:
        SettingError: a missing or unknown field, or a figure that does not follow from the rest.
    """
    version = content.get("schema_version")
    _require(version == SCHEMA_VERSION, f"schema_version is {version!r}; this Terrine reads {SCHEMA_VERSION}")
    names = {field.name for field in fields(PrivacyStatement)}
    if "event_added" not in content:
        names.remove("event_added")
    missing = names - set(content)
    _require(not missing, f"these fields are missing: {', '.join(sorted(missing))}")
    values = {name: content[name] for name in names}
    values |= {name: from_json(content[name]) for name in ("event", "event_added") if name in names}
    values["answered_per_class"] = tuple(content["answered_per_class"])
    values["public_inputs"] = tuple(PublicInput(**item) for item in content["public_inputs"])
    values["facts"] = Facts.from_json(content["facts"])
    statement = PrivacyStatement(**values)
    written = statement.to_dict()
    unknown = set(content) - set(written)
    _require(not unknown, f"these fields have no place in it: {', '.join(sorted(unknown))}")
    wrong = [name for name, value in written.items() if name not in content or content[name] != value]
    _require(not wrong, f"these fields do not follow from the rest: {', '.join(sorted(wrong))}")
    return statement


def summary_sentence(statement: PrivacyStatement) -> str:
    """The guarantee in a few sentences for whoever has to approve the release."""
    asked = "questions, one for each finding of a query" if "findings" in statement.mechanism else "queries"
    answers = f"{statement.answered} answers, released for {statement.asked} of {statement.queries} {asked}"
    if numbers := statement.mechanism.get("numbers"):
        answers = f"{numbers:,} sums over all records, with noise"
    if statement.epsilon_guaranteed is None:
        return f"{_warning(statement)} These are {answers}; treat them as private data."
    said = [text.format(unit=statement.unit) for name, text in BESIDES.items() if name in statement.mechanism]
    besides = "".join(f", {text}" for text in said)
    guaranteed, used = round_up(statement.epsilon_guaranteed), round_up(statement.epsilon)
    budget = (
        f"ε={guaranteed:g} is the run's budget, fixed before the first query; "
        f"{'all of this' if besides else 'the answers that were given'} used ε={used:g} of it. "
        if statement.mechanism.get("mechanism") in OUTCOME_DEPENDENT
        else ""
    )
    added = (
        ""
        if statement.epsilon_added is None
        else f"If {statement.unit}s are only added or removed, as most tools count, "
        f"ε={round_up(statement.epsilon_added):g}. "
    )
    whom = protected(statement.unit, int(statement.mechanism.get("overlap", 1)))
    unprotected = told({"facts": statement.facts.to_json()}, "unprotected")
    total, account = round_up(statement.epsilon_dataset), statement.epsilon_account
    most = "" if account is None else f" of its account's budget, ε={round_up(account):g}"
    return (
        f"These {answers}{besides}, and everything computed from them, are ({guaranteed:g}, {statement.delta:g})-"
        f"differentially private: with {whom}, no outcome becomes more than e^{guaranteed:g} "
        f"times as likely, up to a probability of {statement.delta:g}. {budget}{added}Together with all earlier "
        f"releases about the same dataset, ε={total:g} was used so far{most}. It holds for whatever the data are, and "
        "for "
        + (
            "anyone outside the operator of the pipeline."
            if statement.trust_model == "central"
            else "anyone but the privacy guardian, parties that depart from the protocol included, as long as the "
            "guardian follows it and colludes with no other party."
        )
        + "".join(f" {sentence}" for sentence in unprotected)
        + (FOUND if statement.task is not None and statement.task["found"] else "")
    )


def protected(unit: Unit, overlap: int) -> str:
    """Say whom ε protects: a unit at one institution, or at several at once."""
    return PROTECTED[unit] if overlap == 1 else f"at up to {overlap} of the institutions at once, {PROTECTED[unit]}"


def _who(statement: PrivacyStatement) -> dict[str, str]:
    """Say what neighbours are and who is trusted; where records were summed, nobody taught and nobody voted."""
    named = _NAMES.get(statement.facts.record, _NAME_OF_FILE)
    neighbouring, trusted = NEIGHBOURS[statement.unit].format(name=named), TRUST_MODELS[statement.trust_model]
    if "numbers" in statement.mechanism:
        neighbouring = neighbouring.replace(" and therefore its teacher", "")
        trusted = trusted.replace("data, the votes and", "data and")
    elif statement.unit != "label" and statement.facts.by_party:
        neighbouring += _AT_ITS_PARTY
    if overlap := statement.mechanism.get("overlap"):
        neighbouring = f"at up to {overlap} of the institutions at once, {neighbouring}"
    return {"neighbouring": neighbouring, "trust_model_text": trusted}


def released_per_class(labels: ArrayLike, classes: int) -> tuple[int, ...]:
    """Released labels counted by class; -1, unanswered, is left out.

    Args:
        labels: int64 [queries] as released, in [-1, classes).
    """
    given = np.asarray(labels)
    return tuple(np.bincount(given[given >= 0], minlength=classes).tolist())


def _warning(statement: PrivacyStatement) -> str:
    if statement.noise != "secure":
        return f"{NOT_PRIVATE}: the noise was replayed from a seed and can be subtracted again."
    if not statement.partition_disjoint:
        return f"{NOT_PRIVATE}: the teachers' parts overlap, so one {statement.unit} may move many votes."
    return f"{NOT_PRIVATE}: the method has no differential-privacy guarantee."


def _printed(epsilon: float | None) -> float | None:
    """An ε as it is published; what is not finite is no guarantee and has no number."""
    return None if epsilon is None or not math.isfinite(epsilon) else round_up(epsilon)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise SettingError(f"A privacy statement cannot be made: {fault}.")
