"""A CSV file as text: nothing is guessed about its cells, and every row knows the line that it starts in."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from terrine.errors import InputError
from terrine.extras import from_extra

if TYPE_CHECKING:
    import pandas as pd

NO_HEADER = "If the first line is a record, write a line with the columns' names above it."
_ZIP = b"PK\x03\x04"


def read_csv_file(path: Path) -> pd.DataFrame:
    """Return the cells of a CSV file; see `read_csv`. Raises InputError for a missing file, too."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your CSV file.")
    with open_csv(path) as file:
        return read_csv(file, str(path))


def open_csv(path: Path) -> TextIO:
    """Open a CSV file as text in UTF-8. Raises InputError for an archive that is called one."""
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            raise InputError(
                f"{path} is a ZIP archive, or a workbook of a spreadsheet, whatever its name says. Unpack it, or save "
                "the table as CSV, UTF-8, separated by commas."
            )
    return path.open(newline="", encoding="utf-8-sig")


def read_csv_bytes(data: bytes, where: str) -> pd.DataFrame:
    """Return the cells of a CSV file that came as bytes; see `read_csv`."""
    return read_csv(io.TextIOWrapper(io.BytesIO(data), newline="", encoding="utf-8-sig"), where)


def read_csv(file: TextIO, path: str) -> pd.DataFrame:
    """Return the cells of a CSV file with a header as stripped text.

    file: opened with newline="". path: what errors call it. The index, called `line`, is the line that a row starts in
    as an editor counts lines: the header is line 1, and empty lines and line ends within quotes count. Empty lines are
    no rows. A column may have no name ("").

    Raises InputError, naming the line, for a file that is no CSV in UTF-8 with commas, has two columns of one name, a
    row of another length than the header, or no rows.
    """
    lines: list[int] = []
    rows: list[list[str]] = []
    shared: dict[str, str] = {}  # words repeat: one text for all cells that hold it
    header: list[str] = []
    before = 0
    try:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        for cells in reader:
            line, before = before + 1, reader.line_num
            if not cells:
                continue
            if not header:
                header = _header([cell.strip() for cell in cells], path)
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{path}, line {line} has {len(cells)} values, and the header names {len(header)} columns. "
                    "Put a text with a comma into double quotes, and leave the comma of an empty value."
                )
            lines.append(line)
            rows.append([shared.setdefault(text, text) for text in map(str.strip, cells)])
    except csv.Error as error:
        raise InputError(
            f"{path}, line {before + 1} is no CSV ({error}). Save the table as CSV, UTF-8, separated by commas."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no CSV file in UTF-8 ({error}). Save the table as CSV, UTF-8.") from error
    if not rows:
        raise InputError(f"{path} has no rows below its header.")
    with from_extra("pipeline", "Tables"):
        import pandas as pd  # here, since most who import this read no table
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)


def _header(names: list[str], path: str) -> list[str]:
    for separator, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            raise InputError(f"{path} is separated by {what}. Save it as CSV, UTF-8, separated by commas.")
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{path} has two columns '{twice[0]}'. Give each column a name of its own. {NO_HEADER}")
    return names
