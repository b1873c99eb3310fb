import hashlib
import hmac
import struct

import numpy as np
import pytest

from terrine.data.partition import by_party, by_similarity, check, dirichlet, iid, partition_hash
from terrine.errors import InputError, SettingError

LABELS = np.random.default_rng(5).integers(0, 10, 1000)


def plain_check(assignment: np.ndarray, teachers: int, groups: np.ndarray | None) -> list[int]:
    """Count records per teacher with loops, asserting disjointness, cover and whole groups on the way."""
    parts: list[set[int]] = [set() for _ in range(teachers)]
    for record, teacher in enumerate(assignment.tolist()):
        parts[teacher].add(record)
    assert set().union(*parts) == set(range(len(assignment)))
    for one in range(teachers):
        for other in range(one):
            assert not parts[one] & parts[other]
    if groups is not None:
        for group in set(groups.tolist()):
            assert len({int(assignment[i]) for i in range(len(groups)) if groups[i] == group}) == 1
    return [len(part) for part in parts]


@pytest.mark.parametrize(("records", "teachers"), [(1, 1), (7, 7), (100, 7), (1000, 64), (999, 1)])
def test_parts_are_disjoint_cover_and_of_equal_size(records: int, teachers: int) -> None:
    counts = plain_check(iid(records, teachers, seed=0), teachers, None)
    assert max(counts) - min(counts) <= 1


def test_records_are_mixed() -> None:
    assignment = iid(10_000, 10, seed=0)
    # Every block of ten holds every teacher once, and successive blocks are ordered differently.
    blocks = assignment.reshape(-1, 10)
    assert all(sorted(block) == list(range(10)) for block in blocks.tolist())
    assert len({tuple(block) for block in blocks.tolist()}) > 990


def test_appended_records_leave_the_others_where_they_were() -> None:
    assert np.array_equal(iid(1000, 30, seed=2), iid(1234, 30, seed=2)[:1000])


def test_equal_seeds_give_equal_partitions_and_others_do_not() -> None:
    groups = np.arange(300) // 2
    for arguments in ({}, {"groups": groups}, {"groups": groups, "balance": "records"}):
        assert np.array_equal(iid(300, 7, **arguments, seed=1), iid(300, 7, **arguments, seed=1))
        assert not np.array_equal(iid(300, 7, **arguments, seed=1), iid(300, 7, **arguments, seed=2))


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together_and_every_teacher_has_as_many(seed: int) -> None:
    groups = np.random.default_rng(seed).geometric(0.02, 1000)
    assignment = iid(1000, 8, groups=groups, seed=seed)
    plain_check(assignment, 8, groups)
    counts = [len(set(groups[assignment == teacher].tolist())) for teacher in range(8)]
    assert max(counts) - min(counts) <= 1


def test_exchanging_a_group_for_a_larger_or_smaller_one_moves_nobody_else() -> None:
    groups = np.random.default_rng(0).integers(0, 50, 500)
    before = iid(500, 8, groups=groups, seed=0)
    others = groups != 17
    for size in (1, 3, 200):
        exchanged = np.concatenate([groups[others], np.full(size, 17)])
        after = iid(len(exchanged), 8, groups=exchanged, seed=0)
        assert np.array_equal(after[: others.sum()], before[others])


def test_appended_groups_leave_the_others_where_they_were() -> None:
    groups = np.random.default_rng(0).integers(0, 50, 500)
    more = np.concatenate([groups, np.arange(50, 90)])
    assert np.array_equal(iid(540, 8, groups=more, seed=0)[:500], iid(500, 8, groups=groups, seed=0))


@pytest.mark.parametrize("seed", range(5))
def test_balancing_records_gives_parts_of_near_equal_size(seed: int) -> None:
    groups = np.random.default_rng(seed).geometric(0.02, 1000)
    counts = plain_check(iid(1000, 8, groups=groups, balance="records", seed=seed), 8, groups)
    assert max(counts) - min(counts) <= 3


def test_the_largest_group_goes_to_a_teacher_with_fewest_records() -> None:
    generator = np.random.default_rng(3)
    groups = generator.integers(0, 40, 300)
    assignment = iid(300, 6, groups=groups, balance="records", seed=0)
    sizes = {group: int(np.count_nonzero(groups == group)) for group in set(groups.tolist())}
    owner = {group: int(assignment[np.flatnonzero(groups == group)[0]]) for group in sizes}
    # The same greedy rule with loops: whatever the ties, the loads it ends with are these.
    loads = [0] * 6
    for size in sorted(sizes.values(), reverse=True):
        loads[loads.index(min(loads))] += size
    assert sorted(loads) == sorted(sum(s for g, s in sizes.items() if owner[g] == teacher) for teacher in range(6))


