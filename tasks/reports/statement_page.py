"""The release statement in words, by language, and its technical page, which is published beside privacy.json.

The page is drawn from privacy.json and the names of the classes. Both may be published, so the page may be: no private
artefact, not even a path to one, is read here. A language is one file of messages beside this one, and how it writes
numbers and dates. Sentences about recorded facts are those of `terrine.privacy.sentences`. Every language has the same
keys with the same {placeholders}; a test checks this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from markupsafe import Markup

from tasks.config.listing import meanings
from tasks.reports.pages import bar_rows, plain, render
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json, write_text
from terrine.aggregation.mechanism import MECHANISMS, Aggregation
from terrine.deployment.manifest import check_seal
from terrine.errors import ArtefactError, SettingError, did_you_mean
from terrine.files import file_digest
from terrine.privacy.accounting.events import UnsupportedEventError, from_json
from terrine.privacy.accounting.gaussian import delta_of, mu_of
from terrine.privacy.accounting.loss_distribution import loss_delta
from terrine.privacy.facts import Said, Section, keys, told
from terrine.privacy.sentences import SENTENCES
from terrine.privacy.statement import OUTCOME_DEPENDENT, PrivacyStatement, statement_from
from terrine.settings import Unit

FOLDER = Path(__file__).with_name("languages")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SMALLEST = -7
"""The power of ten from which on small numbers are written with it."""


def languages() -> list[str]:
    """Return the codes of the languages there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _messages(code: str) -> Mapping[str, Any]:
    return yaml.safe_load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8")) | SENTENCES[code]


@dataclass(frozen=True)
class Language:
    """A language by its code, with its messages, and what a page shows in them."""

    code: str
    messages: Mapping[str, Any]

    @classmethod
    def of(cls, code: str) -> Language:
        """Read a language. Raises SettingError for an unknown one."""
        if code not in languages():
            raise SettingError(
                f"There are no statements in {code!r}.{did_you_mean(code, languages())} Languages: "
                f"{', '.join(languages())}."
            )
        return cls(code, _messages(code))

    def say(self, key: str, values: Mapping[str, Any]) -> Markup:
        """Return a message with its placeholders filled; what is put in is escaped, the message's own marks are not.

        Signs stay with their numbers: no line breaks at "ε = 8".
        """
        text = Markup(self.messages[key]).format(**values)  # of our own files
        return text.replace(" = ", f"{_NO_BREAK}={_NO_BREAK}")

    def told(self, said: Said, section: Section) -> list[Markup]:
        """Return the sentences of a section that follow from a statement's facts (`terrine.privacy.facts.TABLE`)."""
        return [
            self.say(
                key,
                {
                    name: self.number(value) if value == int(value) else self.exact(value)
                    for name, value in values.items()
                },
            )
            for key, values in keys(said, section)
        ]

    def number(self, value: float | Decimal, digits: int = 0) -> str:
        """Write a number with `digits` decimals."""
        whole, _, rest = f"{value:.{digits}f}".partition(".")
        form = self.messages["format"]
        if len(whole) >= form["grouped_from"]:
            whole = f"{int(whole):,}".replace(",", form["thousands"])
        return whole + (form["decimal"] + rest if rest else "")

    def exact(self, value: float) -> str:
        """Write a number with all the digits that it has: 0.00001, and what is smaller with a power of ten."""
        return self._decimal(Decimal(repr(float(value))))

    def factor(self, epsilon: float) -> str:
        """Write e to the power ε, rounded up to three digits."""
        power = epsilon / math.log(10)
        whole = math.floor(power)
        return self._decimal(Decimal(math.ceil(10 ** (power - whole + 2))).scaleb(whole - 2))

    def percent(self, share: float) -> str:
        """Write a share as a percentage."""
        shown = self._decimal(Decimal(repr(float(share))) * 100).replace(" ", _NO_BREAK)
        return str(self.messages["format"]["percent"]).format(value=shown).replace(" ", _NO_BREAK)

    def date(self, when: datetime) -> str:
        """Write a day."""
        form = self.messages["format"]
        day = form["first"] if when.day == 1 else str(when.day)
        text = str(form["date"]).format(day=day, month=self.messages["months"][when.month - 1], year=when.year)
        return text.replace(" ", _NO_BREAK)

    def _decimal(self, value: Decimal) -> str:
        value, power = value.normalize(), value.adjusted()
        if not value or _SMALLEST <= power < 6:
            exponent = value.as_tuple().exponent
            assert isinstance(exponent, int)
            return self.number(value, max(0, -exponent))
        mantissa = value.scaleb(-power)
        digits = len(mantissa.as_tuple().digits) - 1
        shown = str(self.messages["format"]["power"]).format(
            mantissa=self.number(mantissa, digits), exponent=str(power).translate(_RAISED)
        )
        return shown.replace(" ", _NO_BREAK)


