"""Power-law noise: its transform against NumPy's, its slopes against the exponents that were drawn."""

import numpy as np
import pytest
import torch

from terrine.determinism import philox
from terrine.synthetic.programs.spectrum import amplitude, exponents, real_inverse_transform, spectrum


@pytest.mark.parametrize("size", [8, 27, 64])
def test_the_transform_is_the_inverse_discrete_fourier_transform(size):
    coefficients = philox.normals(0, "test", torch.arange(2), 2 * size * size).view(2, 2, size, size)
    ours = real_inverse_transform(coefficients).numpy()
    for image in range(2):
        real, imaginary = coefficients[image].double().numpy()
        expected = np.fft.ifft2(real + 1j * imaginary).real * size * size
        assert np.abs(ours[image] - expected).max() < size * size * 1e-5


def test_amplitudes_are_the_published_law():
    exponent = torch.tensor([[0.7, 3.2]])
    ours = amplitude(9, exponent)[0]
    for v in range(9):
        for u in range(9):
            total = min(u, 9 - u) ** 0.7 * (u > 0) + min(v, 9 - v) ** 3.2 * (v > 0)
            assert ours[v, u].item() == pytest.approx(1 / total if total else 0.0, rel=1e-5)


def test_spectra_fall_along_each_axis_with_the_exponent_of_that_axis():
    index = torch.arange(600)
    exponent = exponents(5, index).double().numpy()
    assert exponent.min() > 0.5
    assert exponent.max() < 3.5
    images = spectrum(5, index, 32, 1)[:, 0].double().numpy()
    power = np.abs(np.fft.fft2(images)) ** 2
    frequency = np.log(np.arange(1, 9))
    for axis, line in ((0, power[:, 0, 1:9]), (1, power[:, 1:9, 0])):
        # Averaged in groups of similar exponents: one image's periodogram is far too noisy for a slope.
        order = np.argsort(exponent[:, axis])
        for group in np.array_split(order, 4)[:3]:
            slope = np.polyfit(frequency, np.log(line[group]).mean(0), 1)[0]
            assert slope == pytest.approx(-2 * exponent[group, axis].mean(), abs=0.35)
