import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.sources.folder import Folder
from terrine.data.units import name_codes
from terrine.errors import InputError


def load(path: Path, **settings: object) -> Dataset:
    return Folder(path=path, **settings).read()


def write_image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6), value, dtype=np.uint8)).save(path)


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Ten images in each of two classes; the grey value tells the class and the number."""
    for i in range(10):
        write_image(tmp_path / "cells" / "benign" / f"{i}.png", i)
        write_image(tmp_path / "cells" / "malign" / "deeper" / f"{i}.png", 100 + i)
    return tmp_path / "cells"


def write_table(class_folders: Path, *lines: str) -> Path:
    table = class_folders / "table.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def rows(column: str = "") -> list[str]:
    paths = [f"benign/{i}.png,b" for i in range(10)] + [f"malign/deeper/{i}.png,m" for i in range(10)]
    return [f"{path},{column.format(i=i % 10)}" if column else path for i, path in enumerate(paths)]


def test_class_folders_become_classes(class_folders: Path) -> None:
    (class_folders / "benign" / "Thumbs.db").touch()
    (class_folders / ".cache").mkdir()
    dataset = load(class_folders, size=8)
    dataset.validate()
    assert (dataset.name, dataset.class_names, dataset.public_benchmark) == ("cells", ("benign", "malign"), False)
    assert dataset.train_images.shape[1:] == (1, 8, 8)
    assert np.array_equal(dataset.train_images[:, 0, 0, 0] >= 100, dataset.train_labels == 1)
    assert np.array_equal(dataset.test_images[:, 0, 0, 0] >= 100, dataset.test_labels == 1)


def test_the_folder_of_macos_archives_is_not_a_class(class_folders: Path) -> None:
    for name in ("._benign", "benign/._0.png"):
        (class_folders / "__MACOSX" / name).parent.mkdir(parents=True, exist_ok=True)
        (class_folders / "__MACOSX" / name).write_bytes(b"\0\5\x16\7")
    survey = Folder(path=class_folders).survey()
    assert survey.class_names == ("benign", "malign")
    assert survey.skipped == {"__MACOSX": 1}


def test_deeper_folders_of_a_class_are_reported(tmp_path: Path, class_folders: Path) -> None:
    assert Folder(path=class_folders).survey().remarks == ()  # one folder below 'malign', none below 'benign'
    shutil.copytree(class_folders, tmp_path / "all" / "Dataset")
    write_image(tmp_path / "all" / "Examples" / "one.png", 3)
    said, _ = Folder(path=tmp_path / "all").survey().remarks
    assert "of the class 'Dataset' are in folders below it, benign, malign, whose names are not read. If" in said


def test_labels_that_combine_findings_are_reported_with_the_setting(class_folders: Path) -> None:
    """As in NIH's ChestX-ray14."""
    labels = ["Cardiomegaly", "Cardiomegaly|Effusion", "No Finding", "Effusion|Mass"]
    lines = [f"{row.rpartition(',')[0]},{labels[number % 4]}" for number, row in enumerate(rows())]
    table = write_table(class_folders, "path,label", *lines)
    (said,) = Folder(path=table).survey().doubts
    assert said.startswith("2 of 4 classes, such as 'Cardiomegaly|Effusion', look like several findings of one image")
    assert "data.findings=[Cardiomegaly, Effusion, Mass]" in said
    named = Folder(path=table, findings=("Cardiomegaly", "Effusion", "Mass")).survey()
    assert (named.doubts, named.class_names) == ((), ("Cardiomegaly", "Effusion", "Mass"))
    other = [line.replace("Cardiomegaly|Effusion", "a|b").replace("Effusion|Mass", "Mass") for line in lines]
    assert Folder(path=write_table(class_folders, "path,label", *other)).survey().doubts == (), "one name with a stroke"


