"""Presets and runs: which parameters a run name stands for.

A preset is `experiments/NAME.yaml`: one line of `description` and what differs from the defaults; with `base: OTHER`,
what differs from another preset. params.yaml is the preset of the default run, which it names (`run: NAME`); its
sections in `SITE` hold for all runs of the project.

A run is a preset, or a preset with overrides: then its name carries a digest of them, or is the one it was given
(`--name`), and its overrides are kept in a git-ignored file beside the presets. A run's name is public, so a digest of
overrides that name the site's files or account is keyed: a third party cannot test guesses against it.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from tasks.config.automatic import take_out
from tasks.config.params import AUTO, FAMILIES, Params, lay_over, published, validate
from tasks.config.values import as_document, as_yaml, digest, flat, parse_assignment, parse_assignments, read_yaml
from terrine.errors import SettingError, did_you_mean
from terrine.files import write_text
from terrine.privacy.ledger.site_key import keyed_digest, load_or_create_key

PRESETS = "experiments"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
DERIVED_NAME = re.compile(r"^(?P<preset>[a-z0-9][a-z0-9-]*)-(?P<digest>[0-9a-f]{8})$")
SELECTED = Path(".dvc", "tmp", "terrine", "selected")
"""The run that was selected last, and the default run at that time; DVC keeps git away from the folder."""
SITE = ("device", "ledger", "runner", "tracking")
"""Sections of params.yaml that hold for all runs of the project."""
FOLDERS = ("ledger", "shared", "site", "source", "benchmarks")
"""What lies in data/<zone>/ beside the folders of runs; no run has such a name."""
GROUPS = {
    "your-own-": "To start from, with data of your own",
    "terrine-": "Terrine's own",
    "pate-": "Scalable PATE",
    "diet-pate-": "DIET-PATE",
    "prom-pate-": "Prom-PATE, and Transfer-PATE as its rival",
    "transfer-pate-": "Prom-PATE, and Transfer-PATE as its rival",
    "ttac-": "TTAC: parties whose data differ",
    "diet-heterogeneous-": "TTAC: parties whose data differ",
    "dpsd-": "DPSD and FedDPSD: transcription of a model",
    "feddpsd-": "DPSD and FedDPSD: transcription of a model",
}
"""What a preset is for, by how its name begins; any other is the user's."""
YOURS = "Your presets"


@dataclass(frozen=True)
class Preset:
    """A named choice of parts, or, where it is made from another, a run."""

    name: str
    description: str
    overrides: dict[str, Any]
    made_from: str | None = None
    """Of a run the preset that it is made from."""

    @property
    def group(self) -> str:
        """Its purpose."""
        return next((group for start, group in GROUPS.items() if self.name.startswith(start)), YOURS)


def presets(root: Path) -> list[Preset]:
    """Return the presets of the project, without runs, by name."""
    return [preset for preset in _all(root) if preset.made_from is None]


def presets_by_group(root: Path) -> list[tuple[str, list[Preset]]]:
    """Return the presets by purpose, the user's own first."""
    known = presets(root)
    titles = dict.fromkeys([YOURS, *GROUPS.values()])
    return [(title, [preset for preset in known if preset.group == title]) for title in titles]


def runs(root: Path) -> list[str]:
    """Return the names of all runs that were named, derived or begun."""
    begun = {path.parent.name for path in (root / "data" / "private").glob("*/parameters.yaml")}
    return sorted(begun | {preset.name for preset in _all(root) if preset.made_from is not None})


def not_begun(root: Path, name: str) -> str:
    """Return the error message about a run that does not exist: known runs, and the command that makes it."""
    known = [run for run in runs(root) if run != name]
    begun = f" Runs here: {', '.join(known)}." if known else " There are no runs here yet."
    if parameter_file(root, name).is_file() and Path(name).name == name:
        return f"Run {name} was not begun yet: terrine run --preset {name}.{begun}"
    return f"There is no run '{name}'.{did_you_mean(name, known)}{begun}"


def _all(root: Path) -> list[Preset]:
    return [read_preset(root, name) for name in sorted(_names(root))]


def _names(root: Path) -> set[str]:
    names = {path.stem for path in (root / PRESETS).glob("*.yaml")}
    default = named_run(root) if (root / "params.yaml").is_file() else None
    return names | {default} if default is not None and is_default(root, default) else names


_LONGEST = 255
_NOT_KEPT: dict[Path, Preset] = {}
"""What this process alone knows, by the file that there would be: runs that were named and not kept."""


