"""The user's own arrays in one .npz file.

One set, to be split:   images, labels; optional ids, groups, parties, class_names
Split already:          train_images, train_labels, test_images, test_labels; optional val_images and val_labels (they
                        join train, or as `validation` says), train_ids, val_ids, train_groups, val_groups,
                        test_groups, train_parties, val_parties, class_names

Labels are integers 0..K-1 or text; with `data.findings` they are 0 or 1, a column for each finding, whose names are
`class_names`, or without these those of `data.findings`. With `data.grades` they are texts, or integers: grades, where
these are written as numbers, or else their places (those of `class_names`, where there are any). With `data.bins` they
are numbers. Other arrays in the file are ignored. Nothing is unpickled.

The name of a record (`terrine.data.units`) is its entry in `ids`, integers or texts of which none occurs twice; records
are then in the order of these texts. Without ids it is its place in the array, one of the validation split apart.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from terrine.data.dataset import Dataset, from_one_set
from terrine.data.findings import encode_findings
from terrine.data.images import to_uint8_nchw
from terrine.data.labels import class_places, encode_groups, encode_labels, encode_names, on_unread
from terrine.data.ordered import OrderedLabels, numbers_of, on_clipped
from terrine.data.partition import encode_parties
from terrine.data.source import Own, Progress, ThreeSplits
from terrine.data.units import place_codes
from terrine.errors import InputError

_PREFIXES = ("train_", "val_", "test_")
_ARRAYS = ("images", "labels", "ids", "groups", "parties")
_KEYS = {f"{prefix}{array}" for prefix in ("", *_PREFIXES) for array in _ARRAYS}


class Npz(OrderedLabels, Own, ThreeSplits):
    """Arrays in one .npz file; a file with `images` is split by `test_fraction` (`terrine.data.units`)."""

    name: Literal["npz"] = "npz"

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        path = at / self.path
        arrays = read_arrays(path, {*_KEYS, "class_names"})
        with np.load(path, allow_pickle=False) as archive:
            held = list(archive.files)
        dataset = from_arrays(
            arrays,
            path.stem,
            str(path),
            test_fraction=self.test_fraction,
            seed=seed,
            validation=self.validation_split,
            kind=self,
            classes=self.classes,
            held=held,
        )
        if any(name.endswith("groups") for name in held):
            return dataset
        unread = [name for name in held if name not in {*_KEYS, "class_names"}]
        return replace(dataset, remarks=(*dataset.remarks, *on_unread(str(path), "arrays", unread, "groups")))

    def finds_classes(self, at: Path = Path()) -> bool:
        return super().finds_classes(at) and "class_names" not in read_arrays(at / self.path, {"class_names"})


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Return those of the arrays `wanted` that the .npz file at `path` holds; raise InputError if it is unreadable."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your .npz file.")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array. Save an archive: numpy.savez(path, images=..., labels=...).")
        with archive:
            if not archive.files:
                raise InputError(f"{path} holds no array at all. Save some: numpy.savez(path, images=..., labels=...).")
            return {name: archive[name] for name in archive.files if name in wanted}
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise errors of many kinds on damaged files
        if "pickle" not in str(error).lower():
            raise _damaged(path, error) from error
        raise InputError(
            f"{path} holds Python objects, or is no .npz file at all. Terrine never unpickles: save plain arrays of "
            "numbers or text with numpy.savez(path, images=..., labels=...)."
        ) from error


def from_arrays(
    arrays: Mapping[str, np.ndarray],
    name: str,
    where: str,
    *,
    class_names: Sequence[str] | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    public_benchmark: bool = False,
    validation: Literal["keep", "pool", "drop"] = "keep",
    kind: OrderedLabels | None = None,
    classes: Sequence[str] | None = None,
    held: Collection[str] = (),
) -> Dataset:
    """Return the dataset in `arrays`, named as in the module docstring; `where` says in errors where they come from.

    test_fraction: of one set, which is to be split. validation: whether the validation split joins train, becomes the
    dataset's public pool, or is left out. kind: what labels are, where not classes without order. classes: all classes
    in their order, if they are declared. held: the names of all arrays there, where `arrays` are only those that are
    known.
    """
    kind = OrderedLabels() if kind is None else kind
    classes = classes or kind.findings or (None if kind.scale is None else kind.scale.names)
    if class_names is None and "class_names" in arrays:
        class_names = [str(text) for text in arrays["class_names"].ravel()]
    prefixes = [""] if "images" in arrays else [prefix for prefix in _PREFIXES if f"{prefix}images" in arrays]
    _require_arrays(arrays, prefixes, where, held)
    images = {prefix: to_uint8_nchw(arrays[f"{prefix}images"], f"{where}: {prefix}images") for prefix in prefixes}
    given_labels = {f"{prefix}labels": arrays[f"{prefix}labels"] for prefix in prefixes}
    numbers: dict[str, np.ndarray] = {}
    remarks: tuple[str, ...] = ()
    if kind.findings:
        labels, names = encode_findings(given_labels, class_names, kind.findings, where), kind.findings
    elif kind.bins:
        assert kind.scale is not None
        numbers, remarks = _numbers(given_labels, kind, where)
        labels, names = {array: kind.scale.places(own) for array, own in numbers.items()}, kind.scale.names
    elif classes:
        if kind.grades and class_names is None and all(name.isdecimal() for name in kind.grades):
            # a grade 1 is no second grade
            whole = {array: own for array, own in given_labels.items() if own.dtype.kind in "iu"}
            given_labels |= {array: own.astype(str) for array, own in whole.items()}
        labels, own_names = encode_labels(given_labels, class_names or classes, where)
        places, names = class_places(own_names, classes), tuple(classes)
        labels = {array: places[own] for array, own in labels.items()}
    else:
        labels, names = encode_labels(given_labels, class_names, where)
    declared = bool(class_names) or (bool(classes) and not kind.findings)
    given = {f"{prefix}groups": arrays[f"{prefix}groups"] for prefix in prefixes if f"{prefix}groups" in arrays}
    groups = encode_groups(given, where) if given else {}
    # Whose the test records are is nobody's business: only teachers have parties.
    held = {f"{prefix}parties": arrays.get(f"{prefix}parties") for prefix in prefixes if prefix != "test_"}
    known = {array: values for array, values in held.items() if values is not None}
    parties, party_names = encode_parties(known, where) if known else ({}, ())
    pool = "val_" if validation == "pool" and "val_" in prefixes else None
    apart = {"test_"} if validation == "keep" else {"test_", "val_"}
    train = [prefix for prefix in prefixes if prefix not in apart]
    ids = {f"{prefix}ids": arrays[f"{prefix}ids"] for prefix in train if f"{prefix}ids" in arrays}
    for array, values in {**labels, **groups, **parties, **ids}.items():
        prefix = array.removesuffix(array.rpartition("_")[2])
        if len(values) != len(images[prefix]):
            raise InputError(
                f"{where}: {array} has shape {list(values.shape)}, but its images have shape "
                f"{list(images[prefix].shape)}. Give one value per image."
            )
    codes, order = encode_names(ids, where) if ids else (_places(train, images), None)
    pool_names = None
    if pool is not None and ids and f"{pool}ids" in arrays:
        pool_names = encode_names({f"{pool}ids": arrays[f"{pool}ids"]}, where)[0]

    def ordered(values: Mapping[str, np.ndarray], array: str) -> np.ndarray:
        """Join the training splits; records with ids in the order of these."""
        parts = [values[f"{prefix}{array}"] for prefix in train]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined if order is None else joined[order]

    joined_groups = ordered(groups, "groups") if f"{train[0]}groups" in groups else None
    joined_parties = ordered(parties, "parties") if parties else None
    names_of_records = codes if order is None else codes[order]
    if prefixes == [""]:
        return from_one_set(
            name,
            ordered(images, ""),
            ordered(labels, "labels"),
            joined_groups,
            names,
            test_fraction=test_fraction,
            seed=seed,
            public_benchmark=public_benchmark,
            record_names=names_of_records,
            parties=joined_parties,
            party_names=party_names,
            scale=kind.scale,
            numbers=ordered(numbers, "labels") if numbers else None,
            remarks=remarks,
            named=bool(ids),
            declared=declared,
        )
    _refuse_shared_groups(groups, train, where)
    return Dataset(
        name=name,
        train_images=ordered(images, ""),
        train_labels=ordered(labels, "labels"),
        train_groups=joined_groups,
        test_images=images["test_"],
        test_labels=labels["test_labels"],
        class_names=names,
        public_benchmark=public_benchmark,
        train_parties=joined_parties,
        party_names=party_names,
        pool_images=None if pool is None else images[pool],
        pool_labels=None if pool is None else labels[f"{pool}labels"],
        pool_names=pool_names,
        pool_groups=None if pool is None else groups.get(f"{pool}groups"),
        named=bool(ids),
        test_groups=groups.get("test_groups"),
        train_names=names_of_records,
        scale=kind.scale,
        test_numbers=numbers.get("test_labels"),
        remarks=remarks,
        declared=declared,
    )


def _numbers(
    labels: Mapping[str, np.ndarray], kind: OrderedLabels, where: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return labels as numbers within the outer edges, float64 [N] by array, and what there is to say of others."""
    found, beyond = {}, 0
    for array, values in labels.items():
        if values.ndim > 2 or values.size != len(values):
            raise InputError(f"{where}: {array} has shape {list(values.shape)}; data.bins wants one number per image.")

        def place(row: int, array: str = array) -> str:
            return f"{where}: {array}[{row}]"

        found[array], clipped = numbers_of(values.ravel().tolist(), kind, place)
        beyond += clipped
    return found, on_clipped(beyond, sum(map(len, found.values())))