TRANSCRIPTION_TEXTS = {
    "annotation": "Model transcription (DPSD): for each image of a generator it was summed up how the teachers would "
    "change the student's answer, each change limited in length; Gaussian noise was added to the sum, and student and "
    "generator learned from nothing else.",
    "answers": "Model transcription (DPSD): for each image of a generator each teacher named a class by randomised "
    "response, among those that the student found most probable; student and generator learned from nothing else.",
    "labels": "Label protection at the source: every private label was replaced, once, by randomised response. All "
    "models learned from these labels, so what they say costs nothing more. The images are not protected.",
}

PARAMETER_TEXTS = {
    "sigma": "Standard deviation of the noise, in units of beta",
    "rounds": "How often a student of the released answers chose what to ask next",
    "averaging": "How teachers learned from one another before they voted; what that cost is part of ε",
    "counted": "How much there is, to choose the number of teachers by; what that cost is part of ε",
    "moments": "What private images have in common, to normalise images by; what that cost is part of ε",
    "numbers": "Sums that were released, each with noise",
    "beta": "Largest norm of a teacher's gradient; noise is in units of it",
    "norm": "Whether beta limits the gradient of a whole batch or of each sample",
    "iterations": "Batches annotated",
    "top_k": "Largest entries kept of each gradient, or classes among which an answer was drawn",
    "samples": "Images annotated",
    "epsilon": "ε of one answer by randomised response",
    "discriminator": "Whom the generator learned from instead of the student: it has seen the teacher itself",
    "block": "Parties whose models were averaged to vote as one",
    "overlap": "At how many institutions the data of one person may be; ε protects who is at so many",
    "parties": "Who took part: who holds records, then the guardian and the student party",
    "opened": "The day on which the student party opened what was released, UTC",
    "findings": "How many findings each image was asked about: each a question with the answers no and yes",
    "findings_bound": "The most findings that a teacher may say an image has; one unit moves twice as many answers",
    "bins": "Edges of the bins that numbers were asked about in, stated beforehand: a bin is a class",
    "grades": "How many classes there are, which are grades in an order",
    "select": "What was asked first: chosen from released answers and public images alone",
}


def read_statement(path: Path) -> dict[str, Any]:
    """Return the statement in a privacy.json, checked.

    Raises ArtefactError where it is not what Terrine wrote.
    """
    try:
        return statement_from(read_json(path)).to_dict()
    # Figures of other kinds and sizes than any statement has do not get as far as being compared.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ArtefactError(f"{path} is not what Terrine wrote: {error}") from error


def render_statement(statement: Mapping[str, Any], class_names: Sequence[str]) -> str:
    """Return the page, HTML, of a privacy statement as `PrivacyStatement.to_dict` gives it, with the release's classes
    by label.

    Raises ValueError when they are not as many as the statement's, and jinja2.UndefinedError when a field is missing.
    """
    rows = bar_rows(class_names, statement["answered_per_class"])
    return render("statement.html", {"statement": statement, "per_class": rows, **statement_texts(statement)})


def write_statement(run: Run, statement: PrivacyStatement, class_names: Sequence[str]) -> None:
    """Write what the run says about itself: privacy.json, and the page drawn from it."""
    content = statement.to_dict()
    write_json(run.folders.statement, content)
    write_text(run.folders.statement.with_name("statement.html"), render_statement(content, class_names))


