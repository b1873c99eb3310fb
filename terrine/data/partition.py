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
- `party`: parties, which the data give, are teachers. Under one name the contents are replaced at the
  party that holds it, or the name is added there or removed; the list of parties, and who holds what, are taken as
  public. What moves from one party to another is removed here and added there: up to two votes.
- `dirichlet` and `by_similarity` read labels, and the number and order of units: no neighbours. They imitate parties
  whose data differ, for experiments on public data. They leave every teacher two units where there are as many, since
  batch statistics need two records.
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
    # Each block of `teachers` successive units goes to all teachers, in a random order.
    blocks = np.tile(np.arange(teachers, dtype=np.int64), (-(-len(similar) // teachers), 1))
    teacher_of_unit[similar] = generator.permuted(blocks, axis=1).ravel()[: len(similar)]
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
    teachers have no record, and of `duplicates` (`exact_duplicates`) how many sets of identical images sit in more than
    one part, `split_sets`.
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


class Partition(Settings):
    """How records are dealt to teachers."""

    reads_labels: ClassVar[bool] = False
    """Whether exchanging one record may move others to another teacher."""

    kind: str
    teachers: Annotated[int, Unit("teachers"), Automatic(100)] = Field(100, ge=2)
    """Number of teachers among which the records are divided."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        """Return the teacher of every record, int64 [records].

        `groups`, int64 [records] or None, are the units where groups are protected; else the names of records are.
        Raises SettingError or InputError when there are too few units for the teachers, or other parties than teachers.
        """
        raise NotImplementedError

    def check(self, run: Any) -> None:
        """Raise ValueError where it reads the labels of private data."""
        self.refuse_private(public=run.data.public_benchmark)

    def refuse_private(self, *, public: bool) -> None:
        """Raise SettingError where it reads labels, and anyone may not already read the data."""
        if self.reads_labels and not public:
            raise SettingError(
                f"partition.kind={self.kind} reads labels, so that one record can move others to another teacher, and "
                "no guarantee would hold. Use iid, or party where the data really lie with parties"
            )


class IIDPartition(Partition):
    """By a hash of each unit's own name."""

    kind: Literal["iid"] = "iid"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return iid(dataset.records, self.teachers, names=dataset.record_names, groups=groups, seed=seed)


class DirichletPartition(Partition):
    """By label, imitating parties whose data differ (Hsu, Qi and Brown 2019)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0)
    """Concentration of class proportions: with smaller values, teachers have fewer classes."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return dirichlet(dataset.train_labels, self.teachers, self.alpha, groups=groups, seed=seed)


class SimilarityPartition(Partition):
    """By label: a share dealt at random, the rest sorted and cut (Karimireddy et al. 2020, section 7)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["similarity"] = "similarity"
    similarity: Annotated[float, Unit("per cent")] = Field(ge=0, le=100)
    """Percentage of records assigned at random. The rest is sorted by label and split."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return by_similarity(dataset.train_labels, self.teachers, self.similarity, groups=groups, seed=seed)


class PartyPartition(Partition):
    """As the data's own column says: every party is a teacher."""

    kind: Literal["party"] = "party"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        parties, names = dataset.train_parties, dataset.party_names
        if parties is None:
            raise SettingError(
                f"partition.kind=party, but {dataset.name} does not say which party holds a record. Give every record "
                "a party (docs/components.md), or use partition.kind=iid."
            )
        if self.teachers != len(names):
            raise SettingError(
                f"partition.teachers is {self.teachers}, but {dataset.name} names {len(names)} parties, and with "
                f"partition.kind=party each is one teacher. Set partition.teachers={len(names)}."
            )
        if groups is not None:
            check_whole(groups, parties, names)
        return parties


PARTITIONS = Kinds("partition", Partition, default="iid")


@dataclass(frozen=True, eq=False)
class Parts:
    """The records of a dataset, dealt to teachers: private.

    assignment  int64 [records], the teacher of each record
    settings    how they were dealt
    unit        what sits in one part, and is protected: each record, or all records of a group
    seed        what they were dealt with
    proof       what `terrine.data.partition.check` found: counts, and that the parts are disjoint
    """

    assignment: np.ndarray
    settings: Partition
    unit: Literal["record", "group"]
    seed: int
    proof: dict[str, Any]

    @property
    def teachers(self) -> int:
        """How many teachers the records are dealt to."""
        return self.settings.teachers

    def describe(self) -> dict[str, Any]:
        """Return how they were dealt, as JSON values: public, and nothing about records."""
        return {**self.settings.model_dump(mode="json"), "unit": self.unit, "seed": self.seed}


def partition(
    data: Dataset, *, kind: str = "iid", unit: Literal["record", "group"] = "record", seed: int = 0, **settings: Any
) -> Parts:
    """Deal the records of a dataset to teachers, each record to exactly one.

    Args:
        kind: `iid`, `party`, or for public benchmarks `dirichlet` and `similarity`.
        unit: What is protected: a record, or all records of a group (a person).
        seed: Public; it deals a dataset alike on every machine.
        **settings: Those of the kind: `teachers`, `alpha`, `similarity`.

    Returns:
        The parts, proven to be disjoint and to cover the training records.

    Raises:
        SettingError: an unknown kind, more teachers than units, groups that the data do not have, or a kind that reads
            the labels of private data.
        InputError: groups that do not lie in one part.
    """
    dealt = PARTITIONS.of(kind)(kind=kind, **settings)
    dealt.refuse_private(public=data.public)
    groups = protected_groups(data, unit)
    assignment = dealt.deal(data, groups, seed)
    return Parts(assignment, dealt, unit, seed, check(assignment, dealt.teachers, groups))


def check_parts(parts: Parts, data: Dataset) -> None:
    """Raise InputError unless parts are what dealing these very data gives: theirs, by their names and groups."""
    groups = protected_groups(data, parts.unit)
    if not np.array_equal(parts.settings.deal(data, groups, parts.seed), parts.assignment):
        raise InputError(
            f"The parts are not those of {data.name}: dealt by its own names and groups, records fall to other "
            "teachers, and one unit could move several votes. Deal these data: partition(data, ...)."
        )


def protected_groups(dataset: Dataset, unit: str) -> np.ndarray | None:
    """Return the group of each record where groups are what is protected, else None.

    Exact copies of an image are not kept together: which records are copies depends on their content, and a partition
    that reads content can move other records when one of them is exchanged. Copies are counted in the dataset's
    manifest; data with several images of a person needs privacy.unit=group.

    Raises SettingError when groups are to be protected and the data has none.
    """
    refuse_no_groups(unit, dataset.train_groups)
    return None if unit == "record" else dataset.train_groups


def refuse_no_groups(unit: str, groups: object | None) -> None:
    """Raise SettingError where groups are to be protected and records have none."""
    if unit == "group" and groups is None:
        raise SettingError(
            "privacy.unit=group, but the data have no groups. Give every record a group (docs/your-own-images.md; of a "
            "table, name the column: data.group), or set privacy.unit=record."
        )


def encode_parties(parties: Mapping[str, np.ndarray], where: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the party of each record as int64 [N] in 0..P-1 for each split, and the P names.

    `parties` maps the name of an array to its values, integers or text, [N] or [N, 1]. Parties are numbered by value,
    text in alphabetical order. Raises InputError, naming `where` and the array, for anything else.
    """
    columns = check_texts(parties, where, "a party")
    names, numbers = np.unique(np.concatenate([*columns.values()]), return_inverse=True)
    cuts = np.cumsum([len(values) for values in columns.values()])[:-1]
    split = np.split(numbers.astype(np.int64), cuts)
    return dict(zip(columns, split, strict=True)), tuple(str(name) for name in names)


def check_whole(groups: np.ndarray, parties: np.ndarray, names: Sequence[str]) -> None:
    """Raise InputError if a group, int64 [records], is with several `parties`, int64 [records] of these `names`.

    The number of records of a party is private, so one that holds too few to learn from is no error.
    """
    split = _split_ids(parties, groups)
    if len(split):
        first, second = (names[party] for party in np.unique(parties[groups == split[0]])[:2])
        raise InputError(
            f"{len(split)} groups have records with several parties, the first with '{first}' and '{second}'. With "
            "privacy.unit=group one person must be with one party only, or she could move several votes: keep her "
            "records with one party, or set privacy.unit=record."
        )
