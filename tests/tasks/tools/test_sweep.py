"""A search over settings: its candidates, what is checked before it starts, and what it says it cost."""

import json
import math
import re
import shutil
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import parse_qs

import numpy as np
import pytest
import yaml

import flows.sweep
import tasks.reports.comparison
import tasks.runtime.versioning
import tasks.tools.sweep
from tasks.config.presets import selected_run
from tasks.pipeline.aggregate import release_once
from tasks.pipeline.mlflow_runs import sweep_view
from tasks.runtime.accounts import open_account
from tasks.runtime.decisions import ApprovalNeeded
from tasks.runtime.parameters import write_parameters
from tasks.runtime.releases import accuracy_mechanism, assurance, identity_in_ledger, is_candidate, list_releases
from tasks.runtime.run import open_run
from tasks.runtime.staleness import data_settings_digest
from tasks.runtime.store import Folders, read_json, write_array, write_json
from tasks.tools.sweep import log_sweep, make_candidates, outcome, parse_vary, summary, table_cells
from terrine.aggregation.votes import count_votes
from terrine.data.source import Source
from terrine.errors import BudgetError, InputError, LedgerError, SettingError
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import epsilon_of, round_up
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key

QUERIES, TEACHERS, CLASSES, DELTA = 10, 20, 3, 1e-5
PRESET = {
    "description": "few queries, and a seed's own votes",
    "queries": {"count": QUERIES, "batch": 5},
    "partition": {"teachers": TEACHERS},
    "aggregation": {"mechanism": "histogram", "sigma": 30},
    "ledger": {"account": "trial"},
}
PRIVATE = ["data.public_benchmark=false", "privacy.anyway=true"]


def epsilon_of_releases(*sigmas):
    return epsilon_of(math.sqrt(sum(QUERIES * 2 / sigma**2 for sigma in sigmas)), DELTA)


@pytest.fixture
def project(tmp_path, pytestconfig, monkeypatch):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "trial.yaml").write_text(yaml.safe_dump(PRESET))
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    return tmp_path


class Pipeline:
    """A fake of the stages: votes that depend only on the seed, and a release through the real ledger."""

    def __init__(self, root):
        self.root = root
        self.made = []
        self.changed = set()
        self.failing = {}
        self.restated = []

    def is_complete(self, _root, run):
        return Folders(self.root, run).evaluation.is_file() and run not in self.changed

    def make_changed(self, root, run, _stages):
        write_parameters(root, run)

    def make_run(self, root, run):
        self.made.append(run)
        opened = write_parameters(root, run)
        folders, settings = opened.folders, opened.params.aggregation
        rng = np.random.default_rng(opened.params.seed)
        votes = rng.integers(0, CLASSES, (QUERIES, TEACHERS)).astype(np.uint8)
        write_array(folders.votes / "votes.npy", votes)
        write_json(folders.images / "manifest.json", {"seed": opened.params.seed})
        about = {"class_names": [str(number) for number in range(10)], "declared": True}
        write_json(
            folders.dataset / "manifest.json", {"data_settings_digest": data_settings_digest(opened.params), **about}
        )
        ledger, dataset = open_account(opened)
        for before in list_releases(opened):
            if before.kind == "units":
                self.release(ledger, dataset, run, before.identity, before.worst_case)
        release = release_once(opened, count_votes(votes, CLASSES), {})
        write_json(
            folders.statement,
            {
                "release_id": release.release_id,
                "event": to_json(release.event),
                "epsilon": round_up(epsilon_of_releases(settings.sigma)),
                "answered": int(release.arrays["answered"].sum()),
                "queried": QUERIES,
                "queries": QUERIES,
                "epsilon_guaranteed": round_up(epsilon_of_releases(settings.sigma)),
                "delta": DELTA,
                "dataset": "trial",
                "mechanism": {"mechanism": "histogram"},
                "teachers": TEACHERS,
            },
        )
        if (accuracy := accuracy_mechanism(opened.params)) is not None:
            noised = {"accuracy": 0.9 - (opened.params.student.l2 or 0) / 10, "plus_minus": 0.02}
            write_json(folders.accuracy, noised)
            self.release(ledger, dataset, run, identity_in_ledger(opened, "accuracy"), accuracy.event)
        if opened.params.student.l2 in self.failing:
            raise self.failing[opened.params.student.l2]
        write_json(folders.evaluation, {"accuracy": 0.5 + (opened.params.student.l2 or 0) / 10})

    def release(self, ledger, dataset, run, identity, event):
        ledger.release(
            dataset=dataset,
            release_id=identity,
            run=run,
            worst_case=event,
            delta=DELTA,
            noise_kind="secure",
            draw=lambda: ({"sums": np.zeros(2)}, event),
        )


