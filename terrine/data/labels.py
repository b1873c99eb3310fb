"""Encode labels, groups and IDs from user data: labels become 0..K-1, groups and IDs become name codes."""

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from terrine.data.units import name_codes
from terrine.errors import InputError

MISSING = ("", "?", "NA", "NaN", "nan")
"""Texts that mean a missing value."""

USE_BINS = "If it is a quantity, define bins: data.bins=[0, 10, 20, 40]."

_EXAMPLES = {"a group": "a patient ID", "a party": "the name of a hospital", "an ID": "an image number"}

Place = Callable[[int], str]
"""Location of a record, given its number, for error messages."""


class UnknownLabelError(InputError):
    """Error about a label that is not one of the declared classes.

    Attributes:
        place: The label and its location.
    """

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}, {why}")
        self.place = place


def class_codes(labels: Sequence[str], names: Sequence[str], place: Place, setting: str = "data.classes") -> np.ndarray:
    """Return the number of each label's class, int64 [N].

    A label that is not a class name counts as the class that it equals apart from case, spaces and final punctuation.

    Args:
        labels: N labels.
        names: Class names.
        place: Location of a label for errors.
        setting: Setting that declares the classes, for errors.

    Raises:
        UnknownLabelError: a label matches no class.
    """
    alike = {normalised(name): number for number, name in enumerate(names)}
    exact = {name: number for number, name in enumerate(names)}
    known = {label: exact.get(label, alike.get(normalised(label), -1)) for label in {*labels}}
    codes = np.array([known[label] for label in labels], np.int64)
    if len(unknown := np.flatnonzero(codes < 0)):
        where = f"{place(int(unknown[0]))}: the label is '{labels[unknown[0]]}'"
        raise UnknownLabelError(where, f"not one of {setting}=[{', '.join(names)}]. Correct it, or add it there.")
    return codes


