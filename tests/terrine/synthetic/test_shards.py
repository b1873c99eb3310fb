"""Image sets on disk: nothing half-written counts, damage is noticed, memory stays small."""

import errno
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from terrine.errors import ArtefactError, SettingError
from terrine.synthetic import shards
from terrine.synthetic.program import draw
from terrine.synthetic.shards import (
    Recipe,
    finish,
    open_shards,
    plan,
    read_shard_record,
    shard_path,
    write_shard,
)

RECIPE = Recipe("gaussian", count=50, seed=3, size=9, channels=3, shard=20)


def write(folder, recipe=RECIPE):
    written = [write_shard(folder, recipe, number) for number in range(len(recipe.plan()))]
    finish(folder, recipe)
    return written


def test_the_plan_covers_every_image_once():
    assert plan(50, 20) == [range(0, 20), range(20, 40), range(40, 50)]
    assert plan(40, 20) == [range(0, 20), range(20, 40)]
    assert Recipe("gaussian", count=10**6, seed=0, size=28, channels=1).shard == (64 << 20) // 784


def test_a_set_holds_the_images_that_the_program_draws(tmp_path):
    written = write(tmp_path)
    assert [shard.state for shard in written] == ["drawn"] * 3
    expected = draw("gaussian", seed=3, first=0, count=50, size=9, channels=3).numpy()
    images = open_shards(tmp_path)
    assert len(images) == 50
    assert images.shape == (50, 3, 9, 9)
    assert np.array_equal(images[:], expected)
    assert np.array_equal(images[17:43], expected[17:43])
    assert np.array_equal(images[[49, 0, 20]], expected[[49, 0, 20]])
    for number in (0, 19, 20, 49, -1):
        assert np.array_equal(images[number], expected[number])
    with pytest.raises(IndexError):
        images[50]
    assert np.array_equal(np.load(shard_path(tmp_path, 2)), expected[40:])


