"""Gradients: moments for a share of the budget, then rounds of noised clipped gradients of a softmax head from there.

Each round releases G = Σ clip(∇ℓ) + noise over all records (full batch: no record is drawn, none has a place in an
order), at the weights that the earlier rounds made public (Abadi et al. 2016, without sampling). Two things make few
rounds enough: they start at the ridge head of the moments, and steps are taken in their metric, (S + λI)^(-3/4), in
which ill-conditioned features are well-conditioned ones, and noise is not yet the more for it. Both are functions of
what was released.

One record's gradient is x eᵀ, of norm C at most. So added or removed it moves G by C, and exchanged by 2C: a round
costs μ² = (2C/σ)². All constants were chosen on MNIST and digits, once (docs/moments-and-gradients.md).
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.records import Floats, Records, noised
from terrine.aggregation.sums import Sums, event_of_moments, inverse_root, noised_moments, ridge
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent, compose
from terrine.privacy.noise import NoiseSource
from terrine.settings import Field

_POWER = 0.75
_MOMENTUM = 0.8
_AVERAGED = 0.4  # of the iterates, the last ones


class Gradients(Sums):
    """Rounds of noised clipped gradients over all records, in the metric of their noised moments."""

    text = (
        "Gradients: moments of the records' features (vectors of length 1 at most) were added up over all records and "
        "released with Gaussian noise; then, in each round, every record's gradient of a classifier, limited in "
        "length, was added up over all records, Gaussian noise was added, the noisy sum was released, and the "
        "classifier took a step along it."
    )

    mechanism: Literal["gradients"] = "gradients"
    rounds: int = Field(20, ge=1)
    """Gradients that are released, one after the other."""
    clip: float = Field(0.5, gt=0, le=1)
    """Largest length of a record's gradient."""
    learning_rate: float = Field(1.0, gt=0)
    """Step, in units of the one that least squares would take at once."""
    share: float = Field(0.2, gt=0, lt=1)
    """Of the budget, in μ², what goes to the moments that gradients start from."""

    def _sigma(self, mu: float) -> float:
        """The noise on each coordinate of a gradient."""
        return 2 * self.clip * math.sqrt(self.rounds / (1 - self.share)) / mu

    def _of_moments(self, mu: float) -> float:
        return mu * math.sqrt(self.share)

    def event(self, mu: float) -> Event:
        """See `Sums.event`."""
        gradient = GaussianEvent(sensitivity=2 * self.clip, sigma=self._sigma(mu))
        return compose(event_of_moments(self._of_moments(mu)), RepeatedEvent(gradient, self.rounds))

    def release(self, records: Records, mu: float, noise: NoiseSource) -> dict[str, NDArray[np.float64]]:
        """See `Sums.release`: `second`, `labels`, and `gradients` [rounds, length, classes]."""
        second, labels = noised_moments(records, self._of_moments(mu), noise)
        descent = _Descent(second, labels, self._of_moments(mu), self.learning_rate)
        gradients = []
        for _ in range(self.rounds):
            gradients.append(noised(records.gradients(descent.weights, self.clip), self._sigma(mu), noise))
            descent.step(gradients[-1])
        return {"second": second, "labels": labels, "gradients": np.stack(gradients)}

    def head(self, released: dict[str, NDArray[Any]], mu: float) -> Floats:
        """See `Sums.head`: the mean of the last iterates."""
        descent = _Descent(released["second"], released["labels"], self._of_moments(mu), self.learning_rate)
        iterates = []
        for gradient in released["gradients"]:
            descent.step(gradient)
            iterates.append(descent.weights)
        return np.asarray(np.mean(iterates[-max(1, round(_AVERAGED * len(iterates))) :], axis=0))

    def numbers(self, length: int, classes: int) -> int:
        """See `Sums.numbers`."""
        return length * (length + 1) // 2 + length * classes * (1 + self.rounds)


class _Descent:
    """Momentum steps in the metric of released moments, from their ridge head."""

    def __init__(self, second: Floats, labels: Floats, mu: float, rate: float) -> None:
        self.weights = ridge(second, labels, mu)
        self._metric, self._rate = inverse_root(second, mu, _POWER), rate
        self._velocity = np.zeros_like(self.weights)

    def step(self, gradient: Floats) -> None:
        self._velocity = _MOMENTUM * self._velocity + self._metric @ gradient
        self.weights = self.weights - self._rate * self._velocity
