"""The student as an MLflow model."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from tasks.serving.mlflow_model import pyfunc_arguments, quiet
from terrine.deployment.model import StudentModel
from tests.student_folders import CLASSES, SIZE, images, make_statement, make_student

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    release = tmp_path_factory.mktemp("release")
    student = make_student(release / "student")
    make_statement(student)
    (release / "statement.html").write_text("<p>statement</p>")
    with quiet():
        mlflow.pyfunc.save_model(release / "model", **pyfunc_arguments(student))
    return student, release / "model"


def floats(count, seed=0):
    return (images(count, seed) / np.float32(255)).astype(np.float32)


def test_a_loaded_model_answers_like_the_student_with_class_names_for_all_types(saved):
    student, folder = saved
    loaded = mlflow.pyfunc.load_model(str(folder))
    model, frozen = StudentModel.load(student), StudentModel.load(student, "frozen")
    expected = model.answers(model.predict(images(9)))
    assert expected["class"].tolist() == [model.class_names[best] for best in model.predict(images(9)).argmax(axis=1)]
    for batch in (floats(9), images(9), images(9) / np.float64(255)):
        pd.testing.assert_frame_equal(loaded.predict(batch), expected, atol=1e-6)
    loaded = mlflow.pyfunc.load_model(str(folder), model_config={"statistics": "frozen"})
    pd.testing.assert_frame_equal(loaded.predict(floats(9)), frozen.answers(frozen.predict(images(9))))


def test_signature_example_and_statement_are_part_of_the_model(saved):
    _, folder = saved
    model = mlflow.models.Model.load(str(folder))
    names = [f"probability of class {number}" for number in range(CLASSES)]
    assert model.signature.outputs.input_names() == ["class", "probability", *names]
    assert model.metadata["input"]["shape"] == ["images", 1, SIZE, SIZE]
    example = model.load_input_example(str(folder))
    assert np.asarray(example).shape == (2, 1, SIZE, SIZE)
    assert json.loads((folder / "artifacts" / "privacy.json").read_text())["epsilon_guaranteed"] > 1
    assert (folder / "artifacts" / "statement.html").is_file()


def test_a_model_holds_no_pickle_and_is_loaded_without_one(saved, monkeypatch):
    import cloudpickle

    _, folder = saved
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth", ".bin"))]

    def forbidden(*arguments, **named):
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (cloudpickle, "load")):
        monkeypatch.setattr(module, name, forbidden)
    mlflow.pyfunc.load_model(str(folder)).predict(floats(2))


def test_a_model_brings_its_own_code(saved, tmp_path):
    """In a process that cannot import the installed package, the copy in the model is used."""
    student, folder = saved
    np.save(tmp_path / "images.npy", floats(3))
    program = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path = [path for path in sys.path if path and path != {str(REPOSITORY)!r}]
try:
    import terrine
except ImportError:
    pass
else:
    sys.exit(f"terrine was found in {{terrine.__file__}}")
import mlflow, numpy
loaded = mlflow.pyfunc.load_model({str(folder)!r})
import terrine
assert terrine.__file__.startswith({str(folder)!r}), terrine.__file__
loaded.predict(numpy.load({str(tmp_path / "images.npy")!r})).to_json({str(tmp_path / "answers.json")!r})
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    model = StudentModel.load(student)
    answers = pd.read_json(tmp_path / "answers.json")
    pd.testing.assert_frame_equal(answers, model.answers(model.predict(images(3))), check_dtype=False)


def test_a_bad_input_is_a_client_error_with_our_sentence(saved):
    loaded = mlflow.pyfunc.load_model(str(saved[1]))
    batch = floats(3)
    batch[1, 0, 0, 0] = np.nan
    with pytest.raises(MlflowException, match="NaN in image 1") as error:
        loaded.predict(batch)
    assert error.value.get_http_status_code() == 400
    for wrong, words in ((floats(3)[:, :, :4], "this student takes"), (images(3).astype(int), "dtype int64")):
        with pytest.raises(MlflowException, match=words):
            loaded.predict(wrong)
