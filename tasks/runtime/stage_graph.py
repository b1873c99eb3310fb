"""Declarations of stages, which determine dvc.yaml, the order of the flow, the fan-out and the zones.

An artefact is written as zone/name: `private/votes` is data/private/<run>/votes. Private artefacts are never pushed
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
"""Values chosen for settings that are `auto`, by section."""
AUTOMATIC = {"privacy": "privacy", "partition": "partition", "queries.count": "queries", "aggregation": "aggregation"}
"""Settings that can be `auto` or contain it, and their sections in `CHOSEN`."""
RUNS = "runs"
"""Folder of all runs but the default one: runs/<run>/ has dvc.yaml, params.yaml and dvc.lock."""
VAULT = "terrine-private"
"""Name of the DVC remote for private artefacts."""


@dataclass(frozen=True)
class Stage:
    """A stage. Lists are strings with entries separated by blanks.

    Attributes:
        name: Name of the stage.
        tasks: module:function of each task, in order. These are names, so that a stage imports only its own tasks.
        makes: Artefacts that the stage writes.
        needs: Artefacts that the stage reads.
        settings: Keys of the parameters that the stage reads.
        code: Package folders (in terrine, or `tasks/...`) whose code affects the artefacts, besides the tasks' modules.
        comment: Comment above the stage in dvc.yaml.
        fans_out: Whether the stage's tasks justify starting a worker pool or a cluster.
        shared: Whether runs share the stage's artefacts (`tasks.runtime.reuse`); never true for a release.
        releases: module:function that returns the `Proposal` of the stage's releases; empty if it makes none.
    """

    name: str
    tasks: str
    makes: str
    needs: str = ""
    settings: str = ""
    code: str = ""
    comment: str = ""
    fans_out: Callable[[Params], bool] = lambda params: False
    shared: bool = False
    releases: str = ""

    @property
    def sections(self) -> set[str]:
        """Sections of the parameters that the stage reads."""
        return {key.partition(".")[0] for key in self.settings.split()}


PARAMETERS = Stage(
    "parameters",
    tasks="tasks.runtime.parameters:write_parameters",
    makes=f"private/parameters.yaml private/code public/parameters.yaml {CHOSEN}",
    comment="the public ones lack names of files, hosts and data",
)
"""First stage of all pipelines: checks the parameters and chooses those that are `auto`."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of one kind of run, in order.

    Attributes:
        stages: The stages.
        result: module:function that returns the result of a run as text.
        check: module:function that raises an error for a run that cannot be completed.
        is_default: Whether dvc.yaml declares this pipeline.
        plots: DVC's plot options by table, with a placeholder for the run.
    """

    stages: tuple[Stage, ...]
    result: str
    check: str | None = None
    is_default: bool = False
    plots: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name. Raises TerrineError for unknown names."""
        if name not in self.names:
            raise TerrineError(
                f"The pipeline of this run has no stage '{name}', only {', '.join(self.names)}. If dvc.yaml names it, "
                "use `terrine run`."
            )
        return self.stages[self.names.index(name)]

    def between(self, first: str, last: str) -> tuple[Stage, ...]:
        """Return the stages from `first` to `last`, both included."""
        return self.stages[self.stages.index(self[first]) : self.stages.index(self[last]) + 1]

    @property
    def public_stages(self) -> set[str]:
        """Names of the stages that neither read nor write private artefacts."""
        return {stage.name for stage in self.stages if "private/" not in f"{stage.needs} {stage.makes}"}

    def dvc_yaml(self, head: str, run: str = "${run}", *, vault: bool = False) -> str:
        """Return the text of dvc.yaml.

        Args:
            head: Comment at the top of dvc.yaml.
            run: Run whose file is runs/<run>/dvc.yaml. Default: the default run.
            vault: Whether private artefacts are pushed to the remote `VAULT`.
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

        plots = [f"  - {root}{place(table)}: {{{how.format(run=run)}}}" for table, how in self.plots.items()]
        shown = [
            *("metrics:", f"  - {root}{place(METRICS)}"),
            *(["plots:", *plots] if plots else []),
            "artifacts:",
            f'  student: {{path: "{root}{place(STUDENT)}", type: model, desc: the model to publish}}',
        ]
        return "\n".join([head, "stages:", *map(declaration, self.stages), *shown]) + "\n"


def has_vault(root: Path) -> bool:
    """Return whether a project's DVC configuration names a remote for private artefacts."""
    import dvc.repo

    if not (root / ".dvc").is_dir():
        return False
    with dvc.repo.Repo(str(root), config={"core": {"no_scm": True}}) as repository:
        return VAULT in repository.config["remote"]


def _entries(key: str, entries: Sequence[str]) -> list[str]:
    return [f"    {key}:", *(f"      - {entry}" for entry in entries)] if entries else []


def _options(artefact: str, vault: bool) -> str:
    # Persistent outputs are not in DVC's run cache, which would push settings, digests and sizes.
    where = f", remote: {VAULT}" if vault else ", push: false"
    in_git = ", cache: false" if artefact in (METRICS, PLOTS) else ""
    return f": {{persist: true{where if artefact.startswith('private/') else in_git}}}"


def load(name: str) -> Any:
    """Import and return `module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
