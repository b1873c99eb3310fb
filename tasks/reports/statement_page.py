"""Pages of the privacy statement: for people who decide about a publication, in their language, on screen and paper.

A page depends only on privacy.json and the signature, so recipients can render it again and compare it
(`tasks/serving/verification.py`). This module reads no private artefact. The technical page, statement.html, is the
English page with an appendix.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from tasks.config.listing import meanings
from tasks.reports.language import Language
from tasks.reports.pages import bar_rows, plain, render
from tasks.runtime.run import Run
from tasks.runtime.store import write_text
from terrine.aggregation.mechanism import MECHANISMS, Aggregation
from terrine.errors import TerrineError, first_line
from terrine.extras import from_extra
from terrine.logs import hushed
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import delta_of, mu_of
from terrine.privacy.accounting.pricing import guesses_in_hundred, total_variation
from terrine.privacy.facts import About
from terrine.privacy.statement import OUTCOME_DEPENDENT, PrivacyStatement, write_statement
from terrine.privacy.training import LIBRARIES
from terrine.settings import Unit

TECHNICAL = "statement.html"
WIDE = 95.0
"""Correct guesses in a hundred from which a page states that the limit is wide."""
MOST_CLASSES = 60
"""Largest number of classes that a page names."""
_ABOUT = [name for name in About.model_fields if name != "one_per_person"]
_CODE = re.compile(r"terrine (\S+) project commit (\w+) modified (yes|no)")
_VOTES = ("histogram", "gnmax", "lnmax", "confident", "interactive")
TRANSCRIPTION_TEXTS = {
    "annotation": "Model transcription (DPSD): for images of a generator, the teachers' gradients with respect to the "
    "student's answers were summed, each limited in norm, and Gaussian noise was added. Student and generator learned "
    "from nothing else.",
    "answers": "Model transcription (DPSD): for each image of a generator, each teacher named a class by randomised "
    "response, among those that the student found most probable. Student and generator learned from nothing else.",
    "labels": "Label protection at the source: every private label passed through randomised response once. All models "
    "learned from the resulting labels. The images are not protected.",
}
PARAMETER_TEXTS = {
    "sigma": "standard deviation of the noise, in units of beta",
    "rounds": "number of rounds in which a student of the released answers selected queries",
    "averaging": "averages of teachers before the vote; their cost is part of ε",
    "counted": "number of units, to choose the number of teachers; its cost is part of ε",
    "moments": "means and deviations of private images, for normalisation; their cost is part of ε",
    "numbers": "released noisy sums",
    "library": "library that trained the model and reported its noise and steps",
    "sampling": "how batches were drawn, as the operator states",
    "phases": "noise multiplier, sampling rate and number of steps of each phase",
    "files": "SHA-256 of the model's files",
    "beta": "largest norm of a teacher's gradient; unit of the noise",
    "norm": "whether beta limits the gradient of a batch or of each sample",
    "iterations": "annotated batches",
    "top_k": "largest entries kept of each gradient, or classes among which an answer was drawn",
    "samples": "annotated images",
    "epsilon": "ε of one answer by randomised response",
    "discriminator": "the generator learned from the teacher itself instead of the student",
    "block": "parties whose models were averaged to vote as one",
    "overlap": "number of institutions that may hold data of one person and are covered by ε",
    "parties": "parties: those that hold records, then the guardian and the student party",
    "opened": "day on which the student party opened the release, UTC",
    "findings": "findings per image, each a question with the answers no and yes",
    "findings_bound": "largest number of findings that a teacher may report per image; bounds the sensitivity",
    "bins": "edges of the bins of a number, fixed in advance; each bin is a class",
    "grades": "number of classes, which are ordered grades",
    "select": "order of the queries, chosen from released answers and public images only",
}


@dataclass(frozen=True)
class SignatureMark:
    """Signature as shown on a page: time in UTC, and fingerprint of the key."""

    when: datetime
    key: str


def write_statement_and_page(run: Run, statement: PrivacyStatement, class_names: Sequence[str]) -> None:
    """Write privacy.json and statement.html of a run."""
    write_statement(run.folders.statement, statement)
    page = render_technical_page(statement.to_dict(), class_names)
    write_text(run.folders.statement.with_name(TECHNICAL), page)


def render_technical_page(statement: Mapping[str, Any], class_names: Sequence[str]) -> str:
    """Return the technical page, HTML.

    Args:
        statement: Content of privacy.json.
        class_names: Classes of the release, by label.

    Raises:
        ValueError: The number of classes differs from the statement's.
    """
    rows = bar_rows(class_names, statement["answered_per_class"])
    own = {"technical": True, "per_class": rows, **mechanism_texts(statement)}
    return render("statement.html", _page_values(statement, "en") | own)


def render_statement_page(statement: Mapping[str, Any], code: str, mark: SignatureMark | None = None) -> str:
    """Return the page, HTML, in one language.

    Args:
        statement: Content of privacy.json.
        code: Code of the language.
        mark: Signature of the release; None: the page is not signed.
    """
    return render("statement_page.html", _page_values(statement, code, mark))


def _page_values(statement: Mapping[str, Any], code: str, mark: SignatureMark | None = None) -> dict[str, Any]:
    language, guesses = Language.load(code), correct_guesses(statement)
    values = placeholder_values(statement, language, mark, guesses)
    given = statement["facts"]["about"]
    return {
        "statement": statement,
        "language": code,
        "say": lambda key: language.say(key, values),
        "sentences": lambda section: language.sentences(statement, section),
        "done": done(statement),
        "about": None if given is None else {name: given[name] for name in _ABOUT},
        "author": (given or {}).get("controller") or "Terrine",
        "files": published_files(statement, signed=mark is not None),
        "mark": mark,
        "technical": False,  # the technical page is written before the signature, which covers it
        "shown": values,
        "wide": (guesses or 0) > WIDE,
    }


def done(statement: Mapping[str, Any]) -> list[str]:
    """Return the keys of the messages about the procedure, or none if the mechanism's name does not determine it."""
    mechanism = statement["mechanism"]
    if not statement["private"] and _reason(statement) == "method":
        return []
    name = str(mechanism.get("mechanism"))
    extras = [key for key in ("bins", "grades", "averaging", "moments", "counted") if key in mechanism]
    examples = bool(statement["facts"]["examples"])
    if "phases" in mechanism:
        return ["imported", f"sampling_{mechanism['sampling']}"]
    if "numbers" in mechanism:
        learned = "sums_and_averages" if "moments" in mechanism else "sums_alone"
        first = ["sums_gradients" if name == "gradients" else "sums_moments"]
        first += [*["sums_group"] * (statement["unit"] == "group"), learned, *["fitted"] * examples]
    elif name in TRANSCRIPTION_TEXTS and name not in MECHANISMS.names():
        first = [name]
    else:
        first = ["votes", *["voted_on"] * examples, name if name in _VOTES else "other", "answered"]
    return [*first, *extras, "student"] if statement["private"] else first


