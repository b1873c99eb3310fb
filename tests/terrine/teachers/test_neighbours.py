"""Adding, removing or replacing a record of one teacher changes no bit of another teacher's state."""

import copy

import numpy as np
import pytest
import torch

from terrine.models.architecture import build_backbone
from terrine.queries import Queries
from terrine.teachers.averaging.averaged import RoundState
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.ttac import Average, local_round
from terrine.teachers.base import TEACHERS as KINDS_OF_TEACHERS
from terrine.teachers.base import TeacherContext
from terrine.teachers.ensemble import fallback_votes
from terrine.teachers.linear import LinearTeachers, stacks
from terrine.teachers.records import PrivateFeatures, Records, private_features
from tests.devices import DEVICES
from tests.terrine.teachers.averaging.helpers import averaged
from tests.terrine.teachers.conftest import CLASSES, striped_images

TEACHERS, MOVED = 6, 2
SIZES = [9, 6, 7, 6, 2, 0]
CHANGES = {
    "exchanged": SIZES[MOVED],
    "one more": 8,
    "as many as another": 9,
    "one fewer, as many as another": 6,
    "two left": 2,
    "one left": 1,
    "none left": 0,
}
"""Records of teacher 2 in the neighbouring dataset, and the effect."""

ROUNDS = {"rounds": 2, "steps": 2, "learning_rate": 0.05}
KINDS = {
    "linear ridge": {"kind": "linear", "optimiser": "ridge"},
    "linear ridge, deformed copies": {"kind": "linear", "copies": 2},
    "linear ridge, halfway": {"kind": "linear", "statistics": "halfway"},
    "linear adam": {"kind": "linear", "optimiser": "adam", "epochs": 2, "batch": 4},
    "linear adam, all records in a step": {"kind": "linear", "optimiser": "adam", "epochs": 2, "batch": None},
    "estimator": {"kind": "estimator", "estimator": {"options": {"n_estimators": 3}}},
    "estimator of neighbours": {"kind": "estimator", "estimator": {"name": "KNeighborsClassifier"}},
    "scratch": {"kind": "scratch", "epochs": 2, "batch": 4},
    "scratch, original": {"kind": "scratch", "epochs": 2, "batch": 4, "statistics": "original"},
    "scratch without batch norm": {"kind": "scratch", "epochs": 2, "batch": 4, "architecture": "cryptonet"},
    "finetune": {"kind": "finetune", "epochs": 2, "batch": 4},
    "finetune, original": {"kind": "finetune", "epochs": 2, "batch": 4, "statistics": "original"},
    "prompt": {"kind": "prompt", "prompt": {"epochs": 2, "batch": 4}},
    "prompt in parts": {"kind": "prompt", "prompt": {"epochs": 2, "batch": 2, "together": 10}},
    "prompt, original": {"kind": "prompt", "prompt": {"epochs": 2, "batch": 4}, "statistics": "original"},
    "averaged heads, none": {"kind": "averaged", "averaging": "none", "batch": 4, **ROUNDS},
    "averaged heads, none, all records in a step": {"kind": "averaged", "averaging": "none", "batch": None, **ROUNDS},
    "averaged heads, none, centred": {
        "kind": "averaged", "averaging": "none", "batch": 4, "centre": "shared", "statistics": "original", **ROUNDS,
    },
    "averaged networks, none": {"kind": "averaged", "averaging": "none", "learner": "network", "batch": 4, **ROUNDS},
    "averaged heads, blocks": {"kind": "averaged", "averaging": "blocks", "block": 2, "batch": None, **ROUNDS},
    "averaged heads, global": {"kind": "averaged", "mode": "paper", "batch": None, **ROUNDS},
}  # fmt: skip


def start():
    """Possible averages of an earlier round: the same for both datasets, like a release."""
    generator = np.random.default_rng(4)
    length = CLASSES * (BACKBONE.feature_dim + 1)
    average = Average(generator.normal(size=length), generator.normal(size=length))
    return RoundState(average, generator.normal(size=(TEACHERS, length)).astype(np.float32))


