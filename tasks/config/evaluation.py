"""The section `evaluation`: what may be said of the student's accuracy on private records."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from terrine.settings import Settings


class Evaluation(Settings):
    """What may be said of the student's accuracy on the private test split."""

    epsilon: float | None = Field(None, gt=0, le=8)
    """Price of one noised accuracy, at aggregation.delta: it is charged to the account, and may be published and
    compared. null: none is released, and the accuracy stays a private figure."""

    def check(self, run: Any) -> None:
        """Raise ValueError for a transcription, which releases no accuracy."""
        if self.epsilon is not None and run.transcription is not None:
            raise ValueError("evaluation.epsilon is for runs whose teachers vote: a transcription releases no accuracy")
