"""Iterated function systems against plain walks, and the law by which categories are kept."""

import numpy as np
import pytest
import torch

from terrine.determinism import philox
from terrine.synthetic.programs.fractal import (
    BURN_IN,
    CHOICES,
    FILL,
    LEAST_FILL,
    STEPS,
    Catalogue,
    Systems,
    _pool,
    _stamp,
    _weights,
    catalogue,
    fill_rate,
    fractal,
    plot,
    random_systems,
    walk,
)


def test_maps_are_chosen_in_proportion_to_their_areas():
    systems = random_systems(0, torch.arange(40), torch.zeros(40, dtype=torch.int64))
    used_counts = set()
    for parameters, choice in zip(systems.parameters.double().numpy(), systems.choice, strict=True):
        used = np.abs(parameters).sum(1) > 0
        used_counts.add(int(used.sum()))
        assert np.abs(parameters).max() <= 1
        area = np.abs(parameters[:, 0] * parameters[:, 3] - parameters[:, 1] * parameters[:, 2])
        share = np.bincount(choice.numpy(), minlength=7) / CHOICES
        assert share == pytest.approx(area / area.sum(), abs=1.01 / CHOICES)
        assert not share[~used].any()
    assert used_counts == {2, 3, 4, 5, 6, 7}


def test_a_walk_applies_one_map_after_another():
    index = torch.tensor([5, 6])
    systems = random_systems(0, index, torch.zeros(2, dtype=torch.int64))
    systems = Systems(systems.parameters * 0.8, systems.choice)
    x, y = walk(systems, 3, "walk", index, 2 * STEPS)
    assert x.shape == (STEPS, 2, 2)
    for row, image in enumerate(index.tolist()):
        for start in range(2):
            px, py = np.float32(0), np.float32(0)
            for step in range(BURN_IN + STEPS):
                block = philox.blocks(3, "walk", torch.tensor([image]), 1, step // 16 * 2 + start)
                byte = int(block[step % 16 // 4][0, 0]) >> (8 * (step % 4)) & 0xFF
                a, b, c, d, e, f = systems.parameters[row, int(systems.choice[row, byte])].numpy()
                px, py = a * px + b * py + e, c * px + d * py + f
                if step >= BURN_IN:
                    assert (x[step - BURN_IN, row, start], y[step - BURN_IN, row, start]) == (px, py)


def test_plot_marks_the_pixels_of_the_points_and_nothing_near_the_border():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, 5, generator=generator), torch.randn(8, 3, 5, generator=generator)
    marks = plot(x, y, 40).view(3, 40, 40)
    for image in range(3):
        px, py = x[:, image].flatten().double(), y[:, image].flatten().double()
        expected = np.zeros((40, 40))
        for u, v in zip((px - px.min()) / (px.max() - px.min()), (py - py.min()) / (py.max() - py.min()), strict=True):
            expected[2 + int(v * 35 + 0.5), 2 + int(u * 35 + 0.5)] = 1
        assert np.array_equal(marks[image].numpy(), expected)
    assert fill_rate(marks.flatten(1)) == pytest.approx(marks.double().mean((1, 2)))


def test_orbits_that_leave_the_plane_fill_nothing():
    x = torch.tensor([1.0, float("inf"), float("nan"), 2.0]).view(4, 1, 1)
    assert fill_rate(plot(x, x, 32))[0] < 0.01


def test_every_category_fills_a_fifth_of_the_canvas_by_an_independent_walk():
    category = torch.arange(0, 1000, 125)
    systems = catalogue(0).get(category)
    generator = np.random.default_rng(0)
    for parameters, choice in zip(systems.parameters.numpy(), systems.choice.numpy(), strict=True):
        x, y, points = np.zeros(24), np.zeros(24), []
        for step in range(BURN_IN + STEPS):
            a, b, c, d, e, f = parameters[choice[generator.integers(0, CHOICES, 24)]].T.astype(np.float64)
            x, y = a * x + b * y + e, c * x + d * y + f
            if step >= BURN_IN:
                points.append((x, y))
        x, y = np.array(points).transpose(1, 0, 2).reshape(2, -1)
        counts, _, _ = np.histogram2d(x, y, bins=60)
        # Another random walk of the same length fills about as much; systems near the limit may fall just below.
        assert (counts > 0).mean() > 0.8 * FILL


def test_a_category_is_the_same_whatever_else_was_asked_for():
    alone, together = Catalogue(9), Catalogue(9)
    wanted = torch.tensor([700, 3, 41])
    expected = together.get(wanted)
    for row, category in enumerate(wanted):
        systems = alone.get(category[None])
        assert torch.equal(systems.parameters[0], expected.parameters[row])
        assert torch.equal(systems.choice[0], expected.choice[row])


def test_there_are_25_weights_and_each_changes_one_parameter():
    table = _weights(torch.device("cpu"))
    assert table.shape == (25, 6)
    assert (table[0] == 1).all()
    assert ((table[1:] != 1).sum(1) == 1).all()
    assert {round(float(v), 1) for v in table.unique()} == {0.2, 0.6, 1.0, 1.4, 1.8}


def test_a_patch_is_stamped_at_every_mark():
    marks = torch.zeros((4, 20, 20), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    marks[:, 2:-2, 2:-2] = (torch.rand((4, 16, 16), generator=generator) < 0.1).to(torch.uint8)
    word = philox.words(0, "patch", torch.arange(4), 1)
    stamped = _stamp(marks.flatten(1), 20, word).view(4, 20, 20)
    for image in range(4):
        pattern = (int(word[image, 0]) * 511 >> 32) + 1
        expected = torch.zeros((20, 20), dtype=torch.uint8)
        for row, column in marks[image].nonzero().tolist():
            for tap in range(9):
                if pattern >> tap & 1:
                    expected[row + 1 - tap // 3, column + 1 - tap % 3] = 1
        assert torch.equal(stamped[image], expected)


def test_pooling_adds_up_blocks():
    cover = torch.randint(0, 2, (2, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = cover.view(2, 4, 3, 4, 3).double().sum((2, 4))
    assert torch.equal(_pool(cover, 3).double(), expected)


def test_pictures_hold_a_figure_on_black():
    images = fractal(0, torch.arange(120), 28, 3)
    lit = (images > 0).any(1).double().mean((1, 2))
    assert lit.min() > LEAST_FILL
    assert lit.max() < 0.95
    assert (images[:, :, [0, 0, -1, -1], [0, -1, 0, -1]] == 0).double().mean() > 0.9
    assert images.amax((1, 2, 3)).min() >= 64
