"""Image files on disk, decoded into one array with bounded memory.

Only the result grows with the number of files: [N, C, size, size] bytes. Full-size pictures exist for a moment, one
per decoding thread.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from terrine.data.sketch import digest_of
from terrine.data.source import Progress
from terrine.errors import InputError
from terrine.extras import from_extra

with from_extra("pipeline", "Image files"):
    from PIL import Image, ImageOps, UnidentifiedImageError

# Files handed to the threads at a time, between two reports of progress.
_CHUNK = 512

# After this many unreadable files the rest is not tried: something more general is wrong.
_ENOUGH_FAILURES = 20

# More than eight bits a pixel: which range of values becomes black to white is a medical decision, not ours.
_DEEP_MODES = ("I", "F")


def read_images(
    paths: Sequence[Path],
    *,
    size: int,
    channels: int,
    progress: Progress | None = None,
    digests: np.ndarray | None = None,
) -> np.ndarray:
    """Return the images as uint8 [N, C, size, size], in the order of `paths`.

    Each is turned as its EXIF orientation says and resized bilinearly, antialiased; the whole image is kept, so one
    that is not square is stretched. `progress` is called with (files done, files in all). `digests`, uint64 [N], gets
    the digest of each file (`terrine.data.sketch`). Raises InputError that names the files that cannot be decoded.
    """
    mode = "L" if channels == 1 else "RGB"

    def read(path: Path) -> tuple[np.ndarray, int]:
        if digests is None:
            return _decode(path, size, mode), 0
        contents = path.read_bytes()
        return _decode(BytesIO(contents), size, mode), digest_of(contents, "file")

    images = np.empty((len(paths), channels, size, size), dtype=np.uint8)
    for index, (pixels, digest) in enumerate(_run(read, paths, progress)):
        images[index] = pixels
        if digests is not None:
            digests[index] = digest
    return images


def headers(paths: Sequence[Path]) -> Counter[tuple[int, int, str]]:
    """Return how many images there are of each width, height and mode (as Pillow names modes), from headers alone.

    Files that cannot be opened are left out: `read_images` names them.
    """

    def geometry(path: Path) -> tuple[int, int, str]:
        with Image.open(path) as image:
            return (*image.size, image.mode)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = pool.map(partial(_attempt, geometry), paths)
        return Counter(known for known, failure in found if failure is None)


def decode_image(data: bytes, *, size: int, channels: int, most_pixels: int) -> np.ndarray:
    """Return one encoded image, read like a file of `read_images`, as uint8 [channels, size, size].

    Raises InputError when the bytes are no image, a damaged one, or one of more than `most_pixels`, which is then not
    decoded.
    """
    pixels, failure = _attempt(lambda encoded: _decode_bytes(encoded, size, channels, most_pixels), data)
    if failure is not None:
        raise InputError(f"The image {failure}.")
    return pixels


def _decode_bytes(data: bytes, size: int, channels: int, most_pixels: int) -> np.ndarray:
    with Image.open(BytesIO(data)) as image:  # reads the header only
        width, height = image.size
    if width * height > most_pixels:
        raise InputError(f"has {width} x {height} pixels, more than {most_pixels:,}: send a smaller one")
    return _decode(BytesIO(data), size, "L" if channels == 1 else "RGB")


def _decode(path: Path | BytesIO, size: int, mode: str) -> np.ndarray:
    """Return one file as uint8 [C, size, size]."""
    with Image.open(path) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise InputError(
                f"has more than 8 bits per pixel (mode {image.mode}): choose the range of values to show and save as "
                "8 bits"
            )
        # Lets the JPEG decoder skip detail that the small copy cannot show; other formats ignore it.
        image.draft(mode, (2 * size, 2 * size))
        upright = ImageOps.exif_transpose(image)
        small = upright.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(small)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _run(function: Callable[[Path], Any], paths: Sequence[Path], progress: Progress | None) -> Iterator[Any]:
    """Yield `function` of each path, in order, from a few threads; raise InputError that names the files it fails on.

    Decoding leaves the interpreter lock, so threads suffice. A chunk at a time keeps the results in flight few.
    """
    failures: list[str] = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), _CHUNK):
            chunk = paths[start : start + _CHUNK]
            for path, (result, failure) in zip(chunk, pool.map(partial(_attempt, function), chunk), strict=True):
                if failure is None:
                    yield result
                else:
                    failures.append(f"{path} ({failure})")
            if progress is not None:
                progress(start + len(chunk), len(paths))
            if len(failures) >= _ENOUGH_FAILURES:
                break
    if failures:
        count = f"{len(failures)} of {len(paths)} image files cannot be used"
        more = f" and {len(failures) - 5} more" if len(failures) > 5 else ""
        raise InputError(f"{count}: {'; '.join(failures[:5])}{more}. Repair them, or remove them from the data.")


def _attempt(function: Callable[[Any], Any], path: Any) -> tuple[Any, str | None]:
    try:
        return function(path), None
    except InputError as error:
        return None, str(error)
    except UnidentifiedImageError:
        return None, "is no image that Pillow can identify"
    except Exception as error:  # Pillow's plugins raise errors of many kinds on damaged files
        return None, f"is damaged: {error}"
