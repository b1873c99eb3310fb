"""The statement: complete, priced from its event, and closed to data-dependent figures."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from terrine.errors import ArtefactError, SettingError
from terrine.privacy.accounting.events import (
    NonPrivateEvent,
    RepeatedEvent,
    compose,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import About, Examples, Facts
from terrine.privacy.statement import (
    PrivacyStatement,
    PublicInput,
    read_statement,
    released_per_class,
    statement_from,
    summarise,
    write_statement,
)

EVENT = compose(RepeatedEvent(threshold_test(150.0), 640), RepeatedEvent(vote_answer(40.0), 286))


def statement(**changes: Any) -> PrivacyStatement:
    arguments: dict[str, Any] = {
        "run": "diet-pate-mnist",
        "release_id": "0123",
        "dataset": "4567",
        "unit": "record",
        "trust_model": "central",
        "event": EVENT,
        "delta": 1e-5,
        "delta_slack": 1e-20,
        "epsilon_budget": 3.0,
        "epsilon_dataset": 3.5,
        "noise": "secure",
        "mechanism": {"mechanism": "confident", "threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0},
        "teachers": 250,
        "queries": 1000,
        "queried": 640,
        "answered": 286,
        "answered_per_class": (200, 86, 0),
        "partition_digest": "89ab",
        "partition_disjoint": True,
        "public_inputs": (PublicInput("queries", "stylegan, seed 0", "cdef"),),
        "facts": Facts("image", (Examples("programs", 1000),), held_out=True),
        "code_version": "0.1.0",
    }
    return PrivacyStatement(**(arguments | changes))


def test_who_is_protected_at_several_institutions_is_said_and_read_again() -> None:
    mechanism = {"mechanism": "histogram", "sigma": 40.0, "overlap": 2}
    said = statement(mechanism=mechanism, trust_model="parties")
    assert "If at up to 2 of the institutions at once, one record is replaced" in summarise(said)
    assert said.to_dict()["neighbouring"].startswith("at up to 2 of the institutions at once, one record is replaced")
    assert statement_from(json.loads(json.dumps(said.to_dict()))) == said


def test_epsilon_is_what_the_event_costs_rounded_up() -> None:
    content = statement().to_dict()
    assert content["epsilon"] == 2.5427
    assert statement(audit_epsilon=0.71239, audit_confidence=0.95).to_dict()["audit_epsilon"] == 0.7123, "rounded down"
    assert statement().epsilon <= content["epsilon"] <= statement().epsilon + 1e-4
    assert content["private"] is True
    assert content["warning"] is None


def test_the_guarantee_names_all_that_its_epsilon_covers() -> None:
    """ε includes count and moments, so the signed sentence must name more than the answers."""
    plain = {"mechanism": "histogram", "sigma": 40.0}
    both = plain | {"counted": {"units": 1234, "sigma": 9.0}, "moments": {"numbers": 406, "noise_multiplier": 30.0}}
    answers = "This covers noisy votes on 286 of 1,000 queries (640 put to the vote),"
    assert f"{answers} and everything computed from them." in str(statement(mechanism=plain))
    covered = "the noisy number of groups, noisy moments of the private images, and everything computed from them."
    assert f"{answers} {covered}" in str(statement(mechanism=both, unit="group"))
    limited = statement(mechanism=both | {"mechanism": "confident"})
    assert "ε = 2.5427 of it was used" in str(limited)
    assert statement_from(json.loads(json.dumps(limited.to_dict()))) == limited


def test_it_says_everything_that_a_release_must_say() -> None:
    content = statement().to_dict()
    expected = {
        "unit", "neighbouring", "delta", "trust_model", "epsilon", "epsilon_dataset",
        "epsilon_guaranteed", "epsilon_account", "epsilon_budget",
        "epsilon_tuning", "audit_epsilon", "noise", "queries", "queried", "answered", "answered_per_class",
        "partition_digest", "partition_disjoint", "public_inputs", "code_version", "schema_version",
    }  # fmt: skip
    assert expected <= set(content)
    assert "one record is replaced, added or removed" in content["neighbouring"]
    assert content["public_inputs"] == [{"name": "queries", "origin": "stylegan, seed 0", "digest": "cdef"}]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noise": "replay"},
        {"unit": "group", "trust_model": "parties", "epsilon_account": 6.0},
        {"event_added": vote_answer(40.0)},
        {"epsilon_tuning": 4.0, "audit_epsilon": 0.71239, "audit_confidence": 0.95},
        {"event": NonPrivateEvent(), "epsilon_budget": math.inf, "epsilon_dataset": math.inf, "epsilon_claimed": 1.0},
    ],
)
def test_what_was_written_is_read_back(changes: dict[str, Any]) -> None:
    content = json.loads(json.dumps(statement(**changes).to_dict(), allow_nan=False))
    if "event" not in changes:
        assert statement_from(content).to_dict() == content
    assert content["summary"]


def test_what_adding_or_removing_costs_stands_beside_the_guarantee_where_it_is_known() -> None:
    assert not {"event_added", "epsilon_added"} & set(statement().to_dict())
    less = RepeatedEvent(vote_answer(40.0), 71)
    sums = {"mechanism": "gradients", "numbers": 8}
    found = statement(mechanism=sums, event=RepeatedEvent(vote_answer(40.0), 284), event_added=less)
    content = found.to_dict()
    assert content["epsilon_added"] == round_up(price(less, 1e-5)) < content["epsilon"] == content["epsilon_guaranteed"]
    assert f"If a record is only added or removed, as most other tools count, ε = {content['epsilon_added']:g}." in str(
        found
    )
    with pytest.raises(SettingError, match="that do not follow from the rest: epsilon_added"):
        statement_from(json.loads(json.dumps(content | {"epsilon_added": 0.5})))
    with pytest.raises(SettingError, match="unknown fields: epsilon_added"):
        statement_from({name: value for name, value in content.items() if name != "event_added"})
    for wrong in ({"unit": "label"}, {"event": vote_answer(40.0)}):
        with pytest.raises(SettingError, match="add/remove neighbours"):
            replace(found, **wrong)


def test_no_field_can_hold_a_data_dependent_epsilon() -> None:
    names = {field.name for field in fields(PrivacyStatement)}
    assert not [name for name in names if "dependent" in name]
    assert "epsilon" not in names, "the exact figure is computed, never given"
    with pytest.raises(TypeError, match="epsilon_data_dependent"):
        statement(epsilon_data_dependent=1.2)
    with pytest.raises(AttributeError):
        statement().epsilon = 1.2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon_data_dependent": 1.2}, "unknown fields: epsilon_data_dependent"),
        ({"epsilon": 1.2}, "do not follow from the rest: epsilon"),
        ({"private": False}, "do not follow from the rest: private"),
        ({"summary": "All is well."}, "do not follow from the rest: summary"),
        ({"schema_version": 3}, "schema_version is 3; this Terrine reads 1"),
        ({"epsilon_guaranteed": 2.5427}, "do not follow from the rest: epsilon_guaranteed"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: dict[str, Any], message: str) -> None:
    content = statement().to_dict() | change
    with pytest.raises(SettingError, match=message):
        statement_from(content)
    content = statement().to_dict()
    del content["partition_digest"]
    with pytest.raises(SettingError, match="missing fields: partition_digest"):
        statement_from(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "person"}, "unit is one of record, group"),
        ({"noise": "none"}, "noise is one of secure, replay"),
        ({"answered": 700}, "is impossible"),
        ({"answered_per_class": (200, 86, 1)}, "sum to 287"),
        ({"answered_per_class": (287, -1)}, "sum to 286"),
        ({"delta": 0.0}, "not a probability"),
        ({"audit_epsilon": 1.0}, "both a bound and a confidence"),
        ({"run": ""}, "run is missing"),
        *(({name: 1.2}, f"{name}=1.2 is below the exact") for name in ("epsilon_budget", "epsilon_dataset")),
        ({"epsilon_tuning": 1.2}, "epsilon_tuning=1.2 is below the exact"),
        ({"epsilon_account": 3.4}, "budget ε=3.4 is below the used ε=3.5"),
        ({"epsilon_account": 0.0}, "budget ε=0.0 is below the used ε=3.5"),
        (
            {"mechanism": {"sigma": 40.0, "data_dependent_epsilon": 1.2}},
            "data_dependent_epsilon is not a public parameter",
        ),
    ],
)
def test_an_impossible_statement_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        statement(**change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"noise": "replay"}, "replayed from a seed"),
        ({"partition_disjoint": False}, "parts overlap"),
        (
            {"event": NonPrivateEvent(), "epsilon_budget": math.inf, "epsilon_dataset": math.inf},
            "no differential-privacy guarantee",
        ),
    ],
)
def test_what_is_not_private_says_so_everywhere(change: dict[str, Any], reason: str) -> None:
    content = statement(**change).to_dict()
    assert content["private"] is False
    assert content["epsilon_guaranteed"] is None
    for text in (content["warning"], content["summary"]):
        assert text.startswith("NOT PRIVATE")
        assert reason in text
    assert "Differentially private" not in content["summary"]


def test_the_summary_names_the_figures_and_who_is_trusted() -> None:
    text = summarise(statement(mechanism={"mechanism": "gnmax", "sigma": 40.0}))
    assert "answers to 286 of 1,000 queries (640 put to the vote)" in text
    assert "Differentially private with ε = 2.5427 and δ = 1e-05 per record" in text
    assert "no outcome becomes more than 12.72 (e^2.5427) times as probable" in text
    assert "budget" not in text
    assert "so far have used ε = 3.5." in text
    assert "towards everyone except the operator" in text
    parties = summarise(replace(statement(), unit="group", trust_model="parties"))
    assert "the records of one group are replaced" in parties
    assert "everyone except the privacy guardian, even if other parties deviate from the protocol" in parties
    assert "the guardian follows it and does not collude" in parties


@pytest.mark.parametrize("name", ["confident", "interactive"])
def test_where_the_number_of_answers_depends_on_what_is_released_the_budget_is_the_guarantee(name: str) -> None:
    found = statement(mechanism={"mechanism": name})
    assert (found.epsilon_guaranteed, found.to_dict()["epsilon_guaranteed"]) == (3.0, 3.0)
    assert found.to_dict()["epsilon"] == 2.5427
    text = summarise(found)
    assert "Differentially private with ε = 3 and δ = 1e-05" in text
    assert "no outcome becomes more than 20.09 (e^3) times as probable" in text
    assert "ε = 3 is the run's budget, fixed before the first query; ε = 2.5427 of it was used" in text


@pytest.mark.parametrize("name", ["gnmax", "histogram", "lnmax", "annotation", "answers", "labels"])
def test_where_the_number_of_answers_is_fixed_their_exact_cost_is_the_guarantee(name: str) -> None:
    found = statement(mechanism={"mechanism": name})
    assert found.epsilon_guaranteed == found.epsilon
    assert found.to_dict()["epsilon_guaranteed"] == 2.5427


def test_over_all_runs_what_was_used_is_told_from_what_the_account_allows() -> None:
    text = summarise(statement(epsilon_account=6.0))
    assert "so far have used ε = 3.5 of the account's limit, ε = 6." in text
    told = summarise(statement(facts=Facts("image", held_out=True, accuracy_epsilon=0.5)))
    assert "so far have used ε = 3.5, without this run's accuracy, which is charged separately." in told


def test_a_statement_is_read_as_it_was_written_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    path, found = tmp_path / "privacy.json", statement(facts=Facts("image", about=About(purpose="rēsearch")))
    write_statement(path, replace(found, queries=np.int64(1000), facts=Facts("image")))
    write_statement(path, found)
    assert read_statement(path) == found.to_dict()
    path.write_text(path.read_text().replace("2.5427", "1.5427"))
    with pytest.raises(ArtefactError, match="is not what Terrine wrote"):
        read_statement(path)


def test_released_labels_are_counted_by_class_and_unanswered_ones_are_not() -> None:
    assert released_per_class(np.array([0, 2, -1, 2, -1]), 4) == (1, 0, 2, 0)
    assert released_per_class(np.array([], dtype=np.int64), 2) == (0, 0)
