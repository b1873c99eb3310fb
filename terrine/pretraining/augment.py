"""SimCLR views of a batch of images, on any device and without a loop over images.

Random resized crop, horizontal flip, colour jitter, conversion to grey (colour images only) and Gaussian blur, in this
order: the views of Chen et al. 2020 with the parameters of DIET-PATE (Anonymous 2025, appendix A). The random numbers
of a batch are drawn first, one row per image (`draw_views`), and then applied (`apply_views`): processes that share a
batch draw the same numbers, and each applies its own rows.

Crop, resize, flip and blur are linear and act on rows and columns separately: each needs two small matrices per image
and a batched matrix product, which is fast at these sizes on any device and deterministic on a GPU.

    >>> views = draw_views(len(images), 28, ViewSettings(), seed=0, device=images.device)
    >>> first = apply_views(images, views)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from terrine.geometry import Size, sides
from terrine.models.backbone import as_float

_CROP_ATTEMPTS = 10
_GREY_WEIGHTS = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class ViewSettings:
    """Strength of the random changes of a view; the defaults are the paper's.

    `crop_area` (share of the image) and `crop_ratio` (width to height) are the ranges of the random resized crop.
    Brightness, contrast and saturation are multiplied by a factor within 1 +- their strength; hue rotates by at most
    its strength (in turns). All four are applied together with `jitter_probability`. The blur's radius is
    `blur_kernel` / 2 of the side.
    """

    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    jitter_probability: float = 0.8
    brightness: float = 0.8
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2
    grey_probability: float = 0.2
    blur_kernel: float = 0.1
    blur_sigma: tuple[float, float] = (0.1, 2.0)


@dataclass(frozen=True)
class Views:
    """Random numbers of a batch of views: tensors with one row per image, and one common order of colour operations."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor
    sigma: Tensor
    colour_order: tuple[int, ...]
    blur_radius: int


def draw_views(count: int, size: Size, settings: ViewSettings, *, seed: int, device: torch.device | str) -> Views:
    """Draw `count` views of images of size `size`; the result depends only on `seed` and the kind of device.

    The order of brightness, contrast, saturation and hue is random, and the same for all images of the call.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    on_host = torch.Generator().manual_seed(seed)  # control flow must not wait for the device

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator, device=device) * (high - low) + low

    top, left, height, width = _draw_crops(count, size, settings, generator)
    jittered = uniform(0, 1) < settings.jitter_probability

    def factor(strength: float) -> Tensor:
        return torch.where(jittered, uniform(1 - strength, 1 + strength), 1.0)

    return Views(
        top=top,
        left=left,
        height=height,
        width=width,
        flip=uniform(0, 1) < settings.flip_probability,
        brightness=factor(settings.brightness),
        contrast=factor(settings.contrast),
        saturation=factor(settings.saturation),
        hue=torch.where(jittered, uniform(-settings.hue, settings.hue), 0.0),
        grey=uniform(0, 1) < settings.grey_probability,
        sigma=uniform(*settings.blur_sigma),
        colour_order=tuple(torch.randperm(4, generator=on_host).tolist()),
        blur_radius=int(settings.blur_kernel * min(sides(size))) // 2,
    )


def _draw_crops(count: int, size: Size, settings: ViewSettings, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return top, left, height and width [count] in whole pixels: the first of ten draws to fit, or the whole image."""
    uniform = torch.rand(4, count, _CROP_ATTEMPTS, generator=generator, device=generator.device)
    (smallest, largest), (narrowest, widest) = settings.crop_area, map(math.log, settings.crop_ratio)
    tall, wide = sides(size)
    area = tall * wide * (uniform[0] * (largest - smallest) + smallest)
    ratio = torch.exp(uniform[1] * (widest - narrowest) + narrowest)
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (width >= 1) & (width <= wide) & (height >= 1) & (height <= tall)
    first = fits.int().argmax(1, keepdim=True)
    none = ~fits.any(1)

    def chosen(values: Tensor, otherwise: float) -> Tensor:
        return torch.where(none, otherwise, values.gather(1, first).squeeze(1))

    height, width = chosen(height, tall), chosen(width, wide)
    top, left = (
        torch.floor(uniform[2 + axis, :, 0] * (whole + 1 - side))
        for axis, (whole, side) in enumerate(((tall, height), (wide, width)))
    )
    return top, left, height, width


