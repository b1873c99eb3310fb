"""Order of the next queries, chosen by a student of the answers released so far.

The student sees only released answers and the public queries and backbone. The selecting student is always linear with
default settings, so that trying another student later does not change the queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.runtime.run import Run
from terrine.aggregation.adaptive_queries import Advice, Adviser, Rounds, in_order, most_uncertain
from terrine.heads import LinearHead, predict
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.linear import fit


def needs_student(run: Run) -> bool:
    """Return whether the order of queries or their comparison values depend on released answers."""
    queries = run.params.queries
    return queries.select != "order" or (queries.rounds > 1 and run.params.aggregation.informed)


def adviser(run: Run, teachers: int, classes: int) -> Adviser:
    """Return the function that orders the next queries, for the public numbers of teachers and classes."""
    if not needs_student(run):
        return in_order
    features = np.asarray(query_features(run, run.params.teachers.statistics))

    def advise(released: Rounds) -> Advice:
        head = _student_head(run, features, released, teachers, classes)
        probabilities = None if head is None else predict(head, features)
        if run.params.queries.select == "order":
            return Advice(in_order(released).order, probabilities)
        return most_uncertain(released, probabilities)

    return advise


def describe_selection(run: Run) -> dict[str, Any]:
    """Return the statement's fields about the choice of queries."""
    queries = run.params.queries
    if queries.rounds == 1 and queries.select == "order":
        return {}
    return {"select": queries.select, "rounds": queries.rounds}


def _student_head(run: Run, features: np.ndarray, released: Rounds, teachers: int, classes: int) -> LinearHead | None:
    """Return the linear student of the released answers, or None before the first; features are [queries, features]."""
    answers = released.answers
    own = answers.answered
    if not own.any():
        return None
    if answers.histograms is not None:
        given = histogram_answers(answers.histograms[own], teachers, run.params.aggregation.deviation)
    else:
        given = label_answers(answers.labels[own], classes)
    return fit(features[own], given, seed=run.params.seed)
