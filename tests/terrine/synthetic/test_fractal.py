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
    _weights,
    catalogue,
    fractal,
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
        # Another random walk fills a similar area; systems near the limit may be just below it.
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


def test_pictures_hold_a_figure_on_black():
    images = fractal(0, torch.arange(120), 28, 3)
    lit = (images > 0).any(1).double().mean((1, 2))
    assert lit.min() > LEAST_FILL
    assert lit.max() < 0.95
    assert (images[:, :, [0, 0, -1, -1], [0, -1, 0, -1]] == 0).double().mean() > 0.9
    assert images.amax((1, 2, 3)).min() >= 64
