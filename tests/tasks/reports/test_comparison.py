"""Runs beside each other: the front is what a plain loop finds, and private accuracies take no part."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from tasks.config.params import validate
from tasks.reports.comparison import (
    Compared,
    along_the_front,
    columns,
    compared,
    differences,
    effective_settings,
    front,
    render_comparison,
)
from terrine.errors import ArtefactError

ROW = Compared("a", "digits, per record", 1.0, None, 1e-5, 0.5, None, 50, 90, 100, 7.0, {"seed": 1})


def some(count, seed=0):
    generator = np.random.default_rng(seed)
    return [
        replace(
            ROW,
            run=f"run-{number}",
            data=f"data {number % 2}",
            epsilon=None if number % 7 == 3 else float(generator.integers(1, 6)),
            accuracy=None if number % 5 == 4 else float(generator.integers(10, 30)) / 30,
        )
        for number in range(count)
    ]


def test_the_front_is_what_a_plain_loop_over_pairs_finds():
    rows = some(60)
    beaten = set()
    shown = [row for row in rows if row.epsilon is not None and row.accuracy is not None]
    for row in shown:
        for other in shown:
            no_worse = other.epsilon <= row.epsilon and other.accuracy >= row.accuracy
            better = (other.epsilon, other.accuracy) != (row.epsilon, row.accuracy) or other.run < row.run
            if other.data == row.data and no_worse and better:
                beaten.add(row.run)
    assert front(rows) == {row.run for row in shown} - beaten


def test_runs_stand_along_the_front_and_those_without_a_guarantee_behind():
    rows = along_the_front(some(40))
    for one, other in itertools.pairwise(rows):
        if one.data == other.data:
            assert other.epsilon is None or (one.epsilon is not None and one.epsilon <= other.epsilon)


def test_what_differs_is_what_most_others_do_not_have():
    rows = [replace(ROW, run=str(seed), settings={"seed": seed, "device": "cpu"}) for seed in (1, 1, 2)]
    rows += [replace(ROW, run="other", data="another", settings={})]
    assert differences(rows) == ["", "", "seed=2", ""]
    assert differences([ROW, replace(ROW, settings={})]) == ["seed=1", "seed=None"]


def test_as_columns_every_setting_that_differs_has_one():
    rows = [ROW, replace(ROW, run="b", epsilon=2.0, settings={"seed": 1, "student.l2": 0.3})]
    first, second = columns(rows)
    assert list(first) == [*list(first)[:12], "student.l2"]
    assert (first["student.l2"], second["student.l2"], first["front"], second["front"]) == (None, 0.3, True, False)
    assert (second["run"], second["epsilon"], second["plus_minus"]) == ("b", 2.0, None)


def sweep_of_ten():
    """Return ten runs: five budgets with two numbers of teachers each, and a third run on other data."""
    return [
        replace(
            ROW,
            run=f"digits-epsilon-{epsilon}-teachers-{teachers}",
            epsilon=float(epsilon),
            accuracy=1 - 1 / (epsilon * teachers / 50),
            settings={"aggregation.epsilon": epsilon, "partition.teachers": teachers},
        )
        for epsilon in (2, 4, 6, 8, 10)
        for teachers in (100, 200)
    ]


def test_the_page_colours_runs_by_the_setting_that_was_varied_besides_the_budget():
    page = render_comparison([*sweep_of_ten(), replace(ROW, run="<b>", data="own", accuracy=None)])
    assert "<span>partition.teachers</span>" in page
    dots = re.findall(r'<circle class="part-(\d)" cx="[\d.]+%" .*?<title>digits-epsilon-(\d+)-teachers-(\d+)', page)
    assert dots == [(str(int(run.endswith("200"))), *run.split("-")[2::2]) for run in (r.run for r in sweep_of_ten())]
    assert page.count("<svg class=") == 1  # the other run's accuracy is private
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert [len(re.findall(rf"<td>{text}</td>", page)) for text in ("yes", "200", "private")] == [5, 5, 1]


def test_settings_are_the_effective_ones_that_a_run_uses_and_may_publish():
    given = {
        "data": {"name": "npz", "path": "secret.npz"},
        "aggregation": {"mechanism": "gnmax", "sigma": 9},
        "ledger": {"account": "secret", "epsilon": 3},
        "device": "cpu",
        "seed": 4,
    }
    found = effective_settings(validate(given))
    assert (
        found.items()
        >= {
            "seed": 4,
            "data.name": "npz",
            "data.public_benchmark": False,
            "data.test_fraction": 0.2,
            "partition.teachers": 100,
            "aggregation.mechanism": "gnmax",
            "aggregation.sigma": 9.0,
            "ledger.epsilon": 3.0,
        }.items()
    )
    assert not [key for key, value in found.items() if "secret" in str(value) or key in ("device", "collaboration")]
    sums = effective_settings(validate({"aggregation": {"mechanism": "moments"}, "student": {"kind": "sums"}}))
    assert not [key for key in sums if key.startswith(("partition", "teachers"))]


def test_a_run_that_is_not_there_is_named_in_a_sentence(tmp_path):
    with pytest.raises(ArtefactError, match="The run 'nosuch' cannot be compared"):
        compared(tmp_path, ["nosuch"])


def test_colours_show_the_setting_that_was_varied_not_one_that_follows_from_it():
    kinds = {"moments": {}, "gradients": {"aggregation.clip": 0.5}}
    rows = [
        replace(ROW, settings={"aggregation.epsilon": epsilon, "aggregation.mechanism": kind, **own})
        for epsilon, (kind, own) in itertools.product((2, 4, 8), kinds.items())
    ]
    page = render_comparison(rows)
    assert '<div class="legend"><span>aggregation.mechanism</span>' in page


def test_the_page_shows_names_first_and_no_empty_column():
    page = render_comparison([ROW, replace(ROW, run="b", epsilon_added=None, settings={"seed": 2})])
    headings = re.findall(r"<th>(.*?)</th>", page)
    assert headings[:3] == ["", "run", "ε"]
    assert "ε, added" not in headings
    assert "ε, added" in render_comparison([ROW, replace(ROW, run="b", epsilon_added=0.7)])
