"""DP-FedAvg of linear heads on frozen features: what the same parties could train together instead of voting.

Every round each party starts from the common head, takes some gradient steps on its own records and hands in the
difference. The clipped sum of the differences is released with noise (`terrine.privacy.noised_sum`; McMahan et al.
2018, with every party in every round). The next round starts from the released sum, so rounds compose adaptively.

Accounting, exact. The unit is the one of PATE: one record, which belongs to one party. Exchanging, adding or removing
it exchanges that party's clipped difference: a round is μ = 2/z, and R rounds are μ² = 4R/z², for any S.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.determinism.parallel import side_by_side
from terrine.heads import LinearHead
from terrine.privacy.accounting.events import Event, RepeatedEvent
from terrine.privacy.noise import NoiseSource
from terrine.privacy.noised_sum import ClippedSum, noise_multiplier_for

_BLOCK_BYTES = 2**25  # features of the parties that are trained in one part


@dataclass(frozen=True)
class FedAvgSettings:
    """Training settings of a federation.

    rounds: how often the parties' differences are added up.
    local_steps: gradient steps of a party in a round, each on all of its records.
    learning_rate: of a local step, on features that are scaled to a mean squared norm of about one (`scale`).
    clip: S, the largest norm of a party's difference in a round.
    scale: public factor that features are multiplied by; None takes 1/√features, right for standardised ones.
    """

    rounds: int = 20
    local_steps: int = 5
    learning_rate: float = 1.0
    clip: float = 1.0
    scale: float | None = None


@dataclass(frozen=True, eq=False)
class Federated:
    """Release of a federation and its cost; every round's head is released, and the last one kept."""

    head: LinearHead
    event: Event
    noise_multiplier: float


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
    """Train a head on the records of all parties within a budget, exact, of all rounds together.

    features: float32 [records, features], computed per party. labels: int64 [records].
    assignment: int64 [records], the party of each record; a party without records hands in zero. Raises SettingError
    for an impossible budget.
    """
    released = ClippedSum(settings.clip, noise_multiplier_for(epsilon, delta, 1.0, settings.rounds))
    scale = settings.scale or 1.0 / math.sqrt(features.shape[1])
    # Bias and weights as one matrix: a feature that is always one.
    weights = np.zeros((classes, features.shape[1] + 1), np.float64)
    rows = [np.flatnonzero(assignment == party) for party in range(parties)]
    for _ in range(settings.rounds):
        updates = _local_updates(features, labels, rows, weights, classes, scale, settings)
        total = released.release((group.reshape(len(group), -1) for group in updates), noise)
        weights += total.reshape(weights.shape) / parties
    head = LinearHead((weights[:, :-1] * scale).astype(np.float32), weights[:, -1].astype(np.float32))
    return Federated(head, RepeatedEvent(released.event, settings.rounds), released.noise_multiplier)


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
