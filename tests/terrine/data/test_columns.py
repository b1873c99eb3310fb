"""Types of a table's columns, and headers that look like records."""

import pandas as pd
import pytest

from terrine.data.encoding import column_types, header_is_record, learn


def test_column_types_follow_from_public_rows():
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
def test_column_names_that_look_like_values_are_recognised(names, record):
    frame = pd.DataFrame({names[0]: ["7", "8.5"], names[1]: ["1", "2"], names[2]: ["yes", "no"]})
    assert header_is_record(learn(frame, "table")) is record
