"""Public files of a run on private data contain no bytes that are local to the site."""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.reproduce import main as reproduce
from flows.cli import app
from flows.stages import run_stage
from tasks.artefacts.features import query_features
from tasks.artefacts.records import read_dataset
from tasks.config.presets import derive, resolve
from tasks.config.values import read_yaml
from tasks.desk.airlock import build_kit
from tasks.pipeline.graph import MAIN
from tasks.pipeline.mlflow_logging import stage_costs
from tasks.reports.summary import for_anybody
from tasks.runtime.accounts import open_account, site_signing_key, stored_people
from tasks.runtime.releases import record_audit
from tasks.runtime.run import Run, open_run
from tasks.runtime.store import read_array, read_json, read_table, write_json
from tasks.serving.pages import write_pages
from tasks.transcription.graph import TRANSCRIPTION
from terrine.deployment.model import StudentModel
from terrine.errors import SettingError
from terrine.files import file_digest
from terrine.privacy.accounting.events import GaussianEvent
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from tests.flows.conftest import set_small

MEMBERSHIP = {
    "shadows": 16,
    "unit": "record",
    "auc": {"value": 0.123456, "low": 0.1, "high": 0.2},
    "members_found": {"0.001": {"value": 0.123456}},
    "epsilon_at_least": 0.123456,
    "epsilon_charged": 1.0,
    "delta": 1e-5,
    "confidence": 0.95,
}
SECRETS = ("SecretAccount", "SecretPath", "SecretUrl", "SecretKey", "SecretStore")
APART = {"synthesize", "pretrain", "student"}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A finished run on private arrays without DVC and Prefect, with MLflow's file store."""
    from sklearn.datasets import load_digits

    from tests.flows.conftest import make_project

    root = make_project(tmp_path_factory.mktemp("clinic") / "project")
    digits = load_digits()
    source = root / "data" / "private" / "SecretPath.npz"
    source.parent.mkdir(parents=True)
    np.savez(source, images=digits.images.astype(np.uint8) * 16, labels=digits.target)
    set_small(
        root,
        data={"name": "npz", "path": "data/private/SecretPath.npz"},
        ledger={
            "account": "SecretAccount",
            "epsilon": 20,
            "url": "sqlite:///data/private/SecretUrl.db",
            "key": "data/private/SecretKey",
            "store": "data/private/SecretStore",
        },
        tracking={"uri": (root / "mlruns").as_uri(), "register_student": True},
        evaluation={"epsilon": 1},
    )
    with pytest.MonkeyPatch.context() as patch:
        # Instead of a database, whose first migrations would take most of the time.
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("TERRINE_ROOT", str(root))
        patch.chdir(root)
        patch.setattr("tasks.serving.mlflow_model.log_student", log_empty_model)
        run = derive(root, "small", ["seed=1"])
        for stage in MAIN.names:
            run_stage(root, run, stage)
    return open_run(root, run)


def log_empty_model(run, register):
    """Log a model without files, which takes no time."""
    import mlflow

    model = mlflow.initialize_logged_model(name="student")
    return mlflow.finalize_logged_model(model.model_id, "READY")


def published(root: Path):
    """Every file that leaves: what is public, what is released, and MLflow's."""
    folders = (root / "data" / "public", root / "data" / "release", root / "mlruns", root / "mlartifacts")
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def logged(root: Path):
    """Return the names of metrics, parameters, tags and artefacts of the one run in MLflow."""
    (metrics,) = {path.parent for path in root.glob("mlruns/*/*/metrics/epsilon")}
    artefacts = root / "mlartifacts" / metrics.parent.name / "artifacts"
    return {
        **{kind: {path.name for path in (metrics.parent / kind).iterdir()} for kind in ("params", "tags")},
        "metrics": {path.name for path in metrics.iterdir() if path.is_file()},
        "costs": {path.name for path in (metrics / "system").iterdir()},
        "artefacts": {path.relative_to(artefacts).parts[0] for path in artefacts.rglob("*")},
    }


