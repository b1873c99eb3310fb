"""SimCLR: train a backbone on synthetic images to recognise two views of one image (Chen et al. 2020).

Adam with rate 3e-4, batches of 256 and projections of width 128 are those of DIET-PATE (Anonymous 2025, appendix A).
The paper does not state temperature, weight decay or schedule. The first two are from a public implementation with the
same settings (sthalles/SimCLR). That code starts to anneal after ten epochs, so slowly that the rate is almost constant
(`schedule: constant`); the default anneals to zero over the whole run (`cosine`).

A run is a function of (backbone, images, settings, seed) on one kind of device. The order of the images, the views and
all other randomness of step k are derived from (seed, k), so a checkpoint needs no generator state. A run that is
killed at any moment and restarted ends with the same bits as an uninterrupted one.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.device import mixed_precision, reproducible
from terrine.errors import InputError, SettingError
from terrine.geometry import size_of
from terrine.models.backbone import Backbone
from terrine.npy import Rows
from terrine.pretraining.augment import ViewSettings, apply_views, draw_views
from terrine.pretraining.checkpoint import optimizer_tensors, part, read_checkpoint, restore_optimizer, write_checkpoint
from terrine.pretraining.settings import SimCLRSettings

_REPORT_SECONDS = 1.0
_RESIDENT_FRACTION = 0.5
_RESIDENT_SLICE = 10_000  # images read from their files at a time

_logger = logging.getLogger(__name__)

Progress = Callable[[float, str], None]
"""Progress function, called with (fraction done, description)."""

VIEWS = ViewSettings()
"""Random changes of the views."""


class _Learner(nn.Module):
    """A backbone's trainable part with SimCLR's projection head: views [B, C, H, W] to projections [B, projection]."""

    def __init__(self, backbone: Backbone, projection: int) -> None:
        super().__init__()
        self.network, width = backbone.trainable()
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))

    def forward(self, views: Tensor) -> Tensor:
        return self.head(self.network(views))


def pretrain(
    backbone: Backbone,
    images: Rows,
    settings: SimCLRSettings,
    *,
    seed: int,
    device: torch.device | str,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """Train `backbone` in place on public uint8 `images` [N, C, size, size]; leave it on `device` in evaluation mode.

    With `checkpoint`, the run writes its state there every `settings.checkpoint_minutes` and at its end, and resumes
    from the state found there; a finished run is only loaded. On CUDA the network runs in bfloat16 (mixed precision)
    with deterministic algorithms. Returns one row per epoch: {"epoch": 1, 2, ..., "loss": mean over the epoch}.

    Raises InputError for images that the backbone does not accept; SettingError if it has nothing to train or there are
    fewer images than a batch; and ArtefactError if the checkpoint is damaged or belongs to another run.
    """
    device = torch.device(device)
    _check(backbone, images, settings)
    steps_per_epoch = len(images) // settings.batch
    steps = settings.epochs * steps_per_epoch

    with reproducible(device):
        torch.manual_seed(derive_seed(seed, "simclr head"))
        learner = _Learner(backbone, settings.projection).to(device).train()
        if device.type == "cuda":
            learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(
            learner.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        run = _Run(learner, optimizer, _identity(backbone, images, settings, seed), device)
        if checkpoint is not None and checkpoint.exists():
            run.restore(checkpoint)
        captured = _captured(learner, settings.batch, backbone)
        source = _Source(images, device)
        saved = reported = time.monotonic()
        while run.step < steps:
            epoch, position = divmod(run.step, steps_per_epoch)
            if position == 0 or not source.ordered:
                source.order(numpy_generator(seed, "simclr order", epoch).permutation(len(images)))
            batch = source.batch(position * settings.batch, settings.batch)
            loss = _take_step(run, captured, batch, settings, seed, steps)
            if position == steps_per_epoch - 1:
                run.loss.append(float(run.loss_sum) / steps_per_epoch)
                run.loss_sum.zero_()
            now = time.monotonic()
            if progress is not None and (now - reported >= _REPORT_SECONDS or run.step == steps):
                reported = now
                progress(run.step / steps, f"epoch {epoch + 1} of {settings.epochs}, loss {float(loss):.3f}")
            due = now - saved >= 60 * settings.checkpoint_minutes or run.step == steps
            if checkpoint is not None and due:
                run.save(checkpoint)
                saved = time.monotonic()
    backbone.eval()
    return [{"epoch": number, "loss": loss} for number, loss in enumerate(run.loss, start=1)]


def _take_step(
    run: "_Run", learner: nn.Module, images: Tensor, settings: SimCLRSettings, seed: int, steps: int
) -> Tensor:
    """Train on a batch; return its loss, still on the device."""
    count, device = len(images), run.device
    views = []
    for which in range(2):
        view_seed = derive_seed(seed, "simclr views", run.step, which)
        drawn = draw_views(count, size_of(images.shape), VIEWS, seed=view_seed, device=device)
        views.append(apply_views(images, drawn))
    batch = torch.cat(views)
    if device.type == "cuda":
        batch = batch.contiguous(memory_format=torch.channels_last)
    torch.manual_seed(derive_seed(seed, "simclr step", run.step, 0))  # for networks with dropout
    if settings.schedule == "cosine":
        for group in run.optimizer.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * run.step / steps))
    with mixed_precision(device):
        first, second = learner(batch).float().split(count)
    loss = nt_xent(first, second, settings.temperature)
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    run.optimizer.step()
    run.step += 1
    run.loss_sum += loss.detach()
    return loss.detach()


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the NT-Xent loss, the mean normalised, temperature-scaled cross-entropy of 2 B views, a scalar.

    Source: Chen et al. 2020, equation 1.

    first, second: [B, D] projections of two views of the same B images, in the same order. Each view must recognise
    its partner among the 2 B - 1 other views by cosine similarity divided by `temperature`. Computed in float32.

    Raises InputError if the shapes differ or there are fewer than two images and thus no negatives.
    """
    if first.shape != second.shape or first.dim() != 2:
        raise InputError(f"nt_xent: views of shape {tuple(first.shape)} and {tuple(second.shape)}; give two of [B, D].")
    if len(first) < 2:
        raise InputError(f"nt_xent: {len(first)} image(s) leave no negatives. Give at least 2.")
    count = len(first)
    views = F.normalize(torch.cat([first, second]).float(), dim=1)
    with torch.autocast(views.device.type, enabled=False):
        similarity = views @ views.T / temperature
    similarity = similarity.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=views.device), -torch.inf)
    partner = torch.arange(2 * count, device=views.device).roll(count)
    return F.cross_entropy(similarity, partner)


