"""NIfTI volumes: slices and projections as they are usually seen, and files that cannot be used."""

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nibabel")

import nibabel
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from terrine.data.sources.nifti import PLANES, Nifti, read_slice, volume_shape
from terrine.data.units import name_codes
from terrine.errors import InputError

VOXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 7)).astype(np.int16)
"""From left to right, back to front, feet to head."""
OPPOSITE = {"R": "L", "A": "P", "S": "I"}


def seen(path: Path, plane: str = "axial", view: object = "middle", window: object = (0, 255)) -> np.ndarray:
    return np.asarray(read_slice(path, plane, view, window, (1, 99))[0])


def saved(path: Path, voxels: np.ndarray = VOXELS, kind: type = nibabel.Nifti1Image) -> Path:
    nibabel.save(kind(voxels, np.diag([2, 2, 2, 1])), path)
    return path


@pytest.mark.parametrize("axes", ["".join(axes) for axes in itertools.permutations("RAS")])
def test_a_picture_does_not_depend_on_how_the_voxels_lie_in_the_file(tmp_path: Path, axes: str) -> None:
    volume = nibabel.Nifti1Image(VOXELS, np.diag([2, 2, 2, 1]))
    for flips in itertools.product((False, True), repeat=3):
        codes = [OPPOSITE[axis] if flip else axis for axis, flip in zip(axes, flips, strict=True)]
        turned = volume.as_reoriented(ornt_transform(io_orientation(volume.affine), axcodes2ornt(codes)))
        path = tmp_path / ("one.nii.gz" if flips[0] else "one.nii")
        nibabel.save(turned, path)
        assert volume_shape(path) == VOXELS.shape
        for axis, plane in enumerate(PLANES):
            views = {
                "middle": VOXELS.take(VOXELS.shape[axis] // 2, axis),
                "max": VOXELS.max(axis),
                "mean": VOXELS.mean(axis),
                1: VOXELS.take(1, axis),
            }
            for view, values in views.items():  # the right or the front on the left, the front or the head above
                assert np.array_equal(seen(path, plane, view), np.rint(values[::-1, ::-1].T))


def test_a_window_is_the_pictures_own_percentiles_where_none_is_given(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.nii", VOXELS * 40 - 3000)
    middle = VOXELS[:, :, 3][::-1, ::-1].T * 40.0 - 3000
    low, high = np.percentile(middle, (1, 99))
    assert np.array_equal(seen(path, window=None), np.rint(np.clip((middle - low) / (high - low), 0, 1) * 255))


def test_what_is_no_number_is_black(tmp_path: Path) -> None:
    voxels = VOXELS.astype(np.float32)
    voxels[0] = np.nan
    assert (seen(saved(tmp_path / "one.nii", voxels))[:, -1] == 0).all()
    assert (seen(saved(tmp_path / "one.nii", voxels), window=None)[:, -1] == 0).all()


def test_volumes_of_a_table_are_read_with_their_subjects(tmp_path: Path) -> None:
    rows = ["path,label,group"]
    for number in range(24):
        kind = nibabel.Nifti2Image if number % 2 else nibabel.Nifti1Image
        saved(tmp_path / f"v{number}.nii.gz", np.full((8, 8, 3), 10 * number, np.int16), kind)
        rows.append(f"v{number}.nii.gz,{'ab'[number % 2]},subject {number // 3}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    source = Nifti(path=tmp_path / "list.csv", size=8, window=(0, 255))
    dataset = source.read()
    dataset.validate()
    numbers = dataset.train_images[:, 0, 0, 0] // 10
    assert np.array_equal(dataset.train_groups, name_codes(f"subject {number // 3}" for number in numbers))
    survey = source.survey()
    assert (sum(survey.groups), survey.geometry) == (8, {(8, 8, "L"): 24})


def patched(place: int, value: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        whole = bytearray(saved(path).read_bytes())
        whole[place : place + len(value)] = value
        path.write_bytes(bytes(whole))

    return make


def cut(length: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(saved(path).read_bytes()[:length]) and None


def of(voxels: np.ndarray) -> Callable[[Path], None]:
    return lambda path: saved(path, voxels) and None


MALFORMED: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (cut(0), "not a NIfTI file"),
    "cut in the header": (cut(200), "not a NIfTI file"),
    "cut in the voxels": (cut(500), "truncated"),
    "another kind": (lambda path: path.write_bytes(b"\x89PNG" * 200) and None, "not a NIfTI file"),
    "an absurd size": (patched(42, b"\xff\x7f" * 3), "more than 2 GiB"),
    "a large size": (patched(42, b"\x00\x04" * 3), "truncated|more than 2 GiB"),
    "a negative size": (patched(42, b"\xfe\xff"), "damaged|claims to have no voxels"),
    "nine dimensions": (patched(40, b"\x09\x00"), "damaged|not a single volume"),
    "an unknown type of number": (patched(70, b"\x63\x63"), "damaged"),
    "colours": (patched(70, b"\x80\x00\x18\x00"), "damaged|not a single volume"),
    "voxels far behind its end": (patched(108, np.float32(1e9).tobytes()), "damaged|truncated"),
    "voxels at no number": (patched(108, np.float32(np.nan).tobytes()), "damaged"),
    "axes of no number": (patched(280, np.full(12, np.nan, np.float32).tobytes()), "damaged|axes"),
    "several volumes": (of(np.zeros((3, 3, 3, 4), np.int16)), "not a single volume"),
    "a plane": (of(np.zeros((3, 3), np.int16)), "not a single volume"),
    "not a finite number": (of(np.full((3, 3, 3), np.nan, np.float32)), "no finite number"),
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("packed", [False, True])
def test_a_malformed_volume_is_refused_in_one_sentence(tmp_path: Path, kind: str, packed: bool) -> None:
    make, says = MALFORMED[kind]
    make(path := tmp_path / "one.nii")
    if packed:
        path = path.rename(tmp_path / "plain")
        (tmp_path / "one.nii.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "one.nii.gz"
        says += "|damaged|truncated"
    with pytest.raises(InputError, match=says) as caught:
        seen(path, window=None)
    assert len(str(caught.value).splitlines()) == 1


def test_a_gzip_that_is_cut_off_or_none_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.nii.gz")
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:40] + bytes(40) + whole[80:], b"no gzip at all" * 50, b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"damaged|not a NIfTI"):
            seen(path)


def test_a_slice_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has 5 sagittal slices, numbered from 0, so data.view=5"):
        seen(saved(tmp_path / "one.nii"), "sagittal", 5)
    with pytest.raises(ValueError, match="view"):
        Nifti(path="x", view="diagonal")
    (tmp_path / "table.csv").write_text("path,label\none.nii,a\n")
    with pytest.raises(InputError, match=r"one\.nii has 5 sagittal slices.*out of range"):
        Nifti(path=tmp_path / "table.csv", plane="sagittal", view=5).survey()
