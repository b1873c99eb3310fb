"""ONNX and .pt2 files answer like the student they were made of."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from terrine.deployment import export
from terrine.deployment.export import export_student
from terrine.deployment.model import SMALL, StudentModel
from terrine.errors import ArtefactError, SettingError
from tests.student_folders import KINDS, images, make_student

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra packages of terrine[onnx]")
pytest.importorskip("onnxscript", reason="ONNX needs the extra packages of terrine[onnx]")


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students")
    kinds = (*KINDS, "small_cnn")
    return {kind: make_student(folder / kind, kind) for kind in kinds}


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist())


EXPORTED = [("scattering", "current"), ("small_cnn", "single"), ("timm", "frozen")]


# An export takes seconds. Frozen statistics of a ResNet are exported in tests/tasks/serving/test_export.py.
@pytest.mark.parametrize(("kind", "statistics"), EXPORTED)
def test_exports_equal_the_student_for_batches_of_any_size(students, kind, statistics, tmp_path):
    model = StudentModel.load(students[kind], statistics)
    onnx, pt2 = tmp_path / "student.onnx", tmp_path / "student.pt2"
    differences = export_student(model, [onnx, pt2], images(20))
    assert max(differences) < 1e-4
    for package in (torch, export):  # the files do not name the machine that wrote them
        assert str(Path(package.__file__).parents[2]).encode() not in onnx.read_bytes() + contents(pt2)
    session = onnxruntime.InferenceSession(str(onnx))
    program = torch.export.load(pt2).module()
    sizes = (SMALL, 100) if statistics == "current" else (1, 3, 70)
    for size in sizes:
        batch = images(size, seed=size)
        expected = model.predict(batch)
        np.testing.assert_allclose(session.run(None, {"images": batch})[0], expected, atol=1e-4)
        np.testing.assert_allclose(program(torch.from_numpy(batch)).numpy(), expected, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["student.onnx", "student.pt2"]


def test_a_file_that_answers_differently_is_not_left_behind(students, tmp_path, monkeypatch):
    module = export._exported_module

    def wrong(path):
        answer = module(path)
        return lambda batch: answer(batch) + 0.001

    monkeypatch.setattr(export, "_exported_module", wrong)
    model = StudentModel.load(students["small_cnn"], "frozen")
    with pytest.raises(ArtefactError, match=r"differs from the student by up to 0\.001"):
        export_student(model, [tmp_path / "student.onnx"], images(20))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused(students, tmp_path):
    with pytest.raises(SettingError, match="onnx or pt2"):
        export_student(StudentModel.load(students["small_cnn"], "frozen"), [tmp_path / "student.pkl"], images(20))
