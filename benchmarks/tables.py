"""Measured tables: written into the pages from what was measured, so that no figure is typed twice.

    python -m benchmarks.tables      # rewrite what stands between the marks of README.md and docs/

docs/measurements/SUBJECT.json contains tables by name, each with columns and with blocks of rows measured together. A
block has its command, commit, machine, number of seeds and the meaning of ± (`spread`); unknown values are null.
`commit` is the one that brought the figures in.
Cells are texts as they are printed, since trailing zeros count. A block of `text` is what a program printed, or a
sentence with a figure.

A page shows a table, or a part of it by its columns and by the first cells of its rows, between marks:

    <!-- table: prompts/kinds | columns: teachers; ε = 7.2 | rows: linear on scattering -->
    <!-- end -->

Below a table `comparison/...` stand the published figures of benchmarks/comparison.yaml.
The table `mutants` comes from benchmarks/mutants.json, `cells` and `cells/PAPER` from benchmarks/papers.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import comparison, mutants, paper_cells

REPOSITORY = Path(__file__).resolve().parents[1]
MEASUREMENTS = REPOSITORY / "docs" / "measurements"
BLOCK = re.compile(r"(?P<mark><!-- table: (?P<asked>.+?) -->)\n.*?(?P<end><!-- end -->)", re.DOTALL)

_NUMBER = re.compile(r"[-+−]?\d[\d,.]*( ± [\d.]+)?( %)?|–|")


def pages() -> list[Path]:
    """README.md and every page below docs/."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def measurements() -> dict[str, dict[str, Any]]:
    """All tables by `subject/name`."""
    return {
        f"{path.stem}/{name}": table
        for path in sorted(MEASUREMENTS.glob("*.json"))
        for name, table in json.loads(path.read_text(encoding="utf-8")).items()
    }


def written(asked: str) -> str:
    """The Markdown of what a mark asks for: `subject/name`, and optionally `columns: ...` and `rows: ...`.

    Raises:
        ValueError: nothing of that name, no such column or row in it, or more than one such column.
    """
    name, *parts = (part.strip() for part in asked.split("|"))
    if name == "mutants":
        return mutants.table(mutants.stored())
    known = measurements()
    if name.split("/")[0] == "cells":
        return markdown(*paper_cells.table(name.removeprefix("cells").removeprefix("/"), known))
    if name not in known:
        raise ValueError(f"There is no table '{name}' in {MEASUREMENTS.name}/; there are: {', '.join(known)}.")
    table = known[name]
    if "columns" not in table:
        return "\n".join(line for block in table["measured"] for line in block["text"])
    columns, rows = table["columns"], [row for block in table["measured"] for row in block["rows"]]
    if name.startswith("comparison/"):
        rows = [*rows, *comparison.published(name.removeprefix("comparison/"), columns)]
    for part in parts:
        kind, _, listed = part.partition(": ")
        wanted = [entry.strip() for entry in listed.split(";")]
        there = columns if kind == "columns" else [row[0] for row in rows]
        if kind not in ("columns", "rows") or not set(wanted) <= set(there):
            raise ValueError(f"'{part}' is not of {name}; it has the {kind} {'; '.join(there)}.")
        if kind == "columns":
            if twice := [column for column in wanted if columns.count(column) > 1]:
                raise ValueError(f"{name} has more than one column {'; '.join(twice)}: rename them.")
            places = [columns.index(column) for column in wanted]
            columns, rows = wanted, [[row[place] for place in places] for row in rows]
        else:
            rows = [row for row in rows if row[0] in wanted]
    return markdown(columns, rows)


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table; columns of numbers are right-aligned."""
    right = [all(_NUMBER.fullmatch(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], f"|{'|'.join('---:' if number else '---' for number in right)}|", *lines[1:]])


def rewritten(text: str) -> str:
    """A page with every table between marks as it is measured."""
    return BLOCK.sub(lambda block: f"{block['mark']}\n{written(block['asked'])}\n{block['end']}", text)


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if rewritten(text) != text:
            page.write_text(rewritten(text), encoding="utf-8")
            print(page.relative_to(REPOSITORY))
