"""Rows in several files are indexed as one array, without loading the others."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from terrine.errors import ArtefactError
from terrine.npy import MappedRows, Segment


@pytest.fixture(name="parts")
def make_parts(tmp_path):
    """Segments of two files, and the rows they name, one by one."""
    generator = np.random.default_rng(0)
    files = {tmp_path / name: generator.integers(0, 256, (count, 2, 3), dtype=np.uint8) for name, count in FILES}
    for path, rows in files.items():
        np.save(path, rows)
    a, b = files
    segments = [Segment(a, 2, 3), Segment(b, 0, 4), Segment(b, 4, 1), Segment(a, 0, 2), Segment(b, 6, 0)]
    expected = [files[part.path][part.first + row] for part in segments for row in range(part.count)]
    return segments, np.array(expected)


FILES = (("a.npy", 6), ("b.npy", 7))
INDICES = {
    "slice": slice(1, 8),
    "step": slice(None, None, -3),
    "beyond": slice(5, 100),
    "nothing": slice(4, 4),
    "array": np.array([9, 0, 4, 4, -1]),
    "list": [3, 8],
    "table": np.array([[0, 9], [5, 2]]),
    "mask": np.arange(10) % 3 == 0,
    "empty": np.array([], dtype=np.int64),
    "tuple": (slice(2, 7), 1),
    "rows and columns": ([1, 9], slice(None), 0),
    "one and column": (4, 1, 2),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_indexing_is_that_of_an_array_and_gives_writable_copies(parts, index):
    segments, expected = parts
    rows = MappedRows(segments)
    found = rows[index]
    np.testing.assert_array_equal(found, expected[index])
    assert np.shape(found) == np.shape(expected[index])
    if isinstance(found, np.ndarray):
        assert found.flags.writeable


def test_it_has_the_shape_of_all_rows_together_and_becomes_an_array(parts):
    segments, expected = parts
    rows = MappedRows(segments)
    assert (rows.shape, rows.dtype, rows.ndim, rows.nbytes, len(rows)) == ((10, 2, 3), np.uint8, 3, 60, 10)
    np.testing.assert_array_equal(np.asarray(rows), expected)
    np.testing.assert_array_equal(list(rows), expected)
    assert np.asarray(rows, dtype=np.float32).dtype == np.float32
    assert len(rows.segments) == 4  # rows 0 to 4 of the second file follow one another
    for row in (0, 4, 9, -1, -10):
        np.testing.assert_array_equal(rows[row], expected[row])


@pytest.mark.parametrize("index", [10, -11, [10], [-11], np.zeros(9, bool), [0.5]])
def test_a_row_that_is_not_there_is_refused(parts, index):
    with pytest.raises(IndexError):
        MappedRows(parts[0])[index]


def test_another_process_is_handed_names_of_files(parts):
    segments, expected = parts
    sent = pickle.dumps(MappedRows(segments))
    assert b"numpy" not in sent
    np.testing.assert_array_equal(np.asarray(pickle.loads(sent)), expected)


def test_files_that_cannot_serve_are_named(parts, tmp_path):
    segments, _ = parts
    with pytest.raises(ArtefactError, match="no files"):
        MappedRows([])
    with pytest.raises(ArtefactError, match=r"a\.npy has 6 rows, but rows 4 to 8 are needed"):
        MappedRows([Segment(tmp_path / "a.npy", 4, 5)])
    with pytest.raises(ArtefactError, match=r"none\.npy cannot be read"):
        MappedRows([Segment(tmp_path / "none.npy", 0, 1)])
    np.save(tmp_path / "wide.npy", np.zeros((3, 2, 4), np.uint8))
    with pytest.raises(ArtefactError, match=r"wide\.npy contains uint8 \(3, 2, 4\), but"):
        MappedRows([*segments, Segment(tmp_path / "wide.npy", 0, 1)])
    (tmp_path / "a.npy").write_bytes(b"half")
    with pytest.raises(ArtefactError, match=r"a\.npy cannot be read"):
        MappedRows(segments)


MEASURE = """
import resource, sys
from pathlib import Path
import numpy as np
from terrine.npy import MappedRows, Segment
path = Path(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
rows = MappedRows([Segment(path, first, 500) for first in range(0, 1_300_000, 1_000)])
total = sum(int(rows[np.arange(first, first + 256)].sum()) for first in range(0, 500_000, 100_000))
assert (len(rows), total) == (650_000, 0)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs between systems")
def test_more_than_a_million_images_are_opened_and_sampled_in_little_memory(tmp_path):
    # A file with a hole: a gigabyte of zeros that takes no room on the disk.
    images = np.lib.format.open_memmap(tmp_path / "large.npy", mode="w+", dtype=np.uint8, shape=(1_300_000, 1, 28, 28))
    del images
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "large.npy")]
    growth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert growth < 40
