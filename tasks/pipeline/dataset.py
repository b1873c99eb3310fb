"""dataset: read the private images, check them, and lay them down in the private zone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tasks.config.values import digest
from tasks.runtime.accounts import PEOPLE, check_people, people_in, site_key
from tasks.runtime.identity import record_file_change
from tasks.runtime.origin import laid_down_by
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_array, write_array, write_json
from tasks.runtime.task import recorded_task, source_of, task_from
from terrine.data.dataset import Dataset, fingerprint
from terrine.data.images import on_disk
from terrine.data.ordered import Scale
from terrine.data.pool import check_disjoint
from terrine.errors import InputError, SettingError
from terrine.files import json_object
from terrine.privacy.ledger.people import People

SOURCE = "source.json"
"""Among a run's private files: what `files_of` found when its records were read."""

_ARRAYS = ("train_images", "train_labels", "train_names", "test_images", "test_labels")
_OPTIONAL = ("train_groups", "train_parties", "test_names", "test_groups", "test_numbers")


@step("dataset")
def prepare_dataset(run: Run) -> None:
    """Read the dataset that the parameters name and write its arrays and manifest.

    Everything is checked before the first byte is written; a bad file leaves what was there as it was. Records that
    another account released about, or that would be published although a release protects them, are refused here.
    """
    source = files_of(run)
    with on_disk(run.folders.work):
        dataset = load_dataset(run)
        check_people(run, people_in(run, dataset))
        write_prepared(run, dataset)
    write_json(run.folders.private / SOURCE, source)


def files_of(run: Run) -> dict[str, Any]:
    """Return the number of the user's files that the records are read from, their bytes, and a digest of names, sizes
    and times. Private.
    """
    stats: dict[str, tuple[int, int]] = {}
    for path in run.params.data.files(run.root):
        with contextlib.suppress(OSError):
            found = path.stat()
            stats[str(path)] = found.st_size, found.st_mtime_ns
    return {
        "files": len(stats),
        "bytes": sum(size for size, _ in stats.values()),
        "digest": digest(sorted(stats.items()), 64),
    }


def files_changed(run: Run) -> str | None:
    """Return how the files behind a run's records differ from those it read, by names, sizes and times.

    None if they do not differ, or if the run has read none.
    """
    known, now = json_object(run.folders.private / SOURCE), files_of(run)
    if known is None or known == now:
        return None
    for what, word in (("files", "files"), ("bytes", "bytes in them")):
        if known[what] != now[what]:
            return f"{known[what]:,} {word} then, {now[what]:,} now"
    return f"{now['files']:,} files as before, with other names, sizes or times"


def tell_changed_records(run: Run) -> bool:
    """Return whether a run's records changed since it read them, and write a note about it into the private zone.

    They are read again only if the files differ by names, sizes or times.
    """
    how = files_changed(run)
    if how is not None:
        try:
            with on_disk(run.folders.work):
                now = fingerprint(load_dataset(run), site_key(run))
            if now == run.folders.dataset_manifest()["fingerprint"]:
                write_json(run.folders.private / SOURCE, files_of(run))
                how = None
        except InputError as error:
            how = f"{how} ({error})"
    record_file_change(run, how)
    return how is not None


def write_prepared(run: Run, dataset: Dataset) -> None:
    """Check a dataset, and write its arrays and manifest."""
    dataset.validate()
    manifest = {
        **dataset.describe(),
        "class_names": list(dataset.class_names),
        "declared": dataset.declared,
        "fingerprint": fingerprint(dataset, site_key(run)),
        "laid_down_by": laid_down_by(run.params),
        **({"party_names": list(dataset.party_names)} if dataset.train_parties is not None else {}),
        **({"parts": check_disjoint(dataset)} if dataset.pool_images is not None else {}),
    }
    write_dataset(run.folders, dataset, manifest, people_in(run, dataset))


def write_dataset(folders: Folders, dataset: Dataset, manifest: dict[str, Any], people: People | None = None) -> None:
    """Write the arrays of a dataset and what is said about it where stages look for them."""
    arrays = {name: getattr(dataset, name) for name in (*_ARRAYS, *_OPTIONAL, "pool_labels")}
    with atomic_folder(folders.dataset) as folder:
        for name, array in (arrays | {"train_names": dataset.record_names}).items():
            if array is not None:
                write_array(folder / f"{name}.npy", array)
        if people is not None:
            people.save(folder / PEOPLE)
        write_json(folder / "manifest.json", manifest)


def load_dataset(run: Run) -> Dataset:
    """Read the dataset that the parameters name from its own source, with the classes of its account and edition.

    Raises SettingError where the source does not say, as the parameters do, that anyone may read it.
    """
    settings = run.params.data
    with source_of(run) as source:
        dataset = source.load(run.root, seed=SPLIT_SEED)
    if settings.public_benchmark and not dataset.public_benchmark:
        raise SettingError(
            f"data.public_benchmark is true, but the source of data.name={settings.name} does not say that anyone may "
            "read it. Set data.public_benchmark=false, ledger.account and ledger.epsilon; nothing was written."
        )
    dataset = _with_classes(run, getattr(source, "classes", None), dataset)
    drawn_by_group = dataset.test_groups is not None and getattr(settings, "pool", None) == "test"
    if drawn_by_group and run.params.privacy.unit == "record" and not settings.public_benchmark:
        raise SettingError(
            "privacy.unit=record protects an image with all that is known of it, also whose it is, and groups decide "
            "which images data.pool=test makes public: one that is exchanged for another person's could be published. "
            "Set privacy.unit=group; nothing was written."
        )
    return dataset


def _with_classes(run: Run, declared: Sequence[str] | None, dataset: Dataset) -> Dataset:
    """Return a dataset with the declared or recorded classes, also from a plugin's source that knows labels alone."""
    if declared is None and task_from(run.params.data, dataset.class_names, declared=dataset.declared).found:
        first = recorded_task(run)
        declared = None if first is None else first.names
    return dataset if declared in (None, dataset.class_names) else dataset.with_classes(declared)


def read_pool_labels(folders: Folders) -> np.ndarray | None:
    """Return the labels of the public pool, int64 [images], which evaluation alone looks at; None without a pool."""
    path = folders.dataset / "pool_labels.npy"
    return read_array(path) if path.is_file() else None


def read_dataset(folders: Folders) -> Dataset:
    """Map the stored dataset; images stay on disk until they are asked for."""
    folder = folders.dataset
    manifest = folders.dataset_manifest()
    there = [*_ARRAYS, *(name for name in _OPTIONAL if (folder / f"{name}.npy").is_file())]
    arrays = {name: read_array(folder / f"{name}.npy", memory_map=name.endswith("_images")) for name in there}
    return Dataset(
        name=manifest["name"],
        class_names=tuple(manifest["class_names"]),
        declared=manifest["declared"],
        public_benchmark=manifest["public_benchmark"],
        party_names=tuple(manifest.get("party_names", ())),
        column_names=None if manifest.get("columns") is None else tuple(manifest["columns"]),
        scale=Scale(tuple(manifest["class_names"]), tuple(manifest["scale"]["edges"])) if "scale" in manifest else None,
        **cast(dict[str, Any], {"train_groups": None, **arrays}),
    )


def protected_units(run: Run, dataset: Dataset) -> np.ndarray:
    """Return who each training record belongs to, [records]: its group where groups are protected, else its name."""
    units = dataset.train_groups if run.params.privacy.unit == "group" else dataset.record_names
    assert units is not None, "the partition has refused groups that are protected and not given"
    return units
