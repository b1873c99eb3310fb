"""A backbone turns a batch of images into a batch of feature vectors; all teachers and the student share it.

One call of `Backbone.features` is one batch. With current statistics (`terrine.models.statistics`) the features of a
batch depend on all of its images and on no others, so batches are part of a result and are stored with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from terrine.determinism.parallel import side_by_side
from terrine.errors import InputError, SettingError
from terrine.geometry import Size, as_size, sides
from terrine.models.statistics import Statistics, batch_statistics
from terrine.npy import Rows

BLOCK = 64
"""Images per block of `features_one_by_one`."""


class Backbone(nn.Module):
    """A network from float images [B, C, H, W] in [0, 1] to features [B, `feature_dim`], with its description.

    Build one with `terrine.models.architecture.build_backbone`.
    """

    def __init__(self, network: nn.Module, feature_dim: int, architecture: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.feature_dim = feature_dim
        self._architecture = architecture
        self.origin: dict[str, Any] = {}
        """Settings and images with which `Architecture.fit` made the backbone, as JSON values; not stored."""
        self.eval()

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        return int(self._architecture["channels"])

    @property
    def size(self) -> Size:
        """Side of the images in pixels, or height and width."""
        return as_size(self._architecture["size"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return self.channels, *sides(self.size)

    def describe(self) -> dict[str, Any]:
        """Return what `build_backbone` needs to build this architecture again: kind, channels, size and options."""
        return json.loads(json.dumps(self._architecture))

    def digest(self) -> str:
        """Return the SHA-256 of description and weights, in hexadecimal; public."""
        content = hashlib.sha256(json.dumps(self._architecture, sort_keys=True).encode())
        for name, value in sorted(self.network.state_dict().items()):
            content.update(f" {name} {tuple(value.shape)} ".encode() + value.detach().cpu().numpy().tobytes())
        return content.hexdigest()

    def trainable(self) -> tuple[nn.Module, int]:
        """Return the part of the network with weights, which pretraining trains, and its number of features.

        Raises SettingError for a network without weights.
        """
        if not any(parameter.requires_grad for parameter in self.network.parameters()):
            raise SettingError(f"The backbone '{self._architecture['kind']}' has nothing to train. Use it as it is.")
        trainable: Callable[[], tuple[nn.Module, int]] | None = getattr(self.network, "trainable", None)
        return (self.network, self.feature_dim) if trainable is None else trainable()

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of images [B, C, H, W], float32 in [0, 1] or uint8; for training."""
        self._check(images)
        return self.network(as_float(images))

    @torch.no_grad()
    def features(self, images: Tensor, statistics: Statistics) -> Tensor:
        """Return float32 features [B, feature_dim] of one batch, without gradients and without changing the model.

        Args:
            images: [B, C, H, W], float32 in [0, 1] or uint8, on the backbone's device; at least two for current
                statistics.
            statistics: Batch normalisation statistics: `current`, `original` or `halfway`.

        Raises:
            InputError: The images have another shape or type, or the batch is too small.
        """
        self._check(images)
        if statistics != "original" and len(images) < 2:
            raise InputError(
                f"A batch of {len(images)} image(s) has no batch statistics. With current statistics a batch "
                "needs at least 2 (16 or more work well): fill it up with public images, or use original statistics."
            )
        with batch_statistics(self, statistics):
            return self.network(as_float(images)).float()

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"The backbone '{self._architecture['kind']}' takes images of shape (B, {str(self.shape)[1:]} and was "
                f"given {tuple(images.shape)}. Resize the images, or build the backbone for their size."
            )


class ColumnsBackbone(Backbone):
    """The backbone of a table: float32 rows [B, columns] are its features, unchanged.

    In its description `channels` is the number of columns and `size` is 1: a row is an image of one pixel.
    """

    def __init__(self, columns: int) -> None:
        if columns < 1:
            raise SettingError(f"backbone: a table of {columns} columns. At least one is needed.")
        architecture: dict[str, Any] = {"kind": "columns", "channels": columns, "size": 1, "options": {}}
        super().__init__(nn.Identity(), columns, architecture)

    def _check(self, images: Tensor) -> None:
        if images.dim() != 2 or images.shape[1] != self.feature_dim or images.dtype != torch.float32:
            raise InputError(
                f"The backbone 'columns' takes float32 rows of shape (B, {self.feature_dim}) and was given "
                f"{images.dtype} {tuple(images.shape)}. Encode the rows as the training's were."
            )


