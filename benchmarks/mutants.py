"""Mutants: defects of the kinds found in published code, put into Terrine one at a time, and who notices.

    python benchmarks/mutants.py                        # all of them: about forty minutes on a busy machine
    python benchmarks/mutants.py --only "deal by place" # one; may be given several times
    python benchmarks/mutants.py --quick                # only the tests that are expected to notice
    python -m benchmarks.tables                         # write the table into docs/assurance.md

A mutant is a patch in `mutants.yaml`. It is put into a copy of the repository, and three detectors are run on it:

- *tests*: the privacy tests, `PRIVACY_TESTS`, by `pytest -x`. Those that a mutant names go first, since one failure is
  enough; only when all of them pass the rest is run;
- *harness*: tests/neighbours but for its test of the audit, in the same way, for mutants that neighbours could show;
- *audit*: the command `terrine audit`: of a mechanism, or `--neighbours` on a small run of digits, `AUDITS`.

Every detector that is used is run on the code as it is first, and has to pass. A mutant counts as caught where a test
fails, or where an audit says so: a patch that breaks an import, or an error of Python's own that it raises, is an error
of the table and counts as nothing. Results are stored in `mutants.json` under a digest of the mutant, so an
interrupted run resumes and a changed mutant is tried again. `--jobs` tries several at once.
"""

import argparse
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
MUTANTS, RESULTS = (REPOSITORY / "benchmarks" / f"mutants.{suffix}" for suffix in ("yaml", "json"))

PRIVACY_TESTS = (
    "tests/terrine/privacy",
    "tests/terrine/aggregation",
    "tests/terrine/data",
    "tests/terrine/teachers",
    "tests/terrine/collaboration",
    "tests/terrine/transcription",
    "tests/tasks/config/test_params.py",
    "tests/tasks/parties/test_accuracy.py",
    "tests/tasks/pipeline/test_new_dataset.py",
    "tests/tasks/runtime/test_account_histories.py",
    "tests/tasks/runtime/test_release_identity.py",
    "tests/tasks/runtime/test_accounts.py",
    "tests/tasks/runtime/test_approval.py",
    "tests/tasks/runtime/test_parameters.py",
    "tests/tasks/runtime/test_releases.py",
    *(
        f"tests/tasks/pipeline/test_{name}.py"
        for name in (
            "partition_task",
            "teach",
            "vote",
            "aggregate",
            "average",
            "private_figures",
            "released_accuracy",
            "report",
            "sums",
            "two_tasks",
        )
    ),
    "tests/tasks/collaboration/test_accept.py",
    "tests/tasks/desk",
    "tests/tasks/parties/test_services.py",
    "tests/tasks/parties/test_config.py",
    "tests/tasks/serving/test_verification.py",
    "tests/tasks/tools/test_sweep.py",
    "tests/tasks/transcription/test_transcribe.py",
    "tests/flows/test_records_of_other_settings.py",
    "tests/flows/test_zones.py",
    "tests/flows/test_what_leaves.py",
)
HARNESS = tuple(f"tests/neighbours/test_{name}.py" for name in ("findings", "formats", "kinds", "release", "sums"))
AUDITS: dict[str, tuple[str, ...]] = {
    "gnmax": ("--mechanism", "gnmax"),
    "histogram": ("--mechanism", "histogram", "--runs", "2000"),
    "confident": ("--mechanism", "confident", "--sigma", "30", "--sigma1", "5"),
    "lnmax": ("--mechanism", "lnmax"),
    "moments": ("--mechanism", "moments"),
    "gradients": ("--mechanism", "gradients"),
    "neighbours": ("--run", "digits", "--neighbours", "2"),
    "neighbours of groups": ("--run", "people", "--neighbours", "2"),
    "canary rows": ("--run", "rows", "--canaries", "100"),
}
"""Arguments of `terrine audit`. `digits` is a run on digits whose rows have ids; `people` on the same in groups; `rows`
sums the rows of a table."""

