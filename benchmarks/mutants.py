"""Mutants: defects of the kinds found in published code, put into Terrine one at a time, and who notices.

    python benchmarks/mutants.py                        # all of them: about an hour on two cores
    python benchmarks/mutants.py --only "deal by place" # one; may be given several times
    python benchmarks/mutants.py --quick                # only the tests that are expected to notice
    python benchmarks/mutants.py --tables               # print the table, and write it into docs/assurance.md

A mutant is a patch in `mutants.yaml`. It is put into a copy of the repository, and three detectors are run on it:

- *tests*: the privacy tests, `PRIVACY_TESTS`, by `pytest -x`. Those that a mutant names go first, since one failure is
  enough; only when all of them pass the rest is run;
- *harness*: tests/neighbours but for its test of the audit, in the same way, for mutants that two neighbours could show;
- *audit*: the command `terrine audit`: of a mechanism, or `--neighbours` on a small run of digits, `AUDITS`.

Every detector that is used is run on the code as it is first, and has to pass. A mutant counts as caught where a test
fails, or where an audit says so: a patch that breaks an import, or an error of Python's own that it raises, is an error
of the table and counts as nothing. What was found is kept in `mutants.json` as it comes, under a digest of the mutant,
so an interrupted run goes on, and a mutant that changes is tried again. `--jobs` tries several at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
MUTANTS, RESULTS = (REPOSITORY / "benchmarks" / f"mutants.{suffix}" for suffix in ("yaml", "json"))
PAGE = REPOSITORY / "docs" / "assurance.md"
BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"

PRIVACY_TESTS = (
    "tests/terrine/privacy",
    "tests/terrine/aggregation",
    "tests/terrine/data",
    "tests/terrine/teachers",
    "tests/terrine/collaboration",
    "tests/terrine/transcription",
    *(
        f"tests/tasks/test_{name}.py"
        for name in ("params", "new_dataset", "partition_task", "identity", "teach", "aggregate", "average")
    ),
    *(f"tests/tasks/test_{name}.py" for name in ("party_config", "private_figures", "report", "transcribe")),
    "tests/flows/test_zones.py",
    "tests/flows/test_what_leaves.py",
)
HARNESS = tuple(f"tests/neighbours/test_neighbours_{name}.py" for name in ("formats", "kinds", "release"))
AUDITS: dict[str, tuple[str, ...]] = {
    "gnmax": ("--mechanism", "gnmax"),
    "histogram": ("--mechanism", "histogram"),
    "confident": ("--mechanism", "confident"),
    "lnmax": ("--mechanism", "lnmax"),
    "neighbours": ("--run", "digits", "--neighbours", "2"),
    "neighbours of groups": ("--run", "people", "--neighbours", "2"),
}
"""Arguments of `terrine audit`. `digits` is a run on digits whose rows have ids; `people` on the same in groups."""

DETECTORS = ("tests", "harness", "audit")
NAMES = {"tests": "privacy tests", "harness": "neighbour harness", "audit": "terrine audit"}
MARKS = {"caught": "✓", "passed": "–", None: "·"}
LEGEND = "✓ noticed it; – was run in full and did not; · was not run: nothing of it looks at what is broken."

_LIMIT = 3600
_PYTHONS_OWN = (
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
)

_PROJECT = """
import shutil, sys
from pathlib import Path
import numpy as np, yaml
from sklearn.datasets import load_digits
root, repository = map(Path, sys.argv[1:])
digits = load_digits()
images, labels = digits.images[:600].astype(np.uint8) * 16, digits.target[:600]
ids = np.array([f"scan {number:04d}" for number in range(600)])
np.savez(root / "digits.npz", images=images, labels=labels, ids=ids,
         groups=np.array([f"person {number // 3:03d}" for number in range(600)]))
for name in ("params.yaml", "dvc.yaml"):
    shutil.copy(repository / name, root)
(root / "experiments").mkdir()
for name, unit in (("digits", "record"), ("people", "group")):
    values = {
        "description": "digits for an audit",
        "data": {"name": "npz", "path": "digits.npz", "size": 8},
        "privacy": {"unit": unit},
        "partition": {"teachers": 12},
        "queries": {"count": 60, "batch": 20, "sources": {"gaussian": 1}},
        "backbone": {"projection": 30},
        "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 8},
        "ledger": {"account": "digits", "epsilon": 20},
    }
    (root / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(values))
from flows.stages import run_through
from tasks.run import write_parameters
for name in ("digits", "people"):
    run_through(write_parameters(root, name), "dataset", "pretrain")
