"""Parties whose data differ, on MNIST: the paper's table, and what averaging costs when it is really private.

    python benchmarks/heterogeneous.py table1  [--seeds 0 ... 9] [--similarities 0 1 10 100] [--figure FILE]
    python benchmarks/heterogeneous.py private [--seeds 0 ... 4] [--queries public|synthetic]

`table1` is Table 1 and Figure 2 of Dodwadmath and Stich (2022): ten parties, LNMax, 100 and 1,000 queries from the
first 9,000 test images, the student judged by the last 1,000. Heads on frozen features replace the paper's network;
`--learner pate_cnn` uses the network, slowly on a CPU. Its ε is printed as it is claimed, and
beside it the ε that holds when one record may move every vote, as it may after averages without noise. `--figure`
draws Figure 2, the right ones among 1,000 noisy labels, as an SVG.

`private` compares, at one exact ε: conventional teachers, groups of parties that vote as one, teachers with private
averages, and DP-FedAvg, which releases the averaged model itself. Labels are sorted (s = 0) or dealt by Dirichlet(0.1).
`--queries public` asks about the first 9,000 test images and judges by the last 1,000; `synthetic` asks about 10,000
synthetic images and judges by all test images.

The functions that the stages call, with replayed noise: MNIST is public, so no ledger is used. Features of all images
are computed once and kept in `--work` (1.5 GB, a minute); every seed has its own partition, mini-batches and noise.
Every cell is a line of JSON in `--work`, so an interrupted benchmark goes on.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy import Study, log_coefficients
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from dp_fedavg import FedAvgSettings
from dp_fedavg import train as dp_fedavg
from pate_figures import canvas, save

from terrine.aggregation.gnmax import GaussianHistogram, GNMax
from terrine.aggregation.lnmax import LNMax
from terrine.aggregation.votes import count_votes
from terrine.data.partition import by_similarity, dirichlet
from terrine.determinism.randomness import derive_seed
from terrine.heads import predict
from terrine.models.architecture import build_backbone
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.events import Event, compose, laplace_answers
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.accounting.pricing import claimed_by_moments, price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedSum, noise_multiplier_for
from terrine.queries import Queries
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.linear import fit
from terrine.teachers.averaging.averaged import (
    AveragedKind,
    AveragedTeachers,
    RoundState,
    assign_blocks,
    centre_records,
    party_means,
)
from terrine.teachers.averaging.learners import Learner, LinearLearner, ModuleLearner, centre_queries
from terrine.teachers.averaging.private import calibrated
from terrine.teachers.averaging.ttac import average_teachers, unit_rows
from terrine.teachers.network_training import Classifier
from terrine.teachers.records import Records

CLASSES, DELTA, BATCH = 10, 1e-5, 500
POOL = 9_000
GAMMAS = (0.01, 0.05, 0.1, 0.2, 0.5)
PRINTED = (0.1, 0.5)
"""Those of the paper's table, for which students like their teachers are trained."""

PAPER = AveragedTeachers(mode="paper", rounds=10, steps=20, learning_rate=1.0, step_decay=0.95, batch=32)
CONVERGED = AveragedTeachers(
    averaging="none", correction="none", rounds=10, steps=100, learning_rate=20.0, step_decay=0.95, batch=32
)
"""Conventional heads trained to convergence; TTAC's number of steps (`PAPER`) is too small for them."""
NETWORK = AveragedTeachers(mode="paper", rounds=60, steps=5, learning_rate=0.02, step_decay=0.97, batch=8)
NETWORK_STUDENT = AveragedTeachers(
    averaging="none", correction="none", rounds=10, steps=30, learning_rate=0.05, step_decay=0.9, batch=32
)
"""Chosen on 1,000 true labels, a seventh of them replaced at random; twice the steps are no better."""
BLOCKS = AveragedTeachers(averaging="blocks", block=10, rounds=6, steps=10, learning_rate=20.0, batch=32)
SHARE, FEATURES = 0.8, 100
ROUNDS = {"rounds": 6, "steps": 5, "learning_rate": 5.0, "step_decay": 0.65, "batch": 32, "budget_share": SHARE}
PRIVATE = {
    "public": AveragedTeachers(clip=2.0, **ROUNDS),
    "synthetic": AveragedTeachers(clip=3.0, centre="shared", statistics="original", **ROUNDS),
}
"""By what is asked; features of both are of another length and another number."""
FEDERATED = FedAvgSettings(rounds=5, local_steps=5, learning_rate=5.0, clip=2.0, scale=1.0)