@pytest.fixture
def stages(project, monkeypatch):
    pipeline = Pipeline(project)
    for name in ("make_changed", "make_run", "is_complete"):
        monkeypatch.setattr(flows.sweep, name, getattr(pipeline, name))
    monkeypatch.setattr(flows.sweep, "rewrite_statement", lambda root, run: pipeline.restated.append(run))
    monkeypatch.setattr(tasks.reports.comparison, "read_statement", read_json)
    monkeypatch.setattr(
        "tasks.tools.sweep.log_sweep", lambda root, preset, result: vars(pipeline).update(result=result)
    )
    return pipeline


def run_sweep(*varied, settings=(), select="none", workers=1):
    flows.sweep.sweep(list(varied), "trial", list(settings), select, workers)


def account_of(root, run):
    ledger, dataset = open_account(open_run(root, run))
    return ledger, dataset


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("aggregation.sigma=20, 40", "aggregation.sigma", ["20", "40"]),
        ("student.l2=null,0.1", "student.l2", ["null", "0.1"]),
        ("aggregation.mechanism=gnmax", "aggregation.mechanism", ["gnmax"]),
        ("student.l2=1e-3,1", "student.l2", ["1e-3", "1"]),
        (
            "queries.sources={dead_leaves: 1, stylegan: 2},{stylegan: 1}",
            "queries.sources",
            ['{"dead_leaves": 1, "stylegan": 2}', '{"stylegan": 1}'],
        ),
        ("device='1',cpu", "device", ['"1"', "cpu"]),
    ],
)
def test_values_are_separated_by_commas_and_read_as_yaml(text, key, values):
    assert parse_vary(text) == (key, values)


@pytest.mark.parametrize("text", ["aggregation.sigma", "aggregation.sigma=", "=1,2", "aggregation.sigma=[1", "a={b"])
def test_what_is_no_list_of_values_is_refused_with_the_text(text):
    with pytest.raises(SettingError, match="--vary "):
        parse_vary(text)


def test_mechanisms_are_varied_with_their_students_and_back(project):
    varied = ["aggregation.mechanism=histogram,moments,gradients"]
    candidates = make_candidates(project, "terrine-digits", [], varied)
    kinds = [(each.params.aggregation.mechanism, each.params.student.kind) for each in candidates]
    assert kinds == [("histogram", "linear"), ("moments", "sums"), ("gradients", "sums")]
    students = make_candidates(project, "terrine-digits", [], ["student.kind=linear,sums"])
    assert [each.params.aggregation.reveals for each in students] == ["histogram", "sums"]


def test_every_combination_is_a_candidate_and_equal_ones_are_one(project):
    candidates = make_candidates(
        project, "terrine-digits", ["seed=3"], ["aggregation.sigma=20,40,20", "student.l2=1,2"]
    )
    assert [tuple(candidate.settings.values()) for candidate in candidates] == [
        ("20", "1"),
        ("20", "2"),
        ("40", "1"),
        ("40", "2"),
    ]
    assert len({candidate.run for candidate in candidates}) == 4
    for candidate in candidates:
        params = candidate.params
        assert (str(int(params.aggregation.sigma)), str(int(params.student.l2))) == tuple(candidate.settings.values())
        assert params.seed == 3


