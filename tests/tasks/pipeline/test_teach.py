"""Teachers as tasks: parts never mix, grouping changes nothing, what is finished is kept; for every kind."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.stages import run_through
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.teachers import (
    HEADS,
    read_states,
    read_teachers_manifest,
    read_votes,
    teacher_file,
    teaching_folder,
)
from tasks.config.params import merge_overrides, validate
from tasks.config.values import merge
from tasks.pipeline import teach, vote
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.models.backbone import features_in_batches
from terrine.teachers.ensemble import fallback_votes
from terrine.teachers.networks import ScratchTeachers
from terrine.teachers.records import PrivateFeatures, private_features
from tests.folder_digest import folder_digest

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8, "test_fraction": 0.8},
    "partition": {"teachers": 11},
    "queries": {"count": 24, "batch": 12, "sources": {"gaussian": 1}},
    "backbone": {"projection": 30},
    "teachers": {"per_task": 4},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
}


NETWORK = {"epochs": 1, "batch": 32}
PRETRAINED = {
    "backbone": {"kind": "small_cnn"},
    "pretraining": {"images": {"count": 8, "sources": {"gaussian": 1}}, "epochs": 1, "batch": 8},
}
KINDS = {
    "linear": {"teachers": {"kind": "linear"}},
    "scratch": {"teachers": {"kind": "scratch", "architecture": "small_cnn", **NETWORK}},
    "finetune": {"teachers": {"kind": "finetune", "trainable": 3, **NETWORK}, **PRETRAINED},
    "estimator": {
        "teachers": {
            "kind": "estimator",
            "estimator": {"name": "RandomForestClassifier", "options": {"n_estimators": 2}},
        }
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Projects with everything that teachers need, by the settings that made them."""
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def prepared(made):
    """A function that returns a copy of a run with dataset, partition, images and backbone."""
    folder, known = made

    def prepare(root, overrides=None, **teachers):
        values = merge_overrides(merge(VALUES, {"teachers": teachers}), overrides or {})
        key = json.dumps({name: values[name] for name in values if name != "teachers"}, sort_keys=True)
        if key not in known:
            known[key] = folder / str(len(known))
            run_through(Run(known[key], "small", validate(values)), "dataset", "pretrain")
        shutil.copytree(known[key], root, dirs_exist_ok=True)
        return Run(root, "small", validate(values))

    return prepare


def taught(run):
    run_through(run, "teach", "vote")
    return folder_digest(run.folders.teachers), read_votes(run.folders)


@pytest.mark.parametrize("kind", KINDS)
def test_the_votes_do_not_depend_on_how_teachers_are_grouped(prepared, tmp_path, kind):
    results = [taught(prepared(tmp_path / str(size), KINDS[kind], per_task=size)) for size in (1, 4)]
    (digest, votes), (other_digest, other_votes) = results
    assert digest == other_digest
    np.testing.assert_array_equal(votes, other_votes)
    assert votes.shape == (24, 11)


def test_one_record_touches_one_teacher(prepared, tmp_path):
    """The disjointness the guarantee rests on, seen in the weights: exchange a record, and one head changes."""
    run = prepared(tmp_path)
    taught(run)
    before = read_tensors(run.folders.teachers / HEADS)
    images = np.load(run.folders.dataset / "train_images.npy")
    record = 17
    images[record] = 255 - images[record]
    np.save(run.folders.dataset / "train_images.npy", images)
    taught(run)
    after = read_tensors(run.folders.teachers / HEADS)
    changed = np.flatnonzero((before["weight"] != after["weight"]).any(axis=(1, 2)))
    assert changed.tolist() == [read_assignment(run.folders)[record]]


def test_one_record_touches_one_network(prepared, tmp_path):
    """Preprocessing for networks is done image by image."""
    run = prepared(tmp_path, KINDS["scratch"], per_task=50)
    path = run.folders.dataset / "train_images.npy"
    states = []
    for _ in range(2):
        taught(run)
        states.append(list(read_states(run.folders, range(11))))
        images = np.load(path)
        images[17] = 255 - images[17]
        np.save(path, images)
    changed = [
        number
        for number, (one, other) in enumerate(zip(*states, strict=True))
        if any(not np.array_equal(one[name], other[name]) for name in one)
    ]
    assert changed == [read_assignment(run.folders)[17]]


