"""A student for one image at a time: what it says of an image in company, learned without the company.

A student normalises with the statistics of its batch, so its answer for an image depends on the others. Fixed
statistics cost it ten points and more, because public images are not like private ones, and what tells them apart (most
of it the mean of each feature) is what a batch would have taken away. This student learns to take it away by itself:

1. Public images are turned into many random domains (`terrine.deployment.domains`).
2. In each, the student is asked about a batch that is balanced over its own answers, under current statistics.
3. One linear map from fixed features, whose statistics were recorded over all domains, is fitted to its scores in
   all domains at once (ridge regression, in closed form). A direction in which domains differ and classes do not is of
   no use to it, so it learns to look elsewhere.

Everything is a function of the student, public images and a seed: post-processing, which costs no privacy.
docs/serving.md has the figures.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from terrine.classifiers import Head, LinearHead
from terrine.deployment.domains import PROGRAMS, draw_domain
from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.models.backbone import Backbone
from terrine.models.registry import build_backbone
from terrine.models.scattering import ScatteringNetwork
from terrine.models.statistics import batch_statistics, has_batch_norm, record_statistics
from terrine.synthetic.registry import LARGEST_SIZE, SMALLEST_SIZE, draw

DOMAINS, FEWEST_DOMAINS = 400, 100
"""Domains for images of 28 x 28 grey pixels; fewer for larger ones, whose features cost more."""

DRAWN, KEPT = 96, 64
"""Images of a domain that are drawn, and how many of them, balanced over the student's answers, are learned from."""

RECORDED = 32
"""Domains over which the fixed statistics are recorded."""

WIDEST = 4000
"""Features above this number are reduced to it at random for the regression, which costs the cube of their number."""

RIDGE = 0.1
"""Strength of the ridge, as a share of a feature's mean square."""

_POOL, _TOGETHER = 1000, 8


def student_alone(
    backbone: Backbone,
    head: Head,
    images: Sequence[np.ndarray],
    *,
    seed: int,
    device: torch.device | str = "cpu",
    domains: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Backbone, LinearHead] | None:
    """Return the backbone and head that answer for one image at a time as the student does in company.

    backbone, head: the student's. images: its public images by source, uint8 [N, C, H, W]. domains: how many are
    learned from; None decides by the images' size and number. None is returned for a backbone without batch
    normalisation: its answers do not depend on company.
    """
    if not has_batch_norm(backbone.network):
        return None
    channels, size = backbone.channels, backbone.size
    if domains is None:
        affordable = max(FEWEST_DOMAINS, min(DOMAINS, DOMAINS * 28 * 28 // (channels * size * size)))
        domains = min(affordable, sum(map(len, images)) // 8 + 1)  # a student of few answers is worth no more
    pools = [np.ascontiguousarray(source[: 3 * _POOL]) for source in images]
    if SMALLEST_SIZE <= size <= LARGEST_SIZE and channels in (1, 3):
        pools += [
            draw(kind, seed=seed, first=0, count=_POOL, size=size, channels=channels).numpy() for kind in PROGRAMS
        ]
    student = nn.Sequential(copy.deepcopy(backbone.network), head.module()).to(device).eval().requires_grad_(False)
    fixed = _fixed_features(backbone).to(device)

    def learned_from(number: int) -> Tensor:
        drawn = draw_domain(pools, number, DRAWN, numpy_generator(seed, "domain", number)).to(device)
        return drawn[_balanced(student, drawn)]

    def record(count: int) -> None:
        record_statistics(fixed.network, (learned_from(number) for number in range(count)), "all")

    # By one worker, as all sums here: several threads would round them differently.
    list(side_by_side(record, [min(RECORDED, domains)], device))
    width = fixed.feature_dim
    reduce = None
    if width > WIDEST:
        generator = torch_generator(seed, "reduction of features", width)
        reduce = (torch.randn(width, WIDEST, generator=generator) / math.sqrt(width)).to(device)

    @torch.no_grad()
    def moments(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        features, scores = [], []
        for number in numbers:
            own = learned_from(number)
            with batch_statistics(student, "current"):
                answers = student(own).float()
            scores.append(answers - answers.mean(1, keepdim=True))
            values = fixed.network(own).float()
            features.append(values if reduce is None else values @ reduce)
        x = torch.nn.functional.pad(torch.cat(features), (0, 1), value=1.0)
        return (x.T @ x).cpu(), (x.T @ torch.cat(scores)).cpu()

    kept = min(width, WIDEST)
    gram = torch.zeros(kept + 1, kept + 1)
    cross = torch.zeros(kept + 1, head.classes)
    parts = [range(first, min(first + _TOGETHER, domains)) for first in range(0, domains, _TOGETHER)]
    for done, (own_gram, own_cross) in enumerate(side_by_side(moments, parts, device), 1):
        gram += own_gram
        cross += own_cross
        if progress is not None:
            progress(done / len(parts), f"learned to answer for one image: {done} of {len(parts)} parts")
    ((weight, bias),) = side_by_side(lambda _: _ridge(gram, cross, reduce), [0])
    return _assembled(fixed.cpu(), weight, bias)


def _ridge(gram: Tensor, cross: Tensor, reduce: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight [D, K] and bias [K] of ridge regression; the last feature is the constant, which is not shrunk."""
    size = len(gram) - 1
    strength = RIDGE * float(gram.diagonal()[:size].mean())
    penalty = torch.full((size + 1,), strength)
    penalty[size] = 1e-6 * strength
    solution = torch.linalg.solve((gram + torch.diag(penalty)).double(), cross.double()).float()
    weight, bias = solution[:size], solution[size]
    return (weight if reduce is None else reduce.cpu() @ weight), bias


@torch.no_grad()
def _balanced(student: nn.Module, images: Tensor) -> Tensor:
    """Return the numbers of `KEPT` images of a domain over which the student's own answers are balanced best."""
    with batch_statistics(student, "current"):
        labels = student(images).argmax(1).cpu().numpy()
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        rank[own] = np.arange(len(own))
    return torch.from_numpy(np.sort(np.lexsort((labels, rank))[:KEPT]))


def _fixed_features(backbone: Backbone) -> Backbone:
    """Return a copy of the backbone; of scattering all coefficients, of which the student's are a projection."""
    if isinstance(backbone.network, ScatteringNetwork) and backbone.network.projection is not None:
        return _scattering(backbone, None)
    return copy.deepcopy(backbone)


def _scattering(backbone: Backbone, projection: int | None) -> Backbone:
    described = backbone.describe()
    options = {**described["options"], "projection": projection}
    return build_backbone(described["kind"], channels=backbone.channels, size=backbone.size, seed=0, **options)


def _assembled(fixed: Backbone, weight: Tensor, bias: Tensor) -> tuple[Backbone, LinearHead]:
    """Return backbone and head; of scattering the map becomes the projection, a column a class."""
    if isinstance(fixed.network, ScatteringNetwork):
        made = _scattering(fixed, weight.shape[1])
        made.network.load_state_dict({**fixed.network.state_dict(), "projection": weight})
        return made, LinearHead(np.eye(weight.shape[1], dtype=np.float32), bias.numpy())
    return fixed, LinearHead(np.ascontiguousarray(weight.numpy().T), bias.numpy())
