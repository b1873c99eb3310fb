"""What the terminal shows of the libraries' logs: an error a user can act on is a sentence, not a traceback."""

from __future__ import annotations

import logging

from terrine.errors import TerrineError


class UserErrors(logging.Filter):
    """Shortens log records about a TerrineError to its sentence; defects keep their traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, TerrineError):
            record.msg, record.args = str(error), None
            record.exc_info = record.exc_text = None
        return True


def quiet_logs() -> None:
    """Shorten users' errors in Prefect's logs and keep DVC's and Alembic's routine messages to themselves."""
    from prefect.logging import get_logger

    for name in ("flow_runs", "task_runs", "flow_engine", "engine"):
        logger = get_logger(name)
        if not any(isinstance(known, UserErrors) for known in logger.filters):
            logger.addFilter(UserErrors())
    logging.getLogger("dvc").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
