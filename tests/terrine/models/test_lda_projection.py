import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh

from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.models.backbone import as_float
from terrine.models.backbone_files import load_backbone, save_backbone
from terrine.models.deformations import Deformations, deform
from terrine.models.lda_projection import invariant_projection, learn_projection
from terrine.synthetic.program import draw

STILL = Deformations(rotation=0, scale=0, shear=0, shift=0)


@pytest.fixture(scope="module")
def images():
    """Three batches of 40 dead leaves of 16x16 pixels."""
    return draw("dead_leaves", seed=0, first=0, count=120, size=16, channels=1).numpy()


BATCHES = [np.arange(first, first + 40) for first in (0, 40, 80)]


def pixels(batch: torch.Tensor) -> torch.Tensor:
    """A backbone of 64 standardised means of 2x2 pixels."""
    flat = torch.nn.functional.avg_pool2d(batch, 2).flatten(1)
    return (flat - flat.mean(0)) / flat.std(0)


def written_out(features, images, seed, shrinkage):
    """Return the within-image scatter with the penalty, and the total scatter, summed directly over BATCHES."""
    within, total = 0, 0
    for number, batch in enumerate(BATCHES):
        generator = torch_generator(seed, "deformations", number)
        loaded = as_float(torch.from_numpy(images[batch]))
        views = [features(deform(loaded, Deformations(), generator)).double().numpy() for _ in range(2)]
        for first, second in zip(*views, strict=True):
            within = within + np.outer(first - second, first - second) / 2 / 120
            total = total + (np.outer(first, first) + np.outer(second, second)) / 2 / 120
    return within + shrinkage * np.trace(within) / len(within) * np.eye(len(within)), total


def test_the_projection_solves_fishers_problem_as_written_out_plainly(images):
    projection = invariant_projection(pixels, images, BATCHES, 5, seed=1, shrinkage=0.2)
    within, total = written_out(pixels, images, seed=1, shrinkage=0.2)
    ratios, directions = eigh(total, within)
    best = directions[:, ::-1][:, :5]
    best = best * np.sign((best * projection.numpy()).sum(0))
    np.testing.assert_allclose(projection.numpy(), best, atol=1e-3)
    np.testing.assert_allclose(
        projection.T.double().numpy() @ within @ projection.double().numpy(), np.eye(5), atol=1e-4
    )
    assert (np.diff(np.diag(projection.T.double().numpy() @ total @ projection.double().numpy())) <= 1e-4).all()
    assert ratios[-1] > 2


def test_directions_that_deformations_disturb_are_left_out(images):
    def features(batch: torch.Tensor) -> torch.Tensor:
        # Overall brightness hardly changes when an image is turned; single pixels do.
        values = torch.cat([batch.mean((1, 2, 3))[:, None], batch[:, 0, 3, 3:7]], dim=1)
        return (values - values.mean(0)) / values.std(0)

    projection = invariant_projection(features, images, BATCHES, 1, seed=0, shrinkage=0.01)
    shares = projection[:, 0].abs() / projection[:, 0].abs().sum()
    assert shares[0] > 0.7


