"""The statement: complete, priced from its event, and closed to data-dependent figures."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    NonPrivateEvent,
    RepeatedEvent,
    compose,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import Examples, Facts
from terrine.privacy.statement import (
    PrivacyStatement,
    PublicInput,
    released_per_class,
    statement_from,
    summary_sentence,
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
        "asked": 640,
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
    assert "with at up to 2 of the institutions at once, any one record exchanged" in summary_sentence(said)
    assert said.to_dict()["neighbouring"].startswith("at up to 2 of the institutions at once, one record replaced")
    assert statement_from(json.loads(json.dumps(said.to_dict()))) == said


def test_epsilon_is_what_the_event_costs_rounded_up() -> None:
    content = statement().to_dict()
    assert content["epsilon"] == 2.5427
    assert statement(audit_epsilon=0.71239, audit_confidence=0.95).to_dict()["audit_epsilon"] == 0.7123, "rounded down"
    assert statement().epsilon <= content["epsilon"] <= statement().epsilon + 1e-4
    assert content["private"] is True
    assert content["warning"] is None


def test_the_guarantee_names_all_that_its_epsilon_covers() -> None:
    """Count and moments are in ε, so the sentence that is signed must not speak of answers alone."""
    plain = {"mechanism": "histogram", "sigma": 40.0}
    both = plain | {"counted": {"units": 1234, "sigma": 9.0}, "moments": {"numbers": 406, "noise_multiplier": 30.0}}
    answers = "These 286 answers, released for 640 of 1000 queries,"
    assert str(statement(mechanism=plain)).startswith(f"{answers} and everything computed from them, are (2.5427,")
    assert str(statement(mechanism=both, unit="group")).startswith(
        f"{answers} the noisy number of groups, the noisy moments of private images, and everything computed from them,"
    )
    limited = statement(mechanism=both | {"mechanism": "confident"})
    assert "all of this used ε=2.5427 of it" in str(limited)
    assert statement_from(json.loads(json.dumps(limited.to_dict()))) == limited


def test_it_says_everything_that_a_release_must_say() -> None:
    content = statement().to_dict()
    expected = {
        "unit", "neighbouring", "delta", "trust_model", "epsilon", "epsilon_dataset",
        "epsilon_guaranteed", "epsilon_account", "epsilon_budget",
        "epsilon_tuning", "audit_epsilon", "noise", "queries", "asked", "answered", "answered_per_class",
        "partition_digest", "partition_disjoint", "public_inputs", "code_version", "schema_version",
    }  # fmt: skip
    assert expected <= set(content)
    assert "one record replaced, added or removed" in content["neighbouring"]
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
    assert f"If records are only added or removed, as most tools count, ε={content['epsilon_added']:g}." in str(found)
    with pytest.raises(SettingError, match="do not follow from the rest: epsilon_added"):
        statement_from(json.loads(json.dumps(content | {"epsilon_added": 0.5})))
    with pytest.raises(SettingError, match="no place in it: epsilon_added"):
        statement_from({name: value for name, value in content.items() if name != "event_added"})
    for wrong in ({"unit": "label"}, {"event": vote_answer(40.0)}):
        with pytest.raises(SettingError, match="adding or removing"):
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
        ({"epsilon_data_dependent": 1.2}, "no place in it: epsilon_data_dependent"),
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
    with pytest.raises(SettingError, match="missing: partition_digest"):
        statement_from(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "person"}, "unit is one of record, group"),
        ({"noise": "none"}, "noise is one of secure, replay"),
        ({"answered": 700}, "cannot be"),
        ({"answered_per_class": (200, 86, 1)}, "sum to 287"),
        ({"answered_per_class": (287, -1)}, "sum to 286"),
        ({"delta": 0.0}, "no probability"),
        ({"audit_epsilon": 1.0}, "a bound and a confidence"),
        ({"run": ""}, "run is missing"),
        *(({name: 1.2}, f"{name}=1.2 is below the exact") for name in ("epsilon_budget", "epsilon_dataset")),
        ({"epsilon_tuning": 1.2}, "epsilon_tuning=1.2 is below the exact"),
        ({"epsilon_account": 3.4}, "budget of ε=3.4 is no limit where ε=3.5 was used"),
        ({"epsilon_account": 0.0}, "budget of ε=0.0 is no limit where ε=3.5 was used"),
        ({"mechanism": {"sigma": 40.0, "data_dependent_epsilon": 1.2}}, "not by data_dependent_epsilon"),
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
    assert "differentially private:" not in content["summary"]


def test_the_summary_names_the_figures_and_who_is_trusted() -> None:
    text = summary_sentence(statement(mechanism={"mechanism": "gnmax", "sigma": 40.0}))
    assert "286 answers, released for 640 of 1000 queries" in text
    assert "(2.5427, 1e-05)-differentially private" in text
    assert "no outcome becomes more than e^2.5427 times as likely" in text
    assert "budget" not in text
    assert "ε=3.5 was used so far. It holds" in text
    assert "one record" in text
    assert "operator of the pipeline" in text
    parties = summary_sentence(replace(statement(), unit="group", trust_model="parties"))
    assert "all records of any one group" in parties
    assert "anyone but the privacy guardian, parties that depart from the protocol included" in parties
    assert "guardian follows it and colludes with no other party" in parties


@pytest.mark.parametrize("name", ["confident", "interactive"])
def test_where_the_number_of_answers_depends_on_what_is_released_the_budget_is_the_guarantee(name: str) -> None:
    found = statement(mechanism={"mechanism": name})
    assert (found.epsilon_guaranteed, found.to_dict()["epsilon_guaranteed"]) == (3.0, 3.0)
    assert found.to_dict()["epsilon"] == 2.5427
    text = summary_sentence(found)
    assert "(3, 1e-05)-differentially private" in text
    assert "no outcome becomes more than e^3 times as likely" in text
    assert "ε=3 is the run's budget, fixed before the first query" in text
    assert "used ε=2.5427 of it" in text


@pytest.mark.parametrize("name", ["gnmax", "histogram", "lnmax", "annotation", "answers", "labels"])
def test_where_the_number_of_answers_is_fixed_their_exact_cost_is_the_guarantee(name: str) -> None:
    found = statement(mechanism={"mechanism": name})
    assert found.epsilon_guaranteed == found.epsilon
    assert found.to_dict()["epsilon_guaranteed"] == 2.5427


def test_over_all_runs_what_was_used_is_told_from_what_the_account_allows() -> None:
    text = summary_sentence(statement(epsilon_account=6.0))
    assert "ε=3.5 was used so far of its account's budget, ε=6" in text


def test_the_relation_is_that_of_names_and_nothing_more() -> None:
    for unit in ("record", "group"):
        content = statement(unit=unit).to_dict()
        assert f"every other {unit} keeping its name and therefore its teacher" in content["neighbouring"]
        assert "counts as two such steps" in content["neighbouring"]
        assert "keeping their names" in content["summary"]
    moved = "; so does one that moves to another party"
    assert moved not in statement().to_dict()["neighbouring"]
    assert moved in statement(facts=Facts("image", by_party=True)).to_dict()["neighbouring"]
    assert "its id, or else its place in the file" in statement(facts=Facts("row")).to_dict()["neighbouring"]
    assert "split in two" in statement(unit="group").to_dict()["neighbouring"]
    assert "the rest of it is not protected" in statement(unit="label").to_dict()["summary"]


def test_released_labels_are_counted_by_class_and_unanswered_ones_are_not() -> None:
    assert released_per_class(np.array([0, 2, -1, 2, -1]), 4) == (1, 0, 2, 0)
    assert released_per_class(np.array([], dtype=np.int64), 2) == (0, 0)