def statement_texts(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the English templates say about a statement in words, all of it derived from the statement."""
    english = Language.of("en")
    facts = {section: english.told(statement, section) for section in get_args(Section)}
    summary = statement["summary"].removesuffix(" ".join(told(statement, "unprotected"))).rstrip()
    guarantee: dict[str, Any] = {"summary": summary, "guesses": guesses_in_a_hundred(statement)}
    if statement["private"]:
        guarantee["factor"] = english.factor(statement["epsilon_guaranteed"])
        if "event_added" in statement:
            guarantee["factor_added"] = english.factor(statement["epsilon_added"])
            guarantee["guesses_added"] = guesses_in_a_hundred(statement, "event_added")
    return {**mechanism_texts(statement), "texts": {**facts, **guarantee}}


def mechanism_texts(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism in words: a sentence, and its parameters with their values and meanings."""
    mechanism = dict(sorted(statement["mechanism"].items()))  # as privacy.json has it
    name = mechanism.pop("mechanism", "unknown")
    kind_of_unit = "groups" if statement["unit"] == "group" else "records"
    if counted := mechanism.get("counted"):
        mechanism["counted"] = (
            f"{counted['units']:,} {kind_of_unit}, with noise of standard deviation {plain(counted['sigma'])}"
        )
    if moments := mechanism.get("moments"):
        mechanism["moments"] = (
            f"{moments['numbers']:,} sums, with noise of standard deviation {plain(moments['noise_multiplier'])}; "
            f"the vector that each {statement['unit']} adds has length 1 at most"
        )
    if numbers := mechanism.get("numbers"):
        mechanism["numbers"] = f"{numbers:,}"
    text, texts = TRANSCRIPTION_TEXTS.get(name, name), PARAMETER_TEXTS
    if name in MECHANISMS.names():
        kind = MECHANISMS.of(name)
        text, texts = kind.text, PARAMETER_TEXTS | _meanings(kind)
    return {
        "mechanism_text": text,
        "mechanism_parameters": [(key, _in_words(value), texts.get(key, "")) for key, value in mechanism.items()],
    }


def _meanings(kind: type[Aggregation]) -> dict[str, str]:
    """Return what each parameter of a mechanism means, and what it counts."""
    found = {}
    for name in kind.parameters():
        units = [f", in {mark.name}" for mark in kind.model_fields[name].metadata if isinstance(mark, Unit)]
        found[name] = meanings(kind).get(name, "").removesuffix(".") + "".join(units)
    return found


def _in_words(value: Any) -> Any:
    """Return a parameter that has parts as one line of text."""
    if not isinstance(value, Mapping):
        return value
    return ", ".join(
        f"{name.replace('_', ' ')} {part:g}" if isinstance(part, float) else f"{name.replace('_', ' ')} {part}"
        for name, part in value.items()
    )


def guesses_in_a_hundred(statement: Mapping[str, Any], event: str = "event") -> float | None:
    """Return how often in a hundred a best-informed guess about one unit is right at most, rounded up to one decimal.

    The guess is between two equally likely neighbouring datasets, by someone who knows everything else and sees the
    release. It is right with probability at most (1 + TV)/2, where the total variation TV is the δ at ε = 0:
    2Φ(μ/2) − 1 for Gaussian mechanisms (Dong, Roth & Su 2022, section 2), with the budget's μ where the number of
    answers depends on what is released; by the privacy losses for others, and at most (e^ε − 1 + 2δ)/(e^ε + 1) for any
    (ε, δ)-private release (Kairouz, Oh & Viswanath 2015).

    Args:
        event: `event`, for datasets that differ in a unit exchanged, added or removed; or `event_added`, for datasets
            that differ in a unit added or removed, as `epsilon_added` does.

    Returns:
        None if nothing is guaranteed.
    """
    if not statement["private"]:
        return None
    slack = statement["delta_slack"]
    try:
        if statement["mechanism"].get("mechanism") in OUTCOME_DEPENDENT:
            variation = delta_of(mu_of(statement["epsilon_budget"], statement["delta"]), 0.0) + slack
        else:
            variation = loss_delta(from_json(statement[event]), 0.0, near=0.5) + slack
    except UnsupportedEventError:
        # tanh(ε/2) = (e^ε − 1)/(e^ε + 1) without overflow.
        epsilon, delta = statement["epsilon"], statement["delta"] + slack
        variation = math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))
    return min(100.0, float(math.ceil(500 * (1 + variation))) / 10)


OWN_STATISTICS = (
    "NOT COVERED BY ANY ε: your own images were given as a reference. Their means and variances, without noise, "
    "are in exported files and behind every answer. Keep both where those images may be."
)
"""Replaces the statement if a student normalises with given images."""
_TOLD = ("run", "epsilon", "delta", "unit", "noise", "private", "summary")


def guarantee(student: Path) -> dict[str, Any] | None:
    """Return the main fields of the statement beside the folder `student`, with its digest, or None if it is missing.

    `epsilon` is what is guaranteed where that is more than what was used. Raises ArtefactError for a statement whose
    figures are not what its own event costs, or which is about another release than the student's.
    """
    path = student.parent / "privacy.json"
    if not path.is_file():
        return None
    statement = read_statement(path)
    made_from = check_seal(student).get("release")
    if made_from != statement["release_id"]:
        raise ArtefactError(
            f"{path} is about another release than the one that the student in {student} says it was made from "
            f"({'none' if made_from is None else str(made_from)[:16]}). Get both again from where they were published, "
            "or run the stage 'student' again."
        )
    told = {name: statement.get(name) for name in _TOLD}
    if statement.get("private") and statement.get("epsilon_guaranteed") is not None:
        told["epsilon"] = statement["epsilon_guaranteed"]
    return {**told, "statement_sha256": file_digest(path)}
