"""Canaries in a run: what its whole path, from records to released answers, gives away in the worst case.

Some of the run's teachers are emptied and given a companion and a canary each (`terrine.privacy.auditing.canaries`);
all others keep their own records. If records are summed, canaries are added to them (`tasks.tools.row_canaries`). The
run's own stages are then made in shadow runs: of votes, twice to learn how each canary's teacher votes with either
content, and of both, once or more with contents that fair coins decide. The coins are guessed from what these last runs
released, and the guesses that are right bound the privacy loss from below.

The two first runs know no coin, so the bound holds whatever defect they show. Beside it stands its power: the same
votes or sums, without noise. All of it is computed from other teachers' records too, and stays private.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.findings import refuse_findings
from tasks.pipeline.dataset import read_dataset
from tasks.pipeline.partition import read_assignment
from tasks.pipeline.sums import sums_over_records
from tasks.pipeline.synthesize import read_queries
from tasks.pipeline.vote import read_votes
from tasks.runtime.accounts import noise_source
from tasks.runtime.run import Run
from tasks.runtime.store import read_table, write_json
from tasks.tools.row_canaries import MOST_ROWS, RowCanaries
from tasks.tools.shadow import NOTICE, Progress, Silence, members, shadow_run
from terrine.aggregation.mechanism import Mechanism
from terrine.aggregation.votes import histograms_of
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.determinism.randomness import numpy_generator
from terrine.errors import ArtefactError, SettingError
from terrine.privacy.auditing.audit import Charge
from terrine.privacy.auditing.canaries import (
    Canaries,
    Directions,
    Guess,
    best_plan,
    check_count,
    guess_from_histograms,
    guess_from_labels,
    make_canaries,
)

CONTRASTS = (1, 16, 127)
"""How far canaries are from their companions: the first at which half of their votes move, else the best."""
_NO_NOISE = 1e-3  # votes: for the guesser, who divides by it

Make = Callable[[Run, str, str], None]


def audit_canaries(
    run: Run, make: Make, canaries: int, shadows: int = 1, confidence: float = 0.95, progress: Progress | None = None
) -> dict[str, Any]:
    """Plant canaries in copies of a run that has its partition, images and backbone; write and return what was found.

    `make` takes a run through its stages from the first named to the last. Raises SettingError for more canaries than
    teachers, too few, or a run whose release they say nothing about; ArtefactError where partition, images or backbone
    are missing.
    """
    _check_auditable(run, shadows)
    if sums_over_records(run):
        check_count(canaries, MOST_ROWS, "The coins of canaries in sums are guessed jointly")
    else:
        check_count(canaries, run.params.partition.teachers, "Every canary needs one teacher")
    report = progress or (lambda fraction, text: None)
    work = run.folders.work / "canaries"
    shutil.rmtree(work, ignore_errors=True)
    try:
        result = _audit(run, make, work, canaries, shadows, confidence, report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write_json(run.folders.private / "canaries.json", result)
    return result


def _audit(
    run: Run, make: Make, work: Path, count: int, shadows: int, confidence: float, progress: Progress
) -> dict[str, Any]:
    planted = (
        RowCanaries(run, make, count) if sums_over_records(run) else _VoteCanaries(run, make, work, count, progress)
    )
    plans = [best_plan(information, confidence, shadows) for information in planted.information]
    thrown, evidence = [], ([], [])
    for number in range(shadows):
        progress(0.3 + 0.7 * number / shadows, f"shadow run {number + 1} of {shadows}")
        coins = numpy_generator(run.params.seed, "canary coins", number).random(count) < 0.5
        shadow = planted.shadow(coins, work / f"{number:04d}")
        make(shadow, "average", "aggregate")
        for kept, found in zip(evidence, planted.evidence(shadow, coins), strict=True):
            kept.append(found)
        thrown.append(coins)
        shutil.rmtree(shadow.root)
    charge = planted.charge
    right = [plan.right(np.stack(own), np.stack(thrown)) for plan, own in zip(plans, evidence, strict=True)]
    (epsilon, mu), (power, _) = (plan.bound(charge, own, confidence) for own, plan in zip(right, plans, strict=True))
    above = epsilon > charge.epsilon if mu is None or charge.mu is None else mu > charge.mu
    about = planted.about()
    return {
        "notice": NOTICE,
        "canaries": count,
        "shadows": shadows,
        "unit": run.params.privacy.unit,
        **run.params.aggregation.describe(),
        "noise": noise_source(run).describe(),
        **about,
        "counted_as_runs": plans[0].runs,
        "guesses": plans[0].guesses,
        "right": right[0],
        "epsilon_at_least": epsilon,
        "mu_at_least": mu,
        "epsilon_charged": charge.epsilon,
        "mu_charged": charge.mu,
        "delta": charge.delta,
        "confidence": confidence,
        "epsilon_without_noise": power,
        "caught": bool(above or about["fault"]),
    }


class _VoteCanaries:
    """Canaries in the records of teachers who vote, one canary a teacher."""

    def __init__(self, run: Run, make: Make, work: Path, count: int, progress: Progress) -> None:
        mechanism = run.params.aggregation
        self._run, self._make, self._mechanism, self._astray = run, make, mechanism, 0
        self._budget = {"epsilon": mechanism.epsilon, "delta": mechanism.delta}
        self._directed = _planted(run, make, work, count, progress)
        directions = self._directed[1]
        queries = len(directions.rest)
        certain = np.where(np.arange(queries) < mechanism.certain(queries, **self._budget), 0, -1)
        nothing = np.where(certain[:, None] < 0, np.nan, directions.middle)
        self._heard, self._unheard = (
            _Listener(directions, mechanism, noise) for noise in (mechanism.deviation, _NO_NOISE)
        )
        heard, unheard = (each.guess(certain, nothing).information for each in (self._heard, self._unheard))
        self.information = heard, unheard
        self.charge = Charge.of([mechanism.worst_case(queries, **self._budget)], mechanism.delta)

    def shadow(self, coins: np.ndarray, root: Path) -> Run:
        """Return a shadow run with its partition, in which canaries have the contents that coins decide."""
        shadow = shadow_run(self._run, self._directed[0].records(coins), root)
        self._make(shadow, "partition", "partition")
        return shadow

    def evidence(self, shadow: Run, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the evidence of what a shadow run released, and of what it would have without noise."""
        beds, directions = self._directed
        queries, classes = directions.rest.shape
        votes = read_votes(shadow.folders)
        silent = self._mechanism.answer(histograms_of(votes, classes), noise=Silence(0), **self._budget)
        self._astray = max(self._astray, beds.astray(directions, votes, coins))
        heard = self._heard.guess(*_released(shadow, queries, classes))
        return heard.evidence, self._unheard.guess(silent.labels, silent.histograms).evidence

    def about(self) -> dict[str, Any]:
        """Return figures for the result; `fault` says what voids the guarantee regardless of the noise."""
        beds, directions = self._directed
        fault = "Canaries moved teachers that are not theirs: the guarantee is void." if self._astray else None
        return {
            "contrast": beds.contrast,
            "moved": float(directions.moved.mean()),
            "teachers_astray": self._astray,
            "fault": fault,
        }


