"""board: one table of rival methods on all of a collection's sets that are there, at the same exact ε.

Every method reads the same features, of MedMNIST's training splits alone: `FEATURES` of an invariant scattering
transform that is fitted to synthetic images and normalised by moments released for `MOMENTS` of ε = 1. All
settings are the same for every set, but for whether its images have an upright, which is public knowledge. Noise is
replayed: the table is NOT PRIVATE, and of public benchmarks. ε is that of exchanging a record, for DP-SGD, too.

Figures are kept one by one: a board that was killed goes on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy.special import softmax

from tasks.runtime.store import write_json, write_text
from tasks.tools.cells import Cells, spread
from tasks.tools.features import Kept, kept_features, vectors_of
from terrine.aggregation.gradients import Gradients
from terrine.aggregation.moments import Moments
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Sums, mu_left
from terrine.aggregation.votes import histograms_of
from terrine.baselines import dp_sgd
from terrine.classifiers import LinearHead, predict
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.data.sources.medmnist import MedMNIST, places_of
from terrine.errors import InputError
from terrine.extras import from_extra
from terrine.measures import balanced_accuracy, macro_auc, rate
from terrine.models.kinds.scattering import Scattering
from terrine.planning import Plan, plan
from terrine.privacy.accounting.events import RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import mu_of, mu_squared, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.clipped_mean import ClippedMean
from terrine.privacy.noise import ReplayNoise
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.teachers.kinds.linear import LinearTeachers
from terrine.teachers.linear import train_heads, vote

DELTA = 1e-5
FEATURES, MOMENTS = 100, 0.05
QUIET = 1e4
"""μ of noise that changes nothing."""
UPRIGHT, ROUND = {"rotation": 30, "shift": 0.1}, {"rotation": 180, "shift": 0.07}
WITHOUT_UPRIGHT = ("bloodmnist", "dermamnist", "pathmnist", "tissuemnist")
TEACHERS = LinearTeachers(ridge=0.1)
METHODS = ("votes", "moments", "gradients", "DP-SGD", "no privacy")
FIGURES = {"accuracy": "accuracy %", "balanced_accuracy": "balanced accuracy %", "auc": "AUC"}
NOTICE = "NOT PRIVATE: noise was replayed from seeds, on public benchmarks."

Probabilities = np.ndarray
"""[test images, classes]."""


def available(root: Path) -> tuple[list[str], dict[str, str]]:
    """Return the sets of MedMNIST that lie in a folder, and of all others why they have no row."""
    there, missing = [], {}
    for name in get_args(MedMNIST.model_fields["name"].annotation):
        places = places_of(root, f"{name}.npz")
        if name == "chestmnist":
            missing[name] = "its images have several labels each"
        elif any(place.is_file() for place in places):
            there.append(name)
        else:
            missing[name] = f"neither {places[0]} nor {places[1]} is there"
    return there, missing


def student_of_votes(
    kept: Kept, teacher: np.ndarray, classes: int, most: int | None = None, teachers: LinearTeachers = TEACHERS
) -> Callable[[Plan, int], LinearHead]:
    """Let teachers vote on the synthetic images; return what fits a student to their votes: of a plan, whose noise
    counts, and the noise's seed. Arguments as of `counted_votes`."""
    counts = counted_votes(kept, teacher, classes, most, teachers)

    def student(planned: Plan, seed: int) -> LinearHead:
        noisy = counts + ReplayNoise(seed).gaussian(counts.shape, planned.sigma)
        return fit(kept["queries"][:, :most], histogram_answers(noisy, int(counts[0].sum()), planned.sigma), seed=0)

    return student


