"""Compare kinds of students trained on the same release.

    python benchmarks/students.py [--root FOLDER] [--work FOLDER] [--seeds 0 1 2] [--presets NAME ...]
                                  [--students NAME ...] [--steps 600] [--set KEY=VALUE ...]

For every preset and seed one release is made by the functions that the stages call (images, backbone, partition,
teachers, votes, aggregation) with replayed noise, and every student learns from it: the rows of a table differ only in
the student. Printed are Markdown tables: accuracy on the private test split in per cent, mean ± standard deviation
over seeds, of the student that the stage keeps, its difference to the linear student of the same release, the step of
each seed that held-out answers chose to keep (0 is the linear student), the same figures when no answer is held out
and all steps are taken, and seconds of training.

`--root` (default: $TERRINE_SHARED/datasets) holds MNIST; digits need nothing. Results are cached in `--work` (a
temporary folder by default).
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import common_options, datasets, heading, row, spread

from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.artefacts.released import read_student
from tasks.config.params import merge_overrides, parse_assignment, validate
from tasks.config.presets import load_values
from tasks.config.values import digest
from tasks.pipeline import student
from tasks.runtime.run import Run
from terrine.determinism.randomness import numpy_generator
from terrine.files import file_digest
from terrine.heads import predict
from terrine.models.backbone import features_in_batches

REPOSITORY = Path(__file__).resolve().parents[1]
PRESETS = ["terrine-digits", "terrine-mnist", "terrine-mnist-labels"]

STUDENTS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "linear, forward correction": {"kind": "linear", "forward_correction": True},
    "head by gradient": {"kind": "finetune", "trainable": 0},
    "head by gradient, weak views": {"kind": "finetune", "trainable": 0, "augment": True},
    "fixmatch": {"kind": "fixmatch"},
    "fixmatch, threshold 0.6, weight 0.1": {"kind": "fixmatch", "threshold": 0.6, "unlabelled_weight": 0.1},
    "freematch": {"kind": "freematch"},
    "freematch, weight 0.1": {"kind": "freematch", "unlabelled_weight": 0.1},
    "vat": {"kind": "vat"},
    "vat, length 0.1, weight 0.1": {"kind": "vat", "perturbation": 0.1, "unlabelled_weight": 0.1},
}


def make_release(root: Path, preset: str, seed: int, data: Path, settings: list[str]) -> Run:
    """Return a run whose release exists, made unless it lies in `root` already."""
    common = {"seed": seed, "data": {"root": str(data)}, "device": "cpu", "aggregation": {"noise": "replay"}}
    params = validate(load_values(REPOSITORY, preset, common, *map(parse_assignment, settings)))
    run = Run(root, f"{preset}-{seed}-{digest(params)}", params)
    if not run.folders.answers.is_dir():
        run_through(run, "dataset", "aggregate")
    return run


class Evaluator:
    """Accuracy on the test split; features of a backbone that is met again are not computed again."""

    def __init__(self) -> None:
        self._features: dict[str, np.ndarray] = {}

    def accuracy(self, run: Run) -> float:
        """Return the share of the test split that the run's student gets right."""
        test = read_dataset(run.folders)
        backbone, head, manifest = read_student(run.folders)
        key = f"{run.name} {file_digest(run.folders.student / 'backbone.safetensors')} {manifest['statistics']}"
        if key not in self._features:
            order = numpy_generator(0, "evaluation order").permutation(len(test.test_labels))
            batches = np.array_split(order, max(1, round(len(order) / run.params.student.batch)))
            self._features[key] = features_in_batches(backbone, test.test_images, batches, manifest["statistics"])
        return float((predict(head, self._features[key]).argmax(1) == test.test_labels).mean())


def compare(runs: list[Run], names: list[str], steps: int) -> None:
    """Train every student on every release and print a table."""
    evaluator = Evaluator()
    labels = runs[0].params.aggregation.reveals != "histogram"
    heading("student", "kept, %", "minus linear", "kept step", "after all steps, %", "minus linear", "seconds")
    reference = [100 * evaluator.accuracy(trained(run, STUDENTS["linear"])[0]) for run in runs]
    for name in names:
        options = STUDENTS[name] | ({"steps": steps} if STUDENTS[name]["kind"] != "linear" else {})
        if not labels and "forward_correction" in options:
            continue
        own = [trained(run, options) for run in runs]
        kept = np.array([100 * evaluator.accuracy(run) for run, _ in own])
        seconds = np.mean([cost for _, cost in own])
        columns = [spread(kept, 2, 1.0), spread(kept - reference, 2, 1.0, signed=True), "", "", "", f"{seconds:.1f}"]
        if options["kind"] != "linear":
            chosen = [read_student(run.folders)[2]["training"]["chosen_step"] for run, _ in own]
            columns[2] = ", ".join(map(str, chosen))
            last = [evaluator.accuracy(trained(run, options | {"patience": None})[0]) for run in runs]
            columns[3] = spread(last, 2)
            columns[4] = spread(100 * np.array(last) - reference, 2, 1.0, signed=True)
        row(name, *columns)


def trained(run: Run, options: dict[str, Any]) -> tuple[Run, float]:
    """Train a student that replaces a run's last one; return the run with its settings and the seconds."""
    values = merge_overrides(run.params.model_dump(mode="json"), {"student": {"l2": 0.3, **options}})
    own = Run(run.root, run.name, validate(values))
    start = time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        student.train_student.fn(own)
    return own, time.perf_counter() - start


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=None, seeds=[0, 1, 2], set=[])
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--students", nargs="+", default=list(STUDENTS), choices=list(STUDENTS))
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (arguments.work or Path(temporary)).resolve()
        for preset in arguments.presets:
            start = time.perf_counter()
            runs = [
                make_release(root, preset, seed, arguments.root.resolve(), arguments.set) for seed in arguments.seeds
            ]
            answered = len(student.read_answers(runs[0])[0])
            print(
                f"\n### {preset}: {answered} answers, seeds {' '.join(map(str, arguments.seeds))}, releases in "
                f"{time.perf_counter() - start:.0f} s, {torch.get_num_threads()} threads"
            )
            compare(runs, arguments.students, arguments.steps)


if __name__ == "__main__":
    main()
