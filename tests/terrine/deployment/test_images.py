"""What a student accepts as images."""

import numpy as np
import pytest

from terrine.deployment.model import check_images, check_rows
from terrine.errors import InputError


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_in_the_unit_interval_become_float32(dtype):
    images = np.random.default_rng(0).random((3, 1, 4, 4)).astype(dtype)
    checked = check_images(images, 1, 4)
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, images.astype(np.float32))


def test_uint8_stays_and_strided_arrays_become_contiguous():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8).transpose(0, 3, 1, 2)[::2]
    checked = check_images(images, 3, 4)
    assert checked.flags.c_contiguous
    np.testing.assert_array_equal(checked, images)


GOOD = np.zeros((2, 1, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (GOOD.astype(np.int64), "dtype int64"),
        (GOOD.astype(complex), "dtype complex128"),
        (np.array([["a"]]), "dtype <U1"),
        (GOOD[0], r"shape \[1, 4, 4\]"),
        (GOOD[:, :, :3], r"this student takes \[images, 1, 4, 4\]"),
        (GOOD.transpose(0, 2, 3, 1), r"shape \[2, 4, 4, 1\]"),
        (GOOD[:0], "no image in the batch"),
        (GOOD + np.array([np.nan, 0]).reshape(2, 1, 1, 1), "NaN in image 0"),
        (GOOD + np.array([0, np.inf]).reshape(2, 1, 1, 1), "infinite value in image 1"),
        (GOOD - 0.01, "values from -0.01"),
        (GOOD + 255, "Divide values from 0 to 255 by 255"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(images, complaint):
    with pytest.raises(InputError, match=complaint):
        check_images(images, 1, 4)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (np.zeros((2, 3), np.int64), "dtype int64"),
        (np.zeros((2, 4)), r"this student takes \[rows, 3\]"),
        (np.zeros(3), r"shape \[3\]"),
        (np.zeros((0, 3)), "no row"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), "Row 1 holds NaN"),
    ],
)
def test_rows_that_do_not_fit_a_table_are_refused_with_a_sentence(rows, complaint):
    with pytest.raises(InputError, match=complaint):
        check_rows(rows, 3)
