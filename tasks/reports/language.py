"""Languages of the privacy statement: messages, and how numbers and dates are written.

A language is one YAML file of messages. A test checks that all have the same keys and {placeholders}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from terrine.errors import SettingError, did_you_mean
from terrine.privacy.facts import TABLE, Content, Section, applicable

FOLDER = Path(__file__).with_name("languages")
LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
"""Codes of the languages."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SMALLEST = -7
"""Smallest power of ten that is written with zeros instead of an exponent."""


@dataclass(frozen=True)
class Language:
    """One language of the pages: code and messages."""

    code: str
    messages: Mapping[str, Any]

    @classmethod
    @cache
    def load(cls, code: str) -> Language:
        """Read the messages of a language.

        Raises:
            SettingError: No file exists for this language code.
        """
        if code not in LANGUAGES:
            raise SettingError(
                f"There is no statement in {code!r}.{did_you_mean(code, LANGUAGES)} Languages: {', '.join(LANGUAGES)}."
            )
        messages = yaml.safe_load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"))
        facts = {key: text for _, key, _, text in TABLE} if code == "en" else messages.pop("facts")
        return cls(code, messages | facts)

    def say(self, key: str, values: Mapping[str, Any]) -> Markup:
        """Return a message with its placeholders filled in. Values are escaped, the message's own tags are not."""
        text = Markup(self.messages[key]).format(**values)  # messages are trusted, values are not
        for pair in (" = ", " ?", " :", " ;", " »", "« "):
            text = text.replace(pair, pair.replace(" ", _NO_BREAK))
        return text

    def sentences(self, content: Content, section: Section) -> list[Markup]:
        """Return the sentences that follow from a statement's facts (`terrine.privacy.facts.TABLE`)."""
        return [
            self.say(
                key,
                {
                    name: self.number(value) if value == int(value) else self.exact(value)
                    for name, value in values.items()
                },
            )
            for key, _, values in applicable(content, section)
        ]

    def number(self, value: float | Decimal, digits: int = 0) -> str:
        """Write a number with `digits` decimals."""
        whole, _, rest = f"{value:.{digits}f}".partition(".")
        form = self.messages["format"]
        if len(whole) >= form["grouped_from"]:
            whole = f"{int(whole):,}".replace(",", form["thousands"])
        return whole + (form["decimal"] + rest if rest else "")

    def exact(self, value: float) -> str:
        """Return a number with all its digits, such as 0.00001; very small numbers are written with a power of ten."""
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
        """Return a date in the language's notation."""
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
