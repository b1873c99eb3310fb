"""Digests of stages' code for DVC, and the version of the code.

A digest covers the modules of the stage's tasks, tasks/artefacts, the package folders named in the stage graph, and the
packages of plugins that the run uses. The code digest is not part of a release ID: a stored release is returned even if
the code has changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tasks.config.params import FAMILIES
from tasks.runtime.run import Run
from tasks.runtime.stage_graph import PARAMETERS, Pipeline, Stage
from tasks.runtime.store import write_text

OURS = ("terrine", "tasks")


def write_code(run: Run, pipeline: Pipeline) -> None:
    """Write the code digest of each stage of a run to private/code if it changed."""
    for stage in pipeline.stages:
        if stage is not PARAMETERS:
            path, text = run.folders.private / "code" / stage.name, code_digest(run, stage)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_text(path, text)


def code_digest(run: Run, stage: Stage) -> str:
    """Return the digest of the code that a stage of a run uses."""
    modules = {task.partition(":")[0] for task in stage.tasks.split()} | {"tasks.artefacts"}
    folders = {folder if folder.startswith("tasks/") else f"terrine/{folder}" for folder in stage.code.split()}
    kinds = {type(getattr(run.params, name)).__module__ for name in FAMILIES.keys() & stage.sections}
    plugins = {kind.partition(".")[0] for kind in kinds}.difference(OURS)
    parts = [_digest(name) for name in sorted({*modules, *(folder.replace("/", ".") for folder in folders), *plugins})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() + "\n"


@cache
def _digest(name: str) -> str:
    """Return the digest of a module's file or of all files of a package."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    origin = Path(spec.origin)
    files = [origin] if spec.submodule_search_locations is None else sorted(origin.parent.rglob("*.*"))
    digest = hashlib.sha256(name.encode())
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".pyi"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def code_version(root: Path) -> dict[str, str]:
    """Return Terrine's version and, in a git checkout, the project's commit and whether its code has changed.

    Settings and results tracked in git (params.yaml, dvc.lock and data/) do not count as code.
    """
    version = {"terrine": importlib.metadata.version("terrine")}
    if commit := git_commit(root, ""):
        version["project commit"] = commit
        code = (".", ":!params.yaml", ":!dvc.lock", ":!data")
        version["modified"] = "yes" if _git(root, "status", "--porcelain", "-uno", "--", *code) else "no"
    return version


def git_commit(root: Path, default: str = "none") -> str:
    """Return the commit of a git checkout, or `default`."""
    return _git(root, "rev-parse", "HEAD") or default


def _git(root: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