def counted_votes(
    kept: Kept, teacher: np.ndarray, classes: int, most: int | None = None, teachers: LinearTeachers = TEACHERS
) -> np.ndarray:
    """Return the histograms of teachers' votes on the synthetic images [queries, classes].

    teacher: int64 [records], who learns from which record; nobody without one votes. most: features that are read, the
    first so many; None: all. teachers: how they learn.
    """
    train, queries = (kept[part][:, :most] for part in ("train", "queries"))
    present, own = np.unique(teacher, return_inverse=True)
    heads = train_heads(train, kept["labels"], own, list(range(len(present))), classes, teachers, seed=0)
    return histograms_of(vote(heads, queries), classes)


class Contest:
    """A set, and what each method makes of it: test probabilities, and ε of what they cost."""

    def __init__(self, name: str, load: Callable[[], Dataset], work: Path) -> None:
        self.name, self.load, self.work = name, load, work
        self.mean = ClippedMean.for_share(MOMENTS, 1.0, DELTA)

    @functools.cached_property
    def kept(self) -> Kept:
        deformed = ROUND if self.name in WITHOUT_UPRIGHT else UPRIGHT
        backbone = Scattering(projection=FEATURES, invariance=True, deformations=deformed)
        return kept_features(self.load, backbone, self.work / f"features {self.name} {FEATURES}.npz", self.mean)

    @functools.cached_property
    def vectors(self) -> tuple[Records, np.ndarray]:
        return vectors_of(self.kept)[:2]

    def sums(self, kind: Sums, epsilon: float | None, seed: int) -> tuple[Probabilities, float | None]:
        """Moments or gradients; without a budget, without noise to speak of."""
        records, test = self.vectors
        mu = QUIET if epsilon is None else mu_left(epsilon, DELTA, self.mean.event)
        head = kind.head(kind.release(records, mu, ReplayNoise(seed)), mu)
        cost = None if epsilon is None else price(compose(self.mean.event, kind.event(mu)), DELTA)
        return softmax(test @ head, axis=1), cost

    def votes(self, epsilon: float, seed: int) -> tuple[Probabilities, float]:
        """As many teachers as planned for so many records; each votes on 6,000 synthetic images."""
        planned, student = self.voted(epsilon)
        cost = price(compose(self.mean.event, RepeatedEvent(vote_answer(planned.sigma), planned.queries)), DELTA)
        return predict(student(planned, seed), self.kept["test"]), cost

    @functools.cache  # noqa: B019  a contest is over when its set is
    def voted(self, epsilon: float) -> tuple[Plan, Callable[[Plan, int], LinearHead]]:
        records, classes = len(self.kept["labels"]), self.vectors[0].classes
        spent = mu_squared(self.mean.event) / mu_of(epsilon, DELTA) ** 2
        asked = len(self.kept["queries"])
        planned = plan(records, classes=classes, epsilon=epsilon, delta=DELTA, queries=asked, moments=spent)
        return planned, student_of_votes(self.kept, iid(records, planned.teachers, seed=0), classes)

    def dp_sgd(self, epsilon: float, seed: int) -> tuple[Probabilities, float]:
        """DP-SGD on the same vectors, with all records in one place."""
        records, test = self.vectors
        recipe, (sigma, cost) = dp_sgd.Recipe(), self.noise_of_dp_sgd(epsilon)
        noise = ReplayNoise(seed)
        weights = dp_sgd.train(records.vectors, records.labels, records.classes, recipe, sigma, noise, seed)
        return softmax(test @ weights, axis=1), cost

    @functools.cache  # noqa: B019
    def noise_of_dp_sgd(self, epsilon: float) -> tuple[float, float]:
        q, rounds = dp_sgd.Recipe().sampling(len(self.vectors[0].labels))
        return dp_sgd.noise_for(epsilon, q, rounds, DELTA, math.sqrt(mu_squared(self.mean.event)))

    def figures(self, method: str, epsilon: float | None, seed: int) -> dict[str, Any]:
        """Return one cell of the table."""
        probabilities: Probabilities
        cost: float | None
        if method in ("votes", "DP-SGD"):
            assert epsilon is not None
            probabilities, cost = (self.votes if method == "votes" else self.dp_sgd)(epsilon, seed)
        else:
            probabilities, cost = self.sums(Moments() if method == "moments" else Gradients(), epsilon, seed)
        labels, predictions = self.kept["test_labels"], probabilities.argmax(axis=1)
        found = {
            "accuracy": rate(predictions == labels),
            "balanced_accuracy": balanced_accuracy(labels, predictions),
            "auc": macro_auc(labels, probabilities),
        }
        return {name: of.value for name, of in found.items() if of} | {
            "epsilon": None if cost is None else round_up(cost),
            "records": len(self.kept["labels"]),
        }


