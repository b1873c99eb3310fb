"""What a finished run prints is never cut, however narrow the terminal is."""

import io

import pytest
from rich.console import Console

from tasks.config.params import validate
from tasks.reports import summary
from tasks.runtime.run import Run
from tasks.runtime.store import write_json

NAME = "your-own-images-of-the-second-ward-0a1b2c3d"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_paths_and_names_are_whole(tmp_path, monkeypatch, width):
    run = Run(tmp_path, NAME, validate({"data": {"public_benchmark": True}}))
    statement = {"epsilon": 7.9903, "delta": 1e-5, "mechanism": {}, "unit": "record", "epsilon_claimed": None}
    asked = {"noise": "replay", "private": True, "answered": 90, "asked": 100, "queries": 120, "teachers": 12}
    monkeypatch.setattr(summary, "read_statement", lambda _: statement | asked)
    write_json(run.folders.evaluation, {"accuracy": 0.9309})
    write_json(run.folders.private / "tracking.json", {"run_id": "a333a9048e9746e8bc1e3c72ba7e5552"})
    shown = io.StringIO()
    Console(file=shown, width=width).print(summary.result(run), soft_wrap=True)
    lines = [line.split("  ") for line in shown.getvalue().splitlines()]
    assert lines[0] == [f"Run {NAME}"]
    assert {parts[1]: parts[-1].strip() for parts in lines[1:]} == {
        "accuracy (private test split)": "93.09 %",
        "ε exact, per record": "7.9903 at δ = 1e-05",
        "noise": "NOT PRIVATE: replayed from a seed",
        "answered / asked": "90 / 100",
        "teachers": "12",
        "MLflow run": "a333a9048e9746e8bc1e3c72ba7e5552 (make ui)",
        "report (private)": f"data/private/{NAME}/report.html",
        "may be published": f"data/release/{NAME}",
    }
