"""A release as one file that may be mailed: its statement, pages and signature, its accuracy, and the student."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.runtime.store import atomic_file
from tasks.serving.pages import FIGURES, SIGNATURE, pages_in
from terrine.errors import ArtefactError, named

ARCHIVE, ACCURACY, STUDENT = "student.zip", "accuracy.json", "student"
LARGEST = 2**35
"""Bytes that an archive may hold which somebody sent: a small file can unpack to any size."""


def pack(release: Path, archive: Path) -> None:
    """Write what lies in a release's folder, and may leave it, into one file. The same is the same file: it has no
    times in it."""
    beside = (release / name for name in (FIGURES, *pages_in(release), SIGNATURE, ACCURACY))
    files = [*(path for path in beside if path.is_file()), *sorted((release / STUDENT).rglob("*"))]
    with atomic_file(archive) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            if file.is_file():
                packed.writestr(zipfile.ZipInfo(str(file.relative_to(release))), file.read_bytes())


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the folder of a release that was handed on: the one that is named, or what a file holds, for as long as the
    block lasts.

    Raises ArtefactError for a file that is damaged or would fill the disk.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="terrine-student-") as temporary:
        try:
            with zipfile.ZipFile(path) as packed:
                if unpacked_size(packed) > LARGEST:
                    raise ArtefactError(f"{path} would take more than {LARGEST >> 30} GiB. It is no student's.")
                packed.extractall(temporary)  # which keeps to the folder, whatever names it holds
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
            raise ArtefactError(f"{path} is damaged ({error}). Get it again from who handed it on.") from error
        with named(temporary, path):
            yield Path(temporary)


def unpacked_size(packed: zipfile.ZipFile) -> int:
    """Return how many bytes all that an archive holds takes, by its own directory, past which nothing is unpacked."""
    return sum(part.file_size for part in packed.infolist())
