"""Assign records to teachers: disjoint parts that cover the training data.

A partition is an int64 array [records] with the teacher of each record, so its parts are disjoint and cover the data by
construction. `check` verifies this again, including groups, for the manifest.

The accounting requires that each *unit* (one record, or all records of one group) is in one part, and that neighbouring
datasets assign their common units equally. They then differ in one teacher's part, hence in at most one vote per query.
A dataset is a map from names to contents (`terrine.data.units`), and neighbours differ under one name. Each kind
guarantees this for these neighbours:

- `iid`: the contents under one name are replaced (image, label and, for a group, number of records), or the name is
  added or removed; all other names are unchanged. Renaming a unit or splitting a group counts as two steps, a removal
  and an addition, so it changes up to two votes. Without IDs, positions are names: removing a record from the middle of
  an array renames all later ones.
- `party`: each party in the data is a teacher. The contents under one name are replaced, added or removed at its party;
  the list of parties and the party of each name are public. A move to another party counts as a removal and an
  addition, so it changes up to two votes.
- `dirichlet` and `similarity` depend on labels and on the number and order of units, so they guarantee nothing. Such
  partitions simulate parties with different data, for experiments on public data. Each teacher gets at least two units
  if possible, because batch statistics need two records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from terrine.data.content_digest import digest_of_arrays, duplicate_counts
from terrine.data.dataset import Dataset
from terrine.data.labels import check_texts
from terrine.data.units import count_units, draws, place_codes
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.settings import Automatic, Kinds, Settings, Unit


def iid(
    records: int, teachers: int, *, names: np.ndarray | None = None, groups: np.ndarray | None = None, seed: int
) -> np.ndarray:
    """Return the teacher 0..teachers-1 of each record, int64 [records], which depends only on `seed` and its own unit.

    A unit's teacher is its draw (`terrine.data.units.draws`) modulo `teachers`. Part sizes are not balanced, because
    that would depend on other units. With n units per teacher on average, parts have about n ± √n units, and a teacher
    has none with probability about e^-n.

    Args:
        records: Number of records.
        teachers: Number of teachers.
        names: Name code of each record, int64 [records]; None: records are named by place.
        groups: Code of each record's group, int64 [records], if groups are the units.
        seed: Public seed.

    Raises:
        SettingError: there are more teachers than units.
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
    """Return teachers, int64 [records], with each class divided in proportions from Dirichlet(alpha).

    Source: Hsu, Qi and Brown 2019. Small `alpha` gives each teacher few classes, large `alpha` equal shares. A unit
    counts for its most frequent label. Part sizes differ widely; teachers with fewer than two units get some of the
    largest part.

    Args:
        labels: int64 [records].
        teachers: Number of teachers.
        alpha: Concentration.
        groups: Code of each record's group, int64 [records], or None.
        seed: Public seed.

    Raises:
        SettingError: there are more teachers than units.
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
    """Return teachers, int64 [records]: some units are assigned at random, the others sorted by label and cut.

    Source: Dodwadmath and Stich 2022, section 4, after SCAFFOLD (Karimireddy et al. 2020). 100 per cent is IID; at 0,
    each teacher has consecutive sorted records, so one or two classes. A unit counts for its most frequent label.

    Args:
        labels: int64 [records].
        teachers: Number of teachers.
        similarity_percent: Share of the units that is assigned at random.
        groups: Code of each record's group, int64 [records], or None.
        seed: Public seed.

    Raises:
        SettingError: there are more teachers than units.
    """
    unit = _units(len(labels), teachers, groups)
    label = _label_of_unit(unit, labels)
    generator = numpy_generator(seed, "partition.similarity")
    shuffled = generator.permutation(len(label))
    similar, rest = np.split(shuffled, [round(similarity_percent / 100 * len(label))])
    teacher_of_unit = np.empty(len(label), dtype=np.int64)
    # Each block of `teachers` units goes to all teachers in random order.
    blocks = np.tile(np.arange(teachers, dtype=np.int64), (-(-len(similar) // teachers), 1))
    teacher_of_unit[similar] = generator.permuted(blocks, axis=1).ravel()[: len(similar)]
    by_label = rest[np.argsort(label[rest], kind="stable")]
    sizes = np.bincount(unit)[by_label]
    before = np.cumsum(sizes) - sizes  # in records, so that parts have similar numbers of records
    teacher_of_unit[by_label] = before * teachers // max(int(sizes.sum()), 1)
    return _fill_up(teacher_of_unit, teachers).take(unit)


def check(
    assignment: np.ndarray, teachers: int, groups: np.ndarray | None = None, duplicates: np.ndarray | None = None
) -> dict[str, Any]:
    """Verify a partition and return its manifest. Private: it contains counts.

    Args:
        assignment: Teacher of each record, int64 [records].
        teachers: Number of teachers.
        groups: Code of each record's group, int64 [records]; each must have one teacher.
        duplicates: `exact_duplicates` of the records; `split_sets` counts the sets that are in several parts.

    Raises:
        InputError: a record has no valid teacher, or a group has several.
    """
    if assignment.ndim != 1 or assignment.dtype != np.int64:
        raise InputError(f"The partition is {assignment.dtype} {list(assignment.shape)}; it must be int64 [records].")
    outside = np.flatnonzero((assignment < 0) | (assignment >= teachers))
    if len(outside):
        raise InputError(
            f"The partition assigns record {outside[0]} to teacher {assignment[outside[0]]}, but teachers are numbered "
            f"0..{teachers - 1}. Run the stage 'partition' again."
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
                f"The partition divides {len(split)} groups among several teachers, such as group {split[0]}, so one "
                "person could move several votes. Run the stage 'partition' again with these groups."
            )
        manifest["groups"] = count_units(groups)
        manifest["every_group_in_exactly_one_part"] = True
    if duplicates is not None:
        _same_length("duplicates", duplicates, len(assignment))
        split_sets = len(_split_ids(assignment, duplicates))
        manifest["exact_duplicates"] = {**duplicate_counts(duplicates), "split_sets": split_sets}
    return manifest


def partition_hash(assignment: np.ndarray, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the partition under `key`."""
    return digest_of_arrays("terrine partition 1", {"assignment": (assignment, "<i8")}, key)


