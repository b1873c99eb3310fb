"""Count the cells of the papers' tables and figures: reproduced, priced only, impossible here, or open.

A cell is one result that a paper prints: an accuracy or an ε of a table, or a panel or point of a figure. Settings,
samples and overviews do not count. benchmarks/papers/NAME.yaml has an entry for each table and figure under `cells`:

    of       cells in the paper, with those of rivals
    full     {table of docs/measurements: cells} at the paper's scale
    reduced  likewise, with fewer images, other networks or other data, as `how` states
    epsilon  likewise, only the exact ε of the published release
    five     {table: cells} with five seeds, of tables of which only some blocks have as many
    how      deviations of the reproduced cells, and why the others are missing

The remaining cells are impossible if `not_possible` has the table or the entry has `impossible: true`, else open.
`python -m benchmarks.tables` writes the tables `cells` and `cells/NAME` into docs/papers.
"""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

PAPERS = Path(__file__).with_name("papers")
KINDS = ("full", "reduced", "epsilon")
COLUMNS = ["paper's scale", "smaller", "exact ε only", "impossible here", "open", "of these, five seeds"]


class Count(NamedTuple):
    """Cells of a table or paper by what became of them; `seeds`: reproduced with at least five seeds."""

    of: int
    full: int
    reduced: int
    epsilon: int
    impossible: int
    open: int
    seeds: int


def entries(name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a paper by table."""
    values = yaml.safe_load((PAPERS / f"{name}.yaml").read_text(encoding="utf-8"))
    impossible = values.get("not_possible", {})
    return {table: {"impossible": table in impossible} | entry for table, entry in values["cells"].items()}


def entry_cells(entry: dict[str, Any], table: str) -> int:
    """Return how many cells of a paper's table are reproduced in a table of docs/measurements."""
    return sum(int(entry.get(kind, {}).get(table, 0)) for kind in ("full", "reduced"))


def count(entry: dict[str, Any], known: dict[str, dict[str, Any]]) -> Count:
    """Count the cells of a table.

    Raises:
        ValueError: An entry counts more cells than the measurement or the paper's table has, or an unknown measurement.
    """
    found = {}
    for kind in KINDS:
        for table, cells in entry.get(kind, {}).items():
            blocks = known.get(table, {"measured": []})["measured"]
            there = sum(len(row) - 1 if len(row) > 1 else 1 for b in blocks for row in b.get("rows", b.get("text")))
            if not 0 < cells <= there:
                raise ValueError(f"{cells} cells are not in {table}, which has {there}.")
        found[kind] = sum(entry.get(kind, {}).values())
    made = {
        table: 0 if any((block["seeds"] or 0) < 5 for block in known[table]["measured"]) else cells
        for kind in ("full", "reduced")
        for table, cells in entry.get(kind, {}).items()
    }
    if more := [table for table, cells in entry.get("five", {}).items() if not 0 < cells <= entry_cells(entry, table)]:
        raise ValueError(f"More cells of {more[0]} have five seeds than {entry} counts.")
    seeds = sum((made | entry.get("five", {})).values())
    rest = entry["of"] - sum(found.values())
    if rest < 0:
        raise ValueError(f"{entry} counts {-rest} cells more than the paper prints.")
    impossible = rest if entry["impossible"] else 0
    return Count(entry["of"], *found.values(), impossible, rest - impossible, seeds)


def table(name: str, known: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: of a paper by table, or of all papers for the name ``."""
    if name:
        rows = []
        for shown, entry in entries(name).items():
            cells = count(entry, known)
            missing = (
                f"{cells.impossible} impossible" if cells.impossible else f"{cells.open} open" if cells.open else ""
            )
            made = (str(number or "") for number in (cells.full, cells.reduced, cells.epsilon))
            rows.append([shown, str(cells.of), *made, missing, entry["how"]])
        return ["", "cells", *COLUMNS[:3], "missing", "how"], rows
    sums = {path.stem: total(path.stem, known) for path in sorted(PAPERS.glob("*.yaml"))}
    rows = [[f"[{paper}]({paper}.md)", *map(str, each)] for paper, each in sums.items()]
    return ["", "cells", *COLUMNS], [*rows, ["all", *map(str, _sum(list(sums.values())))]]


def total(name: str, known: dict[str, dict[str, Any]]) -> Count:
    """Count the cells of a paper."""
    return _sum([count(entry, known) for entry in entries(name).values()])


def _sum(counts: list[Count]) -> Count:
    return Count(*(sum(each) for each in zip(*counts, strict=True)))
