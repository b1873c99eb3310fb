"""Facts about the records behind a release, and the sentences that state them, in every language.

Stages record facts; `TABLE` says which sentences follow from them. No sentence follows from the name of a mechanism or
of a dataset, so none can state what did not happen. privacy.json, its pages, the model card and exports share the
table.

    >>> told(facts, "unprotected", "en")
    ['The operator declared 303 rows of this table public. ...']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from terrine.errors import SettingError
from terrine.privacy.sentences import SENTENCES

Record = Literal["image", "dicom", "volume", "row"]
"""Kind of a record: an image file, the DICOM files that one row of labels describes, a volume, or a row of a table."""

Origin = Literal["programs", "own rows", "own images", "public dataset", "provided"]
"""Origin of public examples: image programs; rows or images of the operator's own data that were declared public;
a public dataset; or examples that a caller passes as public."""

Reason = Literal["own rows", "own images", "public dataset", "published earlier"]
"""Why records of the data are not protected: declared public, part of a public dataset, or published by an earlier run
of the account."""


@dataclass(frozen=True)
class Examples:
    """A number of public examples of one origin."""

    origin: Origin
    count: int


@dataclass(frozen=True)
class Unprotected:
    """A number of records of the data that ε does not protect.

    The number is published, so it must follow from public records only.
    """

    why: Reason
    count: int


@dataclass(frozen=True)
class Facts:
    """Facts about records that a privacy statement states.

    Attributes:
        record: What one record is.
        examples: Public examples that the release was made with.
        unprotected: Records of the data that are not protected.
        held_out: Whether records were set aside for testing.
        accuracy_epsilon: Separate ε under which an accuracy on them is released; None if none is.
        by_party: Whether a record's teacher follows from the party that holds it.
        declared_units: Approximate number of units that the operator declared, if any.
    """

    record: Record
    examples: tuple[Examples, ...] = ()
    unprotected: tuple[Unprotected, ...] = ()
    held_out: bool = False
    accuracy_epsilon: float | None = None
    declared_units: int | None = None
    by_party: bool = False

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
        return asdict(self) | items

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        """Return the facts that `to_json` wrote. Raises SettingError or TypeError for anything else."""
        examples = tuple(Examples(**item) for item in values["examples"])
        unprotected = tuple(Unprotected(**item) for item in values["unprotected"])
        return cls(**{**values, "examples": examples, "unprotected": unprotected})


Section = Literal["examples", "unprotected", "files", "who", "outside", "limits"]
Said = Mapping[str, Any]
"""A privacy statement as privacy.json has it."""
Values = Mapping[str, float]


def _examples(origin: Origin) -> Callable[[Said], list[Values]]:
    return lambda said: [{"count": item["count"]} for item in said["facts"]["examples"] if item["origin"] == origin]


def _unprotected(why: Reason) -> Callable[[Said], list[Values]]:
    return lambda said: [{"count": item["count"]} for item in said["facts"]["unprotected"] if item["why"] == why]


def _when(condition: Callable[[Said], bool]) -> Callable[[Said], list[Values]]:
    return lambda said: [{}] if condition(said) else []


def _number(name: str) -> Callable[[Said], list[Values]]:
    """Return what gives {count} if the fact of this name is a number other than zero."""
    return lambda said: [{"count": said["facts"][name]}] if said["facts"][name] else []


def _who(unit: str, *records: Record) -> Callable[[Said], list[Values]]:
    return _when(lambda said: said["unit"] == unit and said["facts"]["record"] in records)


def _voted(said: Said) -> bool:
    return "numbers" not in said["mechanism"]


_IMAGES: tuple[Record, ...] = ("image", "dicom", "volume")

TABLE: tuple[tuple[Section, str, Callable[[Said], list[Values]]], ...] = (
    ("examples", "from_programs", _examples("programs")),
    ("examples", "from_rows", _examples("own rows")),
    ("examples", "from_images", _examples("own images")),
    ("examples", "from_dataset", _examples("public dataset")),
    ("examples", "from_provided", _examples("provided")),
    ("unprotected", "unprotected_rows", _unprotected("own rows")),
    ("unprotected", "unprotected_images", _unprotected("own images")),
    ("unprotected", "unprotected_dataset", _unprotected("public dataset")),
    ("unprotected", "unprotected_earlier", _unprotected("published earlier")),
    ("files", "files_images", _when(lambda said: said["facts"]["record"] in _IMAGES)),
    ("files", "files_rows", _when(lambda said: said["facts"]["record"] == "row")),
    ("who", "who_image", _who("record", "image")),
    ("who", "who_dicom", _who("record", "dicom")),
    ("who", "who_volume", _who("record", "volume")),
    ("who", "who_row", _who("record", "row")),
    ("who", "who_images_of_one", _who("group", *_IMAGES)),
    ("who", "who_rows_of_one", _who("group", "row")),
    ("who", "who_label", _who("label", *_IMAGES, "row")),
    ("outside", "outside_record", _when(lambda said: said["unit"] == "record")),
    ("outside", "outside_group", _when(lambda said: said["unit"] == "group")),
    ("outside", "outside_label", _when(lambda said: said["unit"] == "label")),
    ("outside", "outside_elsewhere", _when(lambda said: True)),
    ("outside", "outside_held_out", _when(lambda said: said["facts"]["held_out"])),
    ("outside", "outside_accuracy", _number("accuracy_epsilon")),
    ("outside", "outside_evaluation", _when(lambda said: said["facts"]["accuracy_epsilon"] is None)),
    ("outside", "outside_units", _number("declared_units")),
    ("outside", "outside_tuning", _when(lambda said: said["epsilon_tuning"] is None)),
    ("limits", "outside_general", _when(lambda said: True)),
    ("limits", "outside_public_teachers", _when(_voted)),
    ("limits", "outside_public", _when(lambda said: not _voted(said))),
    ("limits", "outside_operator", _when(lambda said: True)),
    ("limits", "outside_law", _when(lambda said: True)),
)
"""The sentences of a statement: section, key in `terrine.privacy.sentences`, and the values of each sentence."""


def keys(said: Said, section: Section) -> Iterator[tuple[str, Values]]:
    """Yield the key and the values of each sentence of a section, in order."""
    for own, key, values in TABLE:
        if own == section:
            yield from ((key, each) for each in values(said))


def told(said: Said, section: Section, code: str = "en") -> list[str]:
    """Return the sentences of a section; numbers are written as in English (pages of other languages write their own).

    said: a privacy statement as privacy.json has it; its facts, unit, mechanism and `epsilon_tuning` suffice.
    """
    return [
        SENTENCES[code][key].format(**{name: f"{value:,}" for name, value in values.items()})
        for key, values in keys(said, section)
    ]


def origin_of(examples: tuple[Examples, ...]) -> str:
    """Return the origin of public examples in English."""
    said = {"facts": {"examples": [asdict(item) for item in examples]}}
    return "; ".join(told(said, "examples"))


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise SettingError(f"Facts of a privacy statement contradict one another: {fault}.")
