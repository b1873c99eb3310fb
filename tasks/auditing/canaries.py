"""Canary audit of a run: lower bounds on the worst-case leakage of its path from records to released answers.

If teachers vote, the records of some teachers are replaced by a companion and a canary each
(`terrine.privacy.auditing.canaries`); the others keep their records. If records are summed, each canary is a row of
features added to the run's records (`terrine.aggregation.exchange`). The canary's features are given directly, as if an
adversary had found an image with them, and pass through whitening, clipping, sums, noise and ledger. The audit then
covers everything except the backbone (`tasks.auditing.neighbours` covers the path from images to features).

Shadow runs repeat the run's stages. For votes, two shadow runs train each canary's teacher, one with each content. In
one or more further shadow runs, fair coins decide the contents of the canaries. The coins are guessed from the releases
of these further runs, and the correct guesses bound the privacy loss. The first two runs do not depend on any coin, so
the bound holds even if they are defective. The same votes or sums without noise show the audit's power. All results of
the audit stay private.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_queries
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.released import SUMS, sums_over_records
from tasks.artefacts.teachers import read_votes
from tasks.auditing.shadow_runs import NOTICE, NoNoise, Progress, members, shadow_run
from tasks.pipeline.sums import plant
from tasks.runtime.accounts import noise_source
from tasks.runtime.releases import inputs_cost
from tasks.runtime.run import Run
from tasks.runtime.store import read_table, read_tensors, write_json
from terrine.aggregation.exchange import Exchange
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import mu_left
from terrine.aggregation.votes import count_votes
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
from terrine.privacy.noise import ReplayNoise

CONTRASTS = (1, 16, 127)
"""Contrasts between canary and companion, tried in order: the first that moves half of the votes is used, or else the
best."""
MOST_ROWS = 4096
"""Largest number of canaries in sums: guessing n coins takes an n × n matrix."""
_NO_NOISE = 1e-3  # in votes, for zero noise, since the guesser divides by it

Make = Callable[[Run, str, str], None]
"""Function that runs the stages of a run, from the first named to the last."""


def audit_canaries(
    run: Run, make: Make, canaries: int, shadows: int = 1, confidence: float = 0.95, progress: Progress | None = None
) -> dict[str, Any]:
    """Plant canaries in shadow runs of a run; write and return the result. Partition, images and backbone must exist.

    Args:
        run: The run to audit.
        make: Function that runs the stages of a shadow run.
        canaries: Number of canaries in each shadow run.
        shadows: Number of shadow runs whose coins are guessed.
        confidence: Confidence of the lower bound on ε.
        progress: Called with (share done, next step).

    Raises SettingError for fewer canaries than 8 or more than teachers, or a run whose release cannot be audited with
    canaries; ArtefactError if partition, images or backbone are missing.
    """
    _check_auditable(run, shadows)
    sums = sums_over_records(run)
    if sums:
        check_count(canaries, MOST_ROWS, "The coins of canaries in sums are guessed jointly")
    else:
        check_count(canaries, run.params.partition.teachers, "Every canary needs one teacher")
    report = progress or (lambda fraction, text: None)
    work = run.folders.work / "canaries"
    shutil.rmtree(work, ignore_errors=True)
    try:
        planted = _SumCanaries(run, make, canaries) if sums else _VoteCanaries(run, make, work, canaries, report)
        result = _audit(run, planted, make, work, canaries, shadows, confidence, report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write_json(run.folders.private / "canaries.json", result)
    return result


def _audit(
    run: Run,
    planted: _VoteCanaries | _SumCanaries,
    make: Make,
    work: Path,
    count: int,
    shadows: int,
    confidence: float,
    progress: Progress,
) -> dict[str, Any]:
    plans = [best_plan(information, confidence, shadows) for information in planted.information]
    thrown: list[np.ndarray] = []
    evidence: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
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
        "epsilon_charged": charge.epsilon,
        "mu_at_least": mu,
        "mu_charged": charge.mu,
        "delta": charge.delta,
        "confidence": confidence,
        "epsilon_without_noise": power,
        "caught": bool(above or about["fault"]),
    }


class _VoteCanaries:
    """Canaries in the records of teachers that vote, one canary per teacher."""

    def __init__(self, run: Run, make: Make, work: Path, count: int, progress: Progress) -> None:
        mechanism = run.params.aggregation
        self._run, self._make, self._mechanism, self._leaked_votes = run, make, mechanism, 0
        self._budget = {"epsilon": mechanism.epsilon, "delta": mechanism.delta}
        self._slots, self._directions = _planted(run, make, work, count, progress)
        queries = len(self._directions.rest)
        certain = np.where(np.arange(queries) < mechanism.certain(queries, **self._budget), 0, -1)
        nothing = np.where(certain[:, None] < 0, np.nan, self._directions.middle)
        self.information = tuple(self._guess(certain, nothing, sigma).information for sigma in self._sigmas)
        self.charge = Charge.of([mechanism.worst_case(queries, **self._budget)], mechanism.delta)

    @property
    def _sigmas(self) -> tuple[float, float]:
        """Standard deviations for guessing coins, in votes: that of the mechanism, and that for no noise."""
        return self._mechanism.deviation, _NO_NOISE

    def _guess(self, labels: np.ndarray, histograms: np.ndarray | None, sigma: float) -> Guess:
        if histograms is not None and self._mechanism.reveals == "histogram":
            return guess_from_histograms(self._directions, histograms, sigma)
        return guess_from_labels(self._directions, labels, sigma)

    def shadow(self, coins: np.ndarray, root: Path) -> Run:
        """Return a shadow run, with its partition, in which coins decide the contents of canaries."""
        shadow = shadow_run(self._run, self._slots.records(coins), root)
        self._make(shadow, "partition", "partition")
        return shadow

    def evidence(self, shadow: Run, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the evidence in the release of a shadow run, and in the same release without noise."""
        queries, classes = self._directions.rest.shape
        votes = read_votes(shadow.folders)
        silent = self._mechanism.answer(count_votes(votes, classes), noise=NoNoise(0), **self._budget)
        self._leaked_votes = max(self._leaked_votes, self._slots.leaked_votes(self._directions, votes, coins))
        table = read_table(shadow.folders.answers / "answers.parquet")[:queries]
        columns = [f"count_{number}" for number in range(classes)]
        histograms = table[columns].to_numpy(np.float64) if columns[0] in table else None
        with_noise, without = self._sigmas
        released = self._guess(table["label"].to_numpy(), histograms, with_noise)
        return released.evidence, self._guess(silent.labels, silent.histograms, without).evidence

    def about(self) -> dict[str, Any]:
        """Return figures for the result; a `fault` voids the guarantee regardless of the noise."""
        leaked = "Canaries moved teachers that are not theirs: the guarantee is void."
        return {
            "contrast": self._slots.contrast,
            "moved": float(self._directions.moved.mean()),
            "leaked_votes": self._leaked_votes,
            "fault": leaked if self._leaked_votes else None,
        }


