"""DICOM files: what is shown of them, whose they are, and what is kept of their headers."""

import inspect
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydicom")

from pydicom.dataset import Dataset as Elements
from pydicom.pixels import apply_windowing
from pydicom.sequence import Sequence

from terrine.data.dicom_images import list_directory, read_header
from terrine.data.file_dataset import Record
from terrine.data.images import windowed
from terrine.data.sources.dicom import WINDOWS, Dicom
from terrine.data.units import name_codes
from terrine.errors import InputError
from tests.terrine.data.dicoms import REAL, made, saved

VALUES = np.random.default_rng(0).integers(-1000, 1000, (6, 9)).astype(np.int16)


def shown(path: Path, window: object = None, frame: int = 0) -> np.ndarray:
    return np.asarray(Dicom(path="x", labels="y", window=window).picture(Record(path, "", "", frame=frame))[0])


def of(tmp_path: Path, pixels: np.ndarray = VALUES, window: object = None, frame: int = 0, **elements: object):
    return shown(saved(made(pixels, **elements), tmp_path / "one"), window, frame)


def plainly(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint(np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255)


def test_a_window_is_in_values_after_rescaling(tmp_path: Path) -> None:
    hounsfield = VALUES * 2.0 - 100
    rescaled = {"RescaleSlope": "2", "RescaleIntercept": "-100"}
    assert np.array_equal(of(tmp_path, window=(-500, 300), **rescaled), plainly(hounsfield, -500, 300))
    assert np.array_equal(of(tmp_path, window="lung", **rescaled), plainly(hounsfield, -1350, 150))
    assert np.array_equal(of(tmp_path, window="brain", **rescaled), plainly(hounsfield, 0, 80))
    falling = of(tmp_path, RescaleSlope="-1", RescaleIntercept="0")
    assert np.array_equal(falling, plainly(-VALUES, -VALUES.max(), -VALUES.min()))


def test_named_windows_are_documented_and_other_names_are_refused() -> None:
    for name in WINDOWS:
        assert Dicom(path="x", labels="y", window=name).window == name
        assert name in inspect.getsource(Dicom).partition("window: ")[2].partition("frames: ")[0]
    with pytest.raises(ValueError, match="'heart' is not a window: use lung, mediastinum"):
        Dicom(path="x", labels="y", window="heart")
    with pytest.raises(ValueError, match="below"):
        Dicom(path="x", labels="y", window=(4, 4))


def test_without_a_window_the_window_of_the_file_is_used(tmp_path: Path) -> None:
    tags = {"WindowCenter": ["40", "600"], "WindowWidth": ["400", "3000"]}
    assert np.array_equal(of(tmp_path, **tags), plainly(VALUES, 39.5 - 199.5, 39.5 + 199.5))  # PS3.3 C.11.2.1.2.1
    assert np.array_equal(of(tmp_path, **tags, VOILUTFunction="LINEAR_EXACT"), plainly(VALUES, -160, 240))
    sigmoid = np.rint(255 / (1 + np.exp(-4 * (VALUES.astype(float) - 40) / 400)))
    assert np.abs(of(tmp_path, **tags, VOILUTFunction="SIGMOID") - sigmoid).max() <= 1
    assert np.array_equal(of(tmp_path), plainly(VALUES, VALUES.min(), VALUES.max()))
    assert np.array_equal(of(tmp_path, window=(-10, 10), **tags), plainly(VALUES, -10, 10))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_a_window_agrees_with_pydicoms_own(tmp_path: Path, function: str) -> None:
    tags = {"WindowCenter": "40", "WindowWidth": "400", "VOILUTFunction": function}
    theirs = apply_windowing(VALUES, made(VALUES, **tags))
    assert np.abs(of(tmp_path, **tags) - (theirs + 2**15) / (2**16 - 1) * 255).max() <= 0.51


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    dark = of(tmp_path, window=(-500, 500), PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(dark, 255 - plainly(VALUES, -500, 500))


def test_a_voi_lut_and_a_modality_lut_are_applied(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    table = Elements()
    table.LUTDescriptor, table.LUTData = [16, 0, 8], (255 - 16 * np.arange(16)).astype("<u2").tobytes()
    assert np.array_equal(of(tmp_path, pixels, VOILUTSequence=Sequence([table])), 255 - 16 * pixels)
    shifted = of(tmp_path, pixels - 5, VOILUTSequence=Sequence([table]), RescaleSlope="1", RescaleIntercept="5")
    assert np.array_equal(shifted[2:], (255 - 16 * pixels)[2:])
    modality = of(tmp_path, pixels, ModalityLUTSequence=Sequence([table]), window=(0, 255))
    assert np.array_equal(modality, 255 - 16 * pixels)


@pytest.mark.parametrize(
    "name", ["SC_rgb_rle.dcm", "SC_rgb_jpeg_gdcm.dcm", "SC_ybr_full_422_uncompressed.dcm", "SC_rgb_rle_16bit.dcm"]
)
def test_colours_are_the_same_however_they_are_stored(name: str) -> None:
    ours, plain = shown(REAL / name), shown(REAL / "SC_rgb_dcmtk_+eb+cr.dcm")
    assert ours.shape == plain.shape == (100, 100, 3)
    assert np.abs(ours.astype(int) - plain).max() <= 6


def test_a_palette_becomes_colours() -> None:
    picture = shown(REAL / "examples_palette.dcm")
    assert picture.shape == (350, 800, 3)
    assert (picture.max(axis=2) != picture.min(axis=2)).any()


@pytest.mark.parametrize("kind", ["", "_RLE", "_bigendian", "_implicit", "_jp2klossless", "_jpeg_ls_lossless"])
def test_pixels_are_the_same_in_every_encoding(kind: str) -> None:
    assert np.array_equal(shown(REAL / f"MR_small{kind}.dcm"), shown(REAL / "MR_small.dcm"))


def test_a_frame_is_shown_by_itself(tmp_path: Path) -> None:
    frames = np.random.default_rng(1).integers(0, 256, (5, 4, 6)).astype(np.uint8)
    for number in range(5):
        assert np.array_equal(of(tmp_path, frames, window=(0, 255), frame=number), frames[number])


def test_functional_groups_override_the_file(tmp_path: Path) -> None:
    frames = np.stack([VALUES, VALUES])

    def group(centre: float) -> Elements:
        item, window, change = Elements(), Elements(), Elements()
        window.WindowCenter, window.WindowWidth = centre, 100
        change.RescaleSlope, change.RescaleIntercept = 1, 10
        item.FrameVOILUTSequence, item.PixelValueTransformationSequence = Sequence([window]), Sequence([change])
        return item

    groups = {"PerFrameFunctionalGroupsSequence": Sequence([group(0), group(300)])}
    for frame, centre in enumerate((0, 300)):
        low = centre - 0.5 - 49.5
        assert np.array_equal(of(tmp_path, frames, frame=frame, **groups), plainly(VALUES + 10.0, low, low + 99))


@pytest.mark.parametrize("letters", ["LP", "RP", "LA", "RA", "PL", "AL", "PR", "AR"])
def test_slices_are_shown_in_radiological_orientation(tmp_path: Path, letters: str) -> None:
    """However a slice lies in its file, the patient's left is on the right and the back below."""
    cosines = {"L": [1, 0, 0], "R": [-1, 0, 0], "P": [0, 1, 0], "A": [0, -1, 0]}
    along, down = letters
    stored = VALUES  # as it should be seen
    stored = stored[:, ::-1] if "R" in letters else stored
    stored = stored[::-1] if "A" in letters else stored
    stored = stored.T if along in "PA" else stored
    wanted = plainly(VALUES, -1000, 1000)
    by_numbers = of(tmp_path, stored, window=(-1000, 1000), ImageOrientationPatient=cosines[along] + cosines[down])
    assert np.array_equal(by_numbers, wanted)
    assert np.array_equal(of(tmp_path, stored, window=(-1000, 1000), PatientOrientation=[along, down]), wanted)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty patients with a study of two images each; one file is of another kind, one has no label."""
    root = tmp_path_factory.mktemp("hospital")
    for number in range(60):
        pixels = np.full((8, 8), number, np.uint8)
        person, name = f"P{number // 2:02d}", "IM.1.2.840.{:03d}" if number % 3 else "DEEP/{:03d}.dcm"
        saved(made(pixels, person, f"1.2.1.{number}", f"1.2.3.{number // 2}"), root / "in" / name.format(number))
    saved(made(pixels, "P99", "1.2.1.99", "1.2.3.99"), root / "in" / "unlabelled")
    shutil.copy(REAL / "test-SR.dcm", root / "in" / "report")
    (root / "in" / "read.me.txt").write_text("nothing")
    lines = [f"1.2.3.{study},{('ring', 'disc')[study % 2]}" for study in range(30)]
    (root / "labels.csv").write_text("study,label\n" + "\n".join(lines))
    return root


def source(root: Path, **settings: object) -> Dicom:
    return Dicom(**{"path": root / "in", "labels": root / "labels.csv", "size": 8, "window": (0, 255)} | settings)


def test_a_folder_of_any_names_is_labelled_by_study_and_grouped_by_patient(hospital: Path) -> None:
    dataset = source(hospital).read()
    dataset.validate()
    assert dataset.class_names == ("disc", "ring")
    numbers = np.concatenate([dataset.train_images, dataset.test_images])[:, 0, 0, 0]
    assert sorted(numbers) == list(range(60))
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    assert np.array_equal(labels, 1 - numbers // 2 % 2)
    train = dataset.train_images[:, 0, 0, 0]
    assert np.array_equal(dataset.train_groups, name_codes(f"P{number // 2:02d}" for number in train))
    assert np.array_equal(dataset.train_names, name_codes(f"1.2.3.{number // 2}" for number in train))
    assert not set(train // 2) & set(dataset.test_images[:, 0, 0, 0] // 2)


def test_neither_labels_nor_paths_decide_who_is_tested(hospital: Path, tmp_path: Path) -> None:
    shutil.copytree(hospital / "in", tmp_path / "in")
    for number, path in enumerate(sorted(path for path in (tmp_path / "in").rglob("*") if path.suffix != ".txt")):
        if path.is_file():
            path.rename(tmp_path / "in" / f"x{999 - number}")
    table = (hospital / "labels.csv").read_text().splitlines()
    other = [line.replace("disc", "ring") if number % 3 else line for number, line in enumerate(table)]
    (tmp_path / "labels.csv").write_text("\n".join([other[0], *other[:0:-1]]))
    one, two = source(hospital).read(), source(tmp_path).read()
    assert np.array_equal(one.train_images, two.train_images)
    assert np.array_equal(one.train_names, two.train_names)
    assert not np.array_equal(one.train_labels, two.train_labels)


def test_a_survey_counts_patients_and_ignored_files(hospital: Path) -> None:
    survey = source(hospital).survey()
    assert sum(survey.groups) == 30
    assert survey.skipped == {".txt": 1, "DICOM files without an image": 1, "DICOM images without a label": 1}
    assert survey.geometry == {(8, 8, "L"): 60}


@pytest.mark.parametrize("key", ["sop", "series"])
def test_images_are_labelled_by_their_own_uid_or_their_series(hospital: Path, tmp_path: Path, key: str) -> None:
    uids = {"sop": [f"1.2.1.{n}" for n in range(60)], "series": [f"1.2.3.{n}.1" for n in range(30)]}[key]
    lines = [f"{uid},{'ab'[n % 2]},{'test' if n % 4 == 0 else 'train'},here" for n, uid in enumerate(uids)]
    (tmp_path / "labels.csv").write_text(f"{key},label,split,party\n" + "\n".join(lines))
    given = source(hospital, labels=tmp_path / "labels.csv")
    if key == "sop":  # two images of a patient, one for training and one for the test
        with pytest.raises(InputError, match=r"the group of \S+ is in train and in test") as caught:
            given.read()
        assert "P0" not in str(caught.value)
    else:
        dataset = given.read()
        assert (len(dataset.test_images), dataset.party_names) == (16, ("here",))
        # A row of the CSV is one record, for the budget and for the split.
        assert sorted(dataset.train_names) == sorted(np.repeat(name_codes(uids[n] for n in range(30) if n % 4), 2))


def test_frames_are_one_or_all_of_one_name_and_patient(tmp_path: Path) -> None:
    for number in range(20):
        frames = np.full((5, 8, 8), 10 * number, np.uint8) + np.arange(5, dtype=np.uint8)[:, None, None]
        saved(made(frames, f"P{number}", f"1.2.1.{number}", f"1.2.3.{number}"), tmp_path / "in" / f"{number}")
    rows = [f"1.2.3.{number},{'ab'[number % 2]}" for number in range(20)]
    (tmp_path / "labels.csv").write_text("study,label\n" + "\n".join(rows))
    for which, wanted in {"first": {0}, "middle": {2}, "all": {0, 1, 2, 3, 4}}.items():
        dataset = source(tmp_path, frames=which).read()
        every = np.concatenate([dataset.train_images, dataset.test_images])[:, 0, 0, 0]
        assert sorted(every) == sorted(10 * number + frame for number in range(20) for frame in wanted)
        assert len(set(dataset.train_names)) == len(set(dataset.train_groups)) == len(dataset.train_names) / len(wanted)


def test_a_dicomdir_names_the_files(tmp_path: Path) -> None:
    shutil.copytree(REAL / "dicomdirtests", tmp_path / "cd")
    images = list_directory(tmp_path / "cd" / "DICOMDIR")
    headers = [read_header(tmp_path.joinpath("cd", *parts)) for parts in images]
    split = dict(zip({header.patient for header in headers}, ("train", "test"), strict=True))
    rows = [f"{header.sop},{'ab'[number % 2]},{split[header.patient]}" for number, header in enumerate(headers)]
    (tmp_path / "labels.csv").write_text("sop,label,split\n" + "\n".join(rows))
    survey = Dicom(path=tmp_path / "cd" / "DICOMDIR", labels=tmp_path / "labels.csv").survey()
    assert survey.train.sum() + survey.test.sum() == len(images) == 31
    assert survey.groups == (1, 1)
    (tmp_path / "cd" / Path(*images[0])).unlink()
    with pytest.raises(InputError, match=r"DICOMDIR, image 1: there is no file"):
        Dicom(path=tmp_path / "cd" / "DICOMDIR", labels=tmp_path / "labels.csv").survey()
    (tmp_path / "cd" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM" + b"\1" * 50)
    with pytest.raises(InputError, match="not a readable DICOMDIR"):
        Dicom(path=tmp_path / "cd" / "DICOMDIR", labels=tmp_path / "labels.csv").survey()


def test_text_in_pixels_is_reported(tmp_path: Path) -> None:
    about = [{"BurnedInAnnotation": "YES"}, {"Modality": "US"}, {"Modality": "US", "BurnedInAnnotation": "NO"}, {}] * 4
    for number, elements in enumerate(about):
        pixels = np.full((8, 8), number, np.uint8)
        saved(made(pixels, f"P{number}", f"1.2.1.{number}", **elements), tmp_path / "in" / f"{number}")
    (tmp_path / "labels.csv").write_text("sop,label\n" + "\n".join(f"1.2.1.{n},{'ab'[n % 2]}" for n in range(16)))
    burned, silent = source(tmp_path, test_fraction=0.5).survey().remarks
    assert burned.startswith("4 images contain text")
    assert silent.startswith("4 images of ultrasound")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("sop,label\n1.2.1.0,a\n1.2.1.1,b\n9.9.9,b\n", r"labels.csv, line 4: no image in \S+ has this sop UID"),
        ("sop,label\n1.2.1.0,a\n1.2.1.0,b\n", r"labels.csv, line 3 repeats the sop UID"),
        ("uid,label\n1.2.1.0,a\n", r"has the columns uid, label. The header must contain sop or series or study"),
        ("sop,study,label\n1.2.1.0,1.2.3.0,a\n", "The header must contain"),
        ("sop,label\n1.2.1.0,\n", "line 2 has no label"),
        ("sop,label\n", "has no rows below its header"),
    ],
)
def test_an_invalid_table_of_labels_is_refused(hospital: Path, tmp_path: Path, table: str, says: str) -> None:
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(InputError, match=says) as caught:
        source(hospital, labels=tmp_path / "labels.csv").read()
    assert "9.9.9" not in str(caught.value)


def test_one_image_in_two_files_is_refused(hospital: Path, tmp_path: Path) -> None:
    shutil.copytree(hospital / "in", tmp_path / "in")
    shutil.copy(tmp_path / "in" / "unlabelled", tmp_path / "in" / "copy")
    with pytest.raises(InputError, match=r"copy and \S+unlabelled have the same SOPInstanceUID"):
        source(tmp_path, labels=hospital / "labels.csv").read()
    (tmp_path / "in" / "copy").unlink()
    (tmp_path / "in" / "link").symlink_to("unlabelled")
    with pytest.raises(
        InputError, match=r"unlabelled have the same SOPInstanceUID: remove one of them, or the link to it"
    ):
        source(tmp_path, labels=hospital / "labels.csv").read()


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no folder"):
        Dicom(path=tmp_path / "none", labels=tmp_path / "x.csv").read()
    with pytest.raises(InputError, match="contains no DICOM file"):
        Dicom(path=tmp_path, labels=tmp_path / "x.csv").read()


def test_windowing_clips_and_shows_nan_as_black() -> None:
    values = np.array([[-5.0, 0.0, 5.0, 10.0, 99.0, np.nan, np.inf]])
    assert windowed(values, 0, 10).tolist() == [[0, 0, 128, 255, 255, 0, 255]]
    assert windowed(values, 5, 5).tolist() == [[0, 0, 0, 255, 255, 0, 255]]
