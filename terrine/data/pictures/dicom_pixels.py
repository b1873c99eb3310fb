"""One frame of a DICOM file as a picture of 8 bits: stored values, modality values, a window, grey or colour, upright.

Follows DICOM PS3.3, C.7.6.3 (photometric interpretation), C.11.1 (modality LUT, rescale), C.11.2 (window, VOI LUT) and
C.7.6.16.2 (functional groups of multi-frame images). A frame is decoded by itself, whatever number of them there are.
"""

import struct
from pathlib import Path

import numpy as np

from terrine.data.images import windowed
from terrine.data.pictures.dicom_header import GREY, PALETTE, BoundedFile, Header, read_header
from terrine.errors import InputError
from terrine.extras import from_extra

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
