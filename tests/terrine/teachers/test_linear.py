"""Linear teachers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

import terrine as tr
from terrine.aggregation.votes import Findings, bounded
from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError
from terrine.heads import initial_head
from terrine.queries import Queries
from terrine.teachers.ensemble import fallback_votes
from terrine.teachers.linear import LinearHeads, LinearKind, LinearTeachers, train_heads, vote
from terrine.teachers.records import Records
from terrine.teachers.stacked_training import StackedAdam

CLASSES = 4
ADAM = LinearTeachers(optimiser="adam", epochs=6, batch=8, learning_rate=0.01, weight_decay=0.01)
FULL_BATCH = LinearTeachers(optimiser="adam", epochs=20, batch=None, learning_rate=0.01)
RIDGE = LinearTeachers(optimiser="ridge", ridge=0.1)
PLAIN = RIDGE.model_copy(update={"prior": 1.0})


@pytest.fixture(scope="module")
def data():
    """Clustered features of 430 records, dealt unevenly to 12 teachers; 33 features, so vectorised loops have tails."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, 430)
    centres = generator.normal(size=(CLASSES, 33))
    features = (centres[labels] + generator.normal(size=(430, 33))).astype(np.float32)
    assignment = generator.permutation(np.concatenate([np.arange(400) % 12, generator.integers(0, 12, 30)]))
    return features, labels, assignment


def adam_one_teacher(features, labels, teacher, settings, seed):
    """A head trained by torch's own Adam and autograd, one teacher, one batch after the other."""
    start = initial_head(features.shape[1], CLASSES, seed)
    head = torch.nn.Linear(features.shape[1], CLASSES)
    head.load_state_dict({"weight": torch.from_numpy(start.weight), "bias": torch.from_numpy(start.bias)})
    groups = [{"params": [head.weight], "weight_decay": settings.weight_decay}, {"params": [head.bias]}]
    optimiser = torch.optim.Adam(groups, lr=settings.learning_rate)
    generator = torch_generator(seed, "teacher shuffle", teacher)
    inputs, targets = torch.from_numpy(features), torch.from_numpy(labels)
    losses = []
    for _ in range(settings.epochs):
        whole = settings.batch is None or settings.batch >= len(inputs)
        order = torch.arange(len(inputs)) if whole else torch.randperm(len(inputs), generator=generator)
        for index in order.split(settings.batch or len(inputs)):
            optimiser.zero_grad()
            F.cross_entropy(head(inputs[index]), targets[index]).backward()
            optimiser.step()
        losses.append(F.cross_entropy(head(inputs), targets).item())
    return head.weight.detach().numpy(), head.bias.detach().numpy(), losses


@pytest.mark.parametrize("settings", [ADAM, FULL_BATCH])
def test_heads_trained_together_equal_heads_trained_one_by_one(data, settings):
    features, labels, assignment = data
    heads = train_heads(features, labels, assignment, range(12), CLASSES, settings, seed=3)
    for teacher in range(12):
        own = assignment == teacher
        weight, bias, _ = adam_one_teacher(features[own], labels[own], teacher, settings, seed=3)
        np.testing.assert_allclose(heads.weight[teacher], weight, atol=2e-5)
        np.testing.assert_allclose(heads.bias[teacher], bias, atol=2e-5)


def test_loss_curves_of_heads_trained_together_and_one_by_one_agree(data):
    features, labels, assignment = data
    own = assignment == 5
    *_, expected = adam_one_teacher(features[own], labels[own], 5, ADAM, seed=0)
    curve = []
    for epochs in range(1, ADAM.epochs + 1):
        settings = LinearTeachers(optimiser="adam", epochs=epochs, batch=8, learning_rate=0.01, weight_decay=0.01)
        heads = train_heads(features, labels, assignment, [2, 5, 9], CLASSES, settings, seed=0)
        scores = torch.from_numpy(features[own] @ heads.weight[1].T + heads.bias[1])
        curve.append(float(F.cross_entropy(scores, torch.from_numpy(labels[own]))))
    np.testing.assert_allclose(curve, expected, atol=1e-5)
    assert curve[-1] < 0.7 * curve[0]


