"""The kind `finetune`: the backbone's last layers and a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from terrine.settings import Field, Unit
from terrine.teachers.teachers import NetworkTeachers

if TYPE_CHECKING:
    from terrine.teachers.finetune import FinetuneKind
    from terrine.teachers.registry import TeacherContext

Trainable = Annotated[float, Unit("per cent"), Field(ge=0.5, le=100)]
"""Percentage of the backbone's parameters, the last ones, that are trained at least; the head always is."""


class FinetuneTeachers(NetworkTeachers):
    """Transfer-PATE (Li et al. 2023, section 4): all teachers start from one public backbone and train its end.

    statistics: `original` are the backbone's own, when it learns and when it votes.
    """

    kind: Literal["finetune"] = "finetune"
    trainable: Trainable = 25.0
    """Share of the backbone's weights that are trained at least, from its end."""

    def check(self, run: Any) -> None:
        """Raise ValueError for a backbone without weights."""
        super().check(run)
        check_weights(run, "kind")

    def build(self, context: TeacherContext) -> FinetuneKind:
        from terrine.teachers.finetune import FinetuneKind

        return FinetuneKind(self, context.backbone(), context.classes)


def check_weights(run: Any, key: str) -> None:
    """Raise ValueError for a backbone without weights; key: the setting that is `finetune`."""
    if not run.backbone.has_weights:
        raise ValueError(
            f"teachers.{key}=finetune trains weights of the backbone, and backbone.kind={run.backbone.kind} has none. "
            f"Set teachers.{key}=linear, or backbone.kind to resnet10 or resnet18"
        )
