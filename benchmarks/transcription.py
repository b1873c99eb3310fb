"""Accuracy of model transcription beside its claimed and exact ε.

    python benchmarks/transcription.py iteration | limit | teachers | published | tables | audit
        [--work FOLDER] [--root FOLDER] [--seeds 0 1 2 3 4] [--set KEY=VALUE ...]

iteration   one iteration at b = 256 on 28x28 with the paper's kind of student: seconds and images/s, forward passes
            shared as in the loop and, for comparison, made separately; and clients' answers by their number.
limit       MNIST without noise: the student and its teacher.
teachers    `dpsd-many-teachers` at exact ε = 10, 6 and 2, with σ from the budget; 200 clients and, at ε = 2, 600.
published   the paper's setting (σ=100, β=1e-3, b=256, T=200): claimed and exact ε beside the accuracy.
tables      analogues of Tables I, IV, V, VI and Figure 5 on digits at a scale that two cores finish.
audit       membership inference against `dpsd-many-teachers` on digits: shadow runs, lower bound on ε.

Every cell is a run of the stages with replayed noise in a separate folder, and a line of WORK/transcription.jsonl.
Finished cells are reused, so an interrupted benchmark resumes. Cells share dataset, partition, labels, initial models
and teachers. Printed are Markdown tables: accuracy on the
private test split in per cent, mean ± standard deviation over seeds. `--root` (default: $TERRINE_SHARED/datasets) holds
MNIST; digits need nothing.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import Cells, common_options, datasets, heading, row, spread, times

from flows.stages import run_through
from tasks.config.params import Params, parse_assignment, validate
from tasks.config.presets import load_values
from tasks.config.values import digest, merge
from tasks.runtime.run import Run
from tasks.runtime.store import link, read_json
from tasks.transcription.clients import read_manifest
from terrine.models.architecture import build_backbone
from terrine.privacy.noised_sum import noise_multiplier_for
from terrine.teachers.linear import LinearHeads
from terrine.teachers.network_training import Classifier
from terrine.transcription.annotation import DataAnnotation
from terrine.transcription.clients import Clients, LinearClients, NetworkClients
from terrine.transcription.generator import Generator
from terrine.transcription.loop import Loop, TranscribedStudent
from terrine.transcription.settings import Annotation, Transcription, TranscriptionTeacher

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_PARTS = ("dataset", "partition", "labels", "start", "teachers")
DELTA = 1e-5

DIGITS: dict[str, Any] = {"data": {"name": "digits", "size": 28}, "partition": {"teachers": 50}}
"""Digits: 1,438 records, so 50 clients have about 29 each."""


class Runs:
    """Runs, and what came out of them."""

    def __init__(self, work: Path, root: Path, settings: list[str]) -> None:
        self.work, self.root, self.settings = work.resolve(), root.resolve(), settings
        self.cells = Cells(self.work / "transcription.jsonl")

    def get(self, preset: str, changes: dict[str, Any], seed: int) -> dict[str, Any]:
        """Return the figures of one cell, made unless its line is there."""
        params = self._params(preset, changes, seed)
        cell = f"{preset}-{digest(params)}"

        def compute() -> dict[str, Any]:
            start = time.perf_counter()
            run = self._prepared(params, cell)
            taught = time.perf_counter()
            run_through(run, "transcribe", "evaluate")
            statement, teachers = read_json(run.folders.statement), read_manifest(run)
            evaluation = read_json(run.folders.evaluation)
            return {
                "preset": preset,
                "seed": seed,
                "changes": changes,
                "accuracy": 100 * evaluation.get("in_batches", evaluation)["accuracy"],  # as the paper measures
                "teacher": 100 * teachers["accuracy"],
                "plurality": 100 * teachers["plurality_accuracy"],
                "epsilon": statement["epsilon"],
                "claimed": statement["epsilon_claimed"],
                "seconds_before": round(taught - start, 1),
                "seconds_asking": round(time.perf_counter() - taught, 1),
            }

        return self.cells.get(cell, compute)

    def row(self, name: str, preset: str, changes: dict[str, Any], seeds: Sequence[int]) -> None:
        """Print one row of a table."""
        lines = [self.get(preset, changes, seed) for seed in seeds]
        epsilon, claimed = lines[0]["epsilon"], lines[0]["claimed"]
        columns = [
            name,
            spread([line["accuracy"] for line in lines], 2, 1.0),
            spread([line["teacher"] for line in lines], 2, 1.0),
            spread([line["plurality"] for line in lines], 2, 1.0),
            "none" if epsilon is None else f"{epsilon:.4g}",
            "–" if claimed is None else f"{claimed:.4g}",
            f"{np.mean([line['seconds_asking'] for line in lines]):.0f}",
        ]
        row(*columns)

    def _params(self, preset: str, changes: dict[str, Any], seed: int) -> Params:
        common = {"seed": seed, "device": "cpu", "data": {"root": str(self.root), "download": False}}
        values = load_values(REPOSITORY, preset, common, changes)
        if values["transcription"].get("noise") != "none":
            values = merge(values, {"transcription": {"noise": "replay"}})
        for setting in self.settings:
            values = merge(values, parse_assignment(setting))
        return validate(values)

    def _prepared(self, params: Params, cell: str) -> Run:
        """Return a run up to its teachers, which are shared by all cells whose parameters for them are equal."""
        transcription = params.transcription
        assert transcription is not None
        common = {
            "params": params.model_dump(mode="json", include={"seed", "data", "privacy", "partition"}),
            "transcription": transcription.model_dump(
                mode="json", include={"federated", "per_task", "teacher", "protect"}
            ),
            "labels": transcription.annotation.epsilon if transcription.protect == "labels" else None,
            "student": [transcription.student.architecture, transcription.student.projection],
            "generator": [transcription.generator.latent, transcription.generator.width],
        }
        base = Run(self.work / "teachers" / digest(common), "base", params)
        if not base.folders.teachers.is_dir():
            run_through(base, "dataset", "teach")
        run = Run(self.work / "cells" / cell, cell, params)
        for name in SHARED_PARTS:
            link(getattr(base.folders, name), getattr(run.folders, name))
        if transcription.protect == "labels":
            # The ledger and its key hold the labels' release, which the cell refers to.
            link(base.root / "data" / "private" / "ledger", run.root / "data" / "private" / "ledger")
        return run


def header(title: str) -> None:
    """Print the head of a table of rows."""
    print(f"\n### {title}")
    heading("run", "student, %", "teacher, %", "plurality, %", "ε exact", "ε claimed", "seconds")


def limit(runs: Runs, seeds: Sequence[int]) -> None:
    """Run the non-private limit."""
    header("MNIST without noise: NOT PRIVATE")
    runs.row("`dpsd-mnist-limit`: a head on fixed features", "dpsd-mnist-limit", {}, seeds)
    network = {
        "iterations": 400,
        "teacher": {"architecture": "small_cnn", "epochs": 2, "learning_rate": 0.002, "batch": 128, "temperature": 1.0},
        "student": {"architecture": "small_cnn", "learning_rate": 0.002, "loss": "cross_entropy", "steps": 4},
        "generator": {"form": "printed", "learning_rate": 0.003},
    }
    runs.row("networks of their own, T=400", "dpsd-mnist-limit", {"transcription": network}, seeds)


def teachers(runs: Runs, seeds: Sequence[int]) -> None:
    """Run many teachers at three budgets."""
    header("MNIST, `dpsd-many-teachers`: annotations of 200 clients, σ from the budget")
    for epsilon in (10, 6, 2):
        runs.row(f"ε ≤ {epsilon}, 200 clients", "dpsd-many-teachers", budget(epsilon, 10, 256), seeds)
    more = merge(budget(2, 10, 256), {"partition": {"teachers": 600}})
    runs.row("ε ≤ 2, 600 clients", "dpsd-many-teachers", more, seeds)


def budget(epsilon: float, iterations: int, batch: int) -> dict[str, Any]:
    """Return the overrides that spend a budget on these samples."""
    sigma = noise_multiplier_for(epsilon, DELTA, 1, iterations * batch)
    return {
        "transcription": {
            "epsilon": epsilon,
            "iterations": iterations,
            "batch": batch,
            "annotation": {"sigma": float(np.ceil(sigma * 100) / 100)},
        }
    }


def published(runs: Runs, seeds: Sequence[int]) -> None:
    """Run the paper's settings."""
    header("MNIST, the published settings")
    batch = {"transcription": {"annotation": {"norm": "batch"}}}
    more = {"transcription": {"annotation": {"beta": 0.005}}}
    runs.row("DPSD, norm of a sample", "dpsd-mnist-small", {}, seeds)
    runs.row("DPSD, norm of the batch", "dpsd-mnist-small", batch, seeds)
    runs.row("norm of a sample, without noise", "dpsd-mnist-control", {}, seeds)
    runs.row("norm of the batch, without noise", "dpsd-mnist-control", batch, seeds)
    runs.row("norm of a sample, β=5e-3", "dpsd-mnist-small", more, seeds)
    runs.row("norm of the batch, β=5e-3", "dpsd-mnist-small", merge(batch, more), seeds)
    runs.row("FedDPSD, 5 clients, Dirichlet 0.5, norm of a sample", "feddpsd-mnist", {}, seeds)
    runs.row("FedDPSD, 5 clients, Dirichlet 0.5, norm of the batch", "feddpsd-mnist", batch, seeds)
    runs.row("labels, ε=1 per answer", "dpsd-mnist-answers", {}, seeds)
    runs.row("labels at the source, ε=2", "dpsd-label-source", {}, seeds)


