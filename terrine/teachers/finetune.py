"""Fine-tuned teachers: the shared backbone, its last x % of parameters and a head trained on a teacher's own records.

The backbone is public and the same for all. Under `current` statistics batch normalisation uses the batch at hand, when
training and when voting; under `original` statistics the backbone's own stored ones, in both: they are never moved, so
that a teacher that trains no layer of the backbone is the linear teacher of the same features.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.last_layers import last_parameters
from terrine.teachers.networks import Classifier, NetworkKind

if TYPE_CHECKING:
    from terrine.teachers.kinds.finetune import FinetuneTeachers


class FinetuneKind(NetworkKind):
    """The kind `finetune`, see `terrine.teachers.kind`: a state is the trained parameters alone.

    backbone: what all teachers start from; it is not changed. Its last parameters are trained as whole tensors
    (`terrine.models.last_layers`). Raises SettingError for a backbone that has no parameters.
    """

    def __init__(self, settings: FinetuneTeachers, backbone: Backbone, classes: int) -> None:
        if not any(value.requires_grad for value in backbone.network.parameters()):
            raise SettingError(
                f"The backbone '{backbone.describe()['kind']}' has no weights to fine-tune. Use teachers.kind=linear, "
                "or a backbone with weights (resnet10, resnet18)."
            )
        super().__init__(settings, classes)
        self.backbone = backbone
        self.names = [name for name, _ in last_parameters(backbone.network, settings.trainable)]

    @property
    def share(self) -> float:
        """The percentage of the backbone's parameters that is trained, as whole tensors allow."""
        sizes = {name: value.numel() for name, value in self.backbone.network.named_parameters()}
        return 100 * sum(sizes[name] for name in self.names) / sum(sizes.values())

    def classifier(self, seed: int) -> Classifier:
        """Return the backbone with the initial head of `seed`; only what is trained requires a gradient."""
        classifier = Classifier(copy.deepcopy(self.backbone.network), self.backbone.feature_dim, self.classes, seed)
        for name, value in classifier.network.named_parameters():
            value.requires_grad_(name in set(self.names))
        return classifier

    @property
    def kept(self) -> list[str]:
        """See `NetworkKind`; the backbone's statistics stay as they are."""
        return [*(f"network.{name}" for name in self.names), "head.weight", "head.bias"]
