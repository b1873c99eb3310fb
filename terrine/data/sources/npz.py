"""The user's own arrays in one .npz file.

One set, to be split:   images, labels; optional ids, groups, parties, class_names
Given splits:           train_images, train_labels, test_images, test_labels; optional val_images and val_labels (see
                        `validation`), train_ids, val_ids, train_groups, val_groups, test_groups, train_parties,
                        val_parties, class_names

Labels are integers 0..K-1 or texts. With `data.findings` they are 0 or 1 with one column per finding, named by
`class_names` or else by `data.findings`. With `data.grades` they are texts, or integers: the grades themselves if these
are numbers, otherwise indices into `class_names` or `data.grades`. With `data.bins` they are numbers. Other arrays are
ignored. Nothing is unpickled.

The name of a record (`terrine.data.units`) is its entry in `ids`, unique integers or texts, by which records are then
sorted. Without IDs it is the position in the array, counted separately in the validation split.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from terrine.data.dataset import Dataset, split_records
from terrine.data.findings import encode_findings
from terrine.data.images import to_uint8_nchw
from terrine.data.labels import class_places, encode_labels, group_codes, id_codes, unread_warning
from terrine.data.ordered import OrderedLabels, clipping_warning, read_numbers
from terrine.data.partition import encode_parties
from terrine.data.source import Own, Progress, ThreeSplits
from terrine.data.units import place_codes
from terrine.errors import InputError

_PREFIXES = ("train_", "val_", "test_")
_ARRAYS = ("images", "labels", "ids", "groups", "parties")
_KEYS = {*(f"{prefix}{array}" for prefix in ("", *_PREFIXES) for array in _ARRAYS), "class_names"}
_EXAMPLE = "numpy.savez(path, images=..., labels=...)"


class Npz(OrderedLabels, Own, ThreeSplits):
    """Arrays in one .npz file. A file with `images` is split by `test_fraction` (`terrine.data.units`)."""

    name: Literal["npz"] = "npz"

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        path = at / self.path
        arrays, unread = read_arrays(path, _KEYS)
        dataset = from_arrays(
            arrays,
            str(path),
            kind=self,
            name=path.stem,
            classes=self.classes,
            validation=self.validation_split,
            test_fraction=self.test_fraction,
            seed=seed,
            unread=unread,
        )
        if any(name.endswith("groups") for name in arrays):
            return dataset
        return replace(dataset, remarks=(*dataset.remarks, *unread_warning(str(path), "arrays", unread, "groups")))

    def finds_classes(self, at: Path = Path()) -> bool:
        return super().finds_classes(at) and "class_names" not in read_arrays(at / self.path, {"class_names"})[0]


def read_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the wanted arrays of an .npz file, and the names of its other arrays.

    Raises:
        InputError: the file is missing, damaged or not an archive of plain arrays.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your .npz file.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if name in wanted}, [
                name for name in archive.files if name not in wanted
            ]
    except Exception as error:  # zipfile and numpy raise errors of many types on damaged files and single arrays
        if "pickle" in str(error).lower():
            raise InputError(
                f"{path} contains Python objects, or is not an .npz file. Terrine never unpickles: save plain arrays "
                f"with {_EXAMPLE}."
            ) from error
        raise InputError(
            f"{path} is damaged, or is not an archive of arrays ({error}). Copy it again, or save it with {_EXAMPLE}."
        ) from error


class _Labels(NamedTuple):
    """Labels and numbers before binning by array, class names, warnings, and whether classes are declared."""

    labels: dict[str, np.ndarray]
    names: tuple[str, ...]
    numbers: Mapping[str, np.ndarray] = MappingProxyType({})
    remarks: tuple[str, ...] = ()
    declared: bool = True


def from_arrays(
    arrays: Mapping[str, np.ndarray],
    where: str,
    *,
    kind: OrderedLabels,
    class_names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    validation: Literal["keep", "pool", "drop"] = "keep",
    test_fraction: float = 0.0,
    seed: int = 0,
    unread: Sequence[str] = (),
    **fields: Any,
) -> Dataset:
    """Return the dataset in arrays that are named as in the module docstring.

    Args:
        arrays: The arrays by name.
        where: File name for errors.
        kind: Kind of the labels: classes, findings, grades or numbers.
        class_names: Names of the classes in the order of integer labels; None: those of the array `class_names`.
        classes: Declared classes in their order.
        validation: Whether the validation split joins train, becomes the dataset's public pool, or is dropped.
        test_fraction: Share of the records that is held out if the file has no test split.
        seed: Seed of that share.
        unread: Names of other arrays, for errors.
        **fields: Further fields of `Dataset`.

    Raises:
        InputError: a missing or invalid array.
    """
    prefixes = [""] if "images" in arrays else [prefix for prefix in _PREFIXES if f"{prefix}images" in arrays]
    _check_arrays(arrays, prefixes, where, unread)
    images = {prefix: to_uint8_nchw(arrays[f"{prefix}images"], f"{where}: {prefix}images") for prefix in prefixes}

    def given(array: str, among: Sequence[str]) -> dict[str, np.ndarray]:
        return {f"{prefix}{array}": arrays[f"{prefix}{array}"] for prefix in among if f"{prefix}{array}" in arrays}

    if class_names is None and "class_names" in arrays:
        class_names = [str(text) for text in arrays["class_names"].ravel()]
    encoded = _encode(given("labels", prefixes), kind, class_names, classes, where)
    groups = group_codes(given("groups", prefixes), where)
    # Only teachers have parties.
    held = given("parties", [prefix for prefix in prefixes if prefix != "test_"])
    parties, party_names = encode_parties(held, where) if held else ({}, ())
    pool = "val_" if validation == "pool" and "val_" in prefixes else None
    train = [prefix for prefix in prefixes if prefix in ("", "train_") or (prefix == "val_" and validation == "keep")]
    ids = given("ids", train)
    for array, values in {**encoded.labels, **groups, **parties, **ids}.items():
        prefix = array.removesuffix(array.rpartition("_")[2])
        if len(values) != len(images[prefix]):
            raise InputError(
                f"{where}: {array} has shape {list(values.shape)}, but its images have shape "
                f"{list(images[prefix].shape)}. Give one value per image."
            )
    if ids:
        codes, order = id_codes(ids, where)
        names = codes[order]
    else:
        names = np.concatenate([place_codes(len(images[own]), "val_" if own == "val_" else "") for own in train])
        order = np.arange(len(names))

    def joined(values: Mapping[str, np.ndarray], array: str) -> np.ndarray | None:
        """Return the training records' values, sorted by ID."""
        parts = [values[f"{prefix}{array}"] for prefix in train if f"{prefix}{array}" in values]
        together = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else None
        return together[order] if ids and together is not None else together

    own_images, own_labels = joined(images, ""), joined(encoded.labels, "labels")
    assert own_images is not None and own_labels is not None  # noqa: PT018  `_check_arrays`
    fields |= {
        "class_names": encoded.names,
        "party_names": party_names,
        "scale": kind.scale,
        "remarks": encoded.remarks,
        "declared": encoded.declared,
        "named": bool(ids),
    }
    if prefixes == [""]:
        return split_records(
            own_images,
            own_labels,
            test_fraction=test_fraction,
            seed=seed,
            names=names,
            groups=joined(groups, "groups"),
            parties=joined(parties, "parties"),
            numbers=joined(encoded.numbers, "labels"),
            **fields,
        )
    _refuse_shared_groups(groups, train, where)
    return Dataset(
        train_images=own_images,
        train_labels=own_labels,
        train_groups=joined(groups, "groups"),
        train_names=names,
        train_parties=joined(parties, "parties"),
        test_images=images["test_"],
        test_labels=encoded.labels["test_labels"],
        test_groups=groups.get("test_groups"),
        test_numbers=encoded.numbers.get("test_labels"),
        pool_images=None if pool is None else images[pool],
        pool_labels=None if pool is None else encoded.labels[f"{pool}labels"],
        pool_names=id_codes(own, where)[0] if pool and ids and (own := given("ids", [pool])) else None,
        pool_groups=groups.get(f"{pool}groups"),
        **fields,
    )