def tables(runs: Runs, seeds: Sequence[int]) -> None:
    """Run the analogues of the paper's tables and of Figure 5, on digits."""
    preset, base = "dpsd-many-teachers", DIGITS
    header("Table I, digits: data-sensitive, many teachers, by budget")
    for epsilon in (1, 2, 6, 10):
        runs.row(f"ε ≤ {epsilon}", preset, merge(base, budget(epsilon, 10, 256)), seeds)
    header("Table IV, digits: labels at the source, by ε")
    for epsilon in (1, 2, 4, 8):
        kept = (np.exp(epsilon) - 1) / (np.exp(epsilon) + 9)  # what randomisation leaves of a score
        changes = {
            "transcription": {
                "epsilon": epsilon,
                "annotation": {"epsilon": epsilon},
                "teacher": {"temperature": round(0.1 * float(kept), 4)},
            }
        }
        runs.row(f"ε = {epsilon}", "dpsd-label-source", merge(DIGITS, changes), seeds)
    header("Table IV, digits: answers by randomised response, as published, by ε of one answer")
    for epsilon in (1, 2, 4, 8):
        answers = {
            "transcription": {
                "protect": "answers",
                "epsilon": 1e6,  # every one of 2,560 answers costs ε
                "annotation": {"epsilon": epsilon, "top_k": 3},
                "student": {"loss": "cross_entropy"},
            }
        }
        runs.row(f"ε = {epsilon} an answer", "dpsd-label-source", merge(DIGITS, answers), seeds)
    header("Table V, digits: federated, without noise's help from many clients, by partition")
    for name, partition in (("IID", {"kind": "iid"}), ("Dirichlet 0.5", {"kind": "dirichlet", "alpha": 0.5})):
        for count in (5, 50):
            changes = merge(budget(10, 10, 256), {"partition": {**partition, "teachers": count}})
            runs.row(f"{count} clients, {name}, ε ≤ 10", preset, merge(base, changes), seeds)
    header("Table VI, digits: losses of the generator, ε ≤ 10")
    for name, weights in (
        ("all three", (1, 1, 1)),
        ("no cross-entropy", (0, 1, 1)),
        ("no entropy", (1, 0, 1)),
        ("no norm", (1, 1, 0)),
        ("none: as drawn", None),
    ):
        generator = (
            {"steps": 0} if weights is None else dict(zip(("one_hot", "entropy", "activation"), weights, strict=True))
        )
        for form in ("printed", "intended") if weights is not None else ("intended",):
            changes = merge(budget(10, 10, 256), {"transcription": {"generator": {**generator, "form": form}}})
            runs.row(f"{name}, {form}", preset, merge(base, changes), seeds)
    header("Figure 5, digits: annotation, ε ≤ 10 (σ follows the number of samples)")
    for limit_ in ("normalise", "clip"):
        for beta in (0.1, 0.3, 1.0):
            changes = {"transcription": {"annotation": {"limit": limit_, "beta": beta}}}
            runs.row(f"{limit_}, β={beta:g}", preset, merge(merge(base, budget(10, 10, 256)), changes), seeds)
    for iterations in (5, 10, 20, 40):
        runs.row(f"T={iterations}", preset, merge(base, budget(10, iterations, 256)), seeds)
    for top_k in (2, 3, 5, 10):
        changes = {"transcription": {"annotation": {"top_k": top_k}}}
        runs.row(f"k={top_k}", preset, merge(merge(base, budget(10, 10, 256)), changes), seeds)
    for distillation in ("classic", "decoupled"):
        for of in ("scores", "probabilities"):
            changes = {"transcription": {"annotation": {"distillation": distillation, "gradient_of": of}}}
            runs.row(f"{distillation}, of {of}", preset, merge(merge(base, budget(10, 10, 256)), changes), seeds)


