"""Which teacher sees which record: disjoint parts that cover the training data.

A partition is an int64 array [records] that holds the teacher of each record, so its parts are disjoint and cover the
data by construction; `check` proves it again from the array and from the groups, for the manifest.

What the accounting needs of a partition is that one *unit* (one record, or all records of one person) sits in one
part, and that exchanging a unit moves no other: then it changes one teacher, hence at most one vote. What each
function reads of the data decides between which datasets that holds:

- `iid` reads the set of group numbers, or only the number of records. Unit k has a place k, and a place has a teacher
  whatever is in it, so units may differ in their contents and in their number of records; records or groups appended
  at the end move nobody. With `balance="records"` it reads the sizes of groups too: those must then be equal.
- With `duplicates` (from `terrine.data.duplicates.exact_duplicates`) byte-identical images count as one person's and
  sit where the first of them does. This reads content: exchanging a record can move that record, the copies of what it
  was and the copies of what it becomes, so the guarantee then takes it as given which records are copies.
- `by_party` takes the assignment as given: who holds a record is public knowledge (`terrine.data.parties`).
- `dirichlet` and `by_similarity` read labels: they imitate parties whose data differ, for experiments on public data.
  They leave every teacher two units where there are as many, since batch statistics need two records.
"""

import heapq
from typing import Any, Literal

import numpy as np

from terrine.data.digest import keyed_digest
from terrine.data.duplicates import duplicate_counts, merge_groups
from terrine.errors import InputError, SettingError
from terrine.randomness import numpy_generator


def iid(
    records: int,
    teachers: int,
    *,
    groups: np.ndarray | None = None,
    duplicates: np.ndarray | None = None,
    balance: Literal["units", "records"] = "units",
    seed: int,
) -> np.ndarray:
    """Return int64 [records]: the teacher 0..teachers-1 of each record, dealt at random. Deterministic in `seed`.

    Records with equal `groups`, int64 [records], stay together, and so do records with equal `duplicates`. Teachers
    get equal numbers of units up to one: equal numbers of records where there are no groups (identical images, being
    few, disturb that little). With `balance` "records" the largest unit is placed first, each with a teacher who has
    fewest records so far (ties at random), which makes numbers of records near-equal too; the module docstring says
    what that assumes. Every teacher gets a record.

    Raises SettingError when there are more teachers than units.
    """
    places, unit = _units(records, teachers, groups, duplicates)
    if balance == "records":
        teacher_of_unit = _largest_first(np.bincount(unit), teachers, numpy_generator(seed, "partition.balance"))
    else:
        dealt = _deal(int(places.max()) + 1, teachers, numpy_generator(seed, "partition.deal"))
        teacher_of_unit = _fill_up(dealt[places], teachers, 1)
    return teacher_of_unit.take(unit)


