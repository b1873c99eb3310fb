"""Processor seconds and memory of every stage of a run, by the number of records, from 10,000 up.

    python -m benchmarks.scale [--records 10000 100000 1000000] [--work FOLDER] [--out docs/scaling.svg]
    python -m benchmarks.scale --records 100000 --classes 150 --queries 2000 100000 --per-teacher 500

Each run is in a fresh project on an .npz file of grey 28 x 28 images, drawn in ten classes (`--classes`). It has a
teacher for every 100 records (`--per-teacher`). The number of queries is the same for all numbers of records
(`--queries`; then with the noise at which ε pays for all of them). Seconds are processor seconds, which depend little
on other work on the machine; memory is the peak of the process, pages of mapped files included. `--out` is the path of
the figure.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import yaml

from benchmarks.cells import KEPT, Cells, common_options
from benchmarks.crash.project import environment, small_project
from benchmarks.pate_figures import canvas, save
from terrine.determinism.randomness import numpy_generator

TEST = 2_000
BLOCK = 10_000
MEASURED = """
import json, os, sys
import flows.stages as stages
plain, spent = stages.run_tasks, {}
def run_tasks(stage, *given):
    before = os.times()
    plain(stage, *given)
    spent[stage.name] = sum(os.times()[:4]) - sum(before[:4])
    open("spent.json", "w").write(json.dumps(spent))
stages.run_tasks = run_tasks
from flows.__main__ import main
main()
"""


@dataclass(frozen=True)
class Size:
    """Dimensions of a measured run."""

    records: int
    classes: int = 10
    queries: int = 2_000
    per_teacher: int = 100

    def __str__(self) -> str:
        """Name it by what is not the default."""
        more = [
            f", {getattr(self, field.name)} {field.name.replace('_', ' ')}"
            for field in fields(self)[1:]
            if getattr(self, field.name) != field.default
        ]
        return f"{self.records} records{''.join(more)}"


def preset(size: Size) -> dict[str, object]:
    """Return a run of a size that is as dear as any other but for that."""
    return {
        "description": "drawn records",
        "data": {"name": "npz", "path": "records.npz", "size": 28, "channels": 1},
        "partition": {"teachers": size.records // size.per_teacher},
        "queries": {"count": size.queries},
        "backbone": {"kind": "scattering", "projection": 100},
        "teachers": {"optimiser": "ridge"},
        "aggregation": {"mechanism": "histogram", "sigma": 50 if size == Size(size.records) else "auto", "epsilon": 4},
        "ledger": {"account": "drawn", "epsilon": 8},
        "privacy": {"anyway": True},
        "tracking": {"register_student": False},
    }


def draw(path: Path, records: int, classes: int) -> None:
    """Draw images that a class's pattern shows through, block by block."""
    patterns = numpy_generator(0, "patterns").integers(0, 128, (classes, 1, 28, 28), dtype=np.uint8)
    total = records + TEST
    labels = numpy_generator(0, "labels").integers(0, classes, total)
    images = np.empty((total, 1, 28, 28), np.uint8)
    for first in range(0, total, BLOCK):
        here = slice(first, first + BLOCK)
        noise = numpy_generator(0, "noise", first).integers(0, 128, images[here].shape, dtype=np.uint8)
        images[here] = patterns[labels[here]] + noise
    np.savez(
        path,
        train_images=images[TEST:],
        train_labels=labels[TEST:],
        test_images=images[:TEST],
        test_labels=labels[:TEST],
    )


def measure(size: Size) -> dict[str, object]:
    """Make a run of a size, and return what its stages cost."""
    with tempfile.TemporaryDirectory(prefix="terrine-scale-") as folder:
        project = small_project(Path(folder) / "project")
        draw(project / "records.npz", size.records, size.classes)
        (project / "experiments" / "drawn.yaml").write_text(yaml.safe_dump(preset(size)))
        program = [sys.executable, "-c", MEASURED, "run", "--preset", "drawn", "--no-server"]
        done = subprocess.run(
            program, cwd=project, env=environment(project), capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}")
        spent = json.loads((project / "spent.json").read_text())
        timings = project / "data" / "private" / "drawn" / "timings"
        known = [json.loads(path.read_text()) for path in timings.glob("*.json")]
        return {
            **asdict(size),
            "accuracy": json.loads((project / "data" / "private" / "drawn" / "evaluation.json").read_text())[
                "accuracy"
            ],
            "processors": spent,
            "memory": {each["stage"]: each["memory_mb"] for each in known},
            "clock": {each["stage"]: each["seconds"] for each in known},
            "load": os.getloadavg()[0],
        }


def slope(fewer: dict[str, object], more: dict[str, object], stage: str) -> float:
    """Return d log seconds / d log records between two runs."""
    seconds = [max(run["processors"][stage], 0.01) for run in (fewer, more)]
    return float(np.log(seconds[1] / seconds[0]) / np.log(more["records"] / fewer["records"]))


def figure(runs: list[dict[str, object]], path: Path) -> None:
    """Draw seconds and memory by the number of records."""
    drawing, (left, right) = canvas()
    for stage in runs[-1]["processors"]:
        if runs[-1]["processors"][stage] >= 1:
            at = [run["records"] for run in runs]
            left.plot(at, [run["processors"][stage] for run in runs], "o-", label=stage)
            right.plot(at, [run["memory"][stage] / 1000 for run in runs], "o-", label=stage)
    left.set(xscale="log", yscale="log", xlabel="records", ylabel="seconds of the processors")
    right.set(xscale="log", ylim=0, xlabel="records", ylabel="memory, GB")
    drawing.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=9, fontsize=9)
    save(drawing, path)


def main() -> None:
    """Print a row of a Markdown table for each stage, and draw the figure."""
    parser = common_options(__doc__, work=KEPT)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--classes", type=int, default=Size.classes)
    parser.add_argument("--queries", type=int, nargs="+", default=[Size.queries])
    parser.add_argument("--per-teacher", type=int, default=Size.per_teacher)
    options = parser.parse_args()
    kept = Cells(options.work / "scale.jsonl")
    sizes = [
        Size(records, options.classes, queries, options.per_teacher)
        for records in options.records
        for queries in options.queries
    ]
    runs = [kept.get(str(size), lambda size=size: measure(size)) for size in sizes]
    names = [f"{size.records:,}" if len(options.queries) == 1 else f"{size.queries:,} queries" for size in sizes]
    by_records = len(runs) > 1 and len(options.queries) == 1
    print(f"| stage | {' | '.join(names)} | slope | {' | '.join(f'GB at {name}' for name in names)} |")
    for stage in runs[-1]["processors"]:
        cells = [f"{run['processors'][stage]:.1f}" for run in runs]
        cells += [f"{slope(runs[-2], runs[-1], stage):.2f}" if by_records else "–"]
        cells += [f"{run['memory'][stage] / 1000:.2f}" for run in runs]
        print(f"| {stage} | {' | '.join(cells)} |")
    print("Accuracy:", ", ".join(f"{run['accuracy']:.4f}" for run in runs))
    if options.out:
        figure(runs, options.out)


if __name__ == "__main__":
    main()
