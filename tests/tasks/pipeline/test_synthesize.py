"""Synthetic images as artefacts: shards, links, fixed batches."""

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.images import read_pretraining, read_queries
from tasks.config.params import validate
from tasks.config.sections import Images
from tasks.pipeline import synthesize
from tasks.pipeline.synthesize import drawing_cost
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.determinism.randomness import derive_seed
from terrine.errors import ArtefactError
from terrine.files import file_digest
from terrine.npy import MappedRows
from terrine.synthetic.program import draw
from tests.folder_digest import folder_digest


def make(root, **overrides):
    queries = {"count": 50, "batch": 16, "sources": {"gaussian": 1, "dead_leaves": 2}} | overrides
    values = {
        "data": {"public_benchmark": True, "size": 8},
        "aggregation": {"mechanism": "histogram", "sigma": 5},
        "queries": queries,
    }
    return Run(root, "small", validate(values))


def draw_all(run):
    run_through(run, "synthesize", "synthesize")
    return read_queries(run.folders)


@pytest.mark.parametrize("count", [1, 7, 50, 1001])
def test_shares_add_up_and_follow_the_weights(count):
    shares = Images(count=count, sources={"a": 1, "b": 2, "c": 0.5}).shares()
    assert sum(shares.values()) == count
    for kind, weight in {"a": 1, "b": 2, "c": 0.5}.items():
        assert abs(shares.get(kind, 0) - count * weight / 3.5) < 1


def test_a_batch_has_one_source_and_batches_tile_the_queries(tmp_path):
    queries = draw_all(make(tmp_path))
    assert np.array_equal(np.concatenate(queries.batches), np.arange(50))
    assert all(2 <= len(batch) <= 17 for batch in queries.batches)
    assert set(queries.sources) == {"gaussian", "dead_leaves"}
    assert queries.images.shape == (50, 1, 8, 8)


def test_a_stray_last_image_joins_the_batch_before_it(tmp_path):
    batches = draw_all(make(tmp_path, count=33, sources={"gaussian": 1})).batches
    assert [len(batch) for batch in batches] == [16, 17]


def test_runs_with_equal_images_share_them_and_the_shard_size_changes_no_pixel(tmp_path, monkeypatch):
    first = draw_all(make(tmp_path / "one"))
    monkeypatch.setattr(synthesize, "SHARD", 7)
    second = draw_all(make(tmp_path / "two"))
    np.testing.assert_array_equal(first.images, second.images)


def test_a_damaged_shard_is_drawn_again_and_said_so(tmp_path, caplog):
    run = make(tmp_path)
    expected = draw_all(run).images
    before = folder_digest(run.folders.images)
    path = synthesize.shard_path(run, synthesize.plan(run)[0])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(draw_all(run).images, expected)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} did not match its digest and was drawn again."
    ]
    assert folder_digest(run.folders.images) == before


def test_a_full_disk_is_a_clear_error_and_no_half_shard_counts(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = make(tmp_path)
    first, second = synthesize.plan(run)
    synthesize.draw_shard.fn(run, first)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArtefactError, match="No space left on device"):
            synthesize.draw_shard.fn(run, second)
    assert not list(synthesize.shard_path(run, second).parent.iterdir())
    with pytest.raises(ArtefactError, match="Run the stage 'synthesize' again"):
        synthesize.assemble_images.fn(run, [first, second])
    assert not run.folders.images.exists()
    assert draw_all(run).images.shape == (50, 1, 8, 8)


def test_shards_are_the_same_bytes_for_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "SHARD", 7)
    run = make(tmp_path)
    draws = synthesize.plan(run)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: synthesize.draw_shard.fn(run, part), reversed(draws)))
    synthesize.assemble_images.fn(run, draws)
    seed = derive_seed(run.params.seed, "queries")
    for kind, count in run.params.queries.shares().items():
        found = [np.load(synthesize.shard_path(run, part)) for part in draws if part.kind == kind]
        expected = draw(kind, seed=seed, first=0, count=count, size=8, channels=1).numpy()
        np.testing.assert_array_equal(np.concatenate(found), expected)


def test_the_manifest_holds_the_digests_of_the_files_and_the_cost_is_known_to_every_run_that_shares_them(tmp_path):
    run = make(tmp_path)
    draw_all(run)
    shards = read_json(run.folders.images / "manifest.json")["shards"]["queries"]
    assert [shard["sha256"] for shard in shards] == [
        file_digest(run.folders.images / shard["file"]) for shard in shards
    ]
    cost = drawing_cost(Run(tmp_path, "another", run.params))
    assert cost["images"] == 50
    assert cost["bytes"] == sum((run.folders.images / shard["file"]).stat().st_size for shard in shards)
    assert cost["images_per_second"] > 0
    synthesize.shard_path(run, synthesize.plan(run)[0]).with_suffix(".json").unlink()
    assert drawing_cost(run) == {}


def test_images_are_mapped_and_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "SHARD", 7)
    run = make(tmp_path)
    queries = draw_all(run)
    assert isinstance(queries.images, MappedRows)
    # A batch of 16 lies in three or four shards of 7; every batch is a stretch of its source.
    for batch, described in zip(
        queries.batches, read_json(run.folders.images / "manifest.json")["batches"], strict=True
    ):
        first, count = described["source_start"], described["count"]
        seed = derive_seed(run.params.seed, "queries")
        expected = draw(described["kind"], seed=seed, first=first, count=count, size=8, channels=1).numpy()
        np.testing.assert_array_equal(queries.images[batch], expected)


def test_pretraining_images_are_other_images_than_the_queries(tmp_path):
    values = make(tmp_path).params.model_dump()
    values["pretraining"]["images"] = {"count": 20, "sources": {"gaussian": 1}}
    run = Run(tmp_path, "small", validate(values))
    queries = draw_all(run).images
    pretraining = read_pretraining(run.folders)
    assert len(pretraining) == 20
    assert not {image.tobytes() for image in pretraining} & {image.tobytes() for image in queries}
