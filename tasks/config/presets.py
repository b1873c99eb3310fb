"""Presets and runs: which parameters a run name stands for.

A preset is `experiments/NAME.yaml`: one line of `description` and what differs from the defaults; with `base: OTHER`,
what differs from another preset. A run is a preset, or a preset with overrides: then its name carries a digest of them
and its overrides are kept in a derived, git-ignored file beside the presets, so that `dvc repro` finds a run's
parameters by its name alone. A run's name is public, so a digest of overrides that name the site's files or account is
keyed: nobody outside can try guesses on it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.config.automatic import take_out
from tasks.config.params import Params, lay_over, published, validate
from tasks.config.values import digest, merge, parse_assignment, read_yaml
from terrine.errors import SettingError
from terrine.files import write_text
from terrine.privacy.ledger.identity import keyed_digest, load_or_create_key

PRESETS = "experiments"
DERIVED_NAME = re.compile(r"^(?P<preset>[a-z0-9][a-z0-9-]*)-(?P<digest>[0-9a-f]{8})$")
SELECTED = "selected"


@dataclass(frozen=True)
class Preset:
    """A named choice of parts."""

    name: str
    description: str
    overrides: dict[str, Any]


def presets(root: Path) -> list[Preset]:
    """Return every preset of the project, by name; derived parameter files are not presets."""
    files = sorted((root / PRESETS).glob("*.yaml"))
    return [read_preset(root, file.stem) for file in files if not DERIVED_NAME.match(file.stem)]


def read_preset(root: Path, name: str, above: tuple[str, ...] = ()) -> Preset:
    """Read one preset, laid over the one that it names as its `base`, if it does.

    above: presets that rest on this one. Raises SettingError with the known names if there is none of this name.
    """
    path = root / PRESETS / f"{name}.yaml"
    if not path.is_file() or Path(name).name != name:
        known = sorted(file.stem for file in (root / PRESETS).glob("*.yaml") if not DERIVED_NAME.match(file.stem))
        raise SettingError(f"There is no preset '{name}'. Known presets: {', '.join(known)}.")
    values = read_yaml(path)
    description, base = str(values.pop("description", "")).strip(), values.pop("base", None)
    if base is not None:
        if base in (name, *above):
            raise SettingError(f"{path}: base is {base}, which rests on {name} itself. Name another preset, or none.")
        values = lay_over(read_preset(root, str(base), (*above, name)).overrides, values)
    return Preset(name, description, values)


def named_run(root: Path) -> str:
    """Return the run that params.yaml names."""
    name = read_yaml(root / "params.yaml").get("run")
    if not isinstance(name, str) or not name:
        raise SettingError("params.yaml: run is missing. Name a preset there, for example run: terrine-digits.")
    return name


def selected_run(root: Path) -> str:
    """Return the run that was selected last, or the one that params.yaml names, whichever is the later choice."""
    path, named = root / SELECTED / "dvc.yaml", named_run(root)
    chosen = read_yaml(path)["vars"][0] if path.is_file() else {}
    return chosen["run"] if chosen.get("instead_of") == named else named


def of_the_project(root: Path) -> dict[str, Any]:
    """Return what params.yaml sets for every run."""
    values = read_yaml(root / "params.yaml")
    values.pop("run", None)
    return values


def values_of(root: Path, name: str, *overrides: dict[str, Any]) -> dict[str, Any]:
    """Return what a run's preset, with more overrides laid over it in turn, says beside the defaults."""
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


def derive(root: Path, preset: str, assignments: list[str]) -> str:
    """Return the name of the run that is `preset` with `--set` assignments, and keep what it stands for.

    Without assignments that is the preset itself. The parameters are checked before anything is written.
    """
    if not assignments:
        resolve(root, preset)
        return preset
    chosen = read_preset(root, preset)
    if derived := DERIVED_NAME.match(preset):
        preset = derived["preset"]
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        overrides = merge(overrides, parse_assignment(assignment))
    merged = lay_over(chosen.overrides, overrides)
    params = validate(take_out(lay_over(of_the_project(root), merged))[0])
    name = f"{preset}-{_digest_of_overrides(root, params, merged)}"
    values = {"description": f"{preset} with {', '.join(map(shown_assignment, assignments))}", **merged}
    path = root / PRESETS / f"{name}.yaml"
    text = yaml.safe_dump(values, sort_keys=True, allow_unicode=True, width=110)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return name


def _digest_of_overrides(root: Path, params: Params, overrides: dict[str, Any]) -> str:
    """Return eight hexadecimal digits: the same on every machine, or, of what stays at home, at this site alone."""
    if published(overrides) == overrides:
        return digest(overrides, 8)
    key = load_or_create_key(root / params.ledger.key)
    return keyed_digest(key, "terrine run name", digest(overrides, 64).encode())[:8]


def shown_assignment(text: str) -> str:
    """Return a `--set` assignment as anybody may read it: only its key, where its value stays at home."""
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
    raise SettingError(f"{here} is not inside a Terrine project (no params.yaml and dvc.yaml here or above).")
