"""A run over many large images, from the look at them to the student: seconds of the processors and memory, by stage.

    python -m benchmarks.large_images --work FOLDER [--images 100000] [--side 224]

Grey images are drawn into class folders as PGM files, 5 GB of them at these numbers: ten smooth patterns under noise.
`terrine check` looks at them and `terrine run` learns from them, with `moments` of 100 features of scattering at ε = 4.
A call reuses what earlier calls in the same folder drew or made, so an interrupted call can be resumed; seconds add up
over calls. Memory is the memory that processes do not share with files (RssAnon, sampled twice a second), and `peak` is
the kernel's peak for the process so far, pages of mapped files included.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from benchmarks.crash.project import REPOSITORY, environment, small_project
from terrine.determinism.randomness import numpy_generator

CLASSES = 10
MEASURED = """
import json, os, re, resource, sys, threading, time
import flows.stages as stages
plain, path, now, seen = stages.run_tasks, f"spent-{os.getpid()}-{int(time.time())}.json", [sys.argv[1]], {}
def look():
    while True:
        note()
        time.sleep(0.5)
def note():
    if now[0] is None:
        return
    own = int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
    spent, peak = sum(os.times()[:4]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    stage = seen.setdefault(now[0], {"from": spent, "seconds": 0, "memory": 0, "peak": 0})
    stage.update(seconds=spent - stage["from"], memory=max(own, stage["memory"]), peak=peak)
    open(path + ".new", "w").write(json.dumps(seen))
    os.replace(path + ".new", path)
def run_tasks(stage, *given):
    now[0] = stage.name
    plain(stage, *given)
    note()
    now[0] = None
stages.run_tasks = run_tasks
threading.Thread(target=look, daemon=True).start()
from flows.__main__ import main
main()
"""


def preset(side: int) -> dict[str, object]:
    return {
        "description": "drawn images",
        "base": "your-own-images",
        "data": {"name": "folder", "path": "images", "size": side, "channels": 1},
        "backbone": {"kind": "scattering", "projection": 100, "invariance": False, "deformations": None},
        "aggregation": {"mechanism": "moments", "epsilon": 4},
        "privacy": {"unit": "record", "moments": 0},
        "student": {"kind": "sums"},
        "ledger": {"account": "drawn", "epsilon": 8},
        "tracking": {"register_student": False},
    }


def draw(folder: Path, images: int, side: int) -> None:
    """Draw images [side, side] into class folders, those that are not there yet."""
    grid = np.linspace(0, 7.999, side).astype(int)
    patterns = numpy_generator(0, "patterns").integers(0, 128, (CLASSES, 8, 8), dtype=np.uint8)[:, grid][:, :, grid]
    head = f"P5\n{side} {side}\n255\n".encode()
    for label in range(CLASSES):
        (folder / f"class-{label}").mkdir(parents=True, exist_ok=True)
    for number in range(images):
        label = number % CLASSES
        path = folder / f"class-{label}" / f"{number:06}.pgm"
        if not path.is_file():
            noise = numpy_generator(0, "noise", number).integers(0, 128, (side, side), dtype=np.uint8)
            path.with_suffix(".new").write_bytes(head + (patterns[label] + noise).tobytes())
            path.with_suffix(".new").rename(path)


def command(project: Path, name: str, *arguments: str) -> None:
    """Run a command of Terrine in the project, and note what it took."""
    program = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(program, cwd=project, env=environment(project), check=False)
    if done.returncode:
        sys.exit(f"terrine {name} ended with {done.returncode}.")


def summary(project: Path) -> dict[str, dict[str, float]]:
    """Return seconds, added up over calls, and the most memory, by stage."""
    stages: dict[str, dict[str, float]] = {}
    for path in sorted(project.glob("spent-*.json"), key=lambda path: path.stat().st_mtime):
        for stage, seen in json.loads(path.read_text()).items():
            known = stages.setdefault(stage, {"seconds": 0, "memory": 0, "peak": 0})
            known["seconds"] = round(known["seconds"] + seen["seconds"], 1)
            known.update({each: max(known[each], seen[each]) for each in ("memory", "peak")})
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--only-say", action="store_true", help="what is known so far")
    asked = parser.parse_args()
    project = asked.work / "project"
    if not asked.only_say:
        if not project.is_dir():
            small_project(project)
            shutil.copy(REPOSITORY / "experiments" / "your-own-images.yaml", project / "experiments")
        draw(project / "images", asked.images, asked.side)
        (project / "experiments" / "drawn.yaml").write_text(yaml.safe_dump(preset(asked.side)))
        command(project, "check", "check", "--preset", "drawn")
        command(project, "run", "run", "--preset", "drawn", "--no-server")
    for stage, seen in summary(project).items():
        print(f"{stage:16} {seen['seconds']:9.1f} s  {seen['memory']:6.0f} MiB own  {seen['peak']:6.0f} MiB peak")
    evaluation = project / "data" / "private" / "drawn" / "evaluation.json"
    print(evaluation.read_text() if evaluation.is_file() else "not evaluated yet")


if __name__ == "__main__":
    main()
