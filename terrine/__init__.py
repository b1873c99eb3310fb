"""Terrine: private knowledge transfer from many teachers to a student that may be published.

This package contains the methods, as functions of arrays and tensors. It never imports Prefect, DVC or MLflow and opens
no project path: `tasks` reads and writes files, and `flows` orders the work.

    import terrine as tr

Names are imported on first use; `__init__.pyi` lists them. See docs/library.md.
"""

import ast
import importlib
import os
from pathlib import Path
from typing import Any

# Set before the first matrix product: otherwise the last bit of MKL's products with few columns depends on the
# alignment of rows in memory, hence on a teacher's place in its group and an image's place in a request. This does not
# make products slower.
os.environ.setdefault("MKL_CBWR", "AUTO")

_PLACES = {
    name.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
