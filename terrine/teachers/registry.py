"""Teacher kinds by name. A new one is one file beside this one, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.statistics import Statistics
from terrine.teachers.averaging.kind import AveragedTeachers, LinearVoting, NetworkVoting, RoundState, VotingRule
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.ttac import AveragedSettings, Averaging, Correction
from terrine.teachers.estimator import EstimatorTeachers
from terrine.teachers.finetune import FinetuneTeachers
from terrine.teachers.kind import TeacherKind
from terrine.teachers.linear import LinearSettings, LinearTeachers
from terrine.teachers.networks import NetworkSettings
from terrine.teachers.prompt import PromptSettings, PromptTeachers
from terrine.teachers.scratch import ScratchTeachers


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of all kinds; a kind looks at its own. Their meaning: see the modules of the kinds.

    estimator, options: a scikit-learn classifier's name and its settings. prompt: settings of the kind `prompt`.
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
    prompt: Mapping[str, Any] = field(default_factory=dict)
    learner: Literal["linear", "finetune", "network"] = "linear"
    averaging: Averaging = "global"
    correction: Correction = "control_variates"
    rounds: int = 10
    steps: int = 10
    step_decay: float = 1.0
    server_rate: float = 1.0
    block: int | None = None
    centre: Literal["none", "shared"] = "none"

    def averaged(self) -> AveragedSettings:
        """Return what averaged teachers look at."""
        return AveragedSettings(
            averaging=self.averaging,
            correction=self.correction,
            rounds=self.rounds,
            steps=self.steps,
            learning_rate=self.learning_rate,
            decay=self.step_decay,
            server_rate=self.server_rate,
            batch=self.batch,
            block=self.block,
        )

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
class TeacherContext:
    """What a kind finds around it: the number of classes, the images' geometry, and the backbone, loaded if wanted.

    Averaged teachers also want the seed of the run (what they start from is public and shared), how many parties there
    are, and the averages of their rounds, loaded if wanted. by_teacher: features of records are a backbone's, so kinds
    that learn from features refuse all that were not computed teacher by teacher (`terrine.teachers.features`).
    """

    classes: int
    channels: int
    size: int
    backbone: Callable[[], Backbone]
    seed: int = 0
    parties: int = 0
    start: Callable[[], RoundState] | None = None
    by_teacher: bool = False


def _linear(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    return LinearTeachers(settings.linear(), by_teacher=around.by_teacher)


def _finetune(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    return FinetuneTeachers(around.backbone(), settings.trainable, around.classes, settings.networks())


def _scratch(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    return ScratchTeachers(settings.architecture, around.channels, around.size, around.classes, settings.networks())


def _estimator(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    return EstimatorTeachers(
        settings.estimator, settings.options, around.classes, settings.initialisation, by_teacher=around.by_teacher
    )


def _prompt(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    own = PromptSettings(**settings.prompt, statistics=settings.statistics, initialisation=settings.initialisation)
    return PromptTeachers(around.backbone(), around.classes, own)


def _averaged(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    return AveragedTeachers(voting_rule(settings, around), settings.averaged(), around.parties, around.start)


def voting_rule(settings: TeacherSettings, around: TeacherContext) -> VotingRule:
    """Return what averaged teachers learn: a head on the backbone's features, its last layers too, or a network."""
    if settings.learner == "linear":
        learner = LinearLearner(
            around.backbone().feature_dim,
            around.classes,
            weight_decay=settings.weight_decay,
            by_teacher=around.by_teacher,
        )
        return LinearVoting(learner, centred=settings.centre == "shared")
    like: FinetuneTeachers | ScratchTeachers
    if settings.learner == "finetune":
        like = FinetuneTeachers(around.backbone(), settings.trainable, around.classes, settings.networks())
    else:
        networks = settings.networks()
        like = ScratchTeachers(settings.architecture, around.channels, around.size, around.classes, networks)
    classifier = like.classifier(around.seed)
    return NetworkVoting(classifier, around.classes, settings.statistics, weight_decay=settings.weight_decay)


KINDS: dict[str, Callable[[TeacherSettings, TeacherContext], TeacherKind]] = {
    "averaged": _averaged,
    "estimator": _estimator,
    "finetune": _finetune,
    "linear": _linear,
    "prompt": _prompt,
    "scratch": _scratch,
}


def build_teachers(settings: TeacherSettings, around: TeacherContext) -> TeacherKind:
    """Return the kind that `settings` names. Raises SettingError for an unknown name or impossible settings."""
    if settings.kind not in KINDS:
        raise SettingError(f"teachers.kind: '{settings.kind}' is unknown. Known: {', '.join(sorted(KINDS))}.")
    return KINDS[settings.kind](settings, around)
