"""Image sets on disk: nothing half-written counts, damage is noticed, memory stays small."""

import errno
import io
import os
import subprocess
import sys

import numpy as np
import pytest

from terrine.errors import ArtefactError, SettingError
from terrine.synthetic import shards
from terrine.synthetic.program import draw
from terrine.synthetic.shards import SHARD_BYTES, read_shard_record, stretches, write_stretch

SET = {"count": 50, "seed": 3, "size": 9, "channels": 3, "shard": 20}


def path_of(folder, number):
    return folder / f"shard-{number:06d}.npy"


def write(folder, *numbers, kind="gaussian", progress=None, **other):
    """Write these shards of a set, or all."""
    parts = list(enumerate(stretches(kind, **SET | other)))
    return [
        write_stretch(path_of(folder, number), part, progress=progress)
        for number, part in ([parts[number] for number in numbers] or parts)
    ]


def states(folder, **other):
    return [shard.state for shard in write(folder, **other)]


def test_the_stretches_cover_every_image_once():
    assert [(part.first, part.count) for part in stretches("gaussian", **SET)] == [(0, 20), (20, 20), (40, 10)]
    assert [part.count for part in stretches("gaussian", **SET | {"count": 40})] == [20, 20]
    first, *_ = stretches("gaussian", count=10**6, seed=0, size=28, channels=1)
    assert first.count == SHARD_BYTES // 784


def test_a_set_holds_the_images_that_the_program_draws(tmp_path):
    assert states(tmp_path) == ["drawn"] * 3
    expected = draw("gaussian", seed=3, first=0, count=50, size=9, channels=3).numpy()
    assert np.array_equal(np.concatenate([np.load(path_of(tmp_path, number)) for number in range(3)]), expected)


def test_shards_may_be_written_in_any_order_and_again(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b", 2, 0, 1)
    for path in sorted((tmp_path / "a").glob("*.npy")):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert states(tmp_path / "a") == ["kept"] * 3


def test_a_damaged_shard_is_drawn_again_and_said_so(tmp_path):
    write(tmp_path)
    path = path_of(tmp_path, 1)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert states(tmp_path) == ["kept", "redrawn", "kept"]
    assert path.read_bytes() == good


def test_a_shard_is_the_file_that_numpy_would_save_and_its_record_says_what_it_cost(tmp_path):
    shard = write(tmp_path)[1]
    stream = io.BytesIO()
    np.save(stream, draw("gaussian", seed=3, first=20, count=20, size=9, channels=3).numpy())
    assert shard.path.read_bytes() == stream.getvalue()
    record = read_shard_record(shard.path)
    assert record["bytes"] == shard.bytes == len(stream.getvalue())
    assert record["seconds"] == shard.seconds
    (kept,) = write(tmp_path, 1)
    assert (kept.state, kept.seconds) == ("kept", shard.seconds)


def test_a_set_that_grows_keeps_the_shards_that_were_full(tmp_path):
    write(tmp_path)
    assert states(tmp_path, count=90) == ["kept", "kept", "drawn", "drawn", "drawn"]


def test_shards_of_another_version_of_the_programs_are_drawn_again(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(shards, "VERSION", -1)
    assert states(tmp_path) == ["drawn"] * 3


def test_what_a_killed_writer_left_long_ago_is_cleared_and_a_living_one_is_left_alone(tmp_path):
    path = path_of(tmp_path, 0)
    old, young = (path.with_name(f".{path.name}.{name}.tmp") for name in ("old", "young"))
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (0, 0))
    write(tmp_path, 0)
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("part", [1, 7, 4096])
def test_the_bytes_do_not_depend_on_how_much_is_drawn_at_a_time(tmp_path, monkeypatch, part):
    for kind in ("gaussian", "dead_leaves", "stylegan"):
        own = {"kind": kind, "count": 30, "channels": 1, "shard": 25}
        expected = [shard.sha256 for shard in write(tmp_path / "plain" / kind, **own)]
        monkeypatch.setattr(shards, "PART", part)
        assert [shard.sha256 for shard in write(tmp_path / "parts" / kind, **own)] == expected
        monkeypatch.undo()


def test_shards_of_other_images_are_not_taken_for_ours(tmp_path):
    write(tmp_path)
    assert states(tmp_path, seed=4) == ["drawn"] * 3
    assert np.array_equal(
        np.load(path_of(tmp_path, 0)), draw("gaussian", seed=4, first=0, count=20, size=9, channels=3)
    )


def test_an_interrupted_shard_does_not_count_and_the_next_writer_completes_it(tmp_path):
    def interrupt(images: int) -> None:
        raise KeyboardInterrupt

    write(tmp_path, 0)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1, progress=interrupt)
    assert not path_of(tmp_path, 1).exists()
    # State after a kill: the shard was renamed but not recorded.
    path_of(tmp_path, 1).write_bytes(b"unrecorded")
    assert states(tmp_path) == ["kept", "drawn", "drawn"]


def test_a_full_disk_is_a_clear_error_and_leaves_no_half_shard(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write(tmp_path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArtefactError, match="No space left on device"):
            write(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.json", "shard-000000.npy"]
    assert states(tmp_path) == ["kept", "drawn", "drawn"]


@pytest.mark.parametrize("wrong", [{"kind": "nothing"}, {"count": 0}, {"shard": -1}])
def test_an_impossible_set_is_refused_before_any_work(wrong):
    with pytest.raises(SettingError):
        stretches(**{"kind": "gaussian", **SET, **wrong})


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from terrine.synthetic import shards
# The programs' own memory is bounded elsewhere; here a slice costs nothing to draw.
shards.draw = lambda kind, *, count, size, channels, **_: torch.zeros(count, channels, size, size, dtype=torch.uint8)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for count in (10, 400):
    before = peak()
    (part,) = shards.stretches("gaussian", count=count, seed=0, size=320, channels=3, shard=count)
    shards.write_stretch(Path(sys.argv[1]) / "shard.npy", part)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs between systems")
def test_memory_does_not_grow_with_the_shard(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    growth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The second shard has 117 MB; no more than a few slices of 8 MB are held at a time.
    assert growth < 60
