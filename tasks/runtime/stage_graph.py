"""The graph of stages: each is declared once, and dvc.yaml, the order of the flow, the fan-out and the zones follow.

An artefact is written zone/name here: `private/votes` is data/private/<run>/votes. Private artefacts are never pushed
unless the operator names a remote for them (`VAULT`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tasks.config.params import Params
from terrine.errors import TerrineError

METRICS, STUDENT, PLOTS = "release/metrics.json", "release/student", "release/plots"
CHOSEN = "private/chosen.yaml"
"""What was chosen for settings that are `auto`, by section."""
AUTOMATIC = {"privacy": "privacy", "partition": "partition", "queries.count": "queries", "aggregation": "aggregation"}
"""Settings of which some can be `auto`, and their sections in `CHOSEN`."""
RUNS = "runs"
"""The folder of runs other than the default one: runs/<run>/ has dvc.yaml, params.yaml and dvc.lock."""
VAULT = "terrine-private"
"""The DVC remote to which private artefacts are pushed if the operator named one so."""


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
    """Keys of the run's parameters that it reads."""
    code: str = ""
    """Package folders whose code decides what it makes, beside the modules of its tasks: folders of terrine, or
    `tasks/...`."""
    comment: str = ""
    fans_out: Callable[[Params], bool] = lambda params: False
    """Whether its tasks are worth a worker pool or a cluster; for others starting one costs more than it gives."""
    shared: bool = False
    """Whether a run may take what another run made from the same inputs (`tasks.runtime.reuse`): never a release."""


PARAMETERS = Stage(
    "parameters",
    tasks="tasks.runtime.parameters:write_parameters",
    makes=f"private/parameters.yaml private/code public/parameters.yaml {CHOSEN}",
    comment="the public ones lack what names files, machines and data",
)
"""The first stage of either pipeline. It checks the parameters, and chooses those that are `auto`."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of one kind of run, in their order."""

    stages: tuple[Stage, ...]
    result: str
    """module:function that returns the result of a run as lines for the terminal."""
    check: str | None = None
    """module:function that refuses, before any work, a run that could not be completed."""
    is_default: bool = False
    """Whether dvc.yaml is this graph, for the run that params.yaml names."""
    plots: Mapping[str, str] = field(default_factory=dict)
    """Tables that DVC plots, with how."""

    @property
    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name. Raises TerrineError with the known ones if there is none."""
        if name not in self.names:
            raise TerrineError(
                f"The pipeline of this run has no stage '{name}'. Its stages: {', '.join(self.names)}. If dvc.yaml "
                "asks for it, make the run with `terrine run`."
            )
        return self.stages[self.names.index(name)]

    def between(self, first: str, last: str) -> tuple[Stage, ...]:
        """Return the stages from `first` to `last`, both included."""
        return self.stages[self.stages.index(self[first]) : self.stages.index(self[last]) + 1]

    @property
    def public_stages(self) -> set[str]:
        """The stages that neither need nor make a private artefact; settings are none."""
        return {stage.name for stage in self.stages if "private/" not in f"{stage.needs} {stage.makes}"}

    def dvc_yaml(self, head: str, run: str = "${run}", *, vault: bool = False) -> str:
        """Return the text of a pipeline file.

        Args:
            head: Comment above it.
            run: A run other than the default one, whose pipeline file is runs/<run>/dvc.yaml.
            vault: Whether private artefacts have a remote of their own, `VAULT`.
        """
        root, path = ("", "params.yaml") if run == "${run}" else ("../../", f"{RUNS}/{run}/params.yaml")

        def place(artefact: str) -> str:
            zone, _, name = artefact.partition("/")
            return f"data/{zone}/{run}/{name}"

        def declaration(stage: Stage) -> str:
            keys = stage.settings.split()
            chosen = [section for key, section in AUTOMATIC.items() if key in keys]
            params = keys if not root else [f"{path}: [{', '.join(keys)}]"] * bool(keys)
            params += [f"{place(CHOSEN)}: [{', '.join(chosen)}]"] * bool(chosen)
            code = [] if stage is PARAMETERS else [place(f"private/code/{stage.name}")]
            return "\n".join(
                [
                    f"  {stage.name}:" + (f" # {stage.comment}" if stage.comment else ""),
                    *([f"    wdir: {root[:-1]}"] if root else []),
                    f"    cmd: terrine stage {stage.name} --run {run}",
                    *_entries("params", [f"{path}:"] if stage is PARAMETERS else params),
                    *_entries("deps", [*code, *map(place, stage.needs.split())]),
                    *_entries("outs", [place(each) + _options(each, vault) for each in stage.makes.split()]),
                    "",
                ]
            )

        plots = [f"  - {root}{place(table)}: {{{how}}}" for table, how in self.plots.items()]
        shown = [
            *("metrics:", f"  - {root}{place(METRICS)}"),
            *(["plots:", *plots] if plots else []),
            "artifacts:",
            f'  student: {{path: "{root}{place(STUDENT)}", type: model, desc: what may be published}}',
        ]
        return "\n".join([head, "stages:", *map(declaration, self.stages), *shown]) + "\n"


def sections_of(stage: Stage) -> set[str]:
    """Return the sections of the parameters that a stage reads."""
    return {key.partition(".")[0] for key in stage.settings.split()}


def has_vault(root: Path) -> bool:
    """Return whether DVC's configuration of a project names a remote for private artefacts."""
    import dvc.repo

    if not (root / ".dvc").is_dir():
        return False
    with dvc.repo.Repo(str(root), config={"core": {"no_scm": True}}) as repository:
        return VAULT in repository.config["remote"]


def _entries(key: str, entries: Sequence[str]) -> list[str]:
    return [f"    {key}:", *(f"      - {entry}" for entry in entries)] if entries else []


def _options(artefact: str, vault: bool) -> str:
    # Outputs that persist are not in DVC's run cache: `push --run-cache` would send settings, digests and sizes along.
    where = f", remote: {VAULT}" if vault else ", push: false"
    in_git = ", cache: false" if artefact in (METRICS, PLOTS) else ""
    return f": {{persist: true{where if artefact.startswith('private/') else in_git}}}"


def load(name: str) -> Any:
    """Return what `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
