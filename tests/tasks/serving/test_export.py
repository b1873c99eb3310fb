"""A student's export as a folder that can be handed over."""

import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from tasks.serving.export import export_folder
from tasks.serving.verification import verify_statement
from terrine.deployment.manifest import check_seal
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, InputError
from tests.student_folders import images, make_statement, make_student

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra packages of terrine[onnx]")


HANDED_OVER = ("statement-de.html", "statement-de.pdf", "model-card.md", "signature.json")
"""Files that `terrine statement --sign` adds to a release."""


@pytest.fixture
def student(tmp_path):
    folder = make_student(tmp_path / "release" / "student", "small_cnn")
    make_statement(folder)
    for name in ("statement.html", *HANDED_OVER):
        (tmp_path / "release" / name).write_text("<p>statement</p>")
    return folder


def test_an_export_holds_files_that_answer_like_the_student_digests_and_statement(student, tmp_path):
    exported = export_folder(student, tmp_path / "out", ["frozen"], ["onnx", "pt2"])
    assert [item.file for item in exported] == ["student-frozen.onnx", "student-frozen.pt2"]
    manifest = check_seal(tmp_path / "out")
    assert {"student-frozen.onnx", "student-frozen.pt2", "privacy.json", "statement.html"} <= set(manifest["digests"])
    assert set(HANDED_OVER) <= set(manifest["digests"])
    detail = (tmp_path / "out" / "privacy.json").read_bytes()
    assert detail == (tmp_path / "release" / "privacy.json").read_bytes()
    batch = images(5)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "student-frozen.onnx"))
    expected = StudentModel.load(tmp_path / "out" / "student", "frozen").predict(batch)
    np.testing.assert_allclose(session.run(None, {"images": batch})[0], expected, atol=1e-4)
    path = tmp_path / "out" / "privacy.json"
    path.write_text(path.read_text().replace("3.0", "0.5"))
    with pytest.raises(ArtefactError, match=r"privacy\.json was changed"):
        check_seal(tmp_path / "out")


def test_what_holds_statistics_of_own_images_goes_without_a_statement_and_says_why(student, tmp_path):
    (tmp_path / "own").mkdir()
    for number, (image,) in enumerate(images(4)):
        Image.fromarray(image).save(tmp_path / "own" / f"{number}.png")
    (exported,) = export_folder(student, tmp_path / "out", [], ["onnx"], reference=tmp_path / "own")
    assert exported.statistics == "frozen"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"manifest.json", exported.file, "student"}
    detail = onnxruntime.InferenceSession(str(tmp_path / "out" / exported.file)).get_modelmeta().custom_metadata_map
    assert not {"epsilon", "delta", "private", "summary", "statement_sha256"} & set(detail)
    assert detail["reference"].startswith("NOT COVERED BY ANY ε")
    assert check_seal(tmp_path / "out")["reference"] == detail["reference"]
    with pytest.raises(InputError, match="There is no statement"):
        verify_statement(tmp_path / "out")


def test_an_onnx_file_says_what_it_is_and_refuses_what_it_cannot_answer(student, tmp_path):
    (exported,) = export_folder(student, tmp_path / "out", [], ["onnx"])
    assert exported.statistics == "original"  # what is served unless told otherwise
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / exported.file))
    detail = session.get_modelmeta().custom_metadata_map
    model = StudentModel.load(student)
    assert json.loads(detail["class_names"]) == model.class_names
    epsilon = json.loads((student.parent / "privacy.json").read_text())["epsilon_guaranteed"]
    assert (detail["epsilon"], detail["input_dtype"], detail["input_range"]) == (str(epsilon), "uint8", "0 to 255")
    assert detail["statement_sha256"] == hashlib.sha256((student.parent / "privacy.json").read_bytes()).hexdigest()
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert taken.shape == json.loads(detail["input_shape"]) == ["batch", *model.shape]
    assert given.shape == ["batch", len(model.class_names)]
    batch = images(5)
    np.testing.assert_allclose(
        session.run(None, {"images": batch})[0][3:4], session.run(None, {"images": batch[3:4]})[0], atol=1e-6
    )
    for bad, reason in (
        (batch[:, :, :5], "invalid dimensions"),
        (batch[0], "Invalid rank"),
        (batch.astype(np.float32), "Unexpected input data type"),
    ):
        with pytest.raises(Exception, match=reason):
            session.run(None, {"images": bad})


def test_an_earlier_export_is_replaced_and_another_folder_is_not(student, tmp_path):
    export_folder(student, tmp_path / "out", ["frozen"], ["pt2"])
    export_folder(student, tmp_path / "out", ["original"], ["pt2"])
    assert sorted(path.name for path in (tmp_path / "out").glob("*.pt2")) == ["student-original.pt2"]
    with pytest.raises(InputError, match="no earlier export"):
        export_folder(student, tmp_path / "release", ["frozen"], ["pt2"])
    assert (tmp_path / "release" / "privacy.json").is_file()
