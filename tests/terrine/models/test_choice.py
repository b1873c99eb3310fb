"""Every kind that a run may choose is built for small images, with the stem and the size it needs."""

import pytest
import torch

from terrine.errors import SettingError
from terrine.models import choice
from terrine.models.choice import build_chosen
from terrine.models.files import load_backbone, save_backbone
from terrine.models.kinds import KINDS, PARTS, Choice
from terrine.models.registry import BACKBONES, build_backbone


def built(size=12, **settings):
    return build_chosen(Choice(**{"projection": 20, **settings}), channels=1, size=size, seed=0)


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind != "tiny_vit"])
@pytest.mark.parametrize("size", [8, 28])
def test_every_kind_takes_small_images(kind, size):
    backbone = built(size=size, kind=kind)
    images = torch.rand(2, 1, size, size)
    assert backbone.features(images, "current").shape == (2, backbone.feature_dim)


def test_the_kinds_of_a_run_are_those_of_the_registry_but_the_networks_of_teachers():
    assert {*KINDS, "small_cnn", "cryptonet", "pate_cnn"} - {"columns"} == set(BACKBONES)


def test_a_densenet_gets_the_small_stem_where_the_stock_one_fails_and_keeps_it_where_it_does_not():
    assert built(size=28, kind="densenet121").describe()["options"] == {"stem": "small"}
    assert built(size=32, kind="densenet121").describe()["options"] == {"stem": "standard"}
    assert built(size=32, kind="densenet121", stem="small").describe()["options"] == {"stem": "small"}
    with pytest.raises(SettingError, match="standard stem"):
        build_backbone("densenet121", channels=1, size=28, seed=0, stem="standard")


def test_images_are_enlarged_by_as_little_as_an_architecture_needs(tmp_path, monkeypatch):
    """A stand-in that refuses small sides: whether timm builds it is another test's matter."""
    tried = []

    def refuses(kind, *, enlarge=None, size, **arguments):
        tried.append(enlarge)
        if (enlarge or size) < 64:
            raise SettingError("too small")
        return enlarge

    monkeypatch.setattr(choice, "build_backbone", refuses)
    assert build_chosen(Choice("timm", architecture="resnet10t"), channels=1, size=28, seed=0) == 64
    assert tried == [None, 32, 64, 64]
    tried.clear()
    assert build_chosen(Choice("timm", architecture="resnet10t"), channels=1, size=70, seed=0) is None
    assert build_chosen(Choice("timm", architecture="resnet10t", enlarge=90), channels=1, size=28, seed=0) == 90
    monkeypatch.setattr(choice, "SIDES", (32,))
    with pytest.raises(
        SettingError, match=r"resnet10t takes images of side 28 neither .* enlarged to 32 \(too small\)"
    ):
        build_chosen(Choice("timm", architecture="resnet10t"), channels=1, size=28, seed=0)


def test_an_architecture_of_timm_is_stored_with_what_was_chosen(tmp_path):
    backbone = built(kind="timm", architecture="resnet10t", enlarge=16)
    assert backbone.describe()["options"] == {"architecture": "resnet10t", "enlarge": 16}
    save_backbone(backbone, tmp_path / "backbone.safetensors")
    images = torch.rand(3, 1, 12, 12)
    again = load_backbone(tmp_path / "backbone.safetensors")
    assert torch.equal(again.features(images, "current"), backbone.features(images, "current"))


def test_parts_stand_side_by_side_timm_among_them():
    backbone = built(kind="concatenated", parts=("scattering", "vgg9", "resnet10t"))
    assert [part["kind"] for part in backbone.describe()["options"]["parts"]] == ["scattering", "vgg9", "timm"]
    assert backbone.feature_dim == 20 + 512 + 512


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"kind": "scattering"}, False),
        ({"kind": "columns"}, False),
        ({"kind": "vgg9"}, True),
        ({"kind": "timm", "architecture": "resnet10t"}, True),
        ({"kind": "concatenated", "parts": ("scattering", "scattering")}, False),
        ({"kind": "concatenated", "parts": ("scattering", "resnet10")}, True),
    ],
)
def test_whether_there_is_anything_to_train_is_known_before_it_is_built(settings, weights):
    assert Choice(**settings).has_weights == weights
    if settings["kind"] != "columns":
        assert any(value.requires_grad for value in built(**settings).parameters()) == weights


def test_a_name_that_timm_does_not_know_is_refused():
    with pytest.raises(SettingError, match=r"backbone\.architecture=resnet18x: timm has no such model"):
        built(kind="timm", architecture="resnet18x")