def as_float(images: Tensor) -> Tensor:
    """Return images as floats in [0, 1]: uint8 is divided by 255, floating point is returned unchanged."""
    if images.dtype == torch.uint8:
        return images.to(torch.get_default_dtype()).div_(255)
    if not images.is_floating_point():
        raise InputError(f"Images must be uint8 or floating point in [0, 1], not {images.dtype}.")
    return images


def features_in_batches(
    backbone: Backbone,
    images: Rows,
    batches: Sequence[np.ndarray],
    statistics: Statistics,
    device: torch.device | str = "cpu",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Return float32 features [N, feature_dim] of uint8 `images` [N, C, H, W], computed batch by batch.

    On the CPU one thread computes each batch, and batches run concurrently on torch's threads: the result depends
    neither on the number of threads nor on the order of the batches. The backbone is moved to `device`.

    Args:
        backbone: Backbone that computes the features.
        images: An array or a memory map.
        batches: Index arrays; row i of the result belongs to image i. Without `out` they must cover every image once.
        statistics: Batch normalisation statistics: `current`, `original` or `halfway`.
        device: Device of the computation.
        out: Array or memory map [N, feature_dim] in which only the rows of the batches are written.

    Raises:
        InputError: wrong shapes, indices out of range or repeated, or batches too small for `statistics`.
    """
    device = torch.device(device)
    _check_batches(batches, len(images), complete=out is None)
    if out is None:
        out = np.empty((len(images), backbone.feature_dim), dtype=np.float32)
    elif out.shape != (len(images), backbone.feature_dim) or out.dtype != np.float32:
        raise InputError(
            f"out: an array of shape {out.shape} and type {out.dtype} was given for float32 features of shape "
            f"{(len(images), backbone.feature_dim)}."
        )
    backbone.to(device)

    def compute(indices: np.ndarray) -> None:
        batch = torch.from_numpy(np.ascontiguousarray(images[indices]))
        out[indices] = backbone.features(batch.to(device), statistics).cpu().numpy()

    for _ in side_by_side(compute, batches, device):
        pass
    return out


def _check_batches(batches: Sequence[np.ndarray], count: int, *, complete: bool) -> None:
    indices = np.concatenate([np.asarray(batch).ravel() for batch in batches]) if len(batches) else np.empty(0, int)
    if len(indices) and not (indices.min() >= 0 and indices.max() < count):
        raise InputError(f"batches: indices run from {indices.min()} to {indices.max()}, but there are {count} images.")
    times = np.bincount(indices, minlength=count)
    if (times > 1).any():
        raise InputError(f"batches: image {int(times.argmax())} is in more than one batch. Give each image once.")
    if complete and (times == 0).any():
        raise InputError(f"batches: image {int(times.argmin())} is in no batch. Cover every image, or give `out`.")


def features_one_by_one(
    backbone: Backbone, images: Rows, then: Callable[[np.ndarray], np.ndarray], order: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield `then` of the features [BLOCK, features] of uint8 images [N, C, H, W], block by block, padding removed.

    Each row is a function of its image only, to the bit. Sums over private records have the charged sensitivity only if
    no record changes another's features. With stored statistics only rounding could do so, since a batch of another
    size may be computed in another order. So one thread on the CPU computes each block, all of one size, and the last
    block is padded with blank images.

    Args:
        backbone: Backbone, which is moved to the CPU and set to evaluation mode.
        images: An array or a memory map.
        then: Function whose output row i depends only on input row i.
        order: int64, the numbers of the images; None for all.
    """
    network = backbone.cpu().eval()
    wanted = np.arange(len(images)) if order is None else order
    return blocks_one_by_one(backbone, lambda block: then(network.features(block, "original").numpy()), images, wanted)


def blocks_one_by_one(
    backbone: Backbone, compute: Callable[[torch.Tensor], np.ndarray], images: Rows, order: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield `compute` of the images [BLOCK, C, H, W] with these numbers, block by block, padding removed."""

    def block(first: int) -> np.ndarray:
        chosen = order[first : first + BLOCK]
        given = torch.from_numpy(np.ascontiguousarray(images[chosen]))
        filled = given.new_zeros((BLOCK, *given.shape[1:]))
        filled[: len(chosen)] = given
        return compute(filled)[: len(chosen)]

    yield from side_by_side(block, range(0, len(order), BLOCK))
