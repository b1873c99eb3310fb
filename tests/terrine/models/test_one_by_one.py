"""Features of private records: the same bits for every position and every set of other records."""

import numpy as np
import pytest

from terrine.aggregation.records import Whitening
from terrine.geometry import sides
from terrine.models.architecture import ARCHITECTURES
from terrine.models.moments import unit_vectors
from terrine.models.one_by_one import features_one_by_one

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
    for size in (1, 65, 201):
        yield generator.permutation(count)[:size]


@pytest.mark.parametrize(("name", "channels"), [*((name, 1) for name in BACKBONES), ("scattering", 3), ("timm", 3)])
def test_a_record_has_the_same_features_wherever_it_stands_and_whichever_others_there_are(name, channels):
    own = {"kind": name.partition(" ")[0], **BACKBONES[name]}
    size = own.pop("size", 28)
    backbone = ARCHITECTURES.of(own["kind"])(**own).build(channels, size, seed=0)
    generator = np.random.default_rng(1)
    count = 210
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
    images = generator.integers(0, 256, (210, 1, *sides(size)), dtype=np.uint8)

    def made(chosen):
        return np.concatenate(list(unit_vectors(backbone, images[chosen], np.arange(len(chosen)), 1.5)))

    plain = made(np.arange(210))
    for chosen in arrangements(210, generator):
        assert np.array_equal(made(chosen), plain[chosen])
