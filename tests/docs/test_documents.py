"""Pages and docstrings: links lead somewhere, papers are cited by name and year and listed once."""

import functools
import re

import pytest

from benchmarks.tables import REPOSITORY, pages

REFERENCES = (REPOSITORY / "docs" / "references.md").read_text(encoding="utf-8")
_NAME = r"[A-ZÀ-Ž][\w'-]+"
CITATION = re.compile(
    rf"(?P<names>{_NAME}(?:,? et al\.|(?:, {_NAME})*,? (?:&|and) {_NAME})|Mironov|Karney|Higham|Blackwell"
    r"|Wang|Anonymous|Obuchowski|Wilson|van Dantzig|Cohen|McCullagh|Roy),? \(?(?P<year>(?:19|20)\d\d)\b"
)


@functools.cache
def texts() -> dict[str, str]:
    """Every text of code and pages, its white space as single spaces."""
    folders = ("benchmarks", "docs", "experiments", "flows", "tasks", "terrine", "tests")
    paths = [*REPOSITORY.glob("*.md"), *(path for folder in folders for path in (REPOSITORY / folder).rglob("*"))]
    return {
        str(path.relative_to(REPOSITORY)): " ".join(path.read_text(encoding="utf-8").split())
        for path in paths
        if path.suffix in (".py", ".md", ".yaml", ".html", ".json")
    }


def key(names: str, year: str) -> str:
    return f"{names.replace('&', 'and').replace(',', '')} {year}"


def test_every_paper_that_is_cited_is_listed_and_every_one_that_is_listed_is_cited():
    listed = {key(*row) for row in re.findall(r"^\| (.+?) (\d{4}) \|", REFERENCES, re.MULTILINE)}
    cited = {
        key(found["names"], found["year"]): name
        for name, text in texts().items()
        for found in CITATION.finditer(text)
        if name not in ("docs/references.md", "tests/docs/test_documents.py")
    }
    assert {entry: name for entry, name in cited.items() if entry not in listed} == {}
    assert listed - set(cited) == set()


def test_no_paper_goes_by_the_name_of_a_file():
    found = {name: re.findall(r"\b00\d_[0-9a-f]{6,}|\bpaper 00\d\b", text) for name, text in texts().items()}
    assert {name: ids for name, ids in found.items() if ids} == {}


def anchors(page: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), target


def test_the_table_of_cryptography_names_modules_and_tests_that_exist_and_every_module_of_the_protocol():
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in re.findall(r"^\| .+ \|$", text, re.MULTILINE)][1:]
    assert len(rows) > 10
    named = set()
    for row in rows:
        modules = re.findall(r"`([\w/]+\.py)`", row[2])
        folder = (REPOSITORY / "terrine" / modules[0]).parent
        root = REPOSITORY if modules[0].startswith("tasks/") else REPOSITORY / "terrine"
        paths = [root / module if "/" in module else folder / module for module in modules]
        named |= set(paths)
        tests = re.findall(r"`(test_\w+\.py)`", row[5])
        assert tests
        assert [path for path in paths if not path.exists()] == []
        assert [test for test in tests if not list((REPOSITORY / "tests").rglob(test))] == []
    protocol = (REPOSITORY / "terrine" / "collaboration").rglob("*.py")
    primitives = re.compile(r"^(?:import (?:hashlib|hmac)|from (?:cryptography|nacl|hashlib)\b)", re.MULTILINE)
    left = {path.stem for path in protocol if primitives.search(path.read_text(encoding="utf-8"))}
    assert left <= {path.stem for path in named}


def test_every_page_is_in_the_index():
    index = (REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")
    results = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index
    papers = (REPOSITORY / "docs" / "papers" / "README.md").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs" / "results").glob("*.md"):
        assert f"](results/{page.name})" in results
    for page in (REPOSITORY / "docs" / "papers").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in papers
    assert "](papers/README.md)" in index