def test_what_names_the_site_is_in_nothing_that_is_public_released_or_logged(clinic):
    files = published(clinic.root)
    assert {path.relative_to(clinic.root).parts[0] for path in files} == {"data", "mlruns", "mlartifacts"}
    for path in files:
        content = path.read_bytes() + str(path.relative_to(clinic.root)).encode()
        for secret in SECRETS:
            assert secret.encode() not in content, (secret, path)
    site_local = clinic.folders.parameters.read_text()
    for secret in SECRETS:
        assert secret in site_local


def test_the_public_parameters_lack_what_stays_at_home_and_say_the_rest(clinic):
    public, private = read_yaml(clinic.folders.public_parameters), read_yaml(clinic.folders.parameters)
    assert "path" not in public["data"]
    assert set(public["ledger"]) == {"epsilon"}
    for name, section in public.items():
        assert section == private[name] or section.items() <= private[name].items(), name
    assert public["teachers"] == private["teachers"]
    assert {name.split(".")[0] for name in logged(clinic.root)["params"]} <= set(public)
    assert not {"data.path", "data.root", "ledger.account", "tracking.uri"} & logged(clinic.root)["params"]


def test_of_private_data_mlflow_has_no_private_figure_no_digest_of_private_files_no_evaluation_and_no_report(clinic):
    found = logged(clinic.root)
    costs = {f"drawing_{name}" for name in ("images", "bytes", "seconds", "images_per_second")}
    costs |= {f"seconds_{stage}" for stage in APART}
    declared = {"epsilon", "epsilon_guaranteed", "epsilon_added", "queries_answered"}
    noised = {"accuracy_released", "accuracy_released_plus_minus"}
    assert found["metrics"] == declared | noised
    assert found["costs"] == costs
    assert "dvc_lock" not in found["tags"]
    assert found["artefacts"] == {"release", "parameters.yaml"}
    artefacts = {path.name for path in (clinic.root / "mlartifacts").rglob("*")}
    assert "accuracy.json" in artefacts
    assert "evaluation.json" not in artefacts | {path.name for path in published(clinic.root)}


def test_the_accuracy_without_noise_and_misclassified_images_are_in_the_private_report_only(clinic):
    errors, page = read_json(clinic.folders.private / "errors.json"), clinic.folders.report.read_text()
    images, exact = [one["image"] for one in errors["wrong"]], errors["without_noise"]["accuracy"]
    assert 0 < len(images) <= 12
    assert all(image in page for image in images)
    assert f"{100 * exact:.2f} % without noise" in " ".join(page.split())
    assert errors["without_noise"]["with_noise"] == pytest.approx(read_json(clinic.folders.evaluation)["accuracy"])
    # Trained here from the exact votes of the same queries.
    votes = read_array(clinic.folders.accounting / "histograms.npy")
    answered = read_table(clinic.folders.answers / "answers.parquet")["answered"].to_numpy()
    settings, features = clinic.params.student, query_features(clinic, clinic.params.student.statistics)
    answers = histogram_answers(votes[answered], int(votes[0].sum()), clinic.params.aggregation.sigma)
    head = fit(features[answered], answers, settings.l2, seed=clinic.params.seed)
    dataset = read_dataset(clinic.folders)
    said = StudentModel.load(clinic.folders.student).with_head(head).predict(np.asarray(dataset.test_images))
    assert exact == pytest.approx((said.argmax(axis=1) == dataset.test_labels).mean())
    private = [*images, *(image.partition(",")[2] for image in images), repr(exact), "without_noise"]
    for path in published(clinic.root):
        content = path.read_bytes()
        assert not [each for each in private if each.encode() in content], path


def test_a_statement_about_private_data_is_signed_only_with_the_operators_own(clinic, monkeypatch):
    monkeypatch.setenv("TERRINE_ROOT", str(clinic.root))
    lacking = r"lacks about\.description, .*about\.one_per_person\. Add them without cost: terrine run "
    with pytest.raises(SettingError, match=lacking):
        CliRunner().invoke(app, ["statement", clinic.name, "--sign"], catch_exceptions=False)
    assert not (clinic.folders.release / "signature.json").exists()


