"""A finished run notices that the files behind its records changed, and tells files from records."""

import os
from dataclasses import replace

import pytest

from tasks.pipeline.dataset import SOURCE, files_changed, note_changed_files, prepare_dataset
from tasks.runtime.release_identity import data_changes
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.runs import settle

OWN = [name for name, form in FORMATS.items() if "root" not in form.data]


def later(root):
    """Give all files another time, as copying them does."""
    for path in root.rglob("*"):
        if path.is_file() and "data" not in path.relative_to(root).parts:
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


@pytest.mark.parametrize("name", OWN)
def test_other_records_are_told_and_other_times_are_not(name, tmp_path):
    form = FORMATS[name]
    world = worlds.base(form.classes, form.records)
    run = settle(tmp_path, form, world, privacy={"unit": form.units[0]})
    prepare_dataset.fn(run)
    assert files_changed(run) is None
    assert not note_changed_files(run)
    later(tmp_path)
    assert "with other names, sizes or times" in files_changed(run)
    assert not note_changed_files(run)  # the same records
    assert files_changed(run) is None
    one = next(iter(world))
    form.write(tmp_path, {**world, one: replace(world[one], image=255 - world[one].image)})
    later(tmp_path)
    assert note_changed_files(run)
    (told,) = data_changes(run)
    assert "The data changed since this run read them" in told
    assert "--set data.edition=2" in told
    form.write(tmp_path, world)
    assert not note_changed_files(run)
    assert data_changes(run) == []


def test_files_that_were_added_removed_or_cannot_be_read_are_counted(tmp_path):
    form = FORMATS["class folders"]
    run = settle(tmp_path, form, worlds.base(form.classes, form.records))
    prepare_dataset.fn(run)
    image = next(tmp_path.glob("photos/*/*.png"))
    content = image.read_bytes()
    image.with_name("one more.png").write_bytes(content)
    assert files_changed(run) == "83 files then, 84 now"
    assert note_changed_files(run)
    image.with_name("one more.png").unlink()
    image.write_bytes(content[: len(content) // 2])
    assert note_changed_files(run)
    assert image.name in data_changes(run)[0]


def test_a_benchmark_has_no_files_of_the_users(tmp_path):
    run = settle(tmp_path, FORMATS["mnist"], worlds.base(10))
    prepare_dataset.fn(run)
    assert (run.folders.private / SOURCE).read_text().count('"files": 0')
    assert files_changed(run) is None