DETECTORS = ("tests", "harness", "audit")
NAMES = {"tests": "privacy tests", "harness": "neighbour harness", "audit": "terrine audit"}

_LIMIT = 3600
_LIBRARIES = (
    *("numpy", "scipy.optimize", "scipy.stats", "pandas", "torch", "sqlalchemy", "pydantic", "jinja2", "PIL.Image"),
    *("safetensors.numpy", "pyarrow.parquet", "sklearn.datasets", "typer", "rich.progress", "filelock"),
    *("pytest", "hypothesis", "opendp.measurements"),
)
_PYTHONS_OWN = (
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
)

_PROJECT = """
import shutil
import numpy as np, yaml
from sklearn.datasets import load_digits
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
columns = [f"x{number}" for number in range(8)]
lines = [",".join([*map(str, image.reshape(-1)[20:28]), f"digit {label}"]) for image, label in zip(images, labels)]
(root / "rows.csv").write_text("\\n".join([",".join([*columns, "kind"]), *lines]))
values = {
    "description": "a table for an audit",
    "data": {"name": "table", "path": "rows.csv", "target": "kind", "columns": {name: [0, 255] for name in columns}},
    "partition": {"teachers": 2},
    "queries": {"count": 200},
    "backbone": {"kind": "columns"},
    "teachers": {"statistics": "original"},
    "aggregation": {"mechanism": "gradients", "rounds": 4, "epsilon": 1},
    "student": {"kind": "sums"},
    "ledger": {"account": "rows", "epsilon": 20},
}
(root / "experiments" / "rows.yaml").write_text(yaml.safe_dump(values))
from flows.stages import run_through
from tasks.runtime.parameters import write_parameters
for name in ("digits", "people", "rows"):
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
        """Digest of the mutant that the result belongs to."""
        about = [asdict(self), [AUDITS[name] for name in self.audit]]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]

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
    """A detector could not be run on a mutant."""


class Done(NamedTuple):
    """Result of a child process: exit code and output."""

    code: int
    out: str
    err: str


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
        self._scratch.mkdir()

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
        """Return the first failing test, or None."""
        options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:hydra_pytest", "--no-header", "--tb=no", "-rfE")
        with tempfile.TemporaryDirectory(dir=self._scratch) as base:
            done = self._run(lambda: _pytest([*options, f"--basetemp={base}/tests", *tests]))
        if done.code == 0:
            return None
        lines = [line for line in done.out.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if done.code != 1 or not lines:
            raise Broken(f"pytest ended with {done.code}:\n{done.out[-3000:]}{done.err[-3000:]}")
        if re.search(rf" - ({'|'.join(_PYTHONS_OWN)}): ", lines[0]):
            raise Broken(f"A patch that is no defect but nonsense: {lines[0]}")
        return lines[0].split(" ", 1)[1].split(" - ")[0]

    def audit_catches(self, names: Sequence[str]) -> str | None:
        """Return the first audit that catches the mutant, or None."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as project:
            if any("--run" in AUDITS[name] for name in names):
                made = self._run(lambda: exec(_PROJECT, {"root": Path(project), "repository": self.root}))
                if made.code:
                    raise Broken(f"The run to audit cannot be made:\n{made.err[-3000:]}")
            for name in names:
                command = ["terrine", "audit", *AUDITS[name], "--json"]
                done = self._run(lambda command=command: _module("flows", command), TERRINE_ROOT=project)
                try:
                    found = json.loads(done.out[done.out.index("{") :])["caught"]
                except ValueError as error:
                    raise Broken(f"terrine audit ({name}) gave no result:\n{done.out}{done.err[-3000:]}") from error
                if found:
                    return name
        return None

    def _run(self, work: Callable[[], object], **variables: str) -> Done:
        """Call `work` in a child of this process, where `terrine` and the others are those of the copy."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os._exit(self._in_child(work, variables))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            err.seek(0)
            return Done(code, out.read(), err.read())

    def _in_child(self, work: Callable[[], object], variables: Mapping[str, str]) -> int:
        signal.alarm(_LIMIT)
        gc.freeze()  # what was there before is no business of pytest's, which collects five times at its end
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os.chdir(self.root)
        os.environ.update(PYTHONPATH=str(self.root), **variables)
        own = {"", str(REPOSITORY), str(REPOSITORY / "benchmarks")}
        sys.path[:] = [str(self.root), *(path for path in sys.path if path not in own)]
        code: object = 70
        try:
            code = work()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        return code if isinstance(code, int) else int(code is not None)


def _pytest(arguments: list[str]) -> int:
    import pytest

    return int(pytest.main(arguments))


def _module(name: str, arguments: list[str]) -> None:
    sys.argv = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def load_libraries() -> None:
    """Import Terrine's dependencies, but not Terrine, so that forked children start fast."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in _LIBRARIES:
        importlib.import_module(name)


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
    """Load the stored results of the current mutants, by name."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return {mutant.name: known[mutant.name] for mutant in mutants() if _same(known.get(mutant.name), mutant)}


def _same(found: dict[str, Any] | None, mutant: Mutant) -> bool:
    return found is not None and found["digest"] == mutant.digest


def caught(found: dict[str, Any]) -> bool:
    """True if any detector caught it."""
    return any(found.get(name, {}).get("outcome") == "caught" for name in DETECTORS)


def table(known: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table of the outcomes by kind of defect, with a total."""
    rows = [
        f"| Kind of defect | Mutants | {' | '.join(NAMES[name].capitalize() for name in DETECTORS)} |",
        f"|---|---:|{'---:|' * len(DETECTORS)}",
    ]
    tried = [mutant for mutant in mutants() if mutant.name in known]
    for kind in dict.fromkeys(mutant.kind for mutant in tried):
        group = [known[mutant.name] for mutant in tried if mutant.kind == kind]
        rows.append(f"| {kind} | {len(group)} | {' | '.join(_share(group, name) for name in DETECTORS)} |")
    total = [known[mutant.name] for mutant in tried]
    rows.append(f"| all | {len(total)} | {' | '.join(_share(total, name) for name in DETECTORS)} |")
    return "\n".join([*rows, "", f"{sum(map(caught, total))} of {len(total)} are caught by at least one detector."])


