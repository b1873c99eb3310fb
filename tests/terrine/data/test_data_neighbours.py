"""Neighbouring datasets in every input format: one unit changes, and no other is dealt or split in another way.

A dataset is written, read and dealt twice, before and after one step: a label or an image is changed, a record added or
removed, a record or a group renamed, a group split in two. Whoever was not part of the step must be on the same side of
the split with the same teacher, who must see the rest of its records in the same order.
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.sources.dicom import Dicom
from terrine.data.sources.folder import Folder
from terrine.data.sources.medmnist import MedMNIST
from terrine.data.sources.nifti import Nifti
from terrine.data.sources.npz import Npz
from terrine.data.sources.table import Table

TEACHERS = 7
CLASSES = ("ash", "beech", "cherry")


@dataclass(frozen=True)
class Record:
    """One record; its number, written into its pixels, tells which it is whatever happens to the rest of it."""

    number: int
    label: int
    group: str
    name: str
    shade: int = 0

    @property
    def image(self) -> np.ndarray:
        pixels = np.full((4, 4), self.shade, np.uint8)
        pixels[0, 0] = self.number
        return pixels

    @property
    def in_test(self) -> bool:
        """Where the data give the split."""
        return self.number % 5 == 0


RECORDS = [Record(n, (n + n // 5) % 3, f"p{n // 3:02d}", f"{(37 * n) % 80:02d}") for n in range(60)]


TEST_GROUPS = {"p00", "p05", "p10", "p15"}


@dataclass(frozen=True)
class Read:
    """What a format became: the numbers of records in training, in their order, and in test, and codes of units."""

    train: list[int]
    test: list[int]
    names: np.ndarray
    groups: np.ndarray | None


def numbers(images: np.ndarray) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def read(dataset: Dataset) -> Read:
    dataset.validate()
    return Read(numbers(dataset.train_images), numbers(dataset.test_images), dataset.record_names, dataset.train_groups)


def class_folders(root: Path, records: list[Record]) -> Read:
    for record in records:
        save(root / CLASSES[record.label] / "deeper" / f"{record.name}.png", record)
    return read(Folder(path=root, size=8).read())


def split_class_folders(root: Path, records: list[Record]) -> Read:
    for record in records:
        save(root / ("test" if record.in_test else "train") / CLASSES[record.label] / f"{record.name}.png", record)
    return read(Folder(path=root, size=8).read())


def csv_of_images(root: Path, records: list[Record], columns: Iterable[str] = ()) -> Read:
    for record in records:
        save(root / f"{record.name}.png", record)
    with (root / "list.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", *columns])
        for record in records:
            more = {"group": record.group, "split": "test" if record.group in TEST_GROUPS else "train"}
            lines.writerow([f"{record.name}.png", CLASSES[record.label], *(more[column] for column in columns)])
    return read(Folder(path=root / "list.csv", size=8).read())


def csv_with_groups(root: Path, records: list[Record]) -> Read:
    return csv_of_images(root, records, ["group"])


def csv_with_split(root: Path, records: list[Record]) -> Read:
    return csv_of_images(root, records, ["split", "group"])


def dicom_by_patient(root: Path, records: list[Record]) -> Read:
    (root / "in").mkdir(exist_ok=True)
    rows = ["sop,label"]
    for place, record in enumerate(records):
        (root / "in" / f"IM{place}").write_bytes(dicom_file(record.image.tobytes(), record.group, uid_of(record.name)))
        rows.append(f"{uid_of(record.name)},{CLASSES[record.label]}")
    (root / "list.csv").write_text("\n".join(rows))
    return read(Dicom(path=root / "in", labels=root / "list.csv", size=8, window=(0, 255)).read())


@cache
def dicom_file(image: bytes, patient: str, uid: str) -> bytes:
    dicoms = pytest.importorskip("tests.terrine.data.dicoms")
    dicoms.made(np.frombuffer(image, np.uint8).reshape(4, 4), patient, uid).save_as(file := BytesIO())
    return file.getvalue()


def uid_of(name: str) -> str:
    return f"1.2.{int.from_bytes(name.encode(), 'big')}"


def nifti_by_subject(root: Path, records: list[Record]) -> Read:
    rows = ["path,label,group"]
    for record in records:
        (root / f"{record.name}.nii").write_bytes(nifti_file(record.image.tobytes()))
        rows.append(f"{record.name}.nii,{CLASSES[record.label]},{record.group}")
    (root / "list.csv").write_text("\n".join(rows))
    return read(Nifti(path=root / "list.csv", size=8, window=(0, 255)).read())


@cache
def nifti_file(image: bytes) -> bytes:
    nibabel = pytest.importorskip("nibabel")
    # As it is seen, the right and the front come first.
    voxels = np.frombuffer(image, np.uint8).reshape(4, 4).T[::-1, ::-1, None]
    return nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes()


def arrays(records: list[Record], prefix: str = "") -> dict[str, np.ndarray]:
    return {
        f"{prefix}images": np.stack([record.image for record in records]),
        f"{prefix}labels": np.array([record.label for record in records]),
    }


def npz_by_place(root: Path, records: list[Record]) -> Read:
    np.savez(root / "own.npz", **arrays(records))
    return read(Npz(path=root / "own.npz").read())


def npz_with_ids(root: Path, records: list[Record]) -> Read:
    np.savez(root / "own.npz", **arrays(records), ids=np.array([record.name for record in records]))
    return read(Npz(path=root / "own.npz").read())


def npz_with_groups(root: Path, records: list[Record]) -> Read:
    np.savez(root / "own.npz", **arrays(records), groups=np.array([record.group for record in records]))
    return read(Npz(path=root / "own.npz").read())


def split_arrays(records: list[Record]) -> dict[str, np.ndarray]:
    """Arrays as MedMNIST has them: records of the first half train, of the rest some validate."""
    parts = {
        "train_": [record for record in records if not record.in_test and record.number < 30],
        "val_": [record for record in records if not record.in_test and record.number >= 30],
        "test_": [record for record in records if record.in_test],
    }
    return {name: values for prefix, part in parts.items() for name, values in arrays(part, prefix).items()}


def split_npz(root: Path, records: list[Record]) -> Read:
    np.savez(root / "own.npz", **split_arrays(records))
    return read(Npz(path=root / "own.npz").read())


def medmnist_like(root: Path, records: list[Record]) -> Read:
    np.savez(root / "breastmnist.npz", **{key: np.array(value) for key, value in two_classes(records).items()})
    return read(MedMNIST(name="breastmnist", root=root, download=False).read())


def two_classes(records: list[Record]) -> dict[str, np.ndarray]:
    return split_arrays([replace(record, label=record.label % 2) for record in records])


def benchmark_like(root: Path, records: list[Record]) -> Read:
    """As torchvision's sets are: arrays in a given split, and nothing that names a record."""
    train, test = (arrays([record for record in records if record.in_test == side]) for side in (False, True))
    return read(
        Dataset(
            "benchmark",
            train["images"][:, None],
            train["labels"],
            None,
            test["images"][:, None],
            test["labels"],
            CLASSES,
        )
    )


