"""Dead leaves against a painter that draws leaf after leaf, and against the laws that the leaves must obey."""

import numpy as np
import pytest
import torch
from scipy import stats

from terrine.determinism import philox
from terrine.determinism.portable_math import cosine, sine
from terrine.synthetic.programs.dead_leaves import (
    SHAPES,
    _bare_windows,
    _paint,
    dead_leaves,
    draw_radius,
    radii,
    radius_probabilities,
    window_sides,
)


def paint_plainly(seed: int, image: int, size: int, channels: int) -> np.ndarray:
    """Paint one image leaf by leaf over the whole grid; the first leaf at a pixel is the one that is seen."""
    index = torch.tensor([image])
    grid = np.arange(size, dtype=np.float32) + np.float32(0.5)
    picture = np.zeros((channels, size, size), dtype=np.uint8)
    bare = np.ones((size, size), dtype=bool)
    lanes = [lane[0].tolist() for lane in philox.blocks(seed, "dead_leaves", index, 2_500)]
    all_details = philox.block_at(seed, "dead_leaves/details", index.expand(5_000), torch.arange(5_000))
    all_details = torch.stack(all_details, 1).tolist()
    lengths = np.array(radii(size), dtype=np.float32)
    for number in range(5_000):
        first, centre = (lanes[2 * (number % 2)][number // 2], lanes[2 * (number % 2) + 1][number // 2])
        shape, rest = divmod(first * len(SHAPES), 1 << 32)
        radius = lengths[int(draw_radius(torch.tensor([rest])))]
        scale = np.float32(size / 65536)
        dx = grid - np.float32(centre >> 16) * scale
        dy = grid - np.float32(centre & 0xFFFF) * scale
        details = all_details[number]
        if SHAPES[shape] == "circle":
            inside = dx[None] ** 2 + dy[:, None] ** 2 <= radius**2
        else:
            angles = corners(SHAPES[shape], details)
            x = radius * cosine(torch.tensor(angles)).numpy()
            y = radius * sine(torch.tensor(angles)).numpy()
            inside = np.ones((size, size), dtype=bool)
            for k in range(len(x)):
                ex, ey = x[(k + 1) % len(x)] - x[k], y[(k + 1) % len(x)] - y[k]
                inside &= ex * (dy[:, None] - y[k]) - ey * (dx[None] - x[k]) >= 0
        seen = bare & inside
        for channel in range(channels):
            picture[channel][seen] = (details[2] >> (8 * channel)) & 0xFF
        bare &= ~inside
        if not bare.any():
            break
    return picture


def corners(shape: str, details: list[int]) -> list[float]:
    """The corners' angles in turns, counter-clockwise."""
    turns = [part / 2**16 for word in details[:2] for part in (word >> 16, word & 0xFFFF)]
    if shape in ("square", "oriented_square"):
        tilt = turns[0] if shape == "oriented_square" else 0.0
        return [tilt + k / 8 for k in (1, 3, 5, 7)]
    if shape == "rectangle":
        lift = turns[0] / 4
        return [lift, 0.5 - lift, 0.5 + lift, 1.0 - lift]
    return sorted(turns[:3] if shape == "triangle" else turns)


@pytest.mark.parametrize(("size", "channels", "image"), [(28, 1, 0), (28, 3, 0), (9, 1, 11), (45, 1, 4)])
def test_the_picture_is_what_a_plain_painter_paints(size, channels, image):
    ours = dead_leaves(0, torch.tensor([image]), size, channels)[0].numpy()
    plain = paint_plainly(0, image, size, channels)
    # The painter's test of an edge rounds otherwise; a pixel whose centre lies on one to seven digits may differ.
    assert (ours != plain).any(0).mean() < 0.002


def test_radii_follow_the_published_power_law():
    edges = np.linspace(0.03, 1.0, 200)
    law = edges**-3.0 - 1.0
    law /= law.sum()
    assert radius_probabilities() == pytest.approx(law.tolist(), rel=1e-9, abs=1e-15)
    assert radii(28) == pytest.approx((28 * edges).tolist())
    drawn = torch.bincount(draw_radius(philox.words(0, "test", torch.arange(500), 2_000).flatten()), minlength=200)
    assert len(drawn) == 200
    expected = law * int(drawn.sum())
    common = expected > 20
    observed = np.append(drawn.numpy()[common], drawn.numpy()[~common].sum())
    assert stats.chisquare(observed, np.append(expected[common], expected[~common].sum())).pvalue > 1e-3


def covers(generator: np.random.Generator, count: int, points: list[tuple[float, float]]) -> np.ndarray:
    """Draw `count` leaves with NumPy's own random numbers and return bool [points, count]: who covers which point."""
    values = np.linspace(0.03, 1.0, 200)
    law = values**-3.0 - 1.0
    radius = generator.choice(values, count, p=law / law.sum())
    centre = generator.random((2, count))
    shape = generator.integers(0, 6, count)
    tilt = generator.random(count) * 2 * np.pi
    free = np.sort(generator.random((4, count)) * 2 * np.pi, axis=0)
    quarter = np.pi / 4 * np.array([1, 3, 5, 7])[:, None]
    lift = tilt / 4
    upright = np.stack([lift, np.pi - lift, np.pi + lift, 2 * np.pi - lift])
    triangle = np.sort(np.stack([*(generator.random((3, count)) * 2 * np.pi)]), axis=0)
    triangle = np.concatenate([triangle, triangle[2:]])
    angle = np.select(
        [shape == 1, shape == 2, shape == 3, shape == 4], [quarter + 0 * tilt, quarter + tilt, upright, triangle], free
    )
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    result = []
    for px, py in points:
        qx, qy = px - centre[0], py - centre[1]
        polygon = np.ones(count, dtype=bool)
        for k in range(4):
            n = (k + 1) % 4
            polygon &= (x[n] - x[k]) * (qy - y[k]) - (y[n] - y[k]) * (qx - x[k]) >= 0
        result.append(np.where(shape == 0, qx**2 + qy**2 <= radius**2, polygon))
    return np.array(result)


def test_two_pixels_share_a_leaf_as_often_as_the_leaves_geometry_says_at_any_scale():
    # Two points show the same leaf if the first leaf to cover either covers both: P(both) / P(either).
    lags = (1 / 28, 4 / 28)
    points = [(0.5, 0.5), *((0.5 + lag, 0.5) for lag in lags)]
    hits = covers(np.random.default_rng(0), 200_000, points)
    expected = [(hits[0] & hit).sum() / (hits[0] | hit).sum() for hit in hits[1:]]
    for size in (28, 56):
        images = dead_leaves(1, torch.arange(300 if size == 28 else 60), size, 1)[:, 0]
        middle = slice(size // 2 - size // 7, size // 2 + size // 7, max(1, size // 28))
        for lag, probability in zip(lags, expected, strict=True):
            shift = round(lag * size)
            moved = slice(middle.start + shift, middle.stop + shift, middle.step)
            equal = (images[:, middle, middle] == images[:, middle, moved]).to(torch.float64).mean().item()
            assert (equal - 1 / 256) / (1 - 1 / 256) == pytest.approx(probability, abs=0.05)


def test_colours_are_uniform_and_nothing_stays_bare():
    images = dead_leaves(2, torch.arange(120), 28, 3)
    for channel in range(3):
        level = images[:, channel, 3::7, 3::7].flatten().to(torch.float64)
        assert level.mean().item() == pytest.approx(127.5, abs=5)
        assert level.std().item() == pytest.approx(73.9, abs=3)
    # Black in all channels means bare; by chance it has probability 2^-24 a leaf.
    assert not (images == 0).all(1).any()


def test_pictures_do_not_depend_on_how_many_are_worked_on_at_a_time():
    index = torch.arange(100, 112)
    together = _paint(0, index, 10, 3, pool=50)
    assert torch.equal(_paint(0, index, 10, 3, pool=3), together)
    assert torch.equal(_paint(0, index.flip(0), 10, 3, pool=5), together.flip(0))


def test_a_grey_image_is_the_first_channel_of_the_colour_image():
    index = torch.arange(5)
    assert torch.equal(dead_leaves(0, index, 16, 1), dead_leaves(0, index, 16, 3)[:, :1])


def test_bare_windows_says_whether_any_pixel_of_a_window_is_bare():
    size = 13
    bare = (philox.uniforms(0, "w", torch.arange(2), size * size) < 0.03).to(torch.uint8)
    answers = _bare_windows(bare.view(-1), size).view(-1, 2, size, size)
    sides = window_sides(size)
    assert sides == [1, 2, 3, 4, 6, 8, 12, 13]
    for number, side in enumerate(sides):
        for image in range(2):
            picture = bare[image].view(size, size)
            for row in range(size - side + 1):
                for column in range(size - side + 1):
                    expected = picture[row : row + side, column : column + side].any()
                    assert bool(answers[number, image, row, column]) == bool(expected)