@pytest.mark.parametrize(
    ("varied", "assignments", "message"),
    [
        (["data.size=16,32"], [], "one dataset"),
        (["ledger.epsilon=1,2"], [], "one account"),
        (["aggregation.delta=1e-5,1e-6"], [], "one δ"),
        (["aggregation={sigma: 20},{sigma: 30}"], [], "stays the same"),
        (["aggregation.sigma=20", "aggregation.sigma=30"], [], "once"),
        (["aggregation.sigma=20,30"], ["aggregation.sigma=25"], "once"),
        (["queries={count: 20}", "queries.count=30"], [], "once"),
        ([], [], "at least one parameter"),
        (["aggregation.sigma=20,-1"], [], r"candidate aggregation\.sigma=-1 is impossible"),
        (["partition.teachers=20,2000"], [], r"candidate teachers = 2000 is impossible.*\n2000 teachers cannot share"),
        (["teachers.nothing=1"], [], "is not a setting"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_a_sentence(project, varied, assignments, message):
    with pytest.raises(SettingError, match=message):
        make_candidates(project, "terrine-digits", assignments, varied)


@pytest.mark.parametrize(
    ("varied", "releases"),
    [
        ("student.l2=0.1,1,null", 1),
        ("student.statistics=current,original", 1),
        ("aggregation.sigma=20,40", 2),
        ("seed=0,1", 2),
        ("partition.teachers=50,60", 2),
        ("teachers.ridge=0.1,0.2", 2),
        ("queries.count=4000,5000", 2),
        ("backbone.projection=500,1000", 2),
    ],
)
def test_candidates_share_a_release_when_only_the_student_differs(project, varied, releases):
    candidates = make_candidates(project, "terrine-digits", [], [varied])
    assert len({candidate.release for candidate in candidates}) == releases


def test_a_sweep_pays_for_each_distinct_release_once_and_says_what_the_ledger_charged(project, stages):
    run_sweep("aggregation.sigma=30,40", "student.l2=1,2")
    result = stages.result
    assert len(result["candidates"]) == 4
    assert len(set(stages.made)) == len(stages.made) == 4
    assert result["releases"] == 2
    ledger, dataset = account_of(project, result["candidates"][0]["run"])
    assert result["epsilon_tuning_composed"] == round_up(ledger.spent(dataset, DELTA))
    assert result["epsilon_tuning_composed"] == round_up(epsilon_of_releases(30, 40))
    assert [row["epsilon"] for row in result["candidates"]] == [
        round_up(epsilon_of_releases(s)) for s in (30, 30, 40, 40)
    ]
    assert selected_run(project) == "terrine-digits"


def test_with_workers_one_candidate_of_each_release_goes_before_those_that_share_it(project, stages, monkeypatch):
    begun = []

    @contextmanager
    def makers(workers):
        def submit(root, run):
            begun.append(run)
            return flows.sweep._here(root, run)

        assert workers == 3
        yield submit

    monkeypatch.setattr(flows.sweep, "run_makers", makers)
    run_sweep("aggregation.sigma=30,40", "student.l2=1,2", workers=3)
    first, second, third, fourth = (row["run"] for row in stages.result["candidates"])
    assert begun == [first, third, second, fourth]


def test_a_search_over_students_alone_is_no_search_over_private_outcomes(project, stages):
    run_sweep("student.l2=1,2,3")
    own = round_up(epsilon_of_releases(30))
    assert stages.result["epsilon_tuning_composed"] == own


def test_a_sweep_that_its_budget_does_not_cover_is_refused_before_anything_is_made(project, stages):
    budget = epsilon_of_releases(30, 40) - 0.01
    assert epsilon_of_releases(30) < budget
    with pytest.raises(
        BudgetError, match=r"2 candidates and needs 2 new releases.*Left: one Gaussian.*Nothing was drawn"
    ):
        run_sweep("aggregation.sigma=30,40", settings=[*PRIVATE, f"ledger.epsilon={budget}"])
    assert stages.made == []
    ledger, dataset = account_of(project, candidates_run(project, budget))
    assert ledger.events(dataset) == []
    assert selected_run(project) == "terrine-digits"


@pytest.mark.parametrize("select", ["none", "evaluation"])
def test_units_are_not_counted_for_a_sweep_that_is_refused(project, select):
    """With partition.teachers=auto, units are counted with noise, which is charged."""
    automatic = ["partition.teachers=auto", "aggregation.sigma=auto", "queries.count=auto", "queries.batch=100"]
    settings = [*PRIVATE, *automatic, f"ledger.epsilon={9 if select == 'none' else 40}"]
    with pytest.raises((BudgetError, SettingError), match="Nothing was drawn" if select == "none" else "no. covered"):
        make_candidates(project, "trial", settings, ["aggregation.epsilon=6,7"], select)
    place = project / "data" / "private" / "ledger"
    ledger = Ledger(f"sqlite:///{place}/ledger.db", place / "releases", load_or_create_key(place / "key"))
    assert "reserve" not in {row.kind for row in ledger.rows()}


def test_the_data_are_looked_at_once_for_all_candidates(project, monkeypatch):
    plain, surveys = Source.survey, []
    monkeypatch.setattr(Source, "survey", lambda *given, **named: surveys.append(given) or plain(*given, **named))
    automatic = ["partition.teachers=auto", "aggregation.sigma=auto", "privacy.units=1400", "ledger.epsilon=99"]
    candidates = make_candidates(project, "trial", [*PRIVATE, *automatic], ["aggregation.epsilon=6,7,8"])
    assert len({candidate.params.aggregation.sigma for candidate in candidates}) == 3
    assert len(surveys) == 1


def candidates_run(root, budget):
    varied = ["aggregation.sigma=30,40"]
    return make_candidates(root, "trial", [*PRIVATE, f"ledger.epsilon={budget}"], varied)[0].run


def test_releases_that_were_made_before_need_no_room(project, stages):
    private = [*PRIVATE, f"ledger.epsilon={epsilon_of_releases(30, 40) + 1e-6}"]
    run_sweep("aggregation.sigma=30,40", "student.l2=1", settings=private)
    run_sweep("aggregation.sigma=30,40", "student.l2=1", settings=private)
    assert len(stages.made) == 2
    run_sweep("aggregation.sigma=30,40", "student.l2=5", settings=private)
    assert len(stages.made) == 4
    with pytest.raises(BudgetError, match="needs 1 new releases"):
        run_sweep("aggregation.sigma=30,50", settings=private)


def test_a_choice_by_accuracy_is_refused_on_data_that_are_not_public(project, stages):
    with pytest.raises(SettingError, match="not covered by any ε"):
        run_sweep("student.l2=1,2", settings=[*PRIVATE, "ledger.epsilon=8"], select="evaluation")
    assert stages.made == []


def test_accuracies_with_noise_are_chosen_by_on_private_data_and_each_is_in_the_price(project, stages):
    private = [*PRIVATE, "ledger.epsilon=8"]
    with pytest.raises(SettingError, match=r"Add --set evaluation\.epsilon"):
        run_sweep("student.l2=1,2", settings=private, select="released")
    run_sweep("student.l2=1,2", settings=[*private, "evaluation.epsilon=0.5"], select="released")
    result = stages.result
    first, second = (row["run"] for row in result["candidates"])
    assert result["selected"] == first
    best = f"Best by accuracy that was released with noise: {first}"
    assert f"{best}." in summary(result), "80 ± 2 % and 70 ± 2 %"
    result["candidates"][1]["released"]["accuracy"] = 0.78
    assert f"{best}, which differs by no more than the noise from {second}." in summary(result)
    assert not any("accuracy" in row for row in result["candidates"])
    assert "80.0 ± 2.0 %" in str(table_cells(result))
    ledger, dataset = account_of(project, second)
    assert len(ledger.events(dataset)) == 3
    assert result["epsilon_tuning_composed"] == round_up(ledger.spent(dataset, DELTA))
    assert result["epsilon_tuning_composed"] == result["epsilon_tuning_composed_worst_case"]
    assert result["releases"] == 1
    assert len(result["candidates"]) == 2


def test_a_count_of_units_that_candidates_share_is_in_the_price_once(project, stages):
    counted = [*PRIVATE, "partition.teachers=auto", "aggregation.epsilon=6", "ledger.epsilon=40"]
    run_sweep("aggregation.sigma=30,40", settings=counted)
    ledger, dataset = account_of(project, stages.result["candidates"][0]["run"])
    assert len(ledger.events(dataset)) == 3
    price = round_up(ledger.spent(dataset, DELTA))
    assert stages.result["epsilon_tuning_composed"] == stages.result["epsilon_tuning_composed_worst_case"] == price


def test_a_choice_by_accuracy_names_the_best_and_says_what_it_leaks(project, stages):
    run_sweep("student.l2=1,3,2", select="evaluation")
    result = stages.result
    assert result["selected"] == result["candidates"][1]["run"]
    assert any("Neither price covers the test records" in line for line in summary(result))
    assert "80.00" in str(table_cells(result))


def test_without_a_choice_nothing_is_chosen_and_private_accuracies_are_not_shown(project, stages):
    run_sweep("student.l2=1,2", settings=[*PRIVATE, "ledger.epsilon=8"])
    assert stages.result["selected"] is None
    assert not any("accuracy" in row for row in stages.result["candidates"])
    assert "accuracy" not in str(table_cells(stages.result)[0])


def test_a_candidate_that_fails_after_its_release_is_paid_for_and_the_others_are_made(project, stages):
    stages.failing = {1.0: InputError("No query was answered.")}
    run_sweep("aggregation.sigma=30", "student.l2=1,2", settings=["seed=7"])
    assert [row["failed"] for row in stages.result["candidates"]] == ["No query was answered.", None]
    assert stages.result["releases"] == 1
    assert any("No query was answered." in line for line in summary(stages.result))


@pytest.mark.parametrize("refusal", [BudgetError("spent by another run."), LedgerError("changed by hand.")])
def test_a_refusal_by_the_ledger_ends_the_sweep(project, stages, refusal):
    stages.failing = {1.0: refusal}
    with pytest.raises(type(refusal), match=str(refusal)):
        run_sweep("student.l2=1,2")
    assert len(stages.made) == 1
    assert selected_run(project) == "terrine-digits"


def test_a_sweep_that_waits_shows_the_requests_of_all_candidates(project, stages):
    stages.failing = {1.0: ApprovalNeeded("request one"), 2.0: ApprovalNeeded("request two")}
    with pytest.raises(ApprovalNeeded, match=r"request one\n\nrequest two\n\nWhen all are decided") as needed:
        run_sweep("student.l2=1,2,3")
    assert needed.value.status == 3
    assert len(stages.made) == 3


def test_a_sweep_without_any_release_has_no_price(project):
    candidates = make_candidates(project, "trial", [], ["student.l2=1,2"])
    failures = {candidate.run: "The file is cut short." for candidate in candidates}
    with pytest.raises(SettingError, match=r"No candidate made its release: The file is cut short\."):
        outcome(project, candidates, failures, "none")


def test_mlflow_has_both_prices_on_the_sweep_and_on_every_candidate(project, stages, monkeypatch):
    from mlflow import MlflowClient

    # Files instead of a database: laying out its tables would take longer than all other tests of this file.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (project / "mlruns").as_uri()
    client = MlflowClient(uri)
    experiment = client.create_experiment("terrine", artifact_location=(project / "mlartifacts").as_uri())
    logged = []

    def log_run(run):
        identity = client.create_run(experiment, run_name=run.name).info.run_id
        write_json(run.folders.private / "tracking.json", {"run_id": identity, "uri": uri})
        logged.append(run.name)
        return identity

    registered = []
    monkeypatch.setattr("tasks.tools.sweep.log_run", SimpleNamespace(fn=log_run))
    monkeypatch.setattr("tasks.tools.sweep.register", lambda run, identity: registered.append((run.name, identity)))
    run_sweep("aggregation.sigma=30,40", settings=[f"tracking.uri={uri}"], select="evaluation")
    result = stages.result
    parent = log_sweep(project, "trial", result)
    assert log_sweep(project, "trial", result) == parent
    runs = [row["run"] for row in result["candidates"]]
    assert logged == runs
    identities = [read_json(Folders(project, run).private / "tracking.json")["run_id"] for run in runs]
    for identity in (parent, *identities):
        metrics = client.get_run(identity).data.metrics
        assert metrics["epsilon_tuning_composed"] == result["epsilon_tuning_composed"]
    for identity in identities:
        assert client.get_run(identity).data.tags["mlflow.parentRunId"] == parent
    assert {item.path for item in client.list_artifacts(parent)} == {"sweep.json"}
    table = client.get_run(parent).data.tags["mlflow.note.content"].splitlines()
    assert table[0] == "| σ | run | release | exact ε | answered | accuracy as served % |"
    assert [line.split(" | ")[1] for line in table[2:4]] == runs
    opened = parse_qs(sweep_view(client, experiment).removeprefix("#/compare-runs?"))
    assert sorted(json.loads(opened["runs"][0])) == sorted(identities)
    assert json.loads(opened["experiments"][0]) == [experiment]
    assert sweep_view(client, client.create_experiment("without a sweep")) is None
    assert client.get_run(parent).data.tags["selected_by_evaluation"] == result["selected"]
    selected = dict(zip(runs, identities, strict=True))[result["selected"]]
    assert registered == [(result["selected"], selected)] * 2
    assert all(is_candidate(open_run(project, run)) for run in runs)


def test_each_candidate_has_a_line_and_an_epsilon_that_stays_below_the_budget_is_explained(project, stages, capsys):
    run_sweep("aggregation.sigma=30,40", "aggregation.epsilon=7,8")
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\d/4  ", line)]
    assert lines[0] == "1/4  σ = 30, ε = 7"
    assert re.fullmatch(r"3/4  σ = 40, ε = 7, about \d+ seconds? left", lines[2])
    assert any("ε stays below aggregation.epsilon in 4 candidates" in line for line in summary(stages.result))
    names = [row["run"] for row in stages.result["candidates"]]
    assert re.fullmatch(r"trial-(epsilon-8-sigma-40|sigma-40-epsilon-8)-[0-9a-f]{8}", names[3])


def test_noise_that_is_the_same_at_every_epsilon_is_noted(project, stages, capsys):
    run_sweep("aggregation.epsilon=6,8")
    assert "Note: all candidates have aggregation.sigma=30" in " ".join(capsys.readouterr().out.split())
    run_sweep("aggregation.epsilon=6,8", "aggregation.sigma=30,40")
    assert "Note: all candidates" not in capsys.readouterr().out


@pytest.mark.parametrize("private", [True, False])
def test_mlflow_is_not_told_why_a_candidate_failed_on_private_data_nor_where_files_lie(
    project, stages, monkeypatch, private
):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (project / "mlruns").as_uri()
    client = MlflowClient(uri)
    experiment = client.create_experiment("terrine", artifact_location=(project / "mlartifacts").as_uri())
    log_run = SimpleNamespace(fn=lambda run: client.create_run(experiment, run_name=run.name).info.run_id)
    monkeypatch.setattr("tasks.tools.sweep.log_run", log_run)
    stages.failing = {2: InputError("class 3 of 17 has one record")}
    settings = [f"tracking.uri={uri}", *([*PRIVATE, "ledger.epsilon=50"] if private else [])]
    run_sweep("student.l2=1,2", "evaluation.subgroups=null,'secret.host:7'", settings=settings)
    log_sweep(project, "trial", stages.result)
    assert "class 3 of 17" in str(stages.result)
    (logged,) = (project / "mlartifacts").rglob("sweep.json")
    (note,) = (project / "mlruns").rglob("mlflow.note.content")
    text = logged.read_text() + note.read_text()
    assert ("class 3 of 17" in text) != private
    assert "secret.host" not in text
    # That it failed may say how many private records there are.
    assert (stages.result["candidates"][2]["run"] in text) != private


def test_the_statements_of_a_search_quote_its_price_and_those_made_before_are_written_anew(stages):
    run_sweep("aggregation.sigma=30")
    run_sweep("aggregation.sigma=30,40")
    first, second = (row["run"] for row in stages.result["candidates"])
    assert stages.restated == [first]
    for run in (first, second):
        known = assurance(open_run(stages.root, run), {})
        assert known["epsilon_tuning"] == stages.result["epsilon_tuning_composed_worst_case"]


def test_of_two_searches_the_dearer_one_counts(stages):
    run_sweep("aggregation.sigma=30,40")
    dear = stages.result["epsilon_tuning_composed_worst_case"]
    run_sweep("aggregation.sigma=30")
    (only,) = (row["run"] for row in stages.result["candidates"])
    assert assurance(open_run(stages.root, only), {})["epsilon_tuning"] == dear
