"""What the generator is trained for: images of which the student is sure, of all classes, that excite it.

    L_g = Σ CE(Φ_s(x_i), argmax Φ_s(x_i))  +  Σ Φ_s(x_i) · log Φ_s(x_i)  +  Σ ‖Φ_s(x_i; w_s⁻)‖₂          (eq. 8)

with w_s⁻ the student without its last layer. That is form `printed`. The text beside the equation says something else:
that the second term measures class balance, and that real images have *higher* activations. Form `intended` is what
the text says and what data-free distillation does (Chen et al. 2019): the negative entropy of the batch's mean, and
the negative norm. All are means over the batch here, so that one learning rate serves all batch sizes; each has a
weight, and weight 0 is off (Table VI).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.transcription.settings import Form, TranscriptionGenerator


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
