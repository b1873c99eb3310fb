"""What a kind of student adds to the loss of the answers: a term on images that have none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from terrine.students.inputs import Inputs

if TYPE_CHECKING:
    from terrine.students.semi_supervised import SemiSupervisedStudent


class UnlabelledTerm(ABC):
    """What a kind of student adds to the loss: a function of images without answers, and its own state.

    ratio: images without answers in a step, in multiples of the batch of answers.
    """

    strengths: ClassVar[tuple[str, ...]] = ()
    """Which views of images it looks at, `weak` and `strong`."""

    def __init__(self, settings: SemiSupervisedStudent) -> None:
        self.settings, self.ratio = settings, settings.unlabelled_ratio

    @abstractmethod
    def loss(self, inputs: Inputs, rows: np.ndarray, seed: int) -> Tensor:
        """Return the term, weighted, for the images `rows` of one group; `seed` is the step's own."""

    def state(self) -> dict[str, Tensor]:
        """Return what changes from step to step, by name; a checkpoint keeps it. Equal names at every time."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:  # noqa: B027  # most terms have no state
        """Take the state that `state` returned."""
