"""The partition in the private report is drawn exactly and marked private, at any size."""

import re

import numpy as np
import pytest

from tasks.reports.partition_figures import MOST_COLUMNS, MOST_ROWS, figures
from tasks.runtime.store import write_array, write_json
from terrine.data.label_mix import row_shares, summarise
from tests.tasks.pipeline.test_report import BLOOD, Page, check_offline, make_run, written


def manifest_of(histograms, **changes):
    plain = {"kind": "iid", "alpha": None, "similarity": None, "parties": None, "groups": None}
    plain["teachers_without_records"] = int((histograms.sum(axis=1) == 0).sum())
    return {**plain, "teachers": len(histograms), "labels": summarise(histograms), **changes}


def counts(teachers, classes, seed=0):
    return np.random.default_rng(seed).integers(0, 20, (teachers, classes)) + 1


def opacities(svg):
    return [
        [float(value) for value in re.findall(r'fill-opacity="([\d.]+)"', group)]
        for group in re.findall(r'<g class="part-0"[^>]*>(.*?)</g>', svg)
    ]


def test_a_cell_is_as_full_as_the_share_of_its_class():
    histograms = counts(12, 5)
    drawn = np.array(opacities(figures(manifest_of(histograms), histograms, list(BLOOD))["mix"]))
    shares = row_shares(histograms).T
    assert np.allclose(drawn, shares / shares.max(), atol=0.006)


@pytest.mark.parametrize(("teachers", "classes"), [(2, 2), (150, 10), (151, 10), (5000, 100)])
def test_many_teachers_and_classes_are_thinned_out_and_it_is_said(teachers, classes):
    histograms = counts(teachers, classes)
    part = figures(manifest_of(histograms), histograms, [f"class {number}" for number in range(classes)])
    rows = opacities(part["mix"])
    assert len(rows) == min(classes, MOST_ROWS)
    assert len(rows[0]) == min(teachers, MOST_COLUMNS)
    assert part["drawn"] == (MOST_COLUMNS if teachers > MOST_COLUMNS else None)
    assert part["rows"] == (MOST_ROWS if classes > MOST_ROWS else None)
    assert len(part["mix"]) < 600_000


def test_the_report_shows_the_partition_in_a_section_marked_private(tmp_path):
    run = make_run(tmp_path, class_names=("<a>", "b", "c", "d", "e"))
    histograms = counts(4, 5)
    names = ["<North>", "South", "East", "West"]
    write_array(run.folders.partition / "label_histograms.npy", histograms)
    write_json(run.folders.partition / "manifest.json", manifest_of(histograms, kind="party", parties=names))
    write_json(run.folders.dataset / "manifest.json", {"class_names": ["<a>", "b", "c", "d", "e"]})
    html = written(run)
    check_offline(html)
    page = Page(html)
    for text in ("Labels of the teachers", "Records of the parties", "South"):
        assert page.places(text), text
        assert all("private" in classes for classes in page.places(text)), text
    assert "<North>" not in html


def test_an_earlier_partition_leaves_the_section_out(tmp_path):
    assert "Records of the teachers" not in written(make_run(tmp_path))