def _places(prefixes: list[str], images: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the codes of records without ids: places in the array, behind `val_` those of the validation split."""
    return np.concatenate([place_codes(len(images[prefix]), "val_" if prefix == "val_" else "") for prefix in prefixes])


def _require_arrays(arrays: Mapping[str, np.ndarray], prefixes: list[str], where: str, held: Collection[str]) -> None:
    """Refuse a file without the arrays of the module docstring, or with images whose sizes differ between splits."""
    needed = set() if prefixes == [""] else {"train_images", "train_labels", "test_images", "test_labels"}
    needed |= {f"{prefix}labels" for prefix in prefixes}
    for array in ("ids", "groups", "parties"):
        if f"train_{array}" in arrays or f"val_{array}" in arrays:
            needed |= {f"{prefix}{array}" for prefix in prefixes if prefix in ("train_", "val_")}
    missing = sorted(needed - set(arrays))
    if missing:
        raise InputError(
            f"{where} has no array {', '.join(missing)}; it holds {', '.join(sorted(held or arrays)) or 'none'}. Give "
            "images and labels, or train_images, train_labels, test_images and test_labels."
        )
    shapes = {prefix: arrays[f"{prefix}images"].shape for prefix in prefixes}
    if empty := [f"{prefix}images" for prefix, shape in shapes.items() if shape[:1] == (0,)]:
        raise InputError(f"{where}: {empty[0]} has shape {list(arrays[empty[0]].shape)}: there is no image in it.")
    first = prefixes[0]
    for prefix in prefixes[1:]:
        if shapes[prefix][1:] != shapes[first][1:]:
            raise InputError(
                f"{where}: {prefix}images has shape {list(shapes[prefix])}, but {first}images has shape "
                f"{list(shapes[first])}. Channels, height and width must agree."
            )


def _refuse_shared_groups(groups: Mapping[str, np.ndarray], train: list[str], where: str) -> None:
    if "train_groups" not in groups or "test_groups" not in groups:
        return
    for prefix in train:
        indices = np.flatnonzero(np.isin(groups[f"{prefix}groups"], groups["test_groups"]))
        if len(indices):
            raise InputError(
                f"{where}: {len(indices)} records of {prefix}images, the first at index {indices[0]}, have a group "
                "that is in test_groups as well. A person must be in one split only: move those records."
            )


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is truncated or damaged ({error}). Copy it again from its source.")