def _encode(
    labels: dict[str, np.ndarray],
    kind: OrderedLabels,
    class_names: Sequence[str] | None,
    classes: Sequence[str] | None,
    where: str,
) -> _Labels:
    """Return labels as indices of classes, or as 0 and 1 for each finding."""
    if kind.findings:
        found = encode_findings(labels, class_names, kind.findings, where)
        return _Labels(found, kind.findings, declared=bool(class_names))
    if kind.bins and kind.scale is not None:
        numbers, beyond = {}, 0
        for array, values in labels.items():
            if values.ndim > 2 or values.size != len(values):
                raise InputError(
                    f"{where}: {array} has shape {list(values.shape)}; data.bins needs one number per image."
                )
            texts = values.ravel().tolist()
            numbers[array], clipped = read_numbers(texts, kind, lambda row, array=array: f"{where}: {array}[{row}]")  # type: ignore[misc]
            beyond += clipped
        remarks = clipping_warning(beyond, sum(map(len, numbers.values())))
        places = {array: kind.scale.places(own) for array, own in numbers.items()}
        return _Labels(places, kind.scale.names, numbers, remarks)
    classes = classes or kind.grades
    if not classes:
        return _Labels(*encode_labels(labels, class_names, where), declared=bool(class_names))
    if kind.grades and class_names is None and all(name.isdecimal() for name in kind.grades):
        # An integer 1 is the grade "1", not the second grade.
        labels = {array: own.astype(str) if own.dtype.kind in "iu" else own for array, own in labels.items()}
    codes, own_names = encode_labels(labels, class_names or classes, where)
    order = class_places(own_names, classes)
    return _Labels({array: order[own] for array, own in codes.items()}, tuple(classes))


