"""A run of prompt teachers that are asked about a public pool, on a source whose weights come from a file."""

import numpy as np
import pytest
import safetensors.torch

from flows.stages import run_through
from tasks.artefacts.images import read_queries
from tasks.artefacts.records import read_dataset, read_pool_labels
from tasks.config.params import merge_overrides, validate
from tasks.config.values import merge
from tasks.pipeline.evaluate import pool_truth
from tasks.pipeline.student import student_pool
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.store import read_json, read_table, write_json
from terrine.data.source import load_dataset
from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8, "pool": "test", "pool_fraction": 0.5},
    "partition": {"teachers": 12},
    "queries": {"count": 60, "batch": 15, "sources": {"pool": 3, "gaussian": 1}},
    "backbone": {"kind": "small_cnn", "weights": "weights.safetensors"},
    "teachers": {"kind": "prompt", "per_task": 5, "prompt": {"epochs": 1, "mapping": "fc1"}},
    "aggregation": {"mechanism": "histogram", "sigma": 4, "epsilon": 10, "noise": "replay"},
}


def made(root, **overrides):
    return Run(root, "prompted", validate(merge(VALUES, overrides)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("prompts")
    source = build_backbone("small_cnn", channels=1, size=8, seed=9)
    safetensors.torch.save_file(source.network.state_dict(), root / "weights.safetensors")
    run = made(root)
    run_through(run, "dataset", "evaluate")
    return run


def test_private_records_pool_and_test_images_are_three_parts_and_the_manifest_says_so(finished):
    dataset, labels = read_dataset(finished.folders), read_pool_labels(finished.folders)
    manifest = finished.folders.dataset_manifest()
    assert manifest["parts"] == {
        "private": len(dataset.train_images),
        "pool": len(labels),
        "test": len(dataset.test_images),
        "private in pool": 0,
        "test in private": 0,
    }
    queries = read_queries(finished.folders)
    queried = np.concatenate(
        [queries.images[batch] for batch, kind in zip(queries.batches, queries.sources, strict=True) if kind == "pool"]
    )
    assert len(queried) == 45
    private = {image.tobytes() for image in np.asarray(dataset.train_images)}
    test = {image.tobytes() for image in np.asarray(dataset.test_images)}
    assert not {image.tobytes() for image in queried} & (private | test)


def test_a_semi_supervised_student_has_the_rest_of_the_pool_without_answers(finished):
    params = finished.params
    others = {}
    for kind in ("linear", "fixmatch"):
        changed = validate(merge_overrides(params.model_dump(mode="json"), {"student": {"kind": kind}}))
        others[kind] = student_pool(Run(finished.root, finished.name, changed))
    assert len(others["linear"].images) == 60
    pool = read_pool_labels(finished.folders)
    assert len(others["fixmatch"].images) == 60 + len(pool) - 45
    known = {image.tobytes() for image in np.asarray(read_dataset(finished.folders).test_images)}
    assert not known & {image.tobytes() for image in others["fixmatch"].images}
    assert sorted(np.concatenate(others["fixmatch"].batches)) == list(range(len(others["fixmatch"].images)))


def test_the_statement_says_that_real_images_were_asked_about_and_whose_weights_those_are(finished):
    inputs = {entry["name"]: entry["origin"] for entry in read_json(finished.folders.statement)["public_inputs"]}
    assert "gaussian" in inputs["query images"]
    assert "45 images of a public dataset" in inputs["query images"]
    assert "non-private pretraining: weights from weights.safetensors, SHA-256" in inputs["backbone"]


def test_right_answers_are_counted_against_the_pools_labels(finished):
    truth = pool_truth(finished)
    assert (truth >= 0).sum() == 45
    answers = read_table(finished.folders.answers / "answers.parquet")
    counts = answers[[name for name in answers.columns if name.startswith("count_")]].to_numpy()
    right = total = 0
    for number, query in enumerate(answers["query"]):
        if answers["answered"][number] and truth[query] >= 0:
            total += 1
            right += int(counts[number].argmax() == truth[query])
    found = read_json(finished.folders.evaluation)["answers"]
    assert found == {"of_pool": 45, "answered": total, "accuracy": right / total}


def test_a_querys_truth_is_the_label_of_its_own_image(finished):
    whole = load_dataset("digits", size=8, seed=SPLIT_SEED)
    labels = dict(zip((image.tobytes() for image in whole.test_images), whole.test_labels.tolist(), strict=True))
    truth, queries = pool_truth(finished), read_queries(finished.folders)
    for batch, kind in zip(queries.batches, queries.sources, strict=True):
        for query in batch:
            known = labels[queries.images[query].tobytes()] if kind == "pool" else -1
            assert truth[query] == known


def test_a_backbone_from_a_file_is_not_pretrained_here(finished):
    manifest = read_json(finished.folders.backbone / "manifest.json")
    assert manifest["history"] == []
    assert manifest["images"] is None


def test_a_weights_file_that_is_missing_ends_the_stage_before_any_work(finished):
    run = made(finished.root, backbone={"weights": "elsewhere.safetensors"})
    with pytest.raises(InputError, match=r"elsewhere\.safetensors does not exist"):
        run_through(run, "pretrain", "pretrain")


def test_more_queries_than_the_pool_holds_are_refused(tmp_path):
    run = made(tmp_path, queries={"count": 4000})
    write_json(tmp_path / "there.json", {})
    with pytest.raises(SettingError, match=r"the source `pool` needs 3,000 images.* has 179"):
        run_through(run, "synthesize", "synthesize")
    assert not run.folders.images.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data": {"pool": None}}, r"queries\.sources is pool, gaussian and data\.pool is None"),
        ({"queries": {"sources": {"gaussian": 1}}}, r"queries\.sources is gaussian and data\.pool is test"),
        ({"backbone": {"kind": "scattering"}}, r"backbone\.weights='weights\.safetensors' has no meaning"),
        ({"teachers": {"prompt": {"mapping": "fc3"}}}, r"teachers\.prompt\.mapping='fc3'"),
        ({"teachers": {"prompt": {"lr": 1}}}, r"teachers\.prompt\.lr is not a setting"),
        ({"data": {"pool_fraction": 1.0}}, r"data\.pool_fraction=1\.0"),
        ({"teachers": {"prompt": {"inner": 8}}}, r"teachers\.prompt\.inner=8 leaves no border on a canvas of 8"),
        ({"teachers": {"prompt": {"together": 8}}}, r"teachers\.prompt\.together=8 is less than"),
    ],
)
def test_impossible_settings_are_refused_with_key_value_and_remedy(overrides, message):
    with pytest.raises(SettingError, match=message):
        validate(merge(VALUES, overrides))
