"""Contract of all image programs: equal bytes in any batch, and clear errors."""

import hashlib
import re

import numpy as np
import pytest
import torch

from terrine.errors import SettingError
from terrine.synthetic import program
from terrine.synthetic.program import draw, image_program, programs

KINDS = [*programs(), "mixup:spectrum+gaussian"]

# SHA-256 of images 5, 6 and 7 of seed 0, 28×28 in colour. A change here changes every experiment that anyone has run.
DIGESTS: dict[str, str] = {
    "gaussian": "b4cc1e6a1d400151f03beb7eed95000957e946a2a85dcea0f03d3a430e081041",
    "spectrum": "2a4a1ababfaa8f2130e2b3398aa1ee0e693e183cd8fa855151d9dd09c0003460",
    "dead_leaves": "1cb90c8688ed5727f0ab18de62e4c6ad7cc1b2370a24bccd56f0bcd4edeb201c",
    "stylegan": "d251b3ecc27a615b74cc4ae56a966a5e3263e3208ca678e4b0a80b92adb6da65",
    "fractal": "768e3bc6d6cb7cb90d29ad393834487ecf1817924bc61a4fb9f65d5e4f1f293b",
    "shaders": "70db2fce4bd9698d3bb75a5009209356ae3499be2628f590d2d13fe0b875325e",
    "mixup": "4c3c8d2f076d26496fc02633175f1245131d6c22ca51041afcb9d6ea0c6dcc56",
}


def images(kind: str, first: int, count: int, size: int = 11, channels: int = 3) -> torch.Tensor:
    return draw(kind, seed=0, first=first, count=count, size=size, channels=channels)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_s_bytes_do_not_depend_on_the_batch_it_is_drawn_in(kind):
    together = images(kind, 0, 40)
    assert together.dtype == torch.uint8
    assert together.shape == (40, 3, 11, 11)
    for batch in (1, 7):
        parts = [images(kind, first, min(batch, 21 - first)) for first in range(0, 21, batch)]
        assert torch.equal(torch.cat(parts), together[:21])
    assert torch.equal(images(kind, 33, 7), together[33:])


@pytest.mark.parametrize("kind", list(programs()))
def test_a_batch_that_is_drawn_in_parts_holds_the_same_bytes_as_single_images(kind):
    together = images(kind, 0, 300, size=32, channels=1)
    for first in (0, 1, 127, 128, 299):
        assert torch.equal(images(kind, first, 1, size=32, channels=1), together[first : first + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_s_bytes_do_not_depend_on_the_number_of_threads(kind):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = images(kind, 3, 12, size=40)
        torch.set_num_threads(2)
        assert torch.equal(images(kind, 3, 12, size=40), one)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", KINDS)
def test_images_seeds_and_programs_differ(kind):
    ours = images(kind, 0, 8)
    assert len({image.numpy().tobytes() for image in ours}) == 8
    other = draw(kind, seed=1, first=0, count=8, size=11, channels=3)
    assert not (ours == other).all((1, 2, 3)).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (9, 3), (33, 1)])
def test_every_program_draws_any_size_in_grey_and_in_colour(kind, size, channels):
    drawn = images(kind, 0, 3, size, channels)
    assert drawn.shape == (3, channels, size, size)
    assert drawn.flatten(2).to(torch.float32).std(2).min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_are_not_square_are_the_middle_of_square_ones(kind):
    assert torch.equal(images(kind, 0, 3, (33, 12), 3), images(kind, 0, 3, 33, 3)[:, :, :, 10:22])


@pytest.mark.parametrize("kind", list(programs()))
def test_the_largest_size_is_drawn(kind):
    assert images(kind, 0, 1, 320, 1).shape == (1, 1, 320, 320)


def test_programs_that_colour_one_field_draw_grey_as_their_first_channel():
    for kind in ("dead_leaves", "stylegan", "fractal", "shaders", "mixup"):
        assert torch.equal(images(kind, 0, 4, 12, 1), images(kind, 0, 4, 12, 3)[:, :1]), kind


@pytest.mark.parametrize("kind", list(DIGESTS))
def test_bytes_are_those_of_every_earlier_run(kind):
    drawn = draw(kind, seed=0, first=5, count=3, size=28, channels=3)
    assert hashlib.sha256(drawn.numpy().tobytes()).hexdigest() == DIGESTS[kind]


def test_every_program_has_a_digest():
    assert set(DIGESTS) == set(programs())


def test_autocast_around_a_draw_changes_nothing():
    plain = images("stylegan", 0, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(images("stylegan", 0, 4), plain)


def test_no_images_are_an_empty_batch():
    assert images("stylegan", 0, 0, 28, 1).shape == (0, 1, 28, 28)


@pytest.mark.parametrize("size", [0, 7, 321, [7, 28], [28, 321]])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(SettingError, match=re.escape(f"size {size} must be between 8 and 320")):
        images("gaussian", 0, 1, size)


@pytest.mark.parametrize("channels", [0, 2, 4])
def test_other_than_one_or_three_channels_are_refused(channels):
    with pytest.raises(SettingError, match=f"channels must be 1 .*, got {channels}"):
        images("gaussian", 0, 1, 28, channels)


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, -1)])
def test_a_negative_range_is_refused(first, count):
    with pytest.raises(SettingError, match="must not be negative"):
        images("gaussian", first, count)


@pytest.mark.parametrize("kind", ["dead-leaves", "", "mixup:", "mixup:mixup", "mixup:nothing"])
def test_an_unknown_program_is_refused_with_the_known_ones(kind):
    with pytest.raises(SettingError, match="Expected one of: dead_leaves, fractal, gaussian"):
        program.program(kind)


def test_a_new_program_is_one_function_wherever_it_is_declared(monkeypatch):
    monkeypatch.setattr(program, "_PROGRAMS", programs())

    @image_program("squares")
    def squares(seed: int, index: torch.Tensor, size: int, channels: int) -> torch.Tensor:
        return (index % 256).to(torch.uint8)[:, None, None, None].expand(-1, channels, size, size)

    assert images("squares", 3, 2, 8, 1).flatten(1).tolist() == [[3] * 64, [4] * 64]
    assert images("mixup:squares", 0, 1, 8, 1).shape == (1, 1, 8, 8)


def test_a_program_that_returns_no_tensor_of_bytes_is_named_with_what_it_should_return(monkeypatch):
    monkeypatch.setattr(program, "_PROGRAMS", programs())
    for wrong in (np.zeros((2, 1, 8, 8), np.uint8), torch.zeros(2, 1, 8, 8), torch.zeros(2, 8, 8, dtype=torch.uint8)):
        image_program("squares")(lambda *arguments, wrong=wrong: wrong)
        with pytest.raises(SettingError, match=r"'squares' must return a torch tensor, .*\[2, 1, 8, 8\], got"):
            images("squares", 3, 2, 8, 1)


def test_no_other_program_takes_the_name_of_one_of_terrines():
    with pytest.raises(SettingError, match="'gaussian' is part of Terrine"):
        image_program("gaussian")(lambda *arguments: None)