@dataclass(frozen=True, eq=False)
class _Beds:
    """Where canaries are planted, and in what: between the `own` records of the teachers without them.

    teachers: number of the teacher of each canary, int64 [M]. names: codes of the names of companions and of canaries,
    int64 [2, M].
    """

    own: Dataset
    canaries: Canaries
    contrast: float
    teachers: np.ndarray
    names: np.ndarray

    def records(self, coins: np.ndarray) -> Dataset:
        """Return the dataset in which each canary has the content that its coin says."""
        count, own, planted = len(coins), self.own, self.canaries
        shape = (count,) + (1,) * (planted.one.ndim - 1)
        contents = np.where(coins.reshape(shape), planted.one, planted.other)
        names = self.names.ravel()
        return replace(
            own,
            train_images=np.concatenate([own.train_images, planted.companions, contents]),
            train_labels=np.concatenate([own.train_labels, planted.companion_labels, planted.labels]),
            train_names=np.concatenate([own.record_names, names]),
            # A group of its own each: two units, of which one has a coin.
            train_groups=None if own.train_groups is None else np.concatenate([own.train_groups, names]),
            train_parties=None
            if own.train_parties is None
            else np.concatenate([own.train_parties, np.tile(self.teachers, 2)]),
        )

    def astray(self, directions: Directions, votes: np.ndarray, coins: np.ndarray) -> int:
        """Return how many canaries' teachers did not vote as they do with what their own coin says, or one more where
        other teachers did not vote as they do whatever the coins are: none, where a unit touches one teacher."""
        expected = np.where(coins, directions.one, directions.other)
        elsewhere = not np.array_equal(_rest(votes, self.teachers, directions.rest.shape[1]), directions.rest)
        return int((votes[:, self.teachers] != expected).any(axis=0).sum()) + int(elsewhere)


@dataclass(frozen=True)
class _Listener:
    """Guesses coins from what a mechanism releases when its noise has this standard deviation, in votes."""

    directions: Directions
    mechanism: Mechanism
    sigma: float

    def guess(self, labels: np.ndarray, histograms: np.ndarray | None) -> Guess:
        if histograms is not None and self.mechanism.reveals == "histogram":
            return guess_from_histograms(self.directions, histograms, self.sigma)
        return guess_from_labels(self.directions, labels, self.sigma)


