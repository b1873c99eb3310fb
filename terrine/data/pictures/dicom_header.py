"""What must be known of a DICOM file before its pixels are decoded, checked without trusting what it says of itself.

Sizes are compared with the bytes that are there, so that no file reserves memory for what it only claims. An error
names what is wrong and never a value of the header: values may name people. Causes, warnings and logs of pydicom quote
such values: no error is raised from them, and they are silenced here.
"""

import io
import logging
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

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
    uids = (text[name] for name in ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"))
    return Header(path, text["PatientID"], *uids, rows, columns, frames, photometric in GREY, compressed, burned)


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
