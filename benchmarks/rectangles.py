"""Pictures that are not square: learned as they are, against stretched or padded to a square of as many pixels.

    PYTHONPATH=. python benchmarks/rectangles.py --mnist FOLDER [--records 4000] [--work FOLDER] [--sizes 48x32 39 ...]

Pictures of 96 x 64, tall as X-rays often are, are drawn from MNIST's own files: two digits, one above the other, each
somewhere in its half; the class is the upper one. A run for each size is made of them in a fresh project, `moments` at
ε = 4 on 100 features of scattering, and the student of the first is asked about a file with `terrine predict`. Printed
are accuracy on test pictures and the processors' seconds of all stages. In a folder that is there, what was made stays.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from benchmarks.crash.project import REPOSITORY, environment, small_project
from terrine.determinism.randomness import numpy_generator

HEIGHT, WIDTH, DIGIT = 96, 64, 36
SEED = 0


def digits(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's images [N, 28, 28] and labels [N] of a part, `train` or `t10k`, from its own files."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 28, 28)
    return images, np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8)[8:]


def draw(mnist: Path, folder: Path, records: int) -> None:
    """Write PNG files into class folders below train/ and test/."""
    for part, name, count in (("train", "train", records), ("t10k", "test", 2_000)):
        images, labels = digits(mnist, part)
        generator = numpy_generator(SEED, name)
        for number in range(count):
            picture = np.zeros((HEIGHT, WIDTH), np.uint8)
            upper, lower = generator.integers(len(images), size=2)
            for half, which in enumerate((upper, lower)):
                top = half * HEIGHT // 2 + generator.integers(HEIGHT // 2 - DIGIT + 1)
                left = generator.integers(WIDTH - DIGIT + 1)
                digit = Image.fromarray(images[which]).resize((DIGIT, DIGIT), Image.Resampling.BILINEAR)
                picture[top : top + DIGIT, left : left + DIGIT] = digit
            path = folder / name / str(labels[upper]) / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)


def preset(size: int | list[int], fit: str) -> dict[str, object]:
    return {
        "description": "two digits, one above the other",
        "base": "your-own-images",
        "data": {"name": "folder", "path": "images", "size": size, "fit": fit, "channels": 1},
        "backbone": {"projection": 100, "deformations": {"rotation": 5, "shift": 0.1}},
        "aggregation": {"mechanism": "moments", "epsilon": 4},
        "privacy": {"unit": "record", "moments": 0},
        "student": {"kind": "sums"},
        "ledger": {"account": "digits", "epsilon": 100},
        "tracking": {"register_student": False},
    }


def terrine(project: Path, *arguments: str) -> tuple[str, float]:
    """Run a command of Terrine; return what it prints, and the processors' seconds that it took."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "flows", *arguments],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")
    after = os.times()
    return done.stdout, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--records", type=int, default=4_000)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--sizes", nargs="+", default=["48x32", "39", "39:pad"])
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="terrine-rectangles-"))
    project = work / "project"
    if not project.is_dir():
        small_project(project)
        shutil.copy(REPOSITORY / "experiments" / "your-own-images.yaml", project / "experiments")
        draw(asked.mnist, project / "images", asked.records)
    for number, said in enumerate(asked.sizes):
        text, _, fit = said.partition(":")
        sides = [int(side) for side in text.split("x")]
        name = f"digits-{text}-{fit or 'stretch'}"
        content = preset(sides if len(sides) == 2 else sides[0], fit or "stretch")
        (project / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(content))
        if number == 0:
            print(terrine(project, "check", "--preset", name)[0])
        _, seconds = terrine(project, "run", "--preset", name, "--no-server")
        private = project / "data" / "private" / name
        accuracy = json.loads((private / "evaluation.json").read_text())["accuracy"]
        print(f"{said:10} accuracy {100 * accuracy:.2f} %, {seconds:.0f} s", flush=True)
        if number == 0:
            picture = sorted((project / "images" / "test" / "3").iterdir())[0]
            print(terrine(project, "predict", str(picture), "--run", name)[0])


if __name__ == "__main__":
    main()
