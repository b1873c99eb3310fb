"""DICOM files for tests: pydicom's own of its wheel, and small ones that are made here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from pydicom.dataset import FileDataset, FileMetaDataset  # noqa: E402
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian  # noqa: E402

REAL = Path(pydicom.__file__).parent / "data" / "test_files"
"""Real files that come with pydicom; others it would download."""


def made(
    pixels: np.ndarray, patient: str = "P1", sop: str = "1.2.1", study: str = "1.2.3", **elements: Any
) -> FileDataset:
    """Return a grey image [H, W], or frames [F, H, W], of unsigned or signed integers, in memory."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, sop
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    bits = 8 * pixels.dtype.itemsize
    values = {
        "PatientID": patient,
        "PatientName": "Secret^Name",
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": sop,
        "SeriesInstanceUID": f"{study}.1",
        "StudyInstanceUID": study,
        "Modality": "CT",
        "Rows": pixels.shape[-2],
        "Columns": pixels.shape[-1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": bits - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
    }
    if pixels.ndim == 3:
        values["NumberOfFrames"] = len(pixels)
    for name, value in (values | elements).items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.tobytes() + b"\0" * (pixels.nbytes % 2)
    return dataset


def saved(dataset: FileDataset, path: Path) -> Path:
    """Write a file, as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path
