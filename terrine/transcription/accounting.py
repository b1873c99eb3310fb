"""Cost of a transcription: exact ε, the paper's bound, and the noise that a budget requires.

The exact ε comes from events, the paper's bound from its two theorems (docs/dpsd.md derives the difference). Both
depend on settings only, so a run that would exceed its budget is refused before it starts.

    >>> published = Transcription(annotation={"sigma": 100, "norm": "batch"}, iterations=200, batch=256)
    >>> round_up(price(event_of(published, classes=10), 1e-5), 2), round_up(claimed(published, classes=10), 2)
    (1.07, 0.05)
"""

import math

from scipy.optimize import minimize_scalar

from terrine.errors import BudgetError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
)
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import check_slack
from terrine.privacy.noised_sum import noise_multiplier_for
from terrine.transcription.settings import Transcription

_SEARCH = 60


def event_of(settings: Transcription, classes: int) -> Event:
    """Return the event of a run.

    data: gradients with sensitivity 2β and noise σβ, T of them if the norm is a batch's (μ² = 4T/σ²), or bT if it is a
    sample's (μ² = 4bT/σ²). The number of clients does not matter, because a record belongs to one of them. answers: bT
    per client, among k classes. labels: each label once, before training.
    """
    if settings.unprotected:
        return NonPrivateEvent()
    annotation = settings.annotation
    if settings.protect == "data":
        assert annotation.sigma is not None
        return RepeatedEvent(GaussianEvent(sensitivity=2.0, sigma=annotation.sigma), settings.gaussian_releases)
    assert annotation.epsilon is not None
    if settings.protect == "answers":
        return RepeatedEvent(RandomisedResponseEvent(annotation.epsilon, annotation.top_k), settings.samples)
    return RandomisedResponseEvent(annotation.epsilon, classes)


def check_budget(settings: Transcription, classes: int) -> None:
    """Check the exact ε of a run against its budget.

    Raises:
        BudgetError: ε exceeds the budget; the message names a setting that meets it.
        SettingError: the noise's lattice would use up δ.
    """
    if settings.unprotected:
        return
    epsilon, delta = settings.epsilon, settings.delta
    check_slack(settings.coordinates(classes), epsilon, delta, "transcription.epsilon")
    found = price(event_of(settings, classes), delta)
    if not found <= epsilon:
        raise BudgetError(
            f"This transcription would cost ε={round_up(found):g} at δ={delta:g}, more than its budget of "
            f"ε={epsilon:g} (docs/dpsd.md explains the difference from the paper). No noise was drawn or charged. "
            f"Set transcription.annotation.{_remedy(settings)}or raise the budget."
        )


def _remedy(settings: Transcription) -> str:
    """Return a setting of the annotation with which the run meets the budget."""
    epsilon, delta = settings.epsilon, settings.delta
    if settings.protect == "labels":
        return f"epsilon to {epsilon:g} or less, "
    if settings.protect == "data":
        sigma = round_up(noise_multiplier_for(epsilon, delta, 1, settings.gaussian_releases), 2)
        return f"sigma to {sigma:g} or more, annotate fewer samples, "
    needed = answer_for(epsilon, delta, settings.samples, settings.annotation.top_k)
    digits = max(0, 3 - math.floor(math.log10(needed))) if needed > 0 else 3
    return f"epsilon to {math.floor(needed * 10**digits) / 10**digits:g} or less, annotate fewer samples, "


def answer_for(epsilon: float, delta: float, samples: int, categories: int) -> float:
    """Compute the largest ε of one answer at which `samples` answers cost at most `epsilon`, by bisection."""
    low, high = 0.0, epsilon
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        within = price(RepeatedEvent(RandomisedResponseEvent(middle, categories), samples), delta) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return low


def claimed(settings: Transcription, classes: int) -> float | None:
    """Compute ε by the paper's theorems, which is no guarantee; None without noise or if only labels are protected.

    Theorem 1: the minimum over q > 1 of 2β²c·bT·q/σ² + log((q−1)/q) − log(qδ)/(q−1). The paper counts β in the
    sensitivity but not in the noise, whose standard deviation is σβ. By Theorem 2, labels cost the ε of one answer.
    """
    annotation, delta = settings.annotation, settings.delta
    if settings.protect == "answers":
        return annotation.epsilon
    if not annotation.sigma:
        return None
    slope = 2 * annotation.beta**2 * classes * settings.samples / annotation.sigma**2

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return slope * order + math.log(excess / order) - (math.log(delta) + math.log(order)) / excess

    found = minimize_scalar(bound, bounds=(-7.0, 21.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))
