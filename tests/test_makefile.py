"""The Makefile installs again only if pyproject.toml has changed."""

import os
import shutil
import subprocess

from tests.conftest import REPOSITORY


def test_packages_are_installed_again_only_if_the_content_of_pyproject_changed(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> calls\n')
    python.chmod(0o755)
    counts = []
    for change in ("", "", "# changed\n"):
        with open(tmp_path / "pyproject.toml", "a") as project:
            project.write(change)
        os.utime(tmp_path / "pyproject.toml", times=(2**31, 2**31))
        subprocess.run(["make", "install"], cwd=tmp_path, capture_output=True, check=True)
        os.utime(tmp_path / ".venv" / "installed", times=(2**30, 2**30))
        counts.append((tmp_path / "calls").read_text().count("install"))
    assert counts == [2, 2, 4]