BACKBONE = build_backbone("small_cnn", channels=1, size=8, seed=0)
AROUND = TeacherContext(CLASSES, 1, 8, lambda: BACKBONE, parties=TEACHERS, start=start, by_teacher=True)


def records_of(settings, size: int = SIZES[MOVED], exchanged: bool = False, device: str = "cpu") -> Records:
    """Every teacher's own records, of teacher 2 the first `size`, the first of them perhaps exchanged for another."""
    images, labels = striped_images(TEACHERS * 10, 0)
    images, labels = images.reshape(TEACHERS, 10, 1, 8, 8).copy(), labels.reshape(TEACHERS, 10).copy()
    if exchanged:
        images[MOVED, 0], labels[MOVED, 0] = 255 - images[MOVED, 0], (labels[MOVED, 0] + 1) % CLASSES
    sizes = [*SIZES[:MOVED], size, *SIZES[MOVED + 1 :]]
    owners = [teacher for teacher, count in enumerate(sizes) for _ in range(count)]
    assignment = np.array(owners, np.int64)
    own = np.concatenate([images[teacher, :count] for teacher, count in enumerate(sizes)])
    told = np.concatenate([labels[teacher, :count] for teacher, count in enumerate(sizes)])
    # Another order of the records, in which one teacher's are not side by side.
    order = np.argsort(np.concatenate([np.arange(count) for count in sizes]), kind="stable")
    own, told, assignment = own[order], told[order], assignment[order]
    if settings.inputs == "features":
        shown = settings.augmented_images(own, assignment, seed=3)
        told, assignment = settings.repeat_for_copies(told), settings.repeat_for_copies(assignment)
        backbone = copy.deepcopy(BACKBONE)
        features = private_features(backbone, shown, assignment, settings.statistics, most=4, device=device)
        return Records(features, told, assignment, CLASSES)
    return Records(own, told, assignment, CLASSES)


def states_and_votes(settings, records, voters, device):
    """States of those that were trained, and the votes of all."""
    kind = settings.build(AROUND)
    states = dict(kind.train(records, range(voters), seed=3, device=device))
    images, _ = striped_images(40, 7)
    batches = [np.arange(20), np.arange(20, 40)]
    inputs = images
    if settings.inputs == "features":
        inputs = np.concatenate([BACKBONE.features(torch.from_numpy(images[b]), "current").numpy() for b in batches])
    votes = fallback_votes(range(voters), 40, CLASSES, seed=3)
    trained = sorted(states)
    votes[:, trained] = kind.vote([states[teacher] for teacher in trained], Queries(inputs, batches), device=device)
    return states, votes


def settings_of(name):
    return KINDS_OF_TEACHERS.of(KINDS[name]["kind"])(**KINDS[name])


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_what_becomes_of_one_part_moves_no_other_teacher_by_a_bit(name, device):
    settings = settings_of(name)
    voters = settings.voters(TEACHERS)
    before, votes = states_and_votes(settings, records_of(settings, device=device), voters, device)
    for change, size in CHANGES.items():
        records = records_of(settings, size, change == "exchanged", device)
        after, other_votes = states_and_votes(settings, records, voters, device)
        differ = [
            voter
            for voter in range(voters)
            if (voter in before) != (voter in after) or (voter in before and not same(before[voter], after[voter]))
        ]
        assert len(differ) == 1, change
        moved = np.flatnonzero((votes != other_votes).any(axis=0)).tolist()
        assert set(moved) <= set(differ), change
        if voters == TEACHERS:
            assert differ == [MOVED], change


