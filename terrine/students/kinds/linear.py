"""The linear student: one head on the frozen public backbone (`terrine.students.linear`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from terrine.students.student import Progress, Student

if TYPE_CHECKING:
    import torch

    from terrine.students.material import Material, TrainedStudent


class LinearStudent(Student):
    """One head on the frozen public backbone, fitted exactly: nothing to tune but the strength of its prior, `l2`."""

    kind: Literal["linear"] = "linear"

    def train(
        self,
        material: Material,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> TrainedStudent:
        """See `Student.train`. The fit takes seconds, so nothing is kept in `work`."""
        from terrine.students.linear import fit
        from terrine.students.material import TrainedStudent

        features = material.features(device)[material.rows]
        head = fit(features, material.answers, self.l2, seed=seed, device=device)
        if progress is not None:
            progress(1.0, f"fitted to {len(features)} answers")
        return TrainedStudent(head)
