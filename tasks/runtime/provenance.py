"""Which code made a result: version and git commit."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path


def code_version(root: Path) -> dict[str, str]:
    """Return Terrine's version and, in a git checkout, its commit and whether tracked code differs from it.

    params.yaml is left out of the comparison: it only names the run.
    """
    version = {"terrine": importlib.metadata.version("terrine")}
    commit = _git(root, "rev-parse", "HEAD")
    if commit:
        version["commit"] = commit
        version["modified"] = "yes" if _git(root, "status", "--porcelain", "-uno", "--", ".", ":!params.yaml") else "no"
    return version


def _git(root: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
