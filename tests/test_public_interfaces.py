"""The product uses other projects through their public interfaces only.

No private modules or names, no internal modules that an upgrade may move, no attributes of their objects overwritten.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("flows", "tasks", "terrine")
FILES = sorted(path for top in OURS for path in (ROOT / top).rglob("*.py"))
INTERNAL = re.compile(
    r"dvc\.(?!(api|exceptions)\b|repo(\.Repo)?$)|prefect\.server\b|mlflow\.(pyfunc\.scoring_server|server|store|utils)\b"
    r"|uvicorn\.protocols\b"
)
"""Modules and names of other projects that are no documented interface."""
TAGS = re.compile(r"PREFECT__|mlflow\.sharedViewState|\.tmp_dir\s*=|lockfile_contents")
"""Internal settings, tags and attributes by their text."""
SETTINGS = {"pydicom.config.settings.reading_validation_mode", "ImageFile.LOAD_TRUNCATED_IMAGES"}
"""Attributes that are meant to be assigned, by their project's documentation."""


def is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def imports(tree):
    """Yield (line, full name, bound name) of what a file imports from other projects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for name, bound in names:
            if name.partition(".")[0] not in {*OURS, *sys.stdlib_module_names}:
                yield node.lineno, name, bound


def root_of(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def violations(source):
    """Return what a file does to other projects that it may not, by line."""
    tree = ast.parse(source)
    known = list(imports(tree))
    bound = {name for _, _, name in known}
    found = [f"{line}: {name}" for line, name, _ in known if INTERNAL.match(name) or is_private(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and root_of(node) in bound:
            if isinstance(node.ctx, ast.Store | ast.Del) and ast.unparse(node) not in SETTINGS:
                found.append(f"{node.lineno}: overwrites {ast.unparse(node)}")
            elif is_private(node.attr):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and root_of(node.func) == "setattr" and root_of(node.args[0]) in bound:
            found.append(f"{node.lineno}: overwrites {ast.unparse(node)}")
    lines = source.splitlines()
    return found + [f"{number}: {text.strip()}" for number, text in enumerate(lines, 1) if TAGS.search(text)]


def test_no_file_uses_what_is_private_to_another_project():
    found = {str(path.relative_to(ROOT)): violations(path.read_text(encoding="utf-8")) for path in FILES}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "from dvc.stage.serialize import to_lockfile",
        "import dvc.dvcfile",
        "from prefect.server.database import configuration",
        "from mlflow.utils.mlflow_tags import MLFLOW_USER",
        "from sklearn.tree._tree import Tree",
        "import torch\ntorch._dynamo.reset()",
        "import torch\ntorch.nn.Linear.forward = None",
        "import uvicorn\nsetattr(uvicorn.config, 'LOG', 1)",
        "os.environ['PREFECT__SERVER_EPHEMERAL'] = '1'",
    ],
)
def test_a_private_use_is_found(source):
    assert violations(source)


@pytest.mark.parametrize(
    "source",
    [
        "from dvc.repo import Repo",
        "from dvc.exceptions import DvcException",
        "import numpy as np\nnp.__version__",
        "from terrine._build import x",
    ],
)
def test_a_public_use_is_none(source):
    assert not violations(source)
