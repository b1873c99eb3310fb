"""StyleGAN, oriented: an untrained StyleGAN2 synthesis network whose filters are wavelets, a new network per image.

After Baradad et al. (2021), section 3.3, and the published generator (configuration `oriented`: 3×3 filters from a bank
of 40, one wavelet per input channel, scaled per output channel by N(0, 1), one pink-noise map for all scales, biases
U(-0.2, 0.2), toRGB N(0, 1), styles from LeakyReLU(N(0, 1))).

**One map per layer.** The weight of a layer is a[o] · s[i] · wavelet[i], and StyleGAN2's demodulation divides it by its
norm over i. Only the sign of a[o] remains: every output channel is ± the same map h, plus noise and a bias, through a
ReLU. The layers here compute this single map instead of the published network's 512 channels: channel c is
relu(±h + noise + bias[c]), and the next map is the sum of the channels filtered by their wavelets. (With 512 channels
half the signs are positive, give or take 2 %; here exactly half of 32 are.)

**Scales.** The ladder of sides is size, ⌈size/2⌉, ⌈size/4⌉, ... down to 5 or less, so that any side is reached.

**Exactness.** Activations are multiples of 2^-7, weights multiples of 2^-10, and all sums in the matrix product stay
below 2^24 units: float32 then adds them without rounding, in any order.
"""

from dataclasses import dataclass
from functools import cache
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import log, tree_sum
from terrine.synthetic.program import chunks, image_program, to_bytes

CHANNELS = 32
ORIENTATIONS = 8
TAPS = 9
ACTIVATION_UNIT = 2.0**-7
WEIGHT_UNIT = 2.0**-10
LARGEST_ACTIVATION = 2**11 - 1
MAX_NOISE = 0.3
MAX_BIAS = 0.2
# Mean and deviation of StyleGAN2's styles when LeakyReLU(N(0,1)) passes a random affine layer with bias 1.
STYLE_DEVIATION = sqrt((1 + 0.2**2) / 2)
# Mean and deviation over images of each channel's mean and deviation (published generator), as fractions of white.
CHANNEL_MEANS = ((0.483, 0.145), (0.455, 0.142), (0.401, 0.161))
CHANNEL_DEVIATIONS = ((0.219, 0.063), (0.213, 0.062), (0.213, 0.069))


