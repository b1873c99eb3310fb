"""What a transcription costs, what its paper says that it costs, and what noise a budget asks for.

Sound figures come from events, priced by the privacy core; the paper's from its two theorems. docs/dpsd.md derives the
difference. All of it looks at settings alone, so a run that cannot meet its budget is refused before it starts.

    >>> published = Transcription(annotation={"sigma": 100}, iterations=200, batch=256)
    >>> round_up(price(event_of(published, classes=10), 1e-5), 2), round_up(claimed(published, classes=10), 2)
    (28.84, 0.05)
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
    """What a run releases.

    data: bT gradients, each with sensitivity 2β and noise σβ, so μ² = 4bT/σ²; the number of clients does not enter, for
    a record is with one of them. answers: bT about each client, among k classes. labels: each once, before anybody
    learns from them.
    """
    if settings.unprotected:
        return NonPrivateEvent()
    annotation = settings.annotation
    if settings.protect == "data":
        assert annotation.sigma is not None
        return RepeatedEvent(GaussianEvent(sensitivity=2.0, sigma=annotation.sigma), settings.samples)
    assert annotation.epsilon is not None
    if settings.protect == "answers":
        return RepeatedEvent(RandomisedResponseEvent(annotation.epsilon, annotation.top_k), settings.samples)
    return RandomisedResponseEvent(annotation.epsilon, classes)


def check_budget(settings: Transcription, classes: int) -> None:
    """Refuse a run that would cost more than its budget.

    Raises:
        BudgetError: it would; the message says what would meet the budget.
        SettingError: the lattice that noise is drawn on alone would use up δ.
    """
    if settings.unprotected:
        return
    epsilon, delta = settings.epsilon, settings.delta
    check_slack(settings.coordinates, epsilon, delta, "transcription.epsilon")
    found = price(event_of(settings, classes), delta)
    if not found <= epsilon:
        raise BudgetError(
            f"This transcription would cost ε={round_up(found):g} at δ={delta:g}, more than its budget of "
            f"ε={epsilon:g} (the paper's theorem does not hold: docs/dpsd.md). Nothing was drawn and nothing charged: "
            f"set transcription.annotation.{_remedy(settings)}or raise the budget."
        )


def _remedy(settings: Transcription) -> str:
    """The setting of the annotation that would meet the budget."""
    epsilon, delta, samples = settings.epsilon, settings.delta, settings.samples
    if settings.protect == "labels":
        return f"epsilon to {epsilon:g} or less, "
    if settings.protect == "data":
        sigma = round_up(noise_multiplier_for(epsilon, delta, 1, samples), 2)
        return f"sigma to {sigma:g} or more, annotate fewer samples, "
    needed = answer_for(epsilon, delta, samples, settings.annotation.top_k)
    digits = max(0, 3 - math.floor(math.log10(needed))) if needed > 0 else 3
    return f"epsilon to {math.floor(needed * 10**digits) / 10**digits:g} or less, annotate fewer samples, "


def answer_for(epsilon: float, delta: float, samples: int, categories: int) -> float:
    """The largest ε of one answer at which `samples` answers cost `epsilon`, found by bisection, from below."""
    low, high = 0.0, epsilon
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        within = price(RepeatedEvent(RandomisedResponseEvent(middle, categories), samples), delta) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return low


def claimed(settings: Transcription, classes: int) -> float | None:
    """ε by the paper's theorems, no guarantee; None where they say nothing: without noise, of labels at their source.

    Theorem 1: the minimum over q > 1 of 2β²c·bT·q/σ² + log((q−1)/q) − log(qδ)/(q−1). It counts β in the sensitivity
    and leaves it out of the noise, whose deviation is σβ. Theorem 2: the ε of one answer.
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
