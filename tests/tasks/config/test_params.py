"""Parameters are refused with the key, the value and the remedy, or they are right."""

from datetime import date
from pathlib import Path

import pytest
import yaml

from tasks.config.params import Params, merge_overrides, parse_assignment, public_parameters, validate
from tasks.config.sections import LedgerSettings
from tasks.config.values import digest, flat, merge, read_yaml
from terrine.errors import SettingError
from terrine.settings import SiteLocal, sections_of

CONFIDENT = {"mechanism": "confident", "threshold": 111, "sigma1": 30, "sigma2": 15}
GOOD = {"aggregation": {"mechanism": "histogram", "sigma": 20}}


def with_(**sections):
    return merge_overrides(GOOD, sections)


def test_the_projects_own_parameters_are_valid(pytestconfig):
    values = read_yaml(pytestconfig.rootpath / "params.yaml")
    assert (values.pop("run"), bool(values.pop("description"))) == ("terrine-digits", True)
    assert validate(values).aggregation.sigma > 0


@pytest.mark.parametrize(
    ("overrides", "key", "value", "remedy"),
    [
        ({"aggregation": {"epsilonn": 2}}, "aggregation.epsilonn", "", "Known here: mechanism"),
        ({"aggregation": {"sigma": 0}}, "aggregation.sigma", "0", "greater than 0"),
        ({"aggregation": {"sigma": "much"}}, "aggregation.sigma", "much", "valid number"),
        ({"aggregation": {"epsilon": 1000}}, "aggregation.epsilon", "1000", "Ask for at most 51"),
        ({"aggregation": {"delta": 1.5}}, "aggregation.delta", "1.5", "less than 1"),
        ({"partition": {"teachers": 1}}, "partition.teachers", "1", "greater than or equal to 2"),
        ({"queries": {"batch": 1}}, "queries.batch", "1", "Raise queries.batch"),
        ({"queries": {"count": 1}}, "queries.count", "1", "Raise queries.count"),
        ({"queries": {"select": "uncertain"}}, "queries.select", "uncertain", "Set queries.rounds to 2 or more"),
        ({"data": {"size": 4}}, "data.size", "4", "greater than or equal to 8"),
        ({"data": {"channels": 4}}, "data.channels", "4", "1 or 3"),
        ({"backbone": {"kind": "resnet18"}}, "pretraining.images", "", "Set pretraining.images.count"),
        ({"teachers": {"statistics": "running"}}, "teachers.statistics", "running", "'original' or 'halfway'"),
        ({"data": {"size": 1}, "queries": {"count": 0}}, "data.size", "queries.count", "greater than or equal to 1"),
        ({"aggregation": {"sigma1": 30}}, "aggregation.sigma1=30", "", "has no meaning for mechanism=histogram"),
        (
            {"aggregation": CONFIDENT, "partition": {"teachers": 50}},
            "aggregation.threshold=111",
            "is above",
            "partition.teachers=50",
        ),
        ({"runner": {"address": "tcp://x:1"}}, "runner.address", "tcp://x:1", "runner.kind=dask"),
        ({"data": {"public_benchmark": False}}, "ledger.epsilon", "", "Set ledger.epsilon"),
        ({"data": {"public_benchmark": False}, "ledger": {"epsilon": 1}}, "ledger.account", "", "Set ledger.account"),
        ({"data": {"name": "imagenet"}}, "data.name", "imagenet", "Known: bloodmnist"),
        ({"data": {"name": "npz", "path": "x"}}, "ledger.epsilon", "npz", "Set ledger.epsilon"),
        ({"data": {"name": "mnist", "path": "x"}}, "data.path", "name=mnist", "Remove it"),
        ({"data": {"name": "npz", "path": "x", "public_benchmark": True}}, "data.public_benchmark", "true", "npz"),
        (
            {"data": {"name": "npz", "path": "x", "plane": "axial"}},
            "data.plane",
            "name=npz",
            "belongs to nifti. Remove",
        ),
        ({"data": {"edition": ""}}, "data.edition", "", "at least 1 character"),
        ({"data": {"edition": 2026.1}}, "data.edition", "2026.1", "into quotes: --set 'data.edition=\"...\"'"),
        ({"data": {"name": "npz"}}, "data.path", "", "Set data.path"),
        ({"data": {"name": "npz", "path": None}}, "data.path is empty", "", "Set data.path"),
        (
            {"data": {"name": "folder", "path": "x", "classes": [0, 1, 2]}, "ledger": {"epsilon": 1, "account": "a"}},
            "data.classes: ",
            "",
            'into quotes: --set \'data.classes=["...", "..."]\'',
        ),
        ({"data": {"name": "npz", "path": "x"}, "ledger": {"epsilon": 2}}, "ledger.account", "", "Set ledger.account"),
        (
            {
                "data": {"public_benchmark": False},
                "ledger": {"epsilon": 1, "account": "trial"},
                "tracking": {"private_metrics": True},
            },
            "tracking.private_metrics",
            "true",
            "Remove it",
        ),
    ],
)
def test_an_impossible_setting_is_named_with_its_value_and_a_remedy(overrides, key, value, remedy):
    with pytest.raises(SettingError) as caught:
        validate(with_(**overrides))
    message = str(caught.value)
    assert key in message
    assert value in message
    assert remedy in message


