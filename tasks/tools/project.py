"""Creation of projects (`terrine init`) and checks of the installation (`terrine check --installation`).

A project is a folder with params.yaml, presets, dvc.yaml, deployments, data/, and git and DVC repositories that exclude
private data. In an existing project, `create_project` adds missing files, such as presets of a newer version, and
rewrites dvc.yaml. Other existing files are not changed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from tasks.config.presets import PRESETS, project_root, selected_run
from tasks.pipeline.graph import HEAD, MAIN
from tasks.runtime.stage_graph import has_vault
from terrine.errors import SettingError, TerrineError
from terrine.files import write_text

SHARED = PurePosixPath("share", "terrine")
"""Folder of the project templates within the Python environment (pyproject.toml, data-files)."""
REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = ("", "pipeline", "parties", "serve")
COPIED = ("params.yaml", "prefect.yaml", ".dvcignore", ".gitignore", "data/README.md")
DERIVED = f"*-{'[0-9a-f]' * 8}.yaml"
"""Files of runs derived from presets."""
README = """\
# {name}

A Terrine project: it trains a student on private images and writes its privacy statement.

    terrine run                 # the run of params.yaml, on handwritten digits from a Python package
    terrine presets             # list the presets; `your-own-images` is for a folder of your own

params.yaml contains the settings of the default run, which `dvc repro` also makes. Put the settings of your own run
there with a new name (`run: NAME`), or use `terrine run NAME --preset PRESET`.

`data/private` never leaves this machine; `data/release` may be published. `terrine params` lists all settings.
"""


def create_project(folder: Path) -> list[str]:
    """Create a project, or add missing files to an existing one.

    Args:
        folder: New folder, project, or empty folder. The folder may contain data/, such as volumes of a container.

    Returns:
        Names of the new files.

    Raises:
        SettingError: If the folder contains other files, or git or DVC fails.
    """
    folder = folder.resolve()
    is_project = (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file()
    others = {path.name for path in folder.iterdir()} - {"data", ".home"} if folder.is_dir() else {folder}
    if folder.exists() and not is_project and others:
        raise SettingError(f"{folder} is neither empty nor a project. Choose another folder. Nothing was written.")
    source = template_folder()
    texts = {"README.md": README.format(name=folder.name)}
    texts |= {name: (source / name).read_text(encoding="utf-8") for name in COPIED}
    texts |= {f"{PRESETS}/{path.name}": path.read_text(encoding="utf-8") for path in _presets(source)}
    new = [name for name in texts if not (folder / name).exists()]
    for name in new:
        write_text(folder / name, texts[name])
    write_text(folder / "dvc.yaml", MAIN.dvc_yaml(HEAD, vault=has_vault(folder)))
    begins = shutil.which("git") is not None and not (folder / ".git").exists()
    if begins:
        _call(folder, "git", "init", "--quiet")
    if not (folder / ".dvc").exists():
        without_git = [] if (folder / ".git").exists() else ["--no-scm"]
        _call(folder, sys.executable, "-m", "dvc", "init", "--quiet", *without_git)
        for name in ("config", "plots.html"):
            shutil.copy(source / ".dvc" / name, folder / ".dvc")
    if begins:  # DVC compares with the last commit
        known = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True, check=False).stdout
        author = [] if known else ["-c", "user.name=terrine", "-c", "user.email=terrine@localhost"]
        _call(folder, "git", "add", "--", *new, "dvc.yaml", ".dvc")
        _call(folder, "git", *author, "commit", "--quiet", "--message", "terrine init")
    return new


def template_folder() -> Path:
    """Return the folder with the project templates: the clone, or the folder installed by the wheel.

    Raises:
        SettingError: If the package is missing.
    """
    if (REPOSITORY / "pyproject.toml").is_file():
        return REPOSITORY
    try:
        listed = files("terrine") or []
    except PackageNotFoundError:
        listed = []
    installed = [file for file in listed if file.parts[-3:] == (*SHARED.parts, "params.yaml")]
    # `pip install --target` places the folder beside the code, but lists its path in an environment.
    for parameters in (REPOSITORY / SHARED / "params.yaml", *(Path(str(file.locate())) for file in installed)):
        if parameters.is_file():
            return parameters.resolve().parent
    raise SettingError("The project templates are missing. Install Terrine again: pip install terrine")


def _presets(source: Path) -> list[Path]:
    """Return Terrine's presets, without a clone's derived runs."""
    own = source / PRESETS / ".gitignore"
    named = own.read_text(encoding="utf-8").split() if own.is_file() else []
    found = (path for path in (source / PRESETS).glob("*.yaml") if path.name not in named)
    return sorted(path for path in found if not path.match(DERIVED))


def _call(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SettingError(f"`{' '.join(command)}` cannot run in {folder}: {error.strerror}.") from error
    if done.returncode:
        raise SettingError(f"`{' '.join(command)}` failed in {folder}: {(done.stderr or done.stdout).strip()}")


def check_installation() -> tuple[dict[str, str], list[str]]:
    """Return versions, devices and project by name, and a sentence for each missing package or program."""
    found = {
        "terrine": f"{version('terrine')}, Python {platform.python_version()}, {platform.platform()}",
        "devices": _devices(),
        "project": _project(),
    }
    missing = [f"{name} is not in PATH, but DVC needs it" for name in ("git", "terrine") if shutil.which(name) is None]
    for requirement, extra in _requirements():
        remedy = f"pip install 'terrine[{extra}]'" if extra else "pip install terrine"
        try:
            found[requirement.name] = current = version(requirement.name)
        except PackageNotFoundError:
            missing.append(f"{requirement.name} is missing: {remedy}")
        else:
            if not requirement.specifier.contains(current, prereleases=True):
                missing.append(
                    f"{requirement.name} {current} is installed, but {requirement.specifier} is needed: {remedy}"
                )
    return found, missing


def _requirements() -> list[tuple[Requirement, str]]:
    """Return the required packages of Terrine and its main extras, each with its first extra."""
    found: dict[str, tuple[Requirement, str]] = {}
    for requirement in map(Requirement, requires("terrine") or []):
        for extra in EXTRAS:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                found.setdefault(requirement.name, (requirement, extra))
                break
    return [entry for name, entry in found.items() if name != "terrine"]


def _devices() -> str:
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    gpus += ["Apple GPU (mps)"] if torch.backends.mps.is_available() else []
    return ", ".join([f"{os.cpu_count()} CPU cores", *(gpus or ["no GPU"])])


def _project() -> str:
    try:
        root = project_root()
        return f"{root}, selected run {selected_run(root)}"
    except TerrineError as error:
        return str(error)