@pytest.mark.parametrize("dimension", [33, 9])  # more features than records, and fewer
def test_ridge_is_least_squares_on_one_hot_labels_with_a_free_intercept(data, dimension):
    features, labels, assignment = data
    features = np.ascontiguousarray(features[:, :dimension])
    heads = train_heads(features, labels, assignment, range(12), CLASSES, PLAIN, seed=0)
    for teacher in range(12):
        own = features[assignment == teacher].astype(np.float64)
        scale = ((own - own.mean(0)) ** 2).sum(1).mean()
        oracle = Ridge(alpha=RIDGE.ridge * scale).fit(own, np.eye(CLASSES)[labels[assignment == teacher]])
        np.testing.assert_allclose(heads.weight[teacher], oracle.coef_, atol=1e-5)
        np.testing.assert_allclose(heads.bias[teacher], oracle.intercept_, atol=1e-5)


@pytest.mark.parametrize("prior", [0.01, 0.5])
def test_a_smaller_prior_takes_the_lean_to_its_larger_classes_from_a_teacher(data, prior):
    features, labels, assignment = data
    labels, assignment = np.where(labels == 1, 0, labels), np.where(assignment < 6, 0, 1)
    assignment[(labels == 2) & (assignment == 0)] = 1  # the first teacher never saw this class
    plain, less = (
        train_heads(features, labels, assignment, [0, 1], CLASSES, LinearTeachers(ridge=9, prior=kept), seed=0)
        for kept in (1.0, prior)
    )
    assert np.array_equal(plain.weight, less.weight)
    for teacher in (0, 1):
        frequency = np.bincount(labels[assignment == teacher], minlength=CLASSES) / (assignment == teacher).sum()
        np.testing.assert_allclose(plain.bias[teacher] - less.bias[teacher], (1 - prior) * frequency, atol=1e-6)
    votes, fewer = vote(plain, features), vote(less, features)
    assert (fewer[:, 0] == 0).sum() < (votes[:, 0] == 0).sum()
    assert 1 not in fewer
    assert 2 not in fewer[:, 0]