def rows(root: Path, records: list[Record], id_column: str | None = None, group: str | None = None) -> Read:
    with (root / "rows.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["number", "shade", "label", "name", "person"])
        for record in records:
            cells = [record.number, record.shade, CLASSES[record.label], f"r{record.name}", record.group]
            lines.writerow(cells)
    roles = {"target": "label", "id": id_column, "group": group}
    source = Table(path=root / "rows.csv", **roles, public_fraction=0.3, test_fraction=0.3)
    data, (query, encoding) = source.load(), source.public_rows()
    column = encoding.columns[0]

    def of(features: np.ndarray) -> list[int]:
        return np.rint(features[:, 0] * column.deviation + column.mean).astype(int).tolist()

    # Public rows are a side of their own, and in an order of their own: the order of queries.
    public = [number + 1000 for number in of(query)]
    return Read(of(data.train_images), [*of(data.test_images), *public], data.train_names, data.train_groups)


def table_by_number(root: Path, records: list[Record]) -> Read:
    return rows(root, records)


def table_with_ids(root: Path, records: list[Record]) -> Read:
    return rows(root, records, id_column="name")


def table_with_groups(root: Path, records: list[Record]) -> Read:
    return rows(root, records, group="person")


def save(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(record.image).save(path)


NAMED = [class_folders, split_class_folders, csv_of_images, npz_with_ids, table_with_ids]
GROUPED = [csv_with_groups, csv_with_split, npz_with_groups, table_with_groups, dicom_by_patient, nifti_by_subject]
PLACED = [npz_by_place, split_npz, medmnist_like, benchmark_like, table_by_number]

Form = Callable[[Path, list[Record]], Read]
Step = Callable[[list[Record], int], list[Record]]


def changed(**how: object) -> Step:
    def step(records: list[Record], victim: int) -> list[Record]:
        fields = {name: value(records[victim]) if callable(value) else value for name, value in how.items()}
        return [*records[:victim], replace(records[victim], **fields), *records[victim + 1 :]]

    return step


def added(records: list[Record], victim: int) -> list[Record]:
    """One more, in the middle of the list: as first or last by name, or between others."""
    name = {0: "-", 23: "235", 59: "zz"}[victim]
    return [*records[:victim], Record(99, 1, "new", name), *records[victim:]]


def appended(records: list[Record], victim: int) -> list[Record]:
    return [*records, Record(99, 1, "new", "new")]


def removed(records: list[Record], victim: int) -> list[Record]:
    return [*records[:victim], *records[victim + 1 :]]


def cut(records: list[Record], victim: int) -> list[Record]:
    return records[:-1]


def cut_before_validation(records: list[Record], victim: int) -> list[Record]:
    """Without the last record that trains and does not validate."""
    return [record for record in records if record.number != 29]


def renamed_group(records: list[Record], victim: int) -> list[Record]:
    old, new = records[victim].group, {0: "zz", 23: "a", 59: "p10b"}[victim]
    return [replace(record, group=new) if record.group == old else record for record in records]


def split_group(records: list[Record], victim: int) -> list[Record]:
    return changed(group="somebody")(records, victim)


def longer_group(records: list[Record], victim: int) -> list[Record]:
    more = [Record(90 + k, 1, records[victim].group, f"more {k}") for k in range(4)]
    return [*records[: victim // 2], *more, *records[victim // 2 :]]


def removed_group(records: list[Record], victim: int) -> list[Record]:
    return [record for record in records if record.group != records[victim].group]


def in_other_order(records: list[Record], victim: int) -> list[Record]:
    return records[::-1]


LABEL = changed(label=lambda record: (record.label + 1) % 3)
IMAGE = changed(shade=200)
NAME = changed(name="a new name")
STEPS: dict[str, tuple[list[Form], Step]] = {
    "label": ([*NAMED, *GROUPED, *PLACED], LABEL),
    "image": ([*NAMED, *GROUPED, *PLACED], IMAGE),
    "record renamed": (NAMED, NAME),
    "record added": (NAMED, added),
    "record appended": ([*GROUPED, *PLACED], appended),
    "record removed": (NAMED, removed),
    "last record removed": ([*GROUPED, *PLACED], cut),
    "last training record removed": ([split_npz, medmnist_like], cut_before_validation),
    "group renamed": (GROUPED, renamed_group),
    "group split": (GROUPED, split_group),
    "group longer": (GROUPED, longer_group),
    "group removed": (GROUPED, removed_group),
    "other order": ([*NAMED, csv_with_groups], in_other_order),
}
WHOEVER = (appended, cut, cut_before_validation, in_other_order)
"""Steps that no victim decides."""
CASES = [
    pytest.param(form, step, victim, id=f"{name}-{form.__name__}-{victim}")
    for name, (forms, step) in STEPS.items()
    for form in forms
    for victim in ([0] if step in WHOEVER else [0, 23, 59])
]


def parts(found: Read, unit: str) -> list[list[int]]:
    """The numbers of each teacher's records, in their order."""
    groups = found.groups if unit == "group" else None
    teacher = iid(len(found.train), TEACHERS, names=found.names, groups=groups, seed=5)
    return [[n for n, t in zip(found.train, teacher.tolist(), strict=True) if t == one] for one in range(TEACHERS)]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Form], Read]:
    """The dataset of `RECORDS` in a format, read once."""
    kept: dict[Form, Read] = {}

    def get(form: Form) -> Read:
        if form not in kept:
            kept[form] = form(tmp_path_factory.mktemp("before"), RECORDS)
        return kept[form]

    return get


@pytest.mark.parametrize(("form", "step", "victim"), CASES)
def test_one_unit_moves_no_other(before: Callable[[Form], Read], tmp_path: Path, form: Form, step: Step, victim: int):
    after_records = step(RECORDS, victim)
    units = ["group"] if form in GROUPED else ["record"]
    if form in (csv_with_groups, csv_with_split, dicom_by_patient, nifti_by_subject):
        units.append("record")  # records have names of their own here
    for unit in units:
        concerned = of_the_step(RECORDS, after_records, unit)
        one, two = before(form), form(tmp_path, after_records)
        for side in ("train", "test"):
            kept = [[n for n in getattr(found, side) if n % 1000 not in concerned] for found in (one, two)]
            assert kept[0] == kept[1]
        dealt = [[[n for n in part if n not in concerned] for part in parts(found, unit)] for found in (one, two)]
        assert dealt[0] == dealt[1]
        assert len(concerned) < 20
        if step in (LABEL, IMAGE, longer_group):
            # Contents are no part of a name: the unit itself stays where it was, so one teacher differs and not two.
            at, now = (where_each_is(found, unit) for found in (one, two))
            assert at == {number: place for number, place in now.items() if number in at}


def where_each_is(found: Read, unit: str) -> dict[int, int]:
    """The teacher of each record, -1 for those that are not in training."""
    taught = {number: teacher for teacher, part in enumerate(parts(found, unit)) for number in part}
    return taught | dict.fromkeys(found.test, -1)


def of_the_step(records: list[Record], others: list[Record], unit: str) -> set[int]:
    """The numbers of all records whose unit the step touched."""
    one, two = ({record.number: record for record in each} for each in (records, others))
    differ = {number for number in one.keys() | two.keys() if one.get(number) != two.get(number)}
    if unit == "record":
        return differ
    touched = {each[number].group for each in (one, two) for number in differ if number in each}
    return {record.number for each in (records, others) for record in each if record.group in touched}


def test_the_comparison_sees_a_deal_that_looks_at_places(before: Callable[[Form], Read], tmp_path: Path) -> None:
    """The rule of old, by which one label moved most of the others, is found."""
    first = before(class_folders).train[0]
    one, two = before(class_folders), class_folders(tmp_path, removed(RECORDS, first))
    dealt = [
        dict(zip(found.train, iid(len(found.train), TEACHERS, seed=5).tolist(), strict=True)) for found in (one, two)
    ]
    moved = [number for number in dealt[1] if dealt[0][number] != dealt[1][number]]
    assert len(moved) > len(dealt[1]) // 3


def test_sorted_class_by_class_every_label_would_decide_about_others(before: Callable[[Form], Read]) -> None:
    """Records of class folders are in the order of names: were they in that of classes, a place would say a label."""
    labels = {record.number: record.label for record in RECORDS}
    runs = np.count_nonzero(np.diff([labels[number] for number in before(class_folders).train]))
    assert runs > 2