def test_a_workbook_is_not_a_table(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "table.csv", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(InputError, match=r"table\.csv is not a CSV file in UTF-8 .* Save the table as CSV"):
        load(tmp_path / "table.csv")


def test_every_image_is_read_once(class_folders: Path) -> None:
    dataset = load(class_folders, size=8)
    values = np.concatenate([dataset.train_images, dataset.test_images])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [*range(10), *range(100, 110)]


def test_split_folders_have_any_case_and_validation_joins_train(tmp_path: Path) -> None:
    for value, split in enumerate(("Train", "VAL", "test")):
        for name in ("benign", "malign"):
            for number in range(4):
                write_image(tmp_path / split / name / f"{split}{number}.png", 50 * value + number)
    dataset = load(tmp_path, size=8)
    assert dataset.class_names == ("benign", "malign")
    assert {*dataset.train_images[:, 0, 0, 0].tolist()} == {0, 1, 2, 3, 50, 51, 52, 53}
    assert {*dataset.test_images[:, 0, 0, 0].tolist()} == {100, 101, 102, 103}
    shutil.rmtree(tmp_path / "test")
    with pytest.raises(InputError, match="contains Train and VAL, but no folder test"):
        load(tmp_path, size=8)


def test_a_class_may_be_named_like_a_split(tmp_path: Path) -> None:
    for name in ("other", "test"):
        for number in range(10):
            write_image(tmp_path / name / f"{name}{number}.png", number)
    assert load(tmp_path, size=8).class_names == ("other", "test")


def test_a_class_folder_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "0.png", 0)
    try:
        write_image(tmp_path / os.fsdecode(b"b\xe4\xff") / "0.png", 0)
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load(tmp_path, size=8)


def test_a_table_lists_paths_labels_and_groups(class_folders: Path) -> None:
    table = write_table(class_folders, "path,label,group", *rows("patient {i}"))
    dataset = load(table, size=8, test_fraction=0.4)
    dataset.validate()
    assert dataset.class_names == ("b", "m")
    assert dataset.train_groups is not None
    # Patient i has image i of either class: both are on one side.
    in_train = {value % 100 for value in dataset.train_images[:, 0, 0, 0].tolist()}
    in_test = {value % 100 for value in dataset.test_images[:, 0, 0, 0].tolist()}
    assert not in_train & in_test
    persons = (dataset.train_images[:, 0, 0, 0] % 100).tolist()
    assert np.array_equal(dataset.train_groups, name_codes(f"patient {person}" for person in persons))


def test_a_record_is_named_by_its_path_below_its_class_folder(class_folders: Path) -> None:
    dataset = load(class_folders, size=8)
    values = dataset.train_images[:, 0, 0, 0].tolist()
    names = [f"{value}.png" if value < 100 else f"deeper/{value - 100}.png" for value in values]
    assert names == sorted(names)
    assert np.array_equal(dataset.train_names, name_codes(names))


def test_files_of_one_name_in_two_class_folders_are_one_unit(tmp_path: Path) -> None:
    for i in range(30):
        write_image(tmp_path / "cats" / f"{i:03d}.png", i)
        write_image(tmp_path / "dogs" / f"{i:03d}.png", 100 + i)
    dataset = load(tmp_path, size=8)
    in_train, in_test = (sorted(images[:, 0, 0, 0].tolist()) for images in (dataset.train_images, dataset.test_images))
    for side in (in_train, in_test):
        assert [value - 100 for value in side if value >= 100] == [value for value in side if value < 100]
    teacher = iid(dataset.records, 8, names=dataset.record_names, seed=0)
    for number in range(30):
        assert len(set(teacher[dataset.train_images[:, 0, 0, 0] % 100 == number].tolist())) <= 1
    pairs = len(in_train) // 2
    assert dataset.describe()["shared_names"] == {"sets": pairs, "records": 2 * pairs}