def published_files(statement: Mapping[str, Any], *, signed: bool) -> list[tuple[str, str]]:
    """Return the files of a release that may be published: names, and the key of the message that describes them."""
    mechanism, transcribed = statement["mechanism"], statement["mechanism"].get("mechanism") in TRANSCRIPTION_TEXTS
    if "phases" in mechanism:
        names = ("privacy.json, statement*, signature.json", "file_statement")
        return [(f"model/{name}", "file_model") for name in mechanism["files"]] + [names]
    files = [("student/", "file_student")]
    if transcribed:
        files.append(("annotations/, generator/", "file_transcription"))
    elif "parties" not in mechanism:  # a student party publishes no answers
        files.append(("answers/", "file_sums" if "numbers" in mechanism else "file_answers"))
    files.append(("privacy.json, statement*, model-card.md, signature.json", "file_statement"))
    if signed:
        files.append(("attestation.json, model.sig, model-key.pem", "file_attestation"))
    if "parties" in mechanism:
        return files
    none = statement["facts"]["accuracy_epsilon"] is None
    return [*files, ("accuracy.json", f"file_{'no_' * none}accuracy"), ("metrics.json, plots/", "file_tables")]


def _reason(statement: Mapping[str, Any]) -> str:
    """Return why a statement guarantees nothing."""
    if statement["noise"] != "secure":
        return "replay"
    return "method" if statement["partition_disjoint"] else "partition"


