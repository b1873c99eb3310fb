"""DP-FedAvg of linear heads on frozen features: what the same parties could train together instead of voting.

Every round each party starts from the common head, takes some gradient steps on its own records and hands in the
difference. Differences are clipped to a norm S, summed, and the sum is released with Gaussian noise of deviation zS
on every weight (McMahan et al. 2018, with every party in every round). The next round starts from the released sum, so
rounds compose adaptively.

Accounting, exact. The unit is the one of PATE: one record, which lies with one party. Exchanging, adding or removing
it replaces that party's clipped difference by another of norm at most S, so the sum moves by at most 2S: a round is a
Gaussian mechanism with sensitivity 2S and deviation zS, μ = 2/z, and R rounds are μ² = 4R/z², whatever S is.

Updates are cut towards zero to the lattice that the noise is drawn on (`terrine.privacy.noise`), which keeps sums
exact and norms below S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.classifiers import LinearHead
from terrine.determinism.parallel import side_by_side
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.noise import NoiseSource, lattice_step

_BLOCK_BYTES = 2**25  # features of the parties that are trained in one part


@dataclass(frozen=True)
class FedAvgSettings:
    """How a federation trains.

    rounds: how often the parties' differences are added up.
    local_steps: gradient steps of a party in a round, each on all of its records.
    learning_rate: of a local step, on features that are scaled to a mean squared norm of about one (`scale`).
    clip: S, the largest norm of a party's difference in a round.
    server_rate: how far the common head follows the mean difference.
    scale: public factor that features are multiplied by; None takes 1/√features, right for standardised ones.
    """

    rounds: int = 20
    local_steps: int = 5
    learning_rate: float = 1.0
    clip: float = 1.0
    server_rate: float = 1.0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.local_steps < 1:
            raise SettingError(
                f"DP-FedAvg takes at least one round and step, not {self.rounds} and {self.local_steps}."
            )
        values = {"learning_rate": self.learning_rate, "clip": self.clip, "server_rate": self.server_rate}
        for name, value in values.items() | ({} if self.scale is None else {"scale": self.scale}).items():
            if not 0 < value < math.inf:
                raise SettingError(f"{name} of DP-FedAvg is a number greater than 0, got {value!r}.")


@dataclass(frozen=True, eq=False)
class Federated:
    """What a federation releases, and what it cost: the head of every round is released, the last one is kept."""

    head: LinearHead
    event: Event
    noise_multiplier: float


def noise_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """z, so that R rounds cost exactly ε at δ: z = 2√R / μ(ε, δ).

    Raises SettingError for an impossible budget.
    """
    return 2.0 * math.sqrt(rounds) / mu_of(epsilon, delta)


def train(
    features: np.ndarray,
    labels: np.ndarray,
    assignment: np.ndarray,
    parties: int,
    classes: int,
    settings: FedAvgSettings,
    *,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
) -> Federated:
    """Train a head on the records of all parties within a budget.

    Args:
        features: float32 [records, features], each party's computed from its own records alone.
        labels: int64 [records], 0 .. classes - 1.
        assignment: int64 [records], the party of each record; a party without records hands in zero.
        parties: N.
        classes: Number of classes.
        settings: How.
        epsilon: The budget of all rounds together, exact.
        delta: δ in (0, 1).
        noise: Where the noise comes from.

    Raises:
        InputError: arrays that do not fit together.
        SettingError: an impossible budget.
    """
    _check(features, labels, assignment, parties, classes)
    multiplier = noise_multiplier(epsilon, delta, settings.rounds)
    sigma = multiplier * settings.clip
    step = lattice_step(sigma)
    scale = settings.scale or 1.0 / math.sqrt(features.shape[1])
    # Bias and weights as one matrix: a feature that is always one.
    weights = np.zeros((classes, features.shape[1] + 1), np.float64)
    rows = [np.flatnonzero(assignment == party) for party in range(parties)]
    for _ in range(settings.rounds):
        total = np.zeros_like(weights)
        for updates in _local_updates(features, labels, rows, weights, classes, scale, settings):
            for update in updates:
                total += on_lattice(clipped(update, settings.clip), step)
        total += noise.gaussian(total.shape, sigma)
        weights += settings.server_rate * total / parties
    head = LinearHead((weights[:, :-1] * scale).astype(np.float32), weights[:, -1].astype(np.float32))
    event = RepeatedEvent(GaussianEvent(sensitivity=2.0 * settings.clip, sigma=sigma), settings.rounds)
    return Federated(head, event, multiplier)


def clipped(update: np.ndarray, norm: float) -> np.ndarray:
    """`update`, shortened to `norm` where it is longer; what is not finite counts as nothing."""
    length = float(np.linalg.norm(update))
    if not math.isfinite(length):
        return np.zeros_like(update)
    # A hair below, so that rounding of the product never leaves the ball.
    return update if length <= norm else update * (norm / length * (1 - 1e-12))


def on_lattice(update: np.ndarray, step: float) -> np.ndarray:
    """`update` cut towards zero to whole multiples of `step`: no coordinate grows."""
    return np.asarray(np.trunc(update / step) * step)


def _local_updates(
    features: np.ndarray,
    labels: np.ndarray,
    rows: Sequence[np.ndarray],
    weights: np.ndarray,
    classes: int,
    scale: float,
    settings: FedAvgSettings,
):  # type: ignore[no-untyped-def]
    """Yield arrays [parties, classes, features + 1]: how far each party with records moves the common head."""
    by_size: dict[int, list[np.ndarray]] = {}
    for own in rows:
        if len(own):
            by_size.setdefault(len(own), []).append(own)
    start = torch.from_numpy(weights).float()

    def compute(part: list[np.ndarray]) -> np.ndarray:
        index = np.stack(part)
        inputs = torch.from_numpy(features[index]) * scale
        inputs = torch.cat([inputs, torch.ones(*inputs.shape[:2], 1)], dim=2)
        targets = F.one_hot(torch.from_numpy(labels[index].astype(np.int64)), classes).float()
        moved = local_training(inputs, targets, start, settings)
        return (moved - start).double().numpy()

    parts = []
    for size, group in by_size.items():
        most = max(1, _BLOCK_BYTES // (4 * size * features.shape[1]))
        parts += [group[first : first + most] for first in range(0, len(group), most)]
    yield from side_by_side(compute, parts)


def local_training(inputs: Tensor, targets: Tensor, start: Tensor, settings: FedAvgSettings) -> Tensor:
    """Return each party's head after its local steps on mean cross-entropy: [parties, classes, features].

    inputs: [parties, records, features]; targets: one-hot [parties, records, classes]; start: [classes, features].
    """
    weights = start.expand(len(inputs), *start.shape).clone()
    for _ in range(settings.local_steps):
        errors = torch.softmax(torch.bmm(inputs, weights.mT), dim=2) - targets
        weights -= settings.learning_rate * torch.bmm(errors.mT, inputs) / inputs.shape[1]
    return weights


def _check(features: np.ndarray, labels: np.ndarray, assignment: np.ndarray, parties: int, classes: int) -> None:
    if features.ndim != 2 or labels.shape != (len(features),) or assignment.shape != (len(features),):
        raise InputError(
            f"Features of shape {features.shape}, labels of shape {labels.shape} and an assignment of shape "
            f"{assignment.shape} do not fit together: give one label and one party per record."
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise InputError(f"Labels run from {labels.min()} to {labels.max()}, outside 0..{classes - 1}.")
    if len(assignment) and not (assignment.min() >= 0 and assignment.max() < parties):
        raise InputError(f"The assignment names party {assignment.max()}, and there are {parties}.")