def encode_labels(
    labels: Mapping[str, np.ndarray], class_names: Sequence[str] | None, where: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of each array as int64 [N] in 0..K-1, and the K class names.

    Args:
        labels: Arrays of integers 0..K-1 or of texts, [N] or [N, 1], by name.
        class_names: Names in the order of the classes; None: the sorted texts, or the integers themselves, which must
            then occur without gaps.
        where: File name for errors.

    Raises:
        InputError: The array has another type, or a label has no class.
    """
    columns = {name: _column(name, values, where) for name, values in labels.items()}
    kinds = {values.dtype.kind for values in columns.values()}
    if kinds == {"U"}:
        names = tuple(np.unique(np.concatenate([*columns.values()])).tolist() if class_names is None else class_names)
        return {
            name: class_codes(values.tolist(), names, lambda row, name=name: f"{where}: {name}[{row}]")  # type: ignore[misc]
            for name, values in columns.items()
        }, names
    if not kinds <= {"i", "u", "b"}:
        types = ", ".join(f"{name} {values.dtype}" for name, values in columns.items())
        raise InputError(f"{where}: labels must be integers 0..K-1 or texts in all splits, but are {types}. {USE_BINS}")
    integers = {name: values.astype(np.int64) for name, values in columns.items()}
    count = len(np.unique(np.concatenate([*integers.values()]))) if class_names is None else len(class_names)
    for name, values in integers.items():
        outside = np.flatnonzero((values < 0) | (values >= count))
        if len(outside):
            raise UnknownLabelError(
                f"{where}: {name}[{outside[0]}] is {values[outside[0]]}",
                f"but the {count} classes are numbered 0..{count - 1} without gaps. Correct the label, or name all "
                f"classes in class_names. {USE_BINS}",
            )
    return integers, tuple(map(str, range(count)) if class_names is None else class_names)


def group_codes(groups: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Return the name code of each record's group, int64 [N] for each array; an integer is named by its digits.

    Raises:
        InputError: A value is not an integer or text, or is an empty text.
    """
    return {
        name: name_codes(map(str, values.tolist())) for name, values in check_texts(groups, where, "a group").items()
    }


def normalised(label: str) -> str:
    """Return a label without case, spaces and final punctuation; numbers in one notation."""
    core = "".join(unicodedata.normalize("NFKC", label).casefold().split()).strip(".,;:'\"")
    try:
        return repr(float(core))
    except ValueError:
        return core or label


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def similar_classes(class_names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of class names that differ only in case, spaces, punctuation or number format."""
    first: dict[str, str] = {}
    return [(other, name) for name in class_names if (other := first.setdefault(normalised(name), name)) != name]


def class_name_warnings(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return warnings for the data owner about near-duplicate class names and labels that look missing."""
    warnings = [
        f"The classes '{one}' and '{other}' look like two spellings of one class. If so, use one spelling."
        for one, other in similar_classes(class_names)[:3]
    ]
    return *warnings, *(f"The class '{name}' looks like a missing label." for name in class_names if name in MISSING)


def similar_groups_warning(groups: Collection[str]) -> tuple[str, ...]:
    """Return a warning about near-duplicate group names. The message contains only the number of groups."""
    count = len(similar_classes(distinct := sorted(set(groups))))
    if not count:
        return ()
    return (
        f"{count:,} of {len(distinct):,} group names look like another spelling of a group, as 0007 and 7: each is "
        "protected as a separate group. If they are the same people, use one spelling.",
    )


def unread_warning(where: str, what: str, names: Sequence[str], expected: str) -> tuple[str, ...]:
    """Return a warning about columns or arrays (`what`) of a file that are ignored but may identify people.

    Args:
        where: The file.
        what: "columns" or "arrays".
        names: Names of the ignored columns or arrays.
        expected: Name that a column or array of groups must have.
    """
    if not names:
        return ()
    return (
        f"{where} has {what} that are not read: {', '.join(names)}. If one of them identifies people, name it "
        f"'{expected}' and set privacy.unit=group: ε then protects people, and each is only in training or test.",
    )


def id_codes(ids: Mapping[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the name codes of the concatenated arrays of IDs, int64 [N], and the indices that sort the IDs by text.

    Raises:
        InputError: A value is not an integer or text, a text is empty, or an ID occurs twice.
    """
    columns = check_texts(ids, where, "an ID")
    texts = np.concatenate([values.astype(str) for values in columns.values()])
    order = np.argsort(texts, kind="stable")
    same = np.flatnonzero(texts[order][1:] == texts[order][:-1])
    if len(same):
        places = [(name, index) for name, values in columns.items() for index in range(len(values))]
        (one, first), (other, second) = (places[order[same[0] + side]] for side in (0, 1))
        raise InputError(
            f"{where}: {one}[{first}] and {other}[{second}] are both '{texts[order[same[0]]]}'. IDs must be unique; "
            "groups identify people."
        )
    return name_codes(texts.tolist()), order


def check_texts(columns: Mapping[str, np.ndarray], where: str, what: str) -> dict[str, np.ndarray]:
    """Return arrays of non-empty texts or of integers as [N].

    Args:
        columns: Arrays [N] or [N, 1] by name.
        where: File name for errors.
        what: Meaning of a value for errors: "a group", "a party" or "an ID".

    Raises:
        InputError: The array has another type or shape.
    """
    checked = {name: _column(name, values, where) for name, values in columns.items()}
    for name, values in checked.items():
        if values.dtype.kind not in "iuU":
            raise InputError(
                f"{where}: {name} is {values.dtype}. {what.capitalize()} is an integer or a text, such as "
                f"{_EXAMPLES[what]}."
            )
        if values.dtype.kind == "U" and (values == "").any():
            raise InputError(f"{where}: {name}[{int((values == '').argmax())}] is empty. Give every record {what}.")
    return checked


def _column(name: str, values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim == 1 or values.shape[1:] == (1,):
        return values.reshape(-1)
    hint = " If each column is a finding, name them in data.findings." if values.ndim == 2 else ""
    raise InputError(f"{where}: {name} has shape {list(values.shape)}, but needs one value per image.{hint}")


def class_places(names: Sequence[str], agreed: Sequence[str]) -> np.ndarray:
    """Return the position of each class in the agreed list, int64 [K].

    Raises:
        InputError: a name is not in the agreed list.
    """
    faults = [f"'{name}'" for name in names if name not in agreed]
    if faults:
        raise InputError(
            f"The agreed classes are {', '.join(map(repr, agreed))}, but these data contain {', '.join(faults)}. "
            "Rename the class folders or class_names (names are case-sensitive)."
        )
    return np.array([list(agreed).index(name) for name in names], dtype=np.int64)