def audit(runs: Runs, seeds: Sequence[int]) -> None:
    """Attack the student of many teachers on digits with shadow runs."""
    from flows.cli.audit import make_shadow
    from tasks.auditing.membership import audit_student

    print("\n### Membership inference, digits, many teachers")
    heading("ε ≤", "area under the ROC curve", "ε at least", "ε charged")
    for epsilon in (10, 30):
        changes = merge(DIGITS, budget(epsilon, 10, 256))
        runs.get("dpsd-many-teachers", changes, seeds[0])
        params = runs._params("dpsd-many-teachers", changes, seeds[0])
        cell = f"dpsd-many-teachers-{digest(params)}"
        found = audit_student(Run(runs.work / "cells" / cell, cell, params), make_shadow, 16)
        row(
            epsilon,
            f"{found['auc']['value']:.3f}",
            f"{found['epsilon_at_least']:.3f}",
            f"{found['epsilon_charged']:.4g}",
        )


def iteration(runs: Runs, seeds: Sequence[int]) -> None:
    """Time one iteration at the paper's size, and clients by their number."""
    threads = torch.get_num_threads()
    print(f"\n### One iteration at b = 256, 28x28, {threads} threads")
    heading("generator's width", "forward passes", "seconds", "images/s")
    annotation = DataAnnotation(Annotation(sigma=0))
    settings = Transcription(noise="none", annotation=annotation.settings, student={"learning_rate": 1e-3})
    teacher = _networks(1)
    for width in (32, 64, 128):
        for shared in (True, False):
            student = TranscribedStudent(build_backbone("small_cnn", channels=1, size=28, seed=0), 10, 0)
            loop = Loop(student, Generator(1, 28, latent=100, width=width, seed=0), settings, seed=0)
            seconds = times(
                lambda loop=loop, shared=shared: _iterate(loop, teacher, annotation, shared=shared), 3
            ).min()
            row(width, "shared" if shared else "separate", f"{seconds:.3f}", f"{256 / seconds:.0f}")
    print(f"\n### What clients say about 256 images, {threads} threads")
    heading("clients", "kind", "seconds", "per client, ms")
    images = torch.randint(0, 256, (256, 1, 28, 28), dtype=torch.uint8)
    features = build_backbone("scattering", channels=1, size=28, seed=0, projection=200)

    def answer(count: int, kind: str, clients: Clients, repeats: int) -> None:
        seconds = times(lambda: clients.probabilities(images), repeats).min()
        row(count, kind, f"{seconds:.3f}", f"{1000 * seconds / count:.2f}")

    for count in (1, 50, 200, 1000):
        weight = np.random.default_rng(0).normal(size=(count, 10, 200)).astype(np.float32)
        heads = LinearHeads(weight, np.zeros((count, 10), np.float32))
        answer(count, "heads on shared layers", LinearClients(features, heads, TranscriptionTeacher()), 3)
    for count in (1, 10, 50):
        answer(count, "networks, one after the other", _networks(count), 2)


