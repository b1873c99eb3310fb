"""Consoles, tables and errors of the commands. Text is printed verbatim: names and paths may contain brackets."""

from __future__ import annotations

import logging
import os
from typing import Any, TextIO

from rich.console import Console
from rich.table import Column, Table

from terrine.errors import TerrineError

WIDE = 160
"""Line width in files and pipes, in characters."""


def printer(file: TextIO | None = None, *, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console that interprets no markup; use `rich.text.Text` or a style for bold or red text."""
    console = Console(file=file, stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def plain_table(*columns: str | Column, **options: Any) -> Table:
    """Return a table without rules, and without a header if no columns are given."""
    return Table(*columns, **{"box": None, "pad_edge": False, "show_header": bool(columns), **options})


def shown_duration(seconds: float) -> str:
    """Return a rounded duration, such as "about 2 minutes"."""
    unit, size = ("hour", 3600) if seconds >= 5400 else ("minute", 60) if seconds >= 90 else ("second", 1)
    count = round(seconds / size)
    return f"about {count} {unit}{'s' * (count != 1)}"


class LoggedError(Exception):
    """Error from a defect. The message is the last line of the traceback; a note names the log with the rest."""


class UserErrors(logging.Filter):
    """Filter that reduces log records about a TerrineError to its message; other errors keep their traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, TerrineError):
            record.msg, record.args = str(error), None
            record.exc_info = record.exc_text = None
        return True


def shorten_users_errors() -> None:
    """Omit the traceback from Prefect's logs for errors that users can fix."""
    from prefect.logging import get_logger

    for name in ("flow_runs", "task_runs", "flow_engine", "engine"):
        logger = get_logger(name)
        if not any(isinstance(known, UserErrors) for known in logger.filters):
            logger.addFilter(UserErrors())
