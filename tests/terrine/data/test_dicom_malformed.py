"""DICOM files that are damaged, or made to do harm: one sentence each, no value of the header, no memory."""

import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydicom")

from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLSLossless, RLELossless

from terrine.data.dicom_images import decode_frame, read_header
from terrine.data.sources.dicom import Dicom
from terrine.errors import InputError
from tests.terrine.data.dicoms import REAL, made, saved

PIXELS = np.arange(256, dtype=np.uint16).reshape(16, 16)
FRAMES = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
ROWS, COLUMNS = struct.pack("<HH2sHH", 0x28, 0x10, b"US", 2, 16), struct.pack("<HH2sHH", 0x28, 0x11, b"US", 2, 16)


def cut(share: float, real: str = "CT_small.dcm") -> Callable[[Path], None]:
    def make(path: Path) -> None:
        whole = (REAL / real).read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])

    return make


def of(pixels: np.ndarray = PIXELS, without: str = "", **elements: object) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        dataset = made(pixels, **elements)
        if without:
            delattr(dataset, without)
        saved(dataset, path)

    return make


def patched(old: bytes, new: bytes, pixels: np.ndarray = PIXELS, **elements: object) -> Callable[[Path], None]:
    """A file in which some bytes are others: what no writer would write."""

    def make(path: Path) -> None:
        whole = saved(made(pixels, **elements), path).read_bytes()
        assert old in whole
        path.write_bytes(whole.replace(old, new, 1))

    return make


def compressed(
    syntax: str, stream: bytes, frames: int = 1, given: int = 1, kind: type = np.uint8
) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        dataset = made(PIXELS.astype(kind), NumberOfFrames=frames)
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.PixelData = encapsulate([stream] * given)
        dataset["PixelData"].is_undefined_length = True
        saved(dataset, path)

    return make


def broken(real: str, where: float, count: int = 40) -> Callable[[Path], None]:
    """A real compressed file with noise in its stream."""

    def make(path: Path) -> None:
        whole = bytearray((REAL / real).read_bytes())
        start = int(where * len(whole))
        whole[start : start + count] = bytes(255 - byte for byte in whole[start : start + count])
        path.write_bytes(bytes(whole))

    return make


def nested(depth: int) -> Callable[[Path], None]:
    """Sequences within sequences, of undefined length, before the pixels."""
    begin = struct.pack("<HH2sHI", 0x8, 0x1140, b"SQ", 0, 0xFFFFFFFF) + struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF)

    def make(path: Path) -> None:
        whole = saved(made(PIXELS), path).read_bytes()
        place = whole.index(struct.pack("<HH", 0x10, 0x10))
        path.write_bytes(whole[:place] + begin * depth + whole[place:])

    return make


def overlong() -> bytes:
    """Two segments of RLE, of 16 x 16 pixels of 16 bits; the second ends one run too late, at which a codec panics."""
    whole, end = bytes([127]) + bytes(128), bytes([126]) + bytes(127) + bytes([200, 1])
    segments = whole * 2, whole + end
    return struct.pack("<16I", 2, 64, 64 + len(segments[0]), *[0] * 13) + b"".join(segments)


def siz(rows: int, columns: int) -> bytes:
    """The head of a JPEG 2000 stream of the given size, with few bytes behind it."""
    size = struct.pack(">HHIIIIIIIIH3B", 41, 0, columns, rows, 0, 0, columns, rows, 0, 0, 1, 7, 1, 1)
    return b"\xff\x4f\xff\x51" + size + b"\xff\xd9" * 20


def sof(rows: int, columns: int, marker: int = 0xC0) -> bytes:
    return b"\xff\xd8" + struct.pack(">BBHBHHB3B", 255, marker, 11, 8, rows, columns, 1, 1, 17, 0) + b"\xff\xd9" * 20