def test_a_table_in_markdown_of_private_data_has_the_released_accuracy_and_names_nothing_of_the_site(
    clinic, monkeypatch, capsys
):
    monkeypatch.setenv("TERRINE_ROOT", str(clinic.root))
    own = ["seed=1", "data.path=data/private/SecretPath.npz", "ledger.account=SecretAccount"]
    queried = ["small", *(word for one in own for word in ("--set", one)), "--seeds", "1", "--finished"]
    private, public = (
        f"{100 * read_json(path)['accuracy']:.2f}" for path in (clinic.folders.evaluation, clinic.folders.accuracy)
    )
    reproduce(queried)
    site_local = capsys.readouterr().out
    reproduce([*queried, "--markdown"])
    table = capsys.readouterr().out
    assert private in site_local
    assert private not in table
    assert f"| {public} |" in table
    assert "`small` --set seed=1 --set data.path --set ledger.account" in table
    assert not any(secret in table for secret in SECRETS)


def test_of_private_data_dvc_shows_no_accuracy_but_the_one_with_noise(clinic):
    metrics, released = read_json(clinic.folders.metrics), read_json(clinic.folders.accuracy)
    noised = {"accuracy_released", "accuracy_released_plus_minus"}
    assert set(metrics) == {"epsilon", "epsilon_guaranteed", "epsilon_added", "answered"} | noised
    assert metrics["accuracy_released"] == released["accuracy"]


def test_of_private_data_prefects_page_has_no_accuracy_but_the_one_with_noise(clinic):
    rows, released = for_anybody(clinic), read_json(clinic.folders.accuracy)
    assert rows["accuracy released"].startswith(f"{100 * released['accuracy']:.1f} ± ")
    assert not [name for name in rows if "test split" in name]
    assert not [secret for secret in (*SECRETS, str(clinic.root)) if secret in str(rows)]


def test_mlflow_has_the_effective_settings_and_the_queries_but_no_private_data(clinic):
    found = logged(clinic.root)
    used = {"data.name", "aggregation.sigma", "evaluation.epsilon", "seed", "teachers.ridge", "data.test_fraction"}
    assert used <= found["params"]
    assert not {"device", "tracking.experiment", "data.path", "ledger.account"} & found["params"]
    (data,) = [read_yaml(path) for path in clinic.root.glob("mlruns/*/datasets/*/meta.yaml")]
    assert data["name"] == "query images"
    assert read_yaml(clinic.folders.public_parameters)["device"] == "auto"


def test_a_run_says_how_it_is_made_again_and_its_charts_begin_with_accuracy_and_epsilon(clinic):
    (note,) = clinic.root.glob("mlruns/*/*/tags/mlflow.note.content")
    assert "terrine run --preset small --set" in note.read_text()
    # The charts come in the order of these names.
    assert sorted(logged(clinic.root)["metrics"])[:3] == [
        "accuracy_released",
        "accuracy_released_plus_minus",
        "epsilon",
    ]


def test_what_stages_cost_is_logged_in_full_where_private_figures_may_go(clinic):
    assert set(stage_costs(clinic, MAIN)) == {f"system/seconds_{stage}" for stage in APART}
    tracking = clinic.params.tracking.model_copy(update={"private_metrics": True})
    public = Run(clinic.root, clinic.name, clinic.params.model_copy(update={"tracking": tracking}))
    timed = set(MAIN.names) - {"parameters", "report"}  # the report's own is known when it is done
    assert timed < {name.removeprefix("system/seconds_") for name in stage_costs(public, MAIN)}
    assert {f"system/memory_mb_{stage}" for stage in timed} < set(stage_costs(public, MAIN))


def test_drawing_images_is_not_timed_in_public_where_the_source_of_the_data_is_read_for_it(clinic):
    data = clinic.params.data.model_copy(update={"pool": "test"})
    run = Run(clinic.root, clinic.name, clinic.params.model_copy(update={"data": data}))
    assert set(stage_costs(run, MAIN)) == {f"system/seconds_{stage}" for stage in APART - {"synthesize"}}


