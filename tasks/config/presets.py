"""Presets and runs: named sets of parameters.

A preset is `experiments/NAME.yaml`: a one-line `description` and the settings that differ from the defaults, or from
another preset (`base: OTHER`). params.yaml is the preset of the default run, which it names (`run: NAME`); its sections
in `SITE` apply to all runs of the project.

A run is a preset, or a preset with overrides, which are stored in a git-ignored file beside the presets. A run with
overrides has a name given by the user (`--run`) or one that ends with a digest of the overrides. Run names are public,
so the digest is keyed if overrides name files or accounts of the site: third parties cannot test guesses against it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from tasks.config.automatic import replace_auto
from tasks.config.params import AUTO, FAMILIES, Params, merge_overrides, parse_assignment, public_parameters, validate
from tasks.config.values import as_document, as_yaml, digest, flat, merge, read_yaml
from terrine.errors import SettingError, did_you_mean, typed
from terrine.files import write_text
from terrine.privacy.ledger.site_key import keyed_digest, load_or_create_key

PRESETS = "experiments"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
DERIVED_NAME = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{8}$")
SELECTED = Path(".dvc", "tmp", "terrine", "selected")
"""File with the run selected last, and the default run at that time. Its folder is ignored by git."""
SITE = ("device", "ledger", "release", "runner", "tracking")
"""Sections of params.yaml that apply to all runs of the project."""
FOLDERS = ("ledger", "shared", "site", "source", "benchmarks")
"""Names of entries in data/<zone>/ that are not runs."""
GROUPS = {
    "your-own-": "Templates for your own data",
    "terrine-": "Terrine's own",
    "pate-": "Scalable PATE",
    "diet-pate-": "DIET-PATE",
    "prom-pate-": "Prom-PATE and its baseline Transfer-PATE",
    "transfer-pate-": "Prom-PATE and its baseline Transfer-PATE",
    "ttac-": "TTAC: parties with different distributions",
    "diet-heterogeneous-": "TTAC: parties with different distributions",
    "dpsd-": "DPSD and FedDPSD: transcription of a model",
    "feddpsd-": "DPSD and FedDPSD: transcription of a model",
}
"""Purpose of presets by name prefix; presets with other names are the user's."""
YOURS = "Your presets"


@dataclass(frozen=True)
class Preset:
    """Named settings that differ from the defaults.

    Attributes:
        name: Name of the preset or run.
        description: Description in one line.
        overrides: Settings that differ from the defaults.
        made_from: For a run with overrides, the preset to which they apply.
    """

    name: str
    description: str
    overrides: dict[str, Any]
    made_from: str | None = None


def presets(root: Path) -> list[Preset]:
    """Return the presets of the project, without runs, by name."""
    found = [read_preset(root, name) for name in sorted(_names(root))]
    return [preset for preset in found if preset.made_from is None]


def presets_by_group(root: Path) -> list[tuple[str, list[Preset]]]:
    """Return the presets by purpose, the user's own first."""
    groups: dict[str, list[Preset]] = {title: [] for title in [YOURS, *GROUPS.values()]}
    for preset in presets(root):
        groups[next((group for start, group in GROUPS.items() if preset.name.startswith(start)), YOURS)].append(preset)
    return list(groups.items())


def runs(root: Path) -> list[str]:
    """Return the names of all runs that were started; one that was refused before is not among them."""
    return sorted(path.parent.name for path in (root / "data" / "private").glob("*/parameters.yaml"))


def explain_missing_run(root: Path, name: str) -> str:
    """Return the error message for a run without artefacts: the command that makes it, and the existing runs."""
    known = [run for run in runs(root) if run != name]
    existing = f" Existing runs: {', '.join(known)}." if known else " There are no runs yet."
    if parameter_file(root, name).is_file() and Path(name).name == name:
        return f"Run {name} has not been started. Start it with: terrine run {name}.{existing}"
    return f"There is no run '{name}'.{did_you_mean(name, known)}{existing}"


def _names(root: Path) -> set[str]:
    names = {path.stem for path in (root / PRESETS).glob("*.yaml")}
    default = named_run(root) if (root / "params.yaml").is_file() else None
    return names | {default} if default is not None and is_default(root, default) else names


_UNSAVED: dict[Path, Preset] = {}
"""Overrides of runs that exist only in this process, by the path that their file would have."""


def parameter_file(root: Path, name: str) -> Path:
    """Return the path of a preset's or a run's parameters, which may not exist."""
    path, default = root / PRESETS / f"{name}.yaml", root / "params.yaml"
    if _exists(path) or not default.is_file():
        return path
    values = read_yaml(default)
    return default if values.get("run") == name and values.keys() - {"run", *SITE} else path


def _exists(path: Path) -> bool:
    return len(path.name.encode(errors="replace")) <= 255 and path.is_file()  # is_file raises an error for longer names


def is_default(root: Path, name: str) -> bool:
    """Return whether params.yaml contains the parameters of this run."""
    return parameter_file(root, name) == root / "params.yaml"


