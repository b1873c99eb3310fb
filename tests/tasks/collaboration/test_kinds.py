"""Teachers of every kind at institutions: from the proposal to the student; and what is refused."""

import numpy as np
import pytest
import yaml

from tasks.artefacts.images import read_backbone, read_queries
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.collaboration.accept import candidate
from tasks.collaboration.local_training import open_run, own_params, prepare_run, report_source
from tasks.collaboration.student_training import learn
from tasks.config.params import merge_overrides, validate
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import read_party
from tasks.parties.terms import checked
from tasks.runtime.releases import worst_cases
from tasks.runtime.store import read_json
from terrine.aggregation.votes import count_votes
from terrine.data.partition import partition
from terrine.data.source import load_dataset
from terrine.errors import InputError, SettingError
from terrine.models.backbone import features_in_batches
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise, delta_slack
from terrine.queries import Queries
from terrine.teachers.averaging.averaged import AveragedKind, RoundState, centre_records, party_means
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.private import calibrated
from terrine.teachers.averaging.ttac import Average, derived_control, local_round, server_step
from terrine.teachers.records import Records, private_features
from tests.party_trials import SEED, Site
from tests.tasks.collaboration.conftest import PRESET, accept_all

DIGITS = [str(digit) for digit in range(10)]
AVERAGES = {
    "kind": "averaged",
    "statistics": "original",
    "centre": "shared",
    "rounds": 3,
    "steps": 3,
    "learning_rate": 5.0,
    "step_decay": 0.7,
    "batch": 16,
    "clip": 3.0,
    "budget_share": 0.8,
}
WITH_WEIGHTS = {"kind": "small_cnn", "weights": "initial"}
TEACHERS = {
    "averaged": ({"projection": 30}, AVERAGES),
    "prompt": (WITH_WEIGHTS, {"kind": "prompt", "prompt": {"epochs": 1}}),
    "finetune": (WITH_WEIGHTS, {"kind": "finetune", "epochs": 1, "trainable": 20.0}),
}
HELD = {"south": 2, "north": 3}