def _code(statement: Mapping[str, Any]) -> dict[str, str]:
    """Return Terrine's version, the project's commit, and `modified`: yes or no; empty texts outside of git."""
    found = _CODE.fullmatch(statement["code_version"])
    return dict(zip(("version", "commit", "modified"), found.groups() if found else ("", "", ""), strict=True))


def placeholder_values(
    statement: Mapping[str, Any], language: Language, mark: SignatureMark | None, guesses: float | None
) -> dict[str, str]:
    """Return the values of all placeholders in a language; empty if the statement has no such value."""
    mechanism, private = statement["mechanism"], statement["private"]
    names = (statement["task"] or {}).get("names", ())
    added = private and "event_added" in statement
    none, delta = language.messages["row_none"], statement["delta"]
    unit = str(statement["facts"]["record"] if statement["unit"] == "record" else statement["unit"])

    def epsilon(name: str) -> str:
        value = statement.get(name)
        return none if value is None else language.exact(value)

    anyone, certain = language.messages["nouns"][unit]
    return {
        "run": statement["run"],
        "purpose": ((statement["facts"]["about"] or {}).get("purpose") or "").removesuffix("."),
        "person": Markup(" ").join(language.sentences(statement, "person")),
        "classes": ", ".join(names[:MOST_CLASSES]) + f" … ({len(names)})" * (len(names) > MOST_CLASSES),
        "any": anyone,
        "certain": certain,
        "reason": language.messages[f"broken_{_reason(statement)}"],
        "mechanism": str(mechanism.get("mechanism")),
        "epsilon": epsilon("epsilon_guaranteed"),
        "used": epsilon("epsilon") if private else none,
        "spent": epsilon("epsilon_dataset"),
        "account": epsilon("epsilon_account"),
        "budget": epsilon("epsilon_budget"),
        "added": epsilon("epsilon_added"),
        "tuning": epsilon("epsilon_tuning"),
        "claimed": epsilon("epsilon_claimed"),
        "audit": epsilon("audit_epsilon"),
        "confidence": language.percent(statement["audit_confidence"] or 0),
        "delta": language.exact(delta),
        "one_in": language.number(int(1 / delta * (1 + 1e-9))),
        "factor": language.factor(statement["epsilon_guaranteed"]) if private else "",
        "guesses": "" if guesses is None else language.number(guesses, 1),
        "factor_added": language.factor(statement["epsilon_added"]) if added else "",
        "guesses_added": language.number(correct_guesses(statement, "event_added") or 0, 1) if added else "",
        "examples": Markup(", ").join(language.sentences(statement, "examples")),
        **{name: language.number(statement[name] or 0) for name in ("teachers", "queries", "queried", "answered")},
        "numbers": language.number(mechanism.get("numbers", 0)),
        "steps": language.number(sum(steps for *_, steps in mechanism.get("phases", ()))),
        "phases": "; ".join(
            f"{language.exact(noise)}, {language.exact(rate)}" for noise, rate, _ in mechanism.get("phases", ())
        ),
        "library": LIBRARIES.get(mechanism.get("library", "")) or language.messages["library_stated"],
        "moments": language.number(mechanism.get("moments", {}).get("numbers", 0)),
        "bins": "; ".join(language.exact(edge) for edge in mechanism.get("bins", ())),
        "grades": language.number(mechanism.get("grades", 0)),
        "overlap": language.number(mechanism.get("overlap", 1)),
        "parties": ", ".join(mechanism.get("parties", ())),
        "opened": language.date(datetime.fromisoformat(opened)) if (opened := mechanism.get("opened")) else "",
        **_code(statement),
        "date": "" if mark is None else language.date(mark.when),
        "key": "" if mark is None else mark.key,
        **_approval_values(statement["approval"], language),
    }


