"""Predictions for image files."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from tasks.pipeline.student import describe_reading
from tasks.runtime.store import Folders
from tasks.serving.predict import image_files, open_student, predict_files, student_folder
from terrine.data.image_files import decode_image, read_images
from terrine.data.images import windowed
from terrine.errors import ArtefactError, InputError, SettingError
from tests.student_folders import images, make_student


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return make_student(tmp_path_factory.mktemp("predict") / "student")


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "more").mkdir()
    for number, pixels in enumerate(images(6)):
        folder = tmp_path / "more" if number % 2 else tmp_path
        Image.fromarray(np.kron(pixels[0], np.ones((3, 2), np.uint8))).save(folder / f"{number}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def rows_of(found):
    """Return the probabilities of all classes, [images, classes]."""
    return found.filter(like="probability of ").to_numpy()


def test_files_and_folders_are_answered_in_order_as_one_request(student, pictures):
    model = open_student(student)
    predictions = predict_files(model, [pictures / "4.png", pictures / "more"])
    files = [Path(image) for image in predictions["image"]]
    assert [file.name for file in files] == ["4.png", "1.png", "3.png", "5.png"]
    expected = model.predict(read_images(files, size=12, channels=1))
    assert predictions["class"].tolist() == [model.class_names[best] for best in expected.argmax(axis=1)]
    np.testing.assert_allclose(rows_of(predictions), expected)
    np.testing.assert_allclose(predictions["probability"], expected.max(axis=1))


def test_own_reference_images_are_read_from_a_folder(student, pictures):
    own = read_images(image_files([pictures]), size=12, channels=1)
    model = open_student(student, "frozen", pictures)
    np.testing.assert_array_equal(model.reference, own)
    with pytest.raises(InputError, match="must be several"):
        open_student(student, "frozen", pictures / "4.png")


def test_a_missing_file_and_a_folder_without_images_are_refused(student, tmp_path):
    model = open_student(student)
    with pytest.raises(InputError, match="no file or folder"):
        predict_files(model, [tmp_path / "nothing.png"])
    with pytest.raises(InputError, match="No image was found"):
        predict_files(model, [tmp_path])
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"broken\.png"):
        predict_files(model, [tmp_path])


@pytest.mark.parametrize("extra", [[], ["--json"], ["--csv"]])
def test_files_that_can_be_read_are_answered_and_the_others_named(student, pictures, extra):
    model, failed = open_student(student), {}
    expected = predict_files(model, [pictures])
    (pictures / "cut.png").write_bytes((pictures / "4.png").read_bytes()[:-60])
    pd.testing.assert_frame_equal(predict_files(model, [pictures], failed), expected)
    assert list(failed) == [pictures / "cut.png"]
    queried = CliRunner().invoke(app, ["predict", str(pictures), "--folder", str(student), *extra])
    assert queried.exit_code == 1
    assert re.search(r"Not answered: \S*cut\.png is damaged: ", queried.stderr)
    assert all(Path(image).name in queried.stdout.replace("\n", "") for image in expected["image"])
    assert "cut.png" not in queried.stdout


def test_a_student_is_found_in_an_export_and_only_one_source_is_taken(student):
    assert student_folder(folder=student.parent) == student
    assert student_folder(folder=student) == student
    with pytest.raises(SettingError, match="Give one of"):
        student_folder(run="a", folder=student)


def test_an_unfinished_run_gives_way_to_the_last_finished_one(tmp_path, monkeypatch, caplog):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_text("run: refused\n")
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    with pytest.raises(ArtefactError) as detail:
        student_folder()
    assert "--run" not in str(detail.value)
    for number, name in enumerate(("second", "first", "refused")):
        folders = Folders(tmp_path, name)
        folders.parameters.parent.mkdir(parents=True)
        folders.parameters.write_text("data: {name: digits}\n")
        if name != "refused":
            folders.student.mkdir(parents=True)
            folders.statement.touch()
            folders.evaluation.touch()
            os.utime(folders.evaluation, (0, -number))
    assert student_folder() == Folders(tmp_path, "second").student
    assert "Run refused is not finished" in caplog.text
    with pytest.raises(ArtefactError, match=r"no student in .*refused"):
        student_folder("refused")
    Folders(tmp_path, "second").evaluation.unlink()
    assert student_folder() == Folders(tmp_path, "first").student


def test_files_are_read_as_the_students_records_were(tmp_path):
    make_student(tmp_path / "padded", reading={"fit": "pad", "window": [0, 4000]})
    deep = np.random.default_rng(0).integers(0, 4000, (30, 20), dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    model = open_student(tmp_path / "padded")
    expected = model.predict(read_images([tmp_path / "deep.png"], size=12, channels=1, fit="pad", window=(0, 4000)))
    np.testing.assert_array_equal(rows_of(predict_files(model, [tmp_path / "deep.png"])), expected)
    plain = open_student(make_student(tmp_path / "plain"))
    with pytest.raises(InputError, match=r"deep\.png .*the student was trained without data\.window"):
        predict_files(plain, [tmp_path / "deep.png"])
    with pytest.raises(InputError, match=r"the student was trained without data\.window"):
        decode_image((tmp_path / "deep.png").read_bytes(), most_pixels=10**6, **plain.reading)
    for number, strange in enumerate(
        ({"fit": "roll"}, {"window": [4, 4]}, {"window": ["a", "b"]}, {"files": "all"}, {"files": []}, ["pad"])
    ):
        folder = make_student(tmp_path / f"strange {number}", reading=strange)
        with pytest.raises(ArtefactError, match="does not say how images are read"):
            open_student(folder)


def test_a_student_of_dicom_files_is_asked_about_dicom_files(tmp_path):
    dicoms = pytest.importorskip("tests.terrine.data.dicoms")
    make_student(tmp_path / "student", reading={"window": [0, 400], "files": "dicom"})
    frames = np.random.default_rng(0).integers(0, 500, (3, 20, 20), dtype=np.uint16)
    path = dicoms.saved(dicoms.made(frames), tmp_path / "scans" / "IM0001")
    model = open_student(tmp_path / "student")
    middle = Image.fromarray(windowed(frames[1], 0, 400)).resize((12, 12), Image.Resampling.BILINEAR)
    expected = model.predict(np.asarray(middle)[None, None])
    found = predict_files(model, [path.parent])
    assert found["image"].tolist() == [str(path)]
    np.testing.assert_array_equal(rows_of(found), expected)
    Image.fromarray(frames[1]).save(tmp_path / "exported.png")
    with pytest.raises(InputError, match="is not a DICOM file"):
        predict_files(model, [tmp_path / "exported.png"])
    with pytest.raises(InputError, match=r"which is only read from a folder \(terrine predict\)"):
        decode_image(path.read_bytes(), most_pixels=10**6, **model.reading)


def test_a_student_of_volumes_is_asked_about_volumes_as_its_records_were_shown(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    from terrine.data.sources.nifti import Nifti

    def saved(path, seed):
        path.parent.mkdir(exist_ok=True)
        voxels = np.random.default_rng(seed).integers(0, 500, (12, 14, 16)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, np.diag([-2, 2, 2, 1])), path)
        return path

    data = {"path": tmp_path / "scans" / "list.csv", "size": 12, "test_fraction": 0.5}
    source = Nifti(**data, plane="coronal", view="max", percentiles=(5, 90))
    make_student(tmp_path / "student", **json.loads(json.dumps(describe_reading(source))))
    scans = [saved(tmp_path / "scans" / name, seed) for seed, name in enumerate(("a.nii", "b.nii.gz"))]
    (tmp_path / "scans" / "list.csv").write_text("path,label,split\na.nii,x,train\nb.nii.gz,y,test\n")
    dataset, model = source.read(), open_student(tmp_path / "student")
    expected = model.predict(np.concatenate([dataset.train_images, dataset.test_images]))
    found = predict_files(model, [tmp_path / "scans"])
    assert found["image"].tolist() == list(map(str, scans))
    np.testing.assert_array_equal(rows_of(found), expected)
    for path in scans:
        with pytest.raises(InputError, match=r"is a NIfTI file, which is only read from a folder \(terrine predict\)"):
            decode_image(path.read_bytes(), most_pixels=10**6, **model.reading)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"No image was found \(\.nii, \.nii\.gz\)"):
        predict_files(model, [tmp_path / "none"])
    plain = open_student(make_student(tmp_path / "plain"))
    with pytest.raises(InputError, match=r"a\.nii \(is a \.nii file, but the student was trained on pictures"):
        predict_files(plain, [scans[0]])
    windowed_too = describe_reading(Nifti(**data, window=(0, 9)))["reading"]
    assert windowed_too["window"] == [0, 9]
    for strange in ({"view": "up"}, {"percentiles": [9, 1]}, {"plane": None}, None):
        volumes = None if strange is None else windowed_too["volumes"] | strange
        folder = make_student(tmp_path / str(strange), reading=windowed_too | {"volumes": volumes})
        with pytest.raises(ArtefactError, match="does not say how images are read"):
            open_student(folder)
