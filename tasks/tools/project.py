"""Projects (`terrine init`) and the installation (`terrine check --installation`).

A project is a folder with what a clone has besides code: params.yaml, presets, dvc.yaml, deployments, data/ in zones,
and git and DVC that keep private data out. In an existing project `begin` adds missing files, such as presets of a
later version, and rewrites dvc.yaml. Other files are not changed.
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
"""Where a wheel lays what projects begin with, below its environment's folder (pyproject.toml, data-files)."""
REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = ("", "pipeline", "parties", "serve")
COPIED = ("params.yaml", "prefect.yaml", ".dvcignore", ".gitignore", "data/README.md")
DERIVED = f"*-{'[0-9a-f]' * 8}.yaml"
"""Names of runs that were derived from presets."""
README = """\
# {name}

A project of Terrine: private images in, a student and its privacy statement out.

    terrine run                 # the run of params.yaml: handwritten digits that come with a package
    terrine presets             # what else can be run; `your-own-images` is for a folder of your own

params.yaml has the settings of the default run, which `dvc repro` makes, too. For a run of your own, put its settings
there under a name of its own (`run: NAME`), or leave it to `terrine run --preset PRESET --name NAME`.

`data/private` never leaves this machine; `data/release` is what may be published. `terrine params` lists every setting.
"""


def begin(folder: Path) -> list[str]:
    """Lay out a project in an empty folder (that may have data/, as where zones are volumes of a container), or one to
    be made; or add to a project what it lacks. Return the names of the files that are new.

    Raises SettingError for a folder that holds something else, or git or DVC that cannot begin there.
    """
    folder = folder.resolve()
    is_project = (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file()
    others = {path.name for path in folder.iterdir()} - {"data", ".home"} if folder.is_dir() else {folder}
    if folder.exists() and not is_project and others:
        raise SettingError(f"{folder} is not empty, and no project. Choose another folder. Nothing was written.")
    source = shipped()
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
        alone = [] if (folder / ".git").exists() else ["--no-scm"]
        _call(folder, sys.executable, "-m", "dvc", "init", "--quiet", *alone)
        (folder / ".dvc" / "config").write_text((source / ".dvc" / "config").read_text(encoding="utf-8"))
    if begins:  # DVC compares with the last commit
        known = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True, check=False).stdout
        author = [] if known else ["-c", "user.name=terrine", "-c", "user.email=terrine@localhost"]
        _call(folder, "git", "add", "--", *new, "dvc.yaml", ".dvc")
        _call(folder, "git", *author, "commit", "--quiet", "--message", "terrine init")
    return new


def shipped() -> Path:
    """Return the folder that holds what projects begin with: the clone's, or the one that the wheel was unpacked to.

    Raises SettingError where it is missing.
    """
    if (REPOSITORY / "pyproject.toml").is_file():
        return REPOSITORY
    try:
        listed = files("terrine") or []
    except PackageNotFoundError:
        listed = []
    laid = [file for file in listed if file.parts[-3:] == (*SHARED.parts, "params.yaml")]
    # `pip install --target` lays it beside the code, and lists it where it would lie in an environment.
    for parameters in (REPOSITORY / SHARED / "params.yaml", *(Path(str(file.locate())) for file in laid)):
        if parameters.is_file():
            return parameters.resolve().parent
    raise SettingError("What a project begins with is not installed. Install Terrine again: pip install terrine")


def _presets(source: Path) -> list[Path]:
    """Return the presets that come with Terrine, and not the runs that a clone keeps beside them."""
    own = source / PRESETS / ".gitignore"
    named = own.read_text(encoding="utf-8").split() if own.is_file() else []
    found = (path for path in (source / PRESETS).glob("*.yaml") if path.name not in named)
    return sorted(path for path in found if not path.match(DERIVED))


def _call(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SettingError(f"`{' '.join(command)}` cannot be run in {folder}: {error.strerror}.") from error
    if done.returncode:
        raise SettingError(f"`{' '.join(command)}` failed in {folder}: {(done.stderr or done.stdout).strip()}")


def installed() -> tuple[dict[str, str], list[str]]:
    """Return versions, devices and the project, by name, and a sentence about each missing package or program."""
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
    """Return the packages that Terrine or one of its main extras requires, each with its first extra."""
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
