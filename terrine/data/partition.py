"""Which teacher sees which record: disjoint parts that cover the training data.

A partition is an int64 array [records] that holds the teacher of each record, so its parts are disjoint and cover the
data by construction; `check` proves it again from the array and from the groups, for the manifest.

What the accounting needs of a partition is that one *unit* (one record, or all records of one group) sits in one
part, and that two neighbouring datasets deal the units they share alike: then they differ in one teacher's part, hence
in at most one vote on each query. A dataset is a map from names to contents (`terrine.data.units`); neighbours differ
under one name. These are the neighbours for which each kind keeps that:

- `iid`: under one name the contents are replaced (the image, the label, and with groups also the number of records), or
  the name is added or removed; all other units keep their names. A unit that is renamed, and a group that is split in
  two, are two such steps, one removed and one added, so up to two votes. Places are names, too: taking a record out of
  the middle of an array without ids renames all behind it.
- Parties as teachers (`terrine.data.parties`), which the data give: under one name the contents are replaced at the
  party that holds it, or the name is added there or removed; the list of parties, and who holds what, are taken as
  public. What moves from one party to another is removed here and added there: up to two votes.
- `dirichlet` and `by_similarity` read labels, and the number and order of units: no neighbours. They imitate parties
  whose data differ, for experiments on public data. They leave every teacher two units where there are as many, since
  batch statistics need two records.
"""

from typing import Any

import numpy as np

from terrine.data.digest import digest_of_arrays
from terrine.data.duplicates import duplicate_counts
from terrine.data.units import count_units, draws, place_codes
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError


def iid(
    records: int, teachers: int, *, names: np.ndarray | None = None, groups: np.ndarray | None = None, seed: int
) -> np.ndarray:
    """Return int64 [records]: the teacher 0..teachers-1 of each record, a function of `seed` and its own unit alone.

    The unit of a record is its group where there are `groups`, int64 [records], else its name, `names`, int64
    [records], else its place; a unit's teacher is its own draw (`terrine.data.units.draws`) modulo `teachers`. Nothing
    is evened out, since every rule that evens out looks at others: with n units for each teacher on average, parts hold
    about n ± √n, and a teacher has none with probability about e^-n.

    Raises SettingError when there are more teachers than units.
    """
    units, what = place_codes(records) if names is None else names, "names"
    if groups is not None:
        units, what = groups, "groups"
    _same_length(what, units, records)
    _refuse_more_teachers(teachers, count_units(units), records, what)
    dealt: np.ndarray = (draws(units, seed, "partition.deal") % np.uint64(teachers)).astype(np.int64)
    return dealt


def dirichlet(
    labels: np.ndarray, teachers: int, alpha: float, *, groups: np.ndarray | None = None, seed: int
) -> np.ndarray:
    """Return int64 [records]: each class is spread over the teachers in proportions drawn from Dirichlet(alpha).

    Small `alpha` gives teachers with few classes each, large `alpha` equal shares (Hsu, Qi and Brown 2019). A unit
    counts for its most frequent label. Part sizes differ widely; a teacher left with less than two units takes them
    from the teacher who has most. Raises SettingError for more teachers than units.
    """
    unit = _units(len(labels), teachers, groups)
    label = _label_of_unit(unit, labels)
    generator = numpy_generator(seed, "partition.dirichlet")
    teacher_of_unit = np.empty(len(label), dtype=np.int64)
    for value in np.unique(label):
        members = generator.permutation(np.flatnonzero(label == value))
        shares = generator.dirichlet(np.full(teachers, float(alpha)))
        cuts = np.floor(np.cumsum(shares[:-1]) * len(members)).astype(np.int64)
        position = np.arange(len(members))
        teacher_of_unit[members] = np.searchsorted(cuts, position, side="right")
    return _fill_up(teacher_of_unit, teachers).take(unit)


def by_similarity(
    labels: np.ndarray, teachers: int, similarity_percent: float, *, groups: np.ndarray | None = None, seed: int
) -> np.ndarray:
    """Return int64 [records]: `similarity_percent` of the units dealt at random, the rest sorted by label and cut.

    The partition of Dodwadmath and Stich (2022, section 4, after SCAFFOLD, Karimireddy et al. 2020): at 100 it is IID,
    at 0 every teacher holds one run of the sorted records, so one or two classes. A unit counts for its most frequent
    label.

    Raises SettingError for more teachers than units.
    """
    unit = _units(len(labels), teachers, groups)
    label = _label_of_unit(unit, labels)
    generator = numpy_generator(seed, "partition.similarity")
    shuffled = generator.permutation(len(label))
    similar, rest = np.split(shuffled, [round(similarity_percent / 100 * len(label))])
    teacher_of_unit = np.empty(len(label), dtype=np.int64)
    teacher_of_unit[similar] = _deal(len(similar), teachers, generator)
    by_label = rest[np.argsort(label[rest], kind="stable")]
    sizes = np.bincount(unit)[by_label]
    before = np.cumsum(sizes) - sizes  # records, not units, so that parts have near-equal numbers of records
    teacher_of_unit[by_label] = before * teachers // max(int(sizes.sum()), 1)
    return _fill_up(teacher_of_unit, teachers).take(unit)


