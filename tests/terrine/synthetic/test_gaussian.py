"""Gaussian noise images against SciPy's normal distribution."""

import numpy as np
import torch
from scipy import stats

from terrine.synthetic.programs.gaussian import gaussian


def test_bytes_are_rounded_and_clipped_normals():
    images = gaussian(0, torch.arange(40), 28, 3)
    counts = np.bincount(images.flatten().numpy(), minlength=256)
    edges = np.concatenate([[-np.inf], np.arange(0.5, 255), [np.inf]])
    expected = np.diff(stats.norm.cdf(edges, 127.5, 42.5)) * images.numel()
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_neighbouring_pixels_and_channels_are_independent():
    images = gaussian(0, torch.arange(60), 28, 3).to(torch.float64) - 127.5
    for first, second in (
        (images[:, :, :, 1:], images[:, :, :, :-1]),
        (images[:, :, 1:], images[:, :, :-1]),
        (images[:, 1:], images[:, :-1]),
    ):
        assert abs((first * second).mean().item()) / 42.5**2 < 0.012
