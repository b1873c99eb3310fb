"""The kinds of teachers by their names, and what they find around them. A new kind is one file in `kinds`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from terrine.aggregation.votes import Findings
from terrine.geometry import Size
from terrine.settings import Kinds
from terrine.teachers.teachers import Teachers

if TYPE_CHECKING:
    from terrine.models.backbone import Backbone
    from terrine.teachers.averaging.kind import RoundState

TEACHERS = Kinds("teachers", Teachers, "terrine.teachers.kinds", default="linear")


@dataclass(frozen=True)
class TeacherContext:
    """What a kind finds around it: the number of classes, the images' geometry, and the backbone, loaded if wanted.

    Averaged teachers also want the seed of the run (what they start from is public and shared), how many parties there
    are, and the averages of their rounds, loaded if wanted. by_teacher: features of records are a backbone's, so kinds
    that learn from features refuse all that were not computed teacher by teacher (`terrine.teachers.features`).
    findings: where a record has several; None where it is of one class.
    """

    classes: int
    channels: int
    size: Size
    backbone: Callable[[], Backbone]
    seed: int = 0
    parties: int = 0
    start: Callable[[], RoundState] | None = None
    by_teacher: bool = False
    findings: Findings | None = None
