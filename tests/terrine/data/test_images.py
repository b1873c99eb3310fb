import numpy as np
import pytest
from PIL import Image

from terrine.data.image_files import fitted
from terrine.data.images import resize, to_channels, to_uint8_nchw
from terrine.errors import InputError
from terrine.geometry import Size, sides


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_grey_stacks_gain_a_channel() -> None:
    images = random_images(5, 4, 6)
    assert np.array_equal(to_uint8_nchw(images, "images"), images[:, None])


def test_channels_move_from_last_to_first() -> None:
    images = random_images(5, 4, 6, 3)
    converted = to_uint8_nchw(images, "images")
    assert converted.flags.c_contiguous
    for n in range(5):
        for c in range(3):
            assert np.array_equal(converted[n, c], images[n, :, :, c])


def test_channels_first_stay() -> None:
    images = random_images(5, 3, 4, 6)
    assert np.array_equal(to_uint8_nchw(images, "images"), images)


def test_floats_between_zero_and_one_are_scaled_and_rounded() -> None:
    images = np.random.default_rng(0).random((9, 4, 4))
    expected = [[[round(pixel * 255) for pixel in row] for row in image] for image in images.astype(np.float32)]
    assert to_uint8_nchw(images, "images")[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int16])
def test_wider_integers_within_a_byte_are_accepted(dtype: type) -> None:
    images = random_images(5, 4, 4)
    assert np.array_equal(to_uint8_nchw(images.astype(dtype), "images")[:, 0], images)


def test_booleans_become_black_and_white() -> None:
    assert to_uint8_nchw(np.array([[[True, False]]]), "images").tolist() == [[[[255, 0]]]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_image_that_is_not_finite_is_named(bad: float) -> None:
    images = np.zeros((5000, 2, 2), dtype=np.float32)
    images[4321, 1, 0] = bad
    with pytest.raises(InputError, match=r"train_images contains (NaN|an infinite value) in image 4321\. Remove"):
        to_uint8_nchw(images, "train_images")


def test_floats_of_another_range_are_refused_with_the_range() -> None:
    images = np.zeros((5000, 2, 2))
    images[4500] = [[0.0, 2.5], [-1.0, 0.5]]
    with pytest.raises(InputError, match=r"float64, and image 4500 has values from -1.0 to 2.5\. Floats must lie in"):
        to_uint8_nchw(images, "images")


def test_deep_integers_are_refused_with_the_range() -> None:
    with pytest.raises(
        InputError, match=r"uint16, and image 1 has values from 0 to 4095\. Integers must lie in 0..255"
    ):
        to_uint8_nchw(np.array([[[0, 1]], [[0, 4095]]], dtype=np.uint16), "images")


def test_text_is_no_image() -> None:
    with pytest.raises(InputError, match="images has dtype <U1"):
        to_uint8_nchw(np.array([[["a"]]]), "images")


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 6, 2), (5, 4, 4, 4), (2, 5, 1, 4, 4)])
def test_other_layouts_are_refused_with_their_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"images must be \[N, H, W\]"):
        to_uint8_nchw(np.zeros(shape, dtype=np.uint8), "images")


def test_a_layout_that_can_be_read_two_ways_is_refused() -> None:
    with pytest.raises(InputError, match="channels first or last"):
        to_uint8_nchw(random_images(5, 3, 8, 3), "images")


@pytest.mark.parametrize(("height", "width", "size"), [(28, 28, 12), (8, 8, 28), (20, 30, 16), (20, 30, (30, 12))])
def test_resizing_agrees_with_pillow(height: int, width: int, size: Size) -> None:
    images = random_images(4, 3, height, width)
    resized = resize(images, size)
    assert resized.shape == (4, 3, *sides(size))
    for n in range(4):
        for c in range(3):
            expected = np.asarray(Image.fromarray(images[n, c]).resize(sides(size)[::-1], Image.Resampling.BILINEAR))
            assert np.abs(resized[n, c].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("fit", ["pad", "crop"])
@pytest.mark.parametrize(("height", "width"), [(30, 20), (20, 30), (8, 24), (21, 10), (20, 20)])
@pytest.mark.parametrize("size", [12, (18, 12), (10, 30)])
def test_arrays_are_padded_and_cropped_as_files_are(height: int, width: int, size: Size, fit: str) -> None:
    images = random_images(4, 3, height, width)
    arrays = resize(images, size, fit)
    assert arrays.shape[2:] == sides(size)
    files = [fitted(Image.fromarray(image.transpose(1, 2, 0)), size, 3, fit) for image in images]
    assert np.abs(arrays.astype(int) - files).max() <= 1
    black = (arrays == 0).all(axis=(0, 1))
    same = height * sides(size)[1] == width * sides(size)[0]
    assert black.any() == (fit == "pad" and not same)


def test_resizing_is_the_same_for_one_image_and_for_many() -> None:
    images = random_images(4100, 1, 6, 6)  # more than one chunk
    assert np.array_equal(resize(images, 4)[4097:4099], resize(images[4097:4099], 4))


def test_grey_becomes_three_equal_channels() -> None:
    images = random_images(4, 1, 5, 5)
    colour = to_channels(images, 3)
    assert colour.shape == (4, 3, 5, 5)
    assert all(np.array_equal(colour[:, c], images[:, 0]) for c in range(3))


def test_grey_of_colour_agrees_with_pillow() -> None:
    images = random_images(4, 3, 9, 9)
    grey = to_channels(images, 1)
    for n in range(4):
        expected = np.asarray(Image.fromarray(images[n].transpose(1, 2, 0)).convert("L"))
        assert np.abs(grey[n, 0].astype(int) - expected).max() <= 1