def apply_views(images: Tensor, views: Views) -> Tensor:
    """Return views, float [B, C, H, W] in [0, 1], of `images` [B, C, H, W], uint8 or float, on their device."""
    tall, wide = images.shape[-2:]
    rows = _crop_matrices(views.top, views.height, tall)
    columns = _crop_matrices(views.left, views.width, wide)
    columns = torch.where(views.flip[:, None, None], columns.flip(1), columns)
    result = _along_both_axes(as_float(images), rows, columns)
    for operation in views.colour_order:
        result = _adjust_colour(result, views, operation)
    if images.shape[1] == 3:
        result = torch.where(views.grey[:, None, None, None], _grey(result), result)
    if views.blur_radius:
        along = [_blur_matrices(views.sigma, views.blur_radius, side) for side in (tall, wide)]
        result = _along_both_axes(result, *along)
    return result


def _along_both_axes(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply matrices [B, H, H] to the rows and [B, W, W] to the columns of images [B, C, H, W]."""
    return rows[:, None] @ images @ columns.mT[:, None]


def _crop_matrices(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return matrices [B, size, size] that bilinearly resize the `length` samples from `start` to `size` samples."""
    centre = (torch.arange(size, device=start.device) + 0.5) * (length / size)[:, None] - 0.5
    source = start[:, None] + torch.minimum(centre.clamp(min=0), length[:, None] - 1)
    distance = source[:, :, None] - torch.arange(size, device=start.device)
    return (1 - distance.abs()).clamp_(min=0)


def _blur_matrices(sigma: Tensor, radius: int, size: int) -> Tensor:
    """Return matrices [B, size, size] of Gaussian blurs with 2 * radius + 1 taps and reflected borders."""
    offsets = torch.arange(-radius, radius + 1, device=sigma.device)
    taps = torch.exp(-0.5 * (offsets / sigma[:, None]).square())
    taps = taps / taps.sum(1, keepdim=True)
    period = max(2 * (size - 1), 1)
    source = (torch.arange(size, device=sigma.device)[:, None] + offsets) % period
    source = torch.minimum(source, period - source)
    selected = torch.nn.functional.one_hot(source, size).to(taps.dtype)  # [row, tap, column]
    return torch.einsum("bt,itj->bij", taps, selected)


def _grey(images: Tensor) -> Tensor:
    """Return the luminance [B, 1, H, W] of grey or colour images."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    luminance = _GREY_WEIGHTS[0] * red + _GREY_WEIGHTS[1] * green + _GREY_WEIGHTS[2] * blue
    return luminance[:, None]


def _blend(images: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (images * factor + other * (1 - factor)).clamp_(0, 1)


def _turn_hue(images: Tensor, hue: Tensor) -> Tensor:
    """Rotate the hue of colour images in HSV coordinates."""
    red, green, blue = images.unbind(1)
    value, lowest = images.amax(1), images.amin(1)
    chroma = value - lowest
    divisor = torch.where(chroma > 0, chroma, 1.0)
    sixth = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    turned = sixth + 6 * hue[:, None, None]
    channels = []
    for offset in (5, 3, 1):
        k = (turned + offset) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def _adjust_colour(images: Tensor, views: Views, operation: int) -> Tensor:
    """Apply one of four operations: brightness, contrast, saturation or hue; the last two do not change grey images."""
    if operation == 0:
        return _blend(images, 0.0, views.brightness)
    if operation == 1:
        return _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), views.contrast)
    if images.shape[1] == 1:
        return images
    return _blend(images, _grey(images), views.saturation) if operation == 2 else _turn_hue(images, views.hue)
