"""Image files on disk, decoded into one array with bounded memory.

Only the result grows with the number of files, [N, C, *size] bytes, and a large one may lie on disk
(`terrine.data.images`). Full-size pictures exist for a moment, one per decoding thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from terrine.data.content_digest import digest_of_image
from terrine.data.image_table import Record
from terrine.data.images import Files, Fit, empty, middle, scanners_end, windowed
from terrine.data.source import Progress
from terrine.errors import InputError
from terrine.extras import from_extra
from terrine.files import file_digest
from terrine.geometry import Size, sides

with from_extra("pipeline", "Image files"):
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError


_COMPARED = 20_000
"""Files of equal size whose beginnings are compared: a second or two."""

# Files handed to the threads at a time, between two reports of progress.
_CHUNK = 512

# After this many unreadable files the rest is not tried: something more general is wrong.
_ENOUGH_FAILURES = 20

# More than eight bits a pixel: which range of values becomes black to white is a medical decision, not ours.
_DEEP_MODES = ("I", "F")
_TOO_DEEP = "has more than 8 bits per pixel"
_WITHOUT_WINDOW = "choose the range of values to show, data.window=[low, high], or save as 8 bits"
_OF_STUDENT = (
    "the student was made without data.window=[low, high], the range of values to show: save as 8 bits, as its records "
    "were, or make it with that"
)
_OF_PICTURES = (
    "the student learnt from pictures, or is older than what it must say of scanners' files; then run the stage "
    "'student' again"
)

_VOLUMES = tuple(size.to_bytes(4, order) for size in (348, 540) for order in ("little", "big"))
"""How NIfTI files begin: with the size of their header."""

_OF_PAGES = ("TIFF", "GIF", "PNG", "WEBP")
_SUBFILE = 254  # TIFF's tag NewSubfileType; bit 0: a copy of another page in lower resolution


class Volumes(Protocol):
    """A source of NIfTI volumes (`terrine.data.sources.nifti`)."""

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        """Return a volume as a picture, and its stored values."""


def read_images(
    paths: Sequence[Path],
    *,
    size: Size,
    channels: int,
    fit: Fit = "stretch",
    window: tuple[float, float] | None = None,
    files: Files = "images",
    volumes: Volumes | None = None,
    progress: Progress | None = None,
    failed: dict[Path, str] | None = None,
) -> np.ndarray:
    """Return the image files that a student is asked about as uint8 [N, C, *size], in the order of `paths`.

    Each is turned as its EXIF orientation says, and resized as `fit` says. `window`: see `open_picture`. Of DICOM files
    with several frames the middle one is taken; of a NIfTI volume what `volumes`, which files="nifti" needs, shows
    of it. `progress` is called with (files done, files in all). Raises InputError that names the files that
    cannot be decoded. With `failed`, these are left out instead, if others remain, and it is given why.
    """

    def picture(record: Record) -> tuple[Image.Image, np.ndarray]:
        if files == "dicom":
            from terrine.data.dicom_images import picture_at

            return picture_at(record.path, None, window)
        if volumes is not None:
            return volumes.picture(record)
        if (end := scanners_end(record.path.name)) is not None:
            raise InputError(f"is no picture, but {end} of a scanner: {_OF_PICTURES}")
        return open_picture(record.path.read_bytes(), window, _OF_STUDENT)

    records = [Record(path, "", "") for path in paths]
    shape: dict[str, Any] = {"size": size, "channels": channels, "fit": fit}
    return read_pictures(records, picture, progress=progress, skip=failed is not None, failed=failed, **shape)[0]


def read_pictures(
    records: Sequence[Record],
    picture: Callable[[Record], tuple[Image.Image, np.ndarray]],
    *,
    size: Size,
    channels: int,
    fit: Fit = "stretch",
    progress: Progress | None = None,
    digests: np.ndarray | None = None,
    skip: bool = False,
    failed: dict[Path, str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `picture` shows of the records, uint8 [N, C, *size], and their numbers, int64 [N].

    Pictures are resized bilinearly, antialiased. `progress` is called with (files done, files in all). `digests`,
    uint64 [N], gets the digest of each picture's contents. With `skip`, records that cannot be shown are left out, and
    `failed` is given why. Otherwise raises InputError that names their files; always if none is left.
    """

    def read(record: Record) -> tuple[np.ndarray, int]:
        image, contents = picture(record)
        return fitted(image, size, channels, fit), 0 if digests is None else digest_of_image(contents)

    images = empty((len(records), channels, *sides(size)))
    kept: list[int] = []
    for number, (pixels, digest) in each_file(read, records, progress, skip=skip, failed=failed):
        images[len(kept)] = pixels
        if digests is not None:
            digests[len(kept)] = digest
        kept.append(number)
    return images[: len(kept)], np.array(kept, dtype=np.int64)


