"""What a table's columns are taken for, and values that are hardly meant."""

import numpy as np
import pandas as pd
import pytest

from terrine.data.columns import far_outside, kinds_of_columns, named_by_a_record, on_values
from terrine.data.encoding import learn

AGES = [20 + number % 50 for number in range(200)]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([*AGES, -1, -1], [(-1, 2)]),
        ([*AGES, -999, -999, -999], [(-999, 3)]),
        ([*AGES, 9999, 9999], [(9999, 2)]),
        ([*AGES, -999, -999, 9999, 9999], [(9999, 2), (-999, 2)]),
        ([*AGES, -99, -99, -98, -98], []),  # neither is far from the other
        ([0, 1] * 50 + [9] * 7, [(9, 7)]),
        ([*AGES, 500, 500], [(500, 2)]),  # whatever it is
    ],
)
def test_values_that_are_repeated_far_outside_of_the_rest_are_found(numbers, found):
    assert far_outside(np.array(numbers, float)) == found


@pytest.mark.parametrize(
    "numbers",
    [
        AGES,
        [*AGES, 9999],  # once: an outlier
        [*AGES, 99, 99, 98],
        [-1, 0, 1] * 50,
        [0] * 180 + [500, 501, 502] * 5,  # most are so
        [0, 1] * 50,
        [],
        [5.0] * 9,
        [-1, -1, *np.arange(-0.8, 1, 0.01).round(2)],  # a bound of numbers of either sign
        np.random.default_rng(0).lognormal(0, 2, 500).round(1),
        np.random.default_rng(0).normal(0, 1, 500).round(2),
    ],
)
def test_values_that_belong_to_the_others_are_not(numbers):
    assert far_outside(np.array(numbers, float)) == []


def test_columns_are_told_by_what_public_rows_show():
    frame = pd.DataFrame(
        {
            "number": ["1", "2", "?"],
            "word": ["a", "b", "a"],
            "same": ["7", "7.0", ""],
            "same word": ["x", "x", "x"],
            "gone": ["", "NA", "null"],
            "code": ["1", "2", "2"],
        }
    )
    encoding = learn(frame, "table", ["code"])
    assert kinds_of_columns(encoding, frame) == {
        "numbers": ("number",),
        "words": ("word", "code"),
        "constant": ("same", "same word"),
        "empty": ("gone",),
    }


@pytest.mark.parametrize("values", [["45 kg", "50 kg"], ["3,5", "4,75"], ["<5", "12%"], ["1.5mg", "2mg", "none"]])
def test_words_that_begin_with_numbers_are_told_with_a_public_one(values):
    frame = pd.DataFrame({"dose": values, "day": ["2026-01-02"] * len(values), "ward": ["w3"] * len(values)})
    encoding = learn(frame, "table")
    (said,) = on_values(encoding, frame)
    assert f"Taken as words, though they begin with numbers: 'dose' (such as '{min(values)}')." in said
    assert on_values(encoding, frame, ("dose",)) == ()


@pytest.mark.parametrize(
    ("names", "record"),
    [
        (("39", "13", "yes"), True),
        (("0.0", "-.5", "answer"), True),
        (("year", "13", "yes"), True),
        (("year", "13", "answer"), False),  # one of three
        (("1", "2", "answer"), False),  # numbered
        (("2019", "2020", "2021"), False),  # the last holds words
        (("39", "age", "yes and no"), False),
    ],
)
def test_columns_that_are_called_by_values_are_told_from_named_ones(names, record):
    frame = pd.DataFrame({names[0]: ["7", "8.5"], names[1]: ["1", "2"], names[2]: ["yes", "no"]})
    assert named_by_a_record(learn(frame, "table")) is record
