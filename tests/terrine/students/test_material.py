"""What a student is given, checked at the door; which weights it trains; which images share a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from terrine.errors import InputError
from terrine.queries import Queries
from terrine.students.inputs import ImageInputs, scores_of
from terrine.students.training import FEWEST_HELD_OUT, draw, split_answers
from tests.terrine.students.helpers import frozen_backbone, small_network, some_images, some_material


def test_a_pool_whose_batches_do_not_cover_it_once_is_refused():
    material, (images, _) = some_material(frozen_backbone(), answered=5), some_images(10)
    for batches in ([np.arange(9)], [np.arange(10), np.arange(3)], []):
        with pytest.raises(InputError, match="Every image belongs in one batch"):
            replace(material, pool=Queries(images, batches, ["a"] * len(batches)))
    with pytest.raises(InputError, match="every batch to one source"):
        replace(material, pool=Queries(images, [np.arange(10)], ["a", "b"]))


def test_answers_about_other_images_are_refused():
    material = some_material(frozen_backbone(), answered=5)
    for rows in ([0, 1, 2, 3], [0, 1, 2, 3, 999], [0, 1, 2, 3, 3], [-1, 0, 1, 2, 3]):
        with pytest.raises(InputError, match=r"Answers are about|do not fit together"):
            replace(material, rows=np.array(rows))


def test_images_are_grouped_by_source():
    images, _ = some_images(8)
    pool = Queries(images, [np.array([5, 1]), np.array([0, 2]), np.array([3, 4, 6, 7])], ["b", "a", "b"])
    found = {source: numbers.tolist() for source, numbers in pool.by_source().items()}
    assert list(found.items()) == [("a", [0, 2]), ("b", [1, 3, 4, 5, 6, 7])]


def test_a_draw_takes_members_of_one_group_once_and_groups_by_their_size():
    groups = [np.arange(100), np.arange(100, 400), np.empty(0, np.int64)]
    generator = np.random.default_rng(0)
    first = 0
    for _ in range(2000):
        drawn = draw(groups, 20, generator)
        assert len(set(drawn.tolist())) == 20
        inside = (drawn < 100).sum()
        assert inside in (0, 20)
        first += inside == 20
    assert 0.2 < first / 2000 < 0.3
    assert draw([np.array([4, 9])], 20, generator).tolist() == [4, 9]


def test_one_answer_in_eight_of_every_source_is_held_out_but_never_of_few():
    rows = np.arange(0, 400, 2)
    groups = [np.arange(300), np.arange(300, 400)]
    split = split_answers(rows, groups, seed=3)
    own = [np.isin(rows[split.held_out], group).sum() for group in groups]
    assert own == [150 // 8, 0]
    assert 50 < FEWEST_HELD_OUT <= 150
    assert sorted([*split.kept, *split.held_out]) == list(range(200))
    again, other = split_answers(rows, groups, seed=3), split_answers(rows, groups, seed=4)
    assert np.array_equal(split.held_out, again.held_out)
    assert not np.array_equal(split.held_out, other.held_out)


def test_scores_come_back_in_the_order_of_the_images_asked_for():
    material = some_material(small_network(), statistics="original")
    head = nn.Linear(12, 3)
    together = ImageInputs(material, material.backbone, head, flip=False, device=torch.device("cpu"))
    apart = ImageInputs(
        replace(material, statistics="current"), material.backbone, head, flip=False, device=torch.device("cpu")
    )
    apart.statistics = "original"  # the grouping of current statistics, on scores that do not depend on their batch
    rows = np.random.default_rng(0).permutation(240)[:101]
    expected = torch.cat([together.scores(together.plain(rows[k : k + 1])) for k in range(101)]).detach()
    for inputs in (together, apart):
        torch.testing.assert_close(scores_of(inputs, rows), expected, atol=1e-5, rtol=1e-5)