def test_what_another_setting_left_in_the_work_folder_is_not_used(prepared, tmp_path):
    one, two = prepared(tmp_path), Run(tmp_path, "small", validate(VALUES | {"teachers": {"ridge": 1.0}}))
    assert teaching_folder(one) != teaching_folder(two)


@pytest.mark.parametrize("kind", ["scratch", "estimator"])
def test_of_teachers_kept_one_by_one_only_the_missing_are_trained(prepared, tmp_path, kind, monkeypatch):
    run = prepared(tmp_path, KINDS[kind])
    teach.extract_features.fn(run)
    group = teach.groups(run)[0]
    teach.train_group.fn(run, group)
    lost = teach.teacher_path(run, 2)
    before = lost.read_bytes()
    lost.unlink()
    queried = []
    plain = teach.train_within_memory
    monkeypatch.setattr(
        teach,
        "train_within_memory",
        lambda train, teachers, keep, **how: (queried.append(list(teachers)), plain(train, teachers, keep, **how)),
    )
    teach.train_group.fn(run, group)
    teach.train_group.fn(run, group)
    assert queried == [[2]]
    assert lost.read_bytes() == before


def test_features_are_extracted_only_for_kinds_that_learn_from_them(prepared, tmp_path):
    run = prepared(tmp_path, KINDS["scratch"])
    teach.extract_features.fn(run)
    assert not (teaching_folder(run) / "features.npy").exists()
    run = prepared(tmp_path / "linear")
    teach.extract_features.fn(run)
    assert (teaching_folder(run) / "features.npy").exists()


@pytest.mark.parametrize("kind", ["linear", "scratch"])
@pytest.mark.parametrize("told", [True, False])
def test_a_group_that_does_not_fit_into_memory_is_halved_said_so_and_gives_the_same_teachers(
    prepared, tmp_path, kind, told, monkeypatch, caplog
):
    """The allocator fails for more than one teacher at a time; what comes out is what a large machine gives.

    Its memory depends on the teachers' numbers of records, so no log of private data shows it.
    """
    settings = merge(KINDS[kind], {"partition": {"teachers": 5}, "tracking": {"private_metrics": told}})
    expected, votes = taught(prepared(tmp_path / "large", settings))
    run = prepared(tmp_path / "small", settings)
    teach.extract_features.fn(run)
    plain = teach.teacher_kind

    def scarce(run):
        kind = plain(run)
        train = kind.train

        def limited(records, teachers, **options):
            if len(teachers) > 1:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
            return train(records, teachers, **options)

        kind.train = limited
        return kind

    monkeypatch.setattr(teach, "teacher_kind", scarce)
    with caplog.at_level(logging.WARNING):
        digest, small_votes = taught(run)
    assert digest == expected
    np.testing.assert_array_equal(small_votes, votes)
    for words in ("a group of 4 teachers", "groups of 2 and 2", "9 bytes"):
        assert (words in caplog.text) is told
    assert "memory" not in caplog.text.lower() or told


def test_teachers_that_never_saw_a_class_are_counted_in_the_private_manifest_and_not_in_the_log(
    prepared, tmp_path, caplog
):
    many = {"partition": {"teachers": 200}, "data": {"test_fraction": 0.2}}
    run = prepared(tmp_path, {**many, "teachers": {"per_task": 100}, "tracking": {"private_metrics": False}})
    labels = read_dataset(run.folders).train_labels
    assignment = read_assignment(run.folders)
    expected = sum(len(set(labels[assignment == teacher])) < 10 for teacher in range(200))
    assert expected > 0
    with caplog.at_level(logging.INFO):
        taught(run)
    assert read_teachers_manifest(run.folders)["teachers_missing_a_class"] == expected
    assert "never saw" not in caplog.text
    public = prepared(tmp_path / "public", many)
    with caplog.at_level(logging.INFO):
        taught(public)
    assert f"{expected} of 200 teachers never saw a record of some class" in caplog.text


