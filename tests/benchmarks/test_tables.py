"""Pages show what was measured: every table between marks is generated, and no other figure has a spread of its own."""

import re

import pytest

from benchmarks.tables import BLOCK, REPOSITORY, markdown, measurements, pages, rewritten, written


@pytest.fixture(scope="module")
def texts():
    return {str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8") for page in pages()}


def test_a_page_shows_its_tables_as_they_were_measured(texts):
    assert [page for page, text in texts.items() if rewritten(text) != text] == []


def test_a_figure_with_a_spread_was_measured(texts):
    cells = str([list(block.values()) for table in measurements().values() for block in table["measured"]])
    typed = {page: re.findall(r"\d[\d.]* ± [\d.]*\d", BLOCK.sub("", text)) for page, text in texts.items()}
    assert [(page, each) for page, figures in typed.items() for each in figures if each not in cells] == []


def test_every_measured_table_is_shown_or_named_on_a_page(texts):
    shown = {block["asked"].split(" | ")[0] for text in texts.values() for block in BLOCK.finditer(text)}
    named = {name for text in texts.values() for name in re.findall(r"`([a-z-]+/[a-z0-9-]+)`", text)}
    assert set(measurements()) - shown - named == set()
    assert {name for name in shown if name.split("/")[0] not in ("mutants", "cells")} <= set(measurements())


def test_a_measurement_says_where_it_comes_from_and_has_a_cell_for_every_column():
    for name, table in measurements().items():
        for block in table["measured"]:
            assert set(block) - {"rows", "text"} == {"command", "commit", "date", "machine", "seeds", "spread"}, name
            assert ("rows" in block) != ("text" in block), name
            for key, form in (
                ("command", r".+"),
                ("commit", r"[0-9a-f]{7,}"),
                ("date", r"\d{4}-\d\d-\d\d"),
                ("machine", r".+"),
            ):
                assert block[key] is None or re.fullmatch(form, block[key]), (name, key)
            assert block["seeds"] is None or block["seeds"] > 0, name
            assert "columns" not in table or {len(row) for row in block["rows"]} == {len(table["columns"])}, name


def test_columns_of_numbers_are_set_to_the_right():
    lines = markdown(["name", "%"], [["a", "1.5 ± 0.2"], ["b", "–"]]).splitlines()
    assert lines == ["| name | % |", "|---|---:|", "| a | 1.5 ± 0.2 |", "| b | – |"]


def test_a_mark_may_choose_columns_and_rows():
    asked = "accuracy/presets | columns: preset; δ | rows: `terrine-mnist`"
    assert written(asked).splitlines()[2:] == ["| `terrine-mnist` | 1e-5 |"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("accuracy/unheard", "There is no table 'accuracy/unheard'"),
        ("accuracy/presets | columns: unheard", "it has the columns preset; "),
        ("accuracy/presets | rows: unheard", "it has the rows `terrine-digits`; "),
        ("reliability/overhead | columns: at least", "has more than one column at least: rename them"),
        ("accuracy/presets | cells: preset", "'cells: preset' is not of accuracy/presets"),
    ],
)
def test_a_mark_that_asks_for_what_is_not_there_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        rewritten(f"<!-- table: {asked} -->\n<!-- end -->")
