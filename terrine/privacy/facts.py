"""Facts about the records behind a release, and the sentences that follow from them.

Stages record facts; `TABLE` derives sentences from them. No sentence is derived from the name of a mechanism or of a
dataset, so none can state what did not happen. privacy.json, its pages, the model card and exports share the table.
Translations of the sentences are in `tasks/reports/languages`.

    >>> sentences(statement, "unprotected")
    ['The operator declared 303 rows of this table public. ...']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

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
Condition = Callable[[Content], list[Values]]
"""Returns the values of the placeholders of each sentence; an empty list if the sentence does not apply."""


def _count(of: str, key: str, value: str) -> Condition:
    """Return the condition that yields {count}: the number of examples or unprotected records of one kind."""
    return lambda content: [{"count": item["count"]} for item in content["facts"][of] if item[key] == value]


def _if(holds: Callable[[Content], object]) -> Condition:
    return lambda content: [{}] if holds(content) else []


def _number(name: str) -> Condition:
    """Return the condition that yields {count} if the fact of this name is a nonzero number."""
    return lambda content: [{"count": content["facts"][name]}] if content["facts"][name] else []


def _declared_columns(content: Content) -> bool:
    return any(item["origin"] == "drawn rows" for item in content["facts"]["examples"])


def _imported(content: Content) -> bool:
    """Return whether another library trained the model (`terrine.privacy.training`)."""
    return "phases" in content["mechanism"]


def _who(unit: str, *records: Record) -> Condition:
    return _if(lambda content: content["unit"] == unit and content["facts"]["record"] in records)


def _person(unit: str, *declared: bool | None) -> Condition:
    """Return the condition that `one_per_person` in the operator's statement has one of the `declared` values."""
    return _if(
        lambda content: (
            content["unit"] == unit
            and content["facts"]["about"] is not None
            and content["facts"]["about"]["one_per_person"] in declared
        )
    )


def _several(unit: str) -> Condition:
    """Return the condition that one person may have several units."""
    return _if(lambda content: content["unit"] == unit and not (content["facts"]["about"] or {}).get("one_per_person"))


_ALWAYS = _if(lambda content: True)
_IMAGES: tuple[Record, ...] = ("image", "dicom", "volume")

