"""What commands print on. Words are words: names, paths and other programs' errors may hold brackets and colons."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

WIDE = 160
"""Characters of a line that goes into a file or a pipe, which have no edge."""


def printer(file: TextIO | None = None, *, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console that reads no markup; what is to be bold or red is given as `rich.text.Text` or a style."""
    console = Console(file=file, stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console
