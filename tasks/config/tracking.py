"""The section `tracking`: MLflow."""

from __future__ import annotations

from typing import Annotated

from terrine.settings import AtHome, Settings


class Tracking(Settings):
    """MLflow."""

    uri: Annotated[str, AtHome()] = "sqlite:///mlflow.db"
    """Where MLflow keeps runs: a database or a server."""
    experiment: str = "terrine"
    """The experiment that runs are listed under."""
    private_metrics: bool | None = None
    """Log figures that are functions of private records: votes, and what private stages cost. null: where the data are
    a public benchmark; true is refused for any other."""
    register_student: bool = True
    """Log the student as an MLflow model, ready to be served, and register it under the run's name."""
