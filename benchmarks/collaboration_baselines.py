"""Other collaborations of the same parties at the same ε: the counterpart of Table 4 of Anonymous (2025).

    python benchmarks/collaboration_baselines.py [--preset terrine-mnist-labels] [--epsilon 10] [--seeds 0 1 2]
                                                 [--root FOLDER] [--work FOLDER] [--held-out 1000] [--set KEY=VALUE ...]

All methods have the same data, the same partition among N teachers, the same frozen public backbone with linear heads,
exact accounting, replayed noise, and are evaluated on the same held-out images of the test split. Rows:

- DIET-CaPC, labels / histograms: the student learns from answers about synthetic images. With the same noise, parties
  and a local run give the same answers (`benchmarks/collaboration.py` checks it), so they are made locally here.
- CaPC, greedy teacher: one party spends the whole budget on labels for private images of the same distribution (the
  rest of the test split) and trains on its own records and these; the mean over `--askers` choices of this party.
- CaPC, fair teachers: budget (in units of μ²) and images divided equally; the mean over all parties.
- DP-FedAvg: the parties' heads averaged in rounds with noise; the best of a few public settings, chosen on the held-out
  images, which flatters it.
- for comparison, without any protection: a party by itself, and the plurality vote of all.

As in the paper, CaPC has an advantage: its queries are in-distribution images. The vote's noise is calibrated for
each method: the σ of greedy and fair teachers pays for `--answers` answers from their share of the budget.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from capc import Labelled, epsilon_together, fair_share, fair_teachers, greedy_teacher
from cells import common_options, datasets, heading, row, spread
from dp_fedavg import FedAvgSettings
from dp_fedavg import train as federate

from flows.stages import run_through
from tasks.artefacts.images import read_backbone
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.released import read_student
from tasks.artefacts.teachers import HEADS
from tasks.config.params import merge_overrides, parse_assignment, validate
from tasks.config.presets import load_values
from tasks.pipeline import aggregate, student
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors
from terrine.aggregation.gnmax import GNMax
from terrine.aggregation.votes import count_votes
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.heads import LinearHead, predict
from terrine.models.backbone import features_in_batches
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.noise import ReplayNoise
from terrine.teachers.linear import LinearHeads, train_heads, vote
from terrine.teachers.records import private_features

REPOSITORY = Path(__file__).resolve().parents[1]
FEDERATIONS = [
    FedAvgSettings(rounds=rounds, local_steps=steps, clip=clip)
    for rounds, steps in ((5, 5), (20, 5), (20, 1))
    for clip in (0.3, 1.0, 3.0)
]


class Setting:
    """One seed: data, teachers, features of everything on the frozen backbone."""

    def __init__(self, root: Path, options: argparse.Namespace, seed: int) -> None:
        values = self.values = load_values(
            REPOSITORY,
            options.preset,
            {"seed": seed, "data": {"root": str(options.root)}, "device": "cpu"},
            {"aggregation": {"noise": "replay", "epsilon": options.epsilon}},
            *map(parse_assignment, options.set),
        )
        self.run = Run(root, f"{options.preset}-{seed}", validate(values))
        if not self.run.folders.teachers.is_dir():
            run_through(self.run, "dataset", "vote")
        params = self.run.params
        self.teachers, self.delta = params.partition.teachers, params.aggregation.delta
        self.data, self.assignment = read_dataset(self.run.folders), read_assignment(self.run.folders)
        self.classes = self.data.classes
        backbone, batch = read_backbone(self.run.folders), params.student.batch
        statistics = params.teachers.statistics
        self.records = private_features(
            backbone, self.data.train_images, self.assignment, statistics, most=params.teachers.feature_batch
        ).rows
        order = numpy_generator(seed, "held-out images").permutation(len(self.data.test_labels))
        self.test = features_in_batches(
            backbone, self.data.test_images, np.array_split(order, max(1, round(len(order) / batch))), statistics
        )
        self.held_out, self.queries = order[: options.held_out], order[options.held_out :]
        self.votes = vote(_heads(self.run), self.test)

    def accuracy(self, predictions: np.ndarray) -> float:
        """Share of the held-out images that predictions [test] get right, in per cent."""
        return 100 * float((predictions[self.held_out] == self.data.test_labels[self.held_out]).mean())

    def of_head(self, head: LinearHead) -> float:
        return self.accuracy(predict(head, self.test).argmax(1))

    def noise(self, name: str) -> ReplayNoise:
        return ReplayNoise(derive_seed(self.run.params.seed, f"baseline {name}"))

    def improved(self, labelled: list[Labelled]) -> list[float]:
        """Accuracy of parties that train on their own records and on what they were told."""
        features, labels, owners = [], [], []
        for place, told in enumerate(labelled):
            own = np.flatnonzero(self.assignment == told.teacher)
            features += [self.records[own], self.test[self.queries[told.queries]]]
            labels += [self.data.train_labels[own], told.labels]
            owners.append(np.full(len(own) + len(told.queries), place))
        # A row depends only on its party's records.
        heads = train_heads(
            np.concatenate(features).astype(np.float32),
            np.concatenate(labels),
            np.concatenate(owners),
            range(len(labelled)),
            self.classes,
            self.run.params.teachers,
            seed=self.run.params.seed,
        )
        return [self.of_head(LinearHead(heads.weight[n], heads.bias[n])) for n in range(len(labelled))]

    def diet(self, mechanism: str) -> tuple[float, float, int]:
        """The student that learns from synthetic images: accuracy, exact ε, answers."""
        given = self.run.params.aggregation
        count = self.run.params.queries.count
        sigma = calibrate(given.epsilon, given.delta, count).sigma
        values = merge_overrides(self.values, {"aggregation": {"mechanism": mechanism, "sigma": sigma}})
        run = Run(self.run.root, self.run.name, validate(values))
        aggregate.release_answers.fn(run)
        student.train_student.fn(run)
        _, head, _ = read_student(run.folders)
        statement = aggregate.read_json(run.folders.statement)
        return self.of_head(head), statement["epsilon"], statement["answered"]


def greedy(setting: Setting, options: argparse.Namespace) -> tuple[float, float, int]:
    """CaPC's greedy teacher, for each of a few parties."""
    answers = min(options.answers, len(setting.queries))
    mechanism = GNMax(sigma=calibrate(options.epsilon, setting.delta, answers).sigma)
    generator = numpy_generator(setting.run.params.seed, "askers")
    askers = generator.choice(setting.teachers, min(options.askers, setting.teachers), replace=False)
    told = [
        greedy_teacher(
            setting.votes[setting.queries],
            setting.classes,
            int(asker),
            generator.permutation(len(setting.queries)),
            mechanism,
            epsilon=options.epsilon,
            delta=setting.delta,
            noise=setting.noise(f"greedy {asker}"),
        )
        for asker in askers
    ]
    return float(np.mean(setting.improved(told))), epsilon_together(told[:1], setting.delta), len(told[0].queries)