def _units(records: int, teachers: int, groups: np.ndarray | None) -> np.ndarray:
    """Return the unit 0..U-1 of each record, int64 [records]: its group, or the record itself."""
    unit = np.arange(records)
    if groups is not None:
        _same_length("groups", groups, records)
        unit = np.unique(groups, return_inverse=True)[1]
    _refuse_more_teachers(teachers, int(unit.max(initial=-1)) + 1, records, "groups")
    return unit


def _refuse_more_teachers(teachers: int, units: int, records: int, what: str) -> None:
    if teachers < 1:
        raise SettingError(f"The number of teachers is {teachers}, but at least one is needed.")
    if teachers > units:
        these = f"{records} training records" if units == records else f"{units} {what} in {records} training records"
        raise SettingError(f"{teachers} teachers cannot share {these}. Use at most {units} teachers, or more data.")


def _label_of_unit(unit: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the most frequent label of each unit (the smallest in a tie), int64 [units]."""
    classes = int(labels.max(initial=-1)) + 1
    units = int(unit.max(initial=-1)) + 1
    label: np.ndarray = (
        np.bincount(unit * classes + labels, minlength=units * classes).reshape(units, classes).argmax(1)
    )
    return label


def _fill_up(teacher_of_unit: np.ndarray, teachers: int) -> np.ndarray:
    """Move units from the largest parts to teachers with fewer than two (or one, if there are too few for all)."""
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
    """Return the group IDs whose records have several teachers."""
    order = np.argsort(ids, kind="stable")
    ids, assignment = ids[order], assignment[order]
    return np.unique(ids[1:][(ids[1:] == ids[:-1]) & (assignment[1:] != assignment[:-1])])


def _same_length(name: str, values: np.ndarray, records: int) -> None:
    if values.shape != (records,):
        raise InputError(f"{name} has shape {list(values.shape)}, but there are {records} training records.")


class Partition(Settings):
    """Assignment of records to teachers."""

    reads_labels: ClassVar[bool] = False
    """True if replacing one record may move others to another teacher."""

    kind: str
    teachers: Annotated[int, Unit("teachers"), Automatic(100)] = Field(100, ge=2)
    """Number of teachers among which the records are divided."""

    def assign(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        """Return the teacher of each record, int64 [records].

        Args:
            dataset: The data.
            groups: Code of each record's group, int64 [records], if groups are the units.
            seed: Public seed.

        Raises:
            SettingError: there are fewer units than teachers, or the numbers of parties and teachers differ.
            InputError: a group has records with several parties.
        """
        raise NotImplementedError

    def check(self, run: Any) -> None:
        """Raise ValueError if the partition depends on the labels of private data."""
        self.refuse_private(public=run.data.public_benchmark)

    def refuse_private(self, *, public: bool) -> None:
        """Raise SettingError if the partition depends on labels and the data are not public."""
        if self.reads_labels and not public:
            raise SettingError(
                f"partition.kind={self.kind} depends on labels, so one record can move others to another teacher, and "
                "no guarantee would hold. Use iid, or party if parties hold the data"
            )


class IIDPartition(Partition):
    """By a hash of each unit's name."""

    kind: Literal["iid"] = "iid"

    def assign(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return iid(dataset.records, self.teachers, names=dataset.record_names, groups=groups, seed=seed)


class DirichletPartition(Partition):
    """By label, simulating parties with different data (Hsu, Qi and Brown 2019)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0)
    """Concentration of class proportions: with smaller values, teachers have fewer classes."""

    def assign(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return dirichlet(dataset.train_labels, self.teachers, self.alpha, groups=groups, seed=seed)


class SimilarityPartition(Partition):
    """By label: a random share, the rest sorted and cut (Karimireddy et al. 2020, section 7)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["similarity"] = "similarity"
    similarity: Annotated[float, Unit("per cent")] = Field(ge=0, le=100)
    """Percentage of records assigned at random. The other units are sorted by label and cut into consecutive parts."""

    def assign(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return by_similarity(dataset.train_labels, self.teachers, self.similarity, groups=groups, seed=seed)


class PartyPartition(Partition):
    """By the party of each record in the data: each party is a teacher."""

    kind: Literal["party"] = "party"

    def assign(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        parties, names = dataset.train_parties, dataset.party_names
        if parties is None:
            raise SettingError(
                f"partition.kind=party, but {dataset.name} has no parties. Give every record a party "
                "(docs/components.md), or use partition.kind=iid."
            )
        if self.teachers != len(names):
            raise SettingError(
                f"partition.teachers is {self.teachers}, but {dataset.name} has {len(names)} parties, and with "
                f"partition.kind=party each is a teacher. Set partition.teachers={len(names)}."
            )
        if groups is not None:
            check_whole(groups, parties, names)
        return parties


PARTITIONS = Kinds("partition", Partition, default="iid")


@dataclass(frozen=True, eq=False)
class Parts:
    """The records of a dataset, assigned to teachers. Private.

    Attributes:
        assignment: Teacher of each record, int64 [records].
        settings: Settings of the partition.
        unit: Unit of privacy.
        seed: Public seed.
        proof: Manifest from `check`: counts, and the confirmation that the parts are disjoint.
    """

    assignment: np.ndarray
    settings: Partition
    unit: Literal["record", "group"]
    seed: int
    proof: dict[str, Any]

    @property
    def teachers(self) -> int:
        """Number of teachers."""
        return self.settings.teachers

    def describe(self) -> dict[str, Any]:
        """Return the settings of the partition as JSON values. Public."""
        return {**self.settings.model_dump(mode="json"), "unit": self.unit, "seed": self.seed}


def partition(
    data: Dataset, *, kind: str = "iid", unit: Literal["record", "group"] = "record", seed: int = 0, **settings: Any
) -> Parts:
    """Assign each record of a dataset to exactly one teacher.

    Args:
        data: The dataset.
        kind: `iid`, `party`, or for public benchmarks `dirichlet` and `similarity`.
        unit: Unit of privacy: a record, or all records of a group (a person).
        seed: Public seed. The result is the same on every machine.
        **settings: Settings of the kind: `teachers`, `alpha`, `similarity`.

    Returns:
        The parts, verified to be disjoint and to cover the training records.

    Raises:
        SettingError: The kind is unknown or depends on labels of private data, there are more teachers than units, or
            groups are missing.
        InputError: a group has records in several parts.
    """
    chosen = PARTITIONS.of(kind)(kind=kind, **settings)
    chosen.refuse_private(public=data.public)
    groups = protected_groups(data, unit)
    assignment = chosen.assign(data, groups, seed)
    return Parts(assignment, chosen, unit, seed, check(assignment, chosen.teachers, groups))


def check_parts(parts: Parts, data: Dataset) -> None:
    """Raise InputError unless the parts are those that the names and groups of these data determine."""
    groups = protected_groups(data, parts.unit)
    if not np.array_equal(parts.settings.assign(data, groups, parts.seed), parts.assignment):
        raise InputError(
            f"The parts were not made from {data.name}: its records belong to other teachers, and one unit could move "
            "several votes. Make them from these data: partition(data, ...)."
        )


def protected_groups(dataset: Dataset, unit: str) -> np.ndarray | None:
    """Return the group of each record if groups are the unit of privacy, otherwise None.

    Exact copies of an image are not kept together: a partition that depends on contents could move other records when
    one is replaced. The dataset's manifest counts copies; data with several images of a person need privacy.unit=group.

    Raises:
        SettingError: the unit is a group, but the data have no groups.
    """
    refuse_no_groups(unit, dataset.train_groups)
    return None if unit == "record" else dataset.train_groups


def refuse_no_groups(unit: str, groups: object | None) -> None:
    """Raise SettingError if the unit is a group, but records have no groups."""
    if unit == "group" and groups is None:
        raise SettingError(
            "privacy.unit=group, but the data have no groups. Give every record a group: in a CSV of images the column "
            "`group`, for a table data.group=COLUMN (docs/your-own-images.md). Or set privacy.unit=record."
        )


def encode_parties(parties: Mapping[str, np.ndarray], where: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the party of each record, int64 [N] in 0..P-1 for each array, and the P names in their order.

    Args:
        parties: Arrays of integers or texts, [N] or [N, 1], by name.
        where: File name for errors.

    Raises:
        InputError: an array has another type or shape.
    """
    columns = check_texts(parties, where, "a party")
    names, numbers = np.unique(np.concatenate([*columns.values()]), return_inverse=True)
    cuts = np.cumsum([len(values) for values in columns.values()])[:-1]
    split = np.split(numbers.astype(np.int64), cuts)
    return dict(zip(columns, split, strict=True)), tuple(str(name) for name in names)


def check_whole(groups: np.ndarray, parties: np.ndarray, names: Sequence[str]) -> None:
    """Raise InputError if a group has records with several parties.

    A party with too few records is not an error, because that number is private.

    Args:
        groups: Code of each record's group, int64 [records].
        parties: Party of each record, int64 [records].
        names: Names of the parties.
    """
    split = _split_ids(parties, groups)
    if len(split):
        first, second = (names[party] for party in np.unique(parties[groups == split[0]])[:2])
        raise InputError(
            f"{len(split)} groups have records with several parties, such as '{first}' and '{second}'. A person with "
            "several parties could move several votes: keep each person's records with one party, or set "
            "privacy.unit=record."
        )
