"""Leaderboard: private methods on every available set of MedMNIST, CheXpert and EyePACS, at the same exact ε.

    python -m benchmarks.leaderboard [--root FOLDER] [--set pneumoniamnist] [--epsilon 3] [--seeds 5] [--added]

Methods: votes, moments, gradients, DP-SGD, and the head of gradients without noise. All read the same `FEATURES` of an
invariant scattering transform, fitted to synthetic images and normalised by moments released for `MOMENTS` of ε = 1.
Settings are the same for every set, except whether its images have an upright, which is public. ε covers the released
moments and is under replace-one neighbouring, for DP-SGD too; with `--added`, for sums only, under add/remove, as on
the public leaderboard. Noise is replayed from seeds: the table is NOT PRIVATE.

CheXpert and EyePACS are read from the folders `chexpert` (train.csv and valid.csv; five findings, uncertain ones count
as present) and `eyepacs` (trainLabels.csv, images in train, and retinopathy_solution.csv with test if it is there).

Results are cached in `--work`. leaderboard.md, leaderboard.json and, in the format of the public leaderboard, SET.yml
are written there after each set: run the same command again after an interruption.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import yaml
from medmnist import INFO
from scipy.special import expit, softmax

from benchmarks import dp_sgd_head as dp_sgd
from benchmarks.cells import KEPT, Cells, common_options, spread
from benchmarks.features import QUIET, Kept, kept_features, student_of_votes, sums_budget, vectors_of
from flows.cli import main as run_command
from flows.stopping import stoppable
from tasks.runtime.store import write_json, write_text
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Gradients, Moments, Sums
from terrine.data.dataset import Dataset
from terrine.data.file_dataset import Listing
from terrine.data.findings import AND
from terrine.data.image_table import Record
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.data.sources.folder import Folder
from terrine.data.sources.medmnist import MedMNIST
from terrine.errors import InputError
from terrine.heads import LinearHead, predict
from terrine.measures import auc, balanced_accuracy, macro_auc, rate
from terrine.models.scattering import Scattering
from terrine.planning import Plan, plan
from terrine.privacy.accounting.events import RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import mu_of, mu_squared, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean

DELTAS = {"chexpert": 1e-6}
"""δ of the public leaderboard, where it is not `DELTA`."""
DELTA = 1e-5
FEATURES, MOMENTS, SIDE = 100, 0.05, 64
FINDINGS = ("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion")
UPRIGHT, ROUND = {"rotation": 30, "shift": 0.1}, {"rotation": 180, "shift": 0.07}
WITHOUT_UPRIGHT = ("bloodmnist", "dermamnist", "pathmnist", "tissuemnist")
METHODS = ("votes", "moments", "gradients", "DP-SGD", "no privacy")
SUMS = ("moments", "gradients", "no privacy")
FIGURES = ("accuracy", "balanced_accuracy", "auc")
NOTICE = "NOT PRIVATE: noise was replayed from seeds, on public benchmarks."


Costs = Sequence[float]
"""ε if a record is added or removed, and if one is replaced."""


class CheXpert(Folder):
    """Chest X-rays with `FINDINGS`, in the folders that the tables of CheXpert name; its validation split is tested."""

    def found(self, at: Path) -> Listing:
        folder, records = at / self.path, []
        for split in ("train", "valid"):
            table = pd.read_csv(folder / f"{split}.csv")
            present = table[list(FINDINGS)].fillna(0).to_numpy() != 0  # -1 is uncertain
            for path, own in zip(table["Path"], present, strict=True):
                name = path.partition("/")[2]  # behind the name of the archive
                label = AND.join(finding for finding, there in zip(FINDINGS, own, strict=True) if there)
                records.append(Record(folder / name, name, label, split="train" if split == "train" else "test"))
        return Listing(records, Counter())


class EyePACS(Folder):
    """Photographs of the retina with grades of diabetic retinopathy, in the folders of the competition."""

    def found(self, at: Path) -> Listing:
        folder, records = at / self.path, []
        tables = {"train": folder / "trainLabels.csv", "test": folder / "retinopathy_solution.csv"}
        given = {split: table for split, table in tables.items() if table.is_file()}
        for split, table in given.items():
            for image, level in pd.read_csv(table)[["image", "level"]].itertuples(index=False):
                path = folder / split / f"{image}.jpeg"
                records.append(Record(path, path.name, str(level), split=split if len(given) > 1 else ""))
        return Listing(records, Counter())


LOCAL: dict[str, tuple[type[Folder], str, dict[str, Any]]] = {
    "chexpert": (CheXpert, "train.csv", {"channels": 1, "findings": FINDINGS}),
    "eyepacs": (EyePACS, "trainLabels.csv", {"channels": 3, "classes": tuple("01234")}),
}
"""Sets that are read from a folder of their name: source, a file that is there, and settings."""


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
    for name, (_, file, _) in LOCAL.items():
        if (root / name / file).is_file():
            there.append(name)
        else:
            missing[name] = f"{root / name / file} is not there"
    return there, missing


class Entry:
    """The methods on one set: each returns test probabilities [images, classes] and ε."""

    def __init__(self, name: str, root: Path, work: Path, *, added: bool = False) -> None:
        self.name, self.root, self.work, self.added = name, root, work, added
        self.delta = DELTAS.get(name, DELTA)
        self.mean = ClippedMean.for_share(MOMENTS, 1.0, self.delta)

    def load(self) -> Dataset:
        """Return the set, of MedMNIST at 28 pixels and without its validation split."""
        if self.name in LOCAL:
            source, _, settings = LOCAL[self.name]
            return source(path=self.root.absolute() / self.name, size=SIDE, **settings).load()
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

    def sums(self, kind: Sums, epsilon: float | None, seed: int) -> tuple[np.ndarray, Costs | None]:
        """Moments or gradients; without `epsilon` the noise is negligible."""
        records, test = self.vectors
        if several := records.labels.ndim == 2:
            kind = kind.model_copy(update={"findings": records.classes})
        mu, costs = QUIET, None
        if epsilon is not None:
            mu, *costs = sums_budget(kind, epsilon, self.delta, self.mean.event, added=self.added)
        head = kind.head(kind.release(records, mu, ReplayNoise(seed)), mu)
        return expit(test @ head) if several else softmax(test @ head, axis=1), costs

    def votes(self, epsilon: float, seed: int) -> tuple[np.ndarray, Costs]:
        """The planned number of teachers for the records; each votes on 6,000 synthetic images."""
        planned, student = self.voted(epsilon)
        cost = price(compose(self.mean.event, RepeatedEvent(vote_answer(planned.sigma), planned.queries)), DELTA)
        return predict(student(planned, seed), self.kept["test"]), [cost, cost]

    @functools.cache  # noqa: B019  an entry is dropped with its set
    def voted(self, epsilon: float) -> tuple[Plan, Callable[[Plan, int], LinearHead]]:
        records, classes = len(self.kept["labels"]), self.vectors[0].classes
        spent = mu_squared(self.mean.event) / mu_of(epsilon, DELTA) ** 2
        asked = len(self.kept["queries"])
        planned = plan(records, classes=classes, epsilon=epsilon, delta=DELTA, queries=asked, moments=spent)
        return planned, student_of_votes(self.kept, iid(records, planned.teachers, seed=0), classes)

    def dp_sgd(self, epsilon: float, seed: int) -> tuple[np.ndarray, Costs]:
        """DP-SGD on the same vectors, with all records in one place."""
        (records, test), recipe, noise = self.vectors, dp_sgd.Recipe(), ReplayNoise(seed)
        sampling, spent = recipe.sampling(len(records.labels)), math.sqrt(mu_squared(self.mean.event))
        sigma, cost = dp_sgd.noise_for(epsilon, *sampling, DELTA, spent)
        weights = dp_sgd.train(records.vectors, records.labels, records.classes, recipe, sigma, noise, seed)
        added = dp_sgd.added(sigma, *sampling, DELTA, spent)
        return softmax(test @ weights, axis=1), [added, cost]

    def figures(self, method: str, epsilon: float | None, seed: int) -> dict[str, Any]:
        """Return one cell of the table."""
        if epsilon is not None and method in ("votes", "DP-SGD"):
            probabilities, costs = (self.votes if method == "votes" else self.dp_sgd)(epsilon, seed)
        else:
            probabilities, costs = self.sums(Moments() if method == "moments" else Gradients(), epsilon, seed)
        labels, predictions = self.kept["test_labels"], probabilities.argmax(axis=1)
        if labels.ndim == 2:
            areas = [auc(own == 1, scores) for own, scores in zip(labels.T, probabilities.T, strict=True)]
            figures = {"auc": float(np.mean([area.value for area in areas if area]))}
        else:
            accuracy, balanced = rate(predictions == labels), balanced_accuracy(labels, predictions)
            measures = zip(FIGURES, (accuracy, balanced, macro_auc(labels, probabilities)), strict=True)
            figures = {name: found.value for name, found in measures if found}
        added, spent = (None, None) if costs is None else map(round_up, costs)
        return figures | {"epsilon": spent, "epsilon_added": added, "records": len(self.kept["labels"])}


@stoppable()
def leaderboard(
    root: Path,
    work: Path,
    sets: Sequence[str] = (),
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    seeds: int = 5,
    *,
    added: bool = False,
) -> list[dict[str, Any]]:
    """Return the rows of the table, and write it to `work` after each set.

    Raises InputError for a set that is not in `root`, or if no set is.
    """
    there, missing = available(root)
    if unknown := [name for name in sets if name not in there]:
        why = missing.get(unknown[0], "MedMNIST has no such set of images")
        raise InputError(f"There is no row for '{unknown[0]}': {why}.")
    if not there:
        looked = f"{root}/medmnist/NAME.npz, {root}/NAME.npz, {', '.join(f'{root}/{name}' for name in LOCAL)}"
        raise InputError(f"None of MedMNIST's sets is in {root}; looked for {looked}.")
    if not sets:
        print(*(f"No row for {name}: {why}." for name, why in missing.items()), sep="\n", flush=True)
    cells, rows, wanted = Cells(work / "cells.jsonl"), [], list(sets) or there
    for number, name in enumerate(wanted, start=1):
        print(f"{number}/{len(wanted)} {name}", flush=True)
        entry = Entry(name, root, work, added=added)
        for method in [method for method in methods if method in SUMS or name != "chexpert"]:
            for epsilon in [None] if method == "no privacy" else epsilons:
                found = []
                for seed in range(1 if epsilon is None else seeds):
                    compute = functools.partial(entry.figures, method, epsilon, seed)
                    found.append(cells.get(f"{name} | {method} | {epsilon}{' added' * added} | {seed}", compute))
                row = {key: found[0].get(key) for key in ("records", "epsilon", "epsilon_added")}
                row |= {"set": name, "method": method, "delta": entry.delta}
                measured = {figure: [cell[figure] for cell in found if figure in cell] for figure in FIGURES}
                rows.append(row | measured)
        write_text(work / f"{name}.yml", as_yaml([row for row in rows if row["set"] == name], added=added))
        write_json(work / "leaderboard.json", {"notice": NOTICE, "missing": missing, "rows": rows})
        write_text(work / "leaderboard.md", f"{NOTICE}\n\n{markdown(rows)}\n")
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown: mean ± standard deviation over seeds."""
    columns = ["set", "records", "method", "exact ε", "ε, added or removed"]
    columns += ["accuracy %", "balanced accuracy %", "AUC", "seeds"]
    lines = [columns, ["---" if column in ("set", "method") else "---:" for column in columns]]
    for row in rows:
        epsilons = ["–" if row[name] is None else f"{row[name]:.4f}" for name in ("epsilon", "epsilon_added")]
        shown = [spread(row[name]) if row[name] else "–" for name in FIGURES[:2]]
        shown += [spread(row["auc"], 3, 1.0), str(len(row["auc"]))]
        lines.append([row["set"], f"{row['records']:,}", row["method"], *epsilons, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_yaml(rows: Sequence[dict[str, Any]], *, added: bool) -> str:
    """Return the private rows of a set as an entry of the public leaderboard; `added` as of the rows' ε."""
    claims = [
        {
            "public_data": "none",
            "model": f"scattering, linear head by {row['method']}",
            "epsilon": row["epsilon_added" if added else "epsilon"],
            "delta": row["delta"],
            "private_accuracy": f"{100 * np.mean(row['auc']):.2f}% AUC",
            "neighbouring_relation": "add/remove" if added else "replace-one",
            "dp_accountant": "dp_accounting PLD" if row["method"] == "DP-SGD" else "exact Gaussian DP",
        }
        for row in rows
        if row["epsilon"] is not None
    ]
    about = {"name": "Terrine", "code": "this repository", "venue": None, "claims": claims}
    return f"# {NOTICE}\n{yaml.safe_dump([about], sort_keys=False, allow_unicode=True)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = common_options(__doc__, root=Path("data/private/source"), work=KEPT / "leaderboard")
    parser.add_argument("--set", nargs="+", default=(), help="sets; default: all in --root or --root/medmnist")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epsilon", type=float, nargs="+", default=(1.0, 3.0, 8.0))
    parser.add_argument("--seeds", type=int, default=5, help="number of draws of the noise")
    parser.add_argument("--added", action="store_true", help="ε of adding or removing a record; sums only")
    given = parser.parse_args(arguments)
    if given.added and (refused := set(given.method) - set(SUMS)):
        if given.method is not METHODS:
            parser.error(f"--added supports --method {', '.join(SUMS)}, not {', '.join(sorted(refused))}")
        given.method = SUMS
    if given.seeds < 1 or min(given.epsilon) < 0.01:
        parser.error("--seeds is at least 1, and --epsilon at least 0.01")
    rows = leaderboard(given.root, given.work, given.set, given.method, given.epsilon, given.seeds, added=given.added)
    print(markdown(rows), NOTICE, f"Written: {given.work}/leaderboard.md, .json and SET.yml.", sep="\n\n")


if __name__ == "__main__":
    run_command(main)