def _captured(learner: _Learner, batch: int, backbone: Backbone) -> nn.Module:
    """Return `learner` with both passes over `batch` pairs of views as CUDA graphs; unchanged on other devices.

    Images are small: launching a pass's kernels one by one takes several times as long as running them. A network that
    cannot be captured, such as one that synchronises with the device, stays unchanged. The weights are the same.
    """
    device = next(learner.parameters()).device
    if device.type != "cuda":
        return learner
    views = torch.zeros((2 * batch, *backbone.shape), device=device).contiguous(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    try:
        with mixed_precision(device):
            torch.cuda.make_graphed_callables(learner, (views,))
    except RuntimeError as error:
        _logger.info("The network runs kernel by kernel, since it cannot be captured as a CUDA graph: %s", error)
    learner.load_state_dict(before)  # capturing runs the network, which updates the batch normalisation statistics
    # The weights' gradients are added in a stream other than that of the capture, which is intended.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return learner


class _Run:
    """State of a run between two steps, and its checkpoint."""

    def __init__(
        self, learner: _Learner, optimizer: torch.optim.Optimizer, identity: dict[str, Any], device: torch.device
    ) -> None:
        self.learner, self.optimizer, self.identity, self.device = learner, optimizer, identity, device
        self.step = 0
        self.loss: list[float] = []
        self.loss_sum = torch.zeros((), device=device)

    def save(self, path: Path) -> None:
        tensors = {f"learner.{name}": value for name, value in self.learner.state_dict().items()}
        tensors |= {f"adam.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        description = {"run": self.identity, "step": self.step, "loss": self.loss}
        write_checkpoint(path, {**tensors, "loss_sum": self.loss_sum}, description)

    def restore(self, path: Path) -> None:
        tensors, description = read_checkpoint(path, self.identity)
        self.learner.load_state_dict(part(tensors, "learner."))
        restore_optimizer(self.optimizer, part(tensors, "adam."))
        self.loss_sum.copy_(tensors["loss_sum"])
        self.step, self.loss = description["step"], description["loss"]


class _Source:
    """Batches of images on the device, which holds all images if they fit; otherwise batches are moved one by one."""

    def __init__(self, images: Rows, device: torch.device) -> None:
        self.images, self.device = images, device
        self.ordered = False
        self.resident: Tensor | None = None
        if device.type == "cuda" and images.nbytes < _RESIDENT_FRACTION * torch.cuda.mem_get_info(device)[0]:
            self.resident = torch.empty(images.shape, dtype=torch.uint8, device=device)
            for first in range(0, len(images), _RESIDENT_SLICE):
                part = np.ascontiguousarray(images[first : first + _RESIDENT_SLICE])
                self.resident[first : first + len(part)] = torch.from_numpy(part).to(device)

    def order(self, indices: np.ndarray) -> None:
        self.indices = indices
        self.on_device = torch.from_numpy(indices).to(self.device) if self.resident is not None else None
        self.ordered = True

    def batch(self, start: int, size: int) -> Tensor:
        """Return the batch of `size` images from `start`, uint8."""
        where = slice(start, start + size)
        if self.resident is not None and self.on_device is not None:
            return self.resident[self.on_device[where]]
        return torch.from_numpy(self.images[self.indices[where]]).to(self.device)


def _check(backbone: Backbone, images: Rows, settings: SimCLRSettings) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != backbone.shape:
        raise InputError(
            f"Pretraining takes uint8 images of shape (N, {str(backbone.shape)[1:]} for this backbone, and was given "
            f"{images.dtype} of shape {images.shape}."
        )
    if len(images) < settings.batch:
        raise SettingError(
            f"pretrain: {len(images)} images are fewer than one batch of {settings.batch}. Make more images, or "
            "lower the batch size."
        )


def _identity(backbone: Backbone, images: Rows, settings: SimCLRSettings, seed: int) -> dict[str, Any]:
    """Describe everything the result depends on; images are described by their number and a sample of up to 64."""
    names = set(SimCLRSettings.model_fields) - {"checkpoint_minutes"}
    views = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(VIEWS).items()}
    sample = np.ascontiguousarray(images[:: max(1, len(images) // 64)])
    return {
        "backbone": backbone.describe(),
        "images": {"shape": list(images.shape), "sample": hashlib.sha256(sample.tobytes()).hexdigest()},
        "settings": settings.model_dump(mode="json", include=names) | {"views": views},
        "seed": seed,
    }
