"""How well a frozen backbone's features tell image programs apart: a public measure of pretraining's progress.

The labels are made, not collected: which image program, or which of its families, drew an image. A linear classifier on
the features of half of the images is asked about the other half. Nothing private is looked at, so the figure may be
logged, compared and used to choose a setting.
"""

import numpy as np
import torch

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.statistics import Statistics


def probe(
    backbone: Backbone,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    statistics: Statistics = "original",
    batch: int = 256,
    penalty: float = 1e-2,
) -> float:
    """Return the held-out accuracy, from 0 to 1, of a ridge classifier on the features of synthetic images.

    images: uint8 [N, C, H, W]; labels: integers [N] from 0 on, the program that drew each. The images are shuffled
    (so that a batch mixes programs) and halved by `seed`; features are standardised by the training half; `penalty` is
    relative to the number of training images. Closed form, so the same arguments give the same figure.

    Raises InputError when images and labels do not match, or there are fewer than two classes or four batches' images.
    """
    if len(images) != len(labels) or labels.ndim != 1:
        raise InputError(f"probe: {len(images)} images, but labels of shape {labels.shape}. Give one label per image.")
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2 or labels.min() < 0 or len(images) < 4:
        raise InputError(f"probe: {len(images)} images of {classes} class(es). Give images of two classes or more.")
    order = numpy_generator(seed, "probe").permutation(len(images))
    count = max(1, round(len(order) / batch))
    features = features_in_batches(backbone, images, np.array_split(order, count), statistics, device)
    train, test = np.array_split(order, 2)
    mean, deviation = features[train].mean(0, dtype=np.float64), features[train].std(0, dtype=np.float64)
    features = (features - mean) / np.where(deviation > 0, deviation, 1.0)
    targets = np.eye(classes)[labels[train]]
    gram = features[train].T @ features[train] + penalty * len(train) * np.eye(features.shape[1])
    weights = np.linalg.solve(gram, features[train].T @ (targets - targets.mean(0)))
    predicted = (features[test] @ weights + targets.mean(0)).argmax(1)
    return float(np.mean(predicted == labels[test]))
