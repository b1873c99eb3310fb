"""One encoded image, as a web service receives it."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile

from terrine.data.image_files import decode_image, read_images
from terrine.errors import InputError


def encoded(pixels, kind="png"):
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp"])
def test_bytes_are_read_like_a_file(tmp_path, kind, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    data = encoded(pixels, kind)
    (tmp_path / f"image.{kind}").write_bytes(data)
    expected = read_images([tmp_path / f"image.{kind}"], size=16, channels=channels)[0]
    np.testing.assert_array_equal(decode_image(data, size=16, channels=channels, most_pixels=600), expected)


@pytest.mark.parametrize("data", [b"", b"hello", encoded(np.zeros((30, 20), np.uint8))[:-30]])
def test_what_is_no_image_is_refused_with_a_sentence(data):
    with pytest.raises(InputError, match=r"The image is (not an image|damaged)"):
        decode_image(data, size=16, channels=1, most_pixels=600)


def test_half_an_image_is_refused_whatever_another_library_made_of_pillow(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(InputError, match=r"The image is damaged"):
        decode_image(encoded(np.zeros((30, 20), np.uint8))[:-30], size=16, channels=1, most_pixels=600)


def test_a_small_file_with_many_pixels_is_not_decoded():
    data = encoded(np.zeros((3000, 3000), np.uint8))
    assert len(data) < 100_000
    with pytest.raises(InputError, match="3000 x 3000 pixels"):
        decode_image(data, size=16, channels=1, most_pixels=8_000_000)
