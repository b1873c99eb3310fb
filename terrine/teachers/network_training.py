"""Training and voting of single networks: Train `scratch` and `finetune` teachers, and compute their votes.

A teacher is trained by Adam on the cross-entropy of its own records, which its own generator shuffles in every epoch
and which are cut into near-equal batches. During training, dropout is off and batch normalisation is stateless
(`terrine.models.statistics`): no running average is updated, and teachers stay independent.

Teachers are trained and vote one by one on every device: on the CPU concurrently, each by one thread; on an accelerator
one after the other. CUDA always uses bfloat16 mixed precision for training and float32 for voting. Teachers could share
a computation (`torch.func.vmap`) only if they had equally many records, so the record counts of others would determine
a teacher's arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.determinism.parallel import side_by_side
from terrine.device import fixed_kernels, mixed_precision
from terrine.errors import ArtefactError, InputError
from terrine.heads import initial_head
from terrine.models.backbone import as_float
from terrine.models.statistics import Statistics, batch_statistics, has_batch_norm, min_batch_size
from terrine.queries import Queries
from terrine.teachers.records import Arrays, vote_type

if TYPE_CHECKING:
    from terrine.teachers.networks import NetworkTeachers


class Classifier(nn.Module):
    """Network with a linear head, from uint8 or float images [B, C, H, W] to scores [B, classes]."""

    def __init__(self, network: nn.Module, features: int, classes: int, seed: int) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self.head = initial_head(features, classes, seed).module()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.network(as_float(images)))


def least_records(network: nn.Module, statistics: Statistics) -> int:
    """Return how many records a network needs to learn: two if it normalises a batch by its own statistics, else one.

    A network without batch normalisation needs one under all statistics.
    """
    return min_batch_size(statistics) if has_batch_norm(network) else 1


def epoch_batches(
    records: int, batch: int | None, generator: torch.Generator, device: torch.device | str = "cpu"
) -> list[Tensor]:
    """Return one epoch's shuffled batches: near-equal parts of a permutation of the records."""
    order = torch.randperm(records, generator=generator).to(device)  # a single transfer, since each one blocks
    return list(torch.tensor_split(order, count_batches(records, batch)))


def count_batches(records: int, batch: int | None) -> int:
    """Return the number of near-equal batches of at most `batch` records, none with fewer than two.

    Three records with a batch of two are one batch of three, since a batch of one has no statistics.
    """
    return max(1, min(-(-records // (batch or records)), records // 2))


def train_classifier(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    statistics: Statistics,
    settings: NetworkTeachers,
) -> None:
    """Train one classifier in place on uint8 images [records, C, H, W] and labels int64 [records]."""
    learned = [value for value in classifier.parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [value for value in learned if value.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [value for value in learned if value.ndim <= 1]},
    ]
    # Fused: one kernel launch instead of eight per tensor, which would take half of a step on an accelerator.
    adam = torch.optim.Adam(groups, lr=settings.learning_rate, fused=True)
    with batch_statistics(classifier, statistics):
        for _ in range(settings.epochs):
            for index in epoch_batches(len(images), settings.batch, generator, images.device):
                forget_attention(classifier)
                with mixed_precision(images.device):
                    loss = F.cross_entropy(classifier(images[index]), labels[index])
                adam.zero_grad(set_to_none=True)
                loss.backward()
                adam.step()


@torch.no_grad()
def vote_with_networks(
    states: Iterable[Arrays],
    frame: Classifier,
    queries: Queries,
    statistics: Statistics,
    *,
    device: torch.device | str,
) -> np.ndarray:
    """Return every teacher's class for every query. Ties go to the lower class.

    Teachers vote one by one, and on the CPU each labels several batches concurrently. Under `current` statistics each
    of the fixed batches is normalised separately.

    Args:
        states: Arrays that replace entries of the classifier `frame`, one teacher after the other; may be lazy.
        frame: Classifier into which the states are loaded; it stays unchanged.
        queries: Public images, uint8 [queries, C, H, W], with fixed batches that contain each query once.
        statistics: Batch normalisation statistics: `current`, `original` or `halfway`.
        device: Device of the computation.

    Returns:
        Unsigned integers [queries, teachers].

    Raises:
        InputError: The images have another type, or the batches do not cover the queries.
        ArtefactError: A teacher's state does not match the network.
    """
    device = torch.device(device)
    images, votes_as = queries.inputs, vote_type(frame.classes)
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"Networks vote on images, uint8 [queries, C, H, W], not on {images.dtype} {images.shape}.")
    covered = np.sort(np.concatenate([np.asarray(batch) for batch in queries.batches]))
    if not np.array_equal(covered, np.arange(len(images))):
        raise InputError(f"The batches do not contain each of {len(images)} queries once.")
    frame = copy.deepcopy(frame).to(device)
    columns: list[np.ndarray] = []
    names: set[str] | None = None
    for state in states:
        if names not in (None, set(state)):
            raise ArtefactError(
                "Teachers have different arrays, so their settings differed: run the stage 'teach' again."
            )
        names = set(state)
        load_state(frame, state)
        votes = np.empty(len(images), votes_as)

        @torch.no_grad()
        def compute(batch: np.ndarray, votes: np.ndarray = votes) -> None:
            inputs = torch.from_numpy(np.ascontiguousarray(images[batch])).to(device)
            with batch_statistics(frame, statistics), fixed_kernels(device):
                votes[batch] = frame(inputs).argmax(dim=1).cpu().numpy()

        for _ in side_by_side(compute, queries.batches, device):
            pass
        columns.append(votes)
    return np.stack(columns, axis=1) if columns else np.empty((len(images), 0), votes_as)


def load_state(classifier: Classifier, state: Arrays) -> None:
    """Replace entries of `classifier` by the arrays of `state`. Raises ArtefactError if they do not fit."""
    entries = classifier.state_dict()
    for name, value in state.items():
        if name not in entries or tuple(entries[name].shape) != value.shape:
            raise ArtefactError(
                f"A teacher's array '{name}' does not fit its network. The teachers were trained with other settings "
                "or another backbone: run the stage 'teach' again."
            )
        entries[name].copy_(torch.from_numpy(np.array(value)))
    forget_attention(classifier)


def forget_attention(module: nn.Module) -> None:
    """Clear the caches of timm's attention layers in evaluation mode, since the weights change."""
    for layer in module.modules():
        if getattr(layer, "attention_bias_cache", None):
            layer.attention_bias_cache = {}  # type: ignore[assignment]
