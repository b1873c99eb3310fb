"""The tests nearest to what was changed, within a minute: `make quick`.

Near is a test whose imports lead to a changed module over few others (or that names a changed file, where it is no
module). The nearest files are run in this order until the time is up, and omitted ones are listed. `make test` runs
all.
Imports do not show the code that a test uses in other processes or by registries.
"""

import argparse
import ast
import functools
import subprocess
import sys
import time
from pathlib import Path

import grimp
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("terrine", "tasks", "flows")
FILES, SECONDS = 15, 35


def changed_files(base: str | None = None) -> list[str]:
    """Return what differs from `base`; by default what is not committed, else the last commit."""

    def listed(*words: str) -> list[str]:
        said = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return said.stdout.splitlines()

    new = listed("ls-files", "--others", "--exclude-standard")
    found = listed("diff", "--name-only", base or "HEAD") + new
    return found if found or base else listed("diff", "--name-only", "HEAD~1")


def module_of(path: str) -> str:
    """Return the name under which a file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(text: str) -> set[str]:
    """Return the modules that a text names in its imports, and those that what it takes from them may be."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@functools.cache
def import_graph() -> grimp.ImportGraph:
    """Return who imports whom."""
    return grimp.build_graph(*PACKAGES, include_external_packages=False, exclude_type_checking_imports=True)


@functools.cache
def test_files() -> dict[Path, tuple[str, set[str]]]:
    """Return the text of every test file, and the modules that it imports."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "tests").rglob("test_*.py"))}
    return {path: (text, imported(text)) for path, text in texts.items()}


def near(changed: list[str]) -> list[str]:
    """Return test files, nearest first, that these files reach."""
    graph = import_graph()
    distance = {module_of(path): 0 for path in changed if path.endswith(".py")}
    waiting = [module for module in distance if module in graph.modules]
    while waiting:
        module = waiting.pop(0)
        for importer in graph.find_modules_that_directly_import(module) - distance.keys():
            distance[importer] = distance[module] + 1
            waiting.append(importer)
    others = {Path(path).name for path in changed if not path.endswith(".py")}
    reached = {}
    for path, (text, modules) in test_files().items():
        name = str(path.relative_to(REPOSITORY))
        steps = [distance[module] + 1 for module in modules & distance.keys()]
        steps += [1] * any(other in text for other in others)
        # Among equally near files, the one named after the changed file comes first.
        called = not any(Path(other).stem in path.stem for other in changed)
        if name in changed or steps:
            reached[name] = (-1 if name in changed else min(steps), called)
    return sorted(reached, key=lambda name: (*reached[name], name))


class Clock:
    """Stops a pytest session after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end, self.waiting = seconds, float("inf"), 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.end, self.waiting = time.monotonic() + self.seconds, len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        self.waiting -= 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if time.monotonic() > self.end:
            item.session.shouldstop = "the time is up"


def main() -> int:
    """Run what is near, and say what was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="a commit to compare with")
    arguments = parser.parse_args()
    found = near(changed_files(arguments.base))
    if not found:
        print("No test reaches what was changed.")
        return 0
    clock = Clock(SECONDS)
    code = pytest.main(["-q", "-x", "-m", "not slow", *found[:FILES]], plugins=[clock])
    left = f"{clock.waiting} tests of these files and {max(0, len(found) - FILES)} files farther away were not run"
    print(f"{len(found)} files of tests reach what was changed; {left}. `make test` runs all.")
    # Stopped by the clock is no failure, and neither is that all there were are slow.
    stopped = code == pytest.ExitCode.INTERRUPTED and time.monotonic() > clock.end
    return 0 if stopped or code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