def _approval_values(given: Mapping[str, Any] | None, language: Language) -> dict[str, str]:
    """Return the values of placeholders about an approval."""
    if given is None:
        return dict.fromkeys(("approval_role", "approval_date", "approval_key"), "")
    from terrine.deployment.signature import Approval  # slow to import, and most statements have no approval

    approval = Approval(**given)
    return {
        "approval_role": approval.role,
        "approval_date": language.date(approval.when),
        "approval_key": approval.key,
    }


def correct_guesses(statement: Mapping[str, Any], event: str = "event") -> float | None:
    """Return an upper bound on the percentage of correct best guesses about one unit, rounded up to one decimal.

    The guess is between two equally likely neighbouring datasets, by someone who knows everything else and sees the
    release. The best guess is right with probability at most (1 + TV)/2, where the total variation TV is the δ at ε =
    0. For Gaussian mechanisms TV is 2Φ(μ/2) − 1 (Dong, Roth & Su 2022, section 2), with the budget's μ if the number
    of answers depends on released outcomes. For others it follows from the privacy losses, and is at most
    (e^ε − 1 + 2δ)/(e^ε + 1) for any (ε, δ)-private release (Kairouz, Oh & Viswanath 2015).

    Args:
        statement: Content of privacy.json.
        event: `event` for replaced, added or removed units; `event_added` for added or removed ones.

    Returns:
        The bound, or None if nothing is guaranteed.
    """
    if not statement["private"]:
        return None
    slack = statement["delta_slack"] or 0.0  # of an import: Gaussian noise as stated
    if statement["mechanism"].get("mechanism") in OUTCOME_DEPENDENT:
        variation = delta_of(mu_of(statement["epsilon_budget"], statement["delta"]), 0.0) + slack
    else:
        variation = total_variation(from_json(statement[event]), statement["epsilon"], statement["delta"], slack)
    return guesses_in_hundred(variation)


def mechanism_texts(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a mechanism in words: a sentence, and its parameters with their values and meanings."""
    mechanism = dict(sorted(statement["mechanism"].items()))  # in the order of privacy.json
    name = mechanism.pop("mechanism", "unknown")
    units = "groups" if statement["unit"] == "group" else "records"
    if counted := mechanism.get("counted"):
        mechanism["counted"] = (
            f"{counted['units']:,} {units}, with noise of standard deviation {plain(counted['sigma'])}"
        )
    if moments := mechanism.get("moments"):
        mechanism["moments"] = (
            f"{moments['numbers']:,} sums, with noise of standard deviation {plain(moments['noise_multiplier'])}; "
            f"each {statement['unit']} contributes a vector of length 1 at most"
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
    """Return the meaning and unit of each parameter of a mechanism."""
    found = {}
    for name in kind.parameters():
        units = [f", in {mark.name}" for mark in kind.model_fields[name].metadata if isinstance(mark, Unit)]
        found[name] = meanings(kind).get(name, "").removesuffix(".") + "".join(units)
    return found


def _in_words(value: Any) -> Any:
    """Return a parameter that is a mapping as one line of text."""
    if not isinstance(value, Mapping):
        return value
    return ", ".join(
        f"{name.replace('_', ' ')} {part:g}" if isinstance(part, float) else f"{name.replace('_', ' ')} {part}"
        for name, part in value.items()
    )


def render_pdf(html: str) -> bytes:
    """Return a page as PDF. The PDF's metadata contain the page's title, language and author, and today's date.

    Raises:
        MissingExtraError: WeasyPrint is not installed.
        TerrineError: The library pango, which WeasyPrint needs, is not installed.
    """
    try:
        with from_extra("pdf", "Statements as PDF"), hushed("weasyprint", logging.CRITICAL):
            from weasyprint import HTML
    except OSError as error:
        raise TerrineError(
            f"Statements as PDF need the library pango, which is not installed ({first_line(error)}). Install it (apt "
            "install libpango-1.0-0 libpangoft2-1.0-0, brew install pango), or print the HTML page from a browser."
        ) from error
    target = io.BytesIO()
    with hushed("weasyprint", logging.CRITICAL):  # warnings about CSS for screens
        document = HTML(string=html).render()
        document.metadata.created = document.metadata.modified = datetime.now(UTC).isoformat(timespec="seconds")
        document.write_pdf(target)
    return target.getvalue()