@image_program("stylegan")
def stylegan(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the oriented StyleGAN images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    parts = chunks(index, size, cpu=1 << 17, gpu=1 << 22)
    return torch.cat([_synthesise(seed, part, size, channels) for part in parts])


def ladder(size: int) -> list[int]:
    """Return the sides of the scales, smallest first; each is half of the next, rounded up."""
    sides = [size]
    while sides[-1] > 5:
        sides.append(-(-sides[-1] // 2))
    return sides[::-1]


def wavelet_bank() -> NDArray[np.float32]:
    """Return the 40 filters, float32 [40, 3, 3]: 8 oriented edges, 8 oriented lines, 4 sparse, and their negatives.

    An edge is a step (1, 0, -1) across an axis, a line a thin ridge (-1 on ones); both are turned by bilinear
    interpolation about the centre in steps of 180°/8, and their mean is subtracted.
    """

    def turned(profile: dict[int, float], degrees: float) -> NDArray[np.float64]:
        """Return the 3×3 centre of an 11×11 picture of vertical stripes after a counter-clockwise turn."""
        sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
        rows, columns = np.meshgrid(np.arange(-1, 2), np.arange(-1, 2), indexing="ij")
        column = cosine * columns - sine * rows
        low = np.floor(column).astype(int)
        value = np.vectorize(lambda c: profile.get(c, profile[2] if c > 0 else profile[-2]))
        picture = value(low) * (low + 1 - column) + value(low + 1) * (column - low)
        return picture - picture.mean()

    edge = {-2: 1.0, -1: 1.0, 0: 0.0, 1: -1.0, 2: -1.0}
    line = {-2: 1.0, -1: 1.0, 0: -1.0, 1: 1.0, 2: 1.0}
    angles = [k * 180.0 / ORIENTATIONS for k in range(ORIENTATIONS)]
    point = np.zeros((3, 3))
    point[1, 1] = 1
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=float)
    sparse = [point, 2 * point - 1, cross, 2 * cross - 1]
    bank = np.stack([*(turned(edge, a) for a in angles), *(turned(line, a) for a in angles), *sparse])
    # A multiple of 2^-20 hides the last bits of a library's sine.
    return np.round(np.concatenate([bank, -bank]) * 2**20).astype(np.float32) * np.float32(2**-20)


@cache
def _bank(device: torch.device) -> Tensor:
    return torch.from_numpy(wavelet_bank().reshape(-1, TAPS).T.copy()).to(device)


@dataclass(frozen=True)
class _Network:
    """The random networks of a batch of images, for all wavelet layers and all scales of the ladder."""

    constant: Tensor  # [images, CHANNELS, pixels of the smallest scale], activation units
    taps: Tensor  # [layers, images, 9, CHANNELS], weight units: style times wavelet, demodulated
    bias: Tensor  # [layers, images, 2, CHANNELS / 2, 1], activation units
    strength: Tensor  # [layers, images, 1, 1], amplitude of the noise, activation units
    colours: Tensor  # [scales, images, channels, CHANNELS], toRGB weights times styles, 2^-8
    noise: list[Tensor]  # [images, side, side] for every scale
    mean: Tensor  # [images, channels, 1], of the finished picture
    deviation: Tensor  # likewise


def _synthesise(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    sides = ladder(size)
    network = _draw_network(seed, index, sides, channels)
    activations = network.constant
    # One buffer for the activations of all layers: at full size they are by far the largest tensor.
    buffer = torch.empty(len(index) * CHANNELS * size * size, device=index.device)
    picture = torch.zeros((len(index), channels, sides[0], sides[0]), device=index.device)
    layer = 0
    for scale, side in enumerate(sides):
        for up in (True, False) if scale else (False,):
            maps = torch.bmm(network.taps[layer], activations)
            h = _convolve(maps, sides[scale - 1] if up else side, side, up)
            activations = _activate(h, network.noise[scale], network.bias[layer], network.strength[layer], buffer)
            layer += 1
        colours = torch.bmm(network.colours[scale], activations).unflatten(2, (side, side))
        picture = (_upsample(picture, side) if scale else picture) + colours
    return to_bytes(picture, network.mean, network.deviation)


def _draw_network(seed: int, index: Tensor, sides: list[int], channels: int) -> _Network:
    images, scales, layers = len(index), len(sides), 2 * len(sides) - 1
    start = CHANNELS * sides[0] ** 2
    lengths = (start, layers * CHANNELS, scales * 4 * CHANNELS, 8)
    normal = philox.normals(seed, "stylegan/normals", index, sum(lengths)).split(lengths, 1)
    per_layer = 42 + 2 * CHANNELS
    pixels = [side * side for side in sides]
    needed = (layers * per_layer, 17, *pixels)
    word = philox.words(seed, "stylegan/words", index, sum(needed)).split(needed, 1)

    styles = normal[1].view(images, layers, CHANNELS).transpose(0, 1) * STYLE_DEVIATION + 1.0
    choice = word[0].view(images, layers, per_layer).transpose(0, 1)
    # A random subset of the bank: the first few wavelets of a random order (the wavelet's number breaks ties).
    order = ((choice[..., :40] << 6) + torch.arange(40, device=index.device)).sort(2).values & 63
    subset, _ = philox.below(choice[..., 40:41], 36)
    wavelet = order.gather(2, (choice[..., 42 : 42 + CHANNELS] * (subset + 5)) >> 32)
    taps = _bank(index.device)[:, wavelet] * styles
    norm = tree_sum(tree_sum(taps * taps, 0), 3)
    # √2 is the gain of StyleGAN2's ReLU, moved before it.
    gain = (sqrt(2.0) / WEIGHT_UNIT) / (norm + 1e-8).sqrt()
    bias = (philox.to_uniform(choice[..., 42 + CHANNELS :]) * 2.0 - 1.0) * (sqrt(2.0) * MAX_BIAS / ACTIVATION_UNIT)
    strength = philox.to_uniform(choice[..., 41]) * (sqrt(2.0) * MAX_NOISE / ACTIVATION_UNIT)

    colour = normal[2].view(images, scales, 4, CHANNELS).transpose(0, 1)
    mixed = colour[:, :, 1 : 1 + channels] * (colour[:, :, :1] * STYLE_DEVIATION + 1.0)
    levels = normal[3].view(images, 2, 4, 1)[:, :, :channels]
    means = torch.tensor(CHANNEL_MEANS[:channels], device=index.device)[:, :, None]
    deviations = torch.tensor(CHANNEL_DEVIATIONS[:channels], device=index.device)[:, :, None]
    return _Network(
        constant=(normal[0] * (1 / ACTIVATION_UNIT)).round_().view(images, CHANNELS, -1),
        taps=(taps * gain).round_().permute(1, 2, 0, 3).contiguous(),
        bias=bias.round_().view(layers, images, 2, CHANNELS // 2, 1),
        strength=strength[:, :, None, None],
        colours=(mixed * (2.0**8 / sqrt(CHANNELS))).round_().contiguous(),
        noise=_pink_noise(word[1], list(word[2:]), sides),
        mean=levels[:, 0] * means[:, 1] + means[:, 0],
        deviation=(levels[:, 1] * deviations[:, 1] + deviations[:, 0]).clamp_(min=0.02),
    )


def _convolve(maps: Tensor, side: int, wide: int, up: bool) -> Tensor:
    """Add the nine tap maps [images, 9, side²], each shifted by its tap, zero beyond the border: [images, wide, wide].

    With `up` the maps are first spread over every second pixel and the sum is smoothed with (1, 3, 3, 1)/4 along each
    axis, as StyleGAN2 does; the grid is then cut to `wide`.
    """
    images = len(maps)
    maps = maps.view(images, TAPS, side, side)
    step = 2 if up else 1
    extent = step * side
    canvas = torch.zeros((images, extent + 4, extent + 4), device=maps.device)
    for tap in range(TAPS):
        row, column = 3 - tap // 3, 3 - tap % 3
        canvas[:, row : row + extent : step, column : column + extent : step] += maps[:, tap]
    if not up:
        return canvas[:, 2 : 2 + side, 2 : 2 + side]
    rows = (canvas[:, :-3] + canvas[:, 3:]) + (canvas[:, 1:-2] + canvas[:, 2:-1]) * 3.0
    both = (rows[:, :, :-3] + rows[:, :, 3:]) + (rows[:, :, 1:-2] + rows[:, :, 2:-1]) * 3.0
    return both[:, :wide, :wide] * (1 / 16)


def _activate(h: Tensor, noise: Tensor, bias: Tensor, strength: Tensor, buffer: Tensor) -> Tensor:
    """Return relu(±h + noise + bias) in activation units, float32 [images, CHANNELS, pixels], stored in `buffer`."""
    grain = noise * strength
    signal = h * WEIGHT_UNIT
    both = torch.stack([grain + signal, grain - signal], 1).round_().view(len(h), 2, 1, -1)
    activations = buffer[: both.numel() * (CHANNELS // 2)].view(len(h), 2, CHANNELS // 2, -1)
    return torch.add(both, bias, out=activations).clamp_(0, LARGEST_ACTIVATION).flatten(1, 2)


def _upsample(picture: Tensor, wide: int) -> Tensor:
    """Double a picture's side with the filter (1, 3, 3, 1)/4, zero beyond the border, and cut it to `wide`."""
    for dim in (2, 3):
        padded = torch.nn.functional.pad(picture, (1, 1, 0, 0) if dim == 3 else (0, 0, 1, 1))
        length = picture.shape[dim]
        before, here, after = (padded.narrow(dim, k, length) for k in range(3))
        pair = torch.stack([before + here * 3.0, here * 3.0 + after], dim + 1) * 0.25
        picture = pair.flatten(dim, dim + 1).narrow(dim, 0, wide)
    return picture


def _pink_noise(shape: Tensor, octaves: list[Tensor], sides: list[int]) -> list[Tensor]:
    """Return the images' pink-noise maps at every scale: float32 [images, side, side].

    Noise is added octave by octave, so the map of a scale consists of the lower octaves of the next larger map.
    Amplitudes fall like frequency^-α, α uniform in [0.5, 1.5] (steps of 1/64). A Laplace-distributed 4×4 envelope makes
    the noise uneven, and the largest map has a mean square of one. `shape` holds 17 words per image (α, envelope),
    `octaves` holds side² words per image and scale.
    """
    loss = _upsampling_loss(len(sides))[::-1]
    table = [[2.0 ** (k * (0.5 - step / 64)) / loss[k] for k in range(len(sides))] for step in range(64)]
    amplitude = torch.tensor(table, device=shape.device)[shape[:, 0] >> 26]
    magnitude = -log(((shape[:, 1:] >> 9).to(torch.float32) + 0.5) * 2.0**-23)
    envelope = torch.where((shape[:, 1:] & 1) == 1, magnitude, -magnitude).unflatten(1, (4, 4))  # Laplace variates
    maps: list[Tensor] = []
    noise = None
    for k, (side, word) in enumerate(zip(sides, octaves, strict=True)):
        # The sum of two 16-bit uniforms: cheap, bell-shaped, deviation 65536/√6.
        white = ((word >> 16) + (word & 0xFFFF) - 0xFFFF).to(torch.float32) * (sqrt(6.0) / 65536)
        white = white.unflatten(1, (side, side)) * amplitude[:, k, None, None]
        noise = white if noise is None else _upsample(noise[:, None], side)[:, 0] + white
        maps.append(noise * _resize(envelope, side))
    square = tree_sum(maps[-1].square().flatten(1), 1) * (1 / sides[-1] ** 2)
    scale = (1.0 / square.sqrt().clamp_(min=1e-3))[:, :, None]
    return [level * scale for level in maps]


def _upsampling_loss(times: int) -> list[float]:
    """Return the deviation of white noise after 0, 1, ... `times` - 1 upsamplings with (1, 3, 3, 1)/4."""
    line, losses = np.ones(1), []
    for number in range(times):
        # Every 2^number-th pixel sees the same taps; along two axes the variances multiply.
        losses.append(float((line**2).sum()) / 2**number)
        spread = np.zeros(2 * len(line) - 1)
        spread[::2] = line
        line = np.convolve(spread, np.array([1, 3, 3, 1]) / 4)
    return losses


def _resize(envelope: Tensor, side: int) -> Tensor:
    """Interpolate a 4×4 map bilinearly to side × side, with aligned corners."""
    for dim in (1, 2):
        place = [k * 3 / (side - 1) for k in range(side)]
        low = torch.tensor([min(int(p), 2) for p in place], device=envelope.device)
        share = torch.tensor([p - min(int(p), 2) for p in place], device=envelope.device)
        share = share[:, None] if dim == 1 else share
        envelope = envelope.index_select(dim, low) * (1.0 - share) + envelope.index_select(dim, low + 1) * share
    return envelope