def check(
    assignment: np.ndarray, teachers: int, groups: np.ndarray | None = None, duplicates: np.ndarray | None = None
) -> dict[str, Any]:
    """Return the manifest that proves the partition; raise InputError where it is none. Private: it holds counts.

    Proven: every record has exactly one teacher 0..teachers-1, every group one teacher. Only reported: how many
    teachers have no record, and of `duplicates` (`terrine.data.duplicates.exact_duplicates`) how many sets of identical
    images sit in more than one part, `split_sets`.
    """
    if assignment.ndim != 1 or assignment.dtype != np.int64:
        raise InputError(f"The partition is {assignment.dtype} {list(assignment.shape)}; it must be int64 [records].")
    outside = np.flatnonzero((assignment < 0) | (assignment >= teachers))
    if len(outside):
        raise InputError(
            f"The partition gives record {outside[0]} to teacher {assignment[outside[0]]}, but there are teachers "
            f"0..{teachers - 1} only. Make the partition again."
        )
    counts = np.bincount(assignment, minlength=teachers)
    manifest: dict[str, Any] = {
        "records": len(assignment),
        "teachers": teachers,
        "counts": counts.tolist(),
        "counts_sum": int(counts.sum()),
        "smallest": int(counts.min()),
        "largest": int(counts.max()),
        "teachers_without_records": int(np.count_nonzero(counts == 0)),
        "every_record_in_exactly_one_part": int(counts.sum()) == len(assignment),
        "groups": None,
        "every_group_in_exactly_one_part": None,
        "exact_duplicates": None,
    }
    if groups is not None:
        _same_length("groups", groups, len(assignment))
        split = _split_ids(assignment, groups)
        if len(split):
            raise InputError(
                f"The partition divides {len(split)} groups among several teachers, the first is group {split[0]}. "
                "One person could then move several votes: make the partition again with these groups."
            )
        manifest["groups"] = count_units(groups)
        manifest["every_group_in_exactly_one_part"] = True
    if duplicates is not None:
        _same_length("duplicates", duplicates, len(assignment))
        split_sets = len(_split_ids(assignment, duplicates))
        manifest["exact_duplicates"] = {**duplicate_counts(duplicates), "split_sets": split_sets}
    return manifest


def partition_hash(assignment: np.ndarray, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the partition under `key`: it names the partition without revealing it."""
    return digest_of_arrays("terrine partition 1", {"assignment": (assignment, "<i8")}, key)


def _units(records: int, teachers: int, groups: np.ndarray | None) -> np.ndarray:
    """Return int64 [records]: the unit 0..U-1 of each record, in the order of group numbers, or the record itself."""
    unit = np.arange(records)
    if groups is not None:
        _same_length("groups", groups, records)
        unit = np.unique(groups, return_inverse=True)[1]
    _refuse_more_teachers(teachers, int(unit.max(initial=-1)) + 1, records, "groups")
    return unit


def _refuse_more_teachers(teachers: int, units: int, records: int, what: str) -> None:
    if teachers < 1:
        raise SettingError(f"The number of teachers is {teachers}. At least one is needed.")
    if teachers > units:
        these = f"{records} training records" if units == records else f"{units} {what} in {records} training records"
        raise SettingError(
            f"{teachers} teachers cannot share {these}: that leaves most of them nothing that no other teacher has. "
            f"Use at most {units} teachers, or bring more data."
        )


def _deal(count: int, teachers: int, generator: np.random.Generator) -> np.ndarray:
    """Return int64 [count]: each block of `teachers` successive items goes to all teachers, in a random order.

    The teacher of an item depends on its position alone, never on how many items follow.
    """
    blocks = -(-count // teachers)
    table = np.tile(np.arange(teachers, dtype=np.int64), (blocks, 1))
    return generator.permuted(table, axis=1).ravel()[:count]


def _label_of_unit(unit: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return int64 [units]: the most frequent label of each unit, the smallest of several."""
    classes = int(labels.max(initial=-1)) + 1
    units = int(unit.max(initial=-1)) + 1
    label: np.ndarray = (
        np.bincount(unit * classes + labels, minlength=units * classes).reshape(units, classes).argmax(1)
    )
    return label


def _fill_up(teacher_of_unit: np.ndarray, teachers: int) -> np.ndarray:
    """Give each teacher with fewer than two units (one, where there are not two for all) some of who has most.

    Teachers are served in ascending order, units taken from the last of the donor's.
    """
    least = min(2, len(teacher_of_unit) // teachers)
    counts = np.bincount(teacher_of_unit, minlength=teachers)
    for poor in np.flatnonzero(counts < least):
        while counts[poor] < least:
            donor = int(counts.argmax())
            teacher_of_unit[np.flatnonzero(teacher_of_unit == donor)[-1]] = poor
            counts[donor] -= 1
            counts[poor] += 1
    return teacher_of_unit


def _split_ids(assignment: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the values of `ids` that occur with more than one teacher."""
    order = np.argsort(ids, kind="stable")
    ids, assignment = ids[order], assignment[order]
    return np.unique(ids[1:][(ids[1:] == ids[:-1]) & (assignment[1:] != assignment[:-1])])


def _same_length(name: str, values: np.ndarray, records: int) -> None:
    if values.shape != (records,):
        raise InputError(f"{name} has shape {list(values.shape)}, but there are {records} training records.")
