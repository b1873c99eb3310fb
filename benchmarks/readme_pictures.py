"""Pictures of README.md: a statement page as PNG, and commands with their output as SVG.

    python -m benchmarks.readme_pictures                      # draw both again from their sources
    python -m benchmarks.readme_pictures --record             # first run the commands, in a new project
    python -m benchmarks.readme_pictures --statement FILE     # first copy another privacy.json

The sources are docs/pictures/privacy.json, which a run wrote, and docs/pictures/terminal.txt, which the commands
printed. Each picture contains the digest of what it shows, and tests/benchmarks/test_readme_pictures.py compares it.
Drawing the page needs Chromium.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from rich.text import Text

from tasks.reports.statement_page import render_statement_page

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
STATEMENT, PAGE = PICTURES / "privacy.json", PICTURES / "statement.png"
TERMINAL, RECORDING = PICTURES / "terminal.txt", PICTURES / "terminal.svg"
RUN = "data/release/terrine-digits"
COMMANDS = (
    "terrine check",
    "terrine run",
    "terrine statement --language en --pdf page.pdf",
    f"terrine verify {RUN}",
)
COLUMNS = 92
SIZE, SCALE, COLOURS = (900, 1118), 1.5, 128
"""Part of the page that is shown, in CSS pixels; pixels of the picture for each; colours of its palette."""
CHROMIUM = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync "
    "--hide-scrollbars"
)


def page() -> str:
    """Return the statement page, HTML."""
    return render_statement_page(json.loads(STATEMENT.read_text(encoding="utf-8")), "en")


def shown_part() -> str:
    """Return the HTML of the page that the picture shows: the styles, and the content before the first section."""
    return page().partition("<section>")[0]


def digest(text: str) -> str:
    """Return the digest that a picture of this text contains."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def draw_page() -> None:
    """Draw the first screens of the statement page with Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("Chromium is not installed. It draws the page.")
    with tempfile.TemporaryDirectory() as folder:
        source, drawn = Path(folder, "page.html"), Path(folder, "page.png")
        source.write_text(page(), encoding="utf-8")
        own = (f"--user-data-dir={folder}/profile", f"--force-device-scale-factor={SCALE}", f"--screenshot={drawn}")
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        subprocess.run([browser, *CHROMIUM.split(), *own, size, source.as_uri()], check=True, capture_output=True)
        picture = Image.open(io.BytesIO(drawn.read_bytes())).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE)
    about = PngInfo()
    about.add_text("digest", digest(shown_part()))
    picture.save(PAGE, optimize=True, pnginfo=about)


def record() -> None:
    """Run the commands in a new project, and write what they print."""
    environment = os.environ | {"COLUMNS": str(COLUMNS), "PYTHONPATH": str(PICTURES.parents[1])}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, command in enumerate((f"terrine init {folder}/project", *COMMANDS)):
            words = [sys.executable, "-m", "flows", *command.split()[1:]]
            where = folder if number == 0 else f"{folder}/project"
            done = subprocess.run(words, cwd=where, env=environment, check=True, capture_output=True, text=True)
            if number:
                lines += ["", f"$ {command}", *(line.rstrip() for line in done.stdout.splitlines() if line.strip())]
    TERMINAL.write_text("\n".join(lines[1:]) + "\n", encoding="utf-8")


def draw_terminal() -> None:
    """Draw the recorded commands as SVG, without fonts from elsewhere."""
    text = TERMINAL.read_text(encoding="utf-8")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    for line in text.splitlines():
        prompt = line.startswith("$ ")
        console.print(Text.assemble(("$ ", "dim"), (line[2:], "bold green")) if prompt else Text(line))
    drawn = console.export_svg(title="terrine", unique_id=f"terrine-{digest(text)}")
    RECORDING.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="Run the commands again.")
    parser.add_argument("--statement", type=Path, help="Statement to show: a privacy.json.")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    if given.statement is not None:
        shutil.copyfile(given.statement, STATEMENT)
    if given.record:
        record()
    draw_page()
    draw_terminal()


if __name__ == "__main__":
    main()
