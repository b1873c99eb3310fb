"""Accuracy at the add/remove ε of published figures, beside these: the tables of docs/results/comparison.md.

benchmarks/comparison.yaml contains the published figures with their sources, docs/measurements/comparison.json ours,
which `sums --compare`, `census --compare` and `dp_sgd --compare` write. `tables` puts both into the page.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.cells import spread
from terrine.privacy.accounting.gaussian import round_up

PUBLISHED = (1, 2, 3, 8)
"""Add/remove ε at δ = 1e-5 of the columns."""
MEASUREMENTS = Path(__file__).resolve().parents[1] / "docs" / "measurements"
MACHINE = f"two CPU cores, no GPU, torch {torch.__version__}, beside other work"


def comparison_columns(epsilons: Sequence[float]) -> list[str]:
    """Return the columns of a table."""
    return ["accuracy in %, one record added or removed", *(f"ε = {epsilon:g}" for epsilon in epsilons), "source"]


def comparison_rows(label: str, draws: Sequence[Sequence[dict[str, float]]]) -> list[list[str]]:
    """Return the rows of a method: accuracy, and the ε of the same releases if a record is replaced.

    draws: Figures of each draw, by ε: `accuracy`, a share, and `replaced`; empty if it was not measured.
    """
    replaced = [f"{max(round_up(cell['replaced'], 2) for cell in cells):.2f}" if cells else "–" for cells in draws]
    accuracy = [spread(cell["accuracy"] for cell in cells) if cells else "–" for cells in draws]
    return [[f"**{label}**", *accuracy, "measured here"], ["its ε if a record is replaced", *replaced, "exact"]]


def listed() -> dict[str, list[dict[str, Any]]]:
    """Return the published figures by table: `method`, `figures` by column, and `source`."""
    tables: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    )["tables"]
    return tables


def published(table: str, columns: Sequence[str]) -> list[list[str]]:
    """Return the published rows of a table; a method without a figure at some ε has a dash there."""
    return [
        [entry["method"], *(str(entry["figures"].get(column, "–")) for column in columns[1:-1]), entry["source"]]
        for entry in listed().get(table, [])
    ]


def store(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, command: str, seeds: int, spread: str | None
) -> None:
    """Write rows into docs/measurements, in place of earlier ones of the same command.

    Args:
        name: `subject/table`.
        columns: Columns of the table.
        rows: The cells, as they are printed.
        command: The command that measured them.
        seeds: Number of seeds.
        spread: Meaning of ±.
    """
    subject, table = name.split("/")
    path = MEASUREMENTS / f"{subject}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    origin = {"commit": commit.stdout.strip(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": MACHINE}
    block = {"command": command, **origin, "seeds": seeds, "spread": spread, "rows": rows}
    others = [each for each in known.get(table, {"measured": []})["measured"] if each["command"] != command]
    known[table] = {"columns": list(columns), "measured": [*others, block]}
    text = json.dumps(known, indent=2, ensure_ascii=False)
    one_line = re.compile(r"\[\n\s+(\"[^\[\]{}]*?)\n\s+\]")  # lists of texts
    flat = one_line.sub(lambda found: "[" + re.sub(r"\n\s+", " ", found[1]) + "]", text)
    path.write_text(flat + "\n", encoding="utf-8")
