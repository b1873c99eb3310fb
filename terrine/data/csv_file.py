"""CSV files as text cells, without type inference."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from terrine.errors import InputError
from terrine.extras import from_extra

if TYPE_CHECKING:
    import pandas as pd

NO_HEADER = "If the first line is a record, add a header line with the column names."
_SAVE = "Save the table as CSV, UTF-8, separated by commas."


def read_csv(source: Path | bytes, where: str = "") -> pd.DataFrame:
    """Return the cells of a CSV file with a header as stripped texts, indexed by line number.

    Args:
        source: Path or content of the file. The first line is the header, in which a column may be unnamed ("").
            Empty lines are skipped.
        where: Name of the content in error messages.

    Raises:
        InputError: the file is missing, is not comma-separated UTF-8 or has no rows; two columns share a name; or a
            row is longer or shorter than the header.
    """
    where = where or str(source)
    if isinstance(source, Path) and not source.is_file():
        raise InputError(f"There is no file {source}. Point data.path (with DICOM: data.labels) at your CSV file.")
    lines, rows = [], []
    try:
        content = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        with io.TextIOWrapper(content, newline="", encoding="utf-8-sig") as file:
            reader, before = csv.reader(file, strict=True, skipinitialspace=True), 0
            for cells in reader:
                line, before = before + 1, reader.line_num
                if cells:
                    lines.append(line)
                    rows.append([sys.intern(cell.strip()) for cell in cells])  # cells repeat: intern to save memory
    except UnicodeDecodeError as error:
        start = error.object[max(0, error.start - 30) : error.start].decode("utf-8", "replace").splitlines()
        after = f" (after '{start[-1]}')" if start else ""
        raise InputError(f"{where} is not a CSV file in UTF-8{after}. {_SAVE}") from error
    except csv.Error as error:
        raise InputError(
            f"{where} is not a CSV file in UTF-8 (after line {max(lines, default=0)}: {error}). {_SAVE}"
        ) from error
    header = rows[0] if rows else [""]
    if len(header) == 1 and {";", "\t"} & {*header[0]}:
        raise InputError(f"{where} is separated by semicolons or tabs. {_SAVE}")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise InputError(f"{where} has two columns '{twice[0]}'. Column names must be unique. {NO_HEADER}")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"{where}, line {line} has {len(row)} values, but the header has {len(header)} columns. Put a text "
                "with a comma into double quotes, and keep the comma of an empty value."
            )
    if len(rows) < 2:
        raise InputError(f"{where} has no rows below its header. Add one line per record.")
    with from_extra("pipeline", "Tables"):
        import pandas as pd
    return pd.DataFrame(rows[1:], columns=header, index=pd.Index(lines[1:], name="line"), dtype=object)