MALFORMED: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (cut(0.0), "not a DICOM file"),
    "cut in the preamble": (cut(0.002), "not a DICOM file"),
    "cut in the first elements": (cut(0.006), "TransferSyntaxUID|first elements|PixelData|image"),
    "cut in the header": (cut(0.1), "PixelData|SamplesPerPixel|image"),
    "cut before the pixels": (cut(0.15), "PixelData|truncated"),
    "cut in the pixels": (cut(0.6), "truncated"),
    "cut at the end": (cut(0.95), "truncated"),
    "a compressed stream truncated": (cut(0.6, "MR_small_jp2klossless.dcm"), "truncated"),
    "RLE truncated": (cut(0.6, "MR_small_RLE.dcm"), "truncated"),
    "JPEG-LS truncated": (cut(0.5, "MR_small_jpeg_ls_lossless.dcm"), "truncated"),
    "real and truncated": (cut(1.0, "MR_truncated.dcm"), "truncated"),
    "deflated": (cut(1.0, "image_dfl.dcm"), "deflated"),
    "no transfer syntax": (cut(1.0, "meta_missing_tsyntax.dcm"), "TransferSyntaxUID"),
    "no head": (cut(1.0, "no_meta.dcm"), "not a DICOM file"),
    "a wrong VR": (cut(1.0, "badVR.dcm"), "NumberOfFrames"),
    "text": (lambda path: path.write_text("patient Miller, born 1950"), "not a DICOM file"),
    "Rows as text": (patched(ROWS, struct.pack("<HH2sH2s", 0x28, 0x10, b"LO", 2, b"no")), "invalid Rows"),
    "Rows twice": (patched(ROWS, struct.pack("<HH2sHHH", 0x28, 0x10, b"US", 4, 16, 16)), "invalid Rows"),
    "Rows of another kind": (patched(ROWS, struct.pack("<HH2sHH", 0x28, 0x10, b"ZZ", 2, 16)), "damaged|no Rows"),
    "Columns longer than the file": (patched(COLUMNS, struct.pack("<HH2sHH", 0x28, 0x11, b"US", 0xFFFE, 16)), "."),
    "invalid Rows": (of(without="Rows"), "invalid Rows"),
    "zero Columns": (of(Columns=0), "invalid Columns"),
    "absurd Rows and Columns": (of(Rows=65535, Columns=65535), "claims more than"),
    "large Rows": (of(Rows=60000, Columns=1000), "claims more pixels than it contains"),
    "no pixels": (of(without="PixelData"), "no PixelData"),
    "no PatientID": (of(without="PatientID"), "no PatientID"),
    "an empty PatientID": (of(patient="  "), "no PatientID"),
    "no SOPInstanceUID": (of(without="SOPInstanceUID"), "SOPInstanceUID"),
    "no PhotometricInterpretation": (of(without="PhotometricInterpretation"), "PhotometricInterpretation"),
    "an unknown PhotometricInterpretation": (of(PhotometricInterpretation="SECRET"), "PhotometricInterpretation"),
    "colour of one sample": (of(PhotometricInterpretation="RGB"), "SamplesPerPixel"),
    "a palette that is missing": (of(PhotometricInterpretation="PALETTE COLOR"), "grey values or colours"),
    "bits that no image has": (of(BitsAllocated=12), "BitsAllocated"),
    "more bits stored than allocated": (of(BitsStored=24), "BitsStored"),
    "a sign that is none": (of(PixelRepresentation=7), "PixelRepresentation"),
    "a window that is no number": (of(WindowCenter="nan", WindowWidth="nan"), "not a finite number"),
    "an endless window": (of(WindowCenter="40", WindowWidth="1e999"), "not a finite number"),
    "a window of words": (
        patched(b"DS\x02\x0040", b"DS\x02\x00no", WindowCenter="40", WindowWidth="4"),
        "not a finite number",
    ),
    "a window of no width": (of(WindowCenter="40", WindowWidth="0"), "without width"),
    "a negative window": (of(WindowCenter="40", WindowWidth="-4"), "without width"),
    "a slope that is no number": (of(RescaleSlope="inf", RescaleIntercept="0"), "not a finite number"),
    "a slope of zero": (of(RescaleSlope="0", RescaleIntercept="0"), "zero"),
    "many frames": (of(FRAMES, NumberOfFrames=60000), "claims more pixels than it contains"),
    "a huge number of frames": (of(FRAMES, NumberOfFrames=2**31 - 1), "invalid NumberOfFrames"),
    "less than one frame": (of(FRAMES, NumberOfFrames=-1), "invalid NumberOfFrames"),
    "fewer compressed frames than it says": (compressed(RLELossless, b"\0" * 64, frames=2, given=1), "truncated"),
    "an RLE that a codec panics at": (compressed(RLELossless, overlong(), kind=np.uint16), "cannot be decoded"),
    "an RLE of nothing": (compressed(RLELossless, b"\0" * 64), "cannot be decoded"),
    "a JPEG 2000 of another size": (compressed(JPEG2000Lossless, siz(60000, 60000)), "contradict the size"),
    "a JPEG of another size": (compressed(JPEGBaseline8Bit, sof(65535, 65535)), "contradict the size"),
    "a JPEG-LS of another size": (compressed(JPEGLSLossless, sof(65535, 65535, 0xF7)), "contradict the size"),
    "a JPEG without a size": (compressed(JPEGBaseline8Bit, b"\xff\xd8" + b"\xff" * 64), "damaged"),
    "a JPEG of nothing": (compressed(JPEGBaseline8Bit, sof(16, 16)), "damaged"),
    "a JPEG 2000 of nothing": (compressed(JPEG2000Lossless, siz(16, 16)), "contradict the size"),
    "noise for a JPEG": (compressed(JPEGBaseline8Bit, bytes(range(256))), "cannot be decoded"),
    "a video": (compressed("1.2.840.10008.1.2.4.100", b"\0" * 64), "unsupported compression"),
    "an unknown compression": (
        compressed("1.2.3.4.5", b"\0" * 64),
        "unsupported compression|truncated|first elements|header",
    ),
    "a broken RLE": (broken("MR_small_RLE.dcm", 0.26, 64), "damaged|cannot be decoded|truncated"),
    "nested sequences": (nested(40), "damaged|PixelData|image"),
    "a bomb of sequences": (nested(200_000), "damaged"),
}


