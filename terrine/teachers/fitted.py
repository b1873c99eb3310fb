"""Teachers that are trained, and their votes: what the pipeline does in stages, in memory.

    teachers = LinearTeachers(ridge=0.1).fit(data, parts, backbone)
    votes = teachers.vote(queries)

Both go through what the stages `teach` and `vote` go through, so with equal settings and seed they are the stages'
teachers and votes, to the bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from terrine.aggregation.release import Votes
from terrine.aggregation.votes import Findings
from terrine.data.dataset import Dataset
from terrine.data.partition import Parts, check_parts
from terrine.errors import SettingError
from terrine.geometry import size_of
from terrine.models.backbone import Backbone, features_in_batches
from terrine.privacy.facts import Examples, Facts, origin_of
from terrine.privacy.statement import PublicInput
from terrine.queries import Queries
from terrine.teachers.features import PrivateFeatures, private_features
from terrine.teachers.kind import Arrays, Records, TeacherKind
from terrine.teachers.memory import train_within_memory
from terrine.teachers.registry import TeacherContext
from terrine.teachers.teachers import FeatureTeachers, Teachers
from terrine.teachers.untrained import votes_without_records

States = Callable[[Sequence[int]], Iterable[Arrays]]
"""Numbers of teachers -> their states, in that order."""


@dataclass(frozen=True, eq=False, repr=False)
class FittedTeachers:
    """Teachers, each trained on its own part of the records: private, as their votes are.

    settings  what they were trained with
    states    the state of each by its number; without those that had too few records
    parts     who learned from what
    backbone  what made their features; None where they learn from images or rows
    """

    settings: Teachers
    kind: TeacherKind
    states: Mapping[int, Arrays]
    data: Dataset
    parts: Parts
    backbone: Backbone | None
    seed: int
    device: torch.device

    def vote(self, queries: Queries) -> Votes:
        """Let every teacher label every query.

        Args:
            queries: uint8 images [queries, C, H, W]; teachers of a table take its rows.

        Returns:
            The votes, private, with all that a release must know of them.

        Raises:
            InputError: images that do not fit the backbone or the teachers.
        """
        classes, voters = self.data.classes, self.settings.voters(self.parts.teachers)
        asked = queries
        if self.settings.inputs == "features" and self.backbone is not None:
            rows = features_in_batches(
                self.backbone, queries.inputs, queries.batches, self.settings.statistics, self.device
            )
            asked = Queries(rows, queries.batches)
        untrained = set(range(voters)) - self.states.keys()
        blocks = [range(first, min(first + self.kind.block, voters)) for first in range(0, voters, self.kind.block)]
        votes = np.concatenate(
            [
                cast_votes(
                    self.kind,
                    block,
                    untrained,
                    self._states,
                    asked,
                    classes=classes,
                    seed=self.seed,
                    device=self.device,
                )
                for block in blocks
            ],
            axis=1,
        )
        return Votes(
            votes,
            classes,
            queries=queries.digest,
            assignment=self.parts.assignment,
            unit=self.parts.unit,
            public=self.data.public,
            disjoint=bool(self.parts.proof["every_record_in_exactly_one_part"]),
            made_from=self._made_from(queries),
            public_inputs=self._public_inputs(queries),
            facts=Facts(
                "image" if self.data.column_names is None else "row",
                (_examples(queries),),
                held_out=len(self.data.test_images) > 0,
                by_party=self.parts.describe().get("kind") == "party",
            ),
            people=None if self.data.public else self.data.people(self.parts.unit),
            class_names=self.data.class_names,
            declared=self.data.declared or self.data.scale is not None,
        )

    def _states(self, teachers: Sequence[int]) -> Iterable[Arrays]:
        blank = {name: np.zeros_like(array) for name, array in next(iter(self.states.values())).items()}
        return (self.states.get(teacher, blank) for teacher in teachers)

    def _made_from(self, queries: Queries) -> dict[str, Any]:
        told = {"settings": dict(self.data.settings)} if self.data.settings else {}
        return {
            "data": {"name": self.data.name, "shape": list(self.data.train_images.shape[1:]), **told},
            "partition": self.parts.describe(),
            "queries": queries.describe(),
            "backbone": None if self.backbone is None else self.backbone.origin or {"sha256": self.backbone.digest()},
            "teachers": self.settings.model_dump(mode="json", exclude={"per_task"}),
            "seed": self.seed,
        }

    def _public_inputs(self, queries: Queries) -> tuple[PublicInput, ...]:
        drawn = queries.origin
        told = f" ({', '.join(sorted(drawn['programs']))}; seed {drawn['seed']})" if drawn else ""
        found = [PublicInput("query images", origin_of((_examples(queries),)) + told, queries.digest)]
        if self.backbone is not None:
            kind = self.backbone.describe()["kind"]
            found.append(PublicInput("backbone", f"{kind}: public images only", self.backbone.digest()))
        return tuple(found)


def _examples(queries: Queries) -> Examples:
    return Examples("programs" if queries.origin else "provided", len(queries))


def fit(
    settings: Teachers, data: Dataset, parts: Parts, backbone: Backbone | None, *, seed: int, device: torch.device
) -> FittedTeachers:
    """Train teachers, each on its own part; see `Teachers.fit`."""
    if settings.averages:
        raise SettingError(
            f"teachers.kind={settings.kind} learn from one another, in rounds that are releases of their own: run them "
            "in the pipeline, which keeps account of both."
        )
    if data.several:
        raise SettingError(f"{data.name} has several findings: run it in the pipeline (docs/targets.md).")
    settings.refuse_shared_passes(device, public=data.public)
    check_parts(parts, data)

    def given() -> Backbone:
        if backbone is None:
            raise SettingError(f"teachers.kind={settings.kind} want a backbone: fit(data, parts, backbone).")
        return backbone

    inputs: np.ndarray | PrivateFeatures = data.train_images
    by_teacher = isinstance(settings, FeatureTeachers) and data.column_names is None
    labels, assignment = data.train_labels, parts.assignment
    if by_teacher:
        images, labels = settings.shown(inputs, assignment, seed=seed), settings.repeated(labels)
        assignment = settings.repeated(assignment)
        inputs = private_features(
            given(), images, assignment, settings.statistics, most=settings.feature_batch, device=device
        )
    elif isinstance(settings, FeatureTeachers):
        if settings.repeated(labels) is not labels:
            raise SettingError(f"{data.name} is a table, whose rows have no deformed copies. Set copies to 0.")
        inputs = PrivateFeatures.of_rows(inputs)
    records = Records(inputs, labels, assignment, data.classes)
    channels, size = data.train_images.shape[1], size_of(data.train_images.shape)
    kind = settings.build(
        TeacherContext(data.classes, channels, size, given, seed, parts.teachers, by_teacher=by_teacher)
    )
    states: dict[int, Arrays] = {}
    train_within_memory(
        lambda part: kind.train(records, part, seed=seed, device=device),
        range(settings.voters(parts.teachers)),
        states.__setitem__,
        public=data.public,
    )
    return FittedTeachers(settings, kind, states, data, parts, backbone, seed, device)


def cast_votes(
    kind: TeacherKind,
    block: range,
    untrained: set[int],
    states: States,
    queries: Queries,
    *,
    classes: int,
    seed: int,
    device: torch.device,
    findings: Findings | None = None,
) -> np.ndarray:
    """Return the votes of a block of teachers, trained or not: unsigned integers [queries, teachers].

    With `findings`, which `kind` must also have, [queries · findings, teachers]. states: `stacked` kinds need zeros for
    a teacher that was not trained.
    """
    trained = [teacher for teacher in block if teacher not in untrained]
    votes = votes_without_records(block, len(queries), classes, seed=seed, findings=findings)
    if trained:
        # Stacked states share a product: those that were not trained keep their places in it, so that its shapes say
        # nothing about who they are.
        asked = list(block) if kind.stacked else trained
        cast = kind.vote(states(asked), queries, device=device)
        places = [asked.index(teacher) for teacher in trained]
        votes[:, [teacher - block.start for teacher in trained]] = cast[:, places]
    return votes
