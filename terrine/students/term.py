"""What a kind of student adds to the loss of the answers: a term on images that have none."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from terrine.students.inputs import Inputs


class UnlabelledTerm(Protocol):
    """What a kind of student adds to the loss: a function of images without answers, and its own state.

    ratio: images without answers in a step, in multiples of the batch of answers. strengths: which views of images it
    looks at, `weak` and `strong`.
    """

    ratio: int
    strengths: tuple[str, ...]

    def loss(self, inputs: Inputs, rows: np.ndarray, seed: int) -> Tensor:
        """Return the term, weighted, for the images `rows` of one group; `seed` is the step's own."""

    def state(self) -> dict[str, Tensor]:
        """Return what changes from step to step, by name; a checkpoint keeps it. Equal names at every time."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Take the state that `state` returned."""