def parameter_file(root: Path, name: str) -> Path:
    """Return where the parameters of a preset or a run are, or would be."""
    path, default = root / PRESETS / f"{name}.yaml", root / "params.yaml"
    if _exists(path) or not default.is_file():
        return path
    values = read_yaml(default)
    return default if values.get("run") == name and values.keys() - {"run", *SITE} else path


def _exists(path: Path) -> bool:
    # Asking for a longer name is an error.
    return len(path.name.encode(errors="replace")) <= _LONGEST and path.is_file()


def is_default(root: Path, name: str) -> bool:
    """Return whether params.yaml holds the parameters of this run."""
    return parameter_file(root, name) == root / "params.yaml"


def read_preset(root: Path, name: str, above: tuple[str, ...] = ()) -> Preset:
    """Read one preset or run, laid over the preset that it names as its `base`, if it does.

    above: presets that rest on this one. Raises SettingError if there is none of this name.
    """
    path = parameter_file(root, name)
    if path in _NOT_KEPT and not path.is_file():
        return _NOT_KEPT[path]
    if not _exists(path) or Path(name).name != name:
        near = did_you_mean(name, sorted(_names(root)))
        raise SettingError(f"There is no preset '{name}'.{near} `terrine presets` lists them.")
    if name in FOLDERS:
        raise SettingError(f"{path}: its run would lie in data/private/{name}, which is not for runs. Rename the file.")
    values = read_yaml(path)
    description, base = str(values.pop("description", "")).strip(), values.pop("base", None)
    if path == root / "params.yaml":
        values.pop("run")
        return Preset(name, description, _without_defaults(values))
    derived = DERIVED_NAME.match(name)
    made_from = values.pop("preset", derived and derived["preset"])
    if base is not None:
        if base in (name, *above):
            raise SettingError(f"{path}: base is {base}, which rests on {name} itself. Name another preset, or none.")
        values = lay_over(read_preset(root, str(base), (*above, name)).overrides, values)
    return Preset(name, description, values, made_from)


def named_run(root: Path) -> str:
    """Return the run that params.yaml names."""
    name = read_yaml(root / "params.yaml").get("run")
    if not isinstance(name, str) or not name:
        raise SettingError("params.yaml: run is missing. Name a preset there, for example run: terrine-digits.")
    return name


def selected_run(root: Path) -> str:
    """Return the run that was selected last, or the one that params.yaml names, whichever is the later choice."""
    path, named = root / SELECTED, named_run(root)
    chosen, _, instead_of = path.read_text(encoding="utf-8").partition(" ") if path.is_file() else ("", "", "")
    return chosen if instead_of == named else named


def select(root: Path, run: str) -> None:
    """Make this run the one that later commands mean if they name none. No file of the project is changed."""
    write_text(root / SELECTED, f"{run} {named_run(root)}")


def of_the_project(root: Path) -> dict[str, Any]:
    """Return what params.yaml sets for every run.

    Raises SettingError if it has parameters of a run that has a file of its own: one of the two would be ignored.
    """
    values = read_yaml(root / "params.yaml")
    own = sorted(values.keys() - {"run", "description", *SITE})
    path = root / PRESETS / f"{values.get('run')}.yaml"
    if own and path.is_file():
        raise SettingError(
            f"params.yaml and {PRESETS}/{path.name} both set parameters of the run {path.stem} ({', '.join(own)}). In "
            f"params.yaml, leave only run, {', '.join(SITE)}; or remove {PRESETS}/{path.name}."
        )
    return lay_over({}, {name: values[name] for name in SITE if name in values})


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return complete parameters without settings that have their defaults or that only other kinds have."""
    values = lay_over({}, lay_over(values, {}))
    params = validate(take_out(values)[0])
    kept: dict[str, Any] = {}
    for name, value in values.items():
        section = getattr(params, name)
        if not isinstance(section, BaseModel):
            kept |= {name: value} if value != type(params).model_fields[name].default else {}
            continue
        family = FAMILIES.get(name)
        kinds = {family.key} if family is not None and value.get(family.key) != family.default else set()
        said = section.model_dump(mode="json", exclude_defaults=True).keys()
        fields = type(section).model_fields
        own = {
            key: each
            for key, each in value.items()
            if each == AUTO or key in kinds or (key in said and each != fields[key].default)
        }
        kept |= {name: own} if own else {}
    return kept


def complete(root: Path, name: str) -> str:
    """Return a params.yaml with all parameters of a run, `auto` included."""
    taken, automatic = take_out(values_of(root, name))
    values = validate(taken).model_dump(mode="json")
    for section, key in automatic:
        values[section][key] = AUTO
    for section, key in (("data", "public_benchmark"), ("tracking", "private_metrics")):
        if key not in (taken.get(section) or {}):  # their defaults follow from other settings
            values[section][key] = None
    return as_document({"run": name, "description": read_preset(root, name).description, **values})


def values_of(root: Path, name: str, *overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that differ from the defaults, with more overrides merged in turn."""
    values = of_the_project(root)
    for each in (read_preset(root, name).overrides, *overrides):
        values = lay_over(values, each)
    return values


