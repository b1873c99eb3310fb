"""Decode image files into one array with bounded memory.

Only the result, [N, C, *size] bytes, grows with the number of files; a large one may be stored on disk
(`terrine.data.images`). Each decoding thread holds one full-size picture at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from terrine.data.content_digest import digest_of_image
from terrine.data.image_table import Record
from terrine.data.images import Files, Fit, central_crop, empty, medical_suffix, windowed
from terrine.data.source import Progress
from terrine.errors import InputError, some
from terrine.extras import from_extra
from terrine.files import file_digest
from terrine.geometry import Size, sides

with from_extra("pipeline", "Image files"):
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError


_COMPARED = 20_000
"""Number of files of equal size whose beginnings are compared, which takes a second or two."""

# Files that the threads decode between two progress reports.
_CHUNK = 512

# After this many unreadable files the others are not tried: the problem is more general.
_ENOUGH_FAILURES = 20

# More than eight bits a pixel: the displayed range is a medical decision.
_DEEP_MODES = ("I", "F")
_TOO_DEEP = "has more than 8 bits per pixel"
_WITHOUT_WINDOW = "set the displayed range of values, data.window=[low, high], or save as 8 bits"
_STUDENT_WINDOW = "the student was trained without data.window: save as 8 bits, or train it with data.window"

_VOLUMES = tuple(size.to_bytes(4, order) for size in (348, 540) for order in ("little", "big"))
"""First bytes of NIfTI files: the size of their header."""

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
    """Return image files for a student's predictions as uint8 [N, C, *size], in the order of `paths`.

    Args:
        paths: N files. The middle frame of a DICOM file is used.
        size: Size of the result.
        channels: 1 or 3.
        fit: Treatment of images of another shape.
        window: Values that become black and white; see `open_picture`.
        files: Format of the student's training data.
        volumes: Decoder of NIfTI volumes, with `files="nifti"`.
        progress: Called with (files done, number of files).
        failed: Receives the reason for each file that cannot be decoded. Such files are then left out, unless all fail.

    Raises:
        InputError: Files cannot be decoded; the message contains their names.
    """

    def picture(record: Record) -> tuple[Image.Image, np.ndarray]:
        if files == "dicom":
            from terrine.data.dicom_images import picture_at

            return picture_at(record.path, None, window)
        if volumes is not None:
            return volumes.picture(record)
        if (end := medical_suffix(record.path.name)) is not None:
            raise InputError(f"is a {end} file, but the student was trained on pictures")
        return open_picture(record.path.read_bytes(), window, _STUDENT_WINDOW)

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
    """Return the pictures of records, uint8 [N, C, *size], and the indices of those that were decoded, int64 [N].

    Args:
        records: Image files.
        picture: Decoder: returns a record's picture and its stored values.
        size: Size of the result; pictures are resized bilinearly with antialiasing.
        channels: 1 or 3.
        fit: Treatment of pictures of another shape.
        progress: Called with (files done, number of files).
        digests: uint64 [records], filled with the digest of each picture's stored values.
        skip: Whether records that cannot be decoded are left out, unless all fail.
        failed: Gets the reason for each of them.

    Raises:
        InputError: Records cannot be decoded; the message contains the names of their files.
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
    """Return counts of images by width, height and Pillow mode from their headers.

    Also return the first file of each mode, and the reason for each file that cannot be opened.
    """

    def geometry(path: Path) -> tuple[int, int, str]:
        with Image.open(path) as image:
            _refuse_pages(image)
            return (*image.size, image.mode)

    found = list(zip(paths, _in_threads(geometry, paths), strict=True))
    failed = {path: failure for path, (_, failure) in found if failure is not None}
    opened = [(known, path) for path, (known, failure) in found if failure is None]
    firsts = {mode: path for (_, _, mode), path in reversed(opened)}
    return Counter(known for known, _ in opened), firsts, failed


def undecodable(
    records: Sequence[Record], picture: Callable[[Record], tuple[Image.Image, np.ndarray]]
) -> dict[Path, str]:
    """Decode records in full, and return the reason for each that fails, except for a missing window."""
    return {
        record.path: failure
        for record, (_, failure) in zip(records, _in_threads(picture, records), strict=True)
        if failure is not None and not failure.startswith(_TOO_DEEP)
    }


