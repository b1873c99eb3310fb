"""Facts about the records behind a release, and the sentences that follow from them.

Stages record facts; `TABLE` (sentences.toml) derives sentences from them. No sentence is derived from the name of a
mechanism or of a dataset, so none can state what did not happen. privacy.json, its pages, the model card and exports
share the table. Translations of the sentences are in `tasks/reports/languages`.

    >>> sentences(statement, "unprotected")
    ['The operator declared 303 rows of this table public. ...']
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from terrine.errors import SettingError
from terrine.settings import Settings

Record = Literal["image", "dicom", "volume", "row"]
"""Record type: an image file, the DICOM files of one row of labels, a volume, or a row of a table."""

Origin = Literal["programs", "drawn rows", "own rows", "own images", "public dataset", "provided"]
"""Origin of public examples: image programs; rows drawn from declared columns; rows or images of the operator's own
data that were declared public; a public dataset; or examples that a caller passes as public."""

Reason = Literal["own rows", "own images", "public dataset", "published earlier"]
"""Reason why records are not protected: declared public, part of a public dataset, or published by an earlier run of
the account."""


@dataclass(frozen=True)
class Examples:
    """Number of public examples from one origin."""

    origin: Origin
    count: int


@dataclass(frozen=True)
class Unprotected:
    """Number of records that ε does not protect.

    The number is published, so it must follow from public records only.
    """

    why: Reason
    count: int


class About(Settings):
    """The operator's statement about the data. It is published in the privacy statement; Terrine cannot check it."""

    description: str | None = None
    """Description of the data."""
    purpose: str | None = None
    """Purpose of the processing."""
    controller: str | None = None
    """Institution that is responsible for the data."""
    contact: str | None = None
    """Contact for questions, for example an e-mail address."""
    collected: str | None = None
    """Period in which the data were collected."""
    one_per_person: bool | None = None
    """True if each person has only one protected unit (record or group); null: not stated."""


@dataclass(frozen=True)
class Facts:
    """Facts about records that a privacy statement contains.

    Attributes:
        record: Record type.
        examples: Public examples used for the release.
        unprotected: Records of the data that are not protected.
        held_out: Whether records were set aside for testing.
        accuracy_epsilon: Separate ε for releasing an accuracy on held-out records; None if none is released.
        declared_units: Approximate number of units that the operator declared, if any.
        about: The operator's statement about the data; None for public benchmarks and outside a project.
    """

    record: Record
    examples: tuple[Examples, ...] = ()
    unprotected: tuple[Unprotected, ...] = ()
    held_out: bool = False
    accuracy_epsilon: float | None = None
    declared_units: int | None = None
    about: About | None = None

    def __post_init__(self) -> None:
        for value, allowed in (
            (self.record, get_args(Record)),
            *((item.origin, get_args(Origin)) for item in self.examples),
            *((item.why, get_args(Reason)) for item in self.unprotected),
        ):
            _require(value in allowed, f"{value!r} is not one of {', '.join(allowed)}")
        counts = [item.count for item in self.examples] + [item.count for item in self.unprotected]
        _require(all(type(count) is int and count > 0 for count in counts), f"counts must be positive, got {counts}")
        for own in ("own rows", "own images", "public dataset"):
            used = sum(item.count for item in self.examples if item.origin == own)
            known = sum(item.count for item in self.unprotected if item.why == own)
            _require(used <= known, f"{used} examples are {own}, and only {known} are listed as not protected")
        _require(self.accuracy_epsilon is None or self.held_out, "an accuracy needs records that were set aside")

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        items = {name: [asdict(item) for item in getattr(self, name)] for name in ("examples", "unprotected")}
        return asdict(self) | items | {"about": self.about and self.about.model_dump()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        """Return the facts that `to_json` wrote.

        Raises:
            SettingError: Two recorded facts contradict each other.
            TypeError: The JSON values do not describe facts.
            ValueError: The operator's statement is not valid.
        """
        examples = tuple(Examples(**item) for item in values["examples"])
        unprotected = tuple(Unprotected(**item) for item in values["unprotected"])
        about = None if values["about"] is None else About(**values["about"])
        return cls(**{**values, "examples": examples, "unprotected": unprotected, "about": about})


Section = Literal["examples", "unprotected", "unobserved", "files", "who", "outside", "person", "limits"]
Content = Mapping[str, Any]
"""The content of privacy.json."""
Values = Mapping[str, float]

_SENTENCES = tomllib.loads((Path(__file__).parent / "sentences.toml").read_text(encoding="utf-8"))
TABLE: tuple[tuple[Section, str, Mapping[str, Any], str], ...] = tuple(
    (cast(Section, section), key, entry, entry["text"])
    for section, entries in _SENTENCES.items()
    for key, entry in entries.items()
)
"""Sentences of a statement: section, key, condition, and English text."""

_PROPERTIES: dict[str, Callable[[Content], object]] = {
    "unit": lambda content: content["unit"],
    "record": lambda content: content["facts"]["record"],
    "one_per_person": lambda content: _or_not_stated((content["facts"]["about"] or {}).get("one_per_person")),
    "held_out": lambda content: content["facts"]["held_out"],
    "accuracy_released": lambda content: content["facts"]["accuracy_epsilon"] is not None,
    "columns_declared": lambda content: any(item["origin"] == "drawn rows" for item in content["facts"]["examples"]),
    "imported": lambda content: "phases" in content["mechanism"],  # trained by another library (`privacy.training`)
    "voted": lambda content: not {"phases", "numbers"} & {*content["mechanism"]},
    "classes_found": lambda content: bool(content["task"]) and content["task"]["found"],
    "searched": lambda content: content["epsilon_tuning"] is not None,
}
"""Properties of a statement on which sentences depend."""


def _or_not_stated(value: bool | None) -> bool | str:
    return "not stated" if value is None else value


def _values(section: Section, entry: Mapping[str, Any], content: Content) -> list[Values]:
    """Return the placeholder values of each sentence of an entry; an empty list if the entry does not apply."""
    if (kind := entry.get("each")) is not None:
        return [{"count": item["count"]} for item in content["facts"][section] if kind in item.values()]
    if (name := entry.get("number")) is not None:
        return [{"count": value}] if (value := content["facts"][name]) else []
    return [{}] if all(_PROPERTIES[name](content) in allowed for name, allowed in entry.get("when", {}).items()) else []


def applicable(content: Content, section: Section) -> Iterator[tuple[str, str, Values]]:
    """Yield key, English text and values of each sentence of a section that applies, in order.

    Args:
        content: The content of privacy.json; its `facts`, `unit`, `mechanism`, `task` and `epsilon_tuning` suffice.
        section: The section.
    """
    for own, key, entry, text in TABLE:
        if own == section:
            yield from ((key, text, values) for values in _values(section, entry, content))


def sentences(content: Content, section: Section) -> list[str]:
    """Return the sentences of a section in English; see `applicable`."""
    return [
        text.format(**{name: f"{value:,}" for name, value in values.items()})
        for _, text, values in applicable(content, section)
    ]


def origin_of(examples: tuple[Examples, ...]) -> str:
    """Return the origin of public examples in English."""
    return "; ".join(sentences({"facts": {"examples": [asdict(item) for item in examples]}}, "examples"))


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise SettingError(f"Facts of a privacy statement contradict each other: {fault}.")
