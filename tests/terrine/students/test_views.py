"""Views of images: what each setting does, and features of views batch by batch."""

import numpy as np
import pytest
import torch

from terrine.determinism.randomness import torch_generator
from terrine.models.deformations import Deformations
from terrine.queries import Queries
from terrine.students.answers import label_answers
from terrine.students.inputs import Augmentation, augment, strong_augmentation, view_features, weak_augmentation
from terrine.students.student import StudentData
from tests.terrine.students.helpers import frozen_backbone, some_images

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