@dataclass(frozen=True)
class Material:
    """Training and query data, float32 features.

    train: of the private records. queries: of the queries, as teachers see them, in batches. student, test: of queries
    and test images as the student sees them. centred: teachers' features are centred.
    """

    train: np.ndarray
    queries: Queries
    student: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    query_labels: np.ndarray | None
    centred: bool


class Images:
    """MNIST and its features, computed once."""

    def __init__(self, root: Path, work: Path) -> None:
        self.study = Study(root, work)
        self.work = work
        self.data = self.study.data
        self.labels = self.data.train_labels

    @cache  # noqa: B019  # one lives as long as the script
    def public(self) -> Material:
        """Queries are test images, whose statistics all features are standardised with."""
        train, test = self._kept("public", lambda: self.study.test[:POOL])
        batch = Queries(test[:POOL], [np.arange(POOL)])
        labels = self.data.test_labels
        return Material(train, batch, test[:POOL], test[POOL:], labels[POOL:], labels[:POOL], centred=False)

    @cache  # noqa: B019
    def synthetic(self) -> Material:
        """Queries are synthetic images; a centre is taken from the parties, since the images' own would be none."""
        pool, _ = self.study.pool(0)
        coefficients = log_coefficients(self.study.network, pool.images)
        train, _, queries = self._kept("synthetic", lambda: coefficients, coefficients)
        _, student, own = self.study.public(0)
        return Material(train, Queries(queries, pool.batches), student, own, self.data.test_labels, None, centred=True)

    def _kept(self, name: str, reference: Callable[[], np.ndarray], *further: np.ndarray) -> list[np.ndarray]:
        """Projected features of train, test and further images, standardised with the statistics of a reference."""
        path = self.work / f"heterogeneous-{name}.npz"
        if not path.is_file():
            projection, _, _ = self.study.public(0)
            mean, deviation = moments(reference())
            made = [project(c, mean, deviation, projection) for c in (self.study.train, self.study.test, *further)]
            np.savez(path.with_suffix(".tmp.npz"), *made)
            path.with_suffix(".tmp.npz").replace(path)
        with np.load(path) as file:
            return [file[key] for key in sorted(file.files, key=lambda key: int(key.removeprefix("arr_")))]


def moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every coefficient, without a second copy of them."""
    total, squares = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for first in range(0, len(values), 2000):
        part = np.asarray(values[first : first + 2000], np.float64)
        total += part.sum(0)
        squares += (part * part).sum(0)
    mean = total / len(values)
    deviation = np.sqrt(np.maximum(squares / len(values) - mean * mean, 0) + 1e-5)
    return mean.astype(np.float32), deviation.astype(np.float32)


def project(values: np.ndarray, mean: np.ndarray, deviation: np.ndarray, projection: torch.Tensor) -> np.ndarray:
    """Features float32 [images, features]."""
    parts = range(0, len(values), 2000)
    return np.concatenate(
        [(torch.from_numpy((values[first : first + 2000] - mean) / deviation) @ projection).numpy() for first in parts]
    )


def dealt(images: Images, kind: str, parties: int, seed: int) -> np.ndarray:
    """The party of every record: `s=PERCENT`, or `dirichlet=ALPHA`."""
    name, _, value = kind.partition("=")
    if name == "s":
        return by_similarity(images.labels, parties, float(value), seed=seed)
    return dirichlet(images.labels, parties, float(value), seed=seed)


def trained(
    form: Learner,
    settings: AveragedTeachers,
    records: Records,
    parties: int,
    seed: int,
    start: RoundState | None = None,
) -> tuple[AveragedKind, list[dict[str, np.ndarray]]]:
    """Teachers, or groups of them, after their last round."""
    kind = AveragedKind(settings, form, parties, (lambda: start) if start is not None else None)
    voters = parties if settings.block is None else len(assign_blocks(parties, settings.block, seed))
    return kind, [state for _, state in kind.train(records, range(voters), seed=seed)]


def paper_votes(images: Images, method: str, similarity: float, seed: int, learner: str) -> np.ndarray:
    """Histograms of ten teachers on the first 1,000 queries, int64 [1000, classes]; those of networks are kept."""
    if learner == "linear":
        return _paper_votes(images, method, similarity, seed, learner)
    settings = hashlib.sha256(repr(NETWORK).encode()).hexdigest()[:8]
    path = images.work / f"votes-{learner}-{method}-{similarity:g}-{seed}-{settings}.npy"
    if not path.is_file():
        np.save(path.with_suffix(".tmp.npy"), _paper_votes(images, method, similarity, seed, learner))
        path.with_suffix(".tmp.npy").replace(path)
    return np.load(path)


def _network_form(learner: str, seed: int) -> ModuleLearner:
    backbone = build_backbone(learner, channels=1, size=28, seed=seed)
    return ModuleLearner(Classifier(backbone.network, backbone.feature_dim, CLASSES, seed))


def network_student(images: Images, labels: np.ndarray, learner: str, seed: int) -> float:
    """Accuracy on the test images of a student that is a network like its teachers, as the paper has it."""
    queries, test = images.data.test_images[: len(labels)], images.data.test_images[POOL:]
    records = Records(queries, labels, np.zeros(len(labels), np.int64), CLASSES)
    kind, states = trained(_network_form(learner, seed), NETWORK_STUDENT, records, 1, seed)
    answers = kind.vote(states, Queries(test, [np.arange(len(test))]))[:, 0]
    return float((answers == images.data.test_labels[POOL:]).mean())


def _paper_votes(images: Images, method: str, similarity: float, seed: int, learner: str) -> np.ndarray:
    parties = 10
    assignment = dealt(images, f"s={similarity}", parties, seed)
    form: Learner
    if learner == "linear":
        material = images.public()
        form = LinearLearner(material.train.shape[1], CLASSES)
        settings, inputs, asked = PAPER, material.train, material.queries.inputs[:1000]
    else:
        form = _network_form(learner, seed)
        settings, inputs, asked = NETWORK, images.data.train_images, images.data.test_images[:1000]
    records = Records(inputs, images.labels, assignment, CLASSES)
    if method != "TTAC":
        alone = settings.model_copy(update={"averaging": "none", "correction": "none"})
        kind, states = trained(form, CONVERGED if method == "converged" else alone, records, parties, seed)
    else:
        rounds = settings.rounds - 1
        average, own = average_teachers(form, records, range(parties), settings, rounds=rounds, seed=seed)
        kind, states = trained(form, settings, records, parties, seed, RoundState(average, own))
    return count_votes(kind.vote(states, Queries(asked, [np.arange(len(asked))])), CLASSES)


Found = dict[tuple[float, str], dict[tuple[int, float], list[dict[str, float]]]]
"""Figures of each seed, by similarity and method, and by queries and γ."""


def table1(images: Images, cells: Cells, seeds: list[int], similarities: list[float], learner: str) -> Found:
    """Student accuracy by method, similarity, noise and number of queries."""
    material = images.public()
    rows: Found = {}
    for similarity in similarities:
        # With the steps that TTAC takes, and until they change no more, which heads can afford.
        for method in ("conventional", *(["converged"] if learner == "linear" else []), "TTAC"):
            for seed in seeds:
                votes = cache(lambda m=method, s=similarity, r=seed: paper_votes(images, m, s, r, learner))
                for queries in (100, 1000):
                    for gamma in GAMMAS:

                        def compute(queries=queries, gamma=gamma, seed=seed, votes=votes) -> dict[str, float]:
                            counts = votes()[:queries]
                            noise = ReplayNoise(derive_seed(seed, "table 1", queries, int(1000 * gamma)))
                            labels = LNMax(scale=1 / gamma).answer(counts, epsilon=1e9, delta=DELTA, noise=noise).labels
                            head = fit(material.student[:queries], label_answers(labels, CLASSES), seed=seed)
                            right = predict(head, material.test).argmax(1) == material.test_labels
                            truth = material.query_labels[:queries]
                            found = {
                                "student": float(right.mean()),
                                "labels": float((labels == truth).mean()),
                                "plurality": float((counts.argmax(1) == truth).mean()),
                            }
                            if learner != "linear" and gamma in PRINTED:
                                found["network"] = network_student(images, labels, learner, seed)
                            return found

                        cell = {"table": 1, "learner": learner, "s": similarity, "method": method, "seed": seed}
                        cell |= {} if learner == "linear" else {"students": ["linear", learner]}
                        found = cells.get(
                            json.dumps(cell | {"queries": queries, "gamma": gamma}, sort_keys=True), compute
                        )
                        rows.setdefault((similarity, method), {}).setdefault((queries, gamma), []).append(found)
    names = {"student": "Student accuracy", "labels": "Right labels", "network": "A student like its teachers"}
    for figure, name in names.items():
        columns = [(queries, gamma) for queries in (100, 1000) for gamma in GAMMAS]
        columns = [column for column in columns if all(figure in entry for f in rows.values() for entry in f[column])]
        if not columns:
            continue
        print(f"\n{name}, per cent, {len(seeds)} seeds")
        heading("s", "teachers", *(f"{queries} queries, γ={gamma:g}" for queries, gamma in columns))
        for (similarity, method), found in rows.items():
            row(f"{similarity:g} %", method, *(spread(entry[figure] for entry in found[column]) for column in columns))
    print("\nCost of the labels at δ = 1e-5")
    heading("queries", "γ", "ε claimed", "ε if one vote moves", "ε if all 10 move")
    for queries in (100, 1000):
        for gamma in GAMMAS:
            one, every = (price(laplace_answers(1 / gamma, queries, moved), DELTA) for moved in (1, 10))
            claimed = claimed_by_moments(gamma, queries, DELTA)
            row(queries, f"{gamma:g}", *(f"{epsilon:.2f}" for epsilon in (claimed, one, every)))
    return rows


def draw_labels(rows: Found, path: Path) -> None:
    """Figure 2: the right ones among 1,000 noisy labels, by γ: lines of TTAC, dashes of conventional teachers."""
    figure, ax = canvas(1)
    colours = {similarity: f"C{number}" for number, similarity in enumerate(sorted({key[0] for key in rows}))}
    for (similarity, method), found in rows.items():
        right = np.array([[100 * one["labels"] for one in found[1000, gamma]] for gamma in GAMMAS])
        style = "-o" if method == "TTAC" else "--s"
        named = f"s = {similarity:g} %, {'TTAC' if method == 'TTAC' else 'conventional'}"
        middle, spread_ = right.mean(axis=1), right.std(axis=1, ddof=1)
        ax.errorbar(GAMMAS, middle, spread_, fmt=style, color=colours[similarity], label=named, capsize=3, markersize=5)
    ax.set(
        xscale="log", ylim=(0, 100), xlabel="γ of LNMax: its noise has scale 1/γ", ylabel="right among 1,000 labels, %"
    )
    ax.set_xticks(GAMMAS, [f"{gamma:g}" for gamma in GAMMAS], minor=False)
    ax.set_xticks([], minor=True)
    ax.legend(loc="upper left")
    save(figure, path)


def private(images: Images, cells: Cells, seeds: list[int], queries: str, parties: list[int]) -> None:
    """Student accuracy by method, partition, parties and exact ε."""
    material = images.public() if queries == "public" else images.synthetic()
    width = FEATURES if queries == "public" else material.train.shape[1]
    material = replace(
        material,
        train=np.ascontiguousarray(material.train[:, :width]),
        queries=Queries(np.ascontiguousarray(material.queries.inputs[:, :width]), material.queries.batches),
    )
    budgets = (2.0, 6.0, 10.0)
    methods = ("conventional", "groups of 10 vote as one", "private averages", "DP-FedAvg, no votes")
    table: dict[tuple[str, int, str], dict[float, list[float]]] = {}
    for kind in ("s=0", "dirichlet=0.1"):
        for count in parties:
            for seed in seeds:
                assignment = dealt(images, kind, count, seed)
                records = Records(material.train, images.labels, assignment, CLASSES)
                votes = cache(lambda settings, r=records, n=count, s=seed: votes_of(material, settings, r, n, s))
                for method in methods:
                    for epsilon in budgets:

                        def compute(
                            method=method, epsilon=epsilon, records=records, count=count, seed=seed, votes=votes
                        ) -> dict[str, float]:
                            if method.startswith("DP-FedAvg"):
                                return federated(material, records, count, epsilon, seed)
                            if method == "private averages":
                                return averaged(material, records, count, epsilon, seed)
                            return judged(material, votes(CONVERGED if method == methods[0] else BLOCKS), epsilon, seed)

                        cell = {"queries": queries, "partition": kind, "parties": count, "seed": seed}
                        found = cells.get(
                            json.dumps(cell | {"method": method, "epsilon": epsilon}, sort_keys=True), compute
                        )
                        assert found["epsilon"] <= epsilon
                        table.setdefault((kind, count, method), {}).setdefault(epsilon, []).append(found["student"])
    print(f"\nStudent accuracy, per cent, {len(seeds)} seeds, {queries} queries, exact ε at δ = 1e-5")
    heading("partition", "parties", "method", *(f"ε = {epsilon:g}" for epsilon in budgets))
    for (kind, count, method), found in table.items():
        row(kind, f"{count:,}", method, *(spread(found[epsilon]) for epsilon in budgets))


def votes_of(material: Material, settings: AveragedTeachers, records: Records, parties: int, seed: int) -> np.ndarray:
    """Histograms of independent teachers or groups."""
    form = LinearLearner(records.inputs.shape[1], CLASSES, centred=material.centred)
    kind, states = trained(form, settings, records, parties, seed)
    return count_votes(kind.vote(states, material.queries), CLASSES)


def averaged(material: Material, records: Records, parties: int, epsilon: float, seed: int) -> dict[str, float]:
    """Teachers that start from private averages, and their student."""
    form = LinearLearner(records.inputs.shape[1], CLASSES, centred=material.centred)
    settings = PRIVATE["synthetic" if material.centred else "public"]
    averaging = calibrated(settings, epsilon=epsilon, delta=DELTA)
    noise = ReplayNoise(derive_seed(seed, "private averages", parties, int(epsilon)))
    centre, learned = None, records
    if material.centred:
        centre = averaging.release_centre([party_means(records, range(parties))], noise)
        learned = centre_records(records, range(parties), centre)
    average, own = average_teachers(
        form,
        learned,
        range(parties),
        settings,
        rounds=settings.rounds - 1,
        seed=seed,
        combine=averaging.combine(noise),
    )
    kind, states = trained(form, settings, records, parties, seed, RoundState(average, own, centre))
    histograms = count_votes(kind.vote(states, material.queries), CLASSES)
    return judged(material, histograms, epsilon, seed, spent=averaging.whole_event())


def judged(
    material: Material, histograms: np.ndarray, epsilon: float, seed: int, spent: Any = None
) -> dict[str, float]:
    """Release the histograms with what is left of the budget, and judge the student of them."""
    before = compose() if spent is None else spent
    whole = calibrate(epsilon, DELTA, len(histograms)).sigma
    left = 1.0 if spent is None else 1 - SHARE
    sigma = whole / math.sqrt(left) * (1 + 1e-9)
    noise = ReplayNoise(derive_seed(seed, "noise of votes", int(epsilon)))
    answers = GaussianHistogram(sigma=sigma).answer(histograms, epsilon=epsilon, delta=DELTA, noise=noise, spent=before)
    assert answers.answered.all(), "the budget pays for every query"
    voters = int(histograms[0].sum())
    head = fit(material.student, histogram_answers(answers.histograms, voters, sigma), seed=seed)
    right = predict(head, material.test).argmax(1) == material.test_labels
    found = {
        "student": float(right.mean()),
        "consensus": float((histograms.max(1) / voters).mean()),
        "epsilon": epsilon_of(math.sqrt(mu_squared(compose(before, answers.event))), DELTA),
    }
    if material.query_labels is not None:
        found["plurality"] = float((histograms.argmax(1) == material.query_labels).mean())
        labels = GNMax(sigma=sigma).answer(histograms, epsilon=epsilon, delta=DELTA, noise=noise, spent=before).labels
        found["labels"] = float((labels == material.query_labels).mean())
    return found


def federated(material: Material, records: Records, parties: int, epsilon: float, seed: int) -> dict[str, float]:
    """The model of DP-FedAvg, which spends all of the budget and is what is judged.

    If features are centred, it also releases a centre with the noise of its rounds.
    """
    noise = ReplayNoise(derive_seed(seed, "federated", parties, int(epsilon)))
    width, rounds = records.inputs.shape[1], FEDERATED.rounds
    tested = Queries(np.ascontiguousarray(material.test[:, :width]), [np.arange(len(material.test))])
    before: Event = compose()
    if material.centred:
        mechanism = ClippedSum(1.0, noise_multiplier_for(epsilon, DELTA, 1.0, rounds + 1))
        centre = mechanism.release([party_means(records, range(parties))], noise) / parties
        features, test = centre_records(records, range(parties), centre).inputs, centre_queries(tested).inputs
        before = mechanism.event
    else:
        features, test = unit_rows(records.inputs), unit_rows(tested.inputs)
    left = math.sqrt(mu_of(epsilon, DELTA) ** 2 - mu_squared(before)) * (1 - 1e-9)
    found = dp_fedavg(
        features,
        records.labels,
        records.assignment,
        parties,
        CLASSES,
        FEDERATED,
        epsilon=epsilon_of(left, DELTA),
        delta=DELTA,
        noise=noise,
    )
    right = predict(found.head, test).argmax(1) == material.test_labels
    spent = epsilon_of(math.sqrt(mu_squared(compose(before, found.event))), DELTA)
    return {"student": float(right.mean()), "epsilon": spent}


def main() -> None:
    """Make one of the tables."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=None)
    parser.add_argument("table", choices=["table1", "private"])
    parser.add_argument("--similarities", type=float, nargs="+", default=[0.0, 1.0, 10.0, 100.0])
    parser.add_argument("--learner", choices=["linear", "pate_cnn", "small_cnn"], default="linear")
    parser.add_argument("--figure", type=Path, help="where Figure 2 is drawn")
    parser.add_argument("--queries", choices=["public", "synthetic"], default="public")
    parser.add_argument("--parties", type=int, nargs="+", default=[200, 1000])
    arguments = parser.parse_args()
    images = Images(arguments.root, arguments.work)
    cells = Cells(arguments.work / "heterogeneous.jsonl")
    if arguments.table == "table1":
        seeds = arguments.seeds or list(range(10))
        rows = table1(images, cells, seeds, arguments.similarities, arguments.learner)
        if arguments.figure:
            draw_labels(rows, arguments.figure)
    else:
        private(images, cells, arguments.seeds or list(range(5)), arguments.queries, arguments.parties)


if __name__ == "__main__":
    main()
