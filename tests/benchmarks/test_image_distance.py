"""The kernel distance: what a plain double loop computes, unbiased, and a figure that tells near from far."""

import itertools

import numpy as np
import pytest

from benchmarks.image_distance import (
    Extractor,
    draw_rows,
    image_distances,
    kernel_distance,
    normalise,
    scattering_extractor,
)
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.synthetic.program import draw


def plain_kernel(x: np.ndarray, y: np.ndarray) -> float:
    return (sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) / len(x) + 1) ** 3


def plain_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased squared maximum mean discrepancy of two samples, pair by pair."""
    same_x = [plain_kernel(x[i], x[j]) for i, j in itertools.permutations(range(len(x)), 2)]
    same_y = [plain_kernel(y[i], y[j]) for i, j in itertools.permutations(range(len(y)), 2)]
    across = [plain_kernel(a, b) for a in x for b in y]
    return sum(same_x) / len(same_x) + sum(same_y) / len(same_y) - 2 * sum(across) / len(across)


@pytest.mark.parametrize(
    ("rows", "others", "features", "block", "blocks"), [(12, 12, 3, 6, 2), (9, 17, 1, 500, 2), (13, 40, 5, 4, 3)]
)
def test_the_figure_is_what_a_double_loop_over_pairs_computes(rows, others, features, block, blocks):
    generator = np.random.default_rng(rows)
    x = generator.normal(size=(rows, features)).astype(np.float32)
    y = generator.normal(0.5, 2, size=(others, features)).astype(np.float32)
    found = kernel_distance(x, y, seed=4, block=block)
    size = min(block, rows // 2)
    order_x = numpy_generator(4, "kernel distance synthetic").permutation(rows)
    order_y = numpy_generator(4, "kernel distance real").permutation(others)
    expected = [
        plain_distance(x[order_x[first : first + size]], y[order_y[first : first + size]])
        for first in range(0, blocks * size, size)
    ]
    assert (found.blocks, found.rows) == (blocks, blocks * size)
    assert found.distance == pytest.approx(np.mean(expected), rel=1e-9, abs=1e-12)
    assert found.standard_error == pytest.approx(np.std(expected, ddof=1) / np.sqrt(blocks), rel=1e-6, abs=1e-12)


def test_two_samples_of_one_distribution_are_at_zero_on_average_and_on_both_sides_of_it():
    generator = np.random.default_rng(1)
    figures = np.array(
        [
            kernel_distance(*generator.normal(size=(2, 60, 4)), seed=seed, block=30).distance  # type: ignore[misc]
            for seed in range(200)
        ]
    )
    error = figures.std(ddof=1) / np.sqrt(len(figures))
    assert abs(figures.mean()) < 4 * error
    assert (figures < 0).mean() > 0.3


def test_a_known_shift_has_the_distance_that_the_moments_give():
    """For d = 1 and k = (xy + 1)³ the squared distance is 3 Δ₁² + 3 Δ₂² + Δ₃², Δₖ the difference of k-th moments."""
    generator = np.random.default_rng(2)
    x, y = generator.normal(0, 1, (40_000, 1)), generator.normal(1, 1, (40_000, 1))
    exact = 3 * 1**2 + 3 * (2 - 1) ** 2 + (4 - 0) ** 2
    found = kernel_distance(x, y, seed=0, block=500)
    assert found.distance == pytest.approx(exact, abs=4 * found.standard_error)
    assert found.standard_error < 1.0


def test_units_are_those_of_the_reference_and_a_constant_feature_is_not_blown_up():
    generator = np.random.default_rng(3)
    reference = np.concatenate([generator.normal(5, 3, (200, 4)), np.full((200, 1), -7.0)], axis=1)
    scaled = normalise(reference, reference)
    assert scaled.mean(axis=0) == pytest.approx(0, abs=1e-9)
    assert (scaled**2).mean() == pytest.approx(1)
    other = reference.copy()
    other[:, 4] += 3
    assert np.abs(normalise(reference, other)[:, 4]).max() < 2
    assert np.isfinite(normalise(np.ones((5, 2)), np.zeros((5, 2)))).all()


def test_more_of_the_same_program_is_nearer_than_another_program():
    def images(kind, first):
        return draw(kind, seed=0, first=first, count=120, size=12, channels=1).numpy()

    extractor = scattering_extractor(channels=1)
    real = images("dead_leaves", 0)
    same = image_distances(extractor, {"": images("dead_leaves", 120)}, real, seed=0)[""]
    other = image_distances(extractor, {"": images("gaussian", 0)}, real, seed=0)[""]
    assert abs(same.distance) < 4 * same.standard_error + 0.05
    assert other.distance > 10 * abs(same.distance)
    together = image_distances(
        extractor, {"gaussian": images("gaussian", 0), "same": images("dead_leaves", 120)}, real, seed=0
    )
    assert together == {"gaussian": other, "same": same}


def test_scattering_features_of_an_image_depend_on_that_image_alone_and_large_images_are_reduced():
    images = draw("stylegan", seed=0, first=0, count=6, size=40, channels=3).numpy()
    features = scattering_extractor(channels=3).features(images)
    assert features.shape == (6, 500)
    np.testing.assert_allclose(scattering_extractor(channels=3).features(images[2:3]), features[2:3], atol=1e-4)
    # 40 pixels become 32 by averaging; a picture that is 2x2 blocks of 20 keeps its blocks.
    blocks = np.kron(np.array([[0, 255], [255, 0]], np.uint8), np.ones((32, 32), np.uint8))[None, None]
    small = np.kron(np.array([[0, 255], [255, 0]], np.uint8), np.ones((16, 16), np.uint8))[None, None]
    extractor = scattering_extractor(channels=1)
    np.testing.assert_array_equal(extractor.features(blocks), extractor.features(small))


def test_any_extractor_serves_and_at_most_the_sample_is_read():
    seen = []

    def brightness(images):
        seen.append(len(images))
        return images.reshape(len(images), -1).mean(axis=1, keepdims=True).astype(np.float32)

    generator = np.random.default_rng(0)
    real, synthetic = (generator.integers(0, top, (90, 1, 8, 8), dtype=np.uint8) for top in (100, 200))
    found = image_distances(Extractor("brightness", brightness), {"": synthetic}, real, seed=0, sample=40)[""]
    assert seen == [40, 40]
    assert found.distance > 1
    assert np.array_equal(draw_rows(3, 40, 0, "x"), [0, 1, 2])


@pytest.mark.parametrize("bad", [np.zeros((3, 3)), np.zeros((10, 3, 1)), np.full((10, 3), np.nan), np.zeros((10, 4))])
def test_arrays_that_cannot_be_compared_are_refused(bad):
    with pytest.raises(InputError, match=r"synthetic features of shape .* must be \[rows, 3\], finite"):
        kernel_distance(bad, np.zeros((10, 3)), seed=0)
