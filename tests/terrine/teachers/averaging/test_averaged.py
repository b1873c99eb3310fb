"""Algorithm 1 as published: equal to its plain form for every distribution of the computation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.teachers.averaging.learners import LinearLearner, ModuleLearner
from terrine.teachers.averaging.ttac import (
    Average,
    average_teachers,
    derived_control,
    exact_means,
    local_round,
    mean_over_groups,
    server_step,
)
from terrine.teachers.networks import ScratchKind, ScratchTeachers
from terrine.teachers.records import Records
from tests.terrine.teachers.averaging.helpers import averaged, plain_ttac, sorted_records

SETTINGS = averaged(rounds=4, steps=3, learning_rate=0.7, step_decay=0.9, server_rate=0.8, batch=5)


@pytest.fixture(scope="module")
def parties():
    return sorted_records(4, 13, 6, 3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_average_control_and_control_variates_equal_the_plain_algorithm_after_three_rounds(parties, dtype, tolerance):
    learner = LinearLearner(6, 3, dtype=dtype)
    average, own = average_teachers(learner, parties, range(4), SETTINGS, rounds=3, seed=7)
    theta, c, plain_own, _ = plain_ttac(parties, 4, SETTINGS, 3, seed=7)
    np.testing.assert_allclose(average.value, theta, atol=tolerance)
    np.testing.assert_allclose(average.control, c, atol=tolerance)
    np.testing.assert_allclose(own, plain_own, atol=tolerance)
    assert np.abs(theta).max() > 0.1
    assert np.abs(c).max() > 0.01


def test_teachers_of_the_last_round_equal_the_plain_algorithms(parties):
    learner = LinearLearner(6, 3, dtype=torch.float64)
    average, own = average_teachers(learner, parties, range(4), SETTINGS, rounds=3, seed=7)
    last = local_round(learner, average, own, parties, range(4), SETTINGS, 3, seed=7)
    _, _, _, local = plain_ttac(parties, 4, SETTINGS, 4, seed=7)
    np.testing.assert_allclose(average.value + last.update, local, atol=1e-10)


def test_without_correction_it_is_federated_averaging(parties):
    settings = averaged(correction="none", steps=3, learning_rate=0.7, step_decay=0.9, server_rate=0.8, batch=5)
    learner = LinearLearner(6, 3, dtype=torch.float64)
    average, own = average_teachers(learner, parties, range(4), settings, rounds=3, seed=7)
    theta, c, _, _ = plain_ttac(parties, 4, settings, 3, seed=7, correct=False)
    np.testing.assert_allclose(average.value, theta, atol=1e-10)
    assert not average.control.any()
    assert not own.any()
    assert not c.any()


def test_the_correction_is_what_keeps_parties_of_one_class_together(parties):
    """The reason for the method: local steps of parties that differ lead apart, and less so with the correction."""
    apart = {}
    for correction in ("none", "control_variates"):
        settings = averaged(correction=correction, rounds=20, steps=10, learning_rate=1.0, batch=13)
        learner = LinearLearner(6, 3)
        average, own = average_teachers(learner, parties, range(4), settings, rounds=19, seed=1)
        last = local_round(learner, average, own, parties, range(4), settings, 19, seed=1)
        apart[correction] = np.linalg.norm(last.update - last.update.mean(axis=0), axis=1).mean()
    assert apart["control_variates"] < 0.3 * apart["none"]


def test_a_local_round_is_the_same_to_the_last_bit_however_teachers_are_grouped(parties):
    learner = LinearLearner(6, 3)
    average, own = average_teachers(learner, parties, range(4), SETTINGS, rounds=2, seed=7)
    whole = local_round(learner, average, own, parties, range(4), SETTINGS, 2, seed=7)
    for group in ([0], [1, 2], [3]):
        part = local_round(learner, average, own[group], parties, group, SETTINGS, 2, seed=7)
        np.testing.assert_array_equal(part.update, whole.update[group])
        np.testing.assert_array_equal(part.own, whole.own[group])
    groups = np.split(whole.update, [1, 3])
    np.testing.assert_array_equal(mean_over_groups(groups), mean_over_groups([whole.update]))


def test_a_teachers_part_of_a_round_does_not_see_other_teachers_records(parties):
    learner = LinearLearner(6, 3)
    average, own = average_teachers(learner, parties, range(4), SETTINGS, rounds=2, seed=7)
    changed = parties.inputs.copy()
    changed[parties.assignment == 2] *= -1
    other = Records(changed, parties.labels, parties.assignment, 3)
    first = local_round(learner, average, own, parties, range(4), SETTINGS, 2, seed=7).update
    second = local_round(learner, average, own, other, range(4), SETTINGS, 2, seed=7).update
    assert np.flatnonzero((first != second).any(axis=1)).tolist() == [2]


def test_the_control_variates_mean_change_is_a_function_of_the_mean_update(parties):
    """Eq. 3 summed over the teachers, which makes a release of control variates unnecessary."""
    learner = LinearLearner(6, 3, dtype=torch.float64)
    average, own = average_teachers(learner, parties, range(4), SETTINGS, rounds=2, seed=7)
    local = local_round(learner, average, own, parties, range(4), SETTINGS, 2, seed=7)
    update, change = exact_means(average, [local], own, 2)
    np.testing.assert_allclose(derived_control(average, update, SETTINGS, 2), change, atol=1e-12)
    after = server_step(average, update, change, SETTINGS)
    np.testing.assert_allclose(after.control, local.own.mean(axis=0), atol=1e-12)


def test_any_module_learns_as_the_linear_learner_does_when_it_is_one(parties):
    class Unit(nn.Module):
        def forward(self, inputs):
            inputs = inputs.double()
            return inputs / inputs.norm(dim=1, keepdim=True)

    layer = nn.Linear(6, 3).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    module = ModuleLearner(nn.Sequential(Unit(), layer), weight_decay=0.1)
    module.inputs = "features"
    linear = LinearLearner(6, 3, weight_decay=0.1, dtype=torch.float64)
    expected, _ = average_teachers(linear, parties, range(4), SETTINGS, rounds=3, seed=7)
    found, _ = average_teachers(module, parties, range(4), SETTINGS, rounds=3, seed=7)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-10)


def network_of(architecture):
    return ScratchKind(ScratchTeachers(architecture=architecture), 1, 8, 3).classifier(0)


def test_networks_learn_in_rounds_as_plain_gradient_descent_of_each(records):
    from terrine.models.statistics import batch_statistics
    from terrine.teachers.averaging.ttac import _batches

    classifier = network_of("pate_cnn")
    settings = averaged(steps=2, learning_rate=0.05, batch=4)
    learner = ModuleLearner(classifier)
    first = Average.start(learner)
    own = np.zeros((5, learner.length), np.float32)
    found = local_round(learner, first, own, records, range(5), settings, 0, seed=0)
    for teacher in range(5):
        network = network_of("pate_cnn")
        rows = np.flatnonzero(records.assignment == teacher)
        for batch in _batches(rows, settings, numpy_generator(0, "averaged batches", 0, teacher)):
            with batch_statistics(network, "current"):
                scores = network(torch.from_numpy(records.inputs[batch]))
            network.zero_grad()
            F.cross_entropy(scores, torch.from_numpy(records.labels[batch])).backward()
            with torch.no_grad():
                for value in network.parameters():
                    value -= 0.05 * value.grad
        moved = torch.cat([value.detach().flatten() for value in network.parameters()]).numpy() - first.value
        np.testing.assert_allclose(found.update[teacher], moved, atol=1e-5)
    assert np.abs(found.update).max() > 1e-3


def test_all_records_may_be_taken_in_every_step_also_by_parties_of_different_sizes(feature_records):
    settings = averaged(steps=2, learning_rate=1.0, batch=None)
    learner = LinearLearner(feature_records.inputs.shape[1], 3, dtype=torch.float64)
    local = local_round(
        learner, Average.start(learner), np.zeros((5, learner.length)), feature_records, range(5), settings, 0, seed=0
    )
    from tests.terrine.teachers.averaging.helpers import plain_gradient

    for teacher in range(5):
        rows = feature_records.assignment == teacher
        theta = np.zeros(learner.length)
        for _ in range(2):
            inputs = feature_records.inputs[rows].astype(np.float64)
            theta = theta - plain_gradient(theta, inputs, feature_records.labels[rows], 3)
        np.testing.assert_allclose(local.update[teacher], theta, atol=1e-9)


def test_a_party_with_one_class_learns(parties):
    one_class = Records(parties.inputs, np.zeros_like(parties.labels), parties.assignment, 3)
    average, _ = average_teachers(LinearLearner(6, 3), one_class, range(4), SETTINGS, rounds=2, seed=0)
    assert np.isfinite(average.value).all()


@pytest.mark.parametrize("correction", ["none", "control_variates"])
def test_a_party_without_records_stands_still_and_counts_in_the_means_as_everybody(parties, correction):
    """Eq. 3 holds for it, too, so that the control variate's mean change remains a function of the mean update."""
    settings = SETTINGS.model_copy(update={"correction": correction})
    learner = LinearLearner(6, 3, dtype=torch.float64)
    average, own = average_teachers(learner, parties, range(5), settings, rounds=2, seed=0)
    local = local_round(learner, average, own, parties, range(5), settings, 2, seed=0)
    assert local.update[:4].any(axis=1).all()
    assert not local.update[4].any()
    update, change = exact_means(average, [local], own, 2)
    np.testing.assert_allclose(update, local.update[:4].sum(axis=0) / 5, atol=1e-12)
    np.testing.assert_allclose(change, derived_control(average, update, settings, 2), atol=1e-12)
    np.testing.assert_allclose(local.own[4], own[4] - (average.control if correction != "none" else 0))


def test_networks_with_batch_norm_need_two_records_of_a_party(records):

    lonely = Records(records.inputs, records.labels, np.where(np.arange(90) == 4, 1, 0), 3)
    settings = averaged(steps=1, learning_rate=0.05, batch=4)
    for architecture, moved in (("small_cnn", [True, False]), ("cryptonet", [True, True])):
        learner = ModuleLearner(network_of(architecture))
        own = np.zeros((2, learner.length), np.float32)
        local = local_round(learner, Average.start(learner), own, lonely, range(2), settings, 0, seed=0)
        assert local.update.any(axis=1).tolist() == moved


def test_inputs_of_another_kind_are_refused(parties, records):
    with pytest.raises(InputError, match="features"):
        average_teachers(LinearLearner(6, 3), records, range(4), SETTINGS, rounds=1, seed=0)
    images = ModuleLearner(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    with pytest.raises(InputError, match="images"):
        average_teachers(images, parties, range(4), SETTINGS, rounds=1, seed=0)
    with pytest.raises(SettingError, match="no weights"):
        ModuleLearner(nn.Flatten())
