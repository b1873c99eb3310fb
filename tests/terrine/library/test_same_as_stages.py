"""Teachers, votes and students in Python are bit-identical to those of the stages."""

import numpy as np
import pytest

import terrine as tr
from flows.stages import run_through
from tasks.artefacts.released import read_answers, read_student
from tasks.config.params import validate
from tasks.pipeline.evaluate import probabilities
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json

SIZE, TEACHERS, SEED = 8, 30, 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(
        tmp_path_factory.mktemp("library"),
        "small",
        validate(
            {
                "seed": SEED,
                "device": "cpu",
                "data": {"name": "digits", "size": SIZE},
                "partition": {"teachers": TEACHERS},
                "queries": {"count": 90, "batch": 40, "sources": {"gaussian": 1, "dead_leaves": 2}},
                "backbone": {"kind": "scattering", "projection": 20, "invariance": True},
                "teachers": {"kind": "linear", "ridge": 0.2, "per_task": 7, "feature_batch": 11, "copies": 1},
                "aggregation": {"mechanism": "histogram", "sigma": 5, "epsilon": 20},
            }
        ),
    )
    run_through(run, "dataset", "evaluate")
    return run


@pytest.fixture(scope="module")
def made():
    data = tr.load_dataset("digits", size=SIZE)
    queries = tr.draw({"gaussian": 1, "dead_leaves": 2}, count=90, like=data, seed=SEED, batch=40)
    backbone = tr.Scattering(projection=20, invariance=True).fit(queries, seed=SEED)
    parts = tr.partition(data, teachers=TEACHERS, seed=SEED)
    teachers = tr.LinearTeachers(ridge=0.2, feature_batch=11, copies=1).fit(data, parts, backbone, seed=SEED)
    return data, queries, backbone, teachers.vote(queries)


def test_votes_are_those_of_the_stages(run, made):
    assert np.array_equal(made[3].values, read_array(run.folders.votes / "votes.npy"))
    assert made[3].values.shape == (90, TEACHERS)


def test_a_student_of_the_same_answers_is_that_of_the_stage(run, made, tmp_path):
    data, queries, backbone, votes = made
    release = tr.Ledger.open(tmp_path, budget=None).release(tr.GaussianHistogram(sigma=5), votes, epsilon=20)
    _, _, about = read_answers(run)
    table = np.load(next((run.root / "data/private/ledger/releases").glob("*.npz")))
    assert about["queried"] == release.statement().queried
    release.histograms[:] = table["arrays/histograms"]
    student = tr.LinearStudent().fit(queries, release, backbone, seed=SEED)
    assert np.array_equal(student.head.weight, read_student(run.folders)[1].weight)
    assert np.array_equal(student.predict_proba(data.test_images), probabilities(run, data.test_images))
    assert student.score(data.test) == read_json(run.folders.evaluation)["in_batches"]["accuracy"]
    with pytest.raises(tr.InputError, match="answers other images"):
        tr.LinearStudent().fit(tr.draw("gaussian", count=90, like=data), release, backbone)
