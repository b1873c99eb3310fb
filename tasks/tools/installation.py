"""`terrine doctor`: what is installed here, and what it runs on."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from tasks.config.presets import project_root, selected_run
from terrine.errors import TerrineError

EXTRAS = ("", "pipeline", "parties", "serve")


def installed() -> tuple[dict[str, str], list[str]]:
    """Return what there is, by name, and a sentence about each thing that is missing."""
    there = {
        "terrine": f"{version('terrine')}, Python {platform.python_version()}, {platform.platform()}",
        "devices": _devices(),
        "project": _project(),
    }
    missing = [f"{name} is not in PATH; DVC calls it" for name in ("git", "terrine") if shutil.which(name) is None]
    for requirement, extra in _requirements():
        bring = f"pip install 'terrine[{extra}]'" if extra else "pip install terrine"
        try:
            there[requirement.name] = found = version(requirement.name)
        except PackageNotFoundError:
            missing.append(f"{requirement.name} is missing: {bring}")
        else:
            if not requirement.specifier.contains(found, prereleases=True):
                missing.append(f"{requirement.name} is {found}, and Terrine needs {requirement.specifier}: {bring}")
    return there, missing


def _requirements() -> list[tuple[Requirement, str]]:
    """Return the packages that Terrine or one of its main extras asks for, each once, and by which extra."""
    found: dict[str, tuple[Requirement, str]] = {}
    for requirement in map(Requirement, requires("terrine") or []):
        for extra in EXTRAS:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found.setdefault(requirement.name, (requirement, extra))
                break
    return [entry for name, entry in found.items() if name != "terrine"]


def _devices() -> str:
    import torch

    others = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    others += ["Apple's GPU (mps)"] if torch.backends.mps.is_available() else []
    return ", ".join([f"{os.cpu_count()} CPU cores", *(others or ["no GPU"])])


def _project() -> str:
    try:
        root = project_root()
        return f"{root}, where the run {selected_run(root)} was selected last"
    except TerrineError as error:
        return str(error)
