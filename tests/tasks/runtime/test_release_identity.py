"""Release IDs depend on public facts only, and not on settings that do not affect the release."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.config.params import FAMILIES, Params, validate
from tasks.config.values import merge
from tasks.pipeline.graph import MAIN
from tasks.runtime.release_identity import (
    _ELSEWHERE,
    _TASK,
    _UPSTREAM,
    OF_TASK,
    compute_identity,
    release_digest,
    upstream,
)
from tasks.runtime.run import Run
from terrine.privacy.ledger.task import Task
from terrine.settings import sections_of

DEFAULTS = Path(__file__).parent / "identity_defaults.json"
SECURE = {"kind": "secure"}
TASK = Task("1", "classes", ("shoe", "no-shoe"))
OWN = {
    "data": {"name": "npz", "path": "people.npz", "public_benchmark": False},
    "aggregation": {"mechanism": "histogram", "sigma": 20},
    "ledger": {"account": "people", "epsilon": 8},
}
TRANSCRIBED = merge(OWN, {"transcription": {"annotation": {"sigma": 10}}})
LABELS = merge(OWN, {"transcription": {"protect": "labels", "annotation": {"epsilon": 2}}})
AVERAGED = merge(OWN, {"teachers": {"kind": "averaged", "clip": 1.0, "budget_share": 0.5}})


def run_with(root, values, changes=None):
    return Run(root, "run", validate(merge(values, changes or {})))


def identity(root, values, changes=None, kind="answers", index=(), account="account", noise=SECURE, task=TASK):
    return compute_identity(run_with(root, values, changes), account, noise, kind, *index, task=task)


PRICED = merge(OWN, {"evaluation": {"epsilon": 0.5}})
SHARED = [
    (OWN, "answers", {"student": {"l2": 1.0}}),
    (OWN, "answers", {"data": {"path": "moved/people.npz"}}),
    (OWN, "answers", {"teachers": {"per_task": 3}}),
    (OWN, "answers", {"runner": {"kind": "processes"}}),
    (OWN, "answers", {"tracking": {"experiment": "another"}}),
    (OWN, "answers", {"device": "cpu"}),
    (OWN, "answers", {"ledger": {"epsilon": 9}}),
    (OWN, "answers", {"collaboration": {"parties": 3}}),
    (OWN, "answers", {"queries": {"batch": 500}}),
    (OWN, "answers", {"evaluation": {"epsilon": 0.5}}),
    (AVERAGED, "averages", {"aggregation": {"sigma": 21}}),
    (TRANSCRIBED, "annotations", {"transcription": {"student": {"final_steps": 5}}}),
    (TRANSCRIBED, "annotations", {"transcription": {"epsilon": 9}}),
    (TRANSCRIBED, "annotations", {"teachers": {"ridge": 0.2}}),
    (LABELS, "labels", {"seed": 1}),
    (LABELS, "labels", {"data": {"size": 32, "channels": 3}}),
    (LABELS, "labels", {"transcription": {"iterations": 5}}),
    (LABELS, "labels", {"partition": {"teachers": 4}}),
    (PRICED, "accuracy", {"device": "cpu"}),
    (PRICED, "accuracy", {"tracking": {"experiment": "another"}}),
    (PRICED, "accuracy", {"evaluation": {"specificity": 0.95}}),
]
OTHER = [
    (OWN, "answers", {"teachers": {"ridge": 0.2}}),
    (OWN, "answers", {"data": {"edition": "2"}}),
    (OWN, "answers", {"data": {"size": 32}}),
    (OWN, "answers", {"data": {"test_fraction": 0.3}}),
    (OWN, "answers", {"partition": {"teachers": 51}}),
    (OWN, "answers", {"privacy": {"unit": "group"}}),
    (OWN, "answers", {"queries": {"count": 3999}}),
    (OWN, "answers", {"backbone": {"projection": 999}}),
    (OWN, "answers", {"aggregation": {"sigma": 21}}),
    (OWN, "answers", {"aggregation": {"epsilon": 7}}),
    (OWN, "answers", {"aggregation": {"where": "parties"}}),
    (OWN, "answers", {"seed": 1}),
    (AVERAGED, "averages", {"aggregation": {"epsilon": 7}}),
    (TRANSCRIBED, "annotations", {"transcription": {"iterations": 5}}),
    (TRANSCRIBED, "annotations", {"transcription": {"student": {"steps": 2}}}),
    (TRANSCRIBED, "annotations", {"transcription": {"teacher": {"epochs": 3}}}),
    (TRANSCRIBED, "annotations", {"seed": 1}),
    (LABELS, "labels", {"transcription": {"annotation": {"epsilon": 3}}}),
    (LABELS, "labels", {"data": {"edition": "2"}}),
    (PRICED, "accuracy", {"student": {"l2": 1.0}}),
    (PRICED, "accuracy", {"evaluation": {"epsilon": 0.6}}),
    (PRICED, "accuracy", {"aggregation": {"sigma": 21}}),
    (PRICED, "accuracy", {"data": {"edition": "2"}}),
]


@pytest.mark.parametrize(("values", "kind", "change"), [*SHARED, *OTHER])
def test_a_release_is_another_exactly_if_something_upstream_of_it_changes(tmp_path, values, kind, change):
    shared = (values, kind, change) in SHARED
    assert (identity(tmp_path, values, change, kind=kind) == identity(tmp_path, values, kind=kind)) == shared


def test_where_the_files_of_a_benchmark_lie_changes_nothing(tmp_path):
    named = [{"name": "mnist"}, {"name": "mnist", "root": "elsewhere", "download": False}]
    first, second = (identity(tmp_path, {"data": data, "aggregation": OWN["aggregation"]}) for data in named)
    assert first == second


def test_account_noise_kind_and_number_of_a_release_are_in_its_identity(tmp_path):
    identities = {
        identity(tmp_path, AVERAGED),
        identity(tmp_path, AVERAGED, account="other"),
        identity(tmp_path, AVERAGED, noise={"kind": "replay", "seed": 1}),
        identity(tmp_path, AVERAGED, kind="averages", index=(0,)),
        identity(tmp_path, AVERAGED, kind="averages", index=(1,)),
    }
    assert len(identities) == 5


def test_no_file_of_the_run_is_looked_at(tmp_path):
    """There are no votes, partition or dataset here."""
    for kind, values in (("answers", OWN), ("averages", AVERAGED), ("annotations", TRANSCRIBED), ("labels", LABELS)):
        assert len(identity(tmp_path, values, kind=kind)) == 64
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["key"]


@pytest.mark.parametrize(
    "other",
    [
        Task("1", "classes", ("with-sleeves", "no-sleeves")),
        Task("1", "classes", ("no-shoe", "shoe")),
        Task("1", "classes", ("shoe", "no-shoe", "sock")),
        Task("1", "classes", ("shoe, no-shoe", "")),
        Task("1", "findings", ("shoe", "no-shoe")),
        Task("1", "grades", ("shoe", "no-shoe")),
        Task("1", "bins", ("shoe", "no-shoe"), (0.0, 1.0, 2.0)),
        Task("1", "classes", ("shoe", "no-shoe"), target="footwear"),
    ],
)
@pytest.mark.parametrize("kind", ["answers", "averages", "annotations", "labels", "accuracy"])
def test_what_depends_on_labels_is_another_release_for_another_task(tmp_path, kind, other):
    values = {"answers": OWN, "averages": AVERAGED, "annotations": TRANSCRIBED, "labels": LABELS, "accuracy": OWN}[kind]
    assert kind in OF_TASK
    known = identity(tmp_path, values, kind=kind)
    assert identity(tmp_path, values, kind=kind, task=other) != known
    assert identity(tmp_path, values, kind=kind, task=replace(TASK, found=True)) == known


@pytest.mark.parametrize("kind", ["units", "moments"])
def test_tasks_about_the_same_people_share_what_depends_on_no_label(tmp_path, kind):
    own, other = {"data": {"findings": ["a", "b"]}}, {"data": {"grades": ["low", "high"]}}
    assert kind not in OF_TASK
    assert identity(tmp_path, OWN, own, kind=kind, task=None) == identity(tmp_path, OWN, other, kind=kind, task=None)


def test_a_declared_task_is_the_release_of_an_undeclared_one_with_the_same_names(tmp_path):
    declared = {"data": {"classes": ["shoe", "no-shoe"]}}
    assert identity(tmp_path, OWN, declared) == identity(tmp_path, OWN)
    assert release_digest(run_with(tmp_path, OWN, declared).params) != release_digest(run_with(tmp_path, OWN).params)


def test_a_setting_that_is_new_changes_no_identity(tmp_path):
    """A field added with its default is not dumped, so yesterday's release is still found."""
    params = run_with(tmp_path, OWN).params
    newer = type("Newer", (type(params.teachers),), {"__annotations__": {"something": int}, "something": 3})
    values = params.teachers.model_dump()
    with_new = params.model_copy(update={"teachers": newer(**values)})
    assert "something" in with_new.teachers.model_dump()
    assert upstream(with_new, "answers") == upstream(params, "answers")
    changed = params.model_copy(update={"teachers": newer(**values, something=4)})
    assert release_digest(changed) != release_digest(params)


