"""A package of a user's own: one file for a teacher, a student, a mechanism, a backbone, a dataset, an image program.

Each is found by its entry point, and a run with all of them goes through the stages, from records to a student.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "teacher": '''
        from typing import Literal

        from terrine.teachers.linear import LinearTeachers

        class FirmTeachers(LinearTeachers):
            """Linear teachers with another penalty by default."""

            kind: Literal["firm"] = "firm"
            ridge: float = 0.7
    ''',
    "student": '''
        from typing import Literal

        from terrine.students.linear import LinearStudent

        class PlainStudent(LinearStudent):
            """A linear student whose prior is given."""

            kind: Literal["plain"] = "plain"
            l2: float | None = 0.3
    ''',
    "mechanism": '''
        from typing import Literal

        from terrine.aggregation.gnmax import GaussianHistogram

        class Coarse(GaussianHistogram):
            """A histogram whose own parameter is how coarse it is."""

            text = "Coarse histogram: votes were counted, and noise was added."
            by_parties = False
            mechanism: Literal["coarse"] = "coarse"
            steps: int = 3
    ''',
    "backbone": '''
        from typing import Literal

        from terrine.models.architecture import Architecture

        class Pixels(Architecture):
            """Every pixel is a feature."""

            kind: Literal["pixels"] = "pixels"

            @staticmethod
            def network(kind, channels, size, seed):
                from torch import nn

                return nn.Flatten(), channels * size * size
    ''',
    "dataset": '''
        from dataclasses import replace
        from typing import Literal

        from terrine.data.source import ImageSource
        from terrine.data.sources.digits import Digits

        class Clinic(ImageSource):
            """Records of our own."""

            name: Literal["clinic"] = "clinic"

            def read(self, at=None, seed=0, progress=None):
                return replace(Digits(size=8).read(seed=seed), name="clinic")
    ''',
    "program": '''
        import torch

        from terrine.synthetic.program import image_program
        from terrine.synthetic.programs.gaussian import gaussian

        @image_program("bright")
        def bright(seed, index, size, channels):
            """Gaussian noise, brightened."""
            return gaussian(seed, index, size, channels) | 64
    ''',
}
RUN = """
from pathlib import Path
from flows.stages import run_through
from tasks.config.params import validate
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
import sys

values = {
    "data": {"name": "clinic", "size": 8},
    "partition": {"teachers": 12},
    "queries": {"count": 60, "batch": 30, "sources": {"bright": 1, "gaussian": 1}},
    "backbone": {"kind": "pixels"},
    "teachers": {"kind": "firm", "statistics": "original"},
    "aggregation": {"mechanism": "coarse", "sigma": 6, "steps": 5, "epsilon": 9},
    "student": {"kind": "plain", "statistics": "original"},
    "ledger": {"account": "clinic-2026", "epsilon": 10},
}
run = Run(Path(), "ours", validate(values))
run_through(run, "dataset", "evaluate")
said = read_json(run.folders.release / "privacy.json")
assert said["private"], said
assert said["mechanism"]["mechanism"] == "coarse" and said["mechanism"]["steps"] == 5, said["mechanism"]
assert "bright" in said["public_inputs"][0]["origin"] and said["public_inputs"][1]["origin"].startswith("pixels")
kinds = [read_json(folder / "manifest.json")["kind"] for folder in
         (run.folders.backbone, run.folders.teachers, run.folders.student)]
print(*kinds, read_json(run.folders.evaluation)["images"])

import terrine as tr
from terrine.teachers.base import TEACHERS

data = tr.load_dataset("clinic", size=8)
assert not data.public
print(TEACHERS.of("firm").__name__, tr.draw("bright", count=4, like=data).images.min() >= 64)
"""


@pytest.fixture
def package(tmp_path):
    """A folder with the package and its dist-info, as pip would leave it."""
    site = tmp_path / "site"
    (site / "ours").mkdir(parents=True)
    (site / "ours" / "__init__.py").touch()
    about = site / "ours-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    points = "".join(f"{name} = ours.{name}\n" for name in FILES)
    (about / "entry_points.txt").write_text(f"[terrine.plugins]\n{points}")
    for name, text in FILES.items():
        lines = text.strip("\n").splitlines()
        (site / "ours" / f"{name}.py").write_text("\n".join(line[8:] for line in lines))
    return site


def test_a_run_with_one_of_each_goes_through_the_stages_and_python_knows_them_by_name(package, tmp_path):
    path = os.pathsep.join([str(package), *sys.path[:1], os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    said = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    assert said.stdout.splitlines()[-2:] == ["pixels firm plain 362", "FirmTeachers True"]
