"""Trained teachers and their votes, in memory.

    teachers = LinearTeachers(ridge=0.1).fit(data, parts, backbone)
    votes = teachers.vote(queries)

The stages `teach` and `vote` use the same functions, so equal settings and seeds give the same bits.

**Teachers with too few records** are not trained; their votes depend on no record. Parts are assigned by names only
(`terrine.data.partition`), so some are small or empty. A part with too few records must not be an error, since a failed
run would reveal record counts. An untrained teacher still votes, because the number of teachers is public: its vote on
a query is drawn uniformly over the classes from (seed, teacher, query), which are public and fixed.

One unit affects one teacher even if it makes a part cross the threshold: only teacher t's own part determines whether
it is trained. Below the threshold its votes are a function of (seed, t); above it, of its records, the settings, the
seed and t. Take two datasets that differ in one unit, assigned to teacher t. All other parts are equal, so each
other teacher is trained in both cases or in neither, with equal votes. All votes of teacher t may change, from fallback
votes to those of a trained model. Accounting charges for this: one vote in every query.
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
"""Function that returns the states of teachers, given their numbers, in the same order."""


@dataclass(frozen=True, eq=False, repr=False)
class FittedTeachers:
    """Teachers, each trained on its own part of the records. They are private, and so are their votes.

    Attributes:
        states: State of each trained teacher by number; teachers with too few records are missing.
        parts: The assignment of records to teachers.
        backbone: Backbone that computed the features; None for teachers that learn from images or rows.
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
            queries: uint8 images [queries, C, H, W], or rows for teachers trained on a table.

        Returns:
            The private votes, with the facts that a release needs.

        Raises:
            InputError: The images do not match the backbone or the teachers.
        """
        from terrine.models.backbone import features_in_batches

        data, backbone = self.data, self.backbone
        classes, voters = data.classes, self.settings.voters(self.parts.teachers)
        queried = queries
        if self.settings.inputs == "features" and backbone is not None:
            rows = features_in_batches(backbone, queries.inputs, queries.batches, self.settings.statistics, self.device)
            queried = Queries(rows, queries.batches)
        examples = Examples("programs" if queries.origin else "provided", len(queries))
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
                    queried,
                    classes=classes,
                    seed=self.seed,
                    device=self.device,
                )
                for block in blocks
            ],
            axis=1,
        )
        settings = {"settings": dict(data.settings)} if data.settings else {}
        return Votes(
            votes,
            classes,
            queries=queries.digest,
            assignment=self.parts.assignment,
            unit=self.parts.unit,
            public=data.public,
            disjoint=bool(self.parts.proof["every_record_in_exactly_one_part"]),
            made_from={
                "data": {"name": data.name, "shape": list(data.train_images.shape[1:]), **settings},
                "partition": self.parts.describe(),
                "queries": queries.describe(),
                "backbone": None if backbone is None else backbone.origin or {"sha256": backbone.digest()},
                "teachers": self.settings.model_dump(mode="json", exclude={"per_task"}),
                "seed": self.seed,
            },
            public_inputs=self._public_inputs(queries, examples),
            facts=Facts(
                "image" if data.column_names is None else "row",
                (examples,),
                held_out=len(data.test_images) > 0,
            ),
            people=None if data.public else data.people(self.parts.unit),
            class_names=data.class_names,
            declared=data.declared or data.scale is not None,
        )

    def _public_inputs(self, queries: Queries, examples: Examples) -> tuple[PublicInput, ...]:
        drawn = queries.origin
        programs = f" ({', '.join(sorted(drawn['programs']))}; seed {drawn['seed']})" if drawn else ""
        found = [PublicInput("query images", origin_of((examples,)) + programs, queries.digest)]
        if self.backbone is not None:
            kind = self.backbone.describe()["kind"]
            found.append(PublicInput("backbone", f"{kind}: public images only", self.backbone.digest()))
        return tuple(found)


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
    """Return the votes of a block of teachers, trained or not.

    Args:
        kind: Kind of the teachers.
        block: Numbers of the teachers that vote.
        untrained: Numbers of the teachers without a state, which cast `fallback_votes`.
        states: Function that loads states; for `stacked` kinds it must return zeros for an untrained teacher.
        queries: Public queries.
        classes: Number of classes.
        seed: The run's seed, for the fallback votes.
        device: Device of the computation.
        findings: Number and bound of findings, as in `kind`; None for one class per query.

    Returns:
        Unsigned integers [queries, teachers], or with `findings` [queries · findings, teachers].
    """
    trained = [teacher for teacher in block if teacher not in untrained]
    votes = fallback_votes(block, len(queries), classes, seed=seed, findings=findings)
    if trained:
        # Stacked states share a product: untrained teachers keep their places in it, so that its shape does not depend
        # on which teachers were trained.
        queried = list(block) if kind.stacked else trained
        cast = kind.vote(states(queried), queries, device=device)
        places = [queried.index(teacher) for teacher in trained]
        votes[:, [teacher - block.start for teacher in trained]] = cast[:, places]
    return votes


def fallback_votes(
    teachers: Sequence[int], queries: int, classes: int, *, seed: int, findings: Findings | None = None
) -> np.ndarray:
    """Return the votes of untrained teachers: unsigned integers [queries, teachers].

    A vote depends only on (seed, teacher, query number). With several findings, votes [queries · findings, teachers]
    are computed from scores drawn uniformly from −1 to 1.
    """
    queried = queries * (1 if findings is None else findings.number)
    votes = np.empty((queried, len(teachers)), vote_type(classes))
    for column, teacher in enumerate(teachers):
        generator = numpy_generator(seed, "teacher without records", teacher)
        if findings is not None:
            scores = generator.uniform(-1, 1, (queries, findings.number))
            votes[:, column] = bounded(scores, findings.bound).ravel()
            continue
        votes[:, column] = generator.integers(0, classes, queries)
    return votes
