"""The user's own arrays in one .npz file.

One set, to be split:   images, labels; optional groups, parties, class_names
Split already:          train_images, train_labels, test_images, test_labels; optional val_images and val_labels (they
                        join train), train_groups, val_groups, test_groups, train_parties, val_parties, class_names

Labels are integers 0..K-1 or text. Other arrays in the file are ignored. Nothing is unpickled.
"""

import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from terrine.data.dataset import Dataset, from_one_set
from terrine.data.images import to_uint8_nchw
from terrine.data.labels import encode_groups, encode_labels
from terrine.data.parties import encode_parties
from terrine.errors import InputError

_PREFIXES = ("train_", "val_", "test_")
_KEYS = {f"{prefix}{array}" for prefix in ("", *_PREFIXES) for array in ("images", "labels", "groups", "parties")}


def load(
    path: Path,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    validation_apart: bool = False,
    label_blind: bool = False,
) -> Dataset:
    """Return the dataset in the .npz file at `path`; the module docstring lists the arrays it may hold.

    A file with `images` is split by `test_fraction` and `seed`, stratified and with every group on one side.
    `validation_apart` and `label_blind` are those of `from_arrays`. Raises InputError when the file is missing, damaged
    or pickled, lacks an array, or holds arrays that do not fit.
    """
    return from_arrays(
        read_arrays(path, {*_KEYS, "class_names"}),
        path.stem,
        str(path),
        test_fraction=test_fraction,
        seed=seed,
        validation_apart=validation_apart,
        label_blind=label_blind,
    )


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Return those of the arrays `wanted` that the .npz file at `path` holds; raise InputError if it is unreadable."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your .npz file.")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array. Save an archive: numpy.savez(path, images=..., labels=...).")
        with archive:
            return {name: archive[name] for name in archive.files if name in wanted}
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        if "pickle" not in str(error).lower():
            raise _damaged(path, error) from error
        raise InputError(
            f"{path} holds Python objects, or is no .npz file at all. Terrine never unpickles: save plain arrays of "
            "numbers or text with numpy.savez(path, images=..., labels=...)."
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise _damaged(path, error) from error


def from_arrays(
    arrays: Mapping[str, np.ndarray],
    name: str,
    where: str,
    *,
    class_names: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    public_benchmark: bool = False,
    validation_apart: bool = False,
    label_blind: bool = False,
) -> Dataset:
    """Return the dataset in `arrays`, named as in the module docstring; `where` says in errors where they come from.

    validation_apart: the validation split does not join train but becomes the dataset's public pool. label_blind: where
    there is no split, labels decide nothing about it (`terrine.data.splits.by_place`).
    """
    if class_names is None and "class_names" in arrays:
        class_names = [str(text) for text in arrays["class_names"].ravel()]
    prefixes = [""] if "images" in arrays else [prefix for prefix in _PREFIXES if f"{prefix}images" in arrays]
    _require_arrays(arrays, prefixes, where)
    images = {prefix: to_uint8_nchw(arrays[f"{prefix}images"], f"{where}: {prefix}images") for prefix in prefixes}
    labels, names = encode_labels(
        {f"{prefix}labels": arrays[f"{prefix}labels"] for prefix in prefixes},
        class_names,
        where,
    )
    given = {f"{prefix}groups": arrays[f"{prefix}groups"] for prefix in prefixes if f"{prefix}groups" in arrays}
    groups = encode_groups(given, where) if given else {}
    # Whose the test records are is nobody's business: only teachers have parties.
    held = {f"{prefix}parties": arrays.get(f"{prefix}parties") for prefix in prefixes if prefix != "test_"}
    known = {array: values for array, values in held.items() if values is not None}
    parties, party_names = encode_parties(known, where) if known else ({}, ())
    for array, values in {**labels, **groups, **parties}.items():
        stack = images[array.removesuffix("labels").removesuffix("groups").removesuffix("parties")]
        if len(values) != len(stack):
            raise InputError(
                f"{where}: {array} has shape {list(values.shape)}, but its images have shape {list(stack.shape)}. "
                "Give one value per image."
            )
    if prefixes == [""]:
        return from_one_set(
            name,
            images[""],
            labels["labels"],
            groups.get("groups"),
            names,
            test_fraction=test_fraction,
            seed=seed,
            public_benchmark=public_benchmark,
            parties=parties.get("parties"),
            party_names=party_names,
            label_blind=label_blind,
        )
    pool = "val_" if validation_apart and "val_" in prefixes else None
    train = [prefix for prefix in prefixes if prefix not in ("test_", pool)]
    _refuse_shared_groups(groups, train, where)
    train_groups = [groups[f"{prefix}groups"] for prefix in train if f"{prefix}groups" in groups]
    return Dataset(
        name=name,
        train_images=np.concatenate([images[prefix] for prefix in train]),
        train_labels=np.concatenate([labels[f"{prefix}labels"] for prefix in train]),
        train_groups=np.concatenate(train_groups) if train_groups else None,
        test_images=images["test_"],
        test_labels=labels["test_labels"],
        class_names=names,
        public_benchmark=public_benchmark,
        train_parties=np.concatenate([parties[f"{prefix}parties"] for prefix in train]) if parties else None,
        party_names=party_names,
        pool_images=None if pool is None else images[pool],
        pool_labels=None if pool is None else labels[f"{pool}labels"],
    )


def _require_arrays(arrays: Mapping[str, np.ndarray], prefixes: list[str], where: str) -> None:
    """Refuse a file without the arrays of the module docstring, or with images whose sizes differ between splits."""
    needed = set() if prefixes == [""] else {"train_images", "train_labels", "test_images", "test_labels"}
    needed |= {f"{prefix}labels" for prefix in prefixes}
    if "train_groups" in arrays or "val_groups" in arrays:
        needed |= {f"{prefix}groups" for prefix in prefixes if prefix in ("train_", "val_")}
    if "train_parties" in arrays or "val_parties" in arrays:
        needed |= {f"{prefix}parties" for prefix in prefixes if prefix in ("train_", "val_")}
    missing = sorted(needed - set(arrays))
    if missing:
        raise InputError(
            f"{where} has no array {', '.join(missing)}; it holds {', '.join(sorted(arrays)) or 'none that is known'}. "
            "Give images and labels, or train_images, train_labels, test_images and test_labels."
        )
    shapes = {prefix: arrays[f"{prefix}images"].shape for prefix in prefixes}
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
