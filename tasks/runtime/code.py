"""Which code a stage uses, as a digest in its entry of dvc.lock: DVC runs it again after a change of that code.

The code is found in the sources, and nothing is imported: from a stage's tasks by the names that each definition uses,
through imports, to every definition of ours that can be reached, and to the templates and tables whose file names stand
there. A release's identity knows nothing of it: a release that is stored is returned, whatever code asks for it.

A kind (of teachers, of a mechanism, ...) is found by its class, for a stage names its section and not its code.
Comments, docstrings and the file in which a definition stands do not count. Nor does the code that says what a run's
parameters are (`SETTLED`): DVC compares their values.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from tasks.config.params import FAMILIES
from tasks.runtime.graph import CODE, PARAMETERS, Pipeline
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json, write_text

OURS = ("terrine", "tasks")
SETTLED = re.compile(r"tasks\.(config\..+|\w+\.graph)$")
FILE_OR_MODULE = re.compile(r"[\w/-]+([.:][\w-]+)+")
OWN_PACKAGE = {"__name__", "__package__", "__path__"}
ALL, EFFECTS = "*", ""
"""In place of a definition's name: everything in the module; and nothing, but what importing it does."""

Place = tuple[str, str]
"""A module and the name of a definition in it, or the name of a file and ALL."""

Definition = tuple[list[str], str, list[str]]
"""The names that a statement defines, none where it acts; its text; and what it uses, as dotted names."""

_read: dict[str, Any] = {}
"""What this process has read of each source, with the source's time and size."""


def write_code(run: Run, pipeline: Pipeline) -> None:
    """Write, where DVC compares it, a digest for each stage of the code that it uses: its tasks', and that of the kinds
    which the run has of the sections that the stage reads, from plugins too."""
    memory = run.root / ".dvc" / "tmp" / "code.json"
    if not _read and memory.is_file():
        _read.update(read_json(memory))
    known = dict(_read)
    kinds = {name: type(getattr(run.params, name)) for name in FAMILIES}
    sources = Sources([*OURS, *{kind.__module__.partition(".")[0] for kind in kinds.values()}.difference(OURS)])
    digests = {}
    for stage in pipeline.stages:
        if stage is not PARAMETERS:
            used = {key.partition(".")[0] for key in stage.settings.split()} & kinds.keys()
            chosen = [f"{kinds[name].__module__}:{kinds[name].__name__}" for name in sorted(used)]
            digests[stage.name] = sources.digest([*stage.tasks.split(), *chosen])
    if known != _read or not memory.is_file():
        write_text(memory, json.dumps(_read))
    path = run.folders.private / Path(CODE).name
    if not path.is_file() or read_json(path) != digests:
        write_json(path, digests)


class Sources:
    """The sources of some packages."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._modules: dict[str, Path] = {}
        self._files: dict[str, Path] = {}
        for package in packages:
            start = Path(find_spec(package).origin)
            for path in start.parent.rglob("*.*") if start.name == "__init__.py" else [start]:
                if path.suffix == ".py":
                    name = ".".join(path.relative_to(start.parent.parent).with_suffix("").parts)
                    self._modules[package if path == start else name.removesuffix(".__init__")] = path
                elif path.suffix != ".pyc":
                    self._files[path.name] = path
        self._places = cache(self._all_places)

    def digest(self, names: Iterable[str]) -> str:
        """Return a digest of everything that these, each `module:function` or a module, can reach."""
        texts = set().union(*self.reached(names).values())
        return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16]

    def reached(self, names: Iterable[str]) -> dict[Place, set[str]]:
        """Return the definitions and files that these can reach, each with its text."""
        waiting = [place for name in names for place in self._places(name)]
        texts = dict[Place, set[str]]()
        while waiting:
            place = waiting.pop()
            if place not in texts:
                found = list(self._found(*place))
                texts[place] = {text for text, _ in found}
                waiting += set().union(*(self._places(use) for _, uses in found for use in uses))
        return texts

    def _all_places(self, use: str) -> set[Place]:
        """Return the module that a dotted name leads into, with the name of the definition in it, and its packages.

        A name in a text (after a quote) may be that of a file, too; and it may be something else altogether.
        """
        text, parts = use.startswith("'"), use.lstrip("'").replace(":", ".").split(".")
        if text and (file := use[1:].rpartition("/")[2]) in self._files:
            return {(file, ALL)}
        length = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in self._modules), 0)
        module, name = ".".join(parts[:length]), (*parts, ALL)[length]
        defined = name == ALL or (length and any(name in names for names, _, _ in self._definitions(module)))
        if not length or SETTLED.match(module) or (text and not defined):
            return set()
        if not defined:
            name = EFFECTS if name.startswith("__") else ALL
        return {(module, name), *((".".join(parts[:shorter]), EFFECTS) for shorter in range(1, length))}

    def _found(self, module: str, name: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the text of a definition, or of a file, and what it uses."""
        if module in self._files:
            text = self._files[module].read_text(encoding="utf-8")
            yield text, [f"'{file}" for file in self._files if file in text]
            return
        for names, text, uses in self._definitions(module):
            if not names or name == ALL or name in names:
                yield text, uses
        if name == ALL and self._modules[module].stem == "__init__":
            yield "", [other for other in self._modules if other.rpartition(".")[0] == module]

    def _definitions(self, module: str) -> list[Definition]:
        path = self._modules[module]
        state = [path.stat().st_mtime_ns, path.stat().st_size]
        if str(path) not in _read or _read[str(path)][0] != state:
            package = module if path.stem == "__init__" else module.rpartition(".")[0]
            _read[str(path)] = [state, definitions_of(path.read_text(encoding="utf-8"), module, package)]
        return _read[str(path)][1]


