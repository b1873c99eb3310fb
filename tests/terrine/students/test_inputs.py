"""Inputs of students: their data, views of images, features of a frozen backbone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError, SettingError
from terrine.models.deformations import Deformations
from terrine.queries import Queries
from terrine.students.answers import label_answers
from terrine.students.inputs import (
    Augmentation,
    ImageInputs,
    augment,
    compute_scores,
    strong_augmentation,
    view_features,
    weak_augmentation,
)
from terrine.students.student import StudentData
from terrine.students.training import FEWEST_HELD_OUT, draw, split_answers
from tests.terrine.students.helpers import frozen_backbone, small_network, some_images, some_material

STILL = Deformations(rotation=0, scale=0, shear=0, shift=0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=12, side=16, channels=1):
    return torch.rand(count, channels, side, side, generator=generator(5))


def test_nothing_asked_nothing_changed():
    torch.testing.assert_close(augment(images(), Augmentation("still", STILL), generator()), images())


def test_a_weak_view_is_the_image_shifted_by_an_eighth_of_its_side_at_most():
    """A single bright pixel moves by at most two pixels of sixteen each way, and some do move."""
    spots = torch.zeros(200, 1, 16, 16)
    spots[:, :, 8, 8] = 1
    views = augment(spots, weak_augmentation(flip=False), generator())
    places = torch.arange(16.0)
    weight = views / views.sum((2, 3), keepdim=True)
    rows = (weight.sum(3) * places).sum(2) - 8
    columns = (weight.sum(2) * places).sum(2) - 8
    for moved in (rows, columns):
        assert moved.abs().max() <= 2 + 1e-4
        assert moved.abs().max() > 1.5


def test_half_of_the_views_are_mirrored_where_the_data_allow_it():
    mirrored = augment(images(400), Augmentation("flip", STILL, flip=True), generator())
    same = torch.isclose(mirrored, images(400), atol=1e-5).flatten(1).all(1)
    flipped = torch.isclose(mirrored, images(400).flip(-1), atol=1e-5).flatten(1).all(1)
    assert bool((same ^ flipped).all())
    assert 0.4 < float(flipped.float().mean()) < 0.6


def test_contrast_and_brightness_are_factors_about_the_mean_and_about_black():
    plain = images(6) * 0.4 + 0.2
    contrast = augment(plain, Augmentation("contrast", STILL, contrast=0.5), generator())
    brightness = augment(plain, Augmentation("brightness", STILL, brightness=0.5), generator())
    for image, changed in zip(plain, contrast, strict=True):
        factor = (changed - image.mean()) / (image - image.mean())
        assert factor.std() < 1e-3
        assert 0.5 <= factor.mean() <= 1.5
    for image, changed in zip(plain, brightness, strict=True):
        assert (changed / image).std() < 1e-4


def test_the_erased_part_is_a_square_of_the_images_mean():
    plain = images(100)
    views = augment(plain, Augmentation("erase", STILL, erase=0.5), generator())
    sizes = []
    for image, view in zip(plain, views, strict=True):
        changed = ~torch.isclose(image, view, atol=1e-5)[0]
        if not changed.any():
            continue
        rows, columns = torch.where(changed.any(1))[0], torch.where(changed.any(0))[0]
        block = view[0, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        torch.testing.assert_close(block, torch.full_like(block, float(image.mean())))
        sizes.append(max(block.shape))
    assert len(sizes) > 50
    assert 6 <= max(sizes) <= 9


def test_strong_views_stay_images_and_differ_more_than_weak_ones():
    plain = images(64, channels=3)
    weak, strong = (augment(plain, make(flip=False), generator()) for make in (weak_augmentation, strong_augmentation))
    for views in (weak, strong):
        assert views.shape == plain.shape
        assert float(views.min()) >= 0
        assert float(views.max()) <= 1
    smooth = torch.nn.functional.interpolate(torch.rand(64, 1, 4, 4, generator=generator(1)), 16, mode="bilinear")
    distance = [
        float((augment(smooth, make(flip=False), generator()) - smooth).square().mean())
        for make in (weak_augmentation, strong_augmentation)
    ]
    assert distance[1] > 1.5 * distance[0]


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_features_of_views_are_those_of_each_batch_of_views_by_itself(statistics):
    pixels, _ = some_images(50)
    batches = np.array_split(np.random.default_rng(0).permutation(50), 3)
    backbone = frozen_backbone()
    answers = label_answers(np.zeros(50, np.int64), 2)
    data = StudentData(Queries(pixels, batches, ["one"] * 3), np.arange(50), answers, backbone, statistics)
    found = {}
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found[threads] = view_features(data, strong_augmentation(False), 3, seed=7)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found[1], found[2])
    for position, batch in enumerate(batches):
        own = augment(
            torch.tensor(pixels[batch]) / 255,
            strong_augmentation(False),
            torch_generator(7, "view strong", 3, position),
        )
        np.testing.assert_allclose(found[1][batch], backbone.features(own, statistics).numpy(), atol=1e-5)
    other = view_features(data, strong_augmentation(False), 2, seed=7)
    assert not np.allclose(found[1], other, atol=0.1)


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
        torch.testing.assert_close(compute_scores(inputs, rows), expected, atol=1e-5, rtol=1e-5)


def test_parts_of_a_batch_have_its_scores_and_gradients_and_keep_no_activations():
    material = some_material(small_network(), statistics="original")
    head, rows = nn.Linear(12, 3), np.arange(20)
    found, kept = [], []
    for micro_batch in (None, 6):
        inputs = ImageInputs(
            material, material.backbone, head, flip=False, device=torch.device("cpu"), micro_batch=micro_batch
        )
        saved: list[int] = []

        def note(value, saved=saved):
            saved.append(value.numel())
            return value

        material.backbone.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            scores = inputs.scores(inputs.view("strong", rows, seed=1))
        kept.append(sum(saved))
        scores.square().sum().backward()
        found.append([scores.detach(), *(weight.grad.clone() for weight in material.backbone.parameters())])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)
    assert kept[1] < kept[0] / 4


def test_parts_with_statistics_of_their_own_are_refused():
    material = some_material(small_network(), statistics="current")
    with pytest.raises(SettingError, match=r"student\.micro_batch=6 would normalise each part"):
        ImageInputs(
            material, material.backbone, nn.Linear(12, 3), flip=False, device=torch.device("cpu"), micro_batch=6
        )
