"""Inline SVG: bars are drawn at the right position for any value."""

import re

import numpy as np
import pytest

from tasks.reports.charts import scatter, stacked_histogram, ticks
from terrine.errors import InputError


@pytest.mark.parametrize("largest", [0, 0.3, 1, 4, 5, 7, 12, 99, 100, 101, 4217, 1e6])
def test_an_axis_starts_at_nothing_covers_the_largest_and_has_few_round_steps(largest):
    values = ticks(largest)
    assert values[0] == 0
    assert values[-1] >= largest
    assert 2 <= len(values) <= 6
    step = values[1]
    assert re.fullmatch(r"[125](\.0)?e[+-]\d+", f"{step:.1e}")
    assert np.allclose(values, step * np.arange(len(values)))


def test_an_axis_may_begin_above_nothing():
    assert np.allclose(ticks(95.6, 49.5), [40, 50, 60, 70, 80, 90, 100])
    assert ticks(7.0, 7.0) == [7.0, 7.2]


def test_points_stand_where_their_values_are_between_the_ends_of_the_axes():
    svg = scatter(
        [(2.0, 0.5, 0.0, 0, "a"), (4.0, 1.0, 0.0, 1, "b"), (1.0, 0.75, 0.25, 0, "c")], x_label="ε", y_label="accuracy"
    )
    places = re.findall(r'class="part-(\d)" cx="([\d.]+)%" cy="([\d.]+)" r="6"><title>(\w)', svg)
    assert places == [("0", "50.00", "216.0", "a"), ("1", "100.00", "12.0", "b"), ("0", "25.00", "114.0", "c")]
    assert re.findall(r'class="error" x1="([\d.]+)%" x2="\1%" y1="([\d.]+)" y2="([\d.]+)"', svg) == [
        ("25.00", "12.0", "216.0")
    ]


def titles(svg):
    return re.findall(r"<title>(.*?)</title>", svg)


def test_a_stacked_histogram_counts_as_a_plain_loop_does():
    generator = np.random.default_rng(0)
    shares = generator.integers(0, 51, 400) / 50
    group = generator.integers(0, 3, 400)
    svg = stacked_histogram(
        shares, {name: group == number for number, name in enumerate("abc")}, x_label="x", y_label="y"
    )
    expected = []
    for number in range(20):
        for own, name in enumerate("abc"):
            count = 0
            for share, of in zip(np.rint(shares * 50).astype(int), group, strict=True):
                if of == own and min(2 * share // 5, 19) == number:
                    count += 1
            if count:
                expected.append(f"{5 * number}% to {5 * number + 5}%, {name}: {count}")
    assert titles(svg) == expected


@pytest.mark.parametrize("second", [[True, True], [False, False]])
def test_groups_that_take_a_value_twice_or_leave_it_out_are_refused(second):
    groups = {"a": np.array([True, False]), "b": np.array(second)}
    with pytest.raises(InputError, match="partition of the 2 values"):
        stacked_histogram(np.array([0.1, 0.2]), groups, x_label="x", y_label="y")