def test_a_record_that_has_another_label_keeps_its_place_among_files_of_its_name(tmp_path: Path) -> None:
    """Batches are cut by places: a label that moved its record would tell itself, where labels are randomised."""
    classes = ("ants", "bees", "cats", "dogs")
    for number in range(40):
        for place, name in enumerate(classes[:3]):
            write_image(tmp_path / "one" / name / f"{number:02d}.png", 60 * place + number)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    (tmp_path / "one" / "dogs").mkdir()
    write_image(tmp_path / "one" / "dogs" / "x.png", 250)
    shutil.copytree(tmp_path / "one" / "dogs", tmp_path / "other" / "dogs")
    for number in range(0, 40, 3):
        (tmp_path / "other" / "ants" / f"{number:02d}.png").rename(tmp_path / "other" / "dogs" / f"{number:02d}.png")
    one, other = (load(tmp_path / world, size=8) for world in ("one", "other"))
    for split in ("train", "test"):
        assert np.array_equal(getattr(one, f"{split}_images"), getattr(other, f"{split}_images"))
    assert np.array_equal(one.record_names, other.record_names)
    moved = one.train_labels != other.train_labels
    assert moved.sum() >= 8
    assert {(int(a), int(b)) for a, b in zip(one.train_labels[moved], other.train_labels[moved], strict=True)} == {
        (0, 3)
    }


def test_a_record_of_a_table_is_named_by_its_path_made_normal(class_folders: Path) -> None:
    lines = [row.replace("benign/3", "malign/../benign/./3") for row in rows()]
    plain = load(write_table(class_folders, "path,label", *rows()), size=8)
    odd = load(write_table(class_folders, "path,label", *reversed(lines)), size=8)
    values = plain.train_images[:, 0, 0, 0].tolist()
    names = [f"benign/{value}.png" if value < 100 else f"malign/deeper/{value - 100}.png" for value in values]
    assert np.array_equal(plain.train_names, name_codes(names))
    for field in ("train_names", "train_images", "train_labels", "test_images", "test_labels"):
        assert np.array_equal(getattr(odd, field), getattr(plain, field))


def test_a_table_may_give_the_split(class_folders: Path) -> None:
    lines = [f"{row},{'test' if i % 10 >= 7 else 'train'}" for i, row in enumerate(rows())]
    dataset = load(write_table(class_folders, "path,label,split", *lines), size=8)
    assert sorted(dataset.test_images[:, 0, 0, 0].tolist()) == [7, 8, 9, 107, 108, 109]


def test_a_table_may_come_from_a_spreadsheet(class_folders: Path) -> None:
    table = class_folders / "table.csv"
    lines = ["path, label", *(row.replace(",", ', "').replace(",b", ",b") + '"' for row in rows())]
    table.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    assert load(table).class_names == ("b", "m")


def test_integer_labels_are_ordered_by_value(class_folders: Path) -> None:
    lines = [row.replace(",b", ",9").replace(",m", ",10") for row in rows()]
    assert load(write_table(class_folders, "path,label", *lines)).class_names == ("9", "10")


@pytest.mark.parametrize("suffix", ["../outside.png", "benign/../../outside.png"])
def test_a_table_may_not_climb_out_of_its_folder(class_folders: Path, suffix: str) -> None:
    write_image(class_folders.parent / "outside.png", 0)
    table = write_table(class_folders, "path,label", *rows(), f"{suffix},b")
    with pytest.raises(
        InputError, match=r"table\.csv, line 22: .*outside\.png leads outside .*, to .*Copy the image into"
    ):
        load(table)


def test_a_table_may_not_name_absolute_paths(class_folders: Path) -> None:
    table = write_table(class_folders, "path,label", f"{class_folders / 'benign' / '0.png'},b", *rows())
    with pytest.raises(InputError, match=r"line 2: .*0\.png is an absolute path\. Write paths relative to"):
        load(table)


def test_a_table_may_not_follow_links_out_of_its_folder(class_folders: Path) -> None:
    write_image(class_folders.parent / "secret" / "outside.png", 0)
    (class_folders / "file.png").symlink_to(class_folders.parent / "secret" / "outside.png")
    (class_folders / "linked").symlink_to(class_folders.parent / "secret")
    for path in ("file.png", "linked/outside.png"):
        table = write_table(class_folders, "path,label", *rows(), f"{path},b")
        with pytest.raises(InputError, match=r"line 22: .*png leads outside"):
            load(table)


