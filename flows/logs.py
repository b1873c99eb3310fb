"""Errors in logs: one that a user can act on is a sentence, a defect keeps its traceback."""

from __future__ import annotations

import logging

from terrine.errors import TerrineError


class LoggedError(Exception):
    """A defect: its message is the last line of its traceback, which is in the log that a note names."""


class UserErrors(logging.Filter):
    """Shortens log records about a TerrineError to its sentence; defects keep their traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, TerrineError):
            record.msg, record.args = str(error), None
            record.exc_info = record.exc_text = None
        return True


def shorten_users_errors() -> None:
    """Shorten users' errors in Prefect's logs."""
    from prefect.logging import get_logger

    for name in ("flow_runs", "task_runs", "flow_engine", "engine"):
        logger = get_logger(name)
        if not any(isinstance(known, UserErrors) for known in logger.filters):
            logger.addFilter(UserErrors())
