"""The published JSON Schema of privacy.json: complete, closed, and followed by every kind of statement."""

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from jsonschema import ValidationError

from terrine.deployment.signature import Approval
from terrine.privacy.accounting import events
from terrine.privacy.facts import About, Examples, Facts, Origin, Reason, Record, Section, Unprotected, applicable
from terrine.privacy.ledger.task import Task, TaskKind
from terrine.privacy.noise import NoiseKind
from terrine.privacy.statement import MECHANISM_FIELDS, SCHEMA_VERSION, TrustModel, Unit, write_statement
from tests.statement_schema import check_schema, validator
from tests.tasks.reports.test_statement_page import CONTENTS, combinations
from tests.terrine.privacy.test_statement import statement

SCHEMA = validator().schema


def keys(schema: dict[str, Any]) -> set[str]:
    """Return the fields of an object that the schema closes and requires."""
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])
    return set(schema["properties"])


def names(model: type) -> set[str]:
    return {field.name for field in fields(model)}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    null, given = schema["anyOf"]
    assert null == {"type": "null"}
    return given


def test_its_identifier_names_its_version() -> None:
    assert SCHEMA["$id"].endswith(f":{SCHEMA_VERSION}")
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_it_has_every_field_of_a_statement_with_its_values() -> None:
    written, found = statement().to_dict(), SCHEMA["properties"]
    assert set(found) == {*written, "event_added", "epsilon_added"}
    assert set(SCHEMA["required"]) == set(written)
    assert all(part.get("description") for part in found.values())
    for name, kind in (("unit", Unit), ("trust_model", TrustModel), ("noise", NoiseKind)):
        assert found[name]["enum"] == [*get_args(kind), *["not observed"] * (name == "noise")]
    # Plug-ins that other tests load declare more.
    declared = set(found["mechanism"]["properties"])
    assert declared <= MECHANISM_FIELDS
    assert {name for content in CONTENTS.values() for name in content["mechanism"]} <= declared


def test_it_has_every_fact_that_the_table_reads_with_its_values() -> None:
    facts = SCHEMA["properties"]["facts"]
    assert keys(facts) == names(Facts)
    found = facts["properties"]
    assert found["record"]["enum"] == list(get_args(Record))
    for name, key, model, values in (
        ("examples", "origin", Examples, Origin),
        ("unprotected", "why", Unprotected, Reason),
    ):
        assert keys(found[name]["items"]) == names(model)
        assert found[name]["items"]["properties"][key]["enum"] == list(get_args(values))
    assert keys(nullable(found["about"])) == set(About.model_fields)
    task = nullable(SCHEMA["properties"]["task"])
    assert keys(task) == set(Task("1", "classes", ("a",)).to_json())
    assert task["properties"]["kind"]["enum"] == list(get_args(TaskKind))
    assert keys(nullable(SCHEMA["properties"]["approval"])) == names(Approval)

    class Recorded(dict):
        """A statement that notes which of its fields were read."""

        read: set[str]

        def __getitem__(self, key: str) -> Any:
            self.read.add(key)
            return super().__getitem__(key)

    read: set[str] = set()
    for content in CONTENTS.values():
        noted, own = Recorded(content), Recorded(content["facts"])
        noted.read = own.read = read
        noted["facts"] = own
        for section in get_args(Section):
            list(applicable(noted, section))
    assert {"record", "held_out", "declared_units", "about"} <= read
    assert read <= {*found, *SCHEMA["properties"]}


def test_it_has_every_event() -> None:
    kinds = {kind["properties"]["event"]["const"]: keys(kind) - {"event"} for kind in SCHEMA["$defs"]["event"]["oneOf"]}
    models = {name: names(model) for name, model in events._MECHANISMS.items()}
    assert kinds == models | {"repeated": {"of", "count"}, "composed": {"of"}}


def test_every_kind_of_statement_follows_it() -> None:
    for content in CONTENTS.values():
        check_schema(content)
    budgets = {"epsilon_budget": 9.5, "epsilon_dataset": 9.5}
    for facts, unit, kind in combinations():
        check_schema(statement(**budgets, **kind, facts=facts, unit=unit).to_dict())


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon_data_dependent": 0.5},
        {"unit": "person"},
        {"schema_version": 2},
        {"delta": 0},
        {"epsilon": "2.5"},
        {"event": {"event": "gaussian", "sensitivity": 1.0, "sigma": 0.0}},
        {"event": {"event": "repeated", "of": {"event": "free"}, "count": 1}},
        {"event_added": {"event": "non_private"}},
        {"facts": {"record": "image"}},
    ],
)
def test_what_no_statement_contains_does_not_follow_it(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check_schema(statement().to_dict() | changes)


def test_a_statement_that_a_test_writes_is_checked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_statement(tmp_path / "privacy.json", statement())
    monkeypatch.setitem(validator().schema["properties"], "epsilon", {"const": 0})
    with pytest.raises(ValidationError, match="0 was expected"):
        write_statement(tmp_path / "privacy.json", statement())
    assert json.loads((tmp_path / "privacy.json").read_text())["epsilon"] == 2.5427