def _networks(count: int) -> NetworkClients:
    def classifier(seed: int) -> Classifier:
        backbone = build_backbone("small_cnn", channels=1, size=28, seed=seed)
        return Classifier(backbone.network, backbone.feature_dim, 10, seed)

    states = []
    for seed in range(count):
        network = classifier(seed)
        states.append({name: value.detach().numpy() for name, value in network.named_parameters()})
    return NetworkClients(classifier(0), states, TranscriptionTeacher())


def _iterate(loop: Loop, teacher: Clients, annotation: DataAnnotation, *, shared: bool) -> None:
    posed = loop.pose()
    total = annotation.total(teacher.probabilities(posed.images), posed.probabilities)
    noisy = annotation.annotate(total, posed.probabilities, 1, None)
    if not shared:
        # The passes that a loop without sharing makes besides: for the student's step, and for the generator's.
        loop.student(posed.images)
        loop.student(loop.generator(loop.vectors))
    loop.learn(noisy)


PARTS = {
    "iteration": iteration,
    "limit": limit,
    "teachers": teachers,
    "published": published,
    "tables": tables,
    "audit": audit,
}


def main() -> None:
    parser = common_options(
        __doc__, root=datasets(), work=Path("transcription-benchmark"), seeds=[0, 1, 2, 3, 4], set=[]
    )
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    arguments = parser.parse_args()
    runs = Runs(arguments.work, arguments.root, arguments.set)
    for part in arguments.parts:
        PARTS[part](runs, arguments.seeds)


if __name__ == "__main__":
    main()
