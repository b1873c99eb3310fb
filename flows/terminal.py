"""Output of a run: a line for each stage, with a progress bar on a terminal; everything else goes to the run's log.

Libraries and their child processes write to standard output and error, so both are redirected to the log during a run,
and the lines go to a copy of the terminal.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from flows.printing import LoggedError, printer
from tasks.runtime.progress import CURRENT
from tasks.runtime.store import Folders
from terrine.errors import TerrineError

OURS = ("flows", "tasks", "terrine", "prefect.flow_runs")
"""Loggers whose warnings are shown to the user; the last is the flow's own logger in Prefect."""


class _Live(Progress):
    """Progress bar that reads the progress of the stage whenever it draws."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            fraction = CURRENT.fraction
            task.total, task.completed = (None, 0) if fraction is None else (1, fraction)
        yield from super().get_renderables()


class StageLines:
    """A line with the duration in seconds of each stage; below these lines, on a terminal, the current stage."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = _Live(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._head, self._began = "", 0.0

    def __enter__(self) -> StageLines:
        self._live.start()
        self._show("starting")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, names: Sequence[str], stage: str) -> None:
        """Show the current stage."""
        widest = max(map(len, names))
        self._head = f"{names.index(stage) + 1:{len(str(len(names)))}}/{len(names)} {stage:{widest}}"
        self._began = time.monotonic()
        self._show(self._head)

    def end(self, *, made: bool) -> None:
        """Print the line of the current stage."""
        spent = f"{time.monotonic() - self._began:7.1f} s" if made else "  unchanged"
        self.console.print(f"{self._head}{spent}", soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._task is not None:
            self._live.remove_task(self._task)
        self._task = self._live.add_task(text, total=None)


SHOWN: ContextVar[StageLines | None] = ContextVar("shown", default=None)
"""Lines of the run in progress, if any."""


class _Warnings(logging.Handler):
    """Handler that shows the warnings of a log."""

    def __init__(self, lines: StageLines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            warning = Text(f"Warning: {record.getMessage()}", style="yellow")
            self._lines.console.print(warning, soft_wrap=True)


@contextmanager
def quiet(root: Path, run: str) -> Iterator[Console]:
    """Show only stages and Terrine's warnings within the block; the run's log has everything.

    Yields:
        A console that prints to the terminal.

    Raises:
        LoggedError: For an error that is not a TerrineError. In both cases a note on the error names the log.
    """
    log = Folders(root, run).private / "run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file, _redirected(file) as terminal:
        lines = StageLines(printer(terminal))
        warnings = _Warnings(lines)
        shown = SHOWN.set(lines)
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(sys.argv)}\n")
        file.flush()
        for name in OURS:
            logging.getLogger(name).addHandler(warnings)
        try:
            with lines:
                yield lines.console
        except TerrineError as error:
            error.add_note(_note(root, log))
            raise
        except Exception as error:
            traceback.print_exc(file=file)
            logged = LoggedError(traceback.format_exception_only(error)[-1].strip())
            logged.add_note(f"This is a defect. {_note(root, log, 'Its traceback: ')}")
            raise logged from error
        finally:
            SHOWN.reset(shown)
            for name in OURS:
                logging.getLogger(name).removeHandler(warnings)
            # Prefect logs its shutdown at exit.
            atexit.register(logging.disable)


def _note(root: Path, log: Path, what: str = "The log: ") -> str:
    return f"{what}{os.path.relpath(log, root)}"


@contextmanager
def _redirected(log: TextIO) -> Iterator[TextIO]:
    """Redirect the outputs of this process and its children to a file; yields the terminal."""
    outputs = (sys.stdout, sys.stderr)
    for stream in outputs:
        stream.flush()
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        with os.fdopen(os.dup(kept[0]), "w", encoding=sys.stdout.encoding, errors="replace") as terminal:
            yield terminal
    finally:
        for stream in outputs:
            stream.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
