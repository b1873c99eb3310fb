"""Leaderboard: private methods on every available set of MedMNIST, at the same exact ε.

    python -m benchmarks.leaderboard [--root FOLDER] [--set pneumoniamnist] [--epsilon 3] [--seeds 5]

Methods: votes, moments, gradients, DP-SGD, and the head of gradients without noise. All read the same `FEATURES` of an
invariant scattering transform, fitted to synthetic images and normalised by moments released for `MOMENTS` of ε = 1.
Settings are the same for every set, except whether its images have an upright, which is public. ε is under replace-one
neighbouring, for DP-SGD too, and covers the released moments. Noise is replayed from seeds: the table is NOT PRIVATE.

Results are cached in `--work`, where leaderboard.md and leaderboard.json are written after each set: run the same
command again after an interruption.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from medmnist import INFO
from scipy.special import softmax

from benchmarks import dp_sgd_head as dp_sgd
from benchmarks.cells import KEPT, Cells, common_options, spread
from benchmarks.features import QUIET, Kept, kept_features, student_of_votes, vectors_of
from flows.cli import main as run_command
from flows.stopping import stoppable
from tasks.runtime.store import write_json, write_text
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Gradients, Moments, Sums, mu_left
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.data.sources.medmnist import MedMNIST
from terrine.errors import InputError
from terrine.heads import LinearHead, predict
from terrine.measures import balanced_accuracy, macro_auc, rate
from terrine.models.scattering import Scattering
from terrine.planning import Plan, plan
from terrine.privacy.accounting.events import RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import mu_of, mu_squared, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean

DELTA = 1e-5
FEATURES, MOMENTS = 100, 0.05
UPRIGHT, ROUND = {"rotation": 30, "shift": 0.1}, {"rotation": 180, "shift": 0.07}
WITHOUT_UPRIGHT = ("bloodmnist", "dermamnist", "pathmnist", "tissuemnist")
METHODS = ("votes", "moments", "gradients", "DP-SGD", "no privacy")
FIGURES = ("accuracy", "balanced_accuracy", "auc")
NOTICE = "NOT PRIVATE: noise was replayed from seeds, on public benchmarks."


def available(root: Path) -> tuple[list[str], dict[str, str]]:
    """Return the sets of MedMNIST in a folder, and why each of the others has no row."""
    there, missing = [], {}
    for name in get_args(MedMNIST.model_fields["name"].annotation):
        places = [root / "medmnist" / f"{name}.npz", root / f"{name}.npz"]
        if name == "chestmnist":
            missing[name] = "its images have several labels each"
        elif any(place.is_file() for place in places):
            there.append(name)
        else:
            missing[name] = f"neither {places[0]} nor {places[1]} is there"
    return there, missing


class Entry:
    """The methods on one set: each returns test probabilities [images, classes] and ε."""

    def __init__(self, name: str, root: Path, work: Path) -> None:
        self.name, self.root, self.work = name, root, work
        self.mean = ClippedMean.for_share(MOMENTS, 1.0, DELTA)

    def load(self) -> Dataset:
        """Return the set at 28 pixels, without its validation split."""
        channels = INFO[self.name]["n_channels"]
        return load_dataset(self.name, root=self.root, download=False, size=28, channels=channels, validation="drop")

    @functools.cached_property
    def kept(self) -> Kept:
        deformed = ROUND if self.name in WITHOUT_UPRIGHT else UPRIGHT
        backbone = Scattering(projection=FEATURES, invariance=True, deformations=deformed)
        return kept_features(self.load, backbone, self.work / f"features {self.name} {FEATURES}.npz", self.mean)

    @functools.cached_property
    def vectors(self) -> tuple[Records, np.ndarray]:
        return vectors_of(self.kept)[:2]

    def sums(self, kind: Sums, epsilon: float | None, seed: int) -> tuple[np.ndarray, float | None]:
        """Moments or gradients; without `epsilon` the noise is negligible."""
        records, test = self.vectors
        mu = QUIET if epsilon is None else mu_left(epsilon, DELTA, self.mean.event)
        head = kind.head(kind.release(records, mu, ReplayNoise(seed)), mu)
        cost = None if epsilon is None else price(compose(self.mean.event, kind.event(mu)), DELTA)
        return softmax(test @ head, axis=1), cost

    def votes(self, epsilon: float, seed: int) -> tuple[np.ndarray, float]:
        """The planned number of teachers for the records; each votes on 6,000 synthetic images."""
        planned, student = self.voted(epsilon)
        cost = price(compose(self.mean.event, RepeatedEvent(vote_answer(planned.sigma), planned.queries)), DELTA)
        return predict(student(planned, seed), self.kept["test"]), cost

    @functools.cache  # noqa: B019  an entry is dropped with its set
    def voted(self, epsilon: float) -> tuple[Plan, Callable[[Plan, int], LinearHead]]:
        records, classes = len(self.kept["labels"]), self.vectors[0].classes
        spent = mu_squared(self.mean.event) / mu_of(epsilon, DELTA) ** 2
        asked = len(self.kept["queries"])
        planned = plan(records, classes=classes, epsilon=epsilon, delta=DELTA, queries=asked, moments=spent)
        return planned, student_of_votes(self.kept, iid(records, planned.teachers, seed=0), classes)

    def dp_sgd(self, epsilon: float, seed: int) -> tuple[np.ndarray, float]:
        """DP-SGD on the same vectors, with all records in one place."""
        (records, test), recipe, noise = self.vectors, dp_sgd.Recipe(), ReplayNoise(seed)
        sampling, spent = recipe.sampling(len(records.labels)), math.sqrt(mu_squared(self.mean.event))
        sigma, cost = dp_sgd.noise_for(epsilon, *sampling, DELTA, spent)
        weights = dp_sgd.train(records.vectors, records.labels, records.classes, recipe, sigma, noise, seed)
        return softmax(test @ weights, axis=1), cost

    def figures(self, method: str, epsilon: float | None, seed: int) -> dict[str, Any]:
        """Return one cell of the table."""
        if epsilon is not None and method in ("votes", "DP-SGD"):
            probabilities, cost = (self.votes if method == "votes" else self.dp_sgd)(epsilon, seed)
        else:
            probabilities, cost = self.sums(Moments() if method == "moments" else Gradients(), epsilon, seed)
        labels, predictions = self.kept["test_labels"], probabilities.argmax(axis=1)
        accuracy, balanced = rate(predictions == labels), balanced_accuracy(labels, predictions)
        measures = zip(FIGURES, (accuracy, balanced, macro_auc(labels, probabilities)), strict=True)
        figures = {name: found.value for name, found in measures if found}
        spent = None if cost is None else round_up(cost)
        return figures | {"epsilon": spent, "records": len(self.kept["labels"])}


@stoppable()
def leaderboard(
    root: Path,
    work: Path,
    sets: Sequence[str] = (),
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    seeds: int = 5,
) -> list[dict[str, Any]]:
    """Return the rows of the table, and write it to `work` after each set.

    Raises InputError for a set that is not in `root`, or if no set is.
    """
    there, missing = available(root)
    if unknown := [name for name in sets if name not in there]:
        why = missing.get(unknown[0], "MedMNIST has no such set of images")
        raise InputError(f"There is no row for '{unknown[0]}': {why}.")
    if not there:
        raise InputError(f"None of MedMNIST's sets is in {root}; looked for {root}/medmnist/NAME.npz, {root}/NAME.npz.")
    if not sets:
        print(*(f"No row for {name}: {why}." for name, why in missing.items()), sep="\n", flush=True)
    cells, rows, wanted = Cells(work / "cells.jsonl"), [], list(sets) or there
    for number, name in enumerate(wanted, start=1):
        print(f"{number}/{len(wanted)} {name}", flush=True)
        entry = Entry(name, root, work)
        for method in methods:
            for epsilon in [None] if method == "no privacy" else epsilons:
                found = []
                for seed in range(1 if epsilon is None else seeds):
                    compute = functools.partial(entry.figures, method, epsilon, seed)
                    found.append(cells.get(f"{name} | {method} | {epsilon} | {seed}", compute))
                row = {"set": name, "method": method, "records": found[0]["records"], "epsilon": found[0]["epsilon"]}
                rows.append(row | {figure: [cell[figure] for cell in found] for figure in FIGURES})
        write_json(work / "leaderboard.json", {"notice": NOTICE, "delta": DELTA, "missing": missing, "rows": rows})
        write_text(work / "leaderboard.md", f"{NOTICE}\n\n{markdown(rows)}\n")
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown: mean ± standard deviation over seeds."""
    columns = ("set", "records", "method", "exact ε", "accuracy %", "balanced accuracy %", "AUC", "seeds")
    lines = [columns, ["---" if column in ("set", "method") else "---:" for column in columns]]
    for row in rows:
        epsilon = "–" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
        shown = [spread(row["accuracy"]), spread(row["balanced_accuracy"]), spread(row["auc"], 3, 1.0)]
        seeds = str(len(row["accuracy"]))
        lines.append([row["set"], f"{row['records']:,}", row["method"], epsilon, *shown, seeds])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = common_options(__doc__, root=Path("data/private/source"), work=KEPT / "leaderboard")
    parser.add_argument("--set", nargs="+", default=(), help="sets; default: all in --root or --root/medmnist")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epsilon", type=float, nargs="+", default=(1.0, 3.0, 8.0))
    parser.add_argument("--seeds", type=int, default=5, help="number of draws of the noise")
    given = parser.parse_args(arguments)
    if given.seeds < 1 or min(given.epsilon) < 0.01:
        parser.error("--seeds is at least 1, and --epsilon at least 0.01")
    rows = leaderboard(given.root, given.work, given.set, given.method, given.epsilon, given.seeds)
    print(markdown(rows), NOTICE, f"Written: {given.work}/leaderboard.md and .json.", sep="\n\n")


if __name__ == "__main__":
    run_command(main)
