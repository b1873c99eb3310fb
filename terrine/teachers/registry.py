"""Teacher kinds by name. A new one is one file beside this one, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.statistics import Statistics
from terrine.teachers.estimator import EstimatorTeachers
from terrine.teachers.finetune import FinetuneTeachers
from terrine.teachers.kind import TeacherKind
from terrine.teachers.linear import LinearSettings, LinearTeachers
from terrine.teachers.networks import NetworkSettings
from terrine.teachers.scratch import ScratchTeachers


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of all kinds; a kind looks at its own. Their meaning: see the modules of the kinds.

    estimator, options: a scikit-learn classifier's name and its settings.
    """

    kind: str = "linear"
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"
    optimiser: Literal["adam", "ridge"] = "ridge"
    ridge: float = 0.3
    epochs: int = 50
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch: int | None = 256
    trainable: float = 25.0
    architecture: str = "small_cnn"
    estimator: str = "RandomForestClassifier"
    options: Mapping[str, Any] = field(default_factory=dict)

    def linear(self) -> LinearSettings:
        """Return what linear teachers look at."""
        return LinearSettings(
            optimiser=self.optimiser,
            ridge=self.ridge,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            batch=self.batch,
            initialisation=self.initialisation,
        )

    def networks(self) -> NetworkSettings:
        """Return what teachers that are networks look at."""
        return NetworkSettings(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            batch=self.batch,
            statistics=self.statistics,
            initialisation=self.initialisation,
        )


@dataclass(frozen=True)
class Surroundings:
    """What a kind finds around it: the number of classes, the images' geometry, and the backbone, loaded if wanted."""

    classes: int
    channels: int
    size: int
    backbone: Callable[[], Backbone]


def _linear(settings: TeacherSettings, around: Surroundings) -> TeacherKind:
    return LinearTeachers(settings.linear())


def _finetune(settings: TeacherSettings, around: Surroundings) -> TeacherKind:
    return FinetuneTeachers(around.backbone(), settings.trainable, around.classes, settings.networks())


def _scratch(settings: TeacherSettings, around: Surroundings) -> TeacherKind:
    return ScratchTeachers(settings.architecture, around.channels, around.size, around.classes, settings.networks())


def _estimator(settings: TeacherSettings, around: Surroundings) -> TeacherKind:
    return EstimatorTeachers(settings.estimator, settings.options, around.classes, settings.initialisation)


KINDS: dict[str, Callable[[TeacherSettings, Surroundings], TeacherKind]] = {
    "estimator": _estimator,
    "finetune": _finetune,
    "linear": _linear,
    "scratch": _scratch,
}


def build_teachers(settings: TeacherSettings, around: Surroundings) -> TeacherKind:
    """Return the kind that `settings` names. Raises SettingError for an unknown name or impossible settings."""
    if settings.kind not in KINDS:
        raise SettingError(f"teachers.kind: '{settings.kind}' is unknown. Known: {', '.join(sorted(KINDS))}.")
    return KINDS[settings.kind](settings, around)
