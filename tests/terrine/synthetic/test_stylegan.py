"""The oriented StyleGAN against the published layer, written out with all its output channels."""

from math import sqrt

import numpy as np
import pytest
import torch
from torch.nn import functional

from terrine.synthetic.programs.stylegan import (
    CHANNEL_DEVIATIONS,
    CHANNEL_MEANS,
    CHANNELS,
    _draw_network,
    _upsampling_loss,
    ladder,
    stylegan,
    wavelet_bank,
)


def test_the_bank_holds_edges_lines_sparse_filters_and_their_negatives():
    bank = wavelet_bank()
    assert bank.shape == (40, 3, 3)
    assert np.array_equal(bank[20:], -bank[:20])
    assert np.abs(bank[:16].sum((1, 2))).max() < 1e-5
    # The upright edge and line, and the same turned by a quarter.
    assert bank[0] == pytest.approx(np.array([[1, 0, -1]] * 3))
    assert np.abs(bank[4]) == pytest.approx(np.abs(bank[0].T))
    assert bank[8] == pytest.approx(np.array([[1, -2, 1]] * 3) * 2 / 3)
    assert bank[12] == pytest.approx(bank[8].T, abs=1e-5)
    # An edge is odd under a half turn, a line is even.
    assert bank[:8, ::-1, ::-1] == pytest.approx(-bank[:8], abs=1e-5)
    assert bank[8:16, ::-1, ::-1] == pytest.approx(bank[8:16], abs=1e-5)
    assert len({tuple(wavelet.round(4).flatten()) for wavelet in bank}) == 40


def plain_up(x: torch.Tensor) -> torch.Tensor:
    """Insert zeros and smooth with the outer product of (1, 3, 3, 1) / 4, as StyleGAN2 upsamples."""
    images, channels, side, _ = x.shape
    spread = torch.zeros((images, channels, 2 * side, 2 * side), dtype=x.dtype)
    spread[:, :, ::2, ::2] = x
    line = torch.tensor([1, 3, 3, 1], dtype=x.dtype) / 4
    kernel = torch.outer(line, line).expand(channels, 1, 4, 4)
    return functional.conv2d(functional.pad(spread, (2, 1, 2, 1)), kernel, groups=channels)


def test_the_image_is_what_the_whole_network_computes():
    """Run the network with every output channel's own convolution in float64, up to the rounding of activations."""
    size, seed, index = 14, 0, torch.arange(3)
    sides = ladder(size)
    assert sides == [4, 7, 14]
    network = _draw_network(seed, index, sides, 1)
    sign = torch.tensor([1.0] * (CHANNELS // 2) + [-1.0] * (CHANNELS // 2)).double()
    x = network.constant.double().view(3, CHANNELS, 4, 4)
    picture, layer = None, 0
    for scale, side in enumerate(sides):
        for up in (True, False) if scale else (False,):
            if up:
                x = plain_up(functional.pad(x, (2, 2, 2, 2)))[:, :, 3 : 3 + side + 2, 3 : 3 + side + 2]
            else:
                x = functional.pad(x, (1, 1, 1, 1))
            noise = network.noise[scale].double() * network.strength[layer].double()
            outputs = []
            for image in range(3):
                wavelets = network.taps[layer, image].T.reshape(CHANNELS, 3, 3).double() * 2.0**-10
                weight = sign[:, None, None, None] * wavelets
                h = functional.conv2d(x[image : image + 1], weight)[0]
                outputs.append(h + noise[image] + network.bias[layer, image].double().reshape(CHANNELS, 1, 1))
            x = torch.stack(outputs).clamp(min=0)
            layer += 1
        colours = torch.einsum("noi,nihw->nohw", network.colours[scale].double(), x)
        picture = colours if picture is None else plain_up(picture)[:, :, :side, :side] + colours
    spread = picture.std((2, 3), correction=0, keepdim=True)
    level = (picture - picture.mean((2, 3), keepdim=True)) / spread * network.deviation[..., None].double()
    expected = ((level + network.mean[..., None].double()) * 255).clamp(0, 255)
    assert (stylegan(seed, index, size, 1).double() - expected).abs().max() < 6


def test_weights_and_activations_stay_exact_in_single_precision():
    network = _draw_network(0, torch.arange(60), ladder(28), 3)
    for values in (network.constant, network.taps, network.colours, network.bias):
        assert torch.equal(values, values.round())
    # The largest sum a product can reach: weights times the largest activation.
    assert network.taps.abs().sum(3).max() * 2047 < 2**24
    assert network.colours.abs().sum(3).max() * 2047 < 2**24


def test_biases_noise_and_styles_have_the_published_ranges():
    network = _draw_network(1, torch.arange(100), ladder(28), 3)
    bias = network.bias.flatten() / 128 / sqrt(2)
    assert bias.abs().max() <= 0.2 + 0.003
    assert bias.std().item() == pytest.approx(0.4 / sqrt(12), rel=0.02)
    strength = network.strength.flatten() / 128 / sqrt(2)
    assert strength.min() >= 0
    assert strength.max() <= 0.3
    assert strength.mean().item() == pytest.approx(0.15, rel=0.05)
    assert network.noise[-1].square().mean((1, 2)) == pytest.approx(1.0, abs=1e-4)
    # White noise upsampled with a binomial filter keeps (1 + 9) / 16 of its deviation, once along each axis.
    assert _upsampling_loss(3)[:2] == [1.0, 0.625]
    assert network.taps.square().sum((2, 3)).div(2.0**21).sub(1).abs().max() < 0.01


def test_channels_have_the_published_means_and_deviations():
    images = stylegan(3, torch.arange(250), 16, 3).to(torch.float64) / 255
    mean, deviation = images.mean((2, 3)), images.std((2, 3))
    for channel in range(3):
        assert mean[:, channel].mean().item() == pytest.approx(CHANNEL_MEANS[channel][0], abs=0.02)
        assert mean[:, channel].std().item() == pytest.approx(CHANNEL_MEANS[channel][1], abs=0.03)
        assert deviation[:, channel].mean().item() == pytest.approx(CHANNEL_DEVIATIONS[channel][0], abs=0.03)


def test_filters_leave_orientation_in_the_pictures():
    """Within an image gradients prefer a direction: the structure tensor is far from round, unlike noise's."""
    images = stylegan(0, torch.arange(80), 28, 1)[:, 0].to(torch.float64)

    def coherence(x: torch.Tensor) -> torch.Tensor:
        gx, gy = x[:, 1:-1, 2:] - x[:, 1:-1, :-2], x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
        xx, yy, xy = ((a * b).mean((1, 2)) for a, b in ((gx, gx), (gy, gy), (gx, gy)))
        return ((xx - yy) ** 2 + 4 * xy**2).sqrt() / (xx + yy).clamp(min=1e-9)

    noise = torch.randn(80, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert coherence(images).median() > 3 * coherence(noise).median()
