"""CSV tables that list images: the class of each, and possibly its group, party and side of the split.

If an image may have several findings, each finding has a column, or the label names all of them.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from terrine.data.csv_file import Rows, open_csv, read_rows
from terrine.data.findings import findings_in_cell, findings_in_columns
from terrine.data.labels import on_unread
from terrine.errors import InputError, some

AND = "\n"
"""Between the findings of a record: in no name, since a cell has none."""
OPTIONAL = ("group", "party", "split")


class Record(NamedTuple):
    """An image file, or a frame of one, and what is known of it.

    `label` is its class, or of several findings those it has. `group`, `split` and `party` are empty when not given,
    for all alike. Private, and `name` and `group` may be texts that nobody else must see: only their codes are kept,
    and errors name the path.
    """

    path: Path
    name: str
    label: str
    group: str = ""
    split: str = ""
    party: str = ""
    frame: int = 0


def read_image_table(table: Path, findings: Sequence[str] = ()) -> tuple[list[Record], tuple[str, ...]]:
    """Return the images that a CSV file with columns path and label lists, and warnings about its other columns.

    Raises:
        InputError: a table, or a path in it, that cannot be used; the message names the line.
    """
    rows = read_table(table, ("path",), findings=findings)
    records = []
    places: dict[Path, str] = {}
    for place, values in values_of(rows, table, ("path",), findings=findings):
        path = inside(table.parent, Path(values["path"]), place, relative=True)
        if (other := places.setdefault(path, place)) != place:
            line = other.rpartition(", ")[2]
            raise InputError(f"{place}: {values['path']} is listed in {line} already. List it once.")
        name = Path(os.path.normpath(values.pop("path"))).as_posix()
        records.append(Record(path, name, **values))  # type: ignore[arg-type]
    if "group" in rows.header:
        return records, ()
    unread = [name or "(no name)" for name in rows.header if name not in ("path", "label", *OPTIONAL, *findings)]
    return records, on_unread(str(table), "columns", unread, "group")


def read_table(
    table: Path, keys: Sequence[str], optional: Sequence[str] = OPTIONAL, findings: Sequence[str] = ()
) -> Rows:
    """Return the rows of a CSV file whose columns are one of `keys`, label, and any of `optional`; others are ignored.

    With `findings`, these may be columns instead of label. Raises InputError for a file that is none.
    """
    if not table.is_file():
        raise InputError(f"There is no file {table}. Name a CSV file with columns {' or '.join(keys)} and label.")
    with open_csv(table) as file:
        rows = read_rows(file, str(table))
    header = rows.header
    own = [name for name in findings if name in header]
    if sum(name in header for name in keys) != 1 or (len(own) < len(findings) if own else "label" not in header):
        wanted = "label"
        if findings:  # as data.findings names them
            wanted = f"{', '.join(findings)} (or label, with the findings of an image in one cell)"
        raise InputError(
            f"{table} has the columns {', '.join(header) or '(none)'}. Its first line must name "
            f"{' or '.join(keys)} and {wanted}, and optionally {', '.join(optional[:-1])} and {optional[-1]}, "
            f"separated by commas.{_on_header(header, keys, optional, findings)}"
        )
    if not rows.cells:
        raise InputError(f"{table} lists no images. Give one line per image below the line with the column names.")
    return rows


def values_of(
    rows: Rows, table: Path, keys: Sequence[str], optional: Sequence[str] = OPTIONAL, findings: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's place, as errors name it, and its values by column, none empty; arguments of `read_table`.

    The label of several findings is those that the row has. Raises InputError for a row that lacks a value.
    """
    columns = [name for name in (*keys, *optional, *(() if findings else ("label",))) if name in rows.header]
    for line, cells in zip(rows.lines, rows.cells, strict=True):
        row, place = dict(zip(rows.header, cells, strict=True)), f"{table}, line {line}"
        values = {name: row[name] for name in columns}
        if empty := sorted(name for name, value in values.items() if not value):
            remedy = " A record that stands alone gets a group of its own." if empty == ["group"] else ""
            raise InputError(f"{place} has no {' and no '.join(empty)}. Fill it in, or remove the line.{remedy}")
        if values.get("split", "train") not in ("train", "test"):
            raise InputError(f"{place} has split '{values['split']}'. It must be train or test.")
        if findings:
            own = {name: row[name] for name in findings if name in row}
            has = findings_in_columns(own, findings, place) if own else findings_in_cell(row["label"], findings)
            values["label"] = AND.join(has)
        yield place, values


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
