"""Trained teachers and their votes, in memory.

    teachers = LinearTeachers(ridge=0.1).fit(data, parts, backbone)
    votes = teachers.vote(queries)

The stages `teach` and `vote` use the same functions, so with equal settings and seed these are the stages' teachers and
votes, to the bit.

**Teachers with too few records** are not trained, and vote by a rule that reads no record. Parts are dealt by names
alone (`terrine.data.partition`), so some are small and some are empty. Such a teacher cannot be an error: whether a run
fails would tell how many records others have. It still has a vote, because the number of teachers is public: its vote
on a query is drawn uniformly over the classes from (seed, teacher, query), which is public and always the same.

Why one unit still moves one teacher, also when it makes a part cross the threshold: whether teacher t is trained is a
function of its own part alone. Below the threshold its votes are a function of (seed, t), above it of its own records,
the settings, the seed and t. Take two datasets that differ under one name, dealt to teacher t. Every other part is the
same in both, so every other teacher is trained in both or in neither, and votes the same in both. Teacher t's votes
may all change, from the rule to a trained model, and that is what accounting charges for: one vote in every query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from terrine.aggregation.release import Votes
from terrine.aggregation.votes import Findings, bounded
from terrine.determinism.randomness import numpy_generator
from terrine.privacy.facts import Examples, Facts, origin_of
from terrine.privacy.statement import PublicInput
from terrine.queries import Queries
from terrine.teachers.records import Arrays, vote_type

if TYPE_CHECKING:
    import torch

    from terrine.data.dataset import Dataset
    from terrine.data.partition import Parts
    from terrine.models.backbone import Backbone
    from terrine.teachers.base import TeacherKind, Teachers

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
        from terrine.models.backbone import features_in_batches

        classes, voters = self.data.classes, self.settings.voters(self.parts.teachers)
        asked = queries
        if self.settings.inputs == "features" and self.backbone is not None:
            rows = features_in_batches(
                self.backbone, queries.inputs, queries.batches, self.settings.statistics, self.device
            )
            asked = Queries(rows, queries.batches)
        untrained = set(range(voters)) - self.states.keys()
        blank = {name: np.zeros_like(array) for name, array in next(iter(self.states.values()), {}).items()}
        blocks = [range(first, min(first + self.kind.block, voters)) for first in range(0, voters, self.kind.block)]
        votes = np.concatenate(
            [
                cast_votes(
                    self.kind,
                    block,
                    untrained,
                    lambda teachers: (self.states.get(teacher, blank) for teacher in teachers),
                    asked,
                    classes=classes,
                    seed=self.seed,
                    device=self.device,
                )
                for block in blocks
            ],
            axis=1,
        )
        data, backbone = self.data, self.backbone
        told = {"settings": dict(data.settings)} if data.settings else {}
        return Votes(
            votes,
            classes,
            queries=queries.digest,
            assignment=self.parts.assignment,
            unit=self.parts.unit,
            public=self.data.public,
            disjoint=bool(self.parts.proof["every_record_in_exactly_one_part"]),
            made_from={
                "data": {"name": data.name, "shape": list(data.train_images.shape[1:]), **told},
                "partition": self.parts.describe(),
                "queries": queries.describe(),
                "backbone": None if backbone is None else backbone.origin or {"sha256": backbone.digest()},
                "teachers": self.settings.model_dump(mode="json", exclude={"per_task"}),
                "seed": self.seed,
            },
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
    votes = fallback_votes(block, len(queries), classes, seed=seed, findings=findings)
    if trained:
        # Stacked states share a product: those that were not trained keep their places in it, so that its shapes say
        # nothing about who they are.
        asked = list(block) if kind.stacked else trained
        cast = kind.vote(states(asked), queries, device=device)
        places = [asked.index(teacher) for teacher in trained]
        votes[:, [teacher - block.start for teacher in trained]] = cast[:, places]
    return votes


def fallback_votes(
    teachers: Sequence[int], queries: int, classes: int, *, seed: int, findings: Findings | None = None
) -> np.ndarray:
    """Return the votes of teachers that were not trained: unsigned integers [queries, teachers].

    With several findings, those of scores drawn uniformly from −1 to 1, [queries · findings, teachers]. A vote depends
    only on (seed, teacher, number of the query).
    """
    asked = queries * (1 if findings is None else findings.number)
    votes = np.empty((asked, len(teachers)), vote_type(classes))
    for column, teacher in enumerate(teachers):
        generator = numpy_generator(seed, "teacher without records", teacher)
        if findings is not None:
            scores = generator.uniform(-1, 1, (queries, findings.number))
            votes[:, column] = bounded(scores, findings.bound).ravel()
            continue
        votes[:, column] = generator.integers(0, classes, queries)
    return votes
