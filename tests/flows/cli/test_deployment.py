"""The commands that use a student: predict, export, serve; and the model that a run registers."""

import contextlib
import csv
import io
import json
import os
import signal
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from tasks.runtime.store import Folders, write_json
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError
from terrine.ports import free_ports
from tests.command_line import terrine
from tests.flows.conftest import forked, set_small
from tests.student_folders import images, make_student


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return make_student(tmp_path_factory.mktemp("commands") / "student", "small_cnn")


@pytest.fixture
def pictures(tmp_path):
    for number, pixels in enumerate(images(3)):
        Image.fromarray(pixels[0]).save(tmp_path / f"{number}.png")
    return tmp_path


def test_predict_prints_the_same_answers_as_a_table_as_json_and_as_csv(student, pictures):
    expected = StudentModel.load(student).predict(images(3))
    names = [f"class {number}" for number in expected.argmax(axis=1)]
    records = json.loads(terrine("predict", "--folder", student, "--json", pictures))
    assert [record["class"] for record in records] == names
    np.testing.assert_allclose(
        [[record[f"probability of class {k}"] for k in range(expected.shape[1])] for record in records],
        expected,
        atol=1e-6,
    )
    rows = list(csv.DictReader(io.StringIO(terrine("predict", "--folder", student, "--csv", pictures))))
    assert [row["class"] for row in rows] == names
    assert float(rows[0]["probability of class 0"]) == pytest.approx(float(expected[0, 0]), abs=1e-6)
    table = terrine("predict", "--folder", student, pictures / "0.png")
    alone = StudentModel.load(student).predict(images(3)[:1])[0]
    assert f"class {alone.argmax()}" in table
    assert f"{100 * alone.max():.1f} %" in table
    assert str(pictures / "0.png") in "".join(line.split(" ")[0] for line in table.splitlines())


def ask(port, path, body=None, content=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)
    if content:
        request.add_header("content-type", content)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_serve_answers_over_http_and_refuses_fifty_megabytes(student):
    (port,) = free_ports()
    process = forked(lambda: app(["serve", "--folder", str(student), "--port", str(port)]))
    try:
        for _ in range(1200):
            try:
                if ask(port, "/ping")[0] == 200:
                    break
            except OSError:
                assert os.waitpid(process, os.WNOHANG) == (0, 0)
                time.sleep(0.25)
        stream = io.BytesIO()
        np.save(stream, images(512))
        status, body = ask(port, "/images", stream.getvalue(), "application/x-npy")
        assert status == 200
        again = CliRunner().invoke(app, ["serve", "--folder", str(student), "--port", str(port)])
        assert again.exit_code == 1
        assert "http://" not in again.output
        assert f"Port {port} is in use. Choose another with --port." in str(again.exception)
        np.testing.assert_allclose(
            json.loads(body)["predictions"], StudentModel.load(student).predict(images(512)), atol=1e-6
        )
        status, body = ask(port, "/images", b"0" * 50_000_000, "application/x-npy")
        assert status == 413
        assert json.loads(body)["message"].startswith("The body is larger than 16 MB")
        assert ask(port, "/ping")[0] == 200
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # where it ended by itself
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


@pytest.mark.slow
def test_a_run_registers_its_student_with_the_privacy_statement(finished, prefect_server):
    import mlflow

    from flows.pipeline import pipeline
    from tasks.runtime.store import read_json
    from terrine.files import file_digest

    # The earlier stages do not depend on register_student, so only the last stage is run again.
    set_small(finished, tracking={"register_student": True})
    run = pipeline()
    folders = Folders(finished, run)
    mlflow.set_tracking_uri(f"sqlite:///{finished / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    (version,) = client.search_model_versions(f"name='{run}'")
    statement = read_json(folders.statement)
    assert float(version.tags["epsilon"]) == statement["epsilon"]
    assert version.tags["private"] == "yes"
    assert version.tags["statement_sha256"] == file_digest(folders.statement)
    assert f"ε = {statement['epsilon']:.4f}" in version.description

    uri = f"models:/{run}/{version.version}"
    batch = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    expected = StudentModel.load(folders.student).predict(batch)
    loaded = mlflow.pyfunc.load_model(uri)
    answers = loaded.predict(batch)
    assert list(answers)[:2] == ["class", "probability"]
    np.testing.assert_allclose(answers.iloc[:, 2:], expected)
    attached = mlflow.artifacts.load_text(f"{uri}/artifacts/privacy.json")
    assert json.loads(attached) == statement

    record = read_json(folders.private / "tracking.json")
    logged = {output.model_id for output in client.get_run(record["run_id"]).outputs.model_outputs}
    flavours = {mlflow.get_logged_model(identity).name: identity for identity in logged}
    assert set(flavours) == {"student"}
    aliases = client.get_registered_model(run).aliases
    assert {alias: str(number) for alias, number in aliases.items()} == {"candidate": str(version.version)}
    model = mlflow.get_logged_model(flavours["student"])
    assert [metric.key for metric in model.metrics][:2] == ["accuracy", "epsilon"]  # the first columns of its table
    assert model.params["aggregation.sigma"] == "6.0"
    experiment, epsilon = [model.experiment_id], statement["epsilon"]
    for bound, found in ((epsilon + 0.01, set(flavours)), (epsilon - 0.01, set())):
        models = client.search_logged_models(experiment, filter_string=f"metrics.epsilon < {bound}")
        assert {each.name for each in models} == found

    records = json.loads(terrine("predict", "--model", uri, "--json", _picture(finished, batch[0, 0])))
    assert records[0]["class"] in statement_classes(folders)
    reference = folders.student / "reference.safetensors"
    reference.chmod(0o644)
    content = bytearray(reference.read_bytes())
    content[-1] ^= 1
    reference.unlink()
    reference.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"reference\.safetensors was changed"):
        StudentModel.load(folders.student)


def _picture(folder, pixels):
    path = folder / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


def statement_classes(folders):
    from tasks.runtime.store import read_json

    return read_json(folders.student / "manifest.json")["class_names"]


@pytest.mark.parametrize("command", ["predict", "serve"])
def test_a_student_that_is_far_less_accurate_as_served_is_warned_of_until_it_is_served_otherwise(
    command, tmp_path, pictures, monkeypatch
):
    student = make_student(tmp_path / "data" / "release" / "clinic" / "student")
    evaluation = {"accuracy": 0.129, "in_batches": {"statistics": "current", "accuracy": 0.2926}}
    write_json(tmp_path / "data" / "private" / "clinic" / "evaluation.json", evaluation)
    monkeypatch.setattr("tasks.serving.service.serve", lambda *_: None)

    def said(*options):
        images = [str(pictures)] * (command == "predict")
        result = CliRunner().invoke(app, [command, "--folder", str(student), *options, *images])
        assert result.exit_code == 0, result.output
        return result.output

    warning = "Warning: The student as served is right in 12.9 % of cases, in mixed batches of images in 29.3 %"
    assert warning in said()
    assert warning not in said("--statistics", "current")
    assert warning not in said("--reference", str(pictures))
    evaluation["accuracy"] = 0.27
    write_json(tmp_path / "data" / "private" / "clinic" / "evaluation.json", evaluation)
    assert "Warning" not in said()