@dataclass(frozen=True, eq=False)
class _CanarySlots:
    """Canaries, and the teachers and record names that they occupy.

    Attributes:
        own: The run's records of teachers without canaries.
        canaries: Contents of companions and canaries.
        contrast: Contrast between canaries and companions.
        teachers: Number of the teacher of each canary, int64 [M].
        names: Codes of the names of the companions and of the canaries, int64 [2, M].
    """

    own: Dataset
    canaries: Canaries
    contrast: float
    teachers: np.ndarray
    names: np.ndarray

    def records(self, coins: np.ndarray) -> Dataset:
        """Return the dataset in which each canary has the content chosen by its coin."""
        own, planted, names = self.own, self.canaries, self.names.ravel()
        shape = (len(coins),) + (1,) * (planted.one.ndim - 1)
        contents = np.where(coins.reshape(shape), planted.one, planted.other)
        parties = own.train_parties
        return replace(
            own,
            train_images=np.concatenate([own.train_images, planted.companions, contents]),
            train_labels=np.concatenate([own.train_labels, planted.companion_labels, planted.labels]),
            train_names=np.concatenate([own.record_names, names]),
            # Companion and canary are separate groups: two units, of which only the canary has a coin.
            train_groups=None if own.train_groups is None else np.concatenate([own.train_groups, names]),
            train_parties=None if parties is None else np.concatenate([parties, np.tile(self.teachers, 2)]),
        )

    def leaked_votes(self, directions: Directions, votes: np.ndarray, coins: np.ndarray) -> int:
        """Count the canaries whose teachers do not vote as their coins imply: 0 if each unit affects one teacher.

        The count is one higher if any other votes depend on the coins.
        """
        expected = np.where(coins, directions.one, directions.other)
        elsewhere = not np.array_equal(_rest(votes, self.teachers, directions.rest.shape[1]), directions.rest)
        return int((votes[:, self.teachers] != expected).any(axis=0).sum()) + int(elsewhere)


def _planted(run: Run, make: Make, work: Path, count: int, progress: Progress) -> tuple[_CanarySlots, Directions]:
    """Plant canaries that move votes, and measure how: each canary's teacher is trained once with each record."""
    best: tuple[_CanarySlots, Directions] | None = None
    own, teachers, names = _free_slots(run, count)
    queries = np.asarray(read_queries(run.folders).images)
    for number, contrast in enumerate(CONTRASTS):
        progress(0.1 * number, f"canaries that differ by {contrast}")
        generator = numpy_generator(run.params.seed, "canaries", number)
        slots = _CanarySlots(
            own, make_canaries(queries, count, own.classes, contrast, generator), contrast, teachers, names
        )
        both = []
        for content in (True, False):
            shadow = shadow_run(run, slots.records(np.full(count, content)), work / f"all-{content}".lower())
            make(shadow, "partition", "partition")
            make(shadow, "average", "vote")
            both.append(read_votes(shadow.folders))
            shutil.rmtree(shadow.root)
        # Other teachers' votes are taken from one run: if they depend on the contents, `leaked_votes` detects it.
        rest = _rest(both[0], teachers, own.classes)
        directions = Directions(both[0][:, teachers], both[1][:, teachers], rest)
        if best is None or directions.moved.mean() > best[1].moved.mean():
            best = slots, directions
        if directions.moved.mean() >= 0.5:
            break
    assert best is not None
    return best