@pytest.fixture
def little_memory():
    """No more than a gigabyte on top of what the process has: what a file only claims is not reserved."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_file_is_refused_in_one_sentence(kind: str, tmp_path: Path, little_memory: None) -> None:
    make, says = MALFORMED[kind]
    make(path := tmp_path / "IM0001")
    with pytest.raises(InputError, match=says) as caught:
        read(path)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert caught.value.__cause__ is None  # what pydicom says quotes the header
    assert not any(secret in said for secret in ("Secret", "SECRET", "Miller", "P1", "1.2.1"))


def read(path: Path) -> None:
    header = read_header(path)
    if header is None:
        raise InputError("no image")
    decode_frame(header, header.frames // 2, None)


def test_a_folder_names_five_of_its_files_and_is_read_without_them_if_asked(tmp_path: Path) -> None:
    for number in range(40):
        saved(made(PIXELS, f"P{number:02d}", f"1.9.{number}", f"1.8.{number}"), tmp_path / "in" / f"IM{number:02d}")
    for number in range(7):
        saved(made(PIXELS, "Q", f"1.7.{number}", WindowWidth="0", WindowCenter="0"), tmp_path / "in" / f"X{number}")
    cut(0.5)(tmp_path / "in" / "Y")
    table = tmp_path / "labels.csv"
    rows = [f"1.9.{number},{'ab'[number % 2]}" for number in range(40)] + [f"1.7.{number},a" for number in range(7)]
    table.write_text("sop,label\n" + "\n".join(rows) + "\n")
    settings = {"path": tmp_path / "in", "labels": table, "size": 16}
    with pytest.raises(InputError, match=r"^1 of 48 image files cannot be used: \S*Y \(is truncated, [^)]*\)\. Repair"):
        Dicom(**settings).read()
    (tmp_path / "in" / "Y").unlink()
    with pytest.raises(InputError, match=r"^7 of 47 image files .*X0 .*X1 .*X2 .*X3 .*X4 .* and 2 more\. Repair"):
        Dicom(**settings).read()
    cut(0.5)(tmp_path / "in" / "Y")
    source = Dicom(**settings, unreadable="skip")
    assert source.survey().skipped["DICOM files that cannot be used"] == 1
    dataset = source.read()
    dataset.validate()
    assert len(dataset.train_images) + len(dataset.test_images) == 40
    assert len(dataset.train_names) == len(dataset.train_images) == len(dataset.train_groups)
