"""A CSV table that says which class an image belongs to, and possibly which group, party and side of the split.

Where an image may have several findings, each has a column of its own, or all that an image has are one cell's.
"""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from terrine.data.csv_file import open_csv
from terrine.data.findings import findings_in_cell, findings_in_columns
from terrine.data.labels import on_unread
from terrine.data.pictures.listed import AND, Record
from terrine.errors import InputError, some

OPTIONAL = ("group", "party", "split")


def read_image_table(table: Path, findings: Sequence[str] = ()) -> list[Record]:
    """List the rows of a CSV file with columns path and label; every complaint names the line."""
    records = []
    lines: dict[Path, int] = {}
    for number, place, values in rows_of(table, ("path",), findings=findings):
        path = inside(table.parent, Path(values["path"]), place, relative=True)
        if path in lines:
            raise InputError(f"{place}: {values['path']} is listed in line {lines[path]} already. List it once.")
        lines[path] = number
        name = Path(os.path.normpath(values.pop("path"))).as_posix()
        records.append(Record(path, name, **values))
    return records


def on_columns(table: Path, findings: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what the keeper of a table that was read is told of columns that are not: one may say who is who."""
    with table.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file, skipinitialspace=True))
    other = [name or "(no name)" for name in header if name not in ("path", "label", *OPTIONAL, *findings)]
    return () if "group" in header else on_unread(str(table), "columns", other, "group")


def rows_of(
    table: Path, keys: Sequence[str], optional: Sequence[str] = OPTIONAL, findings: Sequence[str] = ()
) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield each row of a CSV file: its line, what errors call it, and its stripped values by column, none empty.

    The columns are one of `keys`, label, and any of `optional`; others are ignored. The label of several findings is
    those that the row has, from their columns or that of the label. Raises InputError for a file that is none, and for
    a row that lacks a value or has too many.
    """
    if not table.is_file():
        raise InputError(f"There is no file {table}. Name a CSV file with columns {' or '.join(keys)} and label.")
    line = 0
    try:
        with open_csv(table) as file:
            reader = csv.DictReader(file, strict=True, skipinitialspace=True)
            header = reader.fieldnames or ()
            key = [name for name in keys if name in header]
            own = [name for name in findings if name in header]
            if len(key) != 1 or (len(own) < len(findings) if own else "label" not in header):
                wanted = "label"
                if findings:  # as data.findings names them
                    wanted = f"{', '.join(findings)} (or label, with the findings of an image in one cell)"
                raise InputError(
                    f"{table} has the columns {', '.join(header) or '(none)'}. Its first line must name "
                    f"{' or '.join(keys)} and {wanted}, and optionally {', '.join(optional[:-1])} and {optional[-1]}, "
                    f"separated by commas.{_on_header(header, keys, optional, findings)}"
                )
            columns = {*key, *(name for name in optional if name in header)} | (set() if findings else {"label"})
            for row in reader:
                line = reader.line_num
                place = f"{table}, line {line}"
                values = _values(row, columns, place)
                if findings:
                    values["label"] = AND.join(_findings_of(row, findings, place))
                yield line, place, values
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table} is no CSV file in UTF-8 ({error}). Save it as CSV, UTF-8, commas.") from error
    if not line:
        raise InputError(f"{table} lists no images. Give one line per image below the line with the column names.")


def _on_header(header: Sequence[str], keys: Sequence[str], optional: Sequence[str], findings: Sequence[str]) -> str:
    """Return what may be the matter with a header: capital letters, or findings that were not declared."""
    known = (*keys, *optional, "label")
    capitals = [name for name in header if name not in known and name.lower() in known]
    if capitals:
        return f" Small letters count: write {some([f'{name.lower()} for {name}' for name in capitals])}."
    other = [name for name in header if name and name not in known]
    if not findings and len(other) > 1 and any(name in header for name in keys):
        return (
            f" If the others are findings of which an image may have several: data.findings=[{', '.join(other)}] "
            "(docs/targets.md)."
        )
    return ""


def _findings_of(row: Mapping[str | None, str | None], findings: Sequence[str], place: str) -> list[str]:
    cells = {name: row[name] or "" for name in findings if name in row}
    if cells:
        return findings_in_columns(cells, findings, place)
    return findings_in_cell(row["label"] or "", findings)


def _values(row: Mapping[str | None, str | None], columns: set[str], place: str) -> dict[str, str]:
    """Return the stripped values of one row, none of them empty."""
    values = {column: (row[column] or "").strip() for column in columns}
    empty = sorted(column for column, value in values.items() if not value)
    if empty:
        remedy = " A record that stands alone gets a group of its own." if empty == ["group"] else ""
        raise InputError(f"{place} has no {' and no '.join(empty)}. Fill it in, or remove the line.{remedy}")
    if None in row:
        raise InputError(f"{place} has more values than columns. Put a text with a comma into double quotes.")
    if values.get("split", "train") not in ("train", "test"):
        raise InputError(f"{place} has split '{values['split']}'. It must be train or test.")
    return values


def inside(folder: Path, path: Path, place: str, *, relative: bool = False) -> Path:
    """Return the real path of an image, after refusing one that is not a file inside `folder`.

    With `relative` the path is one that a table gives, relative to `folder`; without, a link that was found there.
    """
    if relative and path.is_absolute():
        raise InputError(
            f"{place}: {path} is an absolute path. Write paths relative to the folder of the table, {folder}, and keep "
            "the images inside it."
        )
    try:
        real = (folder / path if relative else path).resolve()
        is_file = real.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that is too long
        raise InputError(f"{place}: {path} is no usable path ({error}). Correct it or remove the line.") from error
    if not real.is_relative_to(folder.resolve()):
        raise InputError(
            f"{place}: {path} leads outside {folder}, to {real}. Copy the image into that folder; links and '..' that "
            "leave it are not followed."
        )
    if not is_file and not relative:
        raise InputError(f"{place} is a link that leads to no file. Mend it, or remove it.")
    if not is_file:
        raise InputError(f"{place}: there is no file {path} in {folder}. Correct the path or remove the line.")
    return real
