"""Pages as a browser lays them out: on a telephone, a laptop and a wide screen, light and dark."""

import html
import json
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import uvicorn
from fastapi.responses import HTMLResponse

from tasks.reports.comparison import render_comparison
from tasks.reports.statement_page import render_technical_page
from tasks.runtime.store import read_json, write_array, write_json
from tasks.serving.service import build_app, server_config
from tests.student_folders import make_table_student
from tests.tasks.pipeline.test_report import BLOOD, make_run, written
from tests.tasks.reports.test_comparison import ROW, sweep_of_ten
from tests.tasks.reports.test_partition_figures import counts, manifest_of

WIDTHS = (390, 1280, 1920)
SCHEMES = ("light", "dark")
SCRIPT = Path(__file__).with_name("inspect_pages.js")

MANY = tuple(
    f"species {number}, of a genus with a long name" if number % 7 == 0 else f"sp. {number}" for number in range(100)
)


def frame(page, name, width, scheme):
    # A framed page takes the frame's width and colour scheme for those of the viewport.
    return (
        f'<iframe name="{name}, {width} pixels, {scheme}" data-scheme="{scheme}" srcdoc="{html.escape(page)}" '
        f'style="color-scheme: {scheme}; width: {width}px; height: 900px"></iframe>'
    )


def browse(folder, *arguments):
    """Let a browser without a window do something, and return the finished process."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here to lay pages out with")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=True)


def findings(pages, folder):
    """Return what a browser finds wrong, a list of sentences for each page, width and colour scheme."""
    frames = [
        frame(page, name, width, scheme) for name, page in pages.items() for width in WIDTHS for scheme in SCHEMES
    ]
    collection = folder / "frames.html"
    script = f'<pre id="findings"></pre><script>{SCRIPT.read_text()}</script>'
    collection.write_text(f'<!doctype html><meta charset="utf-8">{"".join(frames)}{script}')
    done = browse(folder, "--dump-dom", collection.as_uri())
    written_down = re.search(r'<pre id="findings">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written_down, done.stderr[-2000:]
    return json.loads(html.unescape(written_down[1]))


def pages_of(root, names, teachers, **changes):
    """Return the report and the statement of a run of these classes."""
    run = make_run(root, class_names=names, **changes)
    # Enough records to give the axis long numbers.
    histograms = 100 * counts(teachers, len(names))
    write_array(run.folders.partition / "label_histograms.npy", histograms)
    write_json(run.folders.partition / "manifest.json", manifest_of(histograms))
    write_json(run.folders.dataset / "manifest.json", {"class_names": names})
    return written(run), render_technical_page(read_json(run.folders.statement), names)


def test_pages_can_be_read_at_every_width_light_and_dark(tmp_path):
    pages = {}
    for name, classes, teachers in (("few classes", BLOOD, 12), ("many classes", MANY, 60)):
        (tmp_path / name).mkdir()
        pages[f"report, {name}"], pages[f"statement, {name}"] = pages_of(tmp_path / name, classes, teachers)
    (tmp_path / "replayed").mkdir()
    _, pages["statement, not private"] = pages_of(tmp_path / "replayed", ("a" * 60, "b"), 3, noise="replay")
    pages["comparison"] = render_comparison([*sweep_of_ten(), replace(ROW, data="own data", plus_minus=0.02)])
    found = findings(pages, tmp_path)
    assert len(found) == len(pages) * len(WIDTHS) * len(SCHEMES)
    assert {name: sentences for name, sentences in found.items() if sentences} == {}


def test_the_statement_of_a_usual_run_prints_on_three_sheets(tmp_path):
    """The run uses private images: ten classes, an account, and a count and moments beside the answers."""
    names = ("T-shirt/top", *BLOOD, "Ankle boot")
    run = make_run(tmp_path, class_names=names)
    content = read_json(run.folders.statement) | {"epsilon_account": 8.0}
    content["mechanism"] |= {"counted": {"units": 11_987, "sigma": 8.6}}
    content["mechanism"] |= {"moments": {"numbers": 406, "noise_multiplier": 39.6}}
    page, printed = tmp_path / "statement.html", tmp_path / "statement.pdf"
    page.write_text(render_technical_page(content, names))
    browse(tmp_path, f"--print-to-pdf={printed}", page.as_uri())
    assert re.findall(rb"/Count (\d+)", printed.read_bytes()) == [b"3"]


def test_what_cannot_be_read_is_found(tmp_path):
    """The test above can fail: one page with every fault it looks for."""
    spoilt = """<!doctype html><meta name="color-scheme" content="light dark"><body>
    <p style="width: 3000px">wide</p><p style="width: 20px; overflow: hidden; white-space: nowrap">cut text</p>
    <p style="font-size: 9px">small</p><p style="color: #888; background: #999">faint</p>
    <p style="white-space: nowrap">%s</p>
    <svg viewBox="0 0 100 100"><text x="10" y="20">one</text><text x="12" y="20">other</text></svg>"""
    for sentences in findings({"spoilt": spoilt % ("long " * 60)}, tmp_path).values():
        told = "\n".join(sentences)
        for fault in (
            "scrolls sideways",
            'cuts "cut text"',
            '"small" is 9.0',
            '"faint" has contrast',
            "is a line of",
            '"other" lies on "one"',
        ):
            assert fault in told


VISIT = """<!doctype html><pre id="found">nothing</pre><iframe src="./" style="height: 900px"></iframe><script>
const frame = document.querySelector("iframe"), wait = time => new Promise(done => setTimeout(done, time));
frame.onload = async () => {
  const page = frame.contentDocument, files = new DataTransfer(), input = page.getElementById("files");
  page.querySelector("[name=age]").value = "40"; page.querySelector("[name=gain]").value = "5";
  page.getElementById("row").requestSubmit();
  await wait(1500);
  for (const [name, text] of [["good.csv", "age,work,gain\\n30,Private,5\\n61,none,1\\n"], ["bad.csv", "age\\n1\\n"]])
    files.items.add(new File([text], name, {type: "text/csv"}));
  input.files = files.files;
  input.dispatchEvent(new Event("change"));
  await wait(1500);
  const text = id => page.getElementById(id).innerText;
  document.getElementById("found").textContent = `${text("answers")}|${text("failure")}`;
};</script>"""


def test_the_page_of_a_table_answers_its_form_and_csv_files_and_lists_unreadable_ones(tmp_path):
    app, student = build_app(make_table_student(tmp_path / "student"))
    app.get("/visit")(lambda: HTMLResponse(VISIT))
    server = uvicorn.Server(server_config(app, "127.0.0.1", 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        done = browse(tmp_path, "--virtual-time-budget=20000", "--dump-dom", f"http://127.0.0.1:{port}/visit")
    finally:
        server.should_exit = True
        thread.join(10)
    found = html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1])
    answers, failure = found.split("|")
    rows = pd.DataFrame({"age": [30, 61, 40], "work": ["Private", "none", ""], "gain": [5, 1, 5]})
    first, second, form = student.answers(rows)["class"]
    assert re.search(
        rf"good\.csv\s+2 rows\..*'work': 1 of 2 rows have unknown words.*{first}.*{second}", answers, re.DOTALL
    )
    assert answers.split("\n", 1)[1].count(form) >= 1
    assert failure.startswith("bad.csv: The body has no column")
