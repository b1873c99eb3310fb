"""Predictions for image files."""

import numpy as np
import pytest
from PIL import Image

from tasks.serving.predict import open_student, predict_files
from tasks.serving.student_source import image_files, student_folder
from terrine.data.image_files import read_images
from terrine.errors import InputError, SettingError
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
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def test_files_and_folders_are_answered_in_order_as_one_request(student, pictures):
    model = open_student(student)
    predictions = predict_files(model, [pictures / "4.png", pictures / "more"])
    files = [prediction.file for prediction in predictions]
    assert [file.name for file in files] == ["4.png", "1.png", "3.png", "5.png"]
    expected = model.predict(read_images(files, size=12, channels=1))
    for prediction, row in zip(predictions, expected, strict=True):
        assert prediction.label == model.class_names[row.argmax()]
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist())
        assert prediction.probability == max(prediction.probabilities.values())


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
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"broken\.png"):
        predict_files(model, [tmp_path])


def test_a_student_is_found_in_an_export_and_only_one_source_is_taken(student):
    assert student_folder(folder=student.parent) == student
    assert student_folder(folder=student) == student
    with pytest.raises(SettingError, match="Give one of"):
        student_folder(run="a", folder=student)
