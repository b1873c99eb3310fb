"""What must be known of a DICOM file before its pixels are decoded, checked without trusting what it says of itself.

Sizes are compared with the bytes that are there, so that no file reserves memory for what it only claims. An error
names what is wrong and never a value of the header: values may name people. Causes, warnings and logs of pydicom quote
such values: no error is raised from them, and they are silenced here.

One frame of a DICOM file as a picture of 8 bits: stored values, modality values, a window, grey or colour, upright.

Follows DICOM PS3.3, C.7.6.3 (photometric interpretation), C.11.1 (modality LUT, rescale), C.11.2 (window, VOI LUT) and
C.7.6.16.2 (functional groups of multi-frame images). A frame is decoded by itself, whatever number of them there are.
"""

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
    from pydicom.filereader import read_file_meta_info, read_partial
    from pydicom.pixels import get_decoder
    from pydicom.tag import Tag
    from pydicom.uid import DeflatedExplicitVRLittleEndian

pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
warnings.filterwarnings("ignore", module=r"pydicom\.")

MOST_PIXELS = 2**26
"""Of a frame; the largest radiographs have a third of it."""
MOST_FRAMES = 2**16
_MOST_BYTES = 2**28  # read at a time: a frame of so many pixels with four bytes each

GREY = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")

_PIXELS = {0x7FE00008, 0x7FE00009, 0x7FE00010}
_UNDEFINED = 0xFFFFFFFF
_ITEM, _END = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0"
_SAYS_NOTHING_OF_TEXT = ("US", "IVUS", "OT", "SC", "XC", "ES")
_SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_NAMES = (
    *("PatientID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "SOPClassUID", "Modality"),
    *("BurnedInAnnotation", "Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored"),
    *("PixelRepresentation", "PhotometricInterpretation", "NumberOfFrames"),
)


class Header(NamedTuple):
    """What a file says of itself: private, and never kept.

    burned   whether text may be in the pixels: True, False, or None where the file does not say and such files often do
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
    """A file of which no more is read at a time than there is, or than a frame needs."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.length = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.length - self.tell())
        if (wanted := left if size is None or size < 0 else min(size, left)) > _MOST_BYTES:
            raise ValueError("an element is longer than any that is read")
        return super().read(wanted)


def read_header(path: Path) -> Header | None:
    """Return what the file at `path` says of itself, or None for a DICOM file that holds no image.

    Raises InputError that says, without the path and without a value of the header, why it cannot be used.
    """
    try:
        syntax = read_file_meta_info(path).get("TransferSyntaxUID")
    except pydicom.errors.InvalidDicomError:
        raise InputError("is no DICOM file: it does not begin as one") from None
    except Exception:  # a damaged file makes pydicom raise errors of many kinds
        raise InputError("is damaged: its first elements cannot be read") from None
    if not syntax or syntax == DeflatedExplicitVRLittleEndian:
        raise InputError(
            "is deflated as a whole, which is not read: save it uncompressed"
            if syntax
            else "does not say how it is encoded: it has no TransferSyntaxUID"
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
    """Return how many fragments compressed pixels have, whose element comes next; 0 where the file ends in one."""
    file.seek(12, io.SEEK_CUR)
    count = -1  # the first item is a table of offsets
    while (head := file.read(8))[:4] == _ITEM and len(head) == 8:
        file.seek(int.from_bytes(head[4:], "little"), io.SEEK_CUR)
        count += 1
    # Some writers leave out the end.
    return max(count, 0) if head[:4] == _END or file.tell() == file.length else 0


def _checked(path: Path, values: dict[str, Any], syntax: Any, seen: list[int], there: int) -> Header:
    """Return the header of an image.

    seen: tag and length of its pixels. there: the bytes from there on, or the fragments of compressed pixels.
    """
    if not seen:
        raise InputError("has no PixelData, or ends before it")
    if seen[0] != 0x7FE00010:
        raise InputError("holds floating-point pixels, which are not read: save integers with a rescale slope")
    photometric = str(values["PhotometricInterpretation"])
    samples = _whole(values, "SamplesPerPixel", 1, 3)
    if samples != (3 if photometric in COLOUR else 1) or photometric not in (*GREY, PALETTE, *COLOUR):
        raise InputError("has a PhotometricInterpretation that is not known, or other SamplesPerPixel than it needs")
    rows, columns = _whole(values, "Rows", 1, 2**16 - 1), _whole(values, "Columns", 1, 2**16 - 1)
    if rows * columns > MOST_PIXELS:
        raise InputError(f"claims more than {MOST_PIXELS:,} pixels a frame: save a smaller copy")
    bits = _whole(values, "BitsAllocated", 1, 32)
    if bits not in (1, 8, 16, 32) or _whole(values, "BitsStored", 1, 32) > bits:
        raise InputError("has a BitsAllocated or BitsStored that no image has")
    _whole(values, "PixelRepresentation", 0, 1)
    frames = 1 if values["NumberOfFrames"] is None else _whole(values, "NumberOfFrames", 1, MOST_FRAMES)
    _check_decoder(syntax)
    compressed = bool(syntax.is_compressed)
    samples = 2 if photometric == "YBR_FULL_422" else samples  # every other pixel has no colour
    least = frames if compressed else math.ceil(frames * rows * columns * samples * bits / 8)
    if compressed != (seen[1] == _UNDEFINED) or least > min(there, seen[1]):
        raise InputError("is cut off, or claims more pixels than it holds")
    text = {name: str(values[name] or "").strip() for name in _NAMES}
    if not text["PatientID"]:
        raise InputError("has no PatientID, so nobody knows whose it is: give each patient an ID or a pseudonym")
    if not text["SOPInstanceUID"]:
        raise InputError("has no SOPInstanceUID, by which an image is named")
    silent = text["Modality"] in _SAYS_NOTHING_OF_TEXT or text["SOPClassUID"].startswith(_SECONDARY_CAPTURE)
    burned = {"YES": True, "NO": False}.get(text["BurnedInAnnotation"].upper(), None if silent else False)
    sop, series, study = (text[name] for name in ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"))
    return Header(
        path, text["PatientID"], sop, series, study, rows, columns, frames, photometric in GREY, compressed, burned
    )


def _whole(values: dict[str, Any], name: str, low: int, high: int) -> int:
    value = values[name]
    if not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"has no {name} that an image can have")
    return int(value)


def _check_decoder(syntax: Any) -> None:
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise InputError("is compressed in a way that is not read: save it uncompressed") from None
    if not decoder.is_available:
        raise InputError("is compressed in a way that needs a package: pip install 'terrine[medical]'")


def list_directory(path: Path) -> list[list[str]]:
    """Return the path of each image that a DICOMDIR lists, as its parts. Raises InputError for one that is damaged."""
    try:
        with BoundedFile(path) as file:
            records = read_partial(file, specific_tags=[Tag("DirectoryRecordSequence")]).DirectoryRecordSequence
            images = [record for record in records if record.get("DirectoryRecordType") == "IMAGE"]
            named = [record.ReferencedFileID for record in images]
        return [[name] if isinstance(name, str) else [str(part) for part in name] for name in named]
    except Exception:
        raise InputError(f"{path} is no DICOMDIR that can be read. Name the folder of the files instead.") from None


with from_extra("medical", "DICOM files"):
    from PIL import Image
    from pydicom.dataset import Dataset
    from pydicom.encaps import get_frame
    from pydicom.filereader import read_partial
    from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi, pixel_array

_MACROS = {
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
    "PlaneOrientationSequence": ("ImageOrientationPatient",),
}
"""Functional groups of a frame, and what they say in the place of the file."""
_GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_TAGS = (0x00200020, 0x00200037, 0x52009229, 0x52009230)  # orientations, and functional groups

Window = tuple[float, float] | None


def picture_at(path: Path, frame: int | None, window: Window) -> tuple[Image.Image, np.ndarray]:
    """Return a frame of the file at `path`, the middle one for None, as `picture_of` does. Raises what that raises."""
    header = read_header(path)
    if header is None:
        raise InputError("is a DICOM file without an image")
    return picture_of(header, header.frames // 2 if frame is None else frame, window)


def picture_of(header: Header, frame: int, window: Window) -> tuple[Image.Image, np.ndarray]:
    """Return a frame, numbered from 0, as a picture of mode L or RGB, and its stored values.

    window: the modality values that become black and white; None: as the file says, and where it says nothing, from
    the least to the greatest value of the frame. Raises InputError without the path and any value of the header.
    """
    about = Dataset()
    try:
        with BoundedFile(header.path) as file:
            if header.compressed:
                _check_stream(file, header, frame)
            stored = pixel_array(file, index=frame, ds_out=about, specific_tags=list(_TAGS))
            _take_groups(about, frame)
    except InputError:
        raise
    except BaseException as error:  # codecs and pydicom raise errors of many kinds, with values of the header in them
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        # Also what is no Exception: a codec in Rust that panics would end the run.
        raise InputError("is damaged: its pixels cannot be decoded") from None
    if stored.shape[:2] != (header.rows, header.columns):
        raise InputError("has pixels of another size than its header says")
    try:
        shown = _shown(stored, about, window)
        return Image.fromarray(_upright(shown, about)), stored
    except InputError:
        raise
    except Exception:
        raise InputError("is damaged: what its header says of grey values or colours cannot be applied") from None


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
            raise InputError("has a RescaleSlope of zero, which leaves no picture")
    if window is None and about.get("VOILUTSequence"):
        entries = np.rint(apply_modality_lut(stored, about)).astype(np.int64)
        shown = _eight_bits(apply_voi(entries, about), about.VOILUTSequence[0].LUTDescriptor[2])
    elif window is None and about.get("WindowWidth") is not None and about.get("WindowCenter") is not None:
        shown = _by_the_file(values, about, slope, intercept)
    else:
        ends = (slope * float(values.min()) + intercept, slope * float(values.max()) + intercept)
        shown = windowed(values, *(window or sorted(ends)), slope=slope, intercept=intercept)
    return 255 - shown if about.PhotometricInterpretation == "MONOCHROME1" else shown


def _by_the_file(values: np.ndarray, about: Dataset, slope: float, intercept: float) -> np.ndarray:
    """Return values in the window that the file gives first."""
    centre, width = _numbers(about, "WindowCenter", "WindowWidth")
    function = str(about.get("VOILUTFunction") or "LINEAR").upper()
    if width < (1 if function == "LINEAR" else 1e-9):
        raise InputError("has a window of no width: set data.window")
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            bright = 1 / (1 + np.exp(-4 * (values.astype(np.float32) * slope + intercept - centre) / width))
        return np.rint(255 * bright).astype(np.uint8)
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    return windowed(values, centre - width / 2, centre + width / 2, slope=slope, intercept=intercept)


def _numbers(about: Dataset, *names: str) -> list[float]:
    """Return the first value of each element. Raises InputError for one that is no finite number."""
    found = []
    for name in names:
        try:
            value = about[name].value
            found.append(float(value if about[name].VM == 1 else value[0]))
        except Exception:
            raise InputError(f"has a {name} that is no number") from None
        if not np.isfinite(found[-1]):
            raise InputError(f"has a {name} that is no number")
    return found


def _eight_bits(values: np.ndarray, bits: int) -> np.ndarray:
    if not 1 <= bits <= 32:
        raise InputError("has a number of bits that no image has")
    return windowed(values, 0, 2.0**bits - 1) if bits != 8 or values.dtype != np.uint8 else values


def _take_groups(about: Dataset, frame: int) -> None:
    """Let what the functional groups say of a frame stand for what the file says."""
    for name in _GROUPS:
        items = about.get(name) or []
        number = frame if name == _GROUPS[1] else 0
        for macro, attributes in _MACROS.items():
            for item in items[number].get(macro) or [] if number < len(items) else []:
                for attribute in attributes:
                    if attribute in item:
                        setattr(about, attribute, item[attribute].value)


def _upright(shown: np.ndarray, about: Dataset) -> np.ndarray:
    """Turn a picture as it is usually seen: rows lead to a patient's left or back, columns to the back or the feet."""
    along, down = _direction(about, 0), _direction(about, 1)
    if not along or not down or _AXES[along] == _AXES[down]:
        return shown
    if _AXES[along] > _AXES[down]:
        shown, along, down = shown.swapaxes(0, 1), down, along
    shown = shown if along in "LPF" else shown[:, ::-1]
    return np.ascontiguousarray(shown if down in "LPF" else shown[::-1])


_AXES = {"L": 0, "R": 0, "P": 1, "A": 1, "F": 2, "H": 2}


def _direction(about: Dataset, number: int) -> str:
    """Return where a row (0) or a column (1) of a picture leads: L, R, P, A, F, H; "" where the file does not say."""
    cosines = about.get("ImageOrientationPatient")
    if cosines is not None and len(cosines) == 6:
        vector = np.array([float(value) for value in cosines[3 * number : 3 * number + 3]])
        axis = int(np.abs(vector).argmax())
        return ("LR", "PA", "HF")[axis][int(vector[axis] < 0)] if np.isfinite(vector).all() and vector.any() else ""
    letters = about.get("PatientOrientation") or ["", ""]
    letter = str(letters[number])[:1] if len(letters) == 2 else ""
    return letter if letter in _AXES else ""


def _check_stream(file: BoundedFile, header: Header, frame: int) -> None:
    """Refuse compressed pixels that claim another size than the header: a decoder would reserve what they claim."""
    read_partial(file, lambda tag, vr, length: tag == 0x7FE00010, specific_tags=[])
    file.read(12)
    size = stream_size(get_frame(file, frame, number_of_frames=header.frames))
    if size is not None and size != (header.rows, header.columns):
        raise InputError("has compressed pixels that are damaged, or of another size than its header says")
    file.seek(0)


def stream_size(stream: bytes) -> tuple[int, int] | None:
    """Return rows and columns of a JPEG, JPEG-LS or JPEG 2000 stream, (0, 0) where it does not say or no pixels follow;
    None for others.

    Of a stream without pixels a decoder may show whatever memory it was given.
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
