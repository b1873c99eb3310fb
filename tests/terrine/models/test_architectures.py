"""Every architecture is built from its defaults for small images, with the stem and the size it needs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from terrine.errors import InputError, SettingError
from terrine.geometry import sides
from terrine.models import timm
from terrine.models.architecture import ARCHITECTURES, build_backbone
from terrine.models.backbone import ColumnsBackbone
from terrine.models.backbone_files import load_backbone, save_backbone

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
    """A stand-in that refuses small sides: a separate test checks whether timm builds it."""
    tried = []

    def refuses(kind, *, enlarge=None, size, **arguments):
        tried.append(enlarge)
        if (enlarge or size) < 64:
            raise SettingError("too small")
        return enlarge

    monkeypatch.setattr("terrine.models.architecture.build_backbone", refuses)
    monkeypatch.setattr(timm, "build_backbone", refuses)
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
    assert backbone.describe()["options"] == {
        "architecture": "resnet10t",
        "enlarge": 16,
        "from_tensorflow": False,
        "levels": False,
        "mirrored": False,
        "outputs": "features",
    }
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


def test_cryptonet_averages_without_counting_padding():
    network = build_backbone("cryptonet", channels=1, size=8, seed=0).network
    image = torch.rand(1, 1, 8, 8)
    with torch.no_grad():
        maps = F.relu(F.conv2d(image, network[0].weight, network[0].bias, stride=2, padding=2))
        averaged = network[2](maps)
    for row in range(4):
        for column in range(4):
            rows = slice(max(row - 1, 0), row + 2)
            columns = slice(max(column - 1, 0), column + 2)
            torch.testing.assert_close(averaged[0, :, row, column], maps[0, :, rows, columns].mean(dim=(1, 2)))


def test_weights_are_those_of_the_seed_from_any_number_of_threads():
    expected = [build_backbone("small_cnn", channels=1, size=8, seed=seed).network[0].weight for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda seed: build_backbone("small_cnn", channels=1, size=8, seed=seed), range(8)))
    assert all(torch.equal(b.network[0].weight, weight) for b, weight in zip(built, expected, strict=True))


def test_columns_leave_rows_as_they_are_and_survive_a_file(tmp_path):
    backbone = build_backbone("columns", channels=5, size=1, seed=0)
    rows = torch.randn(4, 5)
    path = tmp_path / "backbone.safetensors"
    save_backbone(backbone, path)
    for each in (backbone, load_backbone(path)):
        assert isinstance(each, ColumnsBackbone)
        assert each.feature_dim == 5
        for statistics in ("current", "original"):
            assert torch.equal(each.features(rows, statistics), rows)


def test_rows_of_another_table_are_refused():
    with pytest.raises(InputError, match=r"rows of shape \(B, 5\) and was given torch\.float32 \(2, 4\)"):
        ColumnsBackbone(5).features(torch.zeros(2, 4), "original")
    with pytest.raises(InputError, match="was given torch"):
        ColumnsBackbone(5).features(torch.zeros(2, 5, dtype=torch.uint8), "original")
    with pytest.raises(SettingError, match="At least one is needed"):
        ColumnsBackbone(0)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_it_has_two_convolutions_with_pooling_one_linear_layer_and_no_batch_normalisation(channels, size):
    backbone = build_backbone("pate_cnn", channels=channels, size=size, seed=0)
    kinds = [type(layer) for layer in backbone.network]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.MaxPool2d] * 2 + [nn.Flatten, nn.Linear, nn.ReLU]
    images = torch.rand(5, channels, size, size)
    features = backbone.features(images, "original")
    assert features.shape == (5, backbone.feature_dim)
    # Without batch statistics an image's features do not depend on its batch.
    torch.testing.assert_close(features[:1], backbone.features(images[:1], "original"))
    assert (features > 0).any(dim=0).float().mean() > 0.3