def test_a_teacher_of_one_class_votes_by_a_lot_that_its_own_records_draw(data):
    features, labels, _ = data
    dealt = np.random.default_rng(1).permutation(np.flatnonzero(labels == 2))
    assignment = np.full(len(labels), len(dealt) // 2)
    assignment[dealt] = np.minimum(np.arange(len(dealt)) // 2, len(dealt) // 2 - 1)
    several = range(len(dealt) // 2)
    heads = train_heads(features, labels, assignment, several, CLASSES, RIDGE, seed=0)
    assert not heads.weight.any()
    votes = vote(heads, features)
    assert (votes == votes[0]).all()
    drawn = np.bincount(votes[0], minlength=CLASSES)
    assert drawn.min() > 0.4 * drawn.mean()
    # Neither the number of a teacher nor what others have is looked at.
    moved = np.where(assignment < len(several), assignment + 1, 0)
    again = train_heads(features, labels, moved, [1, 2], CLASSES, RIDGE, seed=5)
    assert np.array_equal(again.bias, heads.bias[:2])
    plain = train_heads(features, labels, assignment, several, CLASSES, PLAIN, seed=0)
    assert set(vote(plain, features).ravel()) == {2}


def test_ridge_does_not_depend_on_the_scale_of_the_features(data):
    features, labels, assignment = data
    one = train_heads(features, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    scaled = train_heads(features * 1024, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    np.testing.assert_allclose(scaled.weight * 1024, one.weight, atol=1e-6)


@pytest.mark.parametrize("settings", [ADAM, FULL_BATCH, RIDGE])
def test_a_head_is_the_same_to_the_bit_whatever_its_group_and_the_number_of_threads(data, settings):
    features, labels, assignment = data
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for size in (1, 5, 12):
                groups = [range(first, min(first + size, 12)) for first in range(0, 12, size)]
                heads = [train_heads(features, labels, assignment, g, CLASSES, settings, seed=0) for g in groups]
                joined = [np.concatenate([getattr(h, name) for h in heads]) for name in ("weight", "bias")]
                results.append(b"".join(array.tobytes() for array in joined))
    finally:
        torch.set_num_threads(before)
    assert len(set(results)) == 1


def test_heads_come_in_the_order_of_the_teachers_asked_for(data):
    features, labels, assignment = data
    forward = train_heads(features, labels, assignment, [1, 7, 4], CLASSES, RIDGE, seed=0)
    backward = train_heads(features, labels, assignment, [4, 7, 1], CLASSES, RIDGE, seed=0)
    assert np.array_equal(forward.weight, backward.weight[::-1])


@pytest.mark.parametrize("settings", [ADAM, PLAIN])
def test_a_teacher_without_a_class_or_with_one_record_trains_and_does_not_vote_for_what_it_never_saw(data, settings):
    features, labels, _ = data
    assignment = np.where(labels == 2, 1, 0)
    assignment[:2] = 2
    assignment[np.flatnonzero(assignment == 0)[0]] = 3
    heads = train_heads(features, labels, assignment, range(4), CLASSES, settings, seed=0)
    votes = vote(heads, features)
    assert np.isfinite(heads.weight).all()
    if settings is PLAIN:
        assert 2 not in votes[:, 0]
        assert set(votes[:, 1]) == {2}


def test_records_that_are_all_alike_give_a_finite_head(data):
    _, labels, assignment = data
    heads = train_heads(np.ones((430, 5), np.float32), labels, assignment, range(12), CLASSES, PLAIN, seed=0)
    np.testing.assert_allclose(heads.weight, 0, atol=1e-6)
    np.testing.assert_allclose(heads.bias[0], np.bincount(labels[assignment == 0]) / (assignment == 0).sum(), atol=1e-6)


@pytest.mark.parametrize("dimension", [3, 40])
def test_a_record_that_floating_point_cannot_square_costs_its_own_teacher_the_head_and_nobody_else_anything(dimension):
    rng = np.random.default_rng(4)
    features, labels = rng.standard_normal((60, dimension)).astype(np.float32), rng.integers(0, 2, 60)
    teachers, broken = np.arange(60) % 6, np.arange(60) == 7
    settings = LinearTeachers()
    usual = train_heads(features, labels, teachers, range(6), 2, settings, seed=0)
    features[broken] = 3e38
    found = train_heads(features, labels, teachers, range(6), 2, settings, seed=0)
    assert not found.weight[1].any()
    assert np.isfinite(found.bias).all()
    others = np.arange(6) != 1
    np.testing.assert_array_equal(found.weight[others], usual.weight[others])


def test_features_are_read_from_a_read_only_memory_map(data, tmp_path):
    features, labels, assignment = data
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    heads = train_heads(mapped, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    assert np.array_equal(vote(heads, mapped), vote(heads, features))


def test_votes_equal_a_plain_loop_over_queries_and_teachers(data, monkeypatch):
    monkeypatch.setattr("terrine.teachers.linear._TEACHER_BLOCK", 5)
    monkeypatch.setattr("terrine.teachers.linear._QUERY_BLOCK", 64)
    features, labels, assignment = data
    heads = train_heads(features, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    votes = vote(heads, features)
    assert votes.dtype == np.uint8
    for query in range(len(features)):
        for teacher in range(12):
            scores = [
                math.fsum(heads.weight[teacher, c].astype(float) * features[query]) + heads.bias[teacher, c]
                for c in range(CLASSES)
            ]
            runner_up, best = sorted(scores)[-2:]
            assert votes[query, teacher] == int(np.argmax(scores)) or best - runner_up < 1e-5


def test_votes_hold_class_numbers_above_a_byte():
    weight = np.zeros((1, 300, 2), np.float32)
    weight[0, 299] = 1
    votes = vote(LinearHeads(weight, np.zeros((1, 300), np.float32)), np.ones((3, 2), np.float32))
    assert votes.dtype == np.uint16
    assert (votes == 299).all()


def test_arrays_that_do_not_fit_are_refused_before_any_work(data):
    features, labels, assignment = data
    with pytest.raises(InputError, match="do not fit together"):
        train_heads(features, labels[:-1], assignment, range(12), CLASSES, RIDGE, seed=0)
    with pytest.raises(InputError, match=r"outside 0\.\.2"):
        train_heads(features, labels, assignment, range(12), 3, RIDGE, seed=0)
    with pytest.raises(InputError, match="Teacher 12 has no record"):
        train_heads(features, labels, assignment, range(13), CLASSES, RIDGE, seed=0)
    with pytest.raises(InputError, match="float32"):
        train_heads(features.astype(np.float64), labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    broken = features.copy()
    broken[3, 4] = np.nan
    with pytest.raises(InputError, match="not finite"):
        train_heads(broken, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    heads = train_heads(features, labels, assignment, range(12), CLASSES, RIDGE, seed=0)
    with pytest.raises(InputError, match="do not fit heads"):
        vote(heads, features[:, :-1])
    with pytest.raises(InputError, match="not finite"):
        vote(heads, broken)
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        LinearHeads(np.zeros((2, 3)), np.zeros(2))


def test_teachers_refuse_parts_of_other_groups(tmp_path):
    """Records of one person would lie in several parts, of which the statement says that none do."""
    groups = np.arange(60) // 3
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=groups % 2, groups=groups)
    data = tr.load_dataset("npz", path=tmp_path / "own.npz", size=8)
    assert data.train_groups is not None
    parts = tr.partition(data, teachers=4, unit="group")
    backbone = tr.Scattering(projection=10).fit(tr.draw("gaussian", count=20, like=data))
    tr.LinearTeachers().fit(data, parts, backbone)
    with pytest.raises(tr.InputError, match="were not made from own"):
        tr.LinearTeachers().fit(replace(data, train_groups=np.roll(data.train_groups, 1)), parts, backbone)


KINDS = {
    "ridge": LinearTeachers(ridge=0.2),
    "adam": LinearTeachers(optimiser="adam", epochs=30, batch=16, learning_rate=0.05),
}
FEATURES, FINDINGS, TEACHERS = 12, 3, 9


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels of which the last finding is rare, and parts of two sizes."""
    generator = np.random.default_rng(0)
    labels = (generator.random((400, FINDINGS)) < (0.5, 0.3, 0.1)).astype(np.int64)
    features = generator.normal(size=(400, FEATURES)).astype(np.float32) + 5
    features[:, :FINDINGS] += 2 * labels
    return features, labels, np.minimum(np.arange(400) % 10, TEACHERS - 1)


@pytest.mark.parametrize("name", KINDS)
def test_a_score_above_0_says_likelier_than_among_the_teachers_own_records(name: str, records) -> None:
    features, labels, assignment = records
    heads = train_heads(features, labels, assignment, range(TEACHERS), FINDINGS, KINDS[name], seed=0)
    for teacher in range(TEACHERS):
        own = assignment == teacher
        scores = features[own] @ heads.weight[teacher].T + heads.bias[teacher]
        if name == "ridge":
            np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-3)
            centred, wanted = features[own] - features[own].mean(0), labels[own] - labels[own].mean(0)
            penalty = 0.2 * np.square(centred).sum() / own.sum()
            plain = np.linalg.solve(centred.T @ centred + penalty * np.eye(FEATURES), centred.T @ wanted)
            np.testing.assert_allclose(heads.weight[teacher].T, plain, atol=1e-4)
    kind = LinearKind(KINDS[name], findings=Findings(FINDINGS))
    states = [{"weight": weight, "bias": bias} for weight, bias in zip(heads.weight, heads.bias, strict=True)]
    votes = kind.vote(states, Queries(features, [np.arange(400)])).reshape(400, FINDINGS, TEACHERS)
    there = labels == 1
    assert votes[there].mean() > votes[~there].mean() + 0.3
    assert votes[there[:, 2], 2].mean() > 0.4  # the rare one is named, too


@pytest.mark.parametrize("name", KINDS)
def test_a_head_is_the_same_to_the_bit_whoever_shares_its_stack(name: str, records) -> None:
    features, labels, assignment = records
    together = train_heads(features, labels, assignment, range(TEACHERS), FINDINGS, KINDS[name], seed=0)
    for teacher in range(TEACHERS):
        alone = train_heads(features, labels, assignment, [teacher], FINDINGS, KINDS[name], seed=0)
        np.testing.assert_array_equal(alone.weight[0], together.weight[teacher])
        np.testing.assert_array_equal(alone.bias[0], together.bias[teacher])


@pytest.mark.parametrize("bound", [None, 1, 2])
def test_votes_are_those_of_the_scores_query_by_query(bound: int | None, records) -> None:
    features, labels, assignment = records
    kind = LinearKind(KINDS["ridge"], findings=Findings(FINDINGS, bound))
    trained = dict(kind.train(Records(features, labels, assignment, FINDINGS), range(TEACHERS), seed=0))
    votes = kind.vote(trained.values(), Queries(features, [np.arange(400)]))
    assert votes.shape == (400 * FINDINGS, TEACHERS)
    for teacher, state in trained.items():
        scores = features @ state["weight"].T + state["bias"]
        near = np.abs(np.diff(np.sort(np.column_stack([scores, np.zeros(400)]), axis=1), axis=1)).min(axis=1) < 1e-5
        own = votes[:, teacher].reshape(400, FINDINGS)
        np.testing.assert_array_equal(own[~near], bounded(scores, bound)[~near])
        assert bound is None or own.sum(axis=1).max() <= bound


@pytest.mark.parametrize("bound", [None, 1])
def test_a_teacher_without_records_votes_within_the_bound_and_the_same_whenever_it_is_asked(bound: int | None) -> None:
    findings = Findings(4, bound)
    votes = fallback_votes([3, 8], 200, 4, seed=1, findings=findings).reshape(200, 4, 2)
    assert votes.sum(axis=1).max() <= (bound or 4)
    assert 0.1 < votes.mean() < 0.6
    fewer = fallback_votes([8], 150, 4, seed=1, findings=findings).reshape(150, 4)
    np.testing.assert_array_equal(fewer, votes[:150, :, 1])


def test_every_problem_moves_as_under_torchs_adam_and_one_that_sits_out_is_left_alone():
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(3, 4, 2, generator=generator), torch.randn(3, 5, generator=generator)]
    alone = [[value[problem].clone().requires_grad_() for value in values] for problem in range(3)]
    optimisers = [torch.optim.Adam(parameters, lr=1.0) for parameters in alone]
    stacked = StackedAdam(values)
    for number, active in enumerate([[0, 1, 2], [0, 2], [1], [0, 1, 2], [2]]):
        gradients = [torch.randn(value.shape, generator=generator) for value in values]
        rate = 0.1 * 0.7**number
        stacked.step(gradients, active, rate)
        for problem in active:
            for parameter, gradient in zip(alone[problem], gradients, strict=True):
                parameter.grad = gradient[problem].clone()
            optimisers[problem].param_groups[0]["lr"] = rate
            optimisers[problem].step()
    for problem in range(3):
        for value, parameter in zip(values, alone[problem], strict=True):
            torch.testing.assert_close(value[problem], parameter.detach(), atol=1e-6, rtol=1e-6)
