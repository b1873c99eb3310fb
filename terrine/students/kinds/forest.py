"""The forest student: trees on the frozen public backbone's features, or on a table's columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from terrine.settings import Field, Unit
from terrine.students.student import Progress, Student

if TYPE_CHECKING:
    import torch

    from terrine.students.material import Material, TrainedStudent


class ForestStudent(Student):
    """A random forest on features, fitted to released shares of votes or labels."""

    kind: Literal["forest"] = "forest"
    trees: int = Field(100, ge=1, le=1000)
    """How many."""
    least: Annotated[int | None, Unit("answers")] = Field(None, ge=1)
    """Fewest answers in a leaf; null chooses it on released answers."""

    def train(
        self,
        material: Material,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> TrainedStudent:
        """See `Student.train`. Trees grow on the CPU in seconds, so nothing is kept in `work`."""
        from terrine.students.forest import fit
        from terrine.students.material import TrainedStudent

        features = material.features(device)[material.rows]
        head = fit(features, material.answers, trees=self.trees, least=self.least, seed=seed)
        if progress is not None:
            progress(1.0, f"{self.trees} trees fitted to {len(features)} answers")
        return TrainedStudent(head)

    def check(self, run: Any) -> None:
        """See `Settings.check`: it has no head that a prior, smoothing or a correction could act on."""
        super().check(run)
        given = {"l2": self.l2, "label_smoothing": self.label_smoothing, "forward_correction": self.forward_correction}
        for name, value in given.items():
            if value:
                raise ValueError(f"student.{name}={value} has no meaning for student.kind=forest. Leave it out")
