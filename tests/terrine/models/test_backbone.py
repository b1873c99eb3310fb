"""One call is one batch; files hold everything; results do not depend on how batches are scheduled."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from terrine.aggregation.records import Whitening
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.geometry import sides
from terrine.models.architecture import ARCHITECTURES, build_backbone
from terrine.models.backbone import Backbone, features_in_batches, features_one_by_one
from terrine.models.backbone_files import load_backbone, save_backbone
from terrine.models.released_statistics import unit_vectors

OPTIONS = {
    "scattering": {"projection": 20, "orientations": 4},
    "timm": {"architecture": "resnet10t"},
    "concatenated": {"parts": [{"kind": "scattering", "projection": 20}, {"kind": "resnet10", "stem": "small"}]},
}
OF_IMAGES = [kind for kind in ARCHITECTURES.names() if ARCHITECTURES.of(kind).of_images]
CHEAP = ("concatenated", "resnet10", "scattering", "timm", "vgg9")


def tiny(kind: str = "resnet10", seed: int = 0, channels: int = 1) -> Backbone:
    return build_backbone(kind, channels=channels, size=12, seed=seed, **OPTIONS.get(kind, {}))


def some_images(count: int = 24, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, channels, 12, 12), dtype=np.uint8)


@pytest.mark.parametrize(
    ("kind", "statistics"), [(kind, "current") for kind in OF_IMAGES] + [(kind, "original") for kind in CHEAP]
)
def test_features_have_the_stated_shape_and_leave_the_backbone_as_it_was(kind, statistics):
    backbone = tiny(kind, channels=3)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    images = torch.from_numpy(some_images(8, channels=3))
    features = backbone.features(images, statistics)
    assert features.shape == (8, backbone.feature_dim)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert features.isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_bytes_and_floats_are_the_same_images():
    backbone, images = tiny(), torch.from_numpy(some_images())
    assert torch.equal(backbone.features(images, "current"), backbone.features(images.float() / 255, "current"))


def test_under_current_statistics_features_depend_on_the_batch_and_under_original_they_do_not():
    backbone, images = tiny(), torch.from_numpy(some_images())
    whole, part = backbone.features(images, "current"), backbone.features(images[:8], "current")
    assert not torch.allclose(whole[:8], part, atol=1e-3)
    whole, part = backbone.features(images, "original"), backbone.features(images[:8], "original")
    torch.testing.assert_close(whole[:8], part)


@pytest.mark.parametrize("kind", CHEAP)
def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone(kind):
    state = torch.random.get_rng_state()
    first, second, other = tiny(kind), tiny(kind), tiny(kind, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    images = torch.from_numpy(some_images(4))
    assert torch.equal(first.features(images, "current"), second.features(images, "current"))
    assert not torch.equal(first.features(images, "current"), other.features(images, "current"))


@pytest.mark.parametrize("kind", CHEAP)
def test_a_saved_backbone_comes_back_with_its_description_and_its_features(kind, tmp_path):
    backbone = tiny(kind, seed=5)
    save_backbone(backbone, tmp_path / "a.safetensors")
    save_backbone(backbone, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]
    loaded = load_backbone(tmp_path / "a.safetensors")
    assert loaded.describe() == backbone.describe()
    assert not loaded.training
    images = torch.from_numpy(some_images(4))
    for statistics in ("current", "original"):
        assert torch.equal(loaded.features(images, statistics), backbone.features(images, statistics))


def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "backbone.safetensors"
    with pytest.raises(ArtefactError, match="does not exist"):
        load_backbone(path)
    save_backbone(tiny(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ArtefactError, match=r"backbone\.safetensors is damaged"):
        load_backbone(path)


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_features_in_batches_equal_one_call_per_batch_whatever_the_threads_and_order(statistics):
    backbone, images = tiny(), some_images(40)
    order = np.random.default_rng(1).permutation(40)
    batches = [order[:10], order[10:25], order[25:27], order[27:]]
    threads = torch.get_num_threads()
    results = []
    try:
        for count, these in ((1, batches), (3, batches), (2, batches[::-1])):
            torch.set_num_threads(count)
            results.append(features_in_batches(backbone, images, these, statistics))
            assert torch.get_num_threads() == count
        torch.set_num_threads(1)
        expected = np.empty_like(results[0])
        for batch in batches:
            for row, feature in zip(batch, backbone.features(torch.from_numpy(images[batch]), statistics), strict=True):
                expected[row] = feature.numpy()
    finally:
        torch.set_num_threads(threads)
    for result in results:
        assert np.array_equal(result, expected)


def test_callers_in_several_threads_get_their_results_and_leave_the_number_of_threads_alone():
    backbone, images = tiny(), some_images(40)
    batches = [np.arange(i, i + 10) for i in range(0, 40, 10)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = features_in_batches(backbone, images, batches, "current")
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(features_in_batches, backbone, images, batches, "current") for _ in range(6)]
            assert all(np.array_equal(run.result(), expected) for run in runs)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_features_can_be_written_into_a_memory_map(tmp_path):
    backbone, images = tiny(), some_images()
    out = np.lib.format.open_memmap(tmp_path / "f.npy", "w+", np.float32, (24, backbone.feature_dim))
    out[:] = -1
    result = features_in_batches(backbone, images, [np.arange(0, 8), np.arange(8, 20)], "current", out=out)
    assert result is out
    assert (out[20:] == -1).all()
    assert (out[:20] != -1).any(axis=1).all()


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([np.arange(24), np.array([3])], "image 3 is in more than one batch"),
        ([np.arange(23)], "image 23 is in no batch"),
        ([np.arange(25)], "run from 0 to 24, but there are 24 images"),
        ([np.arange(23), np.array([23])], "at least 2"),
    ],
)
def test_impossible_batches_are_refused(batches, message):
    with pytest.raises(InputError, match=message):
        features_in_batches(tiny(), some_images(), batches, "current")


def test_wrong_shapes_and_types_are_refused():
    backbone = tiny()
    with pytest.raises(InputError, match=r"\(B, 1, 12, 12\).*\(4, 3, 12, 12\)"):
        backbone.features(torch.zeros(4, 3, 12, 12), "current")
    with pytest.raises(InputError, match="uint8 or floating point"):
        backbone.features(torch.zeros(4, 1, 12, 12, dtype=torch.int64), "current")
    with pytest.raises(InputError, match="float32 features of shape"):
        features_in_batches(backbone, some_images(), [np.arange(24)], "current", out=np.zeros((24, 3), np.float32))


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("resnet_of_mine", {}, "'resnet_of_mine' is unknown. Known: .*resnet18"),
        ("convnext_atto", {}, "timm's 'convnext_atto' cannot take images of side 12 .*Set enlarge"),
        ("densenet121", {"stem": "standard"}, "images of side 32 or more, and these have 12"),
        ("vgg9", {"stem": "small"}, "vgg9 has no option 'stem'. It has none"),
        ("resnet10", {"depth": 3}, "resnet10 has no option 'depth'. It has stem"),
        ("scattering", {"orientations": 3}, "even number"),
        ("scattering", {"projection": 0}, "positive number"),
        ("resnet10", {"size": 4}, "sides from 8 to 320"),
        ("resnet10", {"channels": 4}, "of 4 channels"),
    ],
)
def test_impossible_backbones_are_refused(kind, arguments, message):
    with pytest.raises(SettingError, match=message):
        build_backbone(kind, **{"channels": 1, "size": 12, "seed": 0, **arguments})


def test_images_are_standardised_as_timms_own_weights_expect_them():
    seen = []
    for channels, mean, deviation in ((3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), (1, (0.449,), (0.226,))):
        backbone = build_backbone("timm", channels=channels, size=32, seed=0, architecture="resnet10t", enlarge=64)
        backbone.network.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        backbone(torch.full((2, channels, 32, 32), 255, dtype=torch.uint8))
        expected = [(1 - own) / spread for own, spread in zip(mean, deviation, strict=True)]
        torch.testing.assert_close(seen[-1][0, :, 5, 5], torch.tensor(expected), atol=1e-4, rtol=0)
        assert backbone.network.state_dict()["mean"].flatten().tolist() == pytest.approx(list(mean), abs=1e-4)


def test_any_architecture_of_timm_is_a_kind_and_small_images_can_be_enlarged_for_it():
    backbone = build_backbone("convnext_atto", channels=3, size=12, seed=0, enlarge=32)
    assert backbone.describe()["kind"] == "timm"
    images = torch.from_numpy(some_images(2, channels=3))
    assert backbone.features(images, "original").shape == (2, backbone.feature_dim)
    transformer = build_backbone("vit_tiny_patch16_224", channels=1, size=16, seed=0)
    assert transformer.features(torch.zeros(2, 1, 16, 16), "original").shape == (2, 192)


def test_concatenated_features_are_the_parts_features_standardised_over_the_batch():
    backbone, images = tiny("concatenated"), torch.from_numpy(some_images())
    parts = [
        tiny_part.features(images, "current")
        for tiny_part in (
            build_backbone("scattering", channels=1, size=12, seed=0, projection=20),
            build_backbone("resnet10", channels=1, size=12, seed=0, stem="small"),
        )
    ]
    together = torch.cat(parts, dim=1)
    expected = (together - together.mean(0)) / (together.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(backbone.features(images, "current"), expected, atol=1e-3, rtol=1e-3)


def test_only_the_parts_with_weights_are_trained():
    network, width = tiny("concatenated").trainable()
    assert width == 512
    assert not any("projection" in name for name, _ in network.named_buffers())
    assert tiny("resnet10").trainable()[1] == 512
    with pytest.raises(SettingError, match="'scattering' has nothing to train"):
        tiny("scattering").trainable()


BACKBONES = {
    "scattering": {},
    "scattering of an odd width": {"kind": "scattering", "projection": 201},
    "scattering by spectra": {"kind": "scattering", "projection": 201, "size": (40, 36)},
    "patches": {"projection": 333},
    "small_cnn": {},
    "resnet10": {},
    "vgg9": {},
    "pate_cnn": {},
    "timm": {"architecture": "mobilenetv3_small_050", "size": 32},
    "concatenated": {"parts": ("scattering", "small_cnn"), "projection": 77},
}


def arrangements(count, generator):
    """Subsets of some sizes around blocks' boundaries, in other orders, and all records behind one that was added."""
    yield np.append(count - 1, np.arange(count - 1))
    for size in (1, 65, 129):
        yield generator.permutation(count)[:size]


