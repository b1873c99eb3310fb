"""The notebooks run, and their links lead somewhere."""

import os
import re

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient

from benchmarks.tables import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One process for all notebooks, as each would load the science for seconds."""
    manager = KernelManager(kernel_name="python3")
    environment = os.environ | {"TERRINE_SMALL": "1", "PYTHONPATH": str(REPOSITORY), "TERRINE_CIFAR10": ""}
    manager.start_kernel(cwd=str(tmp_path_factory.mktemp("notebooks")), env=environment)
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_kept_without_outputs(path, kernel):
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
    book.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    NotebookClient(book, km=kernel, timeout=300).execute(cleanup_kc=False)
    assert any("image/png" in output.get("data", {}) for cell in book.cells for output in cell.get("outputs", ()))


def test_links_of_the_notebooks_lead_somewhere():
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\((?!https?:)([^)#\\]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), target
