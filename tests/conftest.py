"""What every test may use."""

import os
from pathlib import Path

import pytest

from flows.environment import prepare_environment

prepare_environment()

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with real data and reference values, or a skip: a user's machine does not have it."""
    folder = Path(os.environ.get("TERRINE_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"reference data not found in {folder}; set TERRINE_SHARED to the folder that holds it")
    return folder
