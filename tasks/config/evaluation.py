"""The section `evaluation`: what may be said of the student's accuracy on private records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from terrine.settings import AtHome, Settings


class Evaluation(Settings):
    """What may be said of the student's accuracy on the private test split."""

    epsilon: float | None = Field(None, gt=0, le=8)
    """Price of one noised accuracy, at aggregation.delta: it is charged to the account, and may be published and
    compared. null: none is released, and the accuracy stays a private figure."""

    specificity: float = Field(0.9, gt=0, lt=1)
    """At which specificity sensitivities are given: the share of records of other classes that raise no alarm."""

    subgroups: Annotated[Path | None, AtHome()] = None
    """A CSV file: its first column names test records as the data do (path, id or group), each other one says to which
    subgroup they belong (scanner, site, sex, age band). Accuracy is shown for each, privately."""

    released_subgroups: dict[str, tuple[str, ...]] = Field({})
    """Columns of `subgroups` with the values, public, whose accuracy is released as well, such as {sex: [f, m]}: the
    price stays `epsilon`, and each column makes all figures of it less certain."""

    def check(self, run: Any) -> None:
        """Raise ValueError for subgroups without price or table, and a transcription, which releases no accuracy."""
        for column, values in self.released_subgroups.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"evaluation.released_subgroups: {column} needs values, each named once")
        if self.released_subgroups and (self.epsilon is None or self.subgroups is None):
            raise ValueError(
                "evaluation.released_subgroups needs evaluation.epsilon, its price, and evaluation.subgroups, the "
                "table that says whose records are which"
            )
        if self.epsilon is not None and run.transcription is not None:
            raise ValueError("evaluation.epsilon is for runs whose teachers vote: a transcription releases no accuracy")
