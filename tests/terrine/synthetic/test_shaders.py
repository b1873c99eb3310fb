"""Fragment programs: their building blocks against plain loops, and the diversity of the family."""

import numpy as np
import pytest
import torch

from terrine.determinism import philox
from terrine.synthetic.program import to_bytes
from terrine.synthetic.programs.shaders import FIELDS, _render, family_of, shaders


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
