"""What the answers released so far suggest asking next: a student of them looks at the public queries.

The adviser is handed released answers only; it reads the query images and the backbone, which are public. It is always
the linear student with its default settings, so that trying another student afterwards never asks anything anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.runtime.run import Run
from terrine.aggregation.adaptive_queries import NEVER, Advice, Adviser, Rounds, in_order
from terrine.heads import LinearHead, predict
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.linear import fit
from terrine.students.selection import Pool, select


def needs_student(run: Run) -> bool:
    """Whether the order of the queries, or what their votes are compared with, depends on released answers."""
    queries = run.params.queries
    return queries.select != "order" or (queries.rounds > 1 and run.params.aggregation.informed)


def adviser(run: Run, teachers: int, classes: int) -> Adviser:
    """Return the adviser that the parameters ask for.

    teachers, classes: of the votes, both public.
    """
    if not needs_student(run):
        return in_order
    features = np.asarray(query_features(run, run.params.teachers.statistics))
    count, rounds = run.params.queries.count, run.params.queries.rounds

    def advise(released: Rounds) -> Advice:
        head = _student_head(run, features, released, teachers, classes)
        probabilities = None if head is None else predict(head, features)
        pool = Pool(np.flatnonzero(released.round == NEVER), features, probabilities)
        # More than a round's share may be named; what it does not use is asked about again in the next.
        order = select(run.params.queries.select, pool, -(-count // rounds))
        rest = np.setdiff1d(pool.candidates, order)
        return Advice(np.concatenate([order, rest]), probabilities)

    return advise


def describe_selection(run: Run) -> dict[str, Any]:
    """Return how a statement says that queries were chosen; nothing where all were asked at once, in order."""
    queries = run.params.queries
    if queries.rounds == 1 and queries.select == "order":
        return {}
    return {"select": queries.select, "rounds": queries.rounds}


def _student_head(run: Run, features: np.ndarray, released: Rounds, teachers: int, classes: int) -> LinearHead | None:
    """Return the linear student of the released answers, None before there are any.

    features: float32 [queries, features] of all queries there are, released.round of as many.
    """
    answers = released.answers
    own = answers.answered
    if not own.any():
        return None
    if answers.histograms is not None:
        given = histogram_answers(answers.histograms[own], teachers, run.params.aggregation.deviation)
    else:
        given = label_answers(answers.labels[own], classes)
    return fit(features[own], given, seed=run.params.seed)