@pytest.mark.parametrize(("name", "channels"), [*((name, 1) for name in BACKBONES), ("scattering", 3), ("timm", 3)])
def test_a_record_has_the_same_features_wherever_it_stands_and_whichever_others_there_are(name, channels):
    own = {"kind": name.partition(" ")[0], **BACKBONES[name]}
    size = own.pop("size", 28)
    backbone = ARCHITECTURES.of(own["kind"])(**own).build(channels, size, seed=0)
    generator = np.random.default_rng(1)
    count = 140
    images = generator.integers(0, 256, (count, channels, *sides(size)), dtype=np.uint8)

    def made(chosen):
        return np.concatenate(list(features_one_by_one(backbone, images[chosen], np.copy)))

    plain = made(np.arange(count))
    whitening = Whitening.fit(plain + generator.normal(size=plain.shape) * 0.01)
    vectors = whitening.vectors(plain)
    for chosen in arrangements(count, generator):
        again = made(chosen)
        assert np.array_equal(again, plain[chosen])
        assert np.array_equal(whitening.vectors(again), vectors[chosen])


@pytest.mark.parametrize("size", [28, (40, 36)])
def test_moments_of_an_image_have_the_same_bits_wherever_it_stands(size):
    backbone = ARCHITECTURES.of("scattering")(kind="scattering", projection=50).build(1, size, seed=0)
    generator = np.random.default_rng(2)
    images = generator.integers(0, 256, (140, 1, *sides(size)), dtype=np.uint8)

    def made(chosen):
        return np.concatenate(list(unit_vectors(backbone, images[chosen], np.arange(len(chosen)), 1.5)))

    plain = made(np.arange(140))
    for chosen in arrangements(140, generator):
        assert np.array_equal(made(chosen), plain[chosen])
