"""Weights from elsewhere: exact, of the right architecture, and never code."""

import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from terrine import vision
from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.models.weights import download_weights, last_parameters, load_weights

TIMM = {"channels": 3, "size": 32, "architecture": "resnet10t"}


def backbone(seed=0):
    return build_backbone("timm", seed=seed, **TIMM)


@pytest.fixture(scope="module")
def published():
    """A model as published by a third party: with its classifier."""
    torch.manual_seed(5)
    return vision.timm.create_model("resnet10t", pretrained=False, num_classes=7).eval()


def features(model):
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(images)


@pytest.mark.parametrize("form", ["safetensors", "state dict", "checkpoint of a parallel training"])
def test_weights_of_a_file_are_those_the_features_come_from(published, tmp_path, form):
    state = published.state_dict()
    if form == "safetensors":
        safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    elif form == "state dict":
        torch.save(state, tmp_path / "w.pt")
    else:
        torch.save(
            {"state_dict": {f"module.{name}": value for name, value in state.items()}, "epoch": 3}, tmp_path / "w"
        )
    own = backbone()
    load_weights(own, next(tmp_path.iterdir()))
    with torch.no_grad():
        images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        mean, deviation = (torch.tensor(published.pretrained_cfg[key]).reshape(3, 1, 1) for key in ("mean", "std"))
        expected = published.global_pool(published.forward_features((images - mean) / deviation))
    torch.testing.assert_close(features(own), expected)