def _planted(run: Run, make: Make, work: Path, count: int, progress: Progress) -> tuple[_Beds, Directions]:
    """Plant canaries that move votes, and learn how: every canary's teacher is trained with either content."""
    best: tuple[_Beds, Directions] | None = None
    own, teachers, names = _beds(run, count)
    queries = np.asarray(read_queries(run.folders).images)
    for number, contrast in enumerate(CONTRASTS):
        progress(0.1 * number, f"canaries that differ by {contrast}")
        generator = numpy_generator(run.params.seed, "canaries", number)
        canaries = make_canaries(queries, count, own.classes, contrast, generator)
        beds = _Beds(own, canaries, contrast, teachers, names)
        both = []
        for content in (True, False):
            shadow = shadow_run(run, beds.records(np.full(count, content)), work / f"all-{content}".lower())
            make(shadow, "partition", "partition")
            make(shadow, "average", "vote")
            both.append(read_votes(shadow.folders))
            shutil.rmtree(shadow.root)
        # Of the others' votes, those of one run: where they depend on the contents, teachers will be found astray.
        rest = _rest(both[0], teachers, own.classes)
        directions = Directions(both[0][:, teachers], both[1][:, teachers], rest)
        if best is None or directions.moved.mean() > best[1].moved.mean():
            best = beds, directions
        if directions.moved.mean() >= 0.5:
            break
    assert best is not None
    return best


def _beds(run: Run, count: int) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """Empty the teachers who have fewest records, and name two units for each that the deal gives to that teacher.

    Returns the others' records, the emptied teachers, int64 [count], and the codes of names, int64 [2, count].
    """
    dataset, assignment = read_dataset(run.folders), read_assignment(run.folders)
    settings = run.params.partition
    held = np.bincount(assignment, minlength=settings.teachers)
    teachers = np.sort(np.argsort(held, kind="stable")[:count])
    own = members(dataset, ~np.isin(assignment, teachers))
    generator = numpy_generator(run.params.seed, "canary names")
    taken: dict[int, list[int]] = {teacher: [] for teacher in teachers.tolist()}
    lacking = 2 * count
    while lacking:
        codes = generator.integers(2**63, size=4 * settings.teachers)
        dealt = np.resize(teachers, len(codes))
        if settings.kind == "iid":
            dealt = iid(len(codes), settings.teachers, names=codes, seed=run.params.seed)
        for code, teacher in zip(codes.tolist(), dealt.tolist(), strict=True):
            if len(taken.get(teacher, (0, 0))) < 2:
                taken[teacher].append(code)
                lacking -= 1
    return own, teachers, np.array([taken[teacher] for teacher in teachers.tolist()], dtype=np.int64).T


def _rest(votes: np.ndarray, teachers: np.ndarray, classes: int) -> np.ndarray:
    """Return the histograms of the votes of all teachers but these; zeros where there are no others."""
    return histograms_of(votes, classes) - histograms_of(votes[:, teachers], classes)


def _released(shadow: Run, queries: int, classes: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the labels [queries] that a shadow run published, and its noisy histograms where there are any."""
    table = read_table(shadow.folders.answers / "answers.parquet")[:queries]
    columns = [f"count_{number}" for number in range(classes)]
    histograms = table[columns].to_numpy(np.float64) if columns[0] in table else None
    return table["label"].to_numpy(), histograms


def _check_auditable(run: Run, shadows: int) -> None:
    """Raise where canaries in votes say nothing about what the run releases, or would say something wrong."""
    params = run.params
    if params.transcription is not None or params.teachers.averages:
        what = "is a transcription" if params.transcription is not None else "averages its teachers"
        raise SettingError(
            f"The run {run.name} {what}: canaries are for teachers who vote and share nothing. Use terrine membership."
        )
    if not sums_over_records(run):
        refuse_findings(params.aggregation, "terrine audit --canaries")
    if params.partition.kind not in ("iid", "party"):
        raise SettingError(
            f"partition.kind={params.partition.kind} reads labels, so a canary would move other records; it is for "
            "public data alone."
        )
    if shadows < 1 or (shadows > 1 and params.aggregation.noise == "replay"):
        raise SettingError(
            f"{shadows} shadow runs are no independent runs: make one at least, and only one where noise is replayed, "
            "since all would get the same."
        )
    for needed in (run.folders.partition, run.folders.images, run.folders.backbone):
        if not (needed / "manifest.json").is_file():
            raise ArtefactError(
                f"{needed} is missing: canaries take a run's partition, query images and backbone. Make the run first "
                "(terrine run), or with dvc repro its stages up to pretrain, which release nothing."
            )
