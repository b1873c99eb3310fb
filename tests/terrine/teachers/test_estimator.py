"""Estimators: equal to those of scikit-learn, stored as bytes without code."""

import io
import json
import zipfile

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from terrine.errors import ArtefactError, InputError, SettingError
from terrine.teachers.estimator import EstimatorKind, EstimatorTeachers, from_bytes, to_bytes
from terrine.teachers.records import Records

CLASSES = 3
KINDS = [
    ("RandomForestClassifier", {"n_estimators": 5}),
    ("LogisticRegression", {"max_iter": 50}),
    ("KNeighborsClassifier", {"n_neighbors": 3}),
    ("HistGradientBoostingClassifier", {"max_iter": 3}),
    ("GaussianNB", {}),
]


def estimators(name, options=None, **settings):
    estimator = {"name": name, "options": options or {}}
    return EstimatorKind(EstimatorTeachers(estimator=estimator, **settings), CLASSES)


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_votes_are_those_of_the_classifier_trained_alone_in_a_plain_loop(
    feature_records, feature_queries, name, options
):
    kind = estimators(name, options)
    votes = kind.vote((state for _, state in kind.train(feature_records, range(5), seed=3)), feature_queries)
    assert votes.dtype == np.uint8
    for teacher in range(5):
        own = feature_records.assignment == teacher
        plain = kind._build(3, teacher).fit(feature_records.inputs[own], feature_records.labels[own])
        expected = [plain.predict(row[None])[0] for row in feature_queries.inputs]
        assert votes[:, teacher].tolist() == expected


def test_a_teacher_that_saw_one_class_votes_for_it(feature_records, feature_queries):
    assignment = np.where(feature_records.labels == 2, 1, 0)
    data = Records(feature_records.inputs, feature_records.labels, assignment, CLASSES)
    kind = estimators("LogisticRegression")
    states = dict(kind.train(data, [0, 1], seed=0))
    votes = kind.vote(states.values(), feature_queries)
    assert set(votes[:, 1]) == {2}
    assert 2 not in votes[:, 0]


def test_random_states_are_shared_or_own_and_the_users_where_given():
    def states(options=None, **settings):
        kind = estimators("RandomForestClassifier", options, **settings)
        return [kind._build(seed, teacher).random_state for seed, teacher in ((0, 0), (0, 1), (1, 0))]

    shared, own = states(), states(initialisation="own")
    assert shared[0] == shared[1] != shared[2]
    assert len({shared[0], *own}) == 4
    assert set(states(options={"random_state": 9})) == {9}


def test_what_is_stored_is_read_again_and_equal_states_have_equal_bytes(feature_records):
    def fit():
        return DecisionTreeClassifier(random_state=0).fit(feature_records.inputs, feature_records.labels)

    data = to_bytes(fit())
    assert data == to_bytes(fit())
    assert np.array_equal(from_bytes(data).predict(feature_records.inputs), feature_records.labels)


def test_a_type_that_is_not_scikit_learns_is_not_loaded(feature_records):
    data = to_bytes(LogisticRegression().fit(feature_records.inputs, feature_records.labels))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(files["schema.json"])
    schema["__module__"], schema["__class__"] = "subprocess", "Popen"
    files["schema.json"] = json.dumps(schema).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(ArtefactError, match=r"contains the type subprocess\.Popen"):
        from_bytes(out.getvalue())


def test_damaged_bytes_are_an_artefact_error(feature_queries):
    with pytest.raises(ArtefactError, match="cannot be read"):
        from_bytes(b"no archive")
    with pytest.raises(ArtefactError, match="contains no classifier"):
        estimators("GaussianNB").vote([{"weight": np.zeros(1)}], feature_queries)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("RandomForest", {}, "no classifier 'RandomForest'. It has AdaBoostClassifier"),
        ("GaussianNB", {"depth": 3}, "GaussianNB does not take"),
        ("VotingClassifier", {}, "VotingClassifier does not take"),
    ],
)
def test_a_classifier_that_does_not_exist_is_refused_before_any_work(name, options, words):
    with pytest.raises(SettingError, match=words):
        estimators(name, options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("KNeighborsClassifier", {"n_neighbors": 18}),  # learns from any number, and answers from 18 on
        ("LinearDiscriminantAnalysis", {}),  # wants more records than classes
    ],
)
def test_a_teacher_whose_records_the_classifier_cannot_learn_from_is_passed_over_and_is_no_error(
    feature_records, name, options
):
    assignment = feature_records.assignment.copy()
    second = np.flatnonzero(assignment == 1)
    assignment[second[2:]] = 3
    labels = feature_records.labels.copy()
    labels[second[:2]] = [0, 1]
    data = Records(feature_records.inputs, labels, assignment, CLASSES)
    kind = estimators(name, options)
    trained = list(dict(kind.train(data, range(5), seed=0)))
    assert 1 not in trained
    assert {0, 3, 4} <= set(trained)


def test_memory_that_runs_out_is_told_to_whoever_can_halve_the_group(feature_records, monkeypatch):
    def fit(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("sklearn.naive_bayes.GaussianNB.fit", fit)
    with pytest.raises(MemoryError, match="no room"):
        list(estimators("GaussianNB").train(feature_records, [0], seed=0))


def test_features_that_are_not_finite_are_refused(feature_records):
    features = feature_records.inputs.copy()
    features[np.flatnonzero(feature_records.assignment == 2)[0], 0] = np.nan
    data = Records(features, feature_records.labels, feature_records.assignment, CLASSES)
    with pytest.raises(InputError, match="a record of teacher 2 is not finite"):
        list(estimators("GaussianNB").train(data, range(5), seed=0))
