"""Check the header of an untrusted DICOM file, and decode one frame as an upright 8-bit picture.

Claimed sizes are compared with the size of the file before memory is reserved. Errors contain no values of a header,
because these may identify people. pydicom's exceptions, warnings and logs quote such values, so they are suppressed.

Follows DICOM PS3.3, C.7.6.3 (photometric interpretation), C.11.1 (modality LUT, rescale), C.11.2 (window, VOI LUT) and
C.7.6.16.2 (functional groups of multi-frame images).
"""

import contextlib
import io
import logging
import math
import struct
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrine.data.images import windowed
from terrine.errors import InputError
from terrine.extras import from_extra

with from_extra("medical", "DICOM files"):
    import pydicom
    from PIL import Image
    from pydicom.dataset import Dataset
    from pydicom.encaps import get_frame
    from pydicom.filereader import read_file_meta_info, read_partial
    from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi, get_decoder, pixel_array
    from pydicom.tag import Tag
    from pydicom.uid import DeflatedExplicitVRLittleEndian

pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
warnings.filterwarnings("ignore", module=r"pydicom\.")

MOST_PIXELS = 2**26
"""Largest frame: three times the largest radiographs."""
MOST_FRAMES = 2**16
_MOST_BYTES = 2**28  # per read: the largest frame with four bytes per pixel

GREY = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")

