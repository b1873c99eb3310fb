import hashlib
import hmac
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrine.data.partition import by_similarity, check, check_whole, dirichlet, encode_parties, iid, partition_hash
from terrine.data.units import draws, name_codes, place_codes
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
def test_parts_are_disjoint_and_cover(records: int, teachers: int) -> None:
    assignment = iid(records, teachers, seed=0)
    assert assignment.dtype == np.int64
    plain_check(assignment, teachers, None)


def test_the_teacher_of_a_unit_is_its_own_draw_modulo_the_teachers() -> None:
    groups = name_codes(f"patient {index % 13}" for index in range(100))
    for units, arguments in (
        (place_codes(100), {}),
        (name_codes(f"{index}.png" for index in range(100)), {"names": name_codes(f"{i}.png" for i in range(100))}),
        (groups, {"groups": groups}),
        (groups, {"groups": groups, "names": place_codes(100)}),
    ):
        alone = [int(draws(np.array([unit]), 4, "partition.deal")[0]) % 7 for unit in units]
        assert iid(100, 7, **arguments, seed=4).tolist() == alone


def test_parts_are_as_unequal_as_chance_makes_them() -> None:
    counts = np.bincount(iid(100_000, 100, seed=0), minlength=100)
    # A part is binomial with mean 1,000 and deviation 31.5; Bernstein bounds all hundred at 1e-10 in all.
    assert np.abs(counts - 1000).max() < 260
    assert 15 < counts.std() < 60  # evened out it would be 0.5; a hundred parts put it within 31.5 ± 2.3


@given(st.sets(st.integers(0, 2**63 - 1), min_size=4, max_size=40), st.data())
def test_who_else_is_there_moves_nobody(units: set[int], data) -> None:
    """A unit added, removed or renamed, and others in another order or with other numbers of records."""
    names = np.array(data.draw(st.permutations(sorted(units))))
    kept = np.array(data.draw(st.lists(st.sampled_from(sorted(units)), min_size=3, unique=True)))
    for how in ("names", "groups"):
        before = dict(zip(names.tolist(), iid(len(names), 3, **{how: names}, seed=1).tolist(), strict=True))
        after = iid(len(kept), 3, **{how: kept}, seed=1).tolist()
        assert after == [before[unit] for unit in kept.tolist()]
    repeated = np.repeat(names, data.draw(st.lists(st.integers(1, 5), min_size=len(names), max_size=len(names))))
    assert iid(len(repeated), 3, groups=repeated, seed=1).tolist() == [before[unit] for unit in repeated.tolist()]


def test_a_group_number_left_unused_and_a_group_renamed_move_nobody_else() -> None:
    groups = name_codes(f"p{index // 3:03d}" for index in range(120))
    before = iid(120, 10, groups=groups, seed=0)
    others = groups != groups[15]
    assert np.array_equal(iid(int(others.sum()), 10, groups=groups[others], seed=0), before[others])
    renamed = np.where(others, groups, name_codes(["a999"])[0])  # once the first in the alphabet, and so all moved
    assert np.array_equal(iid(120, 10, groups=renamed, seed=0)[others], before[others])
    more = np.concatenate([groups, name_codes(["q", "q"])])
    assert np.array_equal(iid(122, 10, groups=more, seed=0)[:120], before)


def test_equal_seeds_give_equal_partitions_and_others_do_not() -> None:
    groups = np.arange(300) // 2
    for arguments in ({}, {"groups": groups}, {"names": groups}):
        assert np.array_equal(iid(300, 7, **arguments, seed=1), iid(300, 7, **arguments, seed=1))
        assert not np.array_equal(iid(300, 7, **arguments, seed=1), iid(300, 7, **arguments, seed=2))


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


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"groups has shape \[3\], but there are 10 training records"):
        iid(10, 2, groups=np.arange(3), seed=0)
    with pytest.raises(InputError, match=r"names has shape \[3\], but there are 10 training records"):
        iid(10, 2, names=np.arange(3), seed=0)
    with pytest.raises(SettingError, match=r"11 teachers cannot share 4 names in 20 training records"):
        iid(20, 11, names=np.arange(20) % 4, seed=0)
    with pytest.raises(SettingError, match="number of teachers is 0"):
        iid(10, 0, seed=0)


def mean_classes_per_teacher(assignment: np.ndarray, teachers: int) -> float:
    return float(np.mean([len(set(LABELS[assignment == teacher].tolist())) for teacher in range(teachers)]))


@pytest.mark.parametrize(("alpha", "least", "most"), [(0.01, 1, 5), (0.5, 1, 10), (1000.0, 10, 10)])
def test_small_alpha_gives_teachers_few_classes_and_large_alpha_all(alpha: float, least: int, most: int) -> None:
    assignment = dirichlet(LABELS, 10, alpha, seed=0)
    assert min(plain_check(assignment, 10, None)) >= 1
    assert least <= mean_classes_per_teacher(assignment, 10) <= most


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    # Var of one of T shares of Dirichlet(alpha) is (T-1) / (T² (alpha T + 1)).
    teachers, alpha, labels = 4, 1.0, np.zeros(2000, dtype=np.int64)
    shares = [np.mean(dirichlet(labels, teachers, alpha, seed=seed) == 0) for seed in range(400)]
    assert np.var(shares) == pytest.approx((teachers - 1) / (teachers**2 * (alpha * teachers + 1)), rel=0.25)


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
    # About ninety of each teacher's hundred records have one or two adjacent classes, ten have any.
    assert np.all(np.sort(histograms, axis=1)[:, -2:].sum(axis=1) >= 85)
    assert max(plain_check(assignment, 10, None)) - min(plain_check(assignment, 10, None)) <= 2