def copies(paths: Sequence[Path]) -> list[list[Path]]:
    """Return sets of two or more files with equal bytes, among the first `_COMPARED` files of equal size.

    Only files of equal size and beginning are read in full.
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
    """Return one encoded image as uint8 [channels, *size], decoded like a file by `read_images`.

    DICOM and NIfTI files are refused: their codecs never get data from a network.

    Args:
        data: Content of an image file.
        size: Size of the result.
        channels: 1 or 3.
        most_pixels: Largest image that is decoded, in pixels.
        fit: Treatment of an image of another shape.
        window: Values that become black and white.
        files: Format of the student's training data.
        volumes: Decoder of NIfTI volumes, if the student was trained on these.

    Raises:
        InputError: the content is not an image, is damaged or too large.
    """

    def decode(encoded: bytes) -> np.ndarray:
        packed = volumes is not None and encoded[:2] == b"\x1f\x8b"
        kind = "DICOM" if encoded[128:132] == b"DICM" else "NIfTI" if packed or encoded.startswith(_VOLUMES) else None
        if kind is not None:
            how = " (terrine predict)" if files == kind.lower() else ""
            raise InputError(f"is a {kind} file, which is only read from a folder{how}")
        with Image.open(BytesIO(encoded)) as image:  # reads the header only
            width, height = image.size
        if width * height > most_pixels:
            raise InputError(f"has {width} x {height} pixels, more than {most_pixels:,}: send a smaller one")
        return fitted(open_picture(encoded, window, _STUDENT_WINDOW)[0], size, channels, fit)

    pixels, failure = _attempt(decode, data)
    if failure is not None:
        raise InputError(f"The image {failure}.")
    return pixels


def open_picture(
    contents: bytes, window: tuple[float, float] | None = None, remedy: str = _WITHOUT_WINDOW
) -> tuple[Image.Image, np.ndarray]:
    """Return an encoded image, upright and with 8 bits, and its decoded values, [H, W] or [H, W, 3].

    Args:
        contents: The file.
        window: Values that become black and white in an image of more than 8 bits per pixel.
        remedy: Advice in the error for an image of more than 8 bits without a window.

    Raises:
        InputError: more than 8 bits per pixel without a window, or several pictures in one file.
    """
    # Another library in this process may have set it (WeasyPrint does).
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
    """Raise InputError for a file with several pictures, because all but one would be ignored.

    Thumbnails of the picture are accepted: those that a TIFF file marks, and those in a camera's JPEG (MPO).
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
        raise InputError(f"has {pages} pages or frames: save each as a separate file, and give them one group")


def fitted(image: Image.Image, size: Size, channels: int, fit: Fit) -> np.ndarray:
    """Return a picture as uint8 [channels, *size]."""
    image, (height, width) = image.convert("L" if channels == 1 else "RGB"), sides(size)
    if fit == "crop":  # before resizing, so that pixels outside have no influence
        top, left, inner, across = central_crop(image.height, image.width, size)
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
    """Yield each record's index and the function's result, in order, computed in batches by a few threads.

    Args:
        function: Decoder; decoding releases the interpreter lock.
        records: Image files.
        progress: Called with (files done, number of files).
        skip: Whether records on which the function fails are left out, unless all fail.
        failed: Gets the reason for each of them.

    Raises:
        InputError: the function failed; the message names the files.
    """
    failures: list[str] = []
    for start in range(0, len(records), _CHUNK):
        chunk = records[start : start + _CHUNK]
        for number, (result, failure) in enumerate(_in_threads(function, chunk), start):
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
        raise InputError(
            f"{len(failures)} of {len(records)} image files cannot be used: {some(failures)}. Repair or remove them."
        )


def _in_threads(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[tuple[Any, str | None]]:
    """Yield the function's result for each item, in order, or the reason why it failed."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(partial(_attempt, function), items)


def _attempt(function: Callable[[Any], Any], path: Any) -> tuple[Any, str | None]:
    try:
        return function(path), None
    except InputError as error:
        return None, str(error)
    except UnidentifiedImageError:
        return None, "is not an image that Pillow can identify"
    except Image.DecompressionBombError:
        return None, "is too large: Pillow reads images of up to 179 million pixels. Make it smaller"
    except Exception as error:  # Pillow's plugins raise errors of many types on damaged files
        return None, f"is damaged: {error}"
