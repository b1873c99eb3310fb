"""Moments and gradients: what one unit moves, what that costs, and that a head can be learnt from it."""

import itertools
import math
import pickle
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np
import pytest

from terrine.aggregation.gradient_rounds import ALONE, JOINT, RoundSchedule, shares, without_noise
from terrine.aggregation.mechanism import MECHANISMS, Mechanism, parse_mechanism
from terrine.aggregation.records import GRID, STEP, Records, on_grid
from terrine.aggregation.sums import Gradients, Moments, Sums, mu_left
from terrine.errors import SettingError
from terrine.privacy.accounting.events import GaussianEvent, compose, counts
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.statement import MECHANISM_FIELDS

KINDS: dict[str, Sums] = {"moments": Moments(), "gradients": Gradients()}
CLASSES = 3


def of(vectors: Any, labels: Any, units: Any = None) -> Records:
    own = on_grid(np.asarray(vectors, dtype=np.float64))
    return Records.of(own, labels, np.arange(len(own)) if units is None else units, CLASSES)


def distances(units: list[Records]) -> tuple[float, float]:
    """The largest squared distance of a unit's (S, M) from none, and of two units' from each other, as the noise
    measures it: off-diagonal entries of S once, times √2."""
    sums = []
    for unit in units:
        second = unit.second_moments()
        above = math.sqrt(2) * second[np.triu_indices(len(second), 1)]
        sums.append(np.concatenate([np.diag(second), above, unit.label_moments().ravel()]) * STEP)
    rows = np.stack(sums)
    return np.square(rows).sum(axis=1).max(), max(np.square(rows - row).sum(axis=1).max() for row in rows)


def units_of_one_or_more(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Vectors, no longer than 1, and labels of single units: at random, and those that move most."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(count):
        vectors = generator.normal(size=(generator.integers(1, 5), 4))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) / generator.choice([1, 1, 0.5], (len(vectors), 1))
        found.append((vectors * (1 - 1e-9), generator.integers(0, CLASSES, len(vectors))))
    return found + [
        (np.array([[math.cos(angle), math.sin(angle), 0, 0]]) * (1 - 1e-9), np.array([label]))
        for angle in np.linspace(0, math.pi, 37)
        for label in (0, 1)
    ]


def test_no_unit_moves_the_moments_by_more_than_is_charged_and_one_moves_them_by_all_of_it() -> None:
    units = [of(vectors, labels, np.zeros(len(labels))) for vectors, labels in units_of_one_or_more(40)]
    alone, joint = distances(units)
    assert 0.999 * ALONE < alone <= ALONE
    assert 0.999 * JOINT < joint <= JOINT


@pytest.mark.parametrize("shape", ["a few large", "falling slowly", "all alike", "nothing"])
def test_eigenvalues_are_freed_of_what_noise_adds_to_them(shape: str) -> None:
    """Beside what a simulation, which knows the matrix without noise, finds along the eigenvectors with noise."""
    length, sigma = 80, 1.0
    values = {
        "a few large": np.r_[400.0, 90.0, 40.0, 20.0, np.zeros(length - 4)],
        "falling slowly": 100 / np.arange(1.0, length + 1),
        "all alike": np.full(length, 30.0),
        "nothing": np.zeros(length),
    }[shape]
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(length, length)))[0]
    second, width = (axes * values) @ axes.T, math.sqrt(2 * length) * sigma
    off: dict[str, list[np.ndarray]] = {"freed": [], "clipped": []}
    for _ in range(40):
        noise = generator.normal(size=(length, length)) * sigma
        with_noise, vectors = np.linalg.eigh(second + (noise + noise.T) / 2)
        true = np.diagonal(vectors.T @ second @ vectors)
        off["freed"].append(without_noise(with_noise, sigma) - true)
        off["clipped"].append(np.maximum(with_noise, 0) - true)
    far = {name: math.sqrt(np.mean(np.square(each))) for name, each in off.items()}
    assert far["freed"] < 0.1 * width < 0.3 * width < far["clipped"]
    bias = {name: np.abs(np.mean(each, axis=0)).max() for name, each in off.items()}
    assert bias["freed"] < 0.25 * width < 0.6 * width < bias["clipped"]


def units_with_findings(count: int) -> list[Records]:
    """Single units whose records have any of three findings: at random, and those that move most."""
    generator = np.random.default_rng(6)
    found = []
    for _ in range(count):
        vectors = generator.normal(size=(generator.integers(1, 4), 4))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) / (1 - 1e-9)
        found.append(of(vectors, generator.integers(0, 2, (len(vectors), CLASSES)), np.zeros(len(vectors))))
    return found + [
        of(np.array([[math.cos(angle), math.sin(angle), 0, 0]]) * (1 - 1e-9), np.array([labels]))
        for angle in np.linspace(0, math.pi, 37)
        for labels in itertools.product((0, 1), repeat=CLASSES)
    ]


