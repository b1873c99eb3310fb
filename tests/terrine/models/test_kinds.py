"""Every architecture is built from its defaults for small images, with the stem and the size it needs."""

import pytest
import torch

from terrine.errors import SettingError
from terrine.geometry import sides
from terrine.models import registry
from terrine.models.architecture import ARCHITECTURES
from terrine.models.files import load_backbone, save_backbone
from terrine.models.kinds import timm
from terrine.models.registry import build_backbone

NEEDED = {"timm": {"architecture": "resnet10t"}}
"""Settings without a default."""


def settings(kind, **own):
    return ARCHITECTURES.of(kind)(kind=kind, **{**NEEDED.get(kind, {}), **own})


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES.names() if kind not in ("columns", "tiny_vit")])
@pytest.mark.parametrize("size", [8, (20, 12)])
def test_every_kind_takes_small_images_and_says_whether_there_is_anything_to_train(kind, size):
    own = settings(kind)
    backbone = own.build(1, size, seed=0)
    assert backbone.describe()["kind"] == kind
    assert backbone.features(torch.rand(2, 1, *sides(size)), "current").shape == (2, backbone.feature_dim)
    assert any(value.requires_grad for value in backbone.parameters()) == own.has_weights


def test_the_columns_of_a_table_are_a_kind_too():
    assert settings("columns").build(5, 28, seed=0).features(torch.rand(2, 5), "current").shape == (2, 5)


def test_a_densenet_gets_the_small_stem_where_the_stock_one_fails_and_keeps_it_where_it_does_not():
    assert settings("densenet121").options(1, 28) == {"stem": "small"}
    assert settings("densenet121").options(1, 32) == {"stem": "standard"}
    assert settings("densenet121", stem="small").options(1, 32) == {"stem": "small"}
    with pytest.raises(SettingError, match="standard stem"):
        build_backbone("densenet121", channels=1, size=28, seed=0, stem="standard")


def test_images_are_enlarged_by_as_little_as_an_architecture_needs(monkeypatch):
    """A stand-in that refuses small sides: whether timm builds it is another test's matter."""
    tried = []

    def refuses(kind, *, enlarge=None, size, **arguments):
        tried.append(enlarge)
        if (enlarge or size) < 64:
            raise SettingError("too small")
        return enlarge

    monkeypatch.setattr(registry, "build_backbone", refuses)
    assert settings("timm").build(1, 28, seed=0) == 64
    assert tried == [None, 32, 64, 64]
    tried.clear()
    assert settings("timm").build(1, 70, seed=0) is None
    assert settings("timm", enlarge=90).build(1, 28, seed=0) == 90
    monkeypatch.setattr(timm, "SIDES", (32,))
    with pytest.raises(
        SettingError, match=r"resnet10t takes images of side 28 neither .* enlarged to 32 \(too small\)"
    ):
        settings("timm").build(1, 28, seed=0)


def test_an_architecture_of_timm_is_stored_with_what_was_chosen(tmp_path):
    backbone = settings("timm", enlarge=16).build(1, 12, seed=0)
    assert backbone.describe()["options"] == {"architecture": "resnet10t", "enlarge": 16}
    save_backbone(backbone, tmp_path / "backbone.safetensors")
    images = torch.rand(3, 1, 12, 12)
    again = load_backbone(tmp_path / "backbone.safetensors")
    assert torch.equal(again.features(images, "current"), backbone.features(images, "current"))


def test_parts_stand_side_by_side_timm_among_them():
    own = settings("concatenated", parts=("scattering", "vgg9", "resnet10t"), projection=20)
    backbone = own.build(1, 12, seed=0)
    assert [part["kind"] for part in backbone.describe()["options"]["parts"]] == ["scattering", "vgg9", "timm"]
    assert backbone.feature_dim == 20 + 512 + 512


@pytest.mark.parametrize(
    ("parts", "weights"), [(("scattering", "scattering"), False), (("scattering", "resnet10"), True), (None, True)]
)
def test_parts_have_weights_where_one_of_them_has(parts, weights):
    assert settings("concatenated", parts=parts).has_weights == weights


@pytest.mark.parametrize(
    ("kind", "own", "message"),
    [
        ("timm", {"architecture": "resnet18x"}, r"architecture names 'resnet18x', which timm does not know"),
        (
            "concatenated",
            {"parts": ("scattering", "resnet18x")},
            r"parts names 'resnet18x'.*Kinds of parts are: cryptonet",
        ),
        ("concatenated", {"parts": ("scattering", "columns")}, r"parts names 'columns', which is no part"),
        ("scattering", {"deformations": {}}, r"deformations have no meaning without invariance"),
    ],
)
def test_impossible_settings_are_refused(kind, own, message):
    with pytest.raises(ValueError, match=message):
        settings(kind, **own)


@pytest.mark.parametrize(
    ("kind", "own", "identity"),
    [
        ("scattering", {}, {"projection": 1000, "invariance": False, "stem": "standard"}),
        ("scattering", {"fitted_to": "pretraining"}, {"projection": 1000, "invariance": False, "stem": "standard"}),
        ("resnet18", {"weights": "w.pt"}, {"projection": 1000, "stem": "standard"}),
        ("columns", {}, {"projection": 1000, "invariance": False, "stem": "standard"}),
        ("tiny_vit", {"enlarge": 32}, {"projection": 1000, "stem": "standard", "enlarge": 32}),
    ],
)
def test_backbones_that_were_stored_before_there_were_kinds_are_found_again(kind, own, identity):
    expected = {"kind": kind, **identity, **{key: own[key] for key in own if key == "fitted_to"}}
    assert settings(kind, **own).identity() == expected