def test_links_out_of_class_folders_are_refused(class_folders: Path) -> None:
    write_image(class_folders.parent / "outside.png", 0)
    (class_folders / "benign" / "link.png").symlink_to(class_folders.parent / "outside.png")
    with pytest.raises(InputError, match=r"link\.png leads outside"):
        load(class_folders)


def test_links_inside_the_folder_are_followed(class_folders: Path) -> None:
    (class_folders / "link.png").symlink_to(class_folders / "benign" / "0.png")
    lines = [row.replace("benign/0.png", "link.png") for row in rows()]
    assert load(write_table(class_folders, "path,label", *lines)).classes == 2


def test_a_broken_link_is_named(class_folders: Path) -> None:
    (class_folders / "other").symlink_to(class_folders / "gone")
    with pytest.raises(InputError, match=r"other is a broken link"):
        load(class_folders)
    (class_folders / "other").unlink()
    for name, target in (("old.png", "gone.png"), ("loop.png", "loop.png")):
        link = class_folders / "malign" / "deeper" / name
        link.symlink_to(target)
        with pytest.raises(InputError, match=rf"deeper/{name}.*(is a broken link|is not a usable path)"):
            load(class_folders)
        link.unlink()


@pytest.mark.parametrize("link", ["benign/again.png", "malign/a.png"])
def test_a_file_with_two_names_is_refused(class_folders: Path, link: str) -> None:
    (class_folders / link).symlink_to(class_folders / "benign" / "0.png")
    with pytest.raises(InputError, match=r"benign/0\.png and .*\.png are one file, .*two records of one person"):
        load(class_folders)


