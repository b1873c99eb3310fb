"""Votes of a block of teachers of which some had too few records to be trained."""

from types import SimpleNamespace

import numpy as np
import pytest

from tasks.config.params import validate
from tasks.pipeline import vote
from tasks.runtime.run import Run
from tasks.runtime.store import write_json
from terrine.queries import Queries
from terrine.teachers.ensemble import fallback_votes

BLOCK, UNTRAINED, CLASSES, QUERIES = range(3, 9), [4, 5, 8], 4, 5


@pytest.mark.parametrize("stacked", [True, False])
def test_who_was_not_trained_votes_by_the_rule_whatever_the_others_say(tmp_path, monkeypatch, stacked):
    run = Run(
        tmp_path, "small", validate({"data": {"name": "digits"}, "aggregation": {"mechanism": "gnmax", "sigma": 5}})
    )
    monkeypatch.setattr(vote, "read_teachers_manifest", lambda _: {"untrained": [*UNTRAINED, 40]})
    write_json(run.folders.dataset / "manifest.json", {"class_names": list("abcd")})
    monkeypatch.setattr(vote, "read_states", lambda _, teachers: teachers)
    queries = Queries(np.zeros((QUERIES, 2), np.float32), [])
    rule = fallback_votes(UNTRAINED, QUERIES, CLASSES, seed=run.params.seed)
    for said in range(CLASSES):
        # Teacher t of those that are asked says `said`, and t behind the first class, so that columns can be told.
        kind = SimpleNamespace(
            stacked=stacked,
            vote=lambda teachers, queries, device, said=said: np.stack(
                [np.full(len(queries.inputs), (said + teacher) % CLASSES, np.uint8) for teacher in teachers], axis=1
            ),
        )
        votes = vote.block_votes(run, kind, BLOCK, queries, "cpu")
        for column, teacher in enumerate(BLOCK):
            if teacher in UNTRAINED:
                assert votes[:, column].tolist() == rule[:, UNTRAINED.index(teacher)].tolist()
            else:
                assert set(votes[:, column].tolist()) == {(said + teacher) % CLASSES}
