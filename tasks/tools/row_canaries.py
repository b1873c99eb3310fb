"""Canaries in sums over records: rows of features beside a run's own records (`terrine.aggregation.exchange`).

A canary is a record of its own with a placeholder image. Its features are given directly, as if an adversary had found
an image with these features; from there on they pass through the run's own stages: whitening, division by the norm,
weights of units, clipping, sums, noise and ledger. So the audit is about everything but the backbone. What an image of
the run's data can move at most is tried by `tasks.tools.neighbours`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.pipeline.dataset import read_dataset
from tasks.pipeline.features import query_features
from tasks.pipeline.sums import SUMS, plant
from tasks.runtime.releases import spent_on_inputs
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors
from tasks.tools.shadow import Silence, shadow_run
from terrine.aggregation.exchange import Exchange, exchanged_rows
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import mu_left
from terrine.determinism.randomness import numpy_generator
from terrine.privacy.auditing.audit import Charge
from terrine.privacy.noise import ReplayNoise

MOST_ROWS = 4096
"""Canaries in one shadow run: guessing their coins takes a square matrix of them."""


class RowCanaries:
    """Canaries among the records that a run sums; see `tasks.tools.canaries.Planted`."""

    def __init__(self, run: Run, make: Callable[[Run, str, str], None], count: int) -> None:
        settings: Any = run.params.aggregation
        self._run, self._make, self._mechanism = run, make, settings
        self._mu = mu_left(settings.epsilon, settings.delta, spent_on_inputs(run.params))
        self._course = course = settings.course(self._mu)
        generator = numpy_generator(run.params.seed, "canaries")
        self._whitening = Whitening.of(query_features(run, "original"))
        self._rows = exchanged_rows(self._whitening, course, count, generator)
        own = read_dataset(run.folders)
        several = own.train_labels.ndim > 1
        labels = generator.integers(2 if several else own.classes, size=(count, *own.train_labels.shape[1:]))
        names = generator.integers(2**63, size=count)
        placeholders = np.zeros((count, *own.train_images.shape[1:]), own.train_images.dtype)
        self._dataset = replace(
            own,
            train_images=np.concatenate([own.train_images, placeholders]),
            train_labels=np.concatenate([own.train_labels, labels]),
            train_names=np.concatenate([own.record_names, names]),
            train_groups=None if own.train_groups is None else np.concatenate([own.train_groups, names]),
            train_parties=None if own.train_parties is None else np.resize(own.train_parties, own.records + count),
        )
        alone = Exchange.of_canaries(course, self._whitening, self._rows, labels, own.classes)
        made_up = self._mechanism.release(alone.worlds[0], self._mu, ReplayNoise(0))
        self.information = alone.guess(made_up).information, alone.guess(made_up, noise=False).information
        self.charge = Charge.of([course.event], settings.delta)
        self._moved = np.zeros(count)
        self._own: np.ndarray | None = None
        self._records: Records | None = None

    def shadow(self, coins: np.ndarray, root: Path) -> Run:
        """See `Planted.shadow`: with the vectors of its records, of which the last are those of canaries."""
        shadow = shadow_run(self._run, self._dataset, root)
        self._make(shadow, "partition", "partition")
        one, other = self._rows
        self._records = plant(shadow, np.where(coins[:, None], one, other), self._own)
        if not self._run.params.privacy.moments:  # otherwise vectors follow from moments of the shadow run's own
            self._own = np.array(self._records.vectors[: -len(coins)])
        return shadow

    def evidence(self, shadow: Run, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Planted.evidence`."""
        planted, count = self._records, len(coins)
        assert planted is not None
        own = planted.vectors[:-count]
        one, other = (
            replace(planted, vectors=np.concatenate([own, self._whitening.vectors(rows)])) for rows in self._rows
        )
        exchange, released = Exchange(self._course, (one, other), count), read_tensors(shadow.folders.answers / SUMS)
        silent = self._mechanism.release(exchange.world(coins), self._mu, Silence())
        self._moved = np.maximum(self._moved, exchange.moved(released))
        return exchange.guess(released).evidence, exchange.guess(silent, noise=False).evidence

    def about(self) -> dict[str, Any]:
        """See `Planted.about`."""
        most = float(self._moved.max())
        fault = f"A canary moved the sums {most:.2f} times as far as is charged for." if most > 1 else None
        return {"moved": float(self._moved.mean()), "fault": fault}
