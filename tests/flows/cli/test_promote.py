"""`terrine statement --promote`: the aliases of a registered student."""

import shutil

import pytest

from tasks.runtime.store import read_json, write_json
from tasks.serving.mlflow_model import log_student
from tasks.tools.promotion import CHAMPION, promote
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.signature import read_signature
from terrine.errors import ArtefactError
from tests.command_line import terrine
from tests.tasks.tools.test_promotion import released, sign


def aliases(client, name):
    return {alias: str(version) for alias, version in client.get_registered_model(name).aliases.items()}


def test_a_candidate_becomes_the_champion_and_only_the_very_student_does(tmp_path, mlflow_database, monkeypatch):
    import mlflow

    run = released(tmp_path)
    folder = run.folders.release
    shutil.copy(mlflow_database, run.root / "mlflow.db")
    with pytest.raises(ArtefactError, match="terrine run clinic"):
        promote(run)
    mlflow.create_experiment("here", artifact_location=(run.root / "mlartifacts").as_uri())
    mlflow.set_experiment("here")
    with mlflow.start_run(run_name=run.name) as active:
        identity = active.info.run_id
    write_json(run.folders.private / "tracking.json", {"run_id": identity})

    monkeypatch.setattr("tasks.runtime.run.chosen_run", lambda name: run)
    served, warning, last, *lines = terrine("statement", "--run", "clinic", "--promote").splitlines()
    assert served == "Accuracy as served (private test split): 50.00 %"
    assert warning.startswith("Warning: The student as served is right in 50.0 % of cases, in mixed batches")
    assert last == "Version 1 of clinic is the champion. To load it in Python:"
    assert lines == [
        "  import mlflow",
        f'  mlflow.set_tracking_uri("sqlite:///{run.root}/mlflow.db")',
        '  model = mlflow.pyfunc.load_model("models:/clinic@champion")',
    ]
    client = mlflow.MlflowClient()
    assert aliases(client, run.name) == {"candidate": "1", CHAMPION: "1"}
    version = client.get_model_version(run.name, "1")
    served, batches, card = version.description.split("\n\n", 2)
    assert (served, batches) == ("test accuracy as served 50.00 %", "in batches 75.00 %")
    assert card == (folder / "model-card.md").read_text()
    assert version.tags["signed_by"] == read_signature(folder / "signature.json").key
    logged = {file.path for file in client.list_artifacts(identity, "release")}
    assert {"release/signature.json", "release/statement-en.html", "release/model-card.md"} <= logged

    # Another student of the same release is a candidate; the champion stays until it is promoted, too.
    manifest = run.folders.student / MANIFEST
    write_json(manifest, seal(run.folders.student, read_json(manifest) | {"training": {"epochs": 2}}))
    sign(run)
    with mlflow.start_run(run_id=identity):
        log_student(run)
    assert aliases(client, run.name) == {"candidate": "2", CHAMPION: "1"}
    assert "\nVersion 2 of clinic is the champion (before" in terrine("statement", "--run", "clinic", "--promote")
    assert promote(run).version == "2"

    for weights in (run.root / "mlartifacts").rglob("head.safetensors"):
        weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(ArtefactError, match="was changed after it was written"):
        promote(run)
