"""Fixtures and settings of all tests."""

import gc
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything loads OpenMP, and for child processes too: tests run beside each other, and some compare the bytes of
# results with those of a child, whose sums another number of threads would round otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest

from flows.environment import prepare_environment

prepare_environment()

# The same examples each time, so that only a change turns a test red. HYPOTHESIS_PROFILE=explore looks for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

REPOSITORY = Path(__file__).resolve().parents[1]

# A run syncs each of its files and folders. No test can pull the plug: what a kill leaves, the system still writes.
os.fsync = lambda descriptor: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the collector what is imported and collected: nearly a million objects, which all stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed each test and its fixtures, so that results do not depend on the order of tests."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def follow_the_schema() -> Iterator[None]:
    """Check every statement that a test writes against the published JSON Schema."""
    from terrine.privacy import statement
    from tests.statement_schema import check_schema

    write = statement.write_text

    def checked(path: Path, text: str) -> None:
        check_schema(json.loads(text))
        write(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "write_text", checked)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of torch on one thread, so that results can be compared bit by bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with real data and reference values, or a skip: a user's machine does not have it."""
    folder = Path(os.environ.get("TERRINE_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"reference data not found in {folder}; set TERRINE_SHARED to the folder that holds it")
    return folder