@pytest.mark.parametrize(
    ("data", "public"),
    [
        ({}, True),
        ({"name": "bloodmnist"}, True),
        ({"name": "bloodmnist", "public_benchmark": None}, True),
        ({"public_benchmark": True}, True),
        ({"public_benchmark": False}, False),
        ({"name": "npz", "path": "arrays"}, False),
        ({"name": "folder", "path": "images"}, False),
    ],
)
def test_data_are_public_where_their_name_is_a_known_benchmark_and_nobody_said_otherwise(data, public):
    params = validate(with_(data=data, ledger={"epsilon": 3, "account": 2026, "key": 2024}))  # YAML's numbers are names
    assert params.ledger == LedgerSettings(epsilon=3, account="2026", key=Path("2024"))
    assert params.data.public_benchmark is public
    assert params.tracking.private_metrics is public
    assert validate(params.model_dump(mode="json")) == params


def test_private_figures_may_be_kept_back_of_a_benchmark_and_are_of_a_teacher_from_a_file():
    assert validate(with_(tracking={"private_metrics": False})).tracking.private_metrics is False
    foreign = {"annotation": {"sigma": 300.0}, "teacher": {"file": "model.pt"}}
    params = validate(with_(transcription=foreign, ledger={"epsilon": 3, "account": "trial"}))
    assert params.data.public_benchmark is True
    assert params.tracking.private_metrics is False


def test_every_path_and_address_is_marked_as_staying_at_home():
    """A parameter of these types or names that is added without the mark would be published with every run."""

    def fields(section, prefix=""):
        for name, field in section.model_fields.items():
            inner = sections_of(field)
            for section_inside in inner:
                yield from fields(section_inside, f"{prefix}{name}.")
            yield from [] if inner else [(f"{prefix}{name}", field)]

    marked = {key for key, field in fields(Params) if any(isinstance(mark, SiteLocal) for mark in field.metadata)}
    named = {"path", "root", "file", "url", "uri", "key", "store", "account", "address", "weights"}
    for key, field in fields(Params):
        if "Path" in str(field.annotation) or key.rsplit(".", 1)[-1] in named:
            assert key in marked, key
    assert {"runner.address"} <= marked