def test_every_section_that_a_stage_up_to_the_release_reads_is_part_of_its_identity():
    known = {"seed", *_UPSTREAM["answers"]}
    for stage in MAIN.between("dataset", "aggregate"):
        assert stage.sections - {"about"} <= known, stage.name  # the operator's texts for the statement


def defaults(section, prefix):
    """Every default of a section and those in it, as JSON values; a default that is a section is looked into.

    A default that differs between kinds is listed for each.
    """
    found = {}
    for name, field in section.model_fields.items():
        family = FAMILIES.get(f"{prefix}{name}")
        each = {kind: defaults(kind, f"{prefix}{name}.") for kind in sections_of(field)}
        for kind, own in each.items():
            for key, value in own.items():
                alike = all(other.get(key, value) == value for other in each.values())
                found[key if alike else f"{key} of {kind.__name__}"] = value
        if family is not None:
            of_kinds = f"{prefix}{name}.{family.key} of "
            found = {key: value for key, value in found.items() if not key.startswith(of_kinds)}
            found[f"{prefix}{name}.{family.key}"] = family.default
        elif not each and not field.is_required():
            found[f"{prefix}{name}"] = json.loads(json.dumps(field.get_default(call_default_factory=True), default=str))
        elif each and not field.is_required() and field.get_default() is None:
            found[f"{prefix}{name}"] = None
    return found


def test_a_default_upstream_of_a_release_never_changes():
    """Settings at their default are left out of an identity: another default would be taken for the old one.

    A new setting is added to the file with its default.
    """
    now = defaults(Params, "")
    upstream_keys = {"seed"} | {name for names in _UPSTREAM.values() for name in names}
    elsewhere = {f"{section}.{key}" for section, keys in _ELSEWHERE.items() for key in keys}
    elsewhere |= {f"data.{key}" for key in _TASK}
    now = {key: value for key, value in now.items() if key.split(".")[0] in upstream_keys and key not in elsewhere}
    assert json.loads(DEFAULTS.read_text()) == now
