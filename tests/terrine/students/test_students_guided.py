"""Guided queries: the gradient, what becomes of the entropy, the bound, and which images are moved together."""

import math

import numpy as np
import pytest
import torch

from terrine.classifiers import LinearHead
from terrine.errors import InputError
from terrine.models.registry import build_backbone
from terrine.models.statistics import record_statistics
from terrine.queries import Queries
from terrine.students import guided
from terrine.students.guided import RADIUS, Guided, deal, entropy, guide, joined, none_yet, uncertain_images
from terrine.synthetic.registry import draw

SIZE, CLASSES = 16, 4
SOURCES = ("dead_leaves", "stylegan")


@pytest.fixture(scope="module")
def pool() -> Queries:
    """Two sources in turns, batches of ten."""
    drawn = [draw(kind, seed=0, first=0, count=20, size=SIZE, channels=1).numpy() for kind in SOURCES]
    images = np.concatenate([drawn[0][:10], drawn[1][:10], drawn[0][10:], drawn[1][10:]])
    return Queries(images, np.split(np.arange(40), 4), [*SOURCES, *SOURCES])


@pytest.fixture(scope="module", params=["scattering", "resnet10"])
def student(request, pool):
    """A backbone that has seen the pool, and a head that is sure of itself."""
    options = {"projection": 30, "orientations": 4} if request.param == "scattering" else {"stem": "standard"}
    backbone = build_backbone(request.param, channels=1, size=SIZE, seed=0, **options)
    backbone.eval()
    record_statistics(backbone, [torch.from_numpy(pool.images[batch]).float() / 255 for batch in pool.batches], "all")
    weight = np.random.default_rng(1).normal(size=(CLASSES, backbone.feature_dim)).astype(np.float32)
    return backbone, LinearHead(weight / math.sqrt(backbone.feature_dim) * 3, np.zeros(CLASSES, np.float32))


