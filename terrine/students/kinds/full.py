"""The whole network: every weight of the backbone, and the head, on the released answers alone."""

from typing import Literal

from terrine.students.by_gradient import GradientStudent


class FullStudent(GradientStudent):
    """Every weight of the backbone, and the head, trained on the released answers alone."""

    kind: Literal["full"] = "full"

    @property
    def share(self) -> float:
        return 100.0