def _free_slots(run: Run, count: int) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """Empty the teachers with the fewest records, and find two unit names that the partition assigns to each of them.

    Returns the other teachers' records, the emptied teachers, int64 [count], and the name codes, int64 [2, count].
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
    """Return the histograms of the votes of all teachers except these; zeros if there are no others."""
    return count_votes(votes, classes) - count_votes(votes[:, teachers], classes)


class _SumCanaries:
    """Canaries among the records that a run sums."""

    def __init__(self, run: Run, make: Make, count: int) -> None:
        settings: Any = run.params.aggregation
        self._run, self._make, self._mechanism = run, make, settings
        self._mu = mu_left(settings.epsilon, settings.delta, inputs_cost(run.params))
        schedule, own = settings.schedule(self._mu), read_dataset(run.folders)
        generator = numpy_generator(run.params.seed, "canaries")
        whitening = Whitening.fit(query_features(run, "original"))
        self._canaries = Exchange.of_canaries(schedule, whitening, count, own.classes, generator)
        made_up = settings.release(self._canaries.worlds[0], self._mu, ReplayNoise(0))
        self.information = tuple(self._canaries.guess(made_up, noise=noise).information for noise in (True, False))
        self.charge = Charge.of([schedule.event], settings.delta)
        placeholders = np.zeros((count, *own.train_images.shape[1:]), own.train_images.dtype)
        names = generator.integers(2**63, size=count)
        self._dataset = replace(
            own,
            train_images=np.concatenate([own.train_images, placeholders]),
            train_labels=np.concatenate([own.train_labels, self._canaries.worlds[0].labels]),
            train_names=np.concatenate([own.record_names, names]),
            train_groups=None if own.train_groups is None else np.concatenate([own.train_groups, names]),
            train_parties=None if own.train_parties is None else np.resize(own.train_parties, own.records + count),
        )
        self._moved = np.zeros(count)
        self._own: np.ndarray | None = None
        self._records: Records | None = None

    def shadow(self, coins: np.ndarray, root: Path) -> Run:
        """Return a shadow run with its partition and record vectors, in which coins decide the contents of canaries."""
        shadow = shadow_run(self._run, self._dataset, root)
        self._make(shadow, "partition", "partition")
        self._records = plant(shadow, self._canaries.world(coins).vectors, self._own)
        if not self._run.params.privacy.moments:  # otherwise vectors depend on the shadow run's own moments
            self._own = np.array(self._records.vectors[: -len(coins)])
        return shadow

    def evidence(self, shadow: Run, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the evidence in the release of a shadow run, and in the same release without noise."""
        planted = self._records
        assert planted is not None
        one, other = (
            replace(planted, vectors=np.concatenate([planted.vectors[: -len(coins)], world.vectors]))
            for world in self._canaries.worlds
        )
        exchange = replace(self._canaries, worlds=(one, other))
        released = read_tensors(shadow.folders.answers / SUMS)
        silent = self._mechanism.release(planted, self._mu, NoNoise(0))
        self._moved = np.maximum(self._moved, exchange.moved(released))
        return exchange.guess(released).evidence, exchange.guess(silent, noise=False).evidence

    def about(self) -> dict[str, Any]:
        """Return figures for the result; a `fault` voids the guarantee regardless of the noise."""
        most = float(self._moved.max())
        fault = f"A canary moved the sums {most:.2f} times as far as is charged for." if most > 1 else None
        return {"moved": float(self._moved.mean()), "fault": fault}


def _check_auditable(run: Run, shadows: int) -> None:
    """Raise an error if canaries would give no bound, or a wrong one, for the run's release."""
    params = run.params
    if params.transcription is not None or params.teachers.averages:
        what = "is a transcription" if params.transcription is not None else "averages its teachers"
        raise SettingError(
            f"The run {run.name} {what}: canaries need teachers that vote and share nothing. Use terrine audit "
            "--membership."
        )
    if not sums_over_records(run):
        params.aggregation.refuse_findings("terrine audit --canaries")
    if params.partition.kind not in ("iid", "party"):
        raise SettingError(
            f"partition.kind={params.partition.kind} reads labels, so a canary would move other records; it is for "
            "public data only."
        )
    if shadows < 1 or (shadows > 1 and params.aggregation.noise == "replay"):
        raise SettingError(
            f"{shadows} shadow runs are no independent runs: make one at least, and only one with replayed noise, "
            "which is the same in all of them."
        )
    for needed in (run.folders.partition, run.folders.images, run.folders.backbone):
        if not (needed / "manifest.json").is_file():
            raise ArtefactError(
                f"{needed} is missing: canaries take a run's partition, query images and backbone. Make the run first "
                "(terrine run), or with dvc repro its stages up to pretrain, which release nothing."
            )
