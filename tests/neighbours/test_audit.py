"""`terrine audit --neighbours`: neighbours of a run's own data, and faults that are put back."""

import json
import shutil

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from flows.cli import audit
from flows.cli.audit import vote_again
from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.artefacts.teachers import read_votes
from tasks.auditing.neighbours import audit_neighbours, neighbour
from tasks.auditing.shadow_runs import units_of
from tasks.config.params import merge_overrides, validate
from tasks.runtime.run import Run
from tasks.runtime.store import write_text
from terrine.errors import SettingError
from tests.neighbours import worlds
from tests.neighbours.faults import FAULTS, SECTIONS
from tests.neighbours.formats import FORMATS
from tests.neighbours.kinds import KINDS
from tests.neighbours.runs import files, made, settle

FORM = FORMATS["npz with ids"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run on private data with all inputs of an audit."""
    run = settle(tmp_path_factory.mktemp("own"), FORM, worlds.base())
    run_through(run, "dataset", "pretrain")
    return run


def with_sections(run: Run, **sections) -> Run:
    """Return the same run with other settings of its teachers."""
    return Run(run.root, run.name, validate(merge_overrides(run.params.model_dump(mode="json"), sections)))


@pytest.mark.parametrize("unit", ["record", "group"])
def test_no_unit_of_the_data_moves_two_teachers_and_nothing_is_left_behind(prepared, unit):
    run, before = with_sections(prepared, privacy={"unit": unit}), files(prepared.root)
    told = []
    result = audit_neighbours(run, vote_again, 3, lambda share, text: told.append((share, text)))
    assert [entry["step"] for entry in result["steps"]] == ["exchanged", "left out"] * 3
    assert {entry["teachers"] for entry in result["steps"]} == {1}
    assert sum(entry["votes"] for entry in result["steps"]) > 0
    assert not result["caught"]
    assert told[0] == (0, "world 1 of 7")
    assert len(told) == 7
    assert files(prepared.root) == before


def test_teachers_that_learned_from_released_averages_are_audited_from_these(tmp_path):
    run = settle(tmp_path, FORM, worlds.base(), **KINDS["averaged, private"])
    made(run)
    before = files(run.root)
    result = audit_neighbours(run, vote_again, 2)
    assert {entry["teachers"] for entry in result["steps"]} == {1}
    assert files(run.root) == before


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_back_is_found(prepared, monkeypatch, fault):
    run = with_sections(prepared, **SECTIONS.get(fault, {}))
    FAULTS[fault](monkeypatch)
    result = audit_neighbours(run, vote_again, 1)
    assert result["caught"]
    assert result["most"] == max(entry["teachers"] for entry in result["steps"]) > 1
    assert not (run.folders.work / "neighbours").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_back_shows_in_a_pair_of_worlds(tmp_path, monkeypatch, fault):
    sections = SECTIONS.get(fault, {})
    unit = sections.get("privacy", {}).get("unit", "record")
    FAULTS[fault](monkeypatch)
    world = worlds.base()
    before = made(settle(tmp_path / "before", FORM, world, **sections))
    one = "r071" if unit == "record" else "person 02"
    removed = worlds.STEPS[unit]["removed"].make(world, unit, one, FORM.positional, FORM.classes)
    assert len(before.moved(made(settle(tmp_path / "after", FORM, removed, **sections)))) > 1


def test_an_audit_that_is_interrupted_leaves_nothing_behind(prepared):
    before = files(prepared.root)

    def interrupted(scratch):
        vote_again(scratch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_neighbours(prepared, interrupted, 1)
    assert files(prepared.root) == before


def test_where_the_same_training_twice_differs_nothing_is_claimed(prepared):
    shifts = iter([0, 1, 2, 1])

    def unsteady(scratch):
        vote_again(scratch)
        votes = (read_votes(scratch.folders) + next(shifts)) % 3
        np.save(scratch.folders.votes / "votes.npy", votes)

    with pytest.raises(SettingError, match=r"Trained twice on the same data on device=auto, 8 teachers differ"):
        audit_neighbours(prepared, unsteady, 1)


@pytest.mark.parametrize("count", [0, 10_000])
def test_a_count_that_the_data_cannot_serve_is_refused(prepared, count):
    with pytest.raises(SettingError, match=r"Ask for 1 to \d+ of them"):
        audit_neighbours(prepared, vote_again, count)


@pytest.mark.parametrize("unit", ["record", "group"])
def test_a_neighbour_has_other_contents_behind_one_name_and_its_records_in_the_order_of_labels(prepared, unit):
    """Against a plain loop over a map from names to contents."""
    run = with_sections(prepared, privacy={"unit": unit})
    dataset = read_dataset(run.folders)
    units = units_of(dataset, run.params)
    contents: dict[int, list] = {}
    for number, image, label in zip(units, np.asarray(dataset.train_images), dataset.train_labels, strict=True):
        contents.setdefault(int(number), []).append((image.tobytes(), int(label)))
    codes = dataset.record_names if unit == "record" else dataset.train_groups
    name_of = {int(number): int(code) for number, code in zip(units, codes, strict=True)}
    for one, other in ((0, 5), (7, 2), (3, None), (None, None)):
        expected = {name_of[number]: sorted(held) for number, held in contents.items()}
        if one is not None:
            del expected[name_of[one]]
        if other is not None:
            expected[name_of[one]] = sorted(contents[other])
        made = neighbour(dataset, units, one, other)
        found: dict[int, list] = {}
        codes = made.record_names if unit == "record" else made.train_groups
        for code, image, label in zip(codes, made.train_images, made.train_labels, strict=True):
            found.setdefault(int(code), []).append((image.tobytes(), int(label)))
        assert {code: sorted(held) for code, held in found.items()} == expected
        assert (np.diff(made.train_labels) >= 0).all()


@pytest.fixture
def command(prepared, tmp_path, monkeypatch):
    """`terrine audit` on a copy of the run."""
    root = tmp_path / "own"
    shutil.copytree(prepared.root, root)
    run = Run(root, prepared.name, prepared.params)
    (root / "params.yaml").write_text(f"run: {run.name}\n")
    write_text(run.folders.parameters, yaml.safe_dump(run.params.model_dump(mode="json")))
    monkeypatch.setenv("TERRINE_ROOT", str(root))
    app = typer.Typer()
    app.command()(audit.audit)
    return lambda *arguments: CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_the_command_counts_moved_teachers_of_the_selected_run(command):
    result = command("--neighbours", "2", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["most"] == 1


def test_the_command_fails_with_a_clear_sentence_where_a_unit_moves_two_teachers(command, monkeypatch):
    FAULTS["a deal by place"](monkeypatch)
    result = command("--neighbours", "1", "--run", "harness")
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "One record changed " in words
    assert "Publish nothing of this run before the cause is found." in words
