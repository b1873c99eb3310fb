"""What the site has beyond the files of docs/: pages from elsewhere in the repository, notebooks, and the public names.

Pages are written to read well where git shows them, so links lead to files. Here they are led to where the site has
these.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[2]
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "docs/measurements": "measurements.md",
    "terrine/privacy/schemas/statement-1.json": "schemas/statement-1.json",
}
"""Files of the repository that the site has at another place; those below docs/ are at their own."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
ROOMS = {
    "data": "Data and who learns from what",
    "models": "Backbones",
    "synthetic": "Queries",
    "teachers": "Teachers",
    "aggregation": "Mechanisms and releases",
    "privacy": "Accounting and statements",
    "students": "Students",
    "errors": "Errors",
}
"""Pages of public names by the package they are in."""
ELSEWHERE = {"queries": "synthetic", "ledger": "privacy"}


def place_of(path: str) -> str | None:
    """Where the site has a file of the repository, or None where it has not."""
    if path in PLACES or path.startswith("docs/"):
        found = PLACES.get(path, path.removeprefix("docs/"))
        return re.sub(r"^(notebooks/.+)\.ipynb$", r"\1.md", found)
    return None


def led(text: str, source: str) -> str:
    """A page's text with its links led to where the site has what they name."""
    here = posixpath.dirname(str(place_of(source)))

    def lead(found: re.Match[str]) -> str:
        place = place_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), found[0])))
        return found[0] if place is None else posixpath.relpath(place, here or ".")

    return LINK.sub(lead, text)


def notebook(path: Path) -> str:
    """A notebook's words and code, and where to get it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = (("".join(cell["source"]), cell["cell_type"] == "markdown") for cell in cells)
    body = "\n\n".join(text if words else f"```python\n{text}\n```" for text, words in texts)
    title, _, rest = led(body, f"docs/notebooks/{path.name}").partition("\n\n")
    return f"{title}\n\n*This is the notebook [{path.name}]({path.name}): run it to see what it draws.*\n\n{rest}\n"


def names() -> dict[str, list[tuple[str, str]]]:
    """Public names by page: each with where it is defined."""
    pages: dict[str, list[tuple[str, str]]] = {room: [] for room in ROOMS}
    for statement in ast.parse((REPOSITORY / "terrine" / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            module = str(statement.module)
            room = module.split(".")[1]
            pages[ELSEWHERE.get(room, room)] += [(alias.name, f"{module}.{alias.name}") for alias in statement.names]
    return pages


def reference(title: str, listed: list[tuple[str, str]]) -> str:
    """The page of some public names, from their docstrings."""
    blocks = (f"## tr.{name} {{ #tr-{name.lower()} }}\n\n::: {path}\n" for name, path in listed)
    return f"# {title}\n\n`import terrine as tr`\n\n" + "\n".join(blocks)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files of docs/."""
    made = {place: led((REPOSITORY / name).read_text(encoding="utf-8"), name)
            for name, place in PLACES.items() if (REPOSITORY / name).is_file()}  # fmt: skip
    for path in sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook(path)
    measured = sorted(path.name for path in (REPOSITORY / "docs" / "measurements").glob("*.json"))
    made["measurements.md"] = "# Every measured figure\n\n" + "\n".join(
        f"- [{name}](measurements/{name})" for name in measured
    )
    for room, listed in names().items():
        made[f"api/{room}.md"] = reference(ROOMS[room], listed)
    files.remove(files.src_uris["README.md"])
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links of pages that are files of docs/."""
    return markdown if page.file.generated_by else led(markdown, f"docs/{page.file.src_uri}")