def read_preset(root: Path, name: str, above: tuple[str, ...] = ()) -> Preset:
    """Read a preset or run, merged with its `base` if it has one.

    Args:
        root: Folder of the project.
        name: Name of the preset or run.
        above: Names of presets already read, to detect a preset that is based on itself.

    Raises:
        SettingError: If the preset does not exist or is based on itself.
    """
    path = parameter_file(root, name)
    if path in _UNSAVED:
        return _UNSAVED[path]
    if not _exists(path) or Path(name).name != name:
        near = did_you_mean(name, sorted(_names(root)))
        raise SettingError(f"There is no preset '{name}'.{near} `terrine presets` lists them.")
    if name in FOLDERS:
        raise SettingError(f"{path}: its run would be in data/private/{name}, which is reserved. Rename the file.")
    values = read_yaml(path)
    description, base = str(values.pop("description", "")).strip(), values.pop("base", None)
    if path == root / "params.yaml":
        values.pop("run")
        return Preset(name, description, _without_defaults(values))
    made_from = values.pop("preset", None)
    if base is not None:
        if base in (name, *above):
            raise SettingError(f"{path}: base={base} is based on {name} itself. Name another preset, or none.")
        values = merge_overrides(read_preset(root, str(base), (*above, name)).overrides, values)
    return Preset(name, description, values, made_from)


def named_run(root: Path) -> str:
    """Return the run named in params.yaml."""
    name = read_yaml(root / "params.yaml").get("run")
    if not isinstance(name, str) or not name:
        raise SettingError("params.yaml: run is missing. Name a preset there, for example run: terrine-digits.")
    return name


def selected_run(root: Path) -> str:
    """Return the run selected last, or the one in params.yaml if that was changed since."""
    path, named = root / SELECTED, named_run(root)
    chosen, _, instead_of = path.read_text(encoding="utf-8").partition(" ") if path.is_file() else ("", "", "")
    return chosen if instead_of == named else named


def select(root: Path, run: str) -> None:
    """Make this run the default of later commands. No file of the project is changed."""
    write_text(root / SELECTED, f"{run} {named_run(root)}")


def project_settings(root: Path) -> dict[str, Any]:
    """Return the settings in params.yaml that apply to every run.

    Raises:
        SettingError: If params.yaml and a preset both contain parameters of the default run.
    """
    values = read_yaml(root / "params.yaml")
    own = sorted(values.keys() - {"run", "description", *SITE})
    path = root / PRESETS / f"{values.get('run')}.yaml"
    if own and path.is_file():
        raise SettingError(
            f"params.yaml and {PRESETS}/{path.name} both set parameters of the run {path.stem} ({', '.join(own)}). In "
            f"params.yaml, leave only run, {', '.join(SITE)}; or remove {PRESETS}/{path.name}."
        )
    return merge_overrides({}, {name: values[name] for name in SITE if name in values})


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return complete parameters without default values and without settings of types that are not selected."""
    values = merge_overrides({}, merge_overrides(values, {}))
    params = validate(replace_auto(values)[0])
    kept: dict[str, Any] = {}
    for name, value in values.items():
        section = getattr(params, name)
        if not isinstance(section, BaseModel):
            kept |= {name: value} if value != type(params).model_fields[name].default else {}
            continue
        family = FAMILIES.get(name)
        kinds = {family.key} if family is not None and value.get(family.key) != family.default else set()
        changed = section.model_dump(mode="json", exclude_defaults=True).keys()
        fields = type(section).model_fields
        own = {
            key: each
            for key, each in value.items()
            if each == AUTO or key in kinds or (key in changed and each != fields[key].default)
        }
        kept |= {name: own} if own else {}
    return kept


def complete(root: Path, name: str) -> str:
    """Return a params.yaml with all parameters of a run, including `auto`."""
    taken, automatic = replace_auto(load_values(root, name))
    values = validate(taken).model_dump(mode="json")
    for section, key in automatic:
        values[section][key] = AUTO
    for section, key in (("data", "public_benchmark"), ("tracking", "private_metrics")):
        if key not in (taken.get(section) or {}):  # these defaults depend on other settings
            values[section][key] = None
    return as_document({"run": name, "description": read_preset(root, name).description, **values})


def load_values(root: Path, name: str, *overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that differ from the defaults, merged with further overrides in order."""
    values = project_settings(root)
    for each in (read_preset(root, name).overrides, *overrides):
        values = merge_overrides(values, each)
    return values


def resolve(root: Path, name: str) -> Params:
    """Return the validated parameters of a run, with stand-ins for `auto` (see `tasks.runtime.parameters`)."""
    values = load_values(root, name)
    try:
        return validate(replace_auto(values)[0])
    except SettingError as error:
        raise SettingError(f"Run {name}:\n{error}") from error


