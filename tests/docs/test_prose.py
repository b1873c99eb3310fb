"""Share of awkward sentences in docstrings, comments, messages and pages, limited per area (prose.yaml)."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.tables import REPOSITORY

PROSE = yaml.safe_load((Path(__file__).parent / "prose.yaml").read_text(encoding="utf-8"))
RULES = {instead: re.compile(pattern, re.IGNORECASE) for instead, pattern in PROSE["rules"].items()}
AREAS = {
    "product": ("flows", "tasks", "terrine"),
    "docs": ("docs", "."),
    "tests": ("tests",),
    "benchmarks": ("benchmarks",),
}
SHORTEST = 6
"""Words of the shortest string that counts as a message."""


def split(text: str) -> list[str]:
    text = " ".join(text.split())
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"“(])", text)
    return [sentence for sentence in sentences if len(sentence.split()) >= 4]


def python_sentences(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    statements = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) in statements:  # a docstring: by paragraph and by argument, without examples
            text = re.sub(r"^\s*(?:>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)
            text = re.sub(r"^\s*(?:Args|Returns|Raises|Attributes|Yields):\s*$", "", text, flags=re.MULTILINE)
            parts = re.split(r"\n\s*\n|\n\s{4,}(?=\w+: )", text)
        else:
            parts = [text] if len(text.split()) >= SHORTEST else []
        for part in parts:
            yield from ((node.lineno, sentence) for sentence in split(part))
    comments: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (?:type:|noqa|fmt)|#!", token.string):
            comments.append(token)
        elif token.type != tokenize.NL and comments:
            text = " ".join(comment.string.lstrip("# ") for comment in comments)
            yield from ((comments[0].start[0], sentence) for sentence in split(text))
            comments = []


def page_sentences(source: str) -> Iterator[tuple[int, str]]:
    source = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.MULTILINE | re.DOTALL)
    source = re.sub(r"^(?:    |\||<!--|#).*$", "", source, flags=re.MULTILINE)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n\s*(?:[-*]|\d+\.)\s)", source):
        yield from ((line, sentence) for sentence in split(paragraph))
        line += paragraph.count("\n")


def files(area: str) -> Iterator[Path]:
    for folder in AREAS[area]:
        found = REPOSITORY.glob("*.md") if folder == "." else (REPOSITORY / folder).rglob("*.*")
        yield from sorted(path for path in found if path.suffix == (".md" if area == "docs" else ".py"))


@pytest.mark.parametrize("area", AREAS)
def test_few_sentences_of_an_area_are_awkward(area):
    total, marked = 0, []
    for path in files(area):
        read = page_sentences if path.suffix == ".md" else python_sentences
        for line, sentence in read(path.read_text(encoding="utf-8")):
            total += 1
            if better := [instead for instead, rule in RULES.items() if rule.search(sentence)]:
                marked.append(
                    (len(better), f"{path.relative_to(REPOSITORY)}:{line}: {sentence[:200]}\n    -> {better}")
                )
    share = 100 * len(marked) / total
    worst = "\n".join(text for _, text in sorted(marked, key=lambda entry: -entry[0])[:10])
    limit = PROSE["limits"][area]
    assert share <= limit, (
        f"{area}: {share:.1f} % of {total} sentences are marked, at most {limit} allowed. Worst:\n{worst}"
    )


def test_the_rules_mark_what_they_are_for():
    bad = "What a record is, is said by its keeper alone. Of two rows none where nobody asked anew."
    good = "Return the record's name, or None if it has none of the listed columns."
    assert sum(bool(rule.search(bad)) for rule in RULES.values()) >= 6
    assert not any(rule.search(good) for rule in RULES.values())
    source = f'def f():\n    """Return the mean.\n\n    {bad}\n    """\n    # {good}\n'
    assert [sentence for _, sentence in python_sentences(source)][-1] == good
    assert len(list(page_sentences(f"# Title\n\n{good}\n\n    code\n\n- {bad}\n"))) == 3
