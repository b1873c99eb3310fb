"""Labels, groups and names as users write them, turned into integers: labels 0..K-1, and codes of groups and names."""

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from terrine.data.units import name_codes
from terrine.errors import InputError

MISSING = ("", "?", "NA", "NaN", "nan")
"""Texts that stand for no value."""

OF_A_QUANTITY = "If it is a quantity, say where its bins end: data.bins=[0, 10, 20, 40]."
"""What is said where numbers were taken for classes."""

_EXAMPLES = {"a group": "a patient id", "a party": "the name of a hospital", "an id": "the number of an image"}


class UnknownLabelError(InputError):
    """A label that is none of the declared classes.

    Attributes:
        place: Where the label is, with the label.
        label: The label.
    """

    def __init__(self, place: str, label: str, why: str) -> None:
        super().__init__(f"{place}, {why}")
        self.place, self.label = place, label


def declared_names(labels: Iterable[str], declared: Sequence[str]) -> dict[str, str]:
    """Return the declared class of each label, "" for none: the class itself, or the one that it is written like."""
    like = {plain(name): name for name in declared}
    return {label: label if label in declared else like.get(plain(label), "") for label in labels}


def encode_labels(
    labels: Mapping[str, np.ndarray], class_names: Sequence[str] | None, where: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of each split as int64 [N] in 0..K-1, and the K class names.

    `labels` maps the name of an array to its values: integers 0..K-1 or text, [N] or [N, 1]. Text is numbered in
    alphabetical order, or in the order of `class_names`. Without `class_names` integers name themselves and every
    number 0..K-1 must occur. Raises InputError, naming `where` and the array, for anything else.
    """
    columns = {name: _column(name, values, where) for name, values in labels.items()}
    kinds = {values.dtype.kind for values in columns.values()}
    if kinds == {"U"}:
        names = tuple(np.unique(np.concatenate([*columns.values()])).tolist() if class_names is None else class_names)
        number = {text: index for index, text in enumerate(names)}
        for name, values in columns.items():
            unknown = next((index for index, text in enumerate(values) if text not in number), None)
            if unknown is not None:
                label = str(values[unknown])
                why = f"which is none of the classes {list(names)}. Correct it, or declare all classes: data.classes."
                raise UnknownLabelError(f"{where}: {name}[{unknown}] is '{label}'", label, why)
        return {name: np.array([number[text] for text in own], np.int64) for name, own in columns.items()}, names
    if kinds <= {"i", "u", "b"}:
        integers = {name: values.astype(np.int64) for name, values in columns.items()}
        if class_names is not None:
            names = tuple(class_names)
            for name, values in integers.items():
                _refuse_outside(name, values, names, where)
            return integers, names
        return integers, _names_of_integers(integers, where)
    types = ", ".join(f"{name} {values.dtype}" for name, values in columns.items())
    raise InputError(
        f"{where}: labels must be integers 0..K-1 or text, the same in every split, but are {types}. {OF_A_QUANTITY}"
    )


def encode_groups(groups: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Return the groups of each split as int64 [N]: the code of each group's text (`terrine.data.units`).

    Equal texts get equal codes, in every split and every dataset, whichever other groups there are; an integer is its
    digits. Raises InputError for values that are no integers or texts, one per record, and for an empty text.
    """
    encoded = {}
    for name, values in check_texts(groups, where, "a group").items():
        distinct, number = np.unique(values, return_inverse=True)
        encoded[name] = name_codes(str(value) for value in distinct)[number]
    return encoded


def plain(label: str) -> str:
    """Return what is left of a label without what people vary by mistake: case, spaces and a full stop at the end."""
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


def on_alike(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return what their keeper is told of classes that look like one written in two ways, or like a missing label."""
    first: dict[str, str] = {}
    pairs = [(other, name) for name in class_names if (other := first.setdefault(plain(name), name)) != name]
    said = [
        f"The classes '{one}' and '{other}' look like one that is written in two ways. If so, write it in one."
        for one, other in pairs[:3]
    ]
    said += [f"The class '{name}' looks like a missing label." for name in class_names if name in MISSING]
    return tuple(said)


def on_alike_groups(groups: Collection[str]) -> tuple[str, ...]:
    """Return what their keeper is told of names of groups that look like one written in two ways; which, stays in."""
    distinct = set(groups)
    count = len(distinct) - len({plain(name) for name in distinct})
    if not count:
        return ()
    return (
        f"{count:,} of {len(distinct):,} names of groups look like another that is written otherwise, as 0007 and 7: "
        "each is protected as a group of its own. If they are the same people, write them alike.",
    )


def on_unread(where: str, what: str, names: Sequence[str], called: str) -> tuple[str, ...]:
    """Return what the keeper of a file is told of columns or arrays (`what`) that are not read: one may say who is who.

    called: what it would have to be called.
    """
    if not names:
        return ()
    return (
        f"{where} has {what} that are not read: {', '.join(names)}. If one says whose images they are, call it "
        f"'{called}', and set privacy.unit=group: ε then protects people, and nobody is both taught and tested.",
    )


def encode_names(ids: Mapping[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the names of all splits in `ids`, one after the other, int64 [N], and their order by text.

    `ids` maps the name of an array to its values, integers or text, [N] or [N, 1]. Raises InputError, naming `where`
    and the array, for anything else, an empty text, and two records of one name.
    """
    columns = check_texts(ids, where, "an id")
    texts = np.concatenate([values.astype(str) for values in columns.values()])
    order = np.argsort(texts, kind="stable")
    same = np.flatnonzero(texts[order][1:] == texts[order][:-1])
    if len(same):
        places = [(name, index) for name, values in columns.items() for index in range(len(values))]
        (one, first), (other, second) = (places[order[same[0] + side]] for side in (0, 1))
        raise InputError(
            f"{where}: {one}[{first}] and {other}[{second}] are both '{texts[order[same[0]]]}'. An id names one "
            "record: give each its own. Whom records belong to is said by groups."
        )
    return name_codes(texts.tolist()), order


def check_texts(columns: Mapping[str, np.ndarray], where: str, what: str) -> dict[str, np.ndarray]:
    """Return the values of each array, [N]: integers or texts, none empty. Raise InputError, calling one `what`."""
    checked = {name: _column(name, values, where) for name, values in columns.items()}
    for name, values in checked.items():
        if values.dtype.kind not in "iuU":
            raise InputError(
                f"{where}: {name} is {values.dtype}. {what.capitalize()} is an integer or a text, such as "
                f"{_EXAMPLES[what]}."
            )
        if values.dtype.kind == "U" and (values == "").any():
            raise InputError(
                f"{where}: {name}[{int(np.flatnonzero(values == '')[0])}] is empty. Give every record {what}; a "
                "record that stands alone gets one of its own."
            )
    return checked


def _column(name: str, values: np.ndarray, where: str) -> np.ndarray:
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim == 2:
        raise InputError(
            f"{where}: {name} has shape {list(values.shape)}: several labels per image. Where each column is a finding "
            "that an image has or has not, name them in data.findings; else choose one column."
        )
    if values.ndim != 1:
        raise InputError(f"{where}: {name} has shape {list(values.shape)}; it must be [N], one value per image.")
    return values


def _names_of_integers(labels: Mapping[str, np.ndarray], where: str) -> tuple[str, ...]:
    present = np.unique(np.concatenate([*labels.values()]))
    # The first number at which the labels leave 0, 1, 2, ...: looked for here because a stray label of 10^9 must not
    # become 10^9 class names.
    astray = np.flatnonzero(present != np.arange(len(present)))
    if len(astray):
        stray = int(present[astray[0]])
        name, index = next((n, int(np.flatnonzero(v == stray)[0])) for n, v in labels.items() if (v == stray).any())
        missing = "" if stray < 0 else f" while no record has class {astray[0]}"
        raise InputError(
            f"{where}: {name}[{index}] is {stray}{missing}. Labels must be 0..K-1 with records in every class: correct "
            f"a label outside the range, or number the classes without gaps. {OF_A_QUANTITY}"
        )
    return tuple(str(value) for value in present)


def _refuse_outside(name: str, values: np.ndarray, names: tuple[str, ...], where: str) -> None:
    outside = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(outside):
        label = str(values[outside[0]])
        why = f"outside 0..{len(names) - 1}, the range of the {len(names)} class_names. Correct it or name its class."
        raise UnknownLabelError(f"{where}: {name}[{outside[0]}] is {label}", label, why)


def class_places(names: Sequence[str], agreed: Sequence[str]) -> np.ndarray:
    """Return where each class stands in the list that was agreed on, int64 [K]; of some there may be none here.

    Raises InputError for a name that is not among those agreed on, with these.
    """
    alike = {name.casefold(): name for name in agreed}
    faults = [
        f"'{name}' differs from '{alike[name.casefold()]}' only in capitals"
        if name.casefold() in alike
        else f"'{name}' is none of them"
        for name in names
        if name not in agreed
    ]
    if faults:
        raise InputError(
            f"The classes that were agreed on are {', '.join(map(repr, agreed))}. {'; '.join(faults)}. Name what is "
            "here (the folders, or class_names) as agreed on."
        )
    return np.array([list(agreed).index(name) for name in names], dtype=np.int64)