@pytest.mark.parametrize("name", [name for name in KINDS if "blocks" not in name])
def test_a_teacher_is_trained_from_least_records_on_and_not_before(name):
    settings = settings_of(name)
    kind = settings.build(AROUND)
    features_need = 2 if settings.inputs == "features" and settings.statistics != "original" else 1
    least = max(kind.min_records, features_need) if not settings.averages else 0
    if "copies" in name:
        least = 1  # which has company in its copies
    if name == "estimator of neighbours":
        least = 5  # a limit of the classifier itself
    for size in (0, 1, 2, 5):
        trained = dict(kind.train(records_of(settings, size), [MOVED], seed=3, device="cpu"))
        assert (MOVED in trained) == (size >= least), size


def test_a_party_that_stands_still_moves_the_sum_of_updates_by_no_more_than_one_that_learns():
    """Crossing the threshold is an exchange of one summand for zero: what clipping to S and 2S account for."""
    learner = LinearLearner(BACKBONE.feature_dim, CLASSES)
    settings = averaged(rounds=2, steps=2, learning_rate=0.5, batch=4)
    own = np.zeros((TEACHERS, learner.length), np.float32)
    updates = []
    for size in (SIZES[MOVED], 1):
        data = records_of(settings, size)
        updates.append(
            local_round(learner, Average.start(learner), own, data, range(TEACHERS), settings, 0, seed=0).update
        )
    assert np.flatnonzero((updates[0] != updates[1]).any(axis=1)).tolist() == [MOVED]
    assert not updates[1][MOVED].any()
    assert not updates[0][5].any()


def test_features_of_a_record_are_those_of_a_pass_over_its_own_part(records):
    found = private_features(BACKBONE, records.inputs, records.assignment, "current", most=100)
    for teacher in range(5):
        own = records.assignment == teacher
        expected = BACKBONE.features(torch.from_numpy(records.inputs[own]), "current").numpy()
        np.testing.assert_allclose(found.rows[own], expected, atol=1e-4)


def test_one_teacher_is_a_stack_of_its_own_where_a_kernel_may_follow_from_the_number_of_stacked_matrices():
    sizes = dict(enumerate([4, 7, 4]))
    assert sorted(stacks(sizes, lambda size: size, torch.device("cpu"))) == [[0, 2], [1]]
    assert list(stacks(sizes, lambda size: size, torch.device("cuda"))) == [[0], [1], [2]]


@pytest.mark.parametrize("settings", [LinearTeachers(ridge=0.1), LinearTeachers(optimiser="adam", epochs=2, batch=3)])
def test_heads_are_the_same_to_the_bit_alone_and_in_stacks_of_any_size(settings):
    """The sizes are no multiples of the vector width and lie at odd addresses, which could expose stacking."""
    from terrine.teachers.linear import train_heads

    generator = np.random.default_rng(0)
    for _ in range(40):
        stacked, count, width = (int(generator.integers(*limits)) for limits in ((2, 12), (1, 40), (3, 90)))
        features = generator.normal(size=(stacked, count, width)).astype(np.float32)
        labels = generator.integers(0, CLASSES, (stacked, count))
        owners = np.repeat(np.arange(stacked), count)
        heads = train_heads(
            features.reshape(-1, width), labels.ravel(), owners, range(stacked), CLASSES, settings, seed=0
        )
        teacher = int(generator.integers(stacked))
        alone = train_heads(
            features[teacher], labels[teacher], np.full(count, teacher), [teacher], CLASSES, settings, seed=0
        )
        assert heads.weight[teacher].tobytes() == alone.weight[0].tobytes(), (stacked, count, width)
        assert heads.bias[teacher].tobytes() == alone.bias[0].tobytes(), (stacked, count, width)


def test_plain_rows_are_rows_of_their_own():
    rows = np.ones((3, 2), np.float32)
    assert PrivateFeatures.of_rows(rows).partition is None
    for assignment in ([0, 0, 1], [2, 1, 0]):
        assert Records(PrivateFeatures.of_rows(rows), np.zeros(3, int), np.array(assignment), 2).values is rows