def test_shards_may_be_written_in_any_order_and_again(tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    write(folders[0])
    for number in (2, 0, 1):
        write_shard(folders[1], RECIPE, number)
    finish(folders[1], RECIPE)
    for path in [*sorted(folders[0].glob("*.npy")), folders[0] / "manifest.json"]:
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()
    assert [shard.state for shard in write(folders[0])] == ["kept"] * 3


def test_a_damaged_shard_is_drawn_again_and_said_so(tmp_path):
    write(tmp_path)
    path = shard_path(tmp_path, 1)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert [shard.state for shard in write(tmp_path)] == ["kept", "redrawn", "kept"]
    assert path.read_bytes() == good


def test_a_shard_is_the_file_that_numpy_would_save_and_its_record_says_what_it_cost(tmp_path):
    shard = write(tmp_path)[1]
    stream = io.BytesIO()
    np.save(stream, draw("gaussian", seed=3, first=20, count=20, size=9, channels=3).numpy())
    assert shard.path.read_bytes() == stream.getvalue()
    record = read_shard_record(shard.path)
    assert record["bytes"] == shard.bytes == len(stream.getvalue())
    assert record["seconds"] == shard.seconds
    kept = write_shard(tmp_path, RECIPE, 1)
    assert (kept.state, kept.seconds) == ("kept", shard.seconds)


def test_a_set_that_grows_keeps_the_shards_that_were_full(tmp_path):
    write(tmp_path)
    larger = Recipe("gaussian", count=90, seed=3, size=9, channels=3, shard=20)
    assert [shard.state for shard in write(tmp_path, larger)] == ["kept", "kept", "drawn", "drawn", "drawn"]


def test_shards_of_another_version_of_the_programs_are_drawn_again(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(shards, "VERSION", -1)
    assert [shard.state for shard in write(tmp_path)] == ["drawn"] * 3


def test_what_a_killed_writer_left_long_ago_is_cleared_and_a_living_one_is_left_alone(tmp_path):
    path = shard_path(tmp_path, 0)
    old, young = (path.with_name(f".{path.name}.{name}.tmp") for name in ("old", "young"))
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (0, 0))
    write_shard(tmp_path, RECIPE, 0)
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("part", [1, 7, 4096])
def test_the_bytes_do_not_depend_on_how_much_is_drawn_at_a_time(tmp_path, monkeypatch, part):
    for kind in ("gaussian", "dead_leaves", "stylegan"):
        recipe = Recipe(kind, count=30, seed=0, size=9, channels=1, shard=25)
        expected = [shard.sha256 for shard in write(tmp_path / "plain" / kind, recipe)]
        monkeypatch.setattr(shards, "PART", part)
        assert [shard.sha256 for shard in write(tmp_path / "parts" / kind, recipe)] == expected
        monkeypatch.undo()


def test_shards_of_another_recipe_are_not_taken_for_ours(tmp_path):
    write(tmp_path)
    other = Recipe("gaussian", count=50, seed=4, size=9, channels=3, shard=20)
    with pytest.raises(ArtefactError, match="belongs to other images"):
        finish(tmp_path, other)
    write_shard(tmp_path, other, 0)
    with pytest.raises(ArtefactError, match="no complete image set"):
        open_shards(tmp_path)
    assert [shard.state for shard in write(tmp_path, other)] == ["kept", "drawn", "drawn"]
    assert np.array_equal(open_shards(tmp_path)[:], draw("gaussian", seed=4, first=0, count=50, size=9, channels=3))


def test_an_interrupted_shard_does_not_count_and_the_next_writer_completes_it(tmp_path):
    def interrupt(images: int) -> None:
        raise KeyboardInterrupt

    write_shard(tmp_path, RECIPE, 0)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path, RECIPE, 1, progress=interrupt)
    assert not shard_path(tmp_path, 1).exists()
    with pytest.raises(ArtefactError, match="missing"):
        finish(tmp_path, RECIPE)
    # What a kill leaves behind: a temporary file, and a shard that was renamed but not yet recorded.
    (tmp_path / ".shard-000001.npy.0.tmp").write_bytes(b"half")
    shard_path(tmp_path, 1).write_bytes(b"unrecorded")
    assert [shard.state for shard in write(tmp_path)] == ["kept", "drawn", "drawn"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_full_disk_is_a_clear_error_and_leaves_no_half_shard(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_shard(tmp_path, RECIPE, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArtefactError, match="No space left on device"):
            write_shard(tmp_path, RECIPE, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.json", "shard-000000.npy"]
    assert [shard.state for shard in write(tmp_path)] == ["kept", "drawn", "drawn"]


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ArtefactError, match="no complete image set"):
        open_shards(tmp_path)
    write(tmp_path)
    shard_path(tmp_path, 2).unlink()
    with pytest.raises(ArtefactError, match=r"shard-000002\.npy cannot be read"):
        open_shards(tmp_path)
    np.save(shard_path(tmp_path, 2), np.zeros((9, 3, 9, 9), np.uint8))
    with pytest.raises(ArtefactError, match="holds 9 rows where rows 0 to 9 are wanted"):
        open_shards(tmp_path)


def test_the_manifest_lists_every_shard_with_its_digest(tmp_path):
    written = write(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [shard["sha256"] for shard in manifest["shards"]] == [shard.sha256 for shard in written]
    assert [(shard["first"], shard["count"]) for shard in manifest["shards"]] == [(0, 20), (20, 20), (40, 10)]


@pytest.mark.parametrize("wrong", [{"kind": "nothing"}, {"count": 0}, {"shard": -1}])
def test_an_impossible_recipe_is_refused_before_any_work(wrong):
    with pytest.raises(SettingError):
        Recipe(**{"kind": "gaussian", "count": 1, "seed": 0, "size": 28, "channels": 1, **wrong})


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
    recipe = shards.Recipe("gaussian", count=count, seed=0, size=320, channels=3, shard=count)
    shards.write_shard(Path(sys.argv[1]), recipe, 0)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs between systems")
def test_memory_does_not_grow_with_the_shard(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    growth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The second shard has 117 MB; no more than a few slices of 8 MB are held at a time.
    assert growth < 60
