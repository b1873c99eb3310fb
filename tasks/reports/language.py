"""A language that statements are told in: one file of messages beside this one, and how it writes numbers and dates.

Sentences about recorded facts are those of `terrine.privacy.sentences`. Every language has the same keys with the same
{placeholders}; a test holds them to it.
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
from terrine.privacy.facts import Said, Section, keys
from terrine.privacy.sentences import SENTENCES

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
        """Read a language. Raises SettingError for one that there is none of."""
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
        """Write a number with so many decimals."""
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
