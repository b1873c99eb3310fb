"""A trial on the command line: folders for every party, and a flow that runs them as processes."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from flows.collaboration import collaborate
from flows.stages import run_stage
from tasks.artefacts.teachers import read_votes
from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.trial import TrialError
from tasks.runtime.run import open_run
from tasks.runtime.store import read_json
from terrine.errors import SettingError, TerrineError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import mu_squared
from tests.flows.conftest import set_small
from tests.party_processes import start_forked
from tests.party_processes import trial as lay_out_trial


def terrine(*arguments):
    return CliRunner().invoke(app, ["party", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    """Parties are forked from a process that has loaded what they need: tests of trials start programs."""
    for module in ("flows.collaboration", "tasks.parties.trial"):
        monkeypatch.setattr(f"{module}.start_party", start_forked)


@pytest.fixture
def voted(finished):
    return open_run(finished, "small")


@pytest.mark.slow
def test_parties_with_votes_and_one_with_its_own_data_vote_together(voted, prefect_server, tmp_path):
    trial = tmp_path / "trial"
    done = terrine("init", trial, "--parties", 3, "--minimum", 8, "--edition", "first")
    assert done.exit_code == 0, done.output
    assert "3 teacher parties with 12 teachers" in done.output
    terms = read_party(trial / "student" / "party.yaml").terms
    assert (terms.total, terms.minimum, terms.mechanism, terms.edition) == (12, 8, "histogram", "first")
    assert read_party(trial / "guardian" / "party.yaml").ledger.epsilon == voted.params.aggregation.epsilon

    # One has its own data, a copy of the public files, and credentials; the others bring votes.
    own = {
        "params": {"data": {"name": "digits", "size": voted.params.data.size}},
        "images": str(voted.folders.images),
        "backbone": str(voted.folders.backbone),
    }
    path = trial / "party-1" / "party.yaml"
    config = yaml.safe_load(path.read_text())
    del config["votes"], config["unit"]
    path.write_text(yaml.safe_dump(config | {"own": own}))
    votes = np.random.default_rng(0).integers(10, size=(terms.queries, 8))
    np.save(trial / "party-2" / "votes.npy", votes[:, :4])
    np.save(trial / "party-3" / "votes.npy", votes[:, 4:])

    outcome = collaborate(str(trial))
    arrays = read_arrays(read_party(trial / "student" / "party.yaml"))
    assert arrays["result"].shape == (terms.asked, 10)
    assert outcome["guardian"]["asked"] == terms.asked > 20
    assert mu_squared(from_json(outcome["guardian"]["event"])) == pytest.approx(2 * terms.asked / 36)
    assert outcome["guardian"]["noise"] == "secure"
    # All shares are in the sums: with one missing they would be anywhere in the ring, and not votes and noise of σ = 6.
    assert -9 * 6 < arrays["result"].min() < arrays["result"].max() < 12 + 9 * 6
    work = trial / "party-1" / "work" / "data" / "private" / "own"
    assert read_json(work / "votes" / "manifest.json")["teachers"] == 4

    # Again: the stored answers, through the parties' own commands.
    for role in ("student", "guardian"):
        done = terrine("vote", "--config", trial / role / "party.yaml")
        assert done.exit_code == 0
        assert f"{terms.asked} of {terms.asked} queries are answered for ε = " in done.stdout
        assert ("They were before, and nothing is charged now." in done.stdout) == (role == "guardian")
        done = terrine("vote", "--config", trial / role / "party.yaml", "--json")
        assert json.loads(done.stdout[done.stdout.index("{") :])["asked"] == terms.asked
    with pytest.raises(SettingError, match="exists already"):
        raise terrine("init", trial).exception


@pytest.mark.slow
def test_a_trial_that_fails_says_why_in_a_partys_own_words(voted, prefect_server, tmp_path):
    trial = tmp_path / "trial"
    assert terrine("init", trial, "--parties", 2, "--epsilon", 1).exit_code == 0
    for name in ("guardian", "student", "party-1", "party-2"):
        path = trial / name / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"patience": 1.0, "deadline": 1.0}))
        if name.startswith("party"):
            np.save(trial / name / "votes.npy", np.zeros((120, 6), np.uint8))
    with pytest.raises((TrialError, TerrineError), match="past its budget of ε=1"):
        collaborate(str(trial))


def test_status_and_the_next_edition_on_the_command_line(tmp_path):
    lay_out_trial(tmp_path)
    config = ("--config", tmp_path / "guardian" / "party.yaml")
    shown = terrine("status", *config, "--html", tmp_path / "page.html")
    assert shown.exit_code == 0, shown.output
    assert "next: terrine party vote --config" in shown.output
    assert "Who takes part" in (tmp_path / "page.html").read_text()
    again = terrine("again", *config, "--edition", "2", "--yes")
    assert again.exit_code == 0, again.output
    assert "It is another release, and costs again." in again.output
    assert "guardian, guardian: edition 2" in terrine("status", *config).output
    for command, who, sentence in (
        ("finish", "guardian", "A guardian has nothing to finish"),
        ("finish", "party-1", "--student names what the student party handed on"),
        ("teach", "party-1", "nothing is to be taught"),
        ("teach", "student", "this is for a teacher party"),
    ):
        with pytest.raises(SettingError, match=sentence):
            raise terrine(command, "--config", tmp_path / who / "party.yaml").exception


def test_the_end_of_a_session_is_told_in_sentences_with_what_follows(tmp_path, monkeypatch):
    lay_out_trial(tmp_path)
    record = {"counted": ["party-1"], "asked": 20, "answered": 18, "epsilon": 6.0, "delta": 1e-5, "reused": False}
    record |= {"epsilon_total": 5.999999992906993, "epsilon_account": 8.0}
    monkeypatch.setattr("tasks.parties.process.run_party", lambda config, stay: {"guardian": record})
    done = terrine("vote", "--config", tmp_path / "guardian" / "party.yaml")
    assert done.stdout.splitlines()[:3] == [
        "The session is over.",
        "Counted: party-1. Late, or left out: party-2, party-3.",
        "18 of 20 queries are answered for ε = 6 at δ = 1e-05; all releases of the account came to ε = 6 of 8.",
    ]
    assert done.stdout.splitlines()[3].startswith("Next: terrine party vote --config ")
    record["reused"] = True
    again = terrine("vote", "--config", tmp_path / "guardian" / "party.yaml").stdout
    assert "of the account had come to ε = 6 of 8 by then. They were before, and nothing is charged now." in again
    monkeypatch.setattr("tasks.parties.process.run_party", lambda config, stay: {"party": "party-1"})
    assert terrine("vote", "--config", tmp_path / "party-1" / "party.yaml").stdout.startswith("The session is over.\nN")


def test_a_folder_without_parties_is_named(tmp_path):
    from tasks.parties.trial import configs_in

    with pytest.raises(SettingError, match="holds no party"):
        configs_in(tmp_path)


def test_the_report_and_the_run_follow_from_answers_by_parties(project):
    """The whole pipeline with `where: parties`: student, evaluation and report come from what the parties released."""
    set_small(project, aggregation={"where": "parties"}, collaboration={"parties": 3})
    from tasks.pipeline.graph import MAIN

    for stage in MAIN.names:
        run_stage(project, "small", stage)
    run = open_run(project, "small")
    assert read_json(run.folders.statement)["trust_model"] == "parties"
    assert run.folders.evaluation.is_file()
    assert "guardian" in run.folders.report.read_text()
    assert read_votes(run.folders).shape == (120, 12)