def test_a_teacher_whose_file_was_changed_does_not_vote(prepared, tmp_path):
    run = prepared(tmp_path, KINDS["estimator"])
    taught(run)
    path = run.folders.teachers / teacher_file(3)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    Path(path).write_bytes(content)
    with pytest.raises(ArtefactError, match=r"teacher-000003\.safetensors is missing or was changed"):
        vote.collect_votes.fn(run)


def test_a_block_of_votes_that_was_cast_is_not_cast_again(prepared, tmp_path, monkeypatch):
    run = prepared(tmp_path, KINDS["scratch"])
    _, expected = taught(run)
    plain, calls = teach.teacher_kind, []

    def with_small_blocks(run):
        kind = plain(run)
        kind.block, cast = 4, kind.vote

        def counted(states, queries, **options):
            states = list(states)
            calls.append(len(states))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return cast(states, queries, **options)

        kind.vote = counted
        return kind

    monkeypatch.setattr(vote, "teacher_kind", with_small_blocks)
    with pytest.raises(KeyboardInterrupt):
        vote.collect_votes.fn(run)
    vote.collect_votes.fn(run)
    assert calls == [4, 4, 3, 3]
    np.testing.assert_array_equal(read_votes(run.folders), expected)
    assert not vote.voting_folder(run).exists()


def redealt(run, changes):
    """Reduce teachers to these numbers of records, {teacher: left}, and give the others to teacher 9."""
    path = run.folders.partition / "assignment.npy"
    assignment = np.array(np.load(path))
    for teacher, left in changes.items():
        assignment[np.flatnonzero(assignment == teacher)[left:]] = 9
    path.unlink()
    np.save(path, assignment)


SMALL_KINDS = {
    **KINDS,
    "prompt": {"teachers": {"kind": "prompt", "prompt": {"epochs": 1}}},
    "averaged": {"teachers": {"kind": "averaged", "averaging": "none", "rounds": 2}},
    "averaged networks": {
        "teachers": {"kind": "averaged", "averaging": "none", "learner": "network", "rounds": 2, "batch": 16}
    },
}


