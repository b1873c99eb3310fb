"""Consoles and tables of the commands. Text is printed as it is: names, paths and errors may contain brackets."""

from __future__ import annotations

import os
from typing import Any, TextIO

from rich.console import Console
from rich.table import Column, Table

WIDE = 160
"""Width of lines in files and pipes, in characters."""


def printer(file: TextIO | None = None, *, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console that reads no markup; use `rich.text.Text` or a style for bold or red text."""
    console = Console(file=file, stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def plain_table(*columns: str | Column, **options: Any) -> Table:
    """Return a table without lines, and without a heading if it has no columns yet."""
    return Table(*columns, **{"box": None, "pad_edge": False, "show_header": bool(columns), **options})
