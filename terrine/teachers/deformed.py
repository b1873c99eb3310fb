"""Deformed copies: a teacher of few records learns each image as it is, and as it is when it is moved a little.

A teacher's bias is the ensemble's: a majority of teachers who each saw forty digits errs where forty digits mislead,
with however little noise. Copies are what a teacher can know beyond its records without asking anybody: a digit that
is turned or shifted a little is the same digit.

    images = DeformedCopies(images, assignment, settings.copies, settings.deformations, seed=seed)
    features = private_features(backbone, images, settings.repeated(assignment), ...)

Guarantee: how a record's copies are deformed follows from the seed, its teacher's number, the size of its own part
and its place there, and from no other teacher's records, not even their number. Copies are their teacher's records in
all that follows: what one unit can move stays one teacher.
"""

from __future__ import annotations

import numpy as np
import torch

from terrine.determinism.randomness import torch_generator
from terrine.models.backbone import as_float
from terrine.models.invariance import deform_by, draw_amounts
from terrine.models.kinds.scattering import Deformations
from terrine.npy import Rows


class DeformedCopies:
    """uint8 images [records · (1 + copies), C, H, W]: all images, then the first copy of each, then the second ...

    A copy is drawn when it is asked for: an index array gives an array, as of an array in memory.
    """

    def __init__(
        self, images: Rows, assignment: np.ndarray, copies: int, deformations: Deformations, *, seed: int
    ) -> None:
        self._images, self._deformations = images, deformations
        self._amounts = torch.zeros(copies, len(images), 5)
        order = np.argsort(assignment, kind="stable")
        teachers, starts = np.unique(assignment[order], return_index=True)
        for teacher, part in zip(teachers.tolist(), np.split(order, starts[1:]), strict=False):
            generator = torch_generator(seed, "deformed copies", teacher)
            drawn = draw_amounts(len(part) * copies, generator).view(len(part), copies, 5)
            self._amounts[:, torch.from_numpy(part)] = drawn.transpose(0, 1)
        self._count = len(images) * (1 + copies)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        copy, record = np.divmod(np.asarray(numbers), len(self._images))
        found = np.array(self._images[record])
        moved = np.flatnonzero(copy)
        if len(moved):
            amounts = self._amounts[torch.from_numpy(copy[moved] - 1), torch.from_numpy(record[moved])]
            levels = deform_by(as_float(torch.from_numpy(found[moved])), self._deformations, amounts)
            found[moved] = levels.mul_(255).round_().clamp_(0, 255).to(torch.uint8).numpy()
        return found