def test_outputs_may_be_the_scores_of_the_published_classifier(tmp_path):
    published = vision.timm.create_model("resnet10t", pretrained=False, num_classes=1000).eval()
    safetensors.torch.save_file(published.state_dict(), tmp_path / "w.safetensors")
    own = build_backbone("timm", seed=0, **TIMM, outputs="scores")
    load_weights(own, tmp_path / "w.safetensors")
    assert own.feature_dim == 1000
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(published.pretrained_cfg[key]).reshape(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = published((images - mean) / deviation)
    torch.testing.assert_close(features(own), expected)


def test_weights_from_tensorflow_see_the_pixels_and_the_padding_that_they_were_trained_with(tmp_path):
    options = {"architecture": "mobilenetv2_035", "enlarge": 48}
    published = vision.timm.create_model("mobilenetv2_035", num_classes=7, pad_type="same").eval()
    safetensors.torch.save_file(published.state_dict(), tmp_path / "w.safetensors")
    theirs, plain = (
        build_backbone("timm", channels=3, size=24, seed=0, **options, **said)
        for said in ({"from_tensorflow": True}, {})
    )
    for own in (theirs, plain):
        load_weights(own, tmp_path / "w.safetensors")
    images = torch.randint(256, (3, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(images / 255, size=(48, 48), mode="bilinear", align_corners=False)
    with torch.no_grad():
        expected = published.global_pool(published.forward_features(large * 2 - 1))
    torch.testing.assert_close(theirs.features(images, "original"), expected)
    assert not torch.allclose(plain.features(images, "original"), expected, atol=1e-2)
    again = build_backbone(
        **{"seed": 1, **{k: v for k, v in theirs.describe().items() if k != "options"}}, **theirs.describe()["options"]
    )
    again.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(again.features(images, "original"), expected)
    with pytest.raises(SettingError, match=r"'resnet10t' has no padding of TensorFlow's"):
        build_backbone("timm", seed=0, **TIMM, from_tensorflow=True)


@pytest.mark.parametrize("architecture", ["mobilenetv2_035", "resnet10t"])
def test_levels_are_the_means_of_the_maps_that_timm_itself_extracts(architecture):
    own = build_backbone("timm", channels=3, size=32, seed=0, architecture=architecture, levels=True)
    theirs = vision.timm.create_model(architecture, features_only=True).eval()
    theirs.load_state_dict(own.network.model.state_dict(), strict=False)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = theirs((images - own.network.mean) / own.network.deviation)
        expected = torch.cat([level.mean((2, 3)) for level in maps], dim=1)
    assert own.feature_dim == sum(theirs.feature_info.channels())
    torch.testing.assert_close(own.features(images, "original"), expected)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("statistics", ["original", "current"])
def test_a_mirrored_network_gives_an_image_and_its_mirror_image_the_same_features(levels, statistics):
    own = build_backbone("timm", channels=3, size=32, seed=0, architecture="resnet10t", levels=levels, mirrored=True)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = own.features(images, statistics)
    torch.testing.assert_close(own.features(images.flip(-1), statistics), features)
    assert (features.std(0) > 0).any()
    plain = build_backbone("timm", channels=3, size=32, seed=0, architecture="resnet10t", levels=levels)
    if statistics == "original":
        both = [plain.features(seen, "original") for seen in (images, images.flip(-1))]
        torch.testing.assert_close(features, (both[0] + both[1]) / 2)


def test_a_torchvision_network_takes_its_own_weights(tmp_path):
    torch.manual_seed(1)
    published = vision.torchvision.models.resnet18(num_classes=4)
    torch.save(published.state_dict(), tmp_path / "w.pth")
    own = build_backbone("resnet18", channels=3, size=32, seed=0)
    load_weights(own, tmp_path / "w.pth")
    assert torch.equal(own.network.layer4[1].conv2.weight, published.layer4[1].conv2.weight)


def test_weights_of_another_architecture_are_refused_and_nothing_changes(tmp_path):
    other = vision.timm.create_model("resnet14t", pretrained=False)
    safetensors.torch.save_file(other.state_dict(), tmp_path / "w.safetensors")
    own = backbone()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    with pytest.raises(InputError, match=r"another architecture than resnet10t.*missing.*foreign"):
        load_weights(own, tmp_path / "w.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


def test_weights_for_other_channels_are_refused(published, tmp_path):
    safetensors.torch.save_file(published.state_dict(), tmp_path / "w.safetensors")
    grey = build_backbone("timm", seed=0, **(TIMM | {"channels": 1}))
    with pytest.raises(InputError, match=r"conv1.*\[24, 3, 3, 3\].*\[24, 1, 3, 3\].*data\.channels"):
        load_weights(grey, tmp_path / "w.safetensors")


class Malicious:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickled_file_is_refused_and_nothing_in_it_runs(tmp_path, writer):
    trap, path = tmp_path / "it ran", tmp_path / "w.pt"
    if writer == "torch":
        torch.save({"conv1.0.weight": torch.zeros(2), "x": Malicious(trap)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(trap)))
    with pytest.raises(InputError, match="Python objects"):
        load_weights(backbone(), path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{", "truncated or no safetensors"),
        ("w.pt", b"PK\x03\x04 cut", "damaged"),
        ("w.pt", b"", "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_weights(backbone(), tmp_path / name)


def test_a_missing_file_and_a_file_without_names_are_refused(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        load_weights(backbone(), tmp_path / "none.pt")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(InputError, match="no state dict"):
        load_weights(backbone(), tmp_path / "list.pt")


def test_timms_own_weights_are_taken_or_what_to_do_is_said(published, monkeypatch):
    with pytest.raises(SettingError, match=r"backbone\.weights=timm goes with backbone\.kind=timm"):
        download_weights(build_backbone("resnet10", channels=3, size=32, seed=0))
    create = vision.timm.create_model

    def offline(name, pretrained=False, **arguments):
        if pretrained:
            raise OSError("no route to host")
        return create(name, **arguments)

    monkeypatch.setattr(vision.timm, "create_model", offline)
    with pytest.raises(InputError, match=r"no route to host.*set backbone\.weights to the file"):
        download_weights(backbone())

    def online(name, pretrained=False, **arguments):
        model = create(name, **arguments)
        if pretrained:
            state = {key: value for key, value in published.state_dict().items() if not key.startswith("fc.")}
            model.load_state_dict(state)
        return model

    monkeypatch.setattr(vision.timm, "create_model", online)
    own = backbone()
    download_weights(own)
    assert torch.equal(own.network.model.conv1[0].weight, published.conv1[0].weight)


def plainly(network: nn.Module, percent: float) -> list[str]:
    """The shortest list of last tensors that holds at least `percent` of all weights, found by trying every length."""
    named = list(network.named_parameters())
    total = sum(value.numel() for _, value in named)
    for length in range(1, len(named) + 1):
        tail = named[len(named) - length :]
        if 100 * sum(value.numel() for _, value in tail) >= percent * total:
            return [name for name, _ in tail]
    raise AssertionError("a network holds all of its own weights")


@pytest.mark.parametrize("kind", ["small_cnn", "cryptonet", "resnet10", "vgg9"])
@pytest.mark.parametrize("percent", [0.5, 3, 25, 60, 100])
def test_the_last_tensors_are_taken_until_they_hold_the_share(kind, percent):
    network = build_backbone(kind, channels=1, size=16, seed=0).network
    assert [name for name, _ in last_parameters(network, percent)] == plainly(network, percent)


def test_all_is_all_and_at_least_one_tensor_is_taken():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 90))
    assert [name for name, _ in last_parameters(network, 100)] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [name for name, _ in last_parameters(network, 1)] == ["1.bias"]
