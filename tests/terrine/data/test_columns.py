"""What a table's columns are taken for, and values that are hardly meant."""

import pandas as pd
import pytest

from terrine.data.encoding import column_types, header_is_record, learn


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
    assert column_types(encoding, frame) == {
        "numbers": ("number",),
        "words": ("word", "code"),
        "constant": ("same", "same word"),
        "empty": ("gone",),
    }


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
    assert header_is_record(learn(frame, "table")) is record
