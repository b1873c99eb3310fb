"""A table's student asked with the user's own columns: files, MLflow, HTTP and exports."""

import json
import shutil

import mlflow
import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from flows.cli import app as command_line
from tasks.serving.export import export_folder
from tasks.serving.mlflow_model import pyfunc_arguments, quiet
from tasks.serving.predict import open_student, predict_tables
from tasks.serving.service import build_app
from terrine.deployment.export import onnx_inputs
from terrine.deployment.manifest import check_seal, seal
from terrine.deployment.rows import TableStudent, takes_table
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.heads import head_from_arrays, predict
from tests.student_folders import TABLE, make_student, make_table_student

ROWS = pd.DataFrame({"gain": [5, 9, 1], "age": [30, np.nan, 61], "work": ["Private", None, "Self-emp"]})
ENCODED = np.array(
    [
        [0.5, 0.5, 0, 0, 1, 0, 0, 2 / 3, 1 / 3],
        [0, 0, 0, 1, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 0, 0, 1, 0, 0],
    ],
    np.float32,
)


@pytest.fixture(scope="module", params=[False, True], ids=["linear", "forest"])
def student(request, tmp_path_factory):
    return make_table_student(tmp_path_factory.mktemp("release") / "student", forest=request.param)


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    return make_table_student(tmp_path_factory.mktemp("release") / "student")


def expected(folder):
    from safetensors.numpy import load_file

    return predict(head_from_arrays(load_file(folder / "head.safetensors")), ENCODED)


def test_a_data_frame_is_answered_whatever_the_order_and_types_of_its_columns(student):
    model = TableStudent.load(student)
    np.testing.assert_allclose(model.predict(ROWS), expected(student), atol=1e-6)
    other = ROWS[["work", "age", "gain"]].assign(age=["30", "?", " 61"], note="x", income="?").astype("category")
    np.testing.assert_array_equal(model.predict(other), model.predict(ROWS))
    answers = model.answers(ROWS)
    assert list(answers) == ["class", "probability", "probability of <=50K", "probability of >50K"]
    assert answers["class"].tolist() == [model.class_names[best] for best in expected(student).argmax(axis=1)]
    one = pd.DataFrame([{"age": 61.0, "work": np.nan, "gain": 1}])  # alone, a missing word is a float
    assert model.predict(one).shape == (1, 2)


def test_classes_in_an_order_are_answered_by_the_median_and_a_number(linear, tmp_path):
    folder = tmp_path / "student"
    shutil.copytree(linear, folder)
    description = json.loads((folder / "manifest.json").read_text())
    description |= {"class_names": ["0 to 20", "20 to 60"], "scale": {"edges": [0, 20, 60]}}
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    said, answers = expected(folder).astype(float), TableStudent.load(folder).answers(ROWS)
    assert list(answers)[:3] == ["number", "class", "probability"]
    for (low, high), answer in zip(said, answers.to_dict("records"), strict=True):
        upper = high > low
        number = 20 + 40 * (0.5 - low) / high if upper else 20 * 0.5 / low
        assert answer["number"] == pytest.approx(number, abs=1e-3)
        assert (answer["class"], answer["probability"]) == (
            ("20 to 60", pytest.approx(high, abs=1e-6)) if upper else ("0 to 20", pytest.approx(low, abs=1e-6))
        )
    app, _ = build_app(folder)
    assert TestClient(app).get("/model").json()["scale"] == {"edges": [0, 20, 60]}
    ROWS.assign(key=["a", "b", "c"]).to_csv(tmp_path / "rows.csv", index=False)
    (file,) = predict_tables(open_student(folder), [tmp_path / "rows.csv"])
    np.testing.assert_allclose(file.answers["number"], answers["number"])


def test_what_is_left_out_of_account_is_said(linear):
    notes = TableStudent.load(linear).notes(ROWS.assign(note=1, key=2, income="?"))
    assert notes[0] == "Ignored columns, which the student does not know: note."
    assert notes[1] == "'age': 1 of 3 rows have numbers outside 20 to 60, which count as the nearest of them."
    assert notes[2] == "'work': 1 of 3 rows have unknown words, which are ignored: Self-emp."
    assert not TableStudent.load(linear).notes(ROWS.iloc[:2])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (ROWS.drop(columns="age"), r"^The table has no column 'age'; its columns are gain, work\.$"),
        (ROWS[["work"]], r"has no columns 'age', 'gain'"),
        (ROWS.assign(age=[1, 2, "old"]), r"row 2: 'age' is 'old', but the column is numeric"),
        (ROWS.assign(gain=[1, np.inf, 2]), r"row 1: 'gain' is 'inf', which is not finite"),
        (ROWS.iloc[:0], r"has no rows"),
    ],
)
def test_rows_that_cannot_be_answered_say_why(linear, rows, sentence):
    with pytest.raises(InputError, match=sentence):
        TableStudent.load(linear).predict(rows)