def resolve(root: Path, name: str) -> Params:
    """Return the parameters of a run: params.yaml with its preset's (and derived) overrides, checked.

    A stand-in has the place of what is `auto`; `tasks.runtime.parameters.settled` chooses it.
    """
    values = values_of(root, name)
    try:
        return validate(take_out(values)[0])
    except SettingError as error:
        raise SettingError(f"Run {name}:\n{error}") from error


def derive(root: Path, preset: str, assignments: list[str], *, keeps: bool = True) -> str:
    """Return the name of the run that is `preset` with `--set` assignments; without assignments, the preset itself.

    The parameters are checked first. If `keeps`, the overrides are written to a file; otherwise only this process can
    resolve the run.
    """
    if not assignments:
        resolve(root, preset)
        return preset
    chosen = read_preset(root, preset)
    overrides, params = with_assignments(root, chosen, assignments)
    start = chosen.made_from or preset
    if published(overrides) == overrides:
        own = digest(overrides, 8)
    else:  # keyed: at this site only
        key = load_or_create_key(root / params.ledger.key)
        own = keyed_digest(key, "terrine run name", digest(overrides, 64).encode())[:8]
    name = f"{start}-{own}"
    if keeps:
        keep(root, name, start, overrides)
    else:
        _NOT_KEPT[parameter_file(root, name)] = Preset(name, "", overrides, start)
    return name


def with_assignments(root: Path, preset: Preset, assignments: list[str]) -> tuple[dict[str, Any], Params]:
    """Return the overrides of a preset or run merged with `--set` assignments, and the resulting parameters."""
    overrides = lay_over(preset.overrides, parse_assignments(assignments))
    return overrides, validate(take_out(lay_over(of_the_project(root), overrides))[0])


def keep(root: Path, name: str, preset: str, overrides: dict[str, Any]) -> None:
    """Write the overrides of a run to its file next to the presets."""
    shown = ", ".join(map(shown_assignment, changes(root, preset, overrides)))
    values = {"description": f"{preset} with {shown}" if shown else preset, **overrides}
    if not DERIVED_NAME.match(name):
        values["preset"] = preset
    path = parameter_file(root, name)
    text = yaml.safe_dump(values, sort_keys=True, allow_unicode=True, width=110)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def changes(root: Path, preset: str, overrides: dict[str, Any]) -> list[str]:
    """Return the `--set` assignments that turn a preset into these overrides."""
    # As `--set` takes them: weights of sources are one value (see `tasks.config.values.merge`).
    base, own = flat(read_preset(root, preset).overrides, whole="sources"), flat(overrides, whole="sources")
    return [f"{key}={as_yaml(value)}" for key, value in own.items() if key not in base or base[key] != value]


def shown_assignment(text: str) -> str:
    """Return a `--set` assignment for publication: without its value if that names the site's files, hosts or data."""
    try:
        values = parse_assignment(text)
    except SettingError:
        return text.partition("=")[0]  # refused elsewhere
    return text if published(values) == values else text.partition("=")[0]


def project_root() -> Path:
    """Return the folder of the project: TERRINE_ROOT, else the nearest folder upwards that holds dvc.yaml.

    Raises SettingError when there is none.
    """
    if given := os.environ.get("TERRINE_ROOT"):
        return Path(given).resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise SettingError(
        f"{here} is not inside a Terrine project (no params.yaml and dvc.yaml here or above). Make one: "
        "terrine init FOLDER"
    )


def reproduce_command(root: Path, run: str, *, local: bool) -> str:
    """Return the command that makes a run: its preset, the name it was given, and what was set differently.

    local: whether it may name the site's own files and accounts.
    """
    made = read_preset(root, run)
    if made.made_from is None:
        return f"terrine run --preset {run}"
    words = ["terrine", "run", "--preset", made.made_from]
    if not DERIVED_NAME.match(run):
        words += ["--name", run]
    for change in changes(root, made.made_from, made.overrides if local else published(made.overrides)):
        words += ["--set", change]
    return shlex.join(words)