"""


@dataclass(frozen=True)
class Edit:
    """A piece of a file, which is in it exactly once, and what takes its place."""

    file: str
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    """A defect, see mutants.yaml."""

    name: str
    kind: str
    defect: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    harness: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """What the stored result is about."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def patched(self, root: Path) -> dict[Path, str]:
        """The files that the mutant changes, under `root`, and their new text.

        Raises:
            ValueError: a piece that is not exactly once in its file, or changes nothing.
        """
        texts: dict[Path, str] = {}
        for edit in self.edits:
            path = root / edit.file
            text = texts.get(path) or path.read_text(encoding="utf-8")
            found = text.count(edit.find)
            if found != 1 or edit.find == edit.replace:
                raise ValueError(
                    f"Mutant '{self.name}': what it replaces is {found} times in {edit.file}, and must be there once. "
                    f"Adapt the patch in {MUTANTS.name} to today's code:\n{edit.find}"
                )
            texts[path] = text.replace(edit.find, edit.replace)
        return texts


def mutants() -> list[Mutant]:
    """All mutants of mutants.yaml, in its order."""
    made = []
    for entry in yaml.safe_load(MUTANTS.read_text(encoding="utf-8")):
        edits = tuple(Edit(**edit) for edit in entry.pop("edits"))
        given = {key: tuple(entry.pop(key)) for key in DETECTORS if entry.get(key) is not None}
        made.append(Mutant(**entry, edits=edits, **given))
    return made


class Broken(Exception):
    """A detector could not be run, so it says nothing about a mutant."""


