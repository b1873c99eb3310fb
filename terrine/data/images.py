"""Convert arrays of images to one layout, depth, size and number of channels.

All pixels pass through `to_uint8_nchw`, so later code only handles uint8 [N, C, H, W] with one channel (grey) or three
(red, green, blue).

Arrays that exceed memory are stored in an unnamed file in a given folder, which is deleted with the array or the
process. Without a folder only memory is used, because private images may only be stored where the data owner allows it:

    with on_disk(folder):
        images = empty((1_000_000, 1, 224, 224))
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import numpy as np

from terrine.errors import InputError
from terrine.geometry import Size, sides

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Suffixes of image files."""

MEDICAL = {".nii": "nifti", ".nii.gz": "nifti", ".dcm": "dicom"}
"""Data sources of medical files by suffix."""

Files = Literal["images", "dicom", "nifti"]
"""Format of a dataset's files: PNG, JPEG and the like, or medical ones."""

Fit = Literal["stretch", "pad", "crop"]
"""Treatment of images of another shape: stretched, padded with black, or cropped to the centre."""

# Images per batch: bounds the memory of intermediate floating-point copies.
_CHUNK = 4096
_STRIP = 2**20  # values per batch of `windowed`

# Weights of red, green and blue in a grey value (ITU-R BT.601, as Pillow and torchvision use them).
_LUMA = (0.299, 0.587, 0.114)


def medical_suffix(name: str) -> str | None:
    """Return the suffix of a medical file (a key of `MEDICAL`), or None for any other file."""
    return next((end for end in MEDICAL if name.lower().endswith(end)), None)


def to_uint8_nchw(images: np.ndarray, name: str) -> np.ndarray:
    """Return `images` as uint8 [N, C, H, W].

    Args:
        images: [N, H, W], [N, H, W, C] or [N, C, H, W] with C = 1 or 3, of integers 0..255, booleans, or floats in
            [0, 1], which are scaled to 0..255.
        name: Name of the array for errors.

    Raises:
        InputError: another layout or range, or NaN.
    """
    return _to_uint8(_to_nchw(np.asarray(images), name), name)


def _to_nchw(images: np.ndarray, name: str) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first and last:
            raise InputError(
                f"{name} has shape {list(images.shape)}, with channels first or last. Images with a side of "
                "1 or 3 pixels are not supported."
            )
        if first:
            return images
        if last:
            return images.transpose(0, 3, 1, 2)
    raise InputError(
        f"{name} has shape {list(images.shape)}, but images must be [N, H, W] (grey), or [N, H, W, C] or "
        "[N, C, H, W] with C = 1 (grey) or 3 (red, green, blue)."
    )


def _to_uint8(images: np.ndarray, name: str) -> np.ndarray:
    kind = images.dtype.kind
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if kind not in "biuf":
        raise InputError(f"{name} has dtype {images.dtype}. Images must be numbers: uint8 0..255 or floats in [0, 1].")
    converted = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        if kind == "f":
            refuse_not_finite(chunk, name, offset=start)
            _refuse_outside(chunk, name, 1, "Floats must lie in [0, 1]; or store uint8 0..255.", offset=start)
            converted[start : start + _CHUNK] = np.rint(chunk.astype(np.float32) * 255)
        elif kind == "b":
            converted[start : start + _CHUNK] = chunk * np.uint8(255)
        else:
            _refuse_outside(chunk, name, 255, "Integers must lie in 0..255: scale them to uint8 first.", offset=start)
            converted[start : start + _CHUNK] = chunk
    return converted


def refuse_not_finite(images: np.ndarray, name: str, offset: int = 0) -> None:
    """Raise InputError if an image [N, ...] contains NaN or infinity, naming its index plus `offset`."""
    finite = np.isfinite(images).all(axis=tuple(range(1, images.ndim)))
    if not finite.all():
        index = int(np.flatnonzero(~finite)[0])
        what = "NaN" if np.isnan(images[index]).any() else "an infinite value"
        raise InputError(
            f"{name} contains {what} in image {index + offset}. Remove or repair that image: all pixels must be finite "
            "numbers."
        )