def dirichlet(
    labels: np.ndarray,
    teachers: int,
    alpha: float,
    *,
    groups: np.ndarray | None = None,
    duplicates: np.ndarray | None = None,
    seed: int,
) -> np.ndarray:
    """Return int64 [records]: each class is spread over the teachers in proportions drawn from Dirichlet(alpha).

    Small `alpha` gives teachers with few classes each, large `alpha` equal shares (Hsu, Qi and Brown 2019). A unit
    counts for its most frequent label. Part sizes differ widely; a teacher left with less than two units takes them
    from the teacher who has most. Raises SettingError for alpha <= 0 or more teachers than units.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise SettingError(f"partition.alpha is {alpha}. It must be a positive number, for example 0.5.")
    _, unit = _units(len(labels), teachers, groups, duplicates)
    label = _label_of_unit(unit, labels)
    generator = numpy_generator(seed, "partition.dirichlet")
    teacher_of_unit = np.empty(len(label), dtype=np.int64)
    for value in np.unique(label):
        members = generator.permutation(np.flatnonzero(label == value))
        shares = generator.dirichlet(np.full(teachers, float(alpha)))
        cuts = np.floor(np.cumsum(shares[:-1]) * len(members)).astype(np.int64)
        position = np.arange(len(members))
        teacher_of_unit[members] = np.searchsorted(cuts, position, side="right")
    return _fill_up(teacher_of_unit, teachers, 2).take(unit)


def by_similarity(
    labels: np.ndarray,
    teachers: int,
    similarity_percent: float,
    *,
    groups: np.ndarray | None = None,
    duplicates: np.ndarray | None = None,
    seed: int,
) -> np.ndarray:
    """Return int64 [records]: `similarity_percent` of the units dealt at random, the rest sorted by label and cut.

    The partition of the TTAC paper (004, section 4 "Experimental setup", after SCAFFOLD): at 100 it is IID, at 0 every
    teacher holds one run of the sorted records, so one or two classes. A unit counts for its most frequent label.
    Raises SettingError for a percentage outside 0..100 or more teachers than units.
    """
    if not 0 <= similarity_percent <= 100:
        raise SettingError(f"partition.similarity is {similarity_percent}. It is a percentage from 0 to 100.")
    _, unit = _units(len(labels), teachers, groups, duplicates)
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
    return _fill_up(teacher_of_unit, teachers, 2).take(unit)


def by_party(parties: np.ndarray) -> np.ndarray:
    """Return int64 [records]: one teacher per party, teacher k for the k-th smallest value of `parties`."""
    return np.unique(parties, return_inverse=True)[1].astype(np.int64)


def check(
    assignment: np.ndarray,
    teachers: int,
    groups: np.ndarray | None = None,
    duplicates: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the manifest that proves the partition; raise InputError where it is none. Private: it holds counts.

    Proven: every record has exactly one teacher 0..teachers-1, every teacher a record, every group one teacher.
    `duplicates` is only reported: `split_sets` counts sets of identical images that sit in more than one part (none
    unless duplicates were left out on purpose, or parties hold the same image).
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
    if not counts.all():
        raise InputError(
            f"The partition leaves {np.count_nonzero(counts == 0)} of {teachers} teachers without a record, the first "
            f"is teacher {np.flatnonzero(counts == 0)[0]}. Use fewer teachers, or make the partition again."
        )
    manifest: dict[str, Any] = {
        "records": len(assignment),
        "teachers": teachers,
        "counts": counts.tolist(),
        "counts_sum": int(counts.sum()),
        "smallest": int(counts.min()),
        "largest": int(counts.max()),
        "every_record_in_exactly_one_part": int(counts.sum()) == len(assignment),
        "groups": None,
        "every_group_in_exactly_one_part": None,
        "exact_duplicates": None,
    }
    if groups is not None:
        _same_length("groups", groups, assignment)
        split = _split_ids(assignment, groups)
        if len(split):
            raise InputError(
                f"The partition divides {len(split)} groups among several teachers, the first is group {split[0]}. "
                "One person could then move several votes: make the partition again with these groups."
            )
        manifest["groups"] = len(np.unique(groups))
        manifest["every_group_in_exactly_one_part"] = True
    if duplicates is not None:
        _same_length("duplicates", duplicates, assignment)
        split_sets = len(_split_ids(assignment, duplicates))
        manifest["exact_duplicates"] = {**duplicate_counts(duplicates), "split_sets": split_sets}
    return manifest


def partition_hash(assignment: np.ndarray, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the partition under `key`: it names the partition without revealing it."""
    return keyed_digest("terrine partition 1", {"assignment": (assignment, "<i8")}, key)


def _units(
    records: int, teachers: int, groups: np.ndarray | None, duplicates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [units] places, ascending, and int64 [records] units, once there are enough for the teachers.

    The place of a record is its index, or the rank of its group number; that of a unit is the smallest of its records'.
    """
    place = np.arange(records)
    if groups is not None:
        _same_length("groups", groups, place)
        place = np.unique(groups, return_inverse=True)[1]
    if duplicates is not None:
        _same_length("duplicates", duplicates, place)
        merged = merge_groups(place, duplicates)
        smallest = np.full(int(merged.max(initial=-1)) + 1, records)
        np.minimum.at(smallest, merged, place)
        place = smallest[merged]
    places, unit = np.unique(place, return_inverse=True)
    if teachers < 1:
        raise SettingError(f"The number of teachers is {teachers}. At least one is needed.")
    if teachers > len(places):
        what = f"{records} training records"
        if len(places) < records:
            what = f"{len(places)} groups in {what}"
        raise SettingError(
            f"{teachers} teachers cannot share {what}: every teacher needs at least one that no other teacher has. "
            f"Use at most {len(places)} teachers, or bring more data."
        )
    return places, unit


def _largest_first(sizes: np.ndarray, teachers: int, generator: np.random.Generator) -> np.ndarray:
    """Return int64 [units]: each unit, from the largest to the smallest, to a teacher with fewest records so far."""
    shuffled = generator.permutation(len(sizes))
    largest_first = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    queue = [(0, tie, teacher) for teacher, tie in enumerate(generator.permutation(teachers).tolist())]
    heapq.heapify(queue)
    teacher_of_unit = np.empty(len(sizes), dtype=np.int64)
    for index in largest_first:
        load, tie, teacher = queue[0]
        teacher_of_unit[index] = teacher
        heapq.heapreplace(queue, (load + int(sizes[index]), tie, teacher))
    return teacher_of_unit


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


def _fill_up(teacher_of_unit: np.ndarray, teachers: int, least: int) -> np.ndarray:
    """Give each teacher with fewer than `least` units (as many as there are for all) some of the teacher who has most.

    Teachers are served in ascending order, units taken from the last of the donor's.
    """
    least = min(least, len(teacher_of_unit) // teachers)
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


def _same_length(name: str, values: np.ndarray, assignment: np.ndarray) -> None:
    if values.shape != assignment.shape:
        raise InputError(f"{name} has shape {list(values.shape)}, but there are {len(assignment)} training records.")
