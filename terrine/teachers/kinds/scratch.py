"""The kind `scratch`: a whole network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.teachers.teachers import NetworkTeachers

if TYPE_CHECKING:
    from terrine.teachers.registry import TeacherContext
    from terrine.teachers.scratch import ScratchKind

Architecture = Literal["small_cnn", "resnet10", "resnet18", "resnet34", "vgg9", "cryptonet", "pate_cnn"]


class ScratchTeachers(NetworkTeachers):
    """Classic PATE: a network each, on its own records alone (Papernot et al. 2017).

    statistics: `original` are those of the teacher's own records, recorded under its final weights.
    """

    kind: Literal["scratch"] = "scratch"
    architecture: Architecture = "small_cnn"
    """The network."""

    def build(self, context: TeacherContext) -> ScratchKind:
        from terrine.teachers.scratch import ScratchKind

        return ScratchKind(self, context.channels, context.size, context.classes)