def test_of_several_findings_moments_move_by_what_is_charged_for_classes_and_by_all_of_it() -> None:
    alone, joint = distances(units_with_findings(40))
    assert 0.999 * ALONE < alone <= ALONE
    assert 0.999 * JOINT < joint <= JOINT


@pytest.mark.parametrize("clip", [0.2, 1.0])
def test_of_several_findings_no_gradient_is_longer_than_is_charged_and_it_is_that_of_logistic_losses(
    clip: float,
) -> None:
    weights = np.random.default_rng(0).normal(size=(4, CLASSES)) * 9
    units = units_with_findings(60)
    gradients = [unit.gradients(weights, clip) * STEP for unit in units]
    assert 0.98 * clip < max(map(np.linalg.norm, gradients)) <= clip
    unit = next(each for each in units if len(each.labels) == 1)
    error = (1 / (1 + np.exp(-unit.vectors @ weights)) - unit.labels) / math.sqrt(CLASSES)
    error *= min(1.0, clip / np.linalg.norm(error))
    np.testing.assert_allclose(unit.gradients(weights, clip) * STEP, unit.vectors.T @ error, atol=3 * GRID)


@pytest.mark.parametrize("name", KINDS)
def test_a_head_tells_every_finding_by_itself(name: str) -> None:
    generator = np.random.default_rng(2)
    labels = (generator.random((20_000, CLASSES)) < (0.5, 0.2, 0.4)).astype(np.int64)
    vectors = generator.normal(size=(20_000, 6))
    vectors[:, :CLASSES] += 3.0 * labels - 1.5
    vectors[:, 5] = 3
    vectors *= (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True)
    kind = KINDS[name].model_copy(update={"findings": CLASSES})
    mu = mu_left(2.0, 1e-5)
    scores = vectors @ kind.head(kind.release(of(vectors, labels), mu, ReplayNoise(0)), mu)
    right = ((scores > 0) == labels).mean(axis=0)
    assert (right > 0.88).all()


@pytest.mark.parametrize(
    "lens",
    [
        np.eye(4),
        np.diag([1e60, 1, 1e-9, 0]),
        np.full((4, 4), np.nan),
        # Squares of so small numbers are zero, or hold a few bits.
        *(scale * np.eye(4) for scale in (1e-120, 1e-157, 1e-162, 1e-200, 3e-299, 1e-320)),
    ],
    ids=str,
)
@pytest.mark.parametrize("clip", [0.2, 1.0])
def test_no_unit_moves_a_gradient_by_more_than_is_charged(clip: float, lens: np.ndarray) -> None:
    weights = np.random.default_rng(0).normal(size=(4, CLASSES)) * 9
    units = [of(vectors, labels, np.zeros(len(labels))) for vectors, labels in units_of_one_or_more(60)]
    gradients = [unit.apply_lens(lens).gradients(weights, clip) * STEP for unit in units]
    assert max(map(np.linalg.norm, gradients)) <= clip
    if lens[1, 1] != 1 or lens[0, 0] != 1:
        return
    assert max(map(np.linalg.norm, gradients)) > 0.99 * min(clip, 1.0)
    most = max(np.linalg.norm(one - other) for one, other in itertools.combinations(gradients, 2))
    assert 1.9 * clip < most <= 2 * clip or (clip == 1.0 and most <= 2)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_adding_or_removing_a_unit_costs_what_it_moves_and_less_than_exchanging_it(kind: Sums) -> None:
    schedule = kind.schedule(1.3)
    assert mu_squared(schedule.event) == pytest.approx(1.3**2)
    moved = ALONE / schedule.sigma**2
    if schedule.rounds:
        moved += schedule.rounds * (schedule.clip / schedule.sigma_gradients) ** 2
    assert mu_squared(schedule.event_added) == pytest.approx(moved)
    assert moved < 0.45 * 1.3**2


def test_through_a_lens_a_vector_is_turned_and_has_length_one_again() -> None:
    generator = np.random.default_rng(4)
    vectors, lens = generator.normal(size=(5, 4)), generator.normal(size=(4, 4))
    vectors *= (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True)
    records = of(vectors, [0, 1, 2, 0, 1])
    for seen, vector in zip(records.apply_lens(lens).vectors, records.vectors, strict=True):
        plain = lens @ vector.astype(np.float64)
        np.testing.assert_allclose(seen, plain / np.linalg.norm(plain), atol=2 * GRID)
    assert not records.apply_lens(np.zeros((4, 4))).vectors.any()