@pytest.mark.parametrize("balance", ["units", "records"])
@pytest.mark.parametrize("seed", range(20))
def test_every_teacher_gets_a_record_when_units_are_as_few_as_teachers(seed: int, balance) -> None:
    groups = np.array([0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6])
    duplicates = np.arange(11)
    duplicates[[9, 10]] = 8  # groups 4, 5 and 6 are one unit: five in all
    assignment = iid(11, 5, groups=groups, duplicates=duplicates, balance=balance, seed=seed)
    assert min(plain_check(assignment, 5, groups)) >= 1


@pytest.mark.parametrize("balance", ["units", "records"])
def test_identical_images_stay_together_even_across_groups(balance) -> None:
    duplicates = np.arange(100)
    duplicates[70] = 3
    groups = np.arange(100)
    groups[71] = 70
    for seed in range(20):
        assignment = iid(100, 10, groups=groups, duplicates=duplicates, balance=balance, seed=seed)
        assert assignment[3] == assignment[70] == assignment[71]


def test_identical_images_sit_where_the_first_of_them_does_and_move_nobody_else() -> None:
    duplicates = np.arange(100)
    duplicates[[40, 70]] = 3
    plain, together = iid(100, 10, seed=0), iid(100, 10, duplicates=duplicates, seed=0)
    assert together[40] == together[70] == plain[3]
    others = np.setdiff1d(np.arange(100), [40, 70])
    assert np.array_equal(together[others], plain[others])


@pytest.mark.parametrize("make", [iid, dirichlet, by_similarity])
def test_too_few_units_are_refused_with_numbers_and_remedy(make) -> None:
    def call(records: int, groups: np.ndarray | None) -> None:
        if make is iid:
            iid(records, 11, groups=groups, seed=0)
        else:
            make(np.zeros(records, dtype=np.int64), 11, 1.0, groups=groups, seed=0)

    with pytest.raises(SettingError, match=r"11 teachers cannot share 10 training records.*Use at most 10 teachers"):
        call(10, None)
    with pytest.raises(SettingError, match=r"11 teachers cannot share 4 groups in 20 training records.*at most 4"):
        call(20, np.arange(20) % 4)


def test_no_teacher_is_refused() -> None:
    with pytest.raises(SettingError, match="number of teachers is 0"):
        iid(10, 0, seed=0)


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"groups has shape \[3\], but there are 10 training records"):
        iid(10, 2, groups=np.arange(3), seed=0)


def mean_classes_per_teacher(assignment: np.ndarray, teachers: int) -> float:
    return float(np.mean([len(set(LABELS[assignment == teacher].tolist())) for teacher in range(teachers)]))


def test_dirichlet_parts_are_disjoint_and_cover_for_any_alpha() -> None:
    for alpha in (0.01, 0.5, 100.0):
        assignment = dirichlet(LABELS, 20, alpha, seed=0)
        assert min(plain_check(assignment, 20, None)) >= 1


def test_small_alpha_gives_teachers_few_classes_and_large_alpha_all() -> None:
    assert mean_classes_per_teacher(dirichlet(LABELS, 10, 0.05, seed=0), 10) < 5
    assert mean_classes_per_teacher(dirichlet(LABELS, 10, 1000.0, seed=0), 10) == 10


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    # Var of one of T shares of Dirichlet(alpha) is (T-1) / (T² (alpha T + 1)).
    teachers, alpha, labels = 4, 1.0, np.zeros(2000, dtype=np.int64)
    shares = [np.mean(dirichlet(labels, teachers, alpha, seed=seed) == 0) for seed in range(400)]
    assert np.var(shares) == pytest.approx((teachers - 1) / (teachers**2 * (alpha * teachers + 1)), rel=0.25)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_alphas_are_refused(alpha: float) -> None:
    with pytest.raises(SettingError, match=r"partition\.alpha is"):
        dirichlet(LABELS, 10, alpha, seed=0)


def test_no_similarity_gives_every_teacher_a_run_of_the_sorted_labels() -> None:
    assignment = by_similarity(LABELS, 10, 0, seed=0)
    counts = plain_check(assignment, 10, None)
    assert max(counts) - min(counts) <= 1
    for teacher in range(9):
        assert LABELS[assignment == teacher].max() <= LABELS[assignment == teacher + 1].min()


def test_full_similarity_is_iid() -> None:
    assignment = by_similarity(LABELS, 10, 100, seed=0)
    counts = plain_check(assignment, 10, None)
    assert max(counts) - min(counts) <= 1
    assert mean_classes_per_teacher(assignment, 10) == 10


