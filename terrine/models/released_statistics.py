"""Released moments: statistics with which a scattering backbone normalises private images, fit for release.

Log coefficients of private images have other means and deviations than those of the public images to which the backbone
was fitted. With `current` statistics every batch has its own, so answers depend on the rest of the batch. Here each
unit's images become one bounded vector, whose noisy mean over all units (`terrine.privacy.noised_sum`) gives statistics
for all images.

Let z be the log coefficients [D] of an image, standardised by the backbone's public statistics. The image's vector is

    [ z,  average of z² − 1 over the places of each map ] / (bound · √D)

and a unit's vector is the mean over its images, clipped to norm 1. A small bound has little noise and retains some
difference between domains, a large one the reverse: `bound_for` takes the largest bound whose noise does not matter,
from public numbers.

Means are released by place and deviations by map. This loses no accuracy, and the few deviations take little of the
vector's length. Noise on means averages out in models trained on the features; noise on deviations costs accuracy,
hence the shrinkage in `statistics_from`.

An image's vector does not depend on other images, to the bit: blocks of one size are computed on the CPU. One unit
therefore changes no other unit's vector.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from terrine.errors import SettingError
from terrine.models.backbone import Backbone, as_float, blocks_one_by_one
from terrine.models.wavelets import ScatteringNetwork
from terrine.npy import Rows

BOUNDS = 1.5, 2.5
"""Minimum and maximum bound. An image's moments have a norm of 1.2 to 2.5 √D on benchmarks."""
_NOISE = 0.35
"""Maximum noise on a mean that is accepted for a larger bound, in deviations of public images (docs/serving.md)."""
_LEAST = 0.05
"""Minimum of a variance, as a share of that of public images."""


def scattering_network(backbone: Backbone) -> ScatteringNetwork:
    """Return the network of a scattering backbone. Raises SettingError for backbones other than `scattering`."""
    if not isinstance(backbone.network, ScatteringNetwork):
        raise SettingError(
            "privacy.moments are known for backbone.kind=scattering, whose one batch normalisation has no weights, not "
            f"for {backbone.describe()['kind']}. Set privacy.moments=0."
        )
    return backbone.network


def bound_for(backbone: Backbone, units: int | None, noise_multiplier: float) -> float:
    """Return the bound, in √D, for a public estimate of the number of units and the noise of a clipped mean."""
    length = math.sqrt(scattering_network(backbone).standardise.num_features)
    least, largest = BOUNDS
    return least if units is None else min(largest, max(least, _NOISE * units / (noise_multiplier * length)))


@torch.no_grad()
def image_vectors(network: ScatteringNetwork, images: Tensor, bound: float) -> Tensor:
    """Return the vectors [B, D + maps] of images [B, C, H, W], before they are clipped to norm 1."""
    layer = network.standardise
    assert layer.running_mean is not None
    assert layer.running_var is not None
    z = (network.described(as_float(images)) - layer.running_mean) * (layer.running_var + layer.eps).rsqrt()
    squares = (z.square() - 1).view(len(z), -1, math.prod(network.grid)).mean(2)
    return torch.cat([z, squares], 1) / (bound * math.sqrt(z.shape[1]))


def unit_vectors(backbone: Backbone, images: Rows, units: np.ndarray, bound: float) -> Iterator[np.ndarray]:
    """Yield the vectors of all units, float64 [units, length], in groups; each is the mean over a unit's images.

    images: uint8 [N, C, H, W]; units: int64 [N], equal for images of one unit.
    """
    network = scattering_network(backbone).cpu().eval()
    order = np.argsort(units, kind="stable")

    last_of_unit = iter(np.append(np.diff(units[order]) != 0, True))
    total, count = np.zeros(()), 0

    def computed(block: Tensor) -> np.ndarray:
        return image_vectors(network, block, bound).double().numpy()

    for vectors in blocks_one_by_one(backbone, computed, images, order):
        complete = []
        for vector, last in zip(vectors, last_of_unit, strict=False):
            total, count = total + vector, count + 1
            if last:
                complete.append(total / count)
                total, count = np.zeros(()), 0
        if complete:
            yield np.stack(complete)


def statistics_from(backbone: Backbone, mean: np.ndarray, noise: float, bound: float) -> dict[str, np.ndarray]:
    """Return the mean and variance, float32 [D] each, for the batch normalisation.

    Args:
        backbone: Scattering backbone with the statistics of public images.
        mean: float64 [D + maps], the noisy mean vector of all units.
        noise: Approximate standard deviation of the noise on each coordinate, whose square biases squared means.
        bound: Bound by which the vectors were scaled, in √D.
    """
    network = scattering_network(backbone)
    layer = network.standardise
    assert layer.running_mean is not None
    assert layer.running_var is not None
    own_mean, own_variance = (
        statistic.cpu().double().numpy() for statistic in (layer.running_mean, layer.running_var + layer.eps)
    )
    scale, places = bound * math.sqrt(len(own_mean)), math.prod(network.grid)
    first, second = np.split(mean * scale, [len(own_mean)])
    noise_variance = (scale * noise) ** 2
    by_map = np.square(first).reshape(-1, places).mean(1) - noise_variance
    ratio = 1 + second - by_map
    # Noise spreads means and ratios: means are shrunk to the public ones (James-Stein),
    first = first * max(0.0, by_map.mean()) / max(float(np.square(first).mean()), 1e-12)
    # and ratios to their mean.
    of_ratio = noise_variance * (1 + (4 * max(0.0, by_map.mean()) + 2 * noise_variance) / places)
    kept = max(0.0, 1 - of_ratio / max(float(ratio.var()), 1e-12))
    ratio = np.maximum(ratio.mean() + kept * (ratio - ratio.mean()), _LEAST)
    variance = own_variance * np.repeat(ratio, places) - layer.eps
    return {
        "mean": (own_mean + first * np.sqrt(own_variance)).astype(np.float32),
        "variance": np.maximum(variance, 0).astype(np.float32),
    }


def set_statistics(backbone: Backbone, statistics: dict[str, np.ndarray]) -> None:
    """Set the released statistics in the backbone's batch normalisation, in place."""
    layer = scattering_network(backbone).standardise
    layer.running_mean, layer.running_var = (
        torch.from_numpy(statistics[name].copy()).to(layer.running_mean) for name in ("mean", "variance")
    )