def test_through_the_lens_all_directions_say_as_much_and_steps_are_those_of_plain_descent() -> None:
    generator = np.random.default_rng(5)
    vectors = generator.normal(size=(4000, 5)) * [5, 2, 1, 0.5, 0.3]
    vectors *= (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True)
    records = of(vectors, generator.integers(0, CLASSES, 4000))
    schedule = RoundSchedule(sigma=1e-3, rounds=2, clip=1.0, learning_rate=0.7, sigma_gradients=1e-3)
    descent, summed = schedule.descent(5), schedule.summing(records)
    descent.receive(summed(None) * STEP)
    broadcast = descent.broadcast
    assert broadcast is not None
    assert len(broadcast) == schedule.broadcast_size(5, CLASSES, 1)
    head, lens = broadcast[: 5 * CLASSES].reshape(5, CLASSES), np.diag(broadcast[5 * CLASSES : 5 * CLASSES + 5])
    lens[np.triu_indices(5, 1)] = lens.T[np.triu_indices(5, 1)] = broadcast[5 * CLASSES + 5 :]
    second = records.second_moments() * STEP
    np.testing.assert_allclose(lens @ second @ lens, np.eye(5) * len(vectors) / 5, atol=len(vectors) * 1e-3)
    gradient = summed(broadcast) * STEP
    descent.receive(gradient)
    assert descent.broadcast is not None
    stepped = descent.broadcast[: 5 * CLASSES].reshape(5, CLASSES)
    np.testing.assert_allclose(stepped, head - 0.7 * 5 / len(vectors) * gradient.reshape(5, CLASSES), rtol=1e-3)
    np.testing.assert_allclose(descent.final_head, lens @ stepped)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 6.0])
def test_all_of_the_budget_is_spent_and_no_more_also_after_something_else(kind: Sums, epsilon: float) -> None:
    event = kind.worst_case(1000, epsilon, 1e-5)
    assert epsilon * (1 - 1e-6) < price(event, 1e-5) <= epsilon
    before = GaussianEvent(sensitivity=1.0, sigma=2.0 / mu_left(epsilon, 1e-5))
    assert price(compose(before, kind.worst_case(0, epsilon, 1e-5, before)), 1e-5) <= epsilon
    with pytest.raises(SettingError, match="Nothing of the budget"):
        kind.worst_case(0, epsilon, 1e-5, GaussianEvent(sensitivity=1.0, sigma=0.01))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_price_is_that_of_another_accountant(kind: Sums) -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    for event, count in counts(kind.worst_case(0, 2.0, 1e-5)).items():
        assert isinstance(event, GaussianEvent)
        accountant.compose(dp_accounting.GaussianDpEvent(event.sigma / event.sensitivity), count)
    assert 2.0 < accountant.get_epsilon(1e-5) < 2.3  # Rényi accounting is an upper bound, close for Gaussians


@pytest.mark.parametrize("name", KINDS)
def test_a_head_is_learnt_and_as_many_numbers_are_drawn_as_are_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, CLASSES, 20_000)
    vectors = generator.normal(size=(20_000, 6)) + 1.5 * np.eye(6)[labels]
    vectors *= (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True)
    given, kind, noise = of(vectors, labels), KINDS[name], ReplayNoise(0)
    drawn = []
    plain = noise.gaussian
    monkeypatch.setattr(noise, "gaussian", lambda shape, sigma: drawn.append(math.prod(shape)) or plain(shape, sigma))
    mu = mu_left(2.0, 1e-5)
    released = kind.release(given, mu, noise)
    assert sum(drawn) == kind.numbers(6, CLASSES)
    assert (released["second"] == released["second"].T).all()
    right = ((vectors @ kind.head(released, mu)).argmax(axis=1) == labels).mean()
    best = (vectors[:, :CLASSES].argmax(axis=1) == labels).mean()
    assert right > best - 0.02
    again = kind.release(given, mu, ReplayNoise(0))
    assert all((again[key] == released[key]).all() for key in released)
    monkeypatch.setattr(noise, "gaussian", lambda shape, sigma: np.zeros(shape))
    assert np.allclose(kind.exact_head(given, mu), kind.head(kind.release(given, mu, noise), mu), atol=1e-9)


