"""Pages show what was measured: every table between marks is generated, and no other figure has a spread of its own."""

import re

import pytest

from benchmarks.tables import BLOCK, REPOSITORY, markdown, measurements, pages, rewritten, written

PAGES = {str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8") for page in pages()}
BLOCKS = {
    f"{name} {number}": block
    for name, table in measurements().items()
    for number, block in enumerate(table["measured"])
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_tables_as_they_were_measured(page):
    assert rewritten(PAGES[page]) == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_with_a_spread_was_measured(page):
    cells = str([list(block.values()) for block in BLOCKS.values()])
    typed = re.findall(r"\d[\d.]* ± [\d.]*\d", BLOCK.sub("", PAGES[page]))
    assert [figure for figure in typed if figure not in cells] == []


def test_every_measured_table_is_on_a_page():
    shown = {block["asked"].split(" | ")[0] for text in PAGES.values() for block in BLOCK.finditer(text)}
    assert shown - {"mutants"} == set(measurements())


@pytest.mark.parametrize("name", BLOCKS)
def test_a_measurement_says_where_it_comes_from(name):
    block = BLOCKS[name]
    assert set(block) - {"rows", "text"} == {"command", "commit", "date", "machine", "seeds", "spread"}
    assert ("rows" in block) != ("text" in block)
    for key, form in (
        ("command", r".+"),
        ("commit", r"[0-9a-f]{7,}"),
        ("date", r"\d{4}-\d\d-\d\d"),
        ("machine", r".+"),
    ):
        assert block[key] is None or re.fullmatch(form, block[key])
    assert block["seeds"] is None or block["seeds"] > 0


@pytest.mark.parametrize("name", [name for name, table in measurements().items() if "columns" in table])
def test_a_table_has_a_cell_for_every_column(name):
    table = measurements()[name]
    assert {len(row) for block in table["measured"] for row in block["rows"]} == {len(table["columns"])}


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
        ("accuracy/presets | cells: preset", "'cells: preset' is not of accuracy/presets"),
    ],
)
def test_a_mark_that_asks_for_what_is_not_there_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        rewritten(f"<!-- table: {asked} -->\n<!-- end -->")