@pytest.fixture(scope="module")
def agreed(project, proposed):
    """Propose a vote of teachers of a kind."""

    def make(kind, **changes):
        backbone, teachers = TEACHERS[kind]
        preset = {**PRESET, "privacy": {}, "backbone": backbone, "teachers": teachers | changes}
        preset["aggregation"] = {"mechanism": "histogram", "sigma": 6.0, "epsilon": 14}
        (project / "experiments" / "own.yaml").write_text(yaml.safe_dump(preset))
        folder = project / f"{kind}-{len(list(project.iterdir()))}"
        try:
            return proposed(folder, teachers=HELD, class_names=DIGITS)
        finally:
            (project / "experiments" / "own.yaml").write_text(yaml.safe_dump(PRESET))

    return make


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The records of each party, as a file."""
    folder, data = tmp_path_factory.mktemp("digits"), load_dataset("digits")
    for place, name in enumerate(HELD):
        own = slice(place * 300, place * 300 + 90)
        images, labels = data.train_images[own], data.train_labels[own]
        np.savez(folder / f"{name}.npz", images=images, labels=labels, class_names=np.array(DIGITS))
    return folder


def votes_of_the_library(configs):
    """Votes of teachers that learn each by itself, without a stage of the pipeline."""
    votes = []
    for name, config in configs.items():
        run = open_run(config.own, config.terms, HELD[name])
        data, settings = read_dataset(run.folders), run.params.teachers
        parts = partition(data, teachers=HELD[name], seed=run.params.seed)
        stored = read_queries(run.folders)
        fitted = settings.fit(data, parts, read_backbone(run.folders), seed=run.params.seed)
        votes.append(fitted.vote(Queries(stored.images, stored.batches)).values)
    return np.concatenate(votes, axis=1), ReplayNoise(SEED)


def votes_after_averages(configs):
    """Votes of teachers that average in one place, with the noise that is left for them: nothing is shared."""
    noise, records, queries = ReplayNoise(SEED), {}, None
    for name, config in configs.items():
        run = prepare_run(config.own, config.terms, HELD[name])
        data, assignment, backbone = read_dataset(run.folders), read_assignment(run.folders), read_backbone(run.folders)
        features = private_features(backbone, data.train_images, assignment, "original", most=500)
        records[name] = Records(features, data.train_labels, assignment, 10)
        stored = read_queries(run.folders)
        queries = Queries(
            features_in_batches(backbone, stored.images, stored.batches, "original", "cpu"), stored.batches
        )
    settings, seed, budget = run.params.teachers, run.params.seed, config.terms
    averaging = calibrated(settings, epsilon=budget.epsilon, delta=budget.delta)
    teachers = {name: range(held) for name, held in HELD.items()}
    centre = averaging.release_centre([party_means(own, teachers[name]) for name, own in records.items()], noise)
    records = {name: (own, centre_records(own, teachers[name], centre)) for name, own in records.items()}
    learner = LinearLearner(30, 10, by_teacher=True, centred=True)
    average = Average.start(learner)
    controls = {name: np.zeros((held, learner.length), np.float32) for name, held in HELD.items()}
    for number in range(settings.rounds - 1):
        found = {
            name: local_round(learner, average, controls[name], own, teachers[name], settings, number, seed=seed)
            for name, (_, own) in records.items()
        }
        update = averaging.release([local.update for local in found.values()], noise)
        average = server_step(average, update, derived_control(average, update, settings, number), settings)
        controls = {name: local.own for name, local in found.items()}
    votes = []
    for name, (own, _) in records.items():
        start = RoundState(average, controls[name], centre)
        kind = AveragedKind(settings, learner, HELD[name], lambda start=start: start)
        states = [state for _, state in kind.train(own, teachers[name], seed=seed)]
        votes.append(kind.vote(states, queries))
    return np.concatenate(votes, axis=1), noise


@pytest.mark.parametrize("kind", TEACHERS)
def test_teachers_of_every_kind_go_from_the_proposal_to_a_student(kind, agreed, digits, project, tmp_path, monkeypatch):
    proposal = agreed(kind)
    terms = proposal.terms
    configs = accept_all(proposal, project, tmp_path, lambda name: digits / f"{name}.npz")
    Site(tmp_path, terms, report_source, monkeypatch).run()
    # The answers are those of one place with the same noise.
    votes, noise = (votes_after_averages if kind == "averaged" else votes_of_the_library)(configs)
    student = read_party(tmp_path / "uni" / "party.yaml")
    counts = count_votes(votes[: terms.queried], 10)
    noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma) + 0.5)
    np.testing.assert_array_equal(read_arrays(student)["result"], noisy.astype(np.int64))
    assert len(np.unique(votes)) > 2
    # The price is that of a run in one place.
    local = validate(
        merge_overrides(
            {
                "data": {"public_benchmark": True, "name": "digits", "size": 8},
                "partition": {"teachers": terms.total},
                "queries": PRESET["queries"],
                "aggregation": {"mechanism": "histogram", "sigma": 6.0, "epsilon": 14},
                "pretraining": {"images": {"count": 64, "sources": {"gaussian": 1}}},
            },
            {"backbone": TEACHERS[kind][0], "teachers": TEACHERS[kind][1]},
        )
    )
    spent = compose(*worst_cases(local, terms.queries).values())
    statement = read_json(learn(student).folders.statement)
    assert statement["epsilon"] == round_up(price(spent, terms.delta))
    assert statement["epsilon"] <= 14
    assert statement["delta_slack"] == pytest.approx(delta_slack(terms.numbers, terms.epsilon))
    assert (statement["queried"], statement["teachers"], statement["unit"]) == (terms.queried, 5, "record")
    assert ("averaging" in statement["mechanism"]) == (kind == "averaged")
    assert stored_answers(student)["guardian"]["epsilon"] == statement["epsilon"]
    if kind == "averaged":
        described = statement["mechanism"]["averaging"]
        assert {key: described[key] for key in ("averages", "vectors", "clip", "centred")} == {
            "averages": 2,
            "vectors": 3,
            "clip": 3.0,
            "centred": True,
        }
        assert terms.numbers == 30 + 2 * 310 + terms.queried * 11
    check_refused_at_the_party(kind, proposal, configs["south"], digits, tmp_path)


def check_refused_at_the_party(kind, proposal, config, digits, folder):
    """The party concerned refuses settings that contradict the terms, and terms that lack a setting."""
    terms, own = proposal.terms, config.own
    contradictions = {
        "averaged": [("teachers.batch=8", "own.params.teachers.batch=8, and the terms say 16")],
        "prompt": [("teachers.prompt.epochs=3", "own.params.teachers.prompt.epochs=3, and the terms say 1")],
        "finetune": [("teachers.trainable=30", "own.params.teachers.trainable=30, and the terms say 20.0")],
    }[kind]
    contradictions += [
        ("teachers.kind=linear", f"own.params.teachers.kind='linear', and the terms say '{kind}'"),
        ("teachers.ridge=0.2", f"and the terms have no such setting of {kind}"),
        ("seed=7", "own.params.seed=7, and the terms say 0"),
        ("backbone.kind=vgg9", "own.params.backbone.kind=vgg9, and .* holds one of kind"),
    ]
    for assignment, sentence in contradictions:
        party = candidate(proposal, "south", data=digits / "south.npz", assignments=[assignment])
        with pytest.raises(SettingError, match=sentence):
            party.check_data()
    # The party chooses its grouping; its backbone is the file it was given, even if its settings omit the kind.
    bare = {"data": own.params["data"], "teachers": {"per_task": 1}}
    params = own_params(own.model_copy(update={"params": bare}), terms, 2)
    assert (params.teachers.kind, params.teachers.per_task, params.backbone.kind) == (
        kind,
        1,
        TEACHERS[kind][0].get("kind", "scattering"),
    )
    if kind == "averaged":
        silent = checked({key: value for key, value in terms.public().items() if key not in _OF_AVERAGES})
        with pytest.raises(SettingError, match="learn from those of other parties, and the terms do not say how"):
            own_params(own.model_copy(update={"params": own.params | {"teachers": AVERAGES}}), silent, 2)
        longer = config.model_copy(update={"terms": terms.model_copy(update={"features": 31})})
        with pytest.raises(InputError, match="30 numbers long, and the terms say 31"):
            report_source(longer)(0, None)


_OF_AVERAGES = {"teaching", "noise_multiplier", "weights", "features"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"averaging": "blocks", "block": 2, "clip": None, "budget_share": None}, "members of a group see one another"),
        ({"mode": "paper", "clip": None, "budget_share": None}, "has no guarantee, and no budget can pay for it"),
    ],
)
def test_teachers_that_institutions_cannot_have_are_refused_before_anything_is_drawn(changes, sentence, agreed):
    with pytest.raises(SettingError, match=sentence):
        agreed("averaged", **changes)


def test_a_party_that_missed_rounds_goes_on_with_what_it_last_knew(agreed, digits, project, tmp_path):
    """Control variates stay at the party, round by round, and outlast its process."""
    proposal = agreed("averaged", rounds=4)
    terms = proposal.terms
    config = accept_all(proposal, project, tmp_path, lambda name: digits / f"{name}.npz")["south"]
    generator, size = np.random.default_rng(0), terms.averages.broadcast_size
    weights = [None, *(generator.normal(size=size(number)) / 100 for number in range(1, 5))]
    first = report_source(config)
    shared = [first(number, weights[number]) for number in range(5)]
    assert [own.shape for own in shared] == [(30, 1), (310, 1), (310, 1), (310, 1), (terms.queried, 2)]
    # Started again it reports the very same, also the votes, whose stages have cleared their records away.
    again = report_source(config)
    for number in (3, 4, 0):
        np.testing.assert_array_equal(again(number, weights[number]), shared[number])
    # A party that was away in a round goes on with those of the round before.
    late = report_source(config.model_copy(update={"own": config.own.model_copy(update={"work": tmp_path / "away"})}))
    for number in (0, 1):
        np.testing.assert_array_equal(late(number, weights[number]), shared[number])
    assert (late(3, weights[3]) != shared[3]).any()
