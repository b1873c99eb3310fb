"""Canaries in sums over records: rows of features beside a run's own records (`terrine.aggregation.exchange`).

A canary is a separate record with a placeholder image. Its features are given directly, as if an adversary had found an
image with these features. Then they pass through the code and the stages of the run: whitening, division by the norm,
weights of units, clipping, sums, noise and ledger. So the audit covers everything but the backbone.
`tasks.tools.neighbours` tests the images of the run's data.
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
from terrine.aggregation.exchange import Exchange
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import mu_left
from terrine.determinism.randomness import numpy_generator
from terrine.privacy.auditing.audit import Charge
from terrine.privacy.noise import ReplayNoise

MOST_ROWS = 4096
"""Canaries in one shadow run: guessing their coins takes a square matrix of them."""


class RowCanaries:
    """Canaries among the records that a run sums, used as those in votes are (`tasks.tools.canaries`)."""

    def __init__(self, run: Run, make: Callable[[Run, str, str], None], count: int) -> None:
        settings: Any = run.params.aggregation
        self._run, self._make, self._mechanism = run, make, settings
        self._mu = mu_left(settings.epsilon, settings.delta, spent_on_inputs(run.params))
        course, own = settings.course(self._mu), read_dataset(run.folders)
        generator = numpy_generator(run.params.seed, "canaries")
        whitening = Whitening.of(query_features(run, "original"))
        self._canaries = Exchange.of_canaries(course, whitening, count, own.classes, generator)
        made_up = settings.release(self._canaries.worlds[0], self._mu, ReplayNoise(0))
        heard, unheard = (self._canaries.guess(made_up, noise=noise).information for noise in (True, False))
        self.information, self.charge = (heard, unheard), Charge.of([course.event], settings.delta)
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
        """Return a shadow run with its partition and the vectors of its records, in which coins decide."""
        shadow = shadow_run(self._run, self._dataset, root)
        self._make(shadow, "partition", "partition")
        self._records = plant(shadow, self._canaries.world(coins).vectors, self._own)
        if not self._run.params.privacy.moments:  # otherwise vectors follow from moments of the shadow run's own
            self._own = np.array(self._records.vectors[: -len(coins)])
        return shadow

    def evidence(self, shadow: Run, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the evidence of what a shadow run released, and of what it would have without noise."""
        planted = self._records
        assert planted is not None
        one, other = (
            replace(planted, vectors=np.concatenate([planted.vectors[: -len(coins)], world.vectors]))
            for world in self._canaries.worlds
        )
        exchange = replace(self._canaries, worlds=(one, other))
        released = read_tensors(shadow.folders.answers / SUMS)
        silent = self._mechanism.release(planted, self._mu, Silence(0))
        self._moved = np.maximum(self._moved, exchange.moved(released))
        return exchange.guess(released).evidence, exchange.guess(silent, noise=False).evidence

    def about(self) -> dict[str, Any]:
        """Return figures for the result."""
        most = float(self._moved.max())
        fault = f"A canary moved the sums {most:.2f} times as far as is charged for." if most > 1 else None
        return {"moved": float(self._moved.mean()), "fault": fault}