def headers(paths: Sequence[Path]) -> tuple[Counter[tuple[int, int, str]], dict[str, Path], dict[Path, str]]:
    """Return how many images there are of each width, height and mode (as Pillow names modes), from headers alone, the
    first file of each mode, and why files cannot be opened."""

    def geometry(path: Path) -> tuple[int, int, str]:
        with Image.open(path) as image:
            _refuse_pages(image)
            return (*image.size, image.mode)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = list(pool.map(partial(_attempt, geometry), paths))
    failed = {path: failure for path, (_, failure) in zip(paths, found, strict=True) if failure is not None}
    opened = [(known, path) for path, (known, failure) in zip(paths, found, strict=True) if failure is None]
    firsts = {mode: path for (_, _, mode), path in reversed(opened)}
    return Counter(known for known, _ in opened), firsts, failed


def not_shown(
    records: Sequence[Record], picture: Callable[[Record], tuple[Image.Image, np.ndarray]]
) -> dict[Path, str]:
    """Decode records in full, and return why some cannot be shown; not that they want a window, which headers tell."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda record: _attempt(picture, record)[1], records))
    return {
        record.path: failure
        for record, failure in zip(records, found, strict=True)
        if failure is not None and not failure.startswith(_TOO_DEEP)
    }


def copies(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the sets of files that have the same bytes, at least two each, of the first `_COMPARED` candidates.

    Only files of one size and one beginning are read in full.
    """

    def beginning(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(4096)

    sets = [list(dict.fromkeys(paths))]
    for digest in (lambda path: path.stat().st_size, beginning, file_digest):
        found: dict[Any, list[Path]] = {}
        for number, own in enumerate(sets):
            for path in own:
                with contextlib.suppress(OSError):
                    found.setdefault((number, digest(path)), []).append(path)
        sets = [own for own in found.values() if len(own) > 1]
        ends = itertools.accumulate(map(len, sets))
        sets = [own for own, end in zip(sets, ends, strict=True) if end <= _COMPARED]
    return sets


def decode_image(
    data: bytes,
    *,
    size: Size,
    channels: int,
    most_pixels: int,
    fit: Fit = "stretch",
    window: tuple[float, float] | None = None,
    files: Files = "images",
    volumes: Volumes | None = None,
) -> np.ndarray:
    """Return one encoded image, read like a file of `read_images`, as uint8 [channels, *size].

    DICOM and NIfTI files are not read: what comes over a network is not given to their codecs. Raises InputError when
    the bytes are no image, a damaged one, or one of more than `most_pixels`, which is then not decoded.
    """

    def decode(encoded: bytes) -> np.ndarray:
        packed = volumes is not None and encoded[:2] == b"\x1f\x8b"
        kind = "DICOM" if encoded[128:132] == b"DICM" else "NIfTI" if packed or encoded.startswith(_VOLUMES) else None
        if kind is not None:
            how = " (terrine predict)" if files == kind.lower() else ""
            raise InputError(f"is a {kind} file, which is read from a folder{how} and not sent")
        with Image.open(BytesIO(encoded)) as image:  # reads the header only
            width, height = image.size
        if width * height > most_pixels:
            raise InputError(f"has {width} x {height} pixels, more than {most_pixels:,}: send a smaller one")
        return fitted(open_picture(encoded, window, _OF_STUDENT)[0], size, channels, fit)

    pixels, failure = _attempt(decode, data)
    if failure is not None:
        raise InputError(f"The image {failure}.")
    return pixels


def open_picture(
    contents: bytes, window: tuple[float, float] | None = None, remedy: str = _WITHOUT_WINDOW
) -> tuple[Image.Image, np.ndarray]:
    """Return an encoded image, upright and of 8 bits, and its decoded values, [H, W] or [H, W, 3].

    Args:
        contents: The file.
        window: Values that become black and white in an image of more than 8 bits per pixel.
        remedy: What to do about such an image if there is no window.

    Raises:
        InputError: more than 8 bits per pixel without a window, or several pictures in one file.
    """
    # A library in this process may have set it (WeasyPrint does): no half image.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    with Image.open(BytesIO(contents)) as image:
        _refuse_pages(image)
        deep = image.mode.startswith(_DEEP_MODES)
        if deep and window is None:
            raise InputError(f"{_TOO_DEEP} (mode {image.mode}): {remedy}")
        upright = ImageOps.exif_transpose(image)
        if deep and window is not None:
            values = np.asarray(upright)
            return Image.fromarray(windowed(values, *window)), values
        shown = upright.convert("L" if upright.mode in ("1", "L", "LA") else "RGB")
        return shown, np.asarray(shown)


def _refuse_pages(image: Image.Image) -> None:
    """Raise InputError for a file of several pictures, of which one would be taken without a word.

    Small copies of the picture itself are none: those that a TIFF file says are, and those in a camera's JPEG (MPO).
    """
    if image.format not in _OF_PAGES or (pages := getattr(image, "n_frames", 1)) == 1:
        return
    if image.format == "TIFF":
        own = 0
        for page in reversed(range(pages)):
            image.seek(page)
            own += not image.tag_v2.get(_SUBFILE, 0) & 1  # type: ignore[attr-defined]
        pages = own
    if pages > 1:
        raise InputError(
            f"has {pages} pages or frames: save each as a file of its own, with a group that says what belongs together"
        )


def fitted(image: Image.Image, size: Size, channels: int, fit: Fit) -> np.ndarray:
    """Return a picture as uint8 [channels, *size]."""
    image, (height, width) = image.convert("L" if channels == 1 else "RGB"), sides(size)
    if fit == "crop":  # first: what is outside has no part in what is shown
        top, left, inner, across = middle(image.height, image.width, size)
        image = image.crop((left, top, left + across, top + inner))
    if fit == "pad":
        small = ImageOps.pad(image, (width, height), Image.Resampling.BILINEAR)
    else:
        small = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(small)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def each_file(
    function: Callable[[Record], Any],
    records: Sequence[Record],
    progress: Progress | None = None,
    *,
    skip: bool = False,
    failed: dict[Path, str] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield each record's number and its `function`, in order, from a few threads.

    Decoding leaves the interpreter lock, so threads suffice. A chunk at a time keeps the results in flight few. Raises
    InputError that names the files it fails on; with `skip`, those are left out, if others remain. failed: is given
    why, by file.
    """
    failures: list[str] = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(records), _CHUNK):
            chunk = records[start : start + _CHUNK]
            for number, (result, failure) in enumerate(pool.map(partial(_attempt, function), chunk), start):
                if failure is None:
                    yield number, result
                else:
                    failures.append(f"{records[number].path} ({failure})")
                    if failed is not None:
                        failed[records[number].path] = failure
            if progress is not None:
                progress(start + len(chunk), len(records))
            if len(failures) >= _ENOUGH_FAILURES and not skip:
                break
    if failures and (not skip or len(failures) == len(records)):
        count = f"{len(failures)} of {len(records)} image files cannot be used"
        more = f" and {len(failures) - 5} more" if len(failures) > 5 else ""
        raise InputError(f"{count}: {'; '.join(failures[:5])}{more}. Repair them, or remove them from the data.")


def _attempt(function: Callable[[Any], Any], path: Any) -> tuple[Any, str | None]:
    try:
        return function(path), None
    except InputError as error:
        return None, str(error)
    except UnidentifiedImageError:
        return None, "is no image that Pillow can identify"
    except Image.DecompressionBombError:
        return None, "is too large: Pillow reads images of up to 179 million pixels. Make it smaller"
    except Exception as error:  # Pillow's plugins raise errors of many kinds on damaged files
        return None, f"is damaged: {error}"