def test_partial_similarity_leaves_the_rest_sorted() -> None:
    labels = np.repeat(np.arange(10), 100)
    assignment = by_similarity(labels, 10, 10, seed=0)
    histograms = np.stack([np.bincount(labels[assignment == teacher], minlength=10) for teacher in range(10)])
    # Of each teacher's hundred records about ninety are of one or two neighbouring classes, ten are of any.
    assert np.all(np.sort(histograms, axis=1)[:, -2:].sum(axis=1) >= 85)
    assert max(plain_check(assignment, 10, None)) - min(plain_check(assignment, 10, None)) <= 2


@pytest.mark.parametrize("similarity", [-1, 101, float("nan")])
def test_impossible_similarities_are_refused(similarity: float) -> None:
    with pytest.raises(SettingError, match=r"partition\.similarity is"):
        by_similarity(LABELS, 10, similarity, seed=0)


def test_uneven_partitions_keep_groups_together_and_every_teacher_busy() -> None:
    groups = np.random.default_rng(0).integers(0, 60, 1000)
    for assignment in (
        dirichlet(LABELS, 40, 0.1, groups=groups, seed=0),
        by_similarity(LABELS, 40, 20, groups=groups, seed=0),
    ):
        assert min(plain_check(assignment, 40, groups)) >= 1


@pytest.mark.parametrize("seed", range(5))
def test_partitions_by_label_leave_every_teacher_two_records(seed: int) -> None:
    for assignment in (dirichlet(LABELS, 60, 0.01, seed=seed), by_similarity(LABELS, 60, 0, seed=seed)):
        assert min(plain_check(assignment, 60, None)) >= 2
    # With fewer than two units for each there is one for each.
    assert min(plain_check(dirichlet(LABELS[:90], 60, 0.01, seed=seed), 60, None)) >= 1


def test_parties_become_teachers_in_the_order_of_their_numbers() -> None:
    assert by_party(np.array([30, 10, 20, 10])).tolist() == [2, 0, 1, 0]


def test_the_manifest_counts_what_a_loop_counts() -> None:
    groups, duplicates = np.arange(200) // 3, np.arange(200)
    duplicates[[50, 51]] = 7
    assignment = iid(200, 9, groups=groups, duplicates=duplicates, seed=0)
    manifest = check(assignment, 9, groups, duplicates)
    counts = plain_check(assignment, 9, groups)
    assert manifest["counts"] == counts
    assert manifest["counts_sum"] == manifest["records"] == 200
    assert (manifest["smallest"], manifest["largest"], manifest["groups"]) == (min(counts), max(counts), 67)
    assert manifest["every_record_in_exactly_one_part"] is True
    assert manifest["every_group_in_exactly_one_part"] is True
    assert manifest["exact_duplicates"] == {"sets": 1, "records": 3, "split_sets": 0}


def test_duplicates_that_were_torn_apart_are_reported() -> None:
    duplicates = np.array([0, 0, 2, 2, 2])
    manifest = check(np.array([0, 1, 1, 1, 1]), 2, None, duplicates)
    assert manifest["exact_duplicates"] == {"sets": 2, "records": 5, "split_sets": 1}


def test_a_divided_group_is_refused() -> None:
    with pytest.raises(InputError, match="divides 1 groups among several teachers, the first is group 4"):
        check(np.array([0, 1, 1]), 2, np.array([4, 4, 5]))


def test_a_teacher_without_records_is_refused() -> None:
    with pytest.raises(InputError, match="leaves 1 of 3 teachers without a record, the first is teacher 1"):
        check(np.array([0, 2, 2]), 3)


@pytest.mark.parametrize("teacher", [-1, 2])
def test_a_teacher_outside_the_range_is_refused(teacher: int) -> None:
    with pytest.raises(InputError, match=rf"gives record 1 to teacher {teacher}, but there are teachers 0\.\.1 only"):
        check(np.array([0, teacher, 1]), 2)


def test_the_hash_is_keyed_and_canonical() -> None:
    assignment = np.array([2, 0, 1])
    message = b"terrine partition 1\nassignment <i8 [3]\n" + struct.pack("<3q", 2, 0, 1)
    assert partition_hash(assignment, b"key") == hmac.new(b"key", message, hashlib.sha256).hexdigest()
    assert partition_hash(assignment, b"key") == partition_hash(assignment.astype(">i8"), b"key")
    assert partition_hash(assignment, b"other") != partition_hash(assignment, b"key")
    assert partition_hash(np.array([0, 2, 1]), b"key") != partition_hash(assignment, b"key")