def _check_arrays(arrays: Mapping[str, np.ndarray], prefixes: list[str], where: str, unread: Sequence[str]) -> None:
    """Raise InputError for missing arrays, or images that are empty or differ in size between splits."""
    needed = set() if prefixes == [""] else {"train_images", "train_labels", "test_images", "test_labels"}
    needed |= {f"{prefix}labels" for prefix in prefixes}
    for array in ("ids", "groups", "parties"):
        if f"train_{array}" in arrays or f"val_{array}" in arrays:
            needed |= {f"{prefix}{array}" for prefix in prefixes if prefix in ("train_", "val_")}
    if missing := sorted(needed - set(arrays)):
        held = ", ".join(sorted([*arrays, *unread])) or "none"
        raise InputError(
            f"{where} has no array {', '.join(missing)}; it contains {held}. Give images and labels, or train_images, "
            "train_labels, test_images and test_labels."
        )
    first = arrays[f"{prefixes[0]}images"]
    for prefix in prefixes:
        own = arrays[f"{prefix}images"]
        if own.shape[:1] == (0,):
            raise InputError(f"{where}: {prefix}images has shape {list(own.shape)}. At least one image is needed.")
        if own.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{where}: {prefix}images has shape {list(own.shape)}, but {prefixes[0]}images has shape "
                f"{list(first.shape)}. Channels, height and width must agree."
            )


def _refuse_shared_groups(groups: Mapping[str, np.ndarray], train: list[str], where: str) -> None:
    for prefix in train:
        shared = np.isin(groups.get(f"{prefix}groups", ()), groups.get("test_groups", ()))
        if shared.any():
            raise InputError(
                f"{where}: {shared.sum()} records of {prefix}images, the first at index {shared.argmax()}, have a "
                "group that is in test_groups as well. A person must be in one split only: move those records."
            )
