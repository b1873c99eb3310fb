"""The backbone of a run: every kind, trained and fitted as it needs, on one device or several."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flows.stages import run_through
from tasks.artefacts.images import read_backbone, read_queries
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.pipeline import pretrain
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.errors import SettingError
from terrine.files import file_digest
from terrine.models.backbone import as_float, features_in_batches

pytestmark = pytest.mark.usefixtures("one_thread")

VALUES = {
    "data": {"public_benchmark": True, "size": 8},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
    "queries": {"count": 32, "batch": 16, "sources": {"gaussian": 1}},
    "pretraining": {"images": {"count": 24, "sources": {"stylegan": 1}}, "epochs": 1, "batch": 12, "projection": 8},
    "device": "cpu",
}
CONCATENATED = {"kind": "concatenated", "parts": ["scattering", "resnet10"], "projection": 20}


def make(root, **overrides):
    run = Run(root, "small", validate(merge(VALUES, overrides)))
    run_through(run, "synthesize", "synthesize")
    return run


@pytest.mark.parametrize(
    "backbone",
    [
        {"kind": "vgg9"},
        {"kind": "timm", "architecture": "resnet10t"},
        CONCATENATED,
        {"kind": "resnet_levels", "projection": 4},
    ],
    ids=lambda backbone: backbone["kind"],
)
def test_every_kind_with_weights_is_pretrained_and_stored(tmp_path, backbone):
    run = make(tmp_path, backbone=backbone)
    initial = {name: value.clone() for name, value in pretrain._build(run).state_dict().items()}
    pretrain.pretrain_backbone.fn(run)
    stored = read_backbone(run.folders)
    manifest = read_json(run.folders.backbone / "manifest.json")
    assert len(manifest["history"]) == 1
    assert manifest["sha256"] == file_digest(run.folders.backbone / "backbone.safetensors")
    trained = {name for name, value in stored.named_parameters() if not torch.equal(value, initial[name])}
    assert trained
    queries = read_queries(run.folders)
    features = features_in_batches(stored, queries.images, queries.batches, "original")
    assert features.shape == (32, stored.feature_dim)
    assert np.isfinite(features).all()


def test_concatenated_features_are_standardised_by_the_queries_under_original_statistics(tmp_path):
    run = make(tmp_path, backbone=CONCATENATED)
    pretrain.pretrain_backbone.fn(run)
    queries = read_queries(run.folders)
    features = features_in_batches(read_backbone(run.folders), queries.images, queries.batches, "original")
    assert np.abs(features.mean(axis=0)).max() < 0.05
    deviation = features.std(axis=0)
    assert deviation[:20] == pytest.approx(1, abs=0.1)
    # Many features of a nearly untrained ResNet are zero or vary too little for the standardisation.
    assert (deviation < 1.1).all()
    assert (deviation > 0.9).mean() > 0.3


def test_a_concatenated_backbone_is_another_one_for_other_queries_and_a_resnet_is_not(tmp_path):
    for backbone, same in ((CONCATENATED, False), ({"kind": "resnet10"}, True)):
        first = make(tmp_path / str(same) / "first", backbone=backbone)
        second = make(tmp_path / str(same) / "second", backbone=backbone, queries={"sources": {"spectrum": 1}})
        assert (pretrain.backbone_identity(first) == pretrain.backbone_identity(second)) == same


def test_a_network_may_keep_its_initial_weights_as_in_classic_pate(tmp_path):
    run = make(tmp_path, backbone={"kind": "pate_cnn", "weights": "initial"}, pretraining={"images": None})
    pretrain.pretrain_backbone.fn(run)
    built = pretrain._build(run).state_dict()
    stored = read_backbone(run.folders).state_dict()
    assert all(torch.equal(stored[name], built[name]) for name in built)
    assert read_json(run.folders.backbone / "manifest.json")["origin"] == "nothing: its weights are random"


def test_weights_from_elsewhere_go_by_their_bytes_and_not_by_where_they_lie(tmp_path):
    def identity(name, content):
        (tmp_path / name).write_bytes(content)
        return pretrain.backbone_identity(make(tmp_path, backbone={"kind": "resnet10", "weights": name}))

    assert identity("a.pt", b"one") == identity("b.pt", b"one")
    assert identity("a.pt", b"two") != identity("b.pt", b"one")


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"kind": "resnet19"}, r"backbone\.kind=resnet19 does not exist.*Known: .*timm"),
        ({"kind": "timm"}, r"backbone\.architecture is missing.*Set backbone\.architecture"),
        ({"kind": "timm", "architecture": "resnet18x"}, r"architecture names 'resnet18x', which timm does not know"),
        (
            {"kind": "resnet10", "architecture": "resnet10t"},
            r"architecture='resnet10t' has no meaning",
        ),
        ({"kind": "resnet10", "parts": ["vgg9", "resnet10"]}, r"parts=.* has no meaning for kind=resnet10"),
        ({"kind": "vgg9", "enlarge": 64}, r"enlarge=64 has no meaning for kind=vgg9"),
        ({"kind": "concatenated", "parts": ["vgg9"]}, r"backbone\.parts=.*at least 2"),
        ({"kind": "concatenated", "parts": ["vgg9", "columns"]}, r"parts names 'columns', which is no part"),
        (
            {"kind": "concatenated", "parts": ["vgg9", "nothing"]},
            r"'nothing', which is no part: timm does not know it.*resnet10",
        ),
        ({"kind": "concatenated", "invariance": True}, r"invariance=True has no meaning for kind=concatenated"),
        ({"deformations": {"rotation": 180}}, r"deformations have no meaning without invariance"),
        ({"kind": "vgg9", "fitted_to": "pretraining"}, r"fitted_to='pretraining' has no meaning for kind=vgg9"),
        ({"invariance": True, "deformations": {"rotation": 181}}, r"backbone\.deformations\.rotation=181"),
    ],
)
def test_what_goes_with_no_kind_is_refused_before_any_work(backbone, message):
    with pytest.raises(SettingError, match=message):
        validate(merge(VALUES, {"backbone": backbone}))


def test_teachers_may_be_fine_tuned_on_what_has_weights_and_on_nothing_else():
    teachers = {"kind": "finetune", "statistics": "current"}
    assert validate(merge(VALUES, {"backbone": CONCATENATED, "teachers": teachers})).backbone.has_weights
    without = {"kind": "concatenated", "parts": ["scattering", "scattering"]}
    with pytest.raises(SettingError, match=r"backbone\.kind=concatenated has none"):
        validate(merge(VALUES, {"backbone": without, "teachers": teachers}))
    with pytest.raises(SettingError, match=r"pretraining\.images is missing"):
        validate(merge(VALUES, {"backbone": {"kind": "vgg9"}, "pretraining": {"images": None}}))


def test_a_projection_forgets_the_deformations_that_are_named(tmp_path):
    own = {"kind": "scattering", "projection": 20, "invariance": True}
    queries = {"count": 400, "batch": 200, "sources": {"dead_leaves": 1}}
    digits, cells = (
        make(tmp_path / name, queries=queries, backbone={**own, "deformations": deformations})
        for name, deformations in (("digits", None), ("cells", {"rotation": 180, "shift": 0}))
    )
    for run in (digits, cells):
        pretrain.pretrain_backbone.fn(run)
    images = np.asarray(read_queries(digits.folders).images)
    straight, turned = (torch.from_numpy(np.rot90(images, turns, axes=(2, 3)).copy()) for turns in (0, 1))

    def moved(run) -> float:
        backbone = read_backbone(run.folders)
        with torch.no_grad():
            before, after = (backbone.features(as_float(images), "current") for images in (straight, turned))
        return float((before - after).norm() / before.norm())

    assert moved(cells) < 0.9 * moved(digits)


FITTED = {"kind": "scattering", "projection": 6, "invariance": True}


def test_fitted_to_pretraining_images_it_does_not_depend_on_the_queries(tmp_path):
    own = {**FITTED, "fitted_to": "pretraining"}
    first, second, usual = (
        make(tmp_path / name, backbone=backbone, queries={**VALUES["queries"], "sources": {source: 1}})
        for name, source, backbone in (
            ("first", "gaussian", own),
            ("second", "shaders", own),
            ("usual", "gaussian", FITTED),
        )
    )
    for run in (first, second, usual):
        pretrain.pretrain_backbone.fn(run)
    digests = [file_digest(run.folders.backbone / "backbone.safetensors") for run in (first, second, usual)]
    assert digests[0] == digests[1] != digests[2]


def test_images_of_two_sources_never_share_a_batch_that_a_backbone_is_fitted_to(tmp_path):
    images = {"count": 40, "sources": {"stylegan": 1, "gaussian": 1}}
    run = make(tmp_path, backbone={**FITTED, "fitted_to": "pretraining"}, pretraining={"images": images})
    found, batches = pretrain._fitted_to(run)
    assert sorted(np.concatenate(batches)) == list(range(len(found)))
    shards = read_json(run.folders.images / "manifest.json")["shards"]["pretraining"]
    kinds = np.repeat([shard["kind"] for shard in shards], [shard["count"] for shard in shards])
    assert [set(kinds[batch]) for batch in batches[:2]] == [{kinds[0]}, set(kinds) - {kinds[0]}]
    assert all(len(set(kinds[batch])) == 1 for batch in batches)


@pytest.mark.parametrize(
    ("backbone", "sources", "origin"),
    [
        (FITTED, {"gaussian": 1}, "synthetic images only"),
        (FITTED, {"pool": 1}, "only the public pool"),
        (FITTED, {"pool": 1, "gaussian": 1}, "synthetic images and the public pool"),
        ({**FITTED, "fitted_to": "pretraining"}, {"pool": 1}, "synthetic images only"),
        ({"kind": "resnet10"}, {"pool": 1}, "synthetic images only"),
        (CONCATENATED, {"pool": 1}, "synthetic images and the public pool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_the_statement_says_whether_the_backbone_saw_real_images(backbone, sources, origin):
    data = {"name": "mnist", "size": 28, "pool": "test" if "pool" in sources else None}
    overrides = {"data": data, "backbone": backbone, "queries": {"sources": sources}}
    params = validate(merge(VALUES, overrides))
    assert pretrain._origin(Run(Path(), "some", params)).startswith(origin)
