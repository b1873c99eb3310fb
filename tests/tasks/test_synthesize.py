"""Synthetic images as artefacts: shards, links, fixed batches."""

from itertools import pairwise

import numpy as np
import pytest

from tasks import synthesize
from tasks.params import Images, validate
from tasks.run import Run
from tasks.store import folder_digest


def make(root, **overrides):
    queries = {"count": 50, "batch": 16, "sources": {"gaussian": 1, "dead_leaves": 2}} | overrides
    values = {
        "data": {"public_benchmark": True, "size": 8},
        "aggregation": {"mechanism": "histogram", "sigma": 5},
        "queries": queries,
    }
    return Run(root, "small", validate(values))


def draw_all(run):
    draws = synthesize.plan(run)
    for draw in draws:
        synthesize.draw_shard.fn(run, draw)
    synthesize.assemble_images.fn(run, draws)
    return synthesize.read_queries(run.folders)


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
    assert set(queries.kinds) == {"gaussian", "dead_leaves"}
    assert queries.images.shape == (50, 1, 8, 8)


def test_sources_take_turns_so_that_any_prefix_asks_about_all(tmp_path):
    kinds = draw_all(make(tmp_path, count=96, sources={"gaussian": 1, "dead_leaves": 1})).kinds
    assert all(first != second for first, second in pairwise(kinds))


def test_a_stray_last_image_joins_the_batch_before_it(tmp_path):
    batches = draw_all(make(tmp_path, count=33, sources={"gaussian": 1})).batches
    assert [len(batch) for batch in batches] == [16, 17]


def test_runs_with_equal_images_share_them_and_the_shard_size_changes_no_pixel(tmp_path, monkeypatch):
    first = draw_all(make(tmp_path / "one"))
    monkeypatch.setattr(synthesize, "SHARD", 7)
    second = draw_all(make(tmp_path / "two"))
    np.testing.assert_array_equal(first.images, second.images)


def test_a_damaged_shard_is_drawn_again(tmp_path):
    run = make(tmp_path)
    expected = draw_all(run).images
    before = folder_digest(run.folders.images)
    path = synthesize.shard_path(run, synthesize.plan(run)[0])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    np.testing.assert_array_equal(draw_all(run).images, expected)
    assert folder_digest(run.folders.images) == before


def test_pretraining_images_are_other_images_than_the_queries(tmp_path):
    values = make(tmp_path).params.model_dump()
    values["pretraining"]["images"] = {"count": 20, "sources": {"gaussian": 1}}
    run = Run(tmp_path, "small", validate(values))
    queries = draw_all(run).images
    pretraining = synthesize.read_pretraining(run.folders)
    assert len(pretraining) == 20
    assert not {image.tobytes() for image in pretraining} & {image.tobytes() for image in queries}
