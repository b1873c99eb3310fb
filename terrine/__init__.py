"""Terrine: private knowledge transfer from many teachers to a student that may be published.

The science, arrays and tensors in and out. This package imports neither Prefect, DVC nor MLflow and opens no project
path; `tasks` reads and writes files around it and `flows` orders the work.

    import terrine as tr

Names are imported when they are first used, so this alone takes no time; `__init__.pyi` lists them, once. What can be
done with them is said in docs/library.md, which begins with an example that runs.
"""

import ast
import importlib
import os
from pathlib import Path
from typing import Any

# Before the first product of matrices: without it MKL lets the last bit of a product of few columns depend on where in
# memory its rows begin, so on a teacher's place in its group and on an image's place in a request. Costs no time.
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