def test_the_projection_is_the_same_bytes_on_one_thread_and_on_two(images):
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(invariant_projection(pixels, images, BATCHES, 8, seed=0).numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_of_many_features_the_span_of_images_is_looked_at(images, monkeypatch):
    monkeypatch.setattr("terrine.models.lda_projection._LARGEST", 30)
    projection = invariant_projection(pixels, images, BATCHES, 5, seed=0)
    assert projection.shape == (64, 5)
    with pytest.raises(SettingError, match="1 to 30"):
        invariant_projection(pixels, images, BATCHES, 31, seed=0)


def test_nothing_is_lost_where_features_have_fewer_dimensions_than_are_looked_at(images, monkeypatch):
    mixed = torch.randn(20, 64, generator=torch_generator(0, "test")) / math.sqrt(20)

    def features(batch: torch.Tensor) -> torch.Tensor:
        return pixels(batch)[:, :20] @ mixed

    whole = invariant_projection(features, images, BATCHES, 5, seed=0)
    monkeypatch.setattr("terrine.models.lda_projection._LARGEST", 30)
    spanned = invariant_projection(features, images, BATCHES, 5, seed=0)
    seen = [features(as_float(torch.from_numpy(images))) @ projection for projection in (whole, spanned)]
    sign = (seen[0] * seen[1]).sum(0).sign()
    torch.testing.assert_close(seen[1] * sign, seen[0], atol=1e-2, rtol=1e-2)


def test_fewer_images_than_directions_are_made_up_at_random(images, monkeypatch):
    monkeypatch.setattr("terrine.models.lda_projection._LARGEST", 60)
    few = [np.arange(10), np.arange(10, 20)]
    assert invariant_projection(pixels, images, few, 40, seed=0).isfinite().all()


def test_images_span_directions_that_sums_at_random_do_not(images, monkeypatch):
    """Fisher's criterion of five directions, of 256 features looked at through 60."""

    def features(batch: torch.Tensor) -> torch.Tensor:
        flat = batch.flatten(1)
        return (flat - flat.mean(0)) / flat.std(0)

    def criterion(projection: torch.Tensor) -> float:
        within, total = written_out(features, images, seed=0, shrinkage=0.3)
        kept = projection.double().numpy()
        return float(np.trace(np.linalg.solve(kept.T @ within @ kept, kept.T @ total @ kept)))

    monkeypatch.setattr("terrine.models.lda_projection._LARGEST", 60)
    spanned = criterion(invariant_projection(features, images, BATCHES, 5, seed=0))
    sums = torch.linalg.qr(torch.randn(256, 60, generator=torch_generator(0, "test"))).Q
    mixed = criterion(sums @ invariant_projection(lambda batch: features(batch) @ sums, images, BATCHES, 5, seed=0))
    assert spanned > 1.5 * mixed


def test_no_deformation_leaves_images_as_they_are(images):
    floats = as_float(torch.from_numpy(images[:8]))
    torch.testing.assert_close(deform(floats, STILL, torch_generator(0, "test")), floats, atol=1e-5, rtol=0)


def test_a_shift_moves_every_image_by_its_own_amount_and_mirrors_the_border():
    ramp = torch.arange(16.0).expand(50, 1, 16, 16) / 16
    moved = deform(ramp, Deformations(rotation=0, scale=0, shear=0, shift=0.25), torch_generator(0, "test"))
    shift = (moved[:, 0, 8, 8] - ramp[:, 0, 8, 8]) * 16
    assert shift.abs().max() <= 2.001  # a quarter of half the side
    assert shift.std() > 0.5
    torch.testing.assert_close(moved[:, 0, :, 4:12], ramp[:, 0, :, 4:12] + shift[:, None, None] / 16, atol=1e-4, rtol=0)
    assert moved.min() >= 0
    assert moved.max() <= 15 / 16


def test_a_rotation_keeps_a_disc_and_turns_a_bar():
    row, column = torch.meshgrid(torch.arange(17.0) - 8, torch.arange(17.0) - 8, indexing="ij")
    disc = torch.exp(-(row**2 + column**2) / 18).expand(20, 1, 17, 17)
    turned = deform(disc, Deformations(rotation=45, scale=0, shear=0, shift=0), torch_generator(0, "test"))
    assert (turned - disc)[:, :, 3:14, 3:14].abs().max() < 0.03
    bar = torch.exp(-(row**2) / 2).expand(20, 1, 17, 17)
    turned = deform(bar, Deformations(rotation=45, scale=0, shear=0, shift=0), torch_generator(0, "test"))[:, 0]
    weight = turned[:, 4:13, 4:13]
    covariance = (weight * (row * column)[4:13, 4:13]).sum((1, 2))
    assert covariance.min() < -1
    assert covariance.max() > 1


def test_a_backbone_learns_its_projection_and_keeps_it_when_stored(images, tmp_path):
    backbone = build_backbone("scattering", channels=1, size=16, seed=0, projection=12)
    random = backbone.network.projection.clone()
    learn_projection(backbone, images, BATCHES, seed=0)
    assert not torch.equal(backbone.network.projection, random)
    save_backbone(backbone, tmp_path / "backbone.safetensors")
    again = load_backbone(tmp_path / "backbone.safetensors")
    batch = torch.from_numpy(images[:40])
    assert torch.equal(again.features(batch, "current"), backbone.features(batch, "current"))
    assert again.feature_dim == 12


def test_features_learned_vary_less_within_an_image_than_random_ones(images):
    def spread(backbone) -> float:
        fresh = as_float(draw("stylegan", seed=3, first=0, count=40, size=16, channels=1))
        first, second = (
            backbone.features(deform(fresh, Deformations(), torch_generator(9, "test", n)), "current") for n in range(2)
        )
        return float((first - second).square().mean() / first.square().mean())

    random = build_backbone("scattering", channels=1, size=16, seed=0, projection=12)
    learned = build_backbone("scattering", channels=1, size=16, seed=0, projection=12)
    learn_projection(learned, images, BATCHES, seed=0)
    assert spread(learned) < 0.7 * spread(random)


def test_what_cannot_be_learned_from_is_refused(images):
    with pytest.raises(InputError, match="at least one batch"):
        invariant_projection(pixels, images, [], 5, seed=0)
    with pytest.raises(InputError, match="at least two images"):
        invariant_projection(pixels, images, [np.arange(1)], 5, seed=0)
    with pytest.raises(SettingError, match="1 to 64"):
        invariant_projection(pixels, images, BATCHES, 65, seed=0)
    with pytest.raises(SettingError, match="shrinkage is 0"):
        invariant_projection(pixels, images, BATCHES, 5, seed=0, shrinkage=0.0)
    with pytest.raises(SettingError, match="shrinkage is nan"):
        invariant_projection(pixels, images, BATCHES, 5, seed=0, shrinkage=math.nan)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Deformations(rotation=-1)
    for kind, options in (("scattering", {"projection": None}), ("resnet10", {})):
        with pytest.raises(SettingError, match="only a backbone of scattering or patches"):
            learn_projection(build_backbone(kind, channels=1, size=16, seed=0, **options), images, BATCHES, seed=0)
