"""Teachers whose part has too few records: they are not trained, and vote by a rule that reads no record.

Parts are dealt by names alone (`terrine.data.partition`), so some are small and some are empty. Such a teacher cannot
be an error: whether a run fails would tell how many records others have. It still has a vote, since the number of
teachers is public. So its vote on a query is drawn uniformly over the classes from (seed, teacher, query): public, and
the same whenever it is asked.

Why one unit still moves one teacher, also when it makes a part cross the threshold: whether teacher t is trained is a
function of its own part alone. Below the threshold its votes are a function of (seed, t), above it of its own records,
the settings, the seed and t. Take two datasets that differ under one name, dealt to teacher t. Every other part is the
same in both, so every other teacher is trained in both or in neither, and votes the same in both. Teacher t's votes
may all change, from the rule to a trained model, and that is what accounting charges for: one vote in every query.
"""

from collections.abc import Sequence

import numpy as np

from terrine.aggregation.votes import Findings, bounded
from terrine.determinism.randomness import numpy_generator
from terrine.teachers.kind import vote_type


def votes_without_records(
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