def unequal(sizes: Sequence[int], apart: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose last coordinate is nearly constant, and labels, of classes that lie near one another."""
    generator = np.random.default_rng(5)
    labels = np.repeat(np.arange(CLASSES), sizes)
    near = generator.normal(size=(len(labels), 6)) + apart * np.eye(6)[labels]
    vectors = np.concatenate([near, np.full((len(labels), 1), 2.0)], axis=1)
    return vectors * (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def test_without_noise_moments_end_at_least_squares_on_levelled_targets() -> None:
    sizes = np.array([9000, 900, 100])
    vectors, labels = unequal(sizes)
    given = of(vectors, labels)
    released = {"second": given.second_moments() * STEP, "labels": given.label_moments() * STEP}
    targets = np.eye(CLASSES)[labels] / (CLASSES * sizes / sizes.sum()) ** 0.25
    best, *_ = np.linalg.lstsq(vectors, targets - targets.mean(axis=1, keepdims=True), rcond=None)
    assert np.allclose(RoundSchedule(1e-6).final_head(released) / np.sqrt(10 * CLASSES), best, atol=2e-2)


def test_of_two_classes_moments_end_at_plain_ridge() -> None:
    vectors, labels = unequal([9000, 900, 100])
    given = Records.of(on_grid(vectors), np.minimum(labels, 1), np.arange(len(labels)), 2)
    second, moments = given.second_moments() * STEP, given.label_moments() * STEP
    targets = np.eye(2)[np.minimum(labels, 1)] - 0.5
    best, *_ = np.linalg.lstsq(vectors, targets, rcond=None)
    assert np.allclose(
        RoundSchedule(1e-6).final_head({"second": second, "labels": moments}) / np.sqrt(20), best, atol=2e-2
    )


def test_levelled_targets_find_rare_classes_and_are_right_more_often() -> None:
    (vectors, labels), kind = unequal([18_000, 1800, 450], 3.0), KINDS["moments"]
    released = kind.release(of(vectors, labels), mu := mu_left(6.0, 1e-5), ReplayNoise(0))
    plain = np.linalg.solve(released["second"] + np.eye(7), released["labels"])

    def right(head: np.ndarray) -> tuple[float, list[float]]:
        found = (vectors @ head).argmax(axis=1)
        return (found == labels).mean(), [(found[labels == label] == label).mean() for label in range(CLASSES)]

    (all_plain, each_plain), (all_levelled, each_levelled) = right(plain), right(kind.head(released, mu))
    assert all_levelled > all_plain
    assert each_levelled[2] > each_plain[2] + 0.1


def test_shares_of_classes_are_told_as_far_as_noise_lets_and_are_never_zero() -> None:
    vectors, labels = unequal([6000, 3000, 1000])
    given = of(vectors, labels)
    second, moments = given.second_moments() * STEP, given.label_moments() * STEP
    assert np.allclose(shares(second, moments, 0.0), [0.6, 0.3, 0.1], atol=0.01)
    generator = np.random.default_rng(2)

    def drawn(sums: np.ndarray, sigma: float) -> np.ndarray:
        return np.array([shares(second, sums + generator.normal(0, sigma, sums.shape), sigma) for _ in range(200)])

    assert np.abs(drawn(moments, 100.0).mean(axis=0) - [0.6, 0.3, 0.1]).max() < 0.02
    # For equal classes only noise separates shares, and less than the noise remains.
    equal = np.repeat(moments.mean(axis=1, keepdims=True), CLASSES, axis=1)
    assert drawn(equal, 300.0).std() < 0.6 * 300 / equal[-1].sum()
    assert (drawn(moments, 1e5) > 0).all()
    absent = moments.copy()
    absent[:, 2] = 0
    assert 0 < shares(second, absent, 0.0)[2] < 2e-4
    assert (shares(second, -moments, 1.0) == 1 / CLASSES).all()


def test_noise_has_the_deviation_that_is_charged() -> None:
    nothing = of(np.zeros((1, 60)), [0])
    mu = mu_left(1.0, 1e-5)
    released = Gradients().release(nothing, mu, ReplayNoise(0))
    (moments, _), (gradient, rounds) = counts(Gradients().event(mu)).items()
    above = released["second"][np.triu_indices(60, 1)]
    assert np.std(above) * math.sqrt(2) == pytest.approx(moments.sigma, rel=0.05)
    assert np.std(released["labels"]) == pytest.approx(moments.sigma, rel=0.2)
    assert len(released["gradients"]) == rounds
    assert np.std(released["gradients"]) == pytest.approx(gradient.sigma, rel=0.05)
    assert mu_squared(Moments().event(mu)) == pytest.approx(mu**2)


def test_every_kind_that_does_not_count_votes_is_tested_here() -> None:
    assert set(KINDS) == {name for name in MECHANISMS.names() if not issubclass(MECHANISMS.of(name), Mechanism)}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_built_by_name_and_describes_itself_with_a_budget_and_without(name: str) -> None:
    kind = KINDS[name]
    assert parse_mechanism(kind.describe()) == kind
    assert set(kind.describe()) <= MECHANISM_FIELDS
    assert kind.text.endswith(".")
    section = type(kind)(epsilon=3)
    assert (section.epsilon, section.delta) == (3, 1e-5)
    assert pickle.loads(pickle.dumps(section)) == section
