"""The student while it is transcribed: a backbone of any kind and a linear head, on the statistics of its batch.

A backbone without weights (scattering) is shared and public: then the head alone is trained, and features of images
that come again are computed once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.classifiers import LinearHead, head_from_module, initial_head
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import batch_statistics
from terrine.transcription.settings import FitLoss


class TranscribedStudent(nn.Module):
    """Images [B, C, H, W], float in [0, 1] or uint8, to (features [B, width], scores [B, classes]); B ≥ 2.

    The head starts from the public random weights of `seed`. The backbone is the caller's own and is trained in place.
    """

    def __init__(self, backbone: Backbone, classes: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = initial_head(backbone.feature_dim, classes, seed).module()

    @property
    def frozen(self) -> bool:
        """Whether the backbone has nothing to train."""
        return not any(parameter.requires_grad for parameter in self.backbone.parameters())

    def weights(self) -> list[nn.Parameter]:
        """Return what is trained, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def features(self, images: Tensor) -> Tensor:
        """Return features [B, width] on the statistics of this batch, with gradients."""
        with batch_statistics(self.backbone, "current"):
            return self.backbone.network(as_float(images)).float()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(images)
        return features, self.head(features)

    def to_head(self) -> LinearHead:
        """Return the head as it is stored."""
        head = head_from_module(self.head)
        assert isinstance(head, LinearHead)
        return head


def fit_loss(scores: Tensor, annotation: Tensor, loss: FitLoss) -> Tensor:
    """Return L_s, the mean over the batch.

    `cross_entropy`: −Σ_j y_j log softmax(scores)_j (Liu et al. 2026, eq. 7), linear in the annotation, which need be no
    distribution: for a negative y_j it has no lower bound, so it is for single steps, not for fitting to the end.
    `squared`: ‖softmax(scores) − y‖² / 2, the likelihood of an annotation with Gaussian noise, which has one.
    """
    if loss == "cross_entropy":
        return -(annotation * F.log_softmax(scores, dim=1)).sum(1).mean()
    return (scores.softmax(1) - annotation).square().sum(1).mean() / 2


@torch.no_grad()
def probabilities(scores: Tensor) -> Tensor:
    """Return Φ_s, what clients are told about the student: float32 [B, classes], without gradients."""
    return scores.detach().softmax(1)
