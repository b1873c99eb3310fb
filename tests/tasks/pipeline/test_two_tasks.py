"""Several tasks about the same people: each has separate releases, never published under other class names."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from flows.stages import run_through
from tasks.config.params import merge_overrides, validate
from tasks.pipeline import aggregate, dataset, sums
from tasks.runtime.accounts import open_account
from tasks.runtime.parameters import survey_data, task_from_survey
from tasks.runtime.releases import identity_in_ledger
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from tasks.runtime.task import load_task
from tasks.serving.verification import verify_statement
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, InputError, LedgerError

COUNT = 120
VALUES = {
    "data": {"name": "folder", "path": "table.csv", "size": 8},
    "privacy": {"anyway": True},
    "partition": {"teachers": 7},
    "queries": {"count": 60, "batch": 30, "sources": {"gaussian": 1}},
    "backbone": {"kind": "scattering", "projection": 10},
    "aggregation": {"mechanism": "moments", "epsilon": 4},
    "student": {"kind": "sums"},
    "ledger": {"account": "patients", "epsilon": 30},
    "device": "cpu",
}
TWO = ("shoe", "no-shoe")
OTHER = ("with-sleeves", "no-sleeves")
THREE = ("bag", "boot", "coat")


def images(root, names=None):
    """Write small images, half of them bright; `names`: the class folder of each."""
    draw = np.random.default_rng(0)
    for number in range(COUNT):
        folder = root / ("images" if names is None else f"folders/{names[number]}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 80, (8, 8)) + 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")


def table(root, labels: Callable[[int], str], name="table.csv", header="path,label", skip=()):
    rows = [f"images/{number:03}.png,{labels(number)}" for number in range(COUNT) if number not in skip]
    (root / name).write_text("\n".join([header, *rows]) + "\n")


def of(names):
    return lambda number: names[number % len(names)]


def run_of(root, name, changes=None):
    return Run(root, name, validate(merge_overrides(VALUES, changes or {})))


def released(run):
    """Make the run up to its student; return its release ID and what its account has charged so far."""
    run_through(run, "dataset", "student")
    ledger, account = open_account(run)
    return read_json(run.folders.statement)["release_id"], len(ledger.events(account))


def student_of(run):
    return StudentModel.load(run.folders.student)


@pytest.fixture
def root(tmp_path):
    images(tmp_path)
    table(tmp_path, of(TWO))
    return tmp_path


@pytest.mark.parametrize("others", [OTHER, THREE, TWO])
@pytest.mark.parametrize("how", ["classes", "edition"])
def test_another_task_of_a_table_of_images_is_charged_and_has_its_own_student(root, others, how):
    first, _ = released(run_of(root, "one"))
    table(root, of(others), "other.csv")
    declared = {"classes": others} if how == "classes" else {"edition": "second"}
    second = run_of(root, "two", {"data": {"path": "other.csv", **declared}})
    other, charged = released(second)
    others = others if how == "classes" else tuple(sorted(others))
    assert other != first
    assert charged == 2
    assert tuple(student_of(second).class_names) == others
    statement = read_json(second.folders.statement)
    assert statement["task"]["names"] == list(others)
    assert statement["task"]["found"] is (how == "edition")
    assert {check.what: check.holds for check in verify_statement(second.folders.release)}["classes"]


@pytest.mark.parametrize("others", [OTHER, THREE])
def test_undeclared_classes_of_another_task_are_refused_before_anything_is_written(root, others):
    released(run_of(root, "one"))
    table(root, of(others), "other.csv")
    run = run_of(root, "two", {"data": {"path": "other.csv"}})
    said = (
        rf"000\.png: the label is '{others[0]}'\. Account patients, edition 1, holds releases for the classes no-shoe, "
        r"shoe\. Correct the label; or, if this is another task, set data\.edition=<name> \(charged separately\) or"
    )
    with pytest.raises(InputError, match=said):
        survey_data(run)
    with pytest.raises(InputError, match=said):
        run_through(run, "dataset", "student")
    assert not run.folders.release.exists()
    assert not run.folders.images.exists()


@pytest.mark.parametrize("others", [OTHER, THREE, (*TWO, "empty")])
def test_class_folders_of_another_task_are_another_release(tmp_path, others):
    changes = {"data": {"path": "folders"}}
    images(tmp_path, [TWO[number % 2] for number in range(COUNT)])
    first, _ = released(run_of(tmp_path, "one", changes))
    shutil.rmtree(tmp_path / "folders")
    images(tmp_path, [others[number % 2] for number in range(COUNT)])
    for name in others:
        (tmp_path / "folders" / name).mkdir(exist_ok=True)
    second = run_of(tmp_path, "two", changes)
    other, charged = released(second)
    assert (other != first, charged) == (True, 2)
    assert student_of(second).class_names == sorted(others)
    assert read_json(second.folders.statement)["task"]["found"] is False


@pytest.mark.parametrize(
    "tasks",
    [
        ({"findings": ["edema", "mass"]}, {"findings": ["mass", "edema"]}),
        ({"findings": ["edema", "mass"]}, {"findings": ["edema", "mass", "effusion"]}),
        ({"grades": ["0", "1"]}, {"grades": ["1", "0"]}),
        ({"grades": ["0", "1"]}, {"grades": ["0", "1", "2"]}),
        ({"grades": ["0", "1"]}, {"classes": ["0", "1"]}),
        ({"bins": [0, 1, 2]}, {"bins": [0, 1, 2, 3]}),
        ({"bins": [0, 1, 2]}, {"bins": [0, 0.5, 2]}),
        ({"bins": [0, 1.0000000001, 2]}, {"bins": [0, 1, 2]}),
    ],
)
def test_findings_grades_and_bins_are_part_of_the_release(root, tasks):
    header = "path,label,edema,mass,effusion"
    table(root, lambda number: f"{number % 2},{number % 2},{(number + 1) % 2},0", header=header)
    runs = [run_of(root, f"run-{place}", {"data": task}) for place, task in enumerate(tasks)]
    identities = [identity_in_ledger(run, "answers", task=task_from_survey(run, survey_data(run))) for run in runs]
    assert identities[0] != identities[1]
    assert identity_in_ledger(runs[0], "units") == identity_in_ledger(runs[1], "units")


def test_grades_after_findings_are_another_release_through_all_stages(root):
    table(root, lambda number: f"{number % 2},{number % 2},{(number + 1) % 2}", header="path,label,edema,mass")
    first, _ = released(run_of(root, "one", {"data": {"findings": ["edema", "mass"]}}))
    second = run_of(root, "two", {"data": {"grades": ["0", "1"]}})
    other, charged = released(second)
    assert (other != first, charged) == (True, 2)
    assert student_of(second).class_names == ["0", "1"]
    with pytest.raises(InputError, match=r"holds releases for the findings edema, mass\. These data declare no find"):
        survey_data(run_of(root, "three"))


TABLE = {
    **{section: VALUES[section] for section in ("privacy", "ledger", "device")},
    "data": {"name": "table", "path": "rows.csv", "public_fraction": 0.3},
    "partition": {"teachers": 5},
    "queries": {"count": 100, "batch": 50},
    "backbone": {"kind": "columns"},
    "teachers": {
        "kind": "estimator",
        "statistics": "original",
        "estimator": {"name": "DecisionTreeClassifier", "options": {"max_depth": 2}},
    },
    "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 4},
    "student": {"statistics": "original", "l2": 0.3},
}


def test_another_target_of_a_table_is_another_release_though_its_classes_have_the_same_names(tmp_path):
    draw = np.random.default_rng(0).integers(0, 90, (600, 2))
    rows = [f"{age},{dose},{'yes' if age > 50 else 'no'},{'yes' if dose > 30 else 'no'}" for age, dose in draw]
    (tmp_path / "rows.csv").write_text("\n".join(["age,dose,ill,dead", *rows]))
    targets = ("ill", "dead")
    runs = [Run(tmp_path, each, validate(merge_overrides(TABLE, {"data": {"target": each}}))) for each in targets]
    identities = [released(run) for run in runs]
    assert identities[0][0] != identities[1][0]
    assert identities[1][1] == 2
    assert [load_task(run).target for run in runs] == ["ill", "dead"]
    assert load_task(runs[0]).names == load_task(runs[1]).names == ("no", "yes")


def test_a_record_with_a_label_of_its_own_decides_nothing_once_the_edition_has_its_classes(root):
    """Neighbouring data, one of which lacks the only record of a class, have one release ID."""
    table(root, lambda number: "rare" if number == 5 else of(TWO)(number))
    first = run_of(root, "one")
    released(first)
    assert load_task(first).names == ("no-shoe", "rare", "shoe")
    table(root, of(TWO), "without.csv", skip=(5,))
    runs = [run_of(root, name, {"data": {"path": f"{name}.csv"}, "seed": 1}) for name in ("table", "without")]
    for run in runs:
        dataset.prepare_dataset.fn(run)
    assert load_task(runs[0]).names == load_task(runs[1]).names == ("no-shoe", "rare", "shoe")
    assert identity_in_ledger(runs[0], "answers") == identity_in_ledger(runs[1], "answers")
    assert identity_in_ledger(runs[0], "answers") != identity_in_ledger(first, "answers")
    assert released(runs[1])[1] == 2
    assert student_of(runs[1]).class_names == ["no-shoe", "rare", "shoe"]
    assert read_json(runs[1].folders.statement)["task"]["found"]


def test_all_records_of_a_class_may_leave(root):
    released(run_of(root, "one"))
    table(root, lambda _: "shoe", "shoes.csv")
    run = run_of(root, "two", {"data": {"path": "shoes.csv"}})
    assert released(run)[1] == 1
    assert load_task(run).names == ("no-shoe", "shoe")


def test_a_declared_list_is_the_list_of_later_runs_that_declare_none(root):
    run_through(declared := run_of(root, "one", {"data": {"classes": [*TWO, "sock"]}}), "dataset", "student")
    again = run_of(root, "two")
    identity, charged = released(again)
    assert charged == 1
    assert identity == read_json(declared.folders.statement)["release_id"]
    assert load_task(again).names == (*TWO, "sock")
    assert read_json(again.folders.statement)["task"]["found"] is False


def test_of_two_first_runs_the_ledger_takes_one_class_list(root):
    table(root, of(THREE), "other.csv")
    one, two = run_of(root, "one"), run_of(root, "two", {"data": {"path": "other.csv"}})
    for run in (one, two):
        run_through(run, "dataset", "pretrain")
    sums.release_sums(one, identity_in_ledger(one, "answers"))
    with pytest.raises(LedgerError, match="has releases for the classes no-shoe, shoe, but these data have bag"):
        sums.release_sums(two, identity_in_ledger(two, "answers"))
    ledger, account = open_account(one)
    assert len(ledger.events(account)) == 1
    assert not two.folders.release.exists()
    ledger.verify()


def test_a_release_is_never_written_under_other_class_names(root, monkeypatch):
    """The last check, where something before it let two tasks share an identity."""
    run = run_of(root, "one")
    released(run)
    wrong = run_of(root, "two")
    run_through(wrong, "dataset", "pretrain")
    manifest = wrong.folders.dataset / "manifest.json"
    monkeypatch.setattr(sums, "load_task", lambda run: replace(load_task(run), names=("no-shoe", "shoe")))
    write_json(manifest, read_json(manifest) | {"class_names": list(OTHER)})
    identity = identity_in_ledger(run, "answers")
    with pytest.raises(ArtefactError, match="is for classes no-shoe, shoe, not for with-sleeves, no-sleeves"):
        sums.release_sums(wrong, identity)
    assert not wrong.folders.release.exists()
    monkeypatch.setattr(sums, "load_task", load_task)
    with pytest.raises(LedgerError, match="was reserved for classes no-shoe, shoe, not for classes with-sleeves"):
        sums.release_sums(wrong, identity)
    assert not wrong.folders.release.exists()


def test_answers_are_never_written_under_other_class_names(root):
    run = run_of(root, "one")
    run_through(run, "dataset", "pretrain")
    release = sums.release_at_price(
        run,
        "a" * 64,
        run.params.aggregation.schedule(0.1).event,
        sums.noise_source(run),
        lambda: {},
        task=load_task(run),
    )
    for wrong in (release, replace(release, task=None)):
        with pytest.raises(ArtefactError, match="Nothing was published"):
            aggregate.write_answers(run, {"class_names": list(OTHER), "classes": 2, "teachers": 5}, wrong, None)
    assert not run.folders.release.exists()


def test_verify_tells_a_student_of_other_classes_than_its_release(root):
    run = run_of(root, "one")
    released(run)
    manifest = read_json(run.folders.student / MANIFEST)
    manifest = {key: value for key, value in manifest.items() if key not in ("files", "seal")}
    write_json(run.folders.student / MANIFEST, seal(run.folders.student, manifest | {"class_names": list(OTHER)}))
    told = {check.what: check for check in verify_statement(run.folders.release)}["classes"]
    assert told.holds is False
    assert told.detail == "The student is for with-sleeves, no-sleeves, and the release is for no-shoe, shoe."


def test_tasks_about_the_same_people_share_the_moments_of_their_images(root):
    changes = {"privacy": {"moments": 0.1}}
    released(run_of(root, "one", changes))
    table(root, of(THREE), "other.csv")
    second = run_of(root, "two", merge_overrides(changes, {"data": {"path": "other.csv", "classes": THREE}}))
    _, charged = released(second)
    assert charged == 3  # moments once, and sums twice
    assert not (second.folders.private / "data_changed_moments.txt").exists()
