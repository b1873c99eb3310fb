from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from terrine.data import images as large
from terrine.data.image_files import headers, open_picture, read_images
from terrine.errors import InputError

GENERATOR = np.random.default_rng(0)


def saved(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def test_files_are_read_in_order_and_unchanged_at_their_own_size(tmp_path: Path) -> None:
    pictures = GENERATOR.integers(0, 256, (600, 4, 4, 3), dtype=np.uint8)  # more than one chunk
    paths = [saved(tmp_path / f"{i}.png", picture) for i, picture in enumerate(pictures)]
    assert np.array_equal(read_images(paths, size=4, channels=3), pictures.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_coloured_files_get_the_channels_asked_for(tmp_path: Path, channels: int) -> None:
    grey = saved(tmp_path / "grey.png", GENERATOR.integers(0, 256, (4, 4), dtype=np.uint8))
    colour = saved(tmp_path / "colour.png", GENERATOR.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    assert read_images([grey, colour], size=4, channels=channels).shape == (2, channels, 4, 4)


def test_large_pictures_shrink_as_pillow_shrinks_them(tmp_path: Path) -> None:
    pixels = GENERATOR.integers(0, 256, (50, 70, 3), dtype=np.uint8)
    path = saved(tmp_path / "large.png", pixels)
    expected = Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(read_images([path], size=16, channels=3)[0], np.asarray(expected).transpose(2, 0, 1))


def test_large_jpegs_shrink_to_nearly_the_same_picture(tmp_path: Path) -> None:
    smooth = np.add.outer(np.linspace(0, 120, 512), np.linspace(0, 120, 512)).astype(np.uint8)
    path = saved(tmp_path / "large.jpg", smooth, quality=95)
    with Image.open(path) as image:
        expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR))
    assert np.abs(read_images([path], size=16, channels=1)[0, 0].astype(int) - expected).max() <= 3


def test_pictures_are_turned_upright(tmp_path: Path) -> None:
    pixels = GENERATOR.integers(0, 256, (4, 4), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    path = saved(tmp_path / "turned.png", pixels, exif=exif)
    assert np.array_equal(read_images([path], size=4, channels=1)[0, 0], pixels[::-1, ::-1])


def test_progress_reaches_the_number_of_files(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.png", np.zeros((2, 2), dtype=np.uint8))
    calls: list[tuple[int, int]] = []
    read_images([path] * 1100, size=2, channels=1, progress=lambda done, files: calls.append((done, files)))
    assert calls == [(512, 1100), (1024, 1100), (1100, 1100)]


def test_damaged_files_are_all_named(tmp_path: Path) -> None:
    good = saved(tmp_path / "good.png", GENERATOR.integers(0, 256, (32, 32), dtype=np.uint8))
    truncated = tmp_path / "truncated.png"
    truncated.write_bytes(good.read_bytes()[:300])
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    empty = tmp_path / "empty.png"
    empty.touch()
    with pytest.raises(InputError, match="3 of 5 image files cannot be used") as caught:
        read_images([good, truncated, text, good, empty], size=8, channels=1)
    message = str(caught.value)
    assert "good.png" not in message
    assert f"{truncated} (is damaged: " in message
    assert f"{text} (is not an image that Pillow can identify)" in message
    assert message.endswith("Repair or remove them.")


def test_reading_stops_when_everything_is_damaged(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(2000)]
    paths[0].touch()
    seen: list[int] = []
    with pytest.raises(InputError, match=r"512 of 2000 image files cannot be used: .* and 507 more\. Repair"):
        read_images(paths, size=8, channels=1, progress=lambda done, files: seen.append(done))
    assert seen == [512]


def test_sixteen_bits_per_pixel_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep.png", GENERATOR.integers(0, 4096, (8, 8)).astype(np.uint16))
    with pytest.raises(InputError, match=r"deep\.png \(has more than 8 bits per pixel \(mode I;16\): the student was"):
        read_images([path], size=8, channels=1)
    with pytest.raises(
        InputError, match=r"has more than 8 bits .* set the displayed range .* data\.window=\[low, high\]"
    ):
        open_picture(path.read_bytes())


def test_a_window_says_what_is_black_and_white_in_images_of_more_bits(tmp_path: Path) -> None:
    deep = GENERATOR.integers(0, 2**16, (9, 9), dtype=np.uint16)
    flat = saved(tmp_path / "flat.png", GENERATOR.integers(0, 256, (9, 9), dtype=np.uint8))
    expected = np.rint(np.clip((deep.astype(float) - 1000) / 30000, 0, 1) * 255)
    for path in (saved(tmp_path / "deep.png", deep), saved(tmp_path / "deep.tif", deep)):
        read = read_images([path, flat], size=9, channels=1, window=(1000, 31000))
        assert np.array_equal(read[0, 0], expected)
        assert np.array_equal(read[1, 0], np.asarray(Image.open(flat)))
    half = saved(tmp_path / "half.tif", deep.astype(np.float32) / 2)
    assert np.array_equal(read_images([half], size=9, channels=1, window=(500, 15500))[0, 0], expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_not_square_are_stretched_padded_or_cropped(tmp_path: Path, channels: int) -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, :10], wide[:, 10:20], wide[:, 20:] = 50, 100, 200
    path = saved(tmp_path / "wide.png", wide)
    stretched, padded, cropped = (
        read_images([path], size=30, channels=channels, fit=fit)[0, -1] for fit in ("stretch", "pad", "crop")
    )
    assert np.array_equal(stretched, np.repeat(wide, 3, axis=0))
    assert np.array_equal(padded[10:20], wide)
    assert not padded[:10].any()
    assert not padded[20:].any()
    assert (cropped == 100).all()


def test_large_arrays_lie_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", 100)
    pictures = GENERATOR.integers(0, 256, (20, 4, 4), dtype=np.uint8)
    paths = [saved(tmp_path / f"{number}.png", picture) for number, picture in enumerate(pictures)]
    assert not isinstance(read_images(paths, size=4, channels=1), np.memmap)
    with large.on_disk(tmp_path / "work"):
        mapped = read_images(paths, size=4, channels=1)
        assert isinstance(mapped, np.memmap)
        assert not isinstance(read_images(paths[:6], size=4, channels=1), np.memmap)
    assert np.array_equal(mapped[:, 0], pictures)
    assert not list((tmp_path / "work").iterdir())


def test_a_disk_without_room_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(large.os, "posix_fallocate", full)
    with large.on_disk(tmp_path), pytest.raises(InputError, match=r"has no room for 0\.3 GiB of images \(No space"):
        large.empty((2**28 + 1,))


@pytest.mark.parametrize("form", ["tiff", "gif", "png"])
def test_a_file_of_several_pictures_is_refused_and_not_read_by_half(tmp_path: Path, form: str) -> None:
    pages = [Image.fromarray(GENERATOR.integers(0, 256, (8, 8), dtype=np.uint8)) for _ in range(5)]
    pages[0].save(tmp_path / f"a.{form}", save_all=True, append_images=pages[1:])
    single = saved(tmp_path / f"b.{form}", np.asarray(pages[0]))
    with pytest.raises(InputError, match=rf"1 of 2 image files cannot be used: .*a\.{form} \(has 5 pages or frames"):
        read_images([tmp_path / f"a.{form}", single], size=8, channels=1)
    assert len(headers([tmp_path / f"a.{form}", single])[2]) == 1
    assert np.array_equal(read_images([single], size=8, channels=1)[0, 0], np.asarray(pages[0])) or form == "gif"


def test_smaller_copies_in_a_tiff_are_no_pages(tmp_path: Path) -> None:
    picture = Image.fromarray(GENERATOR.integers(0, 256, (8, 8), dtype=np.uint8))
    reduced = picture.resize((4, 4))
    reduced.encoderinfo = {"tiffinfo": {254: 1}}
    picture.save(tmp_path / "a.tiff", save_all=True, append_images=[reduced])
    assert np.array_equal(read_images([tmp_path / "a.tiff"], size=8, channels=1)[0, 0], np.asarray(picture))