def fair(setting: Setting, options: argparse.Namespace) -> tuple[float, float, int]:
    """CaPC's fair teachers: each party asks an equal share."""
    order = numpy_generator(setting.run.params.seed, "fair parts").permutation(len(setting.queries))
    parts = np.array_split(order, setting.teachers)
    each = max(1, min(options.answers // setting.teachers, min(len(part) for part in parts)))
    share = fair_share(options.epsilon, setting.delta, setting.teachers)
    told = fair_teachers(
        setting.votes[setting.queries],
        setting.classes,
        parts,
        GNMax(sigma=calibrate(share, setting.delta, each).sigma),
        epsilon=options.epsilon,
        delta=setting.delta,
        noise=setting.noise("fair"),
    )
    answered = sum(len(part.queries) for part in told)
    return float(np.mean(setting.improved(told))), epsilon_together(told, setting.delta), answered


def federated(setting: Setting, options: argparse.Namespace) -> tuple[float, float, int]:
    """DP-FedAvg, the best of a few settings."""
    best = (0.0, 0.0, 0)
    for number, settings in enumerate(FEDERATIONS):
        released = federate(
            setting.records,
            setting.data.train_labels,
            setting.assignment,
            setting.teachers,
            setting.classes,
            settings,
            epsilon=options.epsilon,
            delta=setting.delta,
            noise=setting.noise(f"federation {number}"),
        )
        best = max(best, (setting.of_head(released.head), options.epsilon, settings.rounds))
    return best


def _heads(run: Run) -> LinearHeads:
    return LinearHeads(**read_tensors(run.folders.teachers / HEADS))


def unprotected(setting: Setting, heads: LinearHeads) -> dict[str, tuple[float, float, int]]:
    """A party by itself, and all of them without noise."""
    alone = [setting.accuracy(setting.votes[:, teacher]) for teacher in range(len(heads.weight))]
    plurality = count_votes(setting.votes, setting.classes).argmax(1)
    return {
        "a party by itself, not private": (float(np.mean(alone)), float("inf"), 0),
        "vote of all, not private": (setting.accuracy(plurality), float("inf"), 0),
    }


def measure(setting: Setting, options: argparse.Namespace) -> dict[str, tuple[float, float, int]]:
    """All rows of one seed: accuracy, ε, answers (rounds for DP-FedAvg)."""
    rows: dict[str, Any] = {
        "DIET-CaPC, histograms": lambda: setting.diet("histogram"),
        "DIET-CaPC, labels": lambda: setting.diet("gnmax"),
        "CaPC, greedy teacher": lambda: greedy(setting, options),
        "CaPC, fair teachers": lambda: fair(setting, options),
        "DP-FedAvg": lambda: federated(setting, options),
    }
    measured = {}
    for name, make in rows.items():
        start = time.perf_counter()
        measured[name] = make()
        seconds = time.perf_counter() - start
        print(f"seed {setting.run.params.seed}: {name}: {measured[name][0]:.2f} % in {seconds:.0f} s", flush=True)
    return measured | unprotected(setting, _heads(setting.run))


def main() -> None:
    parser = common_options(__doc__, seeds=[0, 1, 2], root=datasets(), work=None, set=[])
    parser.add_argument("--preset", default="terrine-mnist-labels")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=9000, help="private images that CaPC's parties may ask about")
    parser.add_argument("--askers", type=int, default=10, help="parties that take the greedy teacher's place")
    options = parser.parse_args()
    options.root = options.root.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.work or Path(temporary)).resolve()
        measured = []
        for seed in options.seeds:
            setting = Setting(root, options, seed)
            measured.append(measure(setting, options))
    print(f"\n{options.preset}, {setting.teachers} parties, ε ≤ {options.epsilon:g}, δ = {setting.delta:g}, ", end="")
    print(f"seeds {' '.join(map(str, options.seeds))}, {options.held_out} held-out images")
    heading("method", "accuracy, %", "exact ε", "answers (DP-FedAvg: rounds)")
    for name, (_, epsilon, answers) in measured[0].items():
        shown = "–" if np.isinf(epsilon) else f"{epsilon:.4f}"
        row(name, spread([rows[name][0] for rows in measured], 2, 1.0), shown, answers or "–")


if __name__ == "__main__":
    main()