def test_partitions_keep_groups_together_and_those_by_label_every_teacher_busy() -> None:
    groups = np.random.default_rng(0).integers(0, 60, 1000)
    plain_check(iid(1000, 8, groups=groups, seed=0), 8, groups)
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


def test_the_manifest_counts_what_a_loop_counts() -> None:
    groups, duplicates = np.arange(200) // 3, np.arange(200)
    duplicates[7] = 6  # both of group 2
    assignment = iid(200, 9, groups=groups, seed=0)
    manifest = check(assignment, 9, groups, duplicates)
    counts = plain_check(assignment, 9, groups)
    assert manifest["counts"] == counts
    assert manifest["counts_sum"] == manifest["records"] == 200
    assert (manifest["smallest"], manifest["largest"], manifest["groups"]) == (min(counts), max(counts), 67)
    assert manifest["every_record_in_exactly_one_part"] is True
    assert manifest["every_group_in_exactly_one_part"] is True
    assert manifest["exact_duplicates"] == {"sets": 1, "records": 2, "split_sets": 0}
    torn = check(np.array([0, 2, 2, 2, 2]), 4, None, np.array([0, 0, 2, 2, 2]))
    assert torn["exact_duplicates"] == {"sets": 2, "records": 5, "split_sets": 1}
    assert (torn["teachers_without_records"], torn["counts"]) == (2, [1, 0, 4, 0])


@pytest.mark.parametrize(
    ("assignment", "groups", "message"),
    [
        ([0, 1, 1], [4, 4, 5], "divides 1 groups among several teachers, such as group 4"),
        ([0, -1, 1], None, r"assigns record 1 to teacher -1, but teachers are numbered 0\.\.1"),
        ([0, 2, 1], None, r"assigns record 1 to teacher 2, but teachers are numbered 0\.\.1"),
    ],
)
def test_what_is_no_partition_is_refused(assignment, groups, message) -> None:
    with pytest.raises(InputError, match=message):
        check(np.array(assignment), 2, None if groups is None else np.array(groups))


def test_the_hash_is_keyed_and_canonical() -> None:
    assignment = np.array([2, 0, 1])
    message = b"terrine partition 1\nassignment <i8 [3]\n" + struct.pack("<3q", 2, 0, 1)
    assert partition_hash(assignment, b"key") == hmac.new(b"key", message, hashlib.sha256).hexdigest()
    assert partition_hash(assignment, b"key") == partition_hash(assignment.astype(">i8"), b"key")
    assert partition_hash(assignment, b"other") != partition_hash(assignment, b"key")
    assert partition_hash(np.array([0, 2, 1]), b"key") != partition_hash(assignment, b"key")


def test_parties_are_numbered_by_name_over_all_splits():
    numbers, names = encode_parties({"train": np.array(["north", "south"]), "val": np.array(["east", "north"])}, "x")
    assert names == ("east", "north", "south")
    assert numbers["train"].tolist() == [1, 2]
    assert numbers["val"].tolist() == [0, 1]


def test_numbers_may_name_parties_too():
    numbers, names = encode_parties({"parties": np.array([[30], [4], [30]])}, "x")
    assert names == ("4", "30")
    assert numbers["parties"].tolist() == [1, 0, 1]


def test_a_record_without_a_party_is_refused():
    with pytest.raises(InputError, match=r"own\.npz: parties\[1\] is empty\. Give every record a party"):
        encode_parties({"parties": np.array(["a", "", "b"])}, "own.npz")
    with pytest.raises(InputError, match=r"float64. A party is an integer or a text, such as the name of a hospital"):
        encode_parties({"parties": np.array([0.5])}, "own.npz")


def test_one_person_with_two_parties_is_refused_where_persons_are_protected():
    parties = np.array([0, 1, 0, 1, 0, 1])
    groups = np.array([7, 7, 8, 9, 8, 9])
    with pytest.raises(InputError, match=r"1 groups have records with several parties, such as 'a' and 'b'"):
        check_whole(groups, parties, ["a", "b"])
    check_whole(groups[2:], parties[2:], ["a", "b"])


@pytest.mark.parametrize("seed", range(4))
def test_divided_groups_are_found_as_a_plain_loop_finds_them(seed):
    generator = np.random.default_rng(seed)
    parties, groups = generator.integers(0, 3, 60), generator.integers(0, 25, 60)
    divided = sum(len(set(parties[groups == group].tolist())) > 1 for group in set(groups.tolist()))
    with pytest.raises(InputError, match=f"^{divided} groups have"):
        check_whole(groups, parties, ["a", "b", "c"])
