"""Fragment programs: their building blocks against plain loops, and the diversity of the family."""

import itertools
import math

import numpy as np
import pytest
import torch

from terrine.determinism import philox
from terrine.synthetic.programs.shaders import _render, family_of, shaders
from terrine.synthetic.shader_fields import FIELDS
from terrine.synthetic.shader_noise import Scene, box, cells, fractal_noise, rotate, smooth_union, step, value_noise
from terrine.synthetic.to_bytes import to_bytes


@pytest.fixture(name="scene")
def make_scene() -> Scene:
    index = torch.arange(3)
    plane = philox.uniforms(0, "plane", index, 2 * 12 * 12).view(3, 2, 12, 12) * 8 - 4
    return Scene(
        plane[:, 0],
        plane[:, 1],
        philox.uniforms(0, "parameters", index, 16),
        philox.uniforms(0, "lattice", index, 256),
    )


def lattice(scene: Scene, image: int, column: int, row: int) -> float:
    return float(scene.lattice[image, row % 16 * 16 + column % 16])


def test_value_noise_interpolates_the_lattice(scene):
    ours = value_noise(scene, scene.x, scene.y)
    for image, i, j in itertools.product(range(3), range(0, 12, 3), range(0, 12, 3)):
        x, y = float(scene.x[image, i, j]), float(scene.y[image, i, j])
        column, row = math.floor(x), math.floor(y)
        tx, ty = (t * t * (3 - 2 * t) for t in (x - column, y - row))
        top = lattice(scene, image, column, row) * (1 - tx) + lattice(scene, image, column + 1, row) * tx
        low = lattice(scene, image, column, row + 1) * (1 - tx) + lattice(scene, image, column + 1, row + 1) * tx
        assert float(ours[image, i, j]) == pytest.approx(top * (1 - ty) + low * ty, abs=1e-5)


def test_fractal_noise_stays_within_bounds_and_gets_finer(scene):
    for fold in ("none", "ridge", "billow"):
        value = fractal_noise(scene, scene.x, scene.y, 4, fold)
        assert 0 <= value.min() < value.max() <= 1
    assert torch.allclose(fractal_noise(scene, scene.x, scene.y, 1), value_noise(scene, scene.x, scene.y))


def test_cells_finds_the_nearest_two_sites(scene):
    nearest, second, number = cells(scene, scene.x, scene.y)
    for image, i, j in itertools.product(range(3), range(0, 12, 3), range(0, 12, 3)):
        x, y = float(scene.x[image, i, j]), float(scene.y[image, i, j])
        sites = []
        for down, across in itertools.product((-1, 0, 1), repeat=2):
            column, row = math.floor(x) + across, math.floor(y) + down
            value = lattice(scene, image, column, row)
            site = (column + value, row + lattice(scene, image, column + 7, row + 5))
            sites.append((math.dist((x, y), site), value))
        sites.sort()
        assert float(nearest[image, i, j]) == pytest.approx(sites[0][0], abs=1e-4)
        assert float(second[image, i, j]) == pytest.approx(sites[1][0], abs=1e-4)
        assert float(number[image, i, j]) == pytest.approx(sites[0][1], abs=1e-6)


def test_box_is_the_distance_to_the_rectangle(scene):
    half = torch.tensor([1.0, 0.5, 2.0])[:, None, None], torch.tensor([0.3, 1.5, 1.0])[:, None, None]
    ours = box(scene.x, scene.y, *half)
    for image in range(3):
        w, h = float(half[0][image]), float(half[1][image])
        s = np.linspace(-1, 1, 400)
        edge = np.concatenate(
            [np.stack([s * w, 0 * s + k * h], 1) for k in (-1, 1)]
            + [np.stack([0 * s + k * w, s * h], 1) for k in (-1, 1)]
        )
        for x, y, value in zip(scene.x[image].flatten(), scene.y[image].flatten(), ours[image].flatten(), strict=True):
            expected = np.hypot(edge[:, 0] - float(x), edge[:, 1] - float(y)).min()
            inside = abs(x) < w and abs(y) < h
            assert float(value) == pytest.approx(-expected if inside else expected, abs=0.02)


def test_smooth_union_touches_both_shapes_and_fills_the_gap():
    a, b = torch.tensor([1.0, 0.2, 0.2]), torch.tensor([0.1, 0.2, 0.9])
    assert smooth_union(a, b, 0.4).tolist() == pytest.approx([0.1, 0.1, 0.2])


def test_rotation_keeps_lengths_and_step_rises_from_zero_to_one(scene):
    x, y = rotate(scene.x, scene.y, scene.uniform(0))
    assert torch.allclose(x * x + y * y, scene.x**2 + scene.y**2, rtol=1e-4, atol=1e-5)
    assert step(torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0]), 0.5).tolist() == pytest.approx([0, 0, 0.5, 1, 1])


def test_bytes_get_the_mean_and_the_deviation_asked_for():
    picture = philox.normals(0, "levels", torch.arange(2), 3 * 400).view(2, 3, 20, 20) * 7 + 3
    mean, deviation = torch.full((2, 3, 1), 0.5), torch.full((2, 3, 1), 0.1)
    levels = to_bytes(picture, mean, deviation).double() / 255
    assert levels.mean((2, 3)) == pytest.approx(0.5, abs=0.003)
    assert levels.std((2, 3)) == pytest.approx(0.1, abs=0.003)
    assert to_bytes(torch.ones(1, 1, 4, 4), mean[:1, :1], deviation[:1, :1]).unique().tolist() == [128]


def test_the_family_has_at_least_24_programs_and_all_are_drawn():
    assert len(FIELDS) >= 24
    assert len(set(FIELDS)) == len(FIELDS)
    counts = torch.bincount(family_of(0, torch.arange(3_000)), minlength=len(FIELDS))
    assert counts.min() > 0.5 * 3_000 / len(FIELDS)


def test_an_image_runs_the_program_it_drew():
    index = torch.arange(30)
    images = shaders(0, index, 12, 3)
    for image, number in zip(index, family_of(0, index), strict=True):
        assert torch.equal(_render(0, int(number), image[None], 12, 3)[0], images[image])


def test_no_image_is_constant_and_no_two_programs_look_alike():
    index = torch.arange(60)
    means, spectra = [], []
    for number in range(len(FIELDS)):
        images = _render(0, number, index, 28, 1)[:, 0].double()
        assert images.std((1, 2)).min() > 4
        means.append(images.mean(0).flatten())
        spectra.append(
            torch.fft.fft2(images - images.mean((1, 2), keepdim=True)).abs().square().mean(0).log().flatten()[1:]
        )
    correlation = np.corrcoef(torch.stack(means).numpy()) - np.eye(len(FIELDS))
    assert correlation.max() < 0.98
    distance = torch.cdist(torch.stack(spectra), torch.stack(spectra)) + 1e9 * torch.eye(len(FIELDS))
    assert distance.min() > 1.0