def derive(root: Path, preset: str, assignments: list[str], *, save: bool = True) -> str:
    """Return the name of the run that is `preset` with `--set` assignments, after validating its parameters.

    Args:
        root: Folder of the project.
        preset: Name of a preset or run. Without assignments the preset's name is returned.
        assignments: `--set` assignments, each of the form `section.key=value`.
        save: Whether to write the overrides to a file; otherwise only this process can resolve the run.
    """
    if not assignments:
        resolve(root, preset)
        return preset
    chosen = read_preset(root, preset)
    overrides, params = with_assignments(root, chosen, assignments)
    start = chosen.made_from or preset
    if public_parameters(overrides) == overrides:
        own = digest(overrides, 8)
    else:
        key = load_or_create_key(root / params.ledger.key)
        own = keyed_digest(key, "terrine run name", digest(overrides, 64).encode())[:8]
    name = f"{start}{_readable(changes(root, start, overrides), 50 - len(start))}-{own}"
    save_overrides(root, name, start, overrides, save=save)
    return name


def _readable(assignments: list[str], room: int) -> str:
    """Return public settings as part of a run's name, such as `-epsilon-4-teachers-200`."""
    public = [each.split("=", 1) for each in sorted(assignments) if redact_override(each) == each]
    texts = [f"{key.rpartition('.')[2]}-{value}".lower() for key, value in public]
    text = re.sub("[^a-z0-9]+", "-", "-".join(texts))[: max(0, room)].strip("-")
    return f"-{text}" if text else ""


def with_assignments(root: Path, preset: Preset, assignments: list[str]) -> tuple[dict[str, Any], Params]:
    """Return the overrides of a preset or run merged with `--set` assignments, and the resulting parameters.

    Raises:
        SettingError: If params.yaml requires approvals and a preset or an assignment changes this.
    """
    site, overrides = project_settings(root), merge_overrides(preset.overrides, parse_assignment(*assignments))
    fixed = site.get("release", {})
    if fixed.get("approval") == "required" and merge(fixed, overrides.get("release", {})) != fixed:
        raise SettingError(
            "params.yaml requires approvals (release.approval), so neither --set nor a preset can change release.*. "
            "Change params.yaml if you decide about releases. Nothing was released."
        )
    return overrides, validate(replace_auto(merge_overrides(site, overrides))[0])


def save_overrides(root: Path, name: str, preset: str, overrides: dict[str, Any], *, save: bool = True) -> None:
    """Write the overrides of a run to its file beside the presets; without `save`, keep them only in this process."""
    path = parameter_file(root, name)
    if not save:
        _UNSAVED[path] = Preset(name, "", overrides, preset)
        return
    _UNSAVED.pop(path, None)
    shown = ", ".join(map(redact_override, changes(root, preset, overrides)))
    values = {"description": f"{preset} with {shown}" if shown else preset, "preset": preset, **overrides}
    text = yaml.safe_dump(values, sort_keys=True, allow_unicode=True, width=110)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def changes(root: Path, preset: str, overrides: dict[str, Any]) -> list[str]:
    """Return the `--set` assignments that turn a preset into these overrides."""
    base, own = flat(read_preset(root, preset).overrides, whole="sources"), flat(overrides, whole="sources")
    return [f"{key}={as_yaml(value)}" for key, value in own.items() if key not in base or base[key] != value]


def redact_override(text: str) -> str:
    """Return a `--set` assignment for publication: without values that name files, hosts or data of the site."""
    try:
        values = parse_assignment(text)
    except SettingError:
        return text.partition("=")[0]  # the error is reported elsewhere
    return text if public_parameters(values) == values else text.partition("=")[0]


def project_root() -> Path:
    """Return TERRINE_ROOT, or the nearest folder with params.yaml and dvc.yaml among the current one and its parents.

    Raises:
        SettingError: If neither the current folder nor a parent is a project.
    """
    if given := os.environ.get("TERRINE_ROOT"):
        return Path(given).resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise SettingError(
        f"{here} is not inside a Terrine project (no params.yaml and dvc.yaml here or above). Create one: "
        "terrine init FOLDER"
    )


def reproduce_command(root: Path, run: str, *, local: bool) -> str:
    """Return the command that makes a run: its preset, name and overrides.

    Args:
        root: Folder of the project.
        run: Name of the run.
        local: Whether to include files, hosts and accounts of the site.
    """
    made = read_preset(root, run)
    if made.made_from is None:
        return f"terrine run --preset {run}"
    words = ["terrine", "run", *([] if DERIVED_NAME.match(run) else [run]), "--preset", made.made_from]
    for change in changes(root, made.made_from, made.overrides if local else public_parameters(made.overrides)):
        words += ["--set", change]
    return shlex.join(words)


def other_run_command(root: Path, name: str, preset: str, settings: Iterable[str]) -> str:
    """Return the command that makes a run like `name` from a preset or run, with other settings and a free name."""
    other = next(free for number in count(2) if not parameter_file(root, free := f"{name}-{number}").is_file())
    return typed(
        ["terrine", "run", other, "--preset", preset, *(word for each in settings for word in ("--set", each))]
    )
