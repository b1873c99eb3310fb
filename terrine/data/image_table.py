"""CSV tables of image files: the class of each image, and optionally its group, party and split.

If an image may have several findings, each finding has a column, or `label` contains all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from terrine.data.csv_file import read_csv
from terrine.data.findings import findings_in_table
from terrine.data.labels import unread_warning
from terrine.errors import InputError, some

if TYPE_CHECKING:
    import pandas as pd

OPTIONAL = ("group", "party", "split")


class Record(NamedTuple):
    """One record: an image file, or one frame of a file.

    Private: only codes of `name` and `group` are stored, and errors show the path. `label` is the class, or the
    record's findings joined by `AND`. `group`, `split` and `party` are empty if the data do not contain them.
    """

    path: Path
    name: str
    label: str
    group: str = ""
    split: str = ""
    party: str = ""
    frame: int = 0


def read_image_table(table: Path, findings: Sequence[str] = ()) -> tuple[list[Record], tuple[str, ...]]:
    """Return the images listed in a CSV file with columns path and label, and warnings about its other columns.

    Raises:
        InputError: the table or a path in it is invalid; the message contains the line.
    """
    rows, unread = read_table(table, ("path",), findings=findings)
    records = []
    places: dict[Path, str] = {}
    for line, values in zip(rows.index, rows.to_dict("records"), strict=True):
        place = f"{table}, line {line}"
        path = inside(table.parent, Path(values["path"]), place, relative=True)
        if (other := places.setdefault(path, place)) != place:
            raise InputError(f"{place}: {values['path']} is already listed in {other.rpartition(', ')[2]}. Remove one.")
        name = Path(os.path.normpath(values.pop("path"))).as_posix()
        records.append(Record(path, name, **values))
    return records, () if "group" in rows else unread_warning(str(table), "columns", unread, "group")


def read_table(
    table: Path, keys: Sequence[str], optional: Sequence[str] = OPTIONAL, findings: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Return the known columns of a CSV file, indexed by line, and the names of its other columns.

    Args:
        table: CSV file with exactly one of the columns in `keys`, the column label, and any of the optional columns.
        keys: Columns that may identify an image.
        optional: Further columns to read.
        findings: Findings of a record, which may have columns instead of label. `label` then contains those present.

    Raises:
        InputError: a missing column or an empty or unknown value.
    """
    frame = read_csv(table)
    own = [name for name in findings if name in frame]
    if sum(name in frame for name in keys) != 1 or (len(own) < len(findings) if own else "label" not in frame):
        wanted = f"{', '.join(findings)} (or label, with all findings of an image)" if findings else "label"
        raise InputError(
            f"{table} has the columns {', '.join(frame)}. The header must contain {' or '.join(keys)} and {wanted}, "
            f"and optionally {' and '.join(optional)}.{_header_hint(list(frame), keys, optional, findings)}"
        )
    columns = [name for name in (*keys, *optional, *(() if findings else ("label",))) if name in frame]
    for name in columns:
        empty = frame.index[frame[name] == ""]
        if len(empty):
            remedy = " Give a single record a unique group." if name == "group" else ""
            raise InputError(f"{table}, line {empty[0]} has no {name}. Fill it in, or remove the line.{remedy}")
    if "split" in columns:
        other = frame["split"][~frame["split"].isin(("train", "test"))]
        if len(other):
            raise InputError(f"{table}, line {other.index[0]} has split '{other.iloc[0]}'. It must be train or test.")
    rows = frame[columns]
    if findings:
        rows = rows.assign(label=findings_in_table(frame, findings, table))
    return rows, [name or "(no name)" for name in frame if name not in ("label", *columns, *findings)]


def _header_hint(header: Sequence[str], keys: Sequence[str], optional: Sequence[str], findings: Sequence[str]) -> str:
    """Return a hint about a header's probable mistake: capital letters, or findings that were not declared."""
    known = (*keys, *optional, "label")
    if capitals := [name for name in header if name not in known and name.lower() in known]:
        return f" Names are case-sensitive: write {some([f'{name.lower()} for {name}' for name in capitals])}."
    other = [name for name in header if name and name not in known]
    if not findings and len(other) > 1 and any(name in header for name in keys):
        return f" If the other columns are findings: data.findings=[{', '.join(other)}] (docs/targets.md)."
    return ""


def inside(folder: Path, path: Path, place: str, *, relative: bool = False) -> Path:
    """Return the real path of an image. Raise InputError if the path is not a file inside `folder`.

    Args:
        folder: Folder that contains all images.
        path: If `relative`, a path from a table, relative to `folder`; otherwise a link that was found in the folder.
        place: Location of the path for errors.
        relative: Whether the path is from a table.
    """
    if relative and path.is_absolute():
        raise InputError(
            f"{place}: {path} is an absolute path. Write paths relative to the table's folder, {folder}, which must "
            "contain the images."
        )
    try:
        real = (folder / path if relative else path).resolve()
        is_file = real.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that is too long
        raise InputError(f"{place}: {path} is not a usable path ({error}). Correct it or remove the line.") from error
    if not real.is_relative_to(folder.resolve()):
        raise InputError(
            f"{place}{f': {path}' * relative} leads outside {folder}, to {real}. Copy the image into that folder; "
            "links and '..' that leave it are not followed."
        )
    if not is_file:
        what = f"{place}: there is no file {path} in {folder}" if relative else f"{place} is a broken link"
        raise InputError(f"{what}. Correct or remove it.")
    return real
