"""The statement for people who decide and do not compute: a page in their language, for the screen and on paper.

All of it follows from privacy.json, and from the signature where there is one: the same file gives the same page, which
is how whoever receives it finds out whether somebody changed it (`tasks/serving/verification.py`).
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from tasks.reports.pages import render
from tasks.reports.statement_page import Language, guesses_in_a_hundred
from terrine.aggregation.mechanism import MECHANISMS
from terrine.errors import TerrineError, first_line
from terrine.extras import from_extra
from terrine.logs import hushed

WIDE = 95.0
"""Guesses in a hundred from which on a page says that the limit is wide."""
_KNOWN = ("histogram", "gnmax", "lnmax", "confident", "interactive")
_TRANSCRIPTIONS = ("annotation", "answers", "labels")


@dataclass(frozen=True)
class Mark:
    """What a page says of its signature: when, in UTC, and with which key, by its fingerprint."""

    when: datetime
    key: str


def board_page(statement: Mapping[str, Any], code: str, mark: Mark | None = None) -> str:
    """Return the page, HTML, of a statement as `PrivacyStatement.to_dict` gives it, in the language of this code."""
    language = Language.of(code)
    guesses = guesses_in_a_hundred(statement)
    values = shown(statement, language, mark, guesses)

    def say(key: str) -> Any:
        return language.say(key, values)

    return render(
        "board.html",
        {"statement": statement, "language": code, "say": say, "done": done(statement), "mark": mark}
        | {"shown": values, "wide": (guesses or 0) > WIDE, "told": lambda part: language.told(statement, part)},
    )


def done(statement: Mapping[str, Any]) -> list[str]:
    """Return the keys of the messages that say what was done; none where that is not what its mechanism's name says."""
    mechanism = statement["mechanism"]
    if not statement["private"] and _reason(statement) == "method":
        return []
    name = str(mechanism.get("mechanism"))
    extras = [key for key in ("bins", "grades", "averaging", "moments", "counted") if key in mechanism]
    examples = bool(statement["facts"]["examples"])
    if "numbers" in mechanism:
        first = ["sums_gradients" if name == "gradients" else "sums_moments", *["fitted"] * examples]
    elif name in _TRANSCRIPTIONS and name not in MECHANISMS.names():
        first = [name]
    else:
        first = ["votes", *["asked"] * examples, name if name in _KNOWN else "other", "answered"]
    return [*first, *extras, "student"] if statement["private"] else first


def _reason(statement: Mapping[str, Any]) -> str:
    """Return why a statement that is NOT PRIVATE is not."""
    if statement["noise"] != "secure":
        return "replay"
    return "method" if statement["partition_disjoint"] else "partition"


def shown(statement: Mapping[str, Any], language: Language, mark: Mark | None, guesses: float | None) -> dict[str, str]:
    """Return the values of all placeholders, as the language writes them; what a statement lacks is empty."""
    mechanism, private = statement["mechanism"], statement["private"]
    added = private and "event_added" in statement

    def epsilon(name: str) -> str:
        value = statement.get(name)
        return language.messages["row_none"] if value is None else language.number(value, 4)

    delta = statement["delta"]
    return {
        "run": statement["run"],
        "reason": language.messages[f"broken_{_reason(statement)}"],
        "mechanism": str(mechanism.get("mechanism")),
        "epsilon": epsilon("epsilon_guaranteed"),
        "used": epsilon("epsilon") if private else language.messages["row_none"],
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
        "guesses_added": language.number(guesses_in_a_hundred(statement, "event_added") or 0, 1) if added else "",
        "examples": Markup("; ").join(language.told(statement, "examples")),
        **{name: language.number(statement[name]) for name in ("teachers", "queries", "asked", "answered")},
        "numbers": language.number(mechanism.get("numbers", 0)),
        "moments": language.number(mechanism.get("moments", {}).get("numbers", 0)),
        "bins": "; ".join(language.exact(edge) for edge in mechanism.get("bins", ())),
        "grades": language.number(mechanism.get("grades", 0)),
        "overlap": language.number(mechanism.get("overlap", 1)),
        "parties": ", ".join(mechanism.get("parties", ())),
        "opened": language.date(datetime.fromisoformat(opened)) if (opened := mechanism.get("opened")) else "",
        "date": "" if mark is None else language.date(mark.when),
        "key": "" if mark is None else mark.key,
    }


def pdf_of(html: str) -> bytes:
    """Return a page as PDF. Raises MissingExtraError without WeasyPrint, TerrineError without the pango it needs."""
    try:
        with from_extra("pdf", "Statements as PDF"), hushed("weasyprint", logging.CRITICAL):
            from weasyprint import HTML
    except OSError as error:
        raise TerrineError(
            f"Statements as PDF need the library pango, which is not installed ({first_line(error)}). Install it (apt "
            "install libpango-1.0-0 libpangoft2-1.0-0, brew install pango); or print the HTML page from a browser."
        ) from error
    target = io.BytesIO()
    with hushed("weasyprint", logging.CRITICAL):  # its remarks are on CSS for screens
        HTML(string=html).write_pdf(target)
    return target.getvalue()
