"""The graph of stages: each is declared once, and dvc.yaml, the flow's order, the fan-out and the zones follow from it.

An artefact is written zone/name here: `private/votes` is data/private/<run>/votes. Whatever is private is never pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tasks.config.params import Params
from terrine.errors import TerrineError

SETTINGS, CODE = "private/parameters.yaml", "private/code.json"
"""What every stage reads: the run's parameters, and digests of the code that its stages use."""
METRICS, STUDENT = "release/metrics.json", "release/student"

VAULT = "terrine-private"
"""The DVC remote to which private artefacts are pushed, where the operator named one so; else they never are."""


@dataclass(frozen=True)
class Stage:
    """A stage: what it runs, what it depends on, what it makes. Several words in one string are several things."""

    name: str
    tasks: str
    """module:function of each task, called one after the other unless flows/stages.py spreads them. They are text, so
    that the process of one stage imports no other's."""
    makes: str
    needs: str = ""
    settings: str = ""
    """Keys of the run's parameters that it looks at."""
    comment: str = ""
    fans_out: Callable[[Params], bool] = lambda params: False
    """Whether its tasks are worth a worker pool or a cluster; for others starting one costs more than it gives."""
    shared: bool = False
    """Whether what another run made of the same will do: it follows from what the stage needs, and is no release."""


PARAMETERS = Stage(
    "parameters",
    tasks="tasks.runtime.parameters:write_parameters",
    needs="experiments/${item}.yaml",
    makes=f"{SETTINGS} {CODE} public/parameters.yaml",
    comment="the public ones are without what names files, machines and data",
)
"""The first stage of either pipeline. It alone reads params.yaml."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of one kind of run, in their order."""

    stages: tuple[Stage, ...]
    result: str
    """module:function that returns the result of a run as lines for the terminal."""
    check: str | None = None
    """module:function that refuses, before any work, a run that could not be completed."""
    is_default: bool = False
    """Whether dvc.yaml is this graph, for the run that params.yaml names. Any other run is made in selected/."""
    plots: Mapping[str, str] = field(default_factory=dict)
    """Tables that DVC plots, with how."""

    @property
    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name. Raises TerrineError with the known ones if there is none."""
        if name not in self.names:
            raise TerrineError(
                f"The pipeline of this run has no stage '{name}'. Its stages: {', '.join(self.names)}. Where dvc.yaml "
                "asks for it, make the run with `terrine run`."
            )
        return self.stages[self.names.index(name)]

    def between(self, first: str, last: str) -> tuple[Stage, ...]:
        """Return the stages from `first` to `last`, both included."""
        return self.stages[self.stages.index(self[first]) : self.stages.index(self[last]) + 1]

    @property
    def apart_from_private(self) -> set[str]:
        """The stages that neither need nor make a private artefact; settings are none."""
        return {stage.name for stage in self.stages if "private/" not in f"{stage.needs} {stage.makes}"}

    def dvc_yaml(self, head: str, wdir: str = "", *, vault: bool = False) -> str:
        """Return the text of a pipeline file for the run that DVC knows as `run`.

        wdir: its way to the project. vault: whether private artefacts have a remote of their own, `VAULT`.
        """
        stages = "\n".join(_declaration(stage, wdir, vault) for stage in self.stages)
        return f"{head}\nstages:\n{stages}\n" + "\n".join(self._shown(wdir and f"{wdir}/")) + "\n"

    def _shown(self, before: str) -> list[str]:
        """Return the lines of a pipeline file that say what DVC's tables and plots show: nothing private."""

        def path(artefact: str) -> str:
            return before + _path(artefact).replace("${item}", "${run}")

        plots = [f"  - {path(table)}: {{{how}}}" for table, how in self.plots.items()]
        return [
            *("metrics:", f"  - {path(METRICS)}"),
            *(["plots:", *plots] if plots else []),
            "artifacts:",
            f'  student: {{path: "{path(STUDENT)}", type: model, desc: what may be published}}',
        ]


def has_vault(root: Path) -> bool:
    """Tell whether DVC's configuration of a project names a remote for private artefacts."""
    from dvc.config import Config

    return (root / ".dvc").is_dir() and VAULT in Config(str(root / ".dvc"))["remote"]


def _declaration(stage: Stage, wdir: str, vault: bool) -> str:
    """Return the lines of a stage in a pipeline file."""
    params = [f"{_path(SETTINGS)}: [{', '.join(stage.settings.split())}]", f"{_path(CODE)}: [{stage.name}]"]
    lines = [
        f"  {stage.name}:" + (f" # {stage.comment}" if stage.comment else ""),
        '    foreach: ["${run}"]',
        "    do:",
        *([f"      wdir: {wdir}"] if wdir else []),
        f"      cmd: terrine stage {stage.name} --run ${{item}}",
        *_entries("params", ["params.yaml:"] if stage is PARAMETERS else params),
        *_entries("deps", [_path(artefact) for artefact in stage.needs.split()]),
        *_entries("outs", [_path(artefact) + _options(artefact, vault) for artefact in stage.makes.split()]),
    ]
    return "\n".join([*lines, ""])


def _entries(key: str, entries: Sequence[str]) -> list[str]:
    return [f"      {key}:", *(f"        - {entry}" for entry in entries)] if entries else []


def _path(artefact: str) -> str:
    zone, _, name = artefact.partition("/")
    return f"data/{zone}/${{item}}/{name}" if zone in ("private", "public", "release") else artefact


def _options(artefact: str, vault: bool) -> str:
    # What persists is in no cache of DVC's of runs: `push --run-cache` would send settings, digests and sizes along.
    where = f", remote: {VAULT}" if vault else ", push: false"
    return f": {{persist: true{where * artefact.startswith('private/')}}}"


def load(name: str) -> Any:
    """Return what `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
