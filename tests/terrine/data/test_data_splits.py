import numpy as np
import pytest

from terrine.data.splits import by_place, stratified
from terrine.errors import InputError, SettingError


def assert_disjoint_cover(train: np.ndarray, test: np.ndarray, records: int) -> None:
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(records))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.83])
def test_every_class_is_split_by_the_fraction(fraction: float) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 503)
    train, test = stratified(labels, fraction, seed=1)
    assert_disjoint_cover(train, test, 503)
    for label in range(5):
        assert np.count_nonzero(labels[test] == label) == round(fraction * np.count_nonzero(labels == label))


def test_small_classes_keep_a_training_record() -> None:
    labels = np.array([0] * 50 + [1] + [2] * 2)
    train, test = stratified(labels, 0.9, seed=0)
    assert set(labels[train]) == {0, 1, 2}
    assert set(labels[test]) == {0, 2}


def test_equal_seeds_give_equal_splits_and_others_do_not() -> None:
    labels = np.arange(200) % 4
    assert np.array_equal(stratified(labels, 0.2, seed=3)[1], stratified(labels, 0.2, seed=3)[1])
    assert not np.array_equal(stratified(labels, 0.2, seed=3)[1], stratified(labels, 0.2, seed=4)[1])


def test_one_corrected_label_moves_few_others() -> None:
    labels = np.arange(1000) % 4
    corrected = labels.copy()
    corrected[17] = (labels[17] + 1) % 4
    before, after = (set(stratified(x, 0.2, seed=0)[1].tolist()) for x in (labels, corrected))
    assert len(before ^ after) <= 4


@pytest.mark.parametrize("seed", range(10))
def test_no_group_is_on_both_sides_and_the_fraction_is_near(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups, labels = generator.integers(0, 120, 1000), generator.integers(0, 4, 1000)
    train, test = stratified(labels, 0.2, groups=groups, seed=seed)
    assert_disjoint_cover(train, test, 1000)
    assert not set(groups[train]) & set(groups[test])
    for label in range(4):
        share = np.count_nonzero(labels[test] == label) / np.count_nonzero(labels == label)
        assert abs(share - 0.2) < 0.05


def test_test_groups_are_not_the_largest_ones() -> None:
    groups = np.repeat(np.arange(100), np.arange(1, 101))
    labels = np.arange(len(groups)) % 2
    _, test = stratified(labels, 0.2, groups=groups, seed=0)
    assert np.median(np.bincount(groups)[np.unique(groups[test])]) < 75


def test_the_only_group_of_a_class_stays_in_train() -> None:
    groups = np.repeat(np.arange(10), 10)
    labels = np.where(groups == 4, 1, 0)
    for seed in range(10):
        train, _ = stratified(labels, 0.5, groups=groups, seed=seed)
        assert set(labels[train]) == {0, 1}


def test_groups_that_all_overshoot_give_the_smallest_to_test() -> None:
    groups = np.repeat([0, 1, 2], [50, 30, 20])
    _, test = stratified(np.arange(100) % 2, 0.05, groups=groups, seed=0)
    assert set(groups[test]) == {2}


def test_a_split_that_cannot_exist_is_refused() -> None:
    with pytest.raises(InputError, match=r"A test split of 0\.2 of 10 records is empty"):
        stratified(np.arange(10) % 2, 0.2, groups=np.zeros(10, dtype=np.int64), seed=0)
    with pytest.raises(InputError, match="is empty"):
        stratified(np.arange(10), 0.2, seed=0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.2, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(SettingError, match=r"data\.test_fraction is"):
        stratified(np.arange(10) % 2, fraction, seed=0)


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="groups has 3 entries, labels has 10"):
        stratified(np.arange(10) % 2, 0.2, groups=np.arange(3), seed=0)


def test_blind_to_labels_another_record_moves_nobody():
    train, test = by_place(500, 0.3, seed=1)
    assert sorted([*train, *test]) == list(range(500))
    assert 110 < len(test) < 190
    _, one_more = by_place(501, 0.3, seed=1)
    assert set(one_more) - {500} == set(test)


def test_blind_to_labels_groups_stay_together_and_a_new_one_moves_nobody():
    groups = np.array([7, 3, 7, 9, 3, 1] * 20)
    _, test = by_place(len(groups), 0.5, groups=groups, seed=2)
    assert not set(groups[test]) & set(np.delete(groups, test))
    _, one_more = by_place(len(groups) + 1, 0.5, groups=np.append(groups, 0), seed=2)
    assert set(one_more) - {len(groups)} == set(test)


def test_by_name_a_record_is_where_it_is_whatever_lies_before_it():
    names = [f"{number}.png" for number in range(200)]
    _, test = by_place(200, 0.3, names=names, seed=3)
    _, turned = by_place(200, 0.3, names=names[::-1], seed=3)
    assert {names[index] for index in test} == {names[::-1][index] for index in turned}


def test_too_few_to_split_blindly_are_refused():
    with pytest.raises(InputError, match="too few"):
        by_place(1, 0.2, seed=0)
    with pytest.raises(SettingError, match="test_fraction is 1"):
        by_place(10, 1.0, seed=0)
