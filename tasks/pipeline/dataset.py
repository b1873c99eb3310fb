"""dataset: read and check the private records, and write them to the private zone."""

from __future__ import annotations

import contextlib
from typing import Any

from tasks.artefacts.records import load_dataset, write_dataset
from tasks.config.values import digest
from tasks.runtime.accounts import check_people, people_in, site_key
from tasks.runtime.release_identity import record_file_change
from tasks.runtime.run import Run
from tasks.runtime.staleness import data_settings_digest
from tasks.runtime.step import step
from tasks.runtime.store import write_json
from terrine.data.dataset import Dataset, fingerprint
from terrine.data.images import on_disk
from terrine.data.pool import check_disjoint
from terrine.errors import InputError
from terrine.files import json_object

SOURCE = "source.json"
"""Private file with the result of `scan_files` at the time the records were read."""


@step("dataset")
def prepare_dataset(run: Run) -> None:
    """Read a run's dataset and write its arrays and manifest after all checks have passed.

    Raises:
        InputError: If the data are invalid; existing artefacts stay unchanged.
        LedgerError: If another account protects the records, or a release protects records that would be public.
    """
    source = scan_files(run)
    with on_disk(run.folders.work):
        dataset = load_dataset(run)
        check_people(run, people_in(run, dataset))
        write_prepared(run, dataset)
    write_json(run.folders.private / SOURCE, source)


def scan_files(run: Run) -> dict[str, Any]:
    """Return the number and bytes of the run's data files, and a digest of their names, sizes and times. Private."""
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
    """Describe how names, sizes or times of a run's data files changed; None if they did not or were never read."""
    known, now = json_object(run.folders.private / SOURCE), scan_files(run)
    if known is None or known == now:
        return None
    for what, word in (("files", "files"), ("bytes", "bytes in them")):
        if known[what] != now[what]:
            return f"{known[what]:,} {word} then, {now[what]:,} now"
    return f"{now['files']:,} files as before, with other names, sizes or times"


def note_changed_files(run: Run) -> bool:
    """Return whether a run's records changed since they were read, and note it in the private zone.

    Records are read again only if names, sizes or times of files changed.
    """
    how = files_changed(run)
    if how is not None:
        try:
            with on_disk(run.folders.work):
                now = fingerprint(load_dataset(run), site_key(run))
            if now == run.folders.dataset_manifest()["fingerprint"]:
                write_json(run.folders.private / SOURCE, scan_files(run))
                how = None
        except InputError as error:
            how = f"{how} ({error})"
    record_file_change(run, how)
    return how is not None


def write_prepared(run: Run, dataset: Dataset) -> None:
    """Validate a dataset, and write its arrays and manifest."""
    dataset.validate()
    manifest = {
        **dataset.describe(),
        "class_names": list(dataset.class_names),
        "declared": dataset.declared,
        "fingerprint": fingerprint(dataset, site_key(run)),
        "data_settings_digest": data_settings_digest(run.params),
        **({"party_names": list(dataset.party_names)} if dataset.train_parties is not None else {}),
        **({"parts": check_disjoint(dataset)} if dataset.pool_images is not None else {}),
    }
    write_dataset(run.folders, dataset, manifest, people_in(run, dataset))