class Copy:
    """A copy of the repository to put mutants into, one at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root / "repository"
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in listed.stdout.splitlines():
            if (REPOSITORY / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.root / name)
        self._scratch = root / "scratch"

    def put_in(self, mutant: Mutant) -> dict[Path, str]:
        """Apply a mutant and return what its files were."""
        patched = mutant.patched(self.root)
        for path, text in patched.items():
            if path.suffix == ".py":
                compile(text, path, "exec")
        before = {path: path.read_text(encoding="utf-8") for path in patched}
        self.write(patched)
        return before

    def write(self, texts: dict[Path, str]) -> None:
        """Write sources, and forget what was compiled of them."""
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()

    def catches(self, tests: Sequence[str]) -> str | None:
        """The first test that fails, and how; None where all pass."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
            "--tb=no",
            "-rfE",
        ]
        # An empty folder of its own, not a user's: tests that are stopped leave nothing behind.
        with tempfile.TemporaryDirectory(dir=self._made(self._scratch)) as base:
            done = self._run([*command, f"--basetemp={base}/tests", *tests])
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if done.returncode == 0:
            return None
        if done.returncode != 1 or not lines:
            raise Broken(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        if re.search(rf" - ({'|'.join(_PYTHONS_OWN)}): ", lines[0]):
            raise Broken(f"A patch that is no defect but nonsense: {lines[0]}")
        return lines[0].split(" ", 1)[1].split(" - ")[0]

    def audit_catches(self, names: Sequence[str]) -> str | None:
        """The first audit that catches something; None where none does."""
        with tempfile.TemporaryDirectory(dir=self._made(self._scratch)) as project:
            if any("--run" in AUDITS[name] for name in names):
                made = self._run([sys.executable, "-c", _PROJECT, project, str(self.root)], TERRINE_ROOT=project)
                if made.returncode:
                    raise Broken(f"The run to audit cannot be made:\n{made.stderr[-3000:]}")
            for name in names:
                command = [sys.executable, "-m", "flows", "audit", *AUDITS[name], "--json"]
                done = self._run(command, TERRINE_ROOT=project)
                try:
                    caught = json.loads(done.stdout[done.stdout.index("{") :])["caught"]
                except ValueError as error:
                    raise Broken(
                        f"terrine audit ({name}) gave no result:\n{done.stdout}{done.stderr[-3000:]}"
                    ) from error
                if caught:
                    return name
        return None

    def _run(self, command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **variables}
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
        )

    @staticmethod
    def _made(folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        return folder


def attempt(copy: Copy, mutant: Mutant, quick: bool) -> dict[str, Any]:
    """Put a mutant into the copy, run its detectors, take it out, and return what they found.

    Raises Broken with `quick` where the tests that the mutant names all pass: the others were not asked.
    """
    start = time.perf_counter()
    before = copy.put_in(mutant)
    found: dict[str, Any] = {"digest": mutant.digest}
    try:
        for name, first, rest in (("tests", mutant.tests, PRIVACY_TESTS), ("harness", mutant.harness, HARNESS)):
            if not first:
                continue
            by = copy.catches(first)
            if by is None and quick:
                raise Broken(f"Mutant '{mutant.name}' passes {', '.join(first)}.")
            found[name] = _outcome(by or copy.catches(rest))
        if mutant.audit:
            found["audit"] = _outcome(copy.audit_catches(mutant.audit))
    finally:
        copy.write(before)
    found["seconds"] = round(time.perf_counter() - start, 1)
    return found


def _outcome(by: str | None) -> dict[str, str]:
    return {"outcome": "passed"} if by is None else {"outcome": "caught", "by": by}


def check_detectors(copy: Copy, chosen: Sequence[Mutant]) -> None:
    """Run what the mutants name on the code as it is. Raises Broken where anything complains."""
    tests = sorted({test for mutant in chosen for test in (*mutant.tests, *mutant.harness)})
    # A file and a test in it are one.
    whole = {test for test in tests if "::" not in test}
    failed = copy.catches([test for test in tests if test in whole or test.split("::")[0] not in whole])
    failed = failed or copy.audit_catches(sorted({name for mutant in chosen for name in mutant.audit}))
    if failed is not None:
        raise Broken(f"Without any mutant, {failed} fails. Mend that first.")


def stored() -> dict[str, dict[str, Any]]:
    """What was found so far, by name of mutant; of mutants as they are today."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return {mutant.name: known[mutant.name] for mutant in mutants() if _same(known.get(mutant.name), mutant)}


def _same(found: dict[str, Any] | None, mutant: Mutant) -> bool:
    return found is not None and found["digest"] == mutant.digest


def caught(found: dict[str, Any]) -> bool:
    """Whether any detector noticed."""
    return any(found.get(name, {}).get("outcome") == "caught" for name in DETECTORS)


def table(known: dict[str, dict[str, Any]]) -> str:
    """The Markdown table of what was found, with its legend and a count."""
    rows = [
        f"| Defect | What it does | {' | '.join(NAMES[name].capitalize() for name in DETECTORS)} |",
        f"|---|---|{':-:|' * len(DETECTORS)}",
    ]
    everybody = [mutant for mutant in mutants() if mutant.name in known]
    for mutant in everybody:
        marks = (MARKS[known[mutant.name].get(name, {}).get("outcome")] for name in DETECTORS)
        rows.append(f"| {mutant.name} | {mutant.defect} | {' | '.join(marks)} |")
    counts = []
    for name in DETECTORS:
        outcomes = [known[mutant.name].get(name, {}).get("outcome") for mutant in everybody]
        counts.append(f"{NAMES[name]} {outcomes.count('caught')} of {len(outcomes) - outcomes.count(None)}")
    total = sum(caught(known[mutant.name]) for mutant in everybody)
    rows += ["", f"{total} of {len(everybody)} are caught; by detector, of those it was run on: {', '.join(counts)}."]
    return "\n".join([*rows, LEGEND])


def write_page(known: dict[str, dict[str, Any]]) -> None:
    """Put the table into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(known)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> int:
    """Try the mutants that were asked for and not tried yet; exit code 1 where one is caught by nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant, again if it was tried")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--quick", action="store_true", help="ask the tests that a mutant names, and no others")
    parser.add_argument(
        "--tables", action="store_true", help="write what is stored into docs/assurance.md, try nothing"
    )
    options = parser.parse_args()
    everybody = {mutant.name: mutant for mutant in mutants()}
    unknown = set(options.only or ()) - set(everybody)
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; there are: {', '.join(everybody)}")
    for mutant in everybody.values():
        mutant.patched(REPOSITORY)
    known = stored()
    if options.tables:
        write_page(known)
        print(table(known))
        return 0
    chosen = [everybody[name] for name in options.only or everybody if options.only or name not in known]
    broken = _try_all(chosen, known, options.jobs, options.quick)
    print(table(known))
    survivors = [name for name, found in known.items() if not caught(found)]
    for name in survivors:
        print(f"NOT CAUGHT: {name}")
    for text in broken:
        print(text, file=sys.stderr)
    return int(bool(survivors or broken))


def _try_all(chosen: Sequence[Mutant], known: dict[str, dict[str, Any]], jobs: int, quick: bool) -> list[str]:
    """Try mutants and store what is found; return what went wrong."""
    broken: list[str] = []
    if not chosen:
        return broken
    lock, local = threading.Lock(), threading.local()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        check_detectors(_own_copy(local, folder), chosen)

        def work(mutant: Mutant) -> None:
            try:
                found = attempt(_own_copy(local, folder), mutant, quick)
            except Broken as error:
                broken.append(str(error))
                print(f"{mutant.name}: BROKEN", flush=True)
                return
            with lock:
                known[mutant.name] = found
                RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            by = {name: found[name].get("by", "–") for name in DETECTORS if name in found}
            print(f"{mutant.name}: {by}, {found['seconds']} s", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, chosen))
    return broken


def _own_copy(local: threading.local, folder: str) -> Copy:
    if not hasattr(local, "copy"):
        local.copy = Copy(Path(tempfile.mkdtemp(dir=folder)))
    return local.copy


if __name__ == "__main__":
    raise SystemExit(main())