def medmnist_contest(name: str, root: Path, work: Path) -> Contest:
    """Return the contest on a set of MedMNIST, at 28 pixels, of its training split alone."""

    def load() -> Dataset:
        with from_extra("pipeline", "MedMNIST's sets"):
            from medmnist import INFO
        channels = INFO[name]["n_channels"]
        return load_dataset(name, root=root, download=False, size=28, channels=channels, validation="drop")

    return Contest(name, load, work)


def board(
    root: Path,
    work: Path,
    *,
    sets: Sequence[str] = (),
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    seeds: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Fill the table, write it to `work` as board.md and board.json after every set, and return its rows.

    root: where the sets lie. sets: those that are wanted; none: all that are there. epsilons: budgets at δ = 1e-5.
    seeds: draws of the noise. progress: called with a line before each set.

    Raises InputError for a method or set that there is not, or no set at all.
    """
    there, missing = available(root)
    wanted = list(sets) or there
    for name in wanted:
        if name not in there:
            raise InputError(
                f"There is no row for '{name}': {missing.get(name, 'MedMNIST has no such set of images')}."
            )
    if unknown := sorted(set(methods) - set(METHODS)):
        raise InputError(f"There is no method '{unknown[0]}'. Methods: {', '.join(METHODS)}.")
    if not wanted:
        raise InputError(f"None of MedMNIST's sets is in {root}; looked for {root}/medmnist/NAME.npz, {root}/NAME.npz.")
    cells, rows = Cells(work / "cells.jsonl"), []
    for number, name in enumerate(wanted, start=1):
        progress(f"{number}/{len(wanted)} {name}")
        contest = medmnist_contest(name, root, work)
        for method in methods:
            for epsilon in [None] if method == "no privacy" else epsilons:
                found = [
                    cells.get(
                        f"{name} | {method} | {epsilon} | {seed}",
                        functools.partial(contest.figures, method, epsilon, seed),
                    )
                    for seed in range(1 if epsilon is None else seeds)
                ]
                rows.append(_row(name, method, found))
        write_json(work / "board.json", {"notice": NOTICE, "delta": DELTA, "missing": missing, "rows": rows})
        write_text(work / "board.md", f"{NOTICE}\n\n{markdown(rows)}\n")
    return rows


def _row(name: str, method: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    of = {
        figure: {
            "mean": float(np.mean([cell[figure] for cell in found])),
            "sd": float(np.std([cell[figure] for cell in found], ddof=1)) if len(found) > 1 else None,
        }
        for figure in FIGURES
    }
    shown = {
        figure: spread((cell[figure] for cell in found), *((3, 1.0) if figure == "auc" else (1, 100.0)))
        for figure in FIGURES
    }
    first = found[0]
    return {"set": name, "records": first["records"], "method": method, "epsilon": first["epsilon"]} | {
        "seeds": len(found),
        **of,
        "shown": shown,
    }


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return a row of the table as it is read."""
    epsilon = "–" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
    return [
        row["set"],
        f"{row['records']:,}",
        row["method"],
        epsilon,
        *(row["shown"][figure] for figure in FIGURES),
        str(row["seeds"]),
    ]


COLUMNS = ("set", "records", "method", "exact ε", *FIGURES.values(), "seeds")


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [COLUMNS, ["---" if column in ("set", "method") else "---:" for column in COLUMNS], *map(cells_of, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