def test_what_stays_at_home_is_absent_from_the_public_parameters_and_the_rest_is_there():
    given = {
        "data": {"name": "folder", "path": "cells", "edition": "2026-03"},
        "ledger": {"account": "clinic", "epsilon": 3},
        "runner": {"kind": "dask", "address": "tcp://10.0.0.7:8786"},
        "backbone": {"kind": "timm", "architecture": "resnet10t", "weights": "lab/weights.pt"},
    }
    public = public_parameters(validate(with_(**given)))
    assert not {"path", "root"} & set(public["data"])
    assert public["data"]["edition"] == "2026-03"
    assert public["ledger"] == {"epsilon": 3}
    assert public["runner"] == {"kind": "dask", "workers": None}
    assert "weights" not in public["backbone"]
    assert not [value for value in flat(public).values() if str(value) in ("cells", "clinic", "lab/weights.pt")]
    timm = merge(given, {"backbone": {"weights": "timm"}})
    assert public_parameters(validate(with_(**timm)))["backbone"]["weights"] == "timm"


@pytest.mark.parametrize(("given", "edition"), [(2, "2"), ("2", "2"), (date(2026, 3, 1), "2026-03-01")])
def test_an_edition_is_a_name_even_where_yaml_sees_a_number(given, edition):
    assert validate(with_(data={"edition": given})).data.edition == edition
    assert validate(GOOD).data.edition == "1"
    assert validate(GOOD).ledger.epsilon is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aggregation.epsilon=2", {"aggregation": {"epsilon": 2}}),
        ("aggregation.delta=1e-6", {"aggregation": {"delta": 1e-6}}),
        ("data.path=/tmp/a=b", {"data": {"path": "/tmp/a=b"}}),
        ("queries.sources={dead_leaves: 2}", {"queries": {"sources": {"dead_leaves": 2}}}),
        ("student.l2=null", {"student": {"l2": None}}),
        ("data.edition='2'", {"data": {"edition": "2"}}),
        ("data.classes=[no, yes]", {"data": {"classes": ["no", "yes"]}}),
        ("privacy.anyway=true", {"privacy": {"anyway": True}}),
    ],
)
def test_an_assignment_is_read_as_yaml(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["epsilon", "=3", "a..b=1", "a.b={"])
def test_an_assignment_that_is_none_is_refused(text):
    with pytest.raises(SettingError, match="--set"):
        parse_assignment(text)


def test_sources_are_replaced_whole_and_sections_are_laid_over():
    base = {"queries": {"count": 5, "sources": {"a": 1, "b": 1}}}
    assert merge(base, {"queries": {"sources": {"c": 1}}}) == {"queries": {"count": 5, "sources": {"c": 1}}}


def test_equal_parameters_have_equal_digests():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(validate(GOOD)) == digest(validate(yaml.safe_load(yaml.safe_dump(GOOD))))
    assert digest(validate(GOOD)) != digest(validate(with_(seed=1)))


def test_a_file_that_is_no_mapping_is_refused(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("- 1\n")
    with pytest.raises(SettingError, match="must contain a mapping"):
        read_yaml(path)
    path.write_text("a: [")
    with pytest.raises(SettingError, match="cannot be read as YAML"):
        read_yaml(path)


def test_a_key_that_occurs_twice_is_refused(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: 0\nrelease: {approval: required}\nrelease:\n  approval: none\n")
    with pytest.raises(SettingError, match="the key 'release' occurs twice"):
        read_yaml(path)


def test_rows_alone_are_not_protected_where_whose_they_are_decides_what_is_public():
    """A row that is exchanged for another person's would be among the queries, in the clear."""
    table = {"name": "table", "path": "rows.csv", "target": "ill", "public_fraction": 0.2, "group": "person"}
    of_people = with_(data=table, backbone={"kind": "columns"}, ledger={"account": "rows", "epsilon": 8})
    with pytest.raises(SettingError, match=r"could be published. Set privacy\.unit=group"):
        validate(of_people)
    validate(merge_overrides(of_people, {"privacy": {"unit": "group"}}))


def test_a_list_without_its_invalid_items_is_not_also_too_short():
    data = {"name": "folder", "path": "x", "classes": [0, 1, 2]}
    with pytest.raises(SettingError) as caught:
        validate(with_(data=data, ledger={"epsilon": 1, "account": "a"}))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(SettingError, match="at least 2 items"):
        validate(with_(data=data | {"classes": ["a"]}, ledger={"epsilon": 1, "account": "a"}))