TABLE: tuple[tuple[Section, str, Condition, str], ...] = (
    (
        "examples",
        "from_programs",
        _count("examples", "origin", "programs"),
        "{count} images that computer programs drew without using the private data",
    ),
    (
        "examples",
        "from_columns",
        _count("examples", "origin", "drawn rows"),
        "{count} artificial rows drawn from the values that the operator declared for each column",
    ),
    (
        "examples",
        "from_rows",
        _count("examples", "origin", "own rows"),
        "{count} rows that the operator declared public",
    ),
    (
        "examples",
        "from_images",
        _count("examples", "origin", "own images"),
        "{count} real images that the operator declared public",
    ),
    ("examples", "from_dataset", _count("examples", "origin", "public dataset"), "{count} images of a public dataset"),
    (
        "examples",
        "from_provided",
        _count("examples", "origin", "provided"),
        "{count} examples that the operator provided as public",
    ),
    (
        "unprotected",
        "unprotected_rows",
        _count("unprotected", "why", "own rows"),
        "The operator declared {count} rows of this table public. Their exact content may become known, and the people "
        "they describe are not protected.",
    ),
    (
        "unprotected",
        "unprotected_images",
        _count("unprotected", "why", "own images"),
        "The operator declared {count} images from these data public. The images themselves may become known, and the "
        "people they show are not protected.",
    ),
    (
        "unprotected",
        "unprotected_dataset",
        _count("unprotected", "why", "public dataset"),
        "{count} images of the public dataset served as public examples. They are not protected.",
    ),
    (
        "unprotected",
        "unprotected_earlier",
        _count("unprotected", "why", "published earlier"),
        "{count} records were published by an earlier run of the same account. They are not protected.",
    ),
    (
        "unobserved",
        "not_observed",
        _if(_imported),
        "The training was not observed by Terrine. ε follows from what the operator states about it: limited "
        "contributions, Gaussian noise, the sampling of batches and the number of steps.",
    ),
    (
        "files",
        "files_images",
        _if(lambda content: content["facts"]["record"] in _IMAGES and not _imported(content)),
        "The model’s files contain no real image. The sample images stored with it were drawn by computer programs.",
    ),
    (
        "files",
        "files_rows",
        _if(
            lambda content: (
                content["facts"]["record"] == "row" and not _declared_columns(content) and not _imported(content)
            )
        ),
        "The model’s files contain no row of the table. They contain values from the public rows: up to eight values "
        "of each numeric column, every distinct word of the other columns and, depending on the kind of model, single "
        "values as thresholds.",
    ),
    (
        "files",
        "files_columns",
        _if(lambda content: content["facts"]["record"] == "row" and _declared_columns(content)),
        "The model’s files contain no row of the table. They contain the values of each column that the operator "
        "declared.",
    ),
    ("who", "who_image", _who("record", "image"), "Each private image with its class (one “record”)."),
    (
        "who",
        "who_dicom",
        _who("record", "dicom"),
        "Each private record with its class. A record is what one row of the label list describes: an image with all "
        "its frames, a series or a study.",
    ),
    ("who", "who_volume", _who("record", "volume"), "Each private scan with its class (one “record”)."),
    ("who", "who_row", _who("record", "row"), "Each private row of the table, with everything in it (one “record”)."),
    (
        "who",
        "who_images_of_one",
        _who("group", *_IMAGES),
        "Each private group as a whole. A group is all images that belong together, for example all images of one "
        "patient.",
    ),
    (
        "who",
        "who_rows_of_one",
        _who("group", "row"),
        "Each private group as a whole. A group is all rows that belong together, for example all rows about one "
        "patient.",
    ),
    (
        "who",
        "who_label",
        _who("label", *_IMAGES, "row"),
        "The class of each private record, for example the diagnosis. The records themselves are not protected.",
    ),
    (
        "outside",
        "outside_record",
        _several("record"),
        "If one person has several records, each is protected on its own. All of them together may reveal more than ε "
        "says.",
    ),
    (
        "outside",
        "outside_group",
        _several("group"),
        "If records of one person are in several groups, each group is protected on its own only.",
    ),
    (
        "outside",
        "outside_label",
        _if(lambda content: content["unit"] == "label"),
        "The images may become known. Only their classes are protected.",
    ),
    (
        "outside",
        "outside_held_out",
        _if(lambda content: content["facts"]["held_out"]),
        "Records that were set aside for testing are not covered by ε. No model was trained on them.",
    ),
    (
        "outside",
        "outside_accuracy",
        _number("accuracy_epsilon"),
        "An accuracy measured on them is published with noise. It costs a separate ε of {count}, which is not included "
        "in the figures here. Other figures measured on private records are not covered.",
    ),
    (
        "outside",
        "outside_evaluation",
        _if(lambda content: content["facts"]["accuracy_epsilon"] is None),
        "Figures measured on private records, such as the model’s accuracy, are not covered by this ε.",
    ),
    (
        "outside",
        "outside_units",
        _number("declared_units"),
        "The operator stated that there are about {count} protected records or groups. If this number was taken from "
        "the data, ε does not cover it.",
    ),
    (
        "outside",
        "outside_tuning",
        _if(lambda content: content["epsilon_tuning"] is None),
        "Settings that someone chose by looking at private results are not covered.",
    ),
    (
        "outside",
        "outside_elsewhere",
        _ALWAYS,
        "Publications about the same people elsewhere, which this site’s ledger does not contain, add to what can be "
        "learned.",
    ),
    (
        "person",
        "person_one_record",
        _person("record", True),
        "No person has more than one record, so ε holds for each person.",
    ),
    (
        "person",
        "person_one_group",
        _person("group", True),
        "All records of a person are in one group, so ε holds for each person.",
    ),
    (
        "person",
        "person_one_label",
        _person("label", True),
        "No person has more than one record, so ε holds for the class of each person.",
    ),
    (
        "person",
        "person_several_records",
        _person("record", False),
        "A person can have several records. ε holds for each record, not for all records of a person together.",
    ),
    (
        "person",
        "person_several_groups",
        _person("group", False),
        "A person can be in several groups. ε holds for each group, not for all groups of a person together.",
    ),
    (
        "person",
        "person_several_labels",
        _person("label", False),
        "A person can have several records. ε holds for the class of each record, not for all of a person together.",
    ),
    (
        "limits",
        "limit_general",
        _ALWAYS,
        "The model learns general patterns. They can also be true of people whose data were not used; that does not "
        "breach the guarantee.",
    ),
    (
        "limits",
        "limit_public_teachers",
        _if(lambda content: "numbers" not in content["mechanism"] and not _imported(content)),
        "The names of the classes, the number of teachers and the settings are public.",
    ),
    (
        "limits",
        "limit_public",
        _if(lambda content: "numbers" in content["mechanism"] or _imported(content)),
        "The names of the classes and the settings are public.",
    ),
    (
        "limits",
        "limit_operator",
        _ALWAYS,
        "The guarantee does not hold if the operator does not do what is described here, or if someone gains access to "
        "the private folder.",
    ),
    (
        "limits",
        "limit_law",
        _ALWAYS,
        "This statement does not decide whether the data may be used at all, or whether people consented.",
    ),
)
"""Sentences of a statement: section, key, condition (which returns placeholder values), and English text."""


def applicable(content: Content, section: Section) -> Iterator[tuple[str, str, Values]]:
    """Yield key, English text and values of each sentence of a section that applies, in order.

    Args:
        content: The content of privacy.json; its `facts`, `unit`, `mechanism` and `epsilon_tuning` suffice.
        section: The section.
    """
    for own, key, values, text in TABLE:
        if own == section:
            yield from ((key, text, each) for each in values(content))


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