def _refuse_outside(images: np.ndarray, name: str, highest: int, remedy: str, offset: int) -> None:
    if images.size == 0 or (images.min() >= 0 and images.max() <= highest):
        return
    index = next(i for i, image in enumerate(images) if image.min() < 0 or image.max() > highest)
    lowest_value, highest_value = images[index].min(), images[index].max()
    raise InputError(
        f"{name} has dtype {images.dtype}, and image {index + offset} has values from {lowest_value} to "
        f"{highest_value}. {remedy}"
    )


def windowed(values: np.ndarray, low: float, high: float, *, slope: float = 1.0, intercept: float = 0.0) -> np.ndarray:
    """Return values as uint8 of the same shape: slope * value + intercept, from `low` (black) to `high` (white).

    NaN becomes black. If low = high, all values above are white. Computed in strips to save memory.
    """
    shown = np.empty(values.shape, np.uint8)
    flat, out = values.reshape(-1), shown.reshape(-1)
    for start in range(0, flat.size, _STRIP):
        strip = flat[start : start + _STRIP].astype(np.float64) * slope + (intercept - low)
        strip = strip / (high - low) if high > low else np.sign(strip)
        out[start : start + _STRIP] = np.rint(np.clip(np.nan_to_num(strip, nan=0.0), 0, 1) * 255)
    return shown


def central_crop(height: int, width: int, size: Size) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the largest central part of an image with the aspect ratio of `size`."""
    tall, wide = sides(size)
    part = min(height, max(1, width * tall // wide)), min(width, max(1, height * wide // tall))
    return (height - part[0]) // 2, (width - part[1]) // 2, *part


def resize(images: np.ndarray, size: Size, fit: Fit = "stretch") -> np.ndarray:
    """Return uint8 [N, C, H, W] images resized to `size`: bilinear, with antialiasing if they shrink.

    Images of another aspect ratio are stretched, padded or cropped as `fit` specifies.
    """
    wanted = sides(size)
    if images.shape[2:] == wanted:
        return images
    height, width = images.shape[2:]
    tall, wide = wanted
    if fit == "crop":
        top, left, inner, across = central_crop(height, width, size)
        images = images[:, :, top : top + inner, left : left + across]
    elif fit == "pad":
        if height * wanted[1] >= width * wanted[0]:
            wide = max(1, round(width * wanted[0] / height))
        else:
            tall = max(1, round(height * wanted[1] / width))
    top, left = round((wanted[0] - tall) / 2), round((wanted[1] - wide) / 2)
    import torch  # not needed for a dataset of the right size

    resized = np.zeros((*images.shape[:2], *wanted), dtype=np.uint8)
    for start in range(0, len(images), _CHUNK):
        chunk = torch.from_numpy(np.array(images[start : start + _CHUNK])).float()
        chunk = torch.nn.functional.interpolate(
            chunk, size=(tall, wide), mode="bilinear", align_corners=False, antialias=True
        )
        small = chunk.round().clamp(0, 255).to(torch.uint8).numpy()
        resized[start : start + _CHUNK, :, top : top + tall, left : left + wide] = small
    return resized


def to_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Return uint8 [N, C, H, W] images with 1 channel (luma of colour images) or 3 (grey repeated)."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=1)
    grey = np.empty((len(images), 1, *images.shape[2:]), dtype=np.uint8)
    for start in range(0, len(images), _CHUNK):
        red, green, blue = np.moveaxis(images[start : start + _CHUNK].astype(np.float32), 1, 0)
        grey[start : start + _CHUNK, 0] = np.rint(_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue)
    return grey


LARGE = 2**28
"""Size in bytes from which an array is stored in a file."""

_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Store large arrays of `empty` in files in `folder` within this block."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Return an uninitialised uint8 array. Raise InputError if the disk is full."""
    folder, size = _folder.get(), math.prod(shape)
    if folder is None or size < LARGE:
        return np.empty(shape, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        try:
            # Reserve now: a write to a mapped file on a full disk would kill the process.
            reserve = getattr(os, "posix_fallocate", None)
            reserve(file.fileno(), 0, size) if reserve else file.truncate(size)
        except OSError as error:
            raise InputError(
                f"{folder} has no room for {size / 2**30:,.1f} GiB of images ({error.strerror}). Free twice this "
                "space, or choose a smaller data.size."
            ) from error
        return np.memmap(file, np.uint8, "r+", shape=shape)
