"""Shaders: a family of 31 small fragment programs with random parameters.

The idea is that of Baradad et al. (2022), whose 21,000 shader sources are no longer published. These programs are
Terrine's own (see `shader_fields`), run on the device with tensors, and need no OpenGL. Each image draws its program, a
turn, a zoom, the program's parameters and, per channel, a cosine palette; then every channel gets a random mean and
deviation. One channel is the program with one palette.
"""

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import cosine, exp2
from terrine.synthetic.program import chunks, image_program
from terrine.synthetic.shader_fields import FIELDS
from terrine.synthetic.shader_noise import PERIOD, Scene, rotate
from terrine.synthetic.to_bytes import to_bytes

PARAMETERS = 16
# A faint slope keeps the rare view into the flat part of a field from being one single level.
SLOPE = 0.05


@image_program("shaders")
def shaders(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the shader images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    result = torch.empty((len(index), channels, size, size), dtype=torch.uint8, device=index.device)
    family = family_of(seed, index)
    for number in range(len(FIELDS)):
        for place in chunks((family == number).nonzero()[:, 0], size, cpu=1 << 16, gpu=1 << 23):
            if len(place):
                result[place] = _render(seed, number, index[place], size, channels)
    return result


def family_of(seed: int, index: Tensor) -> Tensor:
    """Return the number of the program in `FIELDS` that each image (int64 [images]) runs."""
    return philox.below(philox.words(seed, "shaders/family", index, 1)[:, 0], len(FIELDS))[0]


def _render(seed: int, number: int, index: Tensor, size: int, channels: int) -> Tensor:
    word = philox.uniforms(seed, "shaders", index, 16 + PARAMETERS + PERIOD**2)
    view, parameters, lattice = word.split((16, PARAMETERS, PERIOD**2), 1)
    axis = (torch.arange(size, device=index.device).to(torch.float32) * 2.0 + (1.0 - size)) * (1 / size)
    zoom = exp2(view[:, 1] * 1.5 - 0.75)[:, None, None]
    x, y = rotate(axis[None, None] * zoom, axis[None, :, None] * zoom, view[:, 0, None, None])
    field = FIELDS[number](Scene(x, y, parameters, lattice))
    field = field + (x + y) * SLOPE
    # One palette per channel: rhythm (half a wave, which keeps the order of levels, to one and a half) and phase.
    rhythm, phase, mean, deviation = view[:, 2:14].view(-1, 3, 4)[:, :channels, :, None, None].unbind(2)
    colour = cosine(field[:, None] * (rhythm * 0.5 + 0.25) + phase)
    return to_bytes(colour, mean[:, :, :, 0] * 0.4 + 0.3, deviation[:, :, :, 0] * 0.18 + 0.12)