def _share(group: list[dict[str, Any]], detector: str) -> str:
    outcomes = [found[detector]["outcome"] for found in group if detector in found]
    return f"{outcomes.count('caught')} of {len(outcomes)}" if outcomes else "–"


def main() -> int:
    """Try the selected mutants without a stored result; exit with 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant, again if it was tried")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--quick", action="store_true", help="ask the tests that a mutant names, and no others")
    options = parser.parse_args()
    everybody = {mutant.name: mutant for mutant in mutants()}
    unknown = set(options.only or ()) - set(everybody)
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; there are: {', '.join(everybody)}")
    for mutant in everybody.values():
        mutant.patched(REPOSITORY)
    known = stored()
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
    load_libraries()
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(jobs, fork, _begin, (folder,)) as pool,
    ):
        pool.submit(_check, chosen).result()
        asked = {pool.submit(_attempt, mutant, quick): mutant for mutant in chosen}
        for future in as_completed(asked):
            name = asked[future].name
            try:
                found = future.result()
            except Broken as error:
                broken.append(f"{name}: {error}")
                print(f"{name}: BROKEN, {error}", flush=True)
                continue
            known[name] = found
            RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            by = {part: found[part].get("by", "–") for part in DETECTORS if part in found}
            print(f"{name}: {by}, {found['seconds']} s", flush=True)
    return broken


_copies: list[Copy] = []
"""The copy of a process of the pool."""


def _begin(folder: str) -> None:
    _copies.append(Copy(Path(tempfile.mkdtemp(dir=folder))))


def _check(chosen: Sequence[Mutant]) -> None:
    check_detectors(_copies[0], chosen)


def _attempt(mutant: Mutant, quick: bool) -> dict[str, Any]:
    return attempt(_copies[0], mutant, quick)


if __name__ == "__main__":
    raise SystemExit(main())
