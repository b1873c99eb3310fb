"""The result of a finished run: the accuracy as served comes first, and no line is cut on a narrow terminal."""

import io

import pytest
from rich.console import Console

from tasks.config.params import validate
from tasks.reports import summary
from tasks.reports.accuracy import gap_of, known_accuracy
from tasks.runtime.run import Run
from tasks.runtime.store import write_json
from terrine.files import file_digest
from terrine.privacy.facts import Facts

NAME = "your-own-images-of-the-second-ward-0a1b2c3d"


def prepared(tmp_path, monkeypatch, evaluation, **changes):
    """A finished run with these figures."""
    run = Run(tmp_path, NAME, validate({"data": {"public_benchmark": True}}))
    statement = {"epsilon": 7.9903, "delta": 1e-5, "mechanism": {}, "unit": "record", "epsilon_claimed": None}
    queried = {"noise": "replay", "private": True, "answered": 90, "queried": 100, "queries": 120, "teachers": 12}
    content = {**statement, **queried, "facts": Facts("image").to_json(), **changes}
    monkeypatch.setattr(summary, "read_statement", lambda _: content)
    write_json(run.folders.evaluation, evaluation)
    return run


@pytest.mark.parametrize("width", [60, 120])
def test_paths_and_names_are_whole(tmp_path, monkeypatch, width):
    batches = {"statistics": "current", "accuracy": 0.9408}
    run = prepared(tmp_path, monkeypatch, {"accuracy": 0.9309, "in_batches": batches})
    assert known_accuracy(run) == {"accuracy": 0.9309, "accuracy_in_batches": 0.9408}
    write_json(run.folders.private / "tracking.json", {"run_id": "a333a9048e9746e8bc1e3c72ba7e5552"})
    shown = io.StringIO()
    Console(file=shown, width=width).print(summary.result(run), soft_wrap=True)
    lines = [line.split("  ") for line in shown.getvalue().splitlines()]
    assert lines[0] == [f"Run {NAME}"]
    assert {parts[1]: parts[-1].strip() for parts in lines[1:]} == {
        "accuracy as served (private test split)": "93.09 %",
        "accuracy in batches, current statistics": "94.08 %",
        "ε exact, per record": "7.9903 at δ = 1e-05",
        "noise": "NOT PRIVATE: replayed from a seed",
        "answered": "90 of 120 queries, 100 put to the vote",
        "teachers": "12",
        "MLflow run": "a333a9048e9746e8bc1e3c72ba7e5552 (terrine compare --ui)",
        "report (private)": f"data/private/{NAME}/report.html",
        "may be published": f"data/release/{NAME}",
    }


@pytest.mark.parametrize(("served", "warned"), [(0.2926, False), (0.28, False), (0.26, True), (0.129, True)])
def test_the_accuracy_as_served_comes_first_and_a_wide_gap_is_warned_of(tmp_path, monkeypatch, served, warned):
    """People with nine photographs each: 29.26 % in batches, and one in eight as served."""
    batches = {"statistics": "current", "accuracy": 0.2926}
    found = {"accuracy": served, "in_batches": batches, "confusion": None, "per_class": [], "images": 9, "auc": None}
    run = prepared(tmp_path, monkeypatch, found, noise="secure", private=False)
    _, first, second, *others = summary.result(run).plain.splitlines()
    assert first.split("  ")[1] == "accuracy as served (private test split)"
    assert second.split("  ")[1] == "accuracy in batches, current statistics"
    assert (first[-7:], second[-7:]) == (f"{100 * served:.2f} %", "29.26 %")
    notes = [line for line in others if "note (private)" in line]
    assert len(notes) == warned
    for remedy in ("aggregation.mechanism=gradients", "--reference", "--statistics current") * warned:
        assert remedy in notes[0]
    run.folders.student.mkdir(parents=True)
    assert (gap_of(run.folders.student) is not None) == warned
    assert gap_of(tmp_path) is None


def test_a_signature_of_an_earlier_statement_is_named(tmp_path, monkeypatch):
    run = prepared(tmp_path, monkeypatch, {"accuracy": 0.9})
    write_json(run.folders.statement, {"about": "now"})
    for digest, earlier in ((file_digest(run.folders.statement), False), ("0" * 64, True)):
        write_json(run.folders.signature, {"files": {"privacy.json": digest}})
        assert (f"terrine statement {NAME} --sign" in summary.result(run).plain) == earlier