@pytest.fixture(scope="module")
def moved(student, pool):
    """The pool, moved on one thread under current statistics."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return uncertain_images(*student, pool.images, pool.batches, "current")
    finally:
        torch.set_num_threads(threads)


def mean_entropy(student, images, batches, statistics="current"):
    backbone, head = student
    total = 0.0
    for batch in batches:
        scores = backbone.features(torch.from_numpy(images[batch]), statistics).numpy() @ head.weight.T + head.bias
        for row in scores.astype(np.float64):
            shares = [math.exp(score - row.max()) for score in row]
            total -= sum(share / sum(shares) * math.log(share / sum(shares)) for share in shares)
    return total / len(images)


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_the_gradient_is_that_of_finite_differences(statistics: str) -> None:
    generator = torch.Generator().manual_seed(0)
    backbone = build_backbone("scattering", channels=1, size=8, seed=0, projection=5, orientations=2).double()
    backbone.eval()
    head = torch.nn.Linear(5, 3).double()
    images = torch.rand(3, 1, 8, 8, generator=generator, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(backbone, head, images, statistics).sum(), images)
    expected = torch.empty_like(gradient)
    step = 1e-6
    with torch.no_grad():
        for place in np.ndindex(*images.shape):
            ends = []
            for sign in (1, -1):
                moved = images.detach().clone()
                moved[place] += sign * step
                ends.append(float(entropy(backbone, head, moved, statistics).sum()))
            expected[place] = (ends[0] - ends[1]) / (2 * step)
    assert float(gradient.abs().max()) > 1e-3
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_an_image_without_any_contrast_has_a_gradient() -> None:
    backbone = build_backbone("scattering", channels=1, size=8, seed=0, projection=5, orientations=2)
    images = torch.stack([torch.zeros(1, 8, 8), torch.rand(1, 8, 8)]).requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(backbone, torch.nn.Linear(5, 3), images, "current").sum(), images)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_the_student_is_less_sure_of_images_that_were_moved(student, pool: Queries, moved, statistics: str) -> None:
    batches = pool.batches[:2]
    found = moved if statistics == "current" else uncertain_images(*student, pool.images[:20], batches, statistics)
    before, after = (mean_entropy(student, images, batches, statistics) for images in (pool.images, found))
    assert after > before + 0.1


@pytest.mark.parametrize("radius", [RADIUS, 0.03])
def test_no_image_changes_by_more_than_the_bound(student, pool: Queries, moved, radius: float, monkeypatch) -> None:
    if radius != RADIUS:
        monkeypatch.setattr(guided, "RADIUS", radius)
        moved = uncertain_images(*student, pool.images[:20], pool.batches[:2], "current")
    assert moved.dtype == np.uint8
    for image, start in zip(moved, pool.images, strict=radius == RADIUS):
        change = [(int(new) - int(old)) / 255 for new, old in zip(image.flat, start.flat, strict=True)]
        assert 0 < math.sqrt(sum(value**2 for value in change) / len(change)) <= radius + 1e-9


def test_an_image_is_one_at_every_step_and_black_never_runs_over_into_white(student, monkeypatch) -> None:
    plain, seen = guided.entropy, []

    def watched(backbone, head, images, statistics):
        seen.append((images.min().item(), images.max().item()))
        return plain(backbone, head, images, statistics)

    monkeypatch.setattr(guided, "entropy", watched)
    images = np.zeros((6, 1, SIZE, SIZE), np.uint8)
    images[:, :, ::3], images[3:, :, :, ::2] = 255, 255
    images[np.arange(6), 0, np.arange(6), 5] = 128
    moved = uncertain_images(*student, images, [np.arange(6)], "current").astype(int) - images
    # Were a value to run over either end, it would come out at the other.
    assert np.abs(moved).max() < 200
    assert len(seen) == guided.STEPS
    assert min(low for low, _ in seen) >= -1e-6
    assert max(high for _, high in seen) <= 1 + 1e-6


def test_a_batch_is_moved_by_itself_and_to_the_same_bytes_on_any_number_of_threads(student, pool, moved) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        alone = uncertain_images(*student, pool.images[:10], [np.arange(10)], "current")
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(alone, moved[:10])


def test_nothing_of_the_student_is_changed(student, pool: Queries) -> None:
    backbone, head = student
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    weight = head.weight.copy()
    uncertain_images(*student, pool.images[:10], [np.arange(10)], "current")
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.parameters())
    np.testing.assert_array_equal(head.weight, weight)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 13, 25, 100])
@pytest.mark.parametrize(("most", "fewest"), [(1, 1), (4, 2), (5, 1), (50, 2)])
def test_starts_are_the_first_ones_and_each_batch_is_of_one_source(pool, count: int, most: int, fewest: int) -> None:
    unasked = np.array([3, 4, 5, 9, 12, 15, 20, 21, 22, 23, 24, 31, 33, 34, 39])
    groups = deal(unasked, pool, count, most=most, fewest=fewest)
    source = {int(number): pool.sources[batch] for batch, members in enumerate(pool.batches) for number in members}
    expected = list(unasked[:count])
    for kind in SOURCES:
        own = [number for number in expected if source[number] == kind]
        if len(own) < fewest:
            expected = [number for number in expected if number not in own]
    assert sorted(number for group in groups for number in group) == expected
    for group in groups:
        assert len({source[int(number)] for number in group}) == 1
        assert fewest <= len(group) <= max(most, 2 * fewest - 1)


def test_a_start_outside_the_pool_is_refused(pool: Queries) -> None:
    with pytest.raises(InputError, match="40 query images"):
        deal(np.array([3, 40]), pool, 2, most=4, fewest=1)


def test_guided_queries_survive_being_arrays_and_keep_the_source_they_came_from(student, pool: Queries) -> None:
    unasked = np.arange(5, 40)
    made = guide(*student, pool, unasked, 9, statistics="current", most=3)
    more = guide(*student, pool, np.setdiff1d(unasked, made.starts), 4, statistics="current", most=3)
    both = Guided.from_arrays(joined(joined(none_yet(pool), made), more).to_arrays())
    np.testing.assert_array_equal(both.images, np.concatenate([made.images, more.images]))
    np.testing.assert_array_equal(both.starts, np.concatenate([made.starts, more.starts]))
    assert sorted(both.starts) == list(range(5, 18))
    assert [batch.tolist() for batch in both.batches[: len(made.batches)]] == [b.tolist() for b in made.batches]
    np.testing.assert_array_equal(np.concatenate(both.batches), np.arange(13))
    for kind, batch in zip(both.sources(pool), both.batches, strict=True):
        assert {f"guided {pool.sources[start // 10]}" for start in both.starts[batch]} == {kind}
    empty = Guided.from_arrays(none_yet(pool).to_arrays())
    assert (len(empty.images), empty.batches, empty.sources(pool)) == (0, [], [])


def test_a_lone_image_of_its_source_is_not_moved_under_current_statistics(student, pool: Queries) -> None:
    unasked = np.array([8, 9, 10])  # two of one source, one of the other
    assert guide(*student, pool, unasked, 3, statistics="current", most=10).starts.tolist() == [8, 9]
    assert guide(*student, pool, unasked, 3, statistics="original", most=10).starts.tolist() == [8, 9, 10]
    assert len(guide(*student, pool, unasked, 0, statistics="original", most=10).images) == 0
