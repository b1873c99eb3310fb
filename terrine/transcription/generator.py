"""The generator of data-free distillation: latent vectors to images of any size.

A DCGAN as in Chen et al. (2019), the source of the paper's settings: a linear layer to small maps, two upsampling and
convolution steps with batch normalisation and leaky rectifiers, and a sigmoid. Batch normalisation always uses the
statistics of the batch.

The generator learns to draw images of all classes that give the student high confidence and strong features:

    L_g = Σ CE(Φ_s(x_i), argmax Φ_s(x_i))  +  Σ Φ_s(x_i) · log Φ_s(x_i)  +  Σ ‖Φ_s(x_i; w_s⁻)‖₂          (eq. 8)

with w_s⁻ the student without its last layer. These formulas are the form `printed`. According to the text beside the
equation the second term measures class balance, and real images have *higher* activations. Form `intended` follows the
text and data-free distillation (Chen et al. 2019): the negative entropy of the batch's mean and the negative norm. All
terms are means over the batch, so that one learning rate suits all batch sizes. A weight of 0 removes a term (Table
VI).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.determinism.randomness import torch_generator
from terrine.transcription.settings import Form, TranscriptionGenerator

_SLOPE = 0.2


class Generator(nn.Module):
    """Vectors [B, latent] to float images [B, channels, size, size] in [0, 1]; B ≥ 2.

    Initial weights follow Xavier (Glorot and Bengio 2010; Liu et al. 2026, section III.B) and depend only on the
    arguments. `width` is the number of maps of the first layers; the last hidden layer has `width` / 2.
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
        """Return the arguments that build the same architecture."""
        return {"channels": self.channels, "size": self.size, "latent": self.latent, "width": self.width}


def _norm(maps: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(maps, track_running_stats=False)


def random_vectors(count: int, latent: int, seed: int, *index: int) -> Tensor:
    """Draw standard normal vectors [count, latent] on the CPU, a function of (seed, index)."""
    return torch.randn(count, latent, generator=torch_generator(seed, "generator inputs", *index))


def generator_loss(scores: Tensor, features: Tensor, settings: TranscriptionGenerator) -> Tensor:
    """Compute L_g, a scalar, from scores [B, classes] and features [B, width]."""
    total = scores.new_zeros(())
    if settings.one_hot:
        total = total + settings.one_hot * F.cross_entropy(scores, scores.argmax(1))
    if settings.entropy:
        total = total + settings.entropy * entropy_loss(scores, settings.form)
    if settings.activation:
        total = total + settings.activation * activation_loss(features, settings.form)
    return total


def entropy_loss(scores: Tensor, form: Form = "printed") -> Tensor:
    """Compute Σ p log p: averaged over samples (printed), or of the batch's mean probabilities (intended)."""
    if form == "printed":
        return (scores.softmax(1) * scores.log_softmax(1)).sum(1).mean()
    mean = scores.softmax(1).mean(0)
    return torch.special.xlogy(mean, mean).sum()


def activation_loss(features: Tensor, form: Form = "printed") -> Tensor:
    """Compute the mean norm of the features, with a minus sign if intended."""
    mean = features.norm(dim=1).mean()
    return mean if form == "printed" else -mean