@pytest.mark.parametrize(("pipeline", "apart"), [(MAIN, APART), (TRANSCRIPTION, {"start"})])
def test_the_graph_says_which_stages_touch_nothing_private(pipeline, apart):
    assert pipeline.public_stages == apart


def test_a_runs_name_tells_nobody_outside_which_account_or_path_it_was_given(project):
    plain = derive(project, "small", ["aggregation.epsilon=4"])
    given = ["aggregation.epsilon=4", "ledger.account=SecretAccount"]
    name = derive(project, "small", given)
    assert derive(project, "small", given) == name
    assert derive(project, "small", [*given[:1], "ledger.account=other"]) != name
    assert resolve(project, name).ledger.account == "SecretAccount"
    assert "SecretAccount" not in read_yaml(project / "experiments" / f"{name}.yaml")["description"]
    # Another site, which has another key, gives another name; what is public is named alike everywhere.
    (project / "data" / "private" / "ledger" / "key").unlink()
    assert derive(project, "small", ["aggregation.epsilon=4"]) == plain
    assert derive(project, "small", given) != name


def test_a_flow_run_is_named_without_what_stays_at_home(monkeypatch):
    from flows import pipeline

    overrides = ["seed=3", "data.path=SecretPath", "ledger={account: SecretAccount, epsilon: 3}", "nonsense"]
    queried = SimpleNamespace(parameters={"preset": "small", "overrides": overrides})
    monkeypatch.setattr(pipeline, "flow_run", queried)
    assert pipeline._run_name() == "small seed=3 data.path ledger nonsense"


def test_an_airlock_kit_has_public_files_only_and_names_no_other_run_of_the_account(clinic, tmp_path):
    """Every private file has content that can be recognised, and attacks were run on private records."""
    write_pages(clinic.folders.release, ["en"], site_signing_key(clinic))
    record_audit(clinic, {"secret": "not in the statement"})
    for name in ("membership.json", "canaries.json"):
        write_json(clinic.folders.private / name, MEMBERSHIP)
    ledger, account = open_account(clinic)
    other = {"delta": 1e-5, "noise_kind": "secure", "data": stored_people(clinic)}
    ledger.release(
        dataset=account,
        release_id="0f" * 32,
        run="SecretRun",
        worst_case=GaussianEvent(1.0, 1000.0),
        draw=lambda: ({"sums": np.zeros(1)}, GaussianEvent(1.0, 1000.0)),
        **other,
    )
    kit = build_kit(clinic, tmp_path / "kit")
    files = {path.relative_to(kit.folder).as_posix(): path for path in kit.folder.rglob("*") if path.is_file()}
    released = {path.relative_to(clinic.folders.release).as_posix() for path in clinic.folders.release.rglob("*")}
    made = {"index.html", "kit.json", "kit.sig", "ledger.json", "satre.yaml", "sbom.json"}
    assert set(files) - released == made | {"statement-1.json", "verify.html", "verify.py"}
    assert "answers/manifest.json" in released - set(files)
    private = {file_digest(path) for path in (clinic.root / "data" / "private").rglob("*") if path.is_file()}
    assert not private & {file_digest(path) for path in files.values()}
    packed = zipfile.ZipFile(kit.archive)
    assert {name.removeprefix("kit/") for name in packed.namelist()} == set(files)
    contents = [path.read_bytes() for path in files.values()] + [packed.read(name) for name in packed.namelist()]
    secrets = (*SECRETS, "SecretRun", "0f" * 32, "0.123456", "not in the statement", str(clinic.root))
    for secret in secrets:
        assert not any(secret.encode() in content for content in contents), secret
    excerpt, statement = read_json(files["ledger.json"]), read_json(clinic.folders.statement)
    assert [entry["kind"] for entry in excerpt["releases_of_this_run"]] == ["answers", "accuracy"]
    assert excerpt["releases_of_this_run"][0]["event"] == statement["event"]
    assert excerpt["epsilon_of_all_releases"] == statement["epsilon_dataset"]
    assert excerpt["verified"] is True
    assert kit.inside == clinic.folders.private / "airlock"
    assert {path.name for path in kit.inside.iterdir()} == {"membership.json", "canaries.json", "report.json"}