def test_the_encoding_is_under_the_seal(tmp_path):
    folder = make_table_student(tmp_path / "student")
    assert takes_table(folder)
    (folder / "encoding.json").write_text((folder / "encoding.json").read_text().replace("40.0", "41.0"))
    with pytest.raises(ArtefactError, match=r"encoding\.json was changed"):
        TableStudent.load(folder)
    with pytest.raises(ArtefactError, match=r"carries no encoding\.json"):
        TableStudent.load(make_student(tmp_path / "images"))


@pytest.fixture
def rows_csv(tmp_path):
    text = 'key,gain,age,work,remark\na,5,30,Private,"two\nlines"\n\nb,9,?,,x\nc,1,61,Self-emp,y\n'
    (tmp_path / "rows.csv").write_text(text)
    return tmp_path / "rows.csv"


def test_predict_prints_rows_by_line_and_id_and_writes_csv_and_json(student, rows_csv):
    arguments = ["predict", str(rows_csv), "--folder", str(student)]
    done = CliRunner().invoke(command_line, [*arguments, "--csv"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "line,key,class,probability,probability of <=50K,probability of >50K"
    assert [line.split(",")[:2] for line in lines[1:]] == [["2", "a"], ["5", "b"], ["6", "c"]]
    np.testing.assert_allclose([float(line.split(",")[-1]) for line in lines[1:]], expected(student)[:, 1], atol=1e-5)
    assert "does not know: remark" in done.stderr
    found = json.loads(CliRunner().invoke(command_line, [*arguments, "--json"]).stdout)
    assert [row["class"] for row in found] == [line.split(",")[2] for line in lines[1:]]
    shown = CliRunner().invoke(command_line, arguments).stdout.splitlines()
    assert shown[0].split() == ["line", "key", "class", "probability"]
    assert shown[1].split()[:2] == ["2", "a"]


def test_predict_names_the_line_and_refuses_what_is_for_images(linear, rows_csv, tmp_path):
    rows_csv.write_text(rows_csv.read_text().replace("61", "many"))
    with pytest.raises(InputError, match=r"rows\.csv, line 6: 'age' is 'many'"):
        predict_tables(open_student(linear), [rows_csv])
    with pytest.raises(InputError, match=r"photo\.png is not a CSV file"):
        predict_tables(open_student(linear), [tmp_path / "photo.png"])
    ROWS.to_csv(tmp_path / "good.csv", index=False)
    command = ["predict", str(rows_csv), str(tmp_path / "good.csv"), "--folder", str(linear)]
    done = CliRunner().invoke(command_line, [*command, "--json"])
    assert (done.exit_code, len(json.loads(done.stdout))) == (1, 3)
    assert done.stderr.count("Not answered: ") == 1
    assert "rows.csv, line 6: 'age' is 'many'" in done.stderr
    done = CliRunner().invoke(command_line, [*command, "--statistics", "single"])
    assert isinstance(done.exception, SettingError)


@pytest.fixture(scope="module")
def saved(linear, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    with quiet():
        mlflow.pyfunc.save_model(folder, **pyfunc_arguments(linear))
    return folder


def test_the_mlflow_model_takes_the_users_columns(linear, saved):
    model = mlflow.pyfunc.load_model(str(saved))
    inputs = model.metadata.get_input_schema()
    assert inputs.input_names() == ["age", "work", "gain"]
    assert model.metadata.get_output_schema().input_types() == [
        mlflow.types.DataType.string,
        *[mlflow.types.DataType.double] * 3,
    ]
    assert list(model.input_example) == ["age", "work", "gain"]
    assert model.metadata.metadata["columns"][0] == {"name": "age", "type": "number"}
    pd.testing.assert_frame_equal(model.predict(ROWS), TableStudent.load(linear).answers(ROWS))
    whole = ROWS.fillna({"age": 40}).astype({"age": int}).assign(note="ignored")
    assert model.predict(whole)["class"].tolist() == model.predict(ROWS)["class"].tolist()
    alone = ROWS.iloc[[1]].assign(work=np.nan)  # missing text, stored as a float
    assert model.predict(alone)["class"].tolist() == model.predict(ROWS)["class"].tolist()[1:2]
    with pytest.raises(mlflow.MlflowException, match="The request has no column 'age'"):
        model.predict(ROWS.drop(columns="age"))


@pytest.fixture(scope="module")
def client(linear):
    app, student = build_app(linear)
    assert isinstance(student, TableStudent)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("orient", ["split", "records"])
def test_the_service_answers_invocations_with_classes_and_probabilities(client, linear, orient):
    body = {f"dataframe_{orient}": json.loads(ROWS.to_json(orient=orient))}
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    assert [row["class"] for row in predictions] == TableStudent.load(linear).answers(ROWS)["class"].tolist()
    np.testing.assert_allclose([row["probability of >50K"] for row in predictions], expected(linear)[:, 1], atol=1e-6)


def test_the_service_takes_a_csv_file_and_says_what_it_serves(client, linear, rows_csv):
    answer = client.post("/rows", content=rows_csv.read_bytes(), headers={"content-type": "text/csv"}).json()
    assert [row["line"] for row in answer["predictions"]] == [2, 5, 6]
    np.testing.assert_allclose(
        [row["probability of >50K"] for row in answer["predictions"]], expected(linear)[:, 1], atol=1e-6
    )
    assert "remark" in answer["notes"][0]
    assert client.get("/model").json()["columns"][1]["values"] == ["", "Private", "State-gov"]


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/rows", b"age,work\n1,x\n", "The body has no column 'gain'"),
        ("/rows", b"age,work,gain\n1,x,2\nold,x,2\n", "The body, line 3: 'age' is 'old'"),
        ("/rows", b"\xff\xfe", "is not a CSV file in UTF-8"),
        ("/invocations", b'{"dataframe_records": [{"age": 1, "work": "x"}]}', "has no column 'gain'"),
        ("/invocations", b'{"inputs": [[1]]}', 'Send {"dataframe_records": [{"age": ..., "work": ..., ...}]}'),
    ],
)
def test_a_request_that_cannot_be_answered_gets_a_sentence(client, path, body, part):
    answer = client.post(
        path, content=body, headers={"content-type": "text/csv" if path == "/rows" else "application/json"}
    )
    assert answer.status_code == 400
    assert part in answer.json()["message"]


def test_the_export_takes_raw_columns_and_answers_like_the_student(student, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra packages of terrine[onnx]")
    exported = export_folder(student, tmp_path / "out", ["single", "current"], ["onnx", "pt2"])
    assert [item.file for item in exported] == ["student.onnx", "student.pt2"]
    assert max(item.difference for item in exported) < 1e-5
    manifest = check_seal(tmp_path / "out")
    assert {"student.onnx", "student.pt2", "student/encoding.json"} <= set(manifest["digests"])
    assert ("shapes.csv" in manifest["digests"]) == (TableStudent.load(student).shapes() is not None)
    assert [column["dtype"] for column in manifest["input"]["onnx"]] == ["float64", "string", "float64"]
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "student.onnx"))
    assert [value.name for value in session.get_inputs()] == ["age", "work", "gain"]
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == ["<=50K", ">50K"]
    rows = ROWS.fillna({"work": ""})
    (answers,) = session.run(["probabilities"], onnx_inputs(TABLE, rows))
    np.testing.assert_allclose(answers, expected(student), atol=1e-6)


