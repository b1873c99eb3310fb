"""CSV files as text: no cell's type is guessed, and every row has the number of the line that it starts in."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from terrine.errors import InputError
from terrine.extras import from_extra

if TYPE_CHECKING:
    import pandas as pd

NO_HEADER = "If the first line is a record, write a line with the columns' names above it."
_ZIP = b"PK\x03\x04"


class Rows(NamedTuple):
    """The stripped cells of a CSV file below its header, and the line that each row starts in."""

    header: list[str]
    lines: list[int]
    cells: list[list[str]]


def read_csv_file(path: Path) -> pd.DataFrame:
    """Return the cells of a CSV file as texts, indexed by `line`.

    Raises:
        InputError: a missing file, one without rows, and what `read_rows` raises.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your CSV file.")
    with open_csv(path) as file:
        return _frame(read_rows(file, str(path)), str(path))


def read_csv_bytes(data: bytes, where: str) -> pd.DataFrame:
    """Return the cells of a CSV file that came as bytes; see `read_csv_file`."""
    return _frame(read_rows(io.TextIOWrapper(io.BytesIO(data), newline="", encoding="utf-8-sig"), where), where)


def _frame(rows: Rows, where: str) -> pd.DataFrame:
    if not rows.cells:
        raise InputError(f"{where} has no rows below its header.")
    with from_extra("pipeline", "Tables"):
        import pandas as pd  # here, since most who import this read no table
    return pd.DataFrame(rows.cells, columns=rows.header, index=pd.Index(rows.lines, name="line"), dtype=object)


def open_csv(path: Path) -> TextIO:
    """Open a CSV file as text in UTF-8. Raises InputError for an archive that is called one."""
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            raise InputError(
                f"{path} is a ZIP archive, or a workbook of a spreadsheet, whatever its name says. Unpack it, or save "
                "the table as CSV, UTF-8, separated by commas."
            )
    return path.open(newline="", encoding="utf-8-sig")


def read_rows(file: TextIO, path: str) -> Rows:
    """Return the rows of a CSV file with a header. A column may have no name ("").

    Lines are numbered as an editor numbers them: the header is line 1, and empty lines, which are no rows, and line
    ends within quotes count.

    Args:
        file: Opened with newline="".
        path: Its name in errors.

    Raises:
        InputError: no CSV in UTF-8 with commas, two columns of one name, or a row of another length than the header.
    """
    rows = Rows([], [], [])
    shared: dict[str, str] = {}  # words repeat: one text for all cells that hold it
    before = 0
    try:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        for cells in reader:
            line, before = before + 1, reader.line_num
            texts = [shared.setdefault(text, text) for text in map(str.strip, cells)]
            if not texts:
                continue
            if not rows.header:
                rows.header.extend(_checked(texts, path))
                continue
            if len(texts) != len(rows.header):
                raise InputError(
                    f"{path}, line {line} has {len(texts)} values, and the header names {len(rows.header)} columns. "
                    "Put a text with a comma into double quotes, and leave the comma of an empty value."
                )
            rows.lines.append(line)
            rows.cells.append(texts)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {before + 1} is no CSV ({error}). Save the table as CSV, UTF-8, separated by commas."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no CSV file in UTF-8 ({error}). Save the table as CSV, UTF-8.") from error
    return rows


def _checked(names: list[str], path: str) -> list[str]:
    for separator, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            raise InputError(f"{path} is separated by {what}. Save it as CSV, UTF-8, separated by commas.")
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{path} has two columns '{twice[0]}'. Give each column a name of its own. {NO_HEADER}")
    return names