def definitions_of(source: str, module: str, package: str) -> list[Definition]:
    """Return the definitions of a module; an import is one without text, of the name under which it is known."""
    lines, imports = source.splitlines(), dict[str, list[str]]()
    statements = [
        _Statement(node, package, imports)
        for node in ast.parse(source).body
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
    ]
    own = {name for statement in statements for name in statement.names}

    def targets(use: str) -> list[str]:
        first, dot, rest = use.partition(".")
        if first.startswith("'"):
            return [use]
        return [*(target + dot + rest for target in imports.get(first, ())), *([f"{module}.{first}"] * (first in own))]

    found = [
        (each.names, each.text(lines), [target for use in sorted(each.uses) for target in targets(use)])
        for each in statements
    ]
    named = {use.partition(".")[0] for each in statements for use in each.uses}
    # What is imported and never named is imported for what it does: a registration, for instance.
    return found + [([alias] * (alias in named), "", whole) for alias, whole in imports.items()]


class _Statement:
    """A statement of a module: the names that it defines, and those that it uses.

    What is used is dotted; after a quote it is a text that may name a file or a module. What is imported anywhere in it
    is added to the module's imports.
    """

    def __init__(self, node: ast.stmt, package: str, imports: dict[str, list[str]]) -> None:
        self.names: list[str] = []
        self.uses: set[str] = set()
        self._node, self._package, self._imports = node, package, imports
        self._remarks: set[int] = set()
        self._quoted: set[int] = set()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            stored = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            self.names = [inner.id for inner in stored if isinstance(inner.ctx, ast.Store)]
        self._look(node)

    def text(self, lines: list[str]) -> str:
        """Return a digest of its lines without docstrings, lines of comment and empty lines."""
        if isinstance(self._node, ast.Import | ast.ImportFrom):
            return ""
        first = min([self._node.lineno, *(each.lineno for each in getattr(self._node, "decorator_list", ()))])
        kept = [
            line
            for number, line in enumerate(lines[first - 1 : self._node.end_lineno], start=first)
            if number not in self._remarks and (number in self._quoted or line.strip()[:1] not in ("", "#"))
        ]
        return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):
                self._remarks |= set(range(node.lineno, node.end_lineno + 1))
                return
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                self.uses.add(f"{name}.{attribute}")
                return
            case ast.BinOp(left=ast.Attribute(value=ast.Name() | ast.Attribute()), right=ast.Constant()):
                self._look(node.left)  # run.folders / "report.html" is an artefact
                return
            case ast.Name(id=name):
                self.uses.add(name)
            case ast.Constant() | ast.JoinedStr() if node.end_lineno > node.lineno:
                self._quoted |= set(range(node.lineno + 1, node.end_lineno + 1))
            case ast.Constant(value=str(text)) if FILE_OR_MODULE.fullmatch(text):
                self.uses.add(f"'{text}")
            case ast.Call(func=function, args=arguments) if getattr(function, "attr", "") != "getLogger":
                # A module that hands on its own name, unless it is to a log, looks for others beside it.
                if any(isinstance(argument, ast.Name) and argument.id in OWN_PACKAGE for argument in arguments):
                    self.uses.add(f"'{self._package}")
            case ast.Import(names=names):
                for each in names:
                    self._imports.setdefault(each.asname or each.name.partition(".")[0], []).append(each.name)
            case ast.ImportFrom(names=names):
                source = resolve_name("." * node.level + (node.module or ""), self._package)
                for each in names:
                    self._imports.setdefault(each.asname or each.name, []).append(f"{source}.{each.name}")
        for inner in ast.iter_child_nodes(node):
            self._look(inner)