def test_the_export_of_a_linear_student_lists_what_each_column_adds_to_the_scores(linear, tmp_path):
    export_folder(linear, tmp_path / "out", [], [])
    assert "shapes.csv" in check_seal(tmp_path / "out")["digests"]
    shapes = pd.read_csv(tmp_path / "out" / "shapes.csv", keep_default_na=False)
    assert list(shapes) == ["column", "value", "score of <=50K", "score of >50K"]
    scores = []
    for row in ROWS.to_dict("records"):
        score = shapes.loc[shapes["column"] == "(intercept)"].iloc[0, 2:].to_numpy(float)
        for column in TABLE.columns:
            own, value = shapes.loc[shapes["column"] == column.name], row[column.name]
            if column.values is not None:
                own = own.loc[own["value"] == ("" if pd.isna(value) else str(value))]
                score = score + own.iloc[:, 2:].to_numpy(float).sum(axis=0)
            elif not pd.isna(value):
                score = score + [np.interp(value, own["value"].astype(float), own.iloc[:, k]) for k in (2, 3)]
        scores.append(np.exp(score) / np.exp(score).sum())
    np.testing.assert_allclose(scores, expected(linear), atol=1e-6)


def test_a_tables_student_without_an_encoding_is_refused(linear, tmp_path):
    folder = shutil.copytree(linear, tmp_path / "student")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "encoding.json").unlink()
    description = {name: value for name, value in manifest.items() if name not in ("digest", "digests")}
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    with pytest.raises(ArtefactError, match=r"carries no encoding\.json"):
        open_student(folder)
