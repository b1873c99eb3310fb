"""Sums over the tables of three parties, from the proposal to predictions."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from tasks.artefacts.features import query_features
from tasks.collaboration.accept import candidate
from tasks.collaboration.finish import PUBLIC, finish_student, finish_teacher
from tasks.collaboration.local_training import open_run, report_source
from tasks.collaboration.proposal import read_proposal, write_proposal
from tasks.collaboration.propose import ProposalOptions, propose
from tasks.collaboration.terms_page import page
from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.keys import create_key
from tasks.serving.verification import verify_statement
from terrine.aggregation.records import Whitening, row_type
from terrine.data.encoding import declare
from terrine.deployment.rows import TableStudent
from terrine.deployment.signature import expected_key
from terrine.errors import InputError, SettingError
from tests.party_trials import Site, plain_answers
from tests.tasks.collaboration.conftest import accept_all

COLUMNS = {"sex": ["Male", "Female"], "age": [17, 90], "code": [1, 2, 3], "hours": [1, 20, 40, 60, 99]}
PRESET = {
    "data": {"name": "table", "path": "nowhere.csv", "target": "income", "columns": COLUMNS, "categorical": ["code"]},
    "queries": {"count": 500},
    "backbone": {"kind": "columns"},
    "teachers": {"optimiser": "ridge", "statistics": "original"},
    "aggregation": {"mechanism": "gradients", "rounds": 3, "epsilon": 6},
    "student": {"kind": "sums"},
    "ledger": {"account": "census", "epsilon": 8},
}
HELD = {"south": 1, "north": 2, "east": 1}


def rows(count, seed):
    """Rows whose income depends on age and sex."""
    generator = np.random.default_rng(seed)
    table = pd.DataFrame({"note": ["x"] * count, "hours": generator.integers(1, 99, count)})
    table["code"] = generator.integers(1, 5, count)  # 4 is unknown
    table["age"] = generator.integers(17, 90, count)
    table["sex"] = generator.choice(["Male", "Female"], count)
    table["income"] = np.where(table["age"] + 15 * (table["sex"] == "Male") > 60, "high", "low")
    return table


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a preset of a table that is not there, and the table of each party."""
    root = tmp_path_factory.mktemp("project")
    (root / "experiments").mkdir()
    (root / "params.yaml").write_text("run: own\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "experiments" / "own.yaml").write_text(yaml.safe_dump(PRESET, sort_keys=False))
    for number, name in enumerate(HELD):
        rows(400, number).to_csv(root / f"{name}.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERRINE_ROOT", str(root))
        yield root


@pytest.fixture(scope="module")
def proposed(project):
    """Propose sums over the parties' tables."""
    places = {"trust": "https://127.0.0.1:7801", "uni": "https://h:7802"}
    lines = [create_key(project / "keys" / name, name, places.get(name)) for name in (*HELD, "trust", "uni")]

    def make(folder, *assignments):
        options = ProposalOptions(lines, HELD, "trust", "uni", class_names=["low", "high"], records=1000)
        return propose(folder, "own", assignments, options)[0]

    return make


@pytest.fixture(scope="module")
def proposal(project, proposed):
    return proposed(project / "proposal")


def records_of(config, vectors):
    """Return a party's training rows as the records that are summed."""
    run = open_run(config.own, config.terms, config.terms.teachers[config.name])
    data = run.params.data.load()
    own = np.empty(len(data.train_labels), row_type(config.terms.length))
    own["vector"] = vectors(data.train_images)
    own["label"] = [config.terms.class_names.index(data.class_names[label]) for label in data.train_labels]
    own["unit"] = np.arange(len(own))
    return own


def test_three_tables_go_from_the_proposal_to_predictions(proposal, project, tmp_path, monkeypatch):
    terms = proposal.terms
    assert list(terms.table.columns) == list(COLUMNS)  # the order of the features
    assert "age: 17, 90" in " ".join(page(terms).split())
    configs = accept_all(proposal, project, tmp_path, lambda name: project / f"{name}.csv")
    Site(tmp_path, terms, report_source, monkeypatch).run()

    # The sums are those of all rows in one place, with the same noise.
    drawn = query_features(open_run(configs["south"].own, terms, 1), "original")
    vectors = Whitening.fit(drawn).vectors
    _, result = plain_answers(terms, {name: records_of(config, vectors) for name, config in configs.items()})
    np.testing.assert_array_equal(read_arrays(read_party(tmp_path / "uni" / "party.yaml"))["result"], result)

    monkeypatch.setattr("tasks.pipeline.mlflow_runs.create_database", lambda _: None)
    done = finish_student(read_party(tmp_path / "uni" / "party.yaml"), None, None, sign=True)
    key = expected_key(str(done.archive.with_name(PUBLIC)))
    checks = {check.what: check.holds for check in verify_statement(done.archive, key)}
    assert False not in checks.values()
    assert checks["signature"]
    statement = json.loads((done.folder.parent / "privacy.json").read_text())
    assert statement["epsilon"] <= 6
    student, fresh = TableStudent.load(done.folder), rows(1000, 9)
    assert student.encoding == declare(COLUMNS, ["code"])
    right = student.answers(fresh.drop(columns="income"))["class"] == fresh["income"]
    assert right.mean() > fresh["income"].value_counts(normalize=True).max() + 0.15
    site_local = finish_teacher(configs["south"], done.archive, None, None)
    assert site_local.evaluation["accuracy"] > 0.75


def test_a_party_whose_table_does_not_fit_the_terms_signs_nothing(proposal, project, tmp_path):
    table, path = rows(100, 0), tmp_path / "own.csv"
    for changed, sentence in (
        (table.drop(columns="hours"), r"own.csv has no column 'hours'; its columns are note, code, age, sex, income"),
        (table.drop(columns="income"), "own.csv has no column 'income'"),
        (table.assign(age="old"), "line 2: 'age' is 'old' .* but the column is numeric"),
        (table.assign(income="rich"), "every row has 'income' rich"),
        (table.assign(income=np.where(table["age"] > 50, "rich", "low")), "agreed classes are 'low', 'high', but"),
    ):
        changed.to_csv(path, index=False)
        with pytest.raises(InputError, match=sentence):
            candidate(proposal, "north", folder=tmp_path, data=path).check_data()
    table.assign(hours="", sex="unknown").to_csv(path, index=False)
    assert not candidate(proposal, "north", folder=tmp_path, data=path).check_data()[1].refusals
    for own, sentence in (
        ("data.target=sex", "own.params.data.target=sex, and the terms say income"),
        ("data.columns={age: [0, 100]}", "own.params.data.columns="),
        ("data.name=folder", "own.params.data.name=folder, and the terms say table"),
        ("data.public_fraction=0.1", "exclude each other"),
        ("data.group=age", "columns has 'age', which is no feature"),
    ):
        with pytest.raises(SettingError, match=sentence):
            candidate(proposal, "north", folder=tmp_path, data=path, assignments=[own]).check_data()


def test_terms_with_other_columns_than_the_drawn_rows_are_refused(proposal, proposed, tmp_path):
    terms, places = proposal.terms, (proposal.folder / "images", proposal.folder / "backbone")
    reordered = dict(reversed(terms.table.columns.items()))
    for number, table in enumerate((None, terms.table.model_copy(update={"columns": reordered}))):
        (folder := tmp_path / str(number)).mkdir()
        with pytest.raises(InputError, match="has other columns than the terms"):
            write_proposal(folder, terms.model_copy(update={"table": table}), *places)
    assert read_proposal(proposal.folder).terms == terms
    other = proposed(tmp_path / "wider", "data.columns.age=[0, 110]").terms
    assert (other.edition, other.identity()) != (terms.edition, terms.identity())
    with pytest.raises(SettingError, match="public rows are of one party"):
        proposed(tmp_path / "public", "data.columns=null", "data.public_fraction=0.1")
    with pytest.raises(SettingError, match=r"columns\.age=\[90, 17\] is neither a lowest and a highest number"):
        proposed(tmp_path / "reversed", "data.columns.age=[90, 17]")
