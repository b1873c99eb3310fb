"""What makes a training a function of its arguments: a thread of its own, and a name for all it reads."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from terrine.students.by_gradient import GradientStudent
from terrine.students.material import Material
from terrine.students.sampling import AnswerSplit


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Let small products be computed by one thread: the same bits on any number of cores, and no slower."""
    threads = torch.get_num_threads()
    try:
        if wanted:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def identity(
    material: Material, settings: GradientStudent, percent: float, seed: int, split: AnswerSplit
) -> dict[str, Any]:
    """Describe everything the result depends on; of the images, their number and a sample of up to 64."""

    def digest(*arrays: np.ndarray) -> str:
        summary = hashlib.sha256()
        for array in arrays:
            summary.update(np.ascontiguousarray(array).tobytes())
        return summary.hexdigest()

    images = material.pool.images
    weights = [value.detach().cpu().numpy() for value in material.backbone.state_dict().values()]
    return {
        "settings": settings.model_dump(mode="json", exclude={"batch"}),
        "trainable": percent,
        "seed": seed,
        "statistics": material.statistics,
        "answers": digest(np.asarray(material.rows), material.answers.targets),
        "likelihood": material.answers.described,
        "held out": digest(split.held_out),
        "images": {"shape": list(images.shape), "sample": digest(images[:: max(1, len(images) // 64)])},
        "backbone": {**material.backbone.describe(), "weights": digest(*weights)},
    }