_PIXELS = {0x7FE00008, 0x7FE00009, 0x7FE00010}
_UNDEFINED = 0xFFFFFFFF
_ITEM, _END = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0"
_MAY_CONTAIN_TEXT = ("US", "IVUS", "OT", "SC", "XC", "ES")
_SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_NAMES = (
    *("PatientID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "SOPClassUID", "Modality"),
    *("BurnedInAnnotation", "Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored"),
    *("PixelRepresentation", "PhotometricInterpretation", "NumberOfFrames"),
)


class Header(NamedTuple):
    """Checked elements of a file's header. Private and never stored.

    `burned` tells whether the pixels contain text: True, False, or None if
    the file does not state it and its type often does.
    """

    path: Path
    patient: str
    sop: str
    series: str
    study: str
    rows: int
    columns: int
    frames: int
    grey: bool
    compressed: bool
    burned: bool | None


class BoundedFile(io.BufferedReader):
    """A file that never reads more at once than a frame needs or the file contains."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.length = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.length - self.tell())
        if (wanted := left if size is None or size < 0 else min(size, left)) > _MOST_BYTES:
            raise ValueError("an element is longer than a frame")
        return super().read(wanted)


def read_header(path: Path) -> Header | None:
    """Return the checked header of the file at `path`, or None for a DICOM file without an image.

    Raises:
        InputError: the file cannot be used; the message contains neither the path nor values of the header.
    """
    try:
        syntax = read_file_meta_info(path).get("TransferSyntaxUID")
    except pydicom.errors.InvalidDicomError:
        raise InputError("is not a DICOM file") from None
    except Exception:  # pydicom raises errors of many types on damaged files
        raise InputError("is damaged: its first elements cannot be read") from None
    if not syntax or syntax == DeflatedExplicitVRLittleEndian:
        raise InputError(
            "is deflated as a whole, which is not supported: save it uncompressed"
            if syntax
            else "has no TransferSyntaxUID, so its encoding is unknown"
        )
    seen: list[int] = []

    def at_pixels(tag: int, vr: str | None, length: int) -> bool:
        if tag in _PIXELS:
            seen[:] = tag, length
        return tag in _PIXELS

    try:
        with BoundedFile(path) as file:
            header = read_partial(file, at_pixels, specific_tags=[Tag(name) for name in _NAMES])
            left = file.length - file.tell()
            fragments = _fragments(file) if seen and seen[1] == _UNDEFINED else None
        values = {name: header.get(name) for name in _NAMES}
        if not seen and values["Rows"] is None and values["Columns"] is None:
            return None
        return _checked(path, values, syntax, seen, left if fragments is None else fragments)
    except InputError:
        raise
    except Exception:
        raise InputError("is damaged: its header cannot be read") from None


def _fragments(file: BoundedFile) -> int:
    """Return the number of fragments of the compressed pixels that follow; 0 if the file ends within one."""
    file.seek(12, io.SEEK_CUR)
    count = -1  # the first item is a table of offsets
    while (head := file.read(8))[:4] == _ITEM and len(head) == 8:
        file.seek(int.from_bytes(head[4:], "little"), io.SEEK_CUR)
        count += 1
    # Some writers omit the end.
    return max(count, 0) if head[:4] == _END or file.tell() == file.length else 0


def _checked(path: Path, values: dict[str, Any], syntax: Any, seen: list[int], there: int) -> Header:
    """Check header elements against transfer syntax, pixel tag and length, and the bytes or fragments that follow."""
    if not seen:
        raise InputError("has no PixelData, or ends before it")
    if seen[0] != 0x7FE00010:
        raise InputError("contains floating-point pixels, which are not supported: save integers with a rescale slope")
    photometric = str(values["PhotometricInterpretation"])
    samples = _whole(values, "SamplesPerPixel", 1, 3)
    if samples != (3 if photometric in COLOUR else 1) or photometric not in (*GREY, PALETTE, *COLOUR):
        raise InputError("has an unknown PhotometricInterpretation, or SamplesPerPixel that do not match it")
    rows, columns = _whole(values, "Rows", 1, 2**16 - 1), _whole(values, "Columns", 1, 2**16 - 1)
    if rows * columns > MOST_PIXELS:
        raise InputError(f"claims more than {MOST_PIXELS:,} pixels per frame: save a smaller copy")
    bits = _whole(values, "BitsAllocated", 1, 32)
    if bits not in (1, 8, 16, 32) or _whole(values, "BitsStored", 1, 32) > bits:
        raise InputError("has an invalid BitsAllocated or BitsStored")
    _whole(values, "PixelRepresentation", 0, 1)
    frames = 1 if values["NumberOfFrames"] is None else _whole(values, "NumberOfFrames", 1, MOST_FRAMES)
    try:
        available = get_decoder(syntax).is_available
    except NotImplementedError:
        raise InputError("has an unsupported compression: save it uncompressed") from None
    if not available:
        raise InputError("has a compression that needs a package: pip install 'terrine[medical]'")
    compressed = bool(syntax.is_compressed)
    samples = 2 if photometric == "YBR_FULL_422" else samples  # colour is subsampled
    least = frames if compressed else math.ceil(frames * rows * columns * samples * bits / 8)
    if compressed != (seen[1] == _UNDEFINED) or least > min(there, seen[1]):
        raise InputError("is truncated, or claims more pixels than it contains")
    text = {name: str(values[name] or "").strip() for name in _NAMES}
    if not text["PatientID"]:
        raise InputError("has no PatientID: give each patient an ID or a pseudonym")
    if not text["SOPInstanceUID"]:
        raise InputError("has no SOPInstanceUID")
    silent = text["Modality"] in _MAY_CONTAIN_TEXT or text["SOPClassUID"].startswith(_SECONDARY_CAPTURE)
    burned = {"YES": True, "NO": False}.get(text["BurnedInAnnotation"].upper(), None if silent else False)
    sop, series, study = (text[name] for name in ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"))
    return Header(
        path, text["PatientID"], sop, series, study, rows, columns, frames, photometric in GREY, compressed, burned
    )


def _whole(values: dict[str, Any], name: str, low: int, high: int) -> int:
    value = values[name]
    if not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"has an invalid {name}")
    return int(value)


def list_directory(path: Path) -> list[list[str]]:
    """Return the path of each image in a DICOMDIR as a list of parts. Raise InputError if the DICOMDIR is damaged."""
    try:
        with BoundedFile(path) as file:
            records = read_partial(file, specific_tags=[Tag("DirectoryRecordSequence")]).DirectoryRecordSequence
            images = [record for record in records if record.get("DirectoryRecordType") == "IMAGE"]
            named = [record.ReferencedFileID for record in images]
        return [[name] if isinstance(name, str) else [str(part) for part in name] for name in named]
    except Exception:
        raise InputError(f"{path} is not a readable DICOMDIR. Use the folder of the files instead.") from None


_MACROS = {
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
    "PlaneOrientationSequence": ("ImageOrientationPatient",),
}
"""Functional groups of a frame, and the elements of the file that they override."""
_GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_TAGS = (0x00200020, 0x00200037, 0x52009229, 0x52009230)  # orientations, and functional groups

Window = tuple[float, float] | None


def picture_at(path: Path, frame: int | None, window: Window) -> tuple[Image.Image, np.ndarray]:
    """Return a frame as a picture of mode L or RGB, and its stored values.

    Args:
        path: The file.
        frame: Number of the frame from 0; None: the middle one.
        window: Modality values that become black and white; None: the file's own, or the range of the frame's values.

    Raises:
        InputError: the file cannot be used; the message contains neither the path nor values of the header.
    """
    header = read_header(path)
    if header is None:
        raise InputError("is a DICOM file without an image")
    return decode_frame(header, header.frames // 2 if frame is None else frame, window)


def decode_frame(header: Header, frame: int, window: Window) -> tuple[Image.Image, np.ndarray]:
    """Return a frame of a file whose header has been read; see `picture_at`."""
    about = Dataset()
    try:
        with BoundedFile(header.path) as file:
            if header.compressed:
                _check_stream(file, header, frame)
            stored = pixel_array(file, index=frame, ds_out=about, specific_tags=list(_TAGS))
            _apply_groups(about, frame)
    except InputError:
        raise
    except BaseException as error:  # a codec in Rust that panics does not raise an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise InputError("is damaged: its pixels cannot be decoded") from None
    if stored.shape[:2] != (header.rows, header.columns):
        raise InputError("has pixels that contradict the size in its header")
    try:
        shown = _shown(stored, about, window)
        return Image.fromarray(_upright(shown, about)), stored
    except InputError:
        raise
    except Exception:
        raise InputError("is damaged: its grey values or colours cannot be computed") from None


def _shown(stored: np.ndarray, about: Dataset, window: Window) -> np.ndarray:
    """Return stored values as uint8 [H, W] or [H, W, 3]."""
    if about.PhotometricInterpretation == PALETTE:
        return _eight_bits(apply_color_lut(stored, about)[..., :3], about.RedPaletteColorLookupTableDescriptor[2])
    if about.PhotometricInterpretation not in GREY:
        return _eight_bits(stored, about.BitsStored)
    slope, intercept, values = 1.0, 0.0, stored
    if about.get("ModalityLUTSequence"):
        values = apply_modality_lut(stored, about)
    elif "RescaleSlope" in about and "RescaleIntercept" in about:
        slope, intercept = _numbers(about, "RescaleSlope", "RescaleIntercept")
        if slope == 0:
            raise InputError("has a RescaleSlope of zero")
    if window is None and about.get("VOILUTSequence"):
        entries = np.rint(apply_modality_lut(stored, about)).astype(np.int64)
        shown = _eight_bits(apply_voi(entries, about), about.VOILUTSequence[0].LUTDescriptor[2])
    elif window is None and about.get("WindowWidth") is not None and about.get("WindowCenter") is not None:
        shown = _file_window(values, about, slope, intercept)
    else:
        ends = (slope * float(values.min()) + intercept, slope * float(values.max()) + intercept)
        shown = windowed(values, *(window or sorted(ends)), slope=slope, intercept=intercept)
    return 255 - shown if about.PhotometricInterpretation == "MONOCHROME1" else shown


def _file_window(values: np.ndarray, about: Dataset, slope: float, intercept: float) -> np.ndarray:
    """Return values as uint8 in the first window of the file."""
    centre, width = _numbers(about, "WindowCenter", "WindowWidth")
    function = str(about.get("VOILUTFunction") or "LINEAR").upper()
    if width < (1 if function == "LINEAR" else 1e-9):
        raise InputError("has a window without width: set data.window")
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            bright = 1 / (1 + np.exp(-4 * (values.astype(np.float32) * slope + intercept - centre) / width))
        return np.rint(255 * bright).astype(np.uint8)
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    return windowed(values, centre - width / 2, centre + width / 2, slope=slope, intercept=intercept)


def _numbers(about: Dataset, *names: str) -> list[float]:
    """Return the first value of each element. Raise InputError if the element is not a finite number."""
    found = []
    for name in names:
        with contextlib.suppress(Exception):
            value = about[name].value
            found.append(float(value if about[name].VM == 1 else value[0]))
        if len(found) <= names.index(name) or not np.isfinite(found[-1]):
            raise InputError(f"has a {name} that is not a finite number")
    return found


def _eight_bits(values: np.ndarray, bits: int) -> np.ndarray:
    if not 1 <= bits <= 32:
        raise InputError("has an invalid number of bits")
    return windowed(values, 0, 2.0**bits - 1) if bits != 8 or values.dtype != np.uint8 else values


def _apply_groups(about: Dataset, frame: int) -> None:
    """Override elements of the file by the functional groups of a frame."""
    for name in _GROUPS:
        items = about.get(name) or []
        number = frame if name == _GROUPS[1] else 0
        for macro, attributes in _MACROS.items():
            for item in items[number].get(macro) or [] if number < len(items) else []:
                for attribute in attributes:
                    if attribute in item:
                        setattr(about, attribute, item[attribute].value)


def _upright(shown: np.ndarray, about: Dataset) -> np.ndarray:
    """Rotate a picture so that rows point to the patient's left or back, and columns to the back or the feet."""
    along, down = _direction(about, 0), _direction(about, 1)
    if not along or not down or _AXES[along] == _AXES[down]:
        return shown
    if _AXES[along] > _AXES[down]:
        shown, along, down = shown.swapaxes(0, 1), down, along
    shown = shown if along in "LPF" else shown[:, ::-1]
    return np.ascontiguousarray(shown if down in "LPF" else shown[::-1])


_AXES = {"L": 0, "R": 0, "P": 1, "A": 1, "F": 2, "H": 2}


def _direction(about: Dataset, number: int) -> str:
    """Return the direction of rows (0) or columns (1): L, R, P, A, F, H, or "" if the file does not contain it."""
    cosines = about.get("ImageOrientationPatient")
    if cosines is not None and len(cosines) == 6:
        vector = np.array([float(value) for value in cosines[3 * number : 3 * number + 3]])
        axis = int(np.abs(vector).argmax())
        return ("LR", "PA", "HF")[axis][int(vector[axis] < 0)] if np.isfinite(vector).all() and vector.any() else ""
    letters = about.get("PatientOrientation") or ["", ""]
    letter = str(letters[number])[:1] if len(letters) == 2 else ""
    return letter if letter in _AXES else ""


def _check_stream(file: BoundedFile, header: Header, frame: int) -> None:
    """Raise InputError if compressed pixels claim a size other than the header's, which a decoder would allocate."""
    read_partial(file, lambda tag, vr, length: tag == 0x7FE00010, specific_tags=[])
    file.read(12)
    size = stream_size(get_frame(file, frame, number_of_frames=header.frames))
    if size is not None and size != (header.rows, header.columns):
        raise InputError("has compressed pixels that are damaged or contradict the size in its header")
    file.seek(0)


def stream_size(stream: bytes) -> tuple[int, int] | None:
    """Return rows and columns of a JPEG, JPEG-LS or JPEG 2000 stream; None for other streams.

    Rows and columns are (0, 0) if the size is missing or no pixels follow: a decoder may then return uninitialised
    memory.
    """
    start = stream.find(b"\xff\x4f\xff\x51", 0, 4096)
    if start < 0 and not stream.startswith(b"\xff\xd8"):
        return (0, 0) if stream.startswith((b"\xff\x4f", b"\x00\x00\x00\x0cjP")) else None
    place, size = max(start, 0) + 2, (0, 0)
    while place + 9 <= len(stream) and stream[place] == 0xFF:
        marker, (length,) = stream[place + 1], struct.unpack_from(">H", stream, place + 2)
        if marker == (0x90 if start >= 0 else 0xDA):  # pixels follow
            return size
        if start >= 0:
            if marker == 0x51 and place + 20 <= len(stream):
                right, bottom, left, top = struct.unpack_from(">4I", stream, place + 6)
                size = bottom - top, right - left
        elif marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            size = struct.unpack_from(">HH", stream, place + 5)
        place += 1 if marker == 0xFF else 2 + length
    return 0, 0