def test_links_to_other_files_are_records_and_links_to_folders_are_counted(class_folders: Path) -> None:
    write_image(class_folders / ".kept" / "0.png", 50)
    (class_folders / "benign" / "kept.png").symlink_to(class_folders / ".kept" / "0.png")
    (class_folders / "benign" / "all").symlink_to(class_folders / ".kept")
    survey = Folder(path=class_folders).survey()
    assert sum(survey.records) == 21
    assert survey.skipped == {"links to folders": 1}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path;label", "a.png;b"], "is separated by semicolons"),
        ([], "has no rows below its header"),
        (["Path,Label,Group", "a.png,b,p1"], r"write path for Path, label for Label, group for Group\."),
        (["path,edema,mass", "a.png,0,1"], r"If the other columns are findings: data\.findings=\[edema, mass\]"),
        (["path,label"], "has no rows below its header"),
        (["path,label", "benign/11.png,b"], r"line 2: there is no file benign/11\.png in"),
        (["path,label", "benign,b"], "line 2: there is no file benign in"),
        (["path,label", "benign/0.png,b", "benign/1.png,"], "line 3 has no label. Fill it in, or remove the line"),
        (["path,label", "benign/0.png"], "line 2 has 1 values, but the header has 2 columns"),
        (["path,label,group", "benign/0.png,b,"], r"line 2 has no group\..*a unique group"),
        (["path,label", "benign/0.png,b,extra"], "line 2 has 3 values, but the header has 2 columns"),
        (["path,label,split", "benign/0.png,b,val"], r"line 2 has split 'val'\. It must be train or test"),
        (["path,label", "benign/0.png,b", "benign/../benign/0.png,m"], "line 3: .* is already listed in line 2"),
        (["path,label", '"benign/0.png,b'], "is not a CSV file in UTF-8"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(class_folders: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=r"table\.csv.*" + message):
        load(write_table(class_folders, *lines))


def test_a_table_in_another_encoding_is_named(class_folders: Path) -> None:
    table = class_folders / "table.csv"
    table.write_bytes("path,label\nbenign/0.png,gutartig für\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"table\.csv is not a CSV file in UTF-8"):
        load(table)


def test_a_given_split_needs_both_sides(class_folders: Path) -> None:
    with pytest.raises(InputError, match="the given split has 20 training and 0 test images"):
        load(write_table(class_folders, "path,label,split", *rows("train")))


def test_unread_columns_are_reported_unless_groups_are_given(class_folders: Path) -> None:
    table = write_table(class_folders, "path,label,patient", *(f"{line},p1" for line in rows()))
    (remark,) = Folder(path=table).survey().remarks
    assert "not read: patient. If one of them identifies people, name it 'group'" in remark
    table = write_table(class_folders, "path,label,group,age", *(f"{line},p{n}, 30" for n, line in enumerate(rows())))
    assert Folder(path=table).survey().remarks == ()


@pytest.mark.parametrize(("name", "source"), [("a.nii.gz", "nifti"), ("b.NII", "nifti"), ("c.dcm", "dicom")])
def test_medical_files_in_a_table_need_their_source(class_folders: Path, name: str, source: str) -> None:
    (class_folders / name).touch()
    table = write_table(class_folders, "path,label", *rows(), f"{name},cat")
    with pytest.raises(InputError, match=rf"{name} is a .* file: set data\.name={source}"):
        Folder(path=table).survey()


def test_a_person_on_both_sides_of_a_given_split_is_named(class_folders: Path) -> None:
    lines = [f"{row},p{i % 10},{'test' if i < 3 else 'train'}" for i, row in enumerate(rows())]
    with pytest.raises(InputError, match=r"the group of .*0.png is in train and in test \(3 such training images"):
        load(write_table(class_folders, "path,label,group,split", *lines))


def test_a_corrupt_image_is_named(class_folders: Path) -> None:
    victim = class_folders / "malign" / "deeper" / "4.png"
    victim.write_bytes(victim.read_bytes()[:40])
    with pytest.raises(InputError, match=rf"1 of 20 image files cannot be used: {victim} \("):
        load(class_folders)


def test_an_empty_class_folder_is_a_class_without_records(class_folders: Path) -> None:
    before = load(class_folders)
    (class_folders / "other").mkdir()
    (class_folders / "other" / ".gitkeep").touch()
    names = (*before.class_names, "other")
    assert load(class_folders).class_names == names == tuple(sorted(names))
    survey = Folder(path=class_folders).survey()
    assert survey.class_names == names
    assert survey.declared
    assert (survey.train + survey.test)[-1] == 0


def test_a_column_of_the_table_names_the_party(class_folders: Path) -> None:
    table = write_table(
        class_folders, "path,label,party", *(f"{row},{('x', 'y')[i % 2]}" for i, row in enumerate(rows()))
    )
    dataset = load(table, size=8)
    dataset.validate()
    assert dataset.party_names == ("x", "y")
    assert dataset.train_parties is not None
    assert (dataset.train_images[:, 0, 0, 0] % 2).tolist() == dataset.train_parties.tolist()


def test_a_party_with_only_test_images_has_no_teacher(class_folders: Path) -> None:
    lines = [f"{row},{'train,x' if i % 10 else 'test,y'}" for i, row in enumerate(rows())]
    dataset = load(write_table(class_folders, "path,label,split,party", *lines), size=8)
    assert dataset.party_names == ("x",)
    assert set(dataset.train_parties.tolist()) == {0}
    with pytest.raises(InputError, match=r"line 2 has no party"):
        load(write_table(class_folders, "path,label,party", *(f"{row}," for row in rows())))


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ((), "nowhere", "There is no folder .*nowhere"),
        ((), "nowhere.csv", r"There is no file .*nowhere\.csv"),
        (["cells.zip"], "cells.zip", r"cells\.zip is not a folder: unpack archives\."),
        (["images.npz"], "images.npz", r"An \.npz file needs data\.name=npz"),
        (["loose.png"], ".", r"contains no class folders\. Put the images of each class into a subfolder"),
        (["one/.kept", "other/.kept"], ".", "contain no image"),
        (["a/scan.dcm"], ".", r"contains no image, but \.dcm files\. Add images \(\.png"),
    ],
)
def test_a_path_without_images_in_class_folders_is_refused(tmp_path: Path, files, path: str, message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=message):
        load(tmp_path / path)
