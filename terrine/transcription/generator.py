"""The generator of data-free distillation: random vectors in, images of any size out.

The DCGAN form of Chen et al. (2019), which the paper's settings come from: a linear layer to small maps, twice doubled
and convolved, with batch normalisation and leaky rectifiers. The last map is normalised, scaled and squashed to [0, 1],
where images live. It has no running statistics: every batch is normalised by itself, in training and afterwards.

It is trained for images of which the student is sure, of all classes, that excite it.

    L_g = Σ CE(Φ_s(x_i), argmax Φ_s(x_i))  +  Σ Φ_s(x_i) · log Φ_s(x_i)  +  Σ ‖Φ_s(x_i; w_s⁻)‖₂          (eq. 8)

with w_s⁻ the student without its last layer. That is form `printed`. The text beside the equation says something else:
that the second term measures class balance, and that real images have *higher* activations. Form `intended` is what
the text says and what data-free distillation does (Chen et al. 2019): the negative entropy of the batch's mean, and
the negative norm. All are means over the batch here, so that one learning rate serves all batch sizes; each has a
weight, and weight 0 is off (Table VI).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.determinism.randomness import torch_generator
from terrine.transcription.settings import Form, TranscriptionGenerator

_SLOPE = 0.2


class Generator(nn.Module):
    """Vectors [B, latent] to images [B, channels, size, size] in [0, 1], float; B ≥ 2.

    width: maps of the first layers; the last hidden layer has half of them. Weights are drawn by Xavier's method
    (Glorot and Bengio 2010; "initializes Φ_g with Xavier", Liu et al. 2026, section III.B) and depend on the arguments
    and the seed alone.
    """

    def __init__(self, channels: int, size: int, *, latent: int, width: int, seed: int) -> None:
        super().__init__()
        self.channels, self.size, self.latent, self.width = channels, size, latent, width
        self.start = math.ceil(size / 4)
        self.linear = nn.Linear(latent, width * self.start**2, bias=False)
        self.first = _norm(width)
        self.second, self.second_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), _norm(width)
        self.third, self.third_norm = nn.Conv2d(width, width // 2, 3, padding=1, bias=False), _norm(width // 2)
        self.last, self.last_norm = nn.Conv2d(width // 2, channels, 3, padding=1, bias=False), _norm(channels)
        generator = torch_generator(seed, "generator", latent, width, channels, size)
        for layer in (self.linear, self.second, self.third, self.last):
            nn.init.xavier_normal_(layer.weight, generator=generator)

    def forward(self, vectors: Tensor) -> Tensor:
        maps = self.first(self.linear(vectors).view(-1, self.width, self.start, self.start))
        maps = F.interpolate(maps, size=min(2 * self.start, math.ceil(self.size / 2)), mode="nearest")
        maps = F.leaky_relu(self.second_norm(self.second(maps)), _SLOPE)
        maps = F.interpolate(maps, size=self.size, mode="nearest")
        maps = F.leaky_relu(self.third_norm(self.third(maps)), _SLOPE)
        return torch.sigmoid(2 * self.last_norm(self.last(maps)))

    def describe(self) -> dict[str, int]:
        """Return what it takes to build the same architecture."""
        return {"channels": self.channels, "size": self.size, "latent": self.latent, "width": self.width}


def _norm(maps: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(maps, track_running_stats=False)


def random_vectors(count: int, latent: int, seed: int, *index: int) -> Tensor:
    """Return standard normal vectors [count, latent] on the CPU, a function of (seed, index)."""
    return torch.randn(count, latent, generator=torch_generator(seed, "generator inputs", *index))


def generator_loss(scores: Tensor, features: Tensor, settings: TranscriptionGenerator) -> Tensor:
    """Return the weighted sum of the terms, a scalar. scores: [B, classes]; features: [B, width]."""
    total = scores.new_zeros(())
    if settings.one_hot:
        total = total + settings.one_hot * one_hot_loss(scores)
    if settings.entropy:
        total = total + settings.entropy * entropy_loss(scores, settings.form)
    if settings.activation:
        total = total + settings.activation * activation_loss(features, settings.form)
    return total


def one_hot_loss(scores: Tensor) -> Tensor:
    """Return the mean cross-entropy of the student towards its own most probable class."""
    return F.cross_entropy(scores, scores.argmax(1))


def entropy_loss(scores: Tensor, form: Form = "printed") -> Tensor:
    """Return Σ p log p: the mean over samples as printed, or of the batch's mean probabilities as intended."""
    if form == "printed":
        return (scores.softmax(1) * scores.log_softmax(1)).sum(1).mean()
    mean = scores.softmax(1).mean(0)
    return torch.special.xlogy(mean, mean).sum()


def activation_loss(features: Tensor, form: Form = "printed") -> Tensor:
    """Return the mean norm of the features: small ones are rewarded as printed, large ones as intended."""
    mean = features.norm(dim=1).mean()
    return mean if form == "printed" else -mean