@pytest.mark.parametrize("kind", SMALL_KINDS)
def test_teachers_with_too_few_records_vote_by_a_rule_and_move_nobody(prepared, tmp_path, kind):
    """Teacher 2 has one record left, those of the second task have none; only teacher 9, who has theirs, changes."""
    settings = merge(SMALL_KINDS[kind], {"partition": {"teachers": 10}})
    whole, run = (prepared(tmp_path / name, settings, per_task=4) for name in ("whole", "few"))
    _, before = taught(whole)
    redealt(run, {2: 1, 4: 0, 5: 0, 6: 0, 7: 0})  # all of the second task's
    _, votes = taught(run)
    manifest = read_teachers_manifest(run.folders)
    untrained = [2, 4, 5, 6, 7]
    assert manifest["untrained"] == untrained
    assert read_teachers_manifest(whole.folders)["untrained"] == []
    np.testing.assert_array_equal(votes[:, untrained], fallback_votes(untrained, 24, 10, seed=run.params.seed))
    others = [0, 1, 3, 8]
    np.testing.assert_array_equal(votes[:, others], before[:, others])
    for one, other in zip(read_states(whole.folders, others), read_states(run.folders, others), strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("kind", ["linear", "estimator"])
def test_where_nobody_has_enough_records_all_vote_by_the_rule(prepared, tmp_path, kind, monkeypatch):
    run = prepared(tmp_path, KINDS[kind])
    plain = teach.teacher_kind

    def demanding(run):
        kind = plain(run)
        kind.min_records = 1_000
        return kind

    monkeypatch.setattr(teach, "teacher_kind", demanding)
    _, votes = taught(run)
    np.testing.assert_array_equal(votes, fallback_votes(range(11), 24, 10, seed=run.params.seed))


@pytest.mark.parametrize("kind", ["linear", "scratch"])
def test_nobody_looks_again_for_a_teacher_that_was_not_trained(prepared, tmp_path, kind, monkeypatch):
    run = prepared(tmp_path, KINDS[kind])
    redealt(run, {2: 0})
    teach.extract_features.fn(run)
    teach.train_group.fn(run, teach.groups(run)[0])
    monkeypatch.setattr(teach, "train_within_memory", lambda *_, **__: pytest.fail("trained again"))
    teach.train_group.fn(run, teach.groups(run)[0])


def test_how_many_teachers_were_not_trained_is_said_where_private_figures_may_go(prepared, tmp_path, caplog):
    for name, private_metrics in (("private", False), ("public", True)):
        run = prepared(tmp_path / name, {"tracking": {"private_metrics": private_metrics}})
        redealt(run, {2: 0, 3: 1})
        caplog.clear()
        with caplog.at_level(logging.INFO):
            taught(run)
        assert ("2 of 11 teachers had too few records" in caplog.text) == private_metrics


def mixed_batches(backbone, images, assignment, statistics, *, most, **options):
    """A forbidden implementation: batches of records in their order, across teachers."""
    batches = np.array_split(np.arange(len(images)), -(-len(images) // most))
    return features_in_batches(backbone, images, batches, statistics)


MISTAKES = {
    "rows": lambda *given, **options: PrivateFeatures.of_rows(mixed_batches(*given, **options)),
    "one part": lambda backbone, images, assignment, *given, **options: private_features(
        backbone, images, np.zeros_like(assignment), *given, **options
    ),
    "another partition": lambda backbone, images, assignment, *given, **options: private_features(
        backbone, images, assignment[::-1], *given, **options
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", ["linear", "estimator", "averaged"])
def test_features_of_mixed_batches_are_refused(prepared, tmp_path, kind, mistake, monkeypatch):
    run = prepared(tmp_path, SMALL_KINDS[kind])
    monkeypatch.setattr(teach, "private_features", MISTAKES[mistake])
    teach.extract_features.fn(run)
    with pytest.raises(InputError, match=r"another partition|not computed teacher by teacher"):
        teach.train_group.fn(run, teach.groups(run)[0])


def test_an_array_of_features_is_refused_wherever_it_comes_from(prepared, tmp_path, monkeypatch):
    run = prepared(tmp_path)
    teach.extract_features.fn(run)
    monkeypatch.setattr(
        "tasks.artefacts.teachers.record_inputs", lambda run, *_: np.load(teaching_folder(run) / "features.npy")
    )
    with pytest.raises(InputError, match="not computed teacher by teacher"):
        teach.train_group.fn(run, teach.groups(run)[0])


def test_features_of_which_nothing_says_how_they_were_made_are_made_anew(prepared, tmp_path):
    run = prepared(tmp_path)
    teach.extract_features.fn(run)
    features = teaching_folder(run) / "features.npy"
    expected = features.read_bytes()
    (teaching_folder(run) / "features.json").unlink()
    features.write_bytes(b"half of it")
    teach.extract_features.fn(run)
    assert features.read_bytes() == expected


def test_prompts_share_passes_on_an_accelerator_for_public_data_alone(prepared, tmp_path, monkeypatch):
    run = prepared(tmp_path, SMALL_KINDS["prompt"])
    own = run.params.model_copy(update={"data": run.params.data.model_copy(update={"public_benchmark": False})})
    monkeypatch.setattr(teach, "resolve_device", lambda _: torch.device("cuda"))
    for step in (teach.extract_features.fn, lambda run: teach.train_group.fn(run, range(4))):
        with pytest.raises(SettingError, match=r"not on cuda, and the data are not public: set device=cpu"):
            step(Run(run.root, run.name, own))
    teach.extract_features.fn(run)
    scratch = own.model_copy(update={"teachers": ScratchTeachers()})
    teach.extract_features.fn(Run(run.root, run.name, scratch))
