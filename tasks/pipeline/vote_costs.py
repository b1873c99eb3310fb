"""All kinds of ε of answering a set of votes: exact, data-independent, data-dependent and sanitised.

Nothing is released and the ledger is not used. Figures that depend on the votes must not be published, and the result
says so. Budget checks and stopping rules never use them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.adaptive_queries import NEVER
from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.aggregation.mechanism import Mechanism
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting import data_dependent as dependent
from terrine.privacy.accounting import renyi, sanitize
from terrine.privacy.accounting.events import RepeatedEvent, laplace_answers, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.accounting.local_sensitivity import (
    AnswerPrice,
    summed_answer_sensitivity,
    summed_threshold_sensitivity,
)
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import StoredRelease

Weighting = Literal["expected", "realised"]

VOTES_NOTICE = "PRIVATE: functions of the teachers' votes. Do not publish."
_PRIVATE = "Computed from the votes: private, for the data owner only."


@dataclass(frozen=True)
class CostQuery:
    """The mechanism and options of the accounting.

    Attributes:
        mechanism: The mechanism.
        delta: δ.
        sigma: Noise of the answers of gnmax and confident (σ2), in votes.
        scale: Scale of lnmax's Laplace noise, in votes.
        threshold: Threshold of confident, in votes.
        sigma1: Noise of confident's threshold test, in votes.
        weighting: Whether the cost counts expected or given answers. Default: given answers if they are known.
        conversion: Conversion from RDP to (ε, δ).
        orders: "default", "reference", or RDP orders separated by commas.
        sanitise: Whether to compute the sanitised ε.
        order: RDP order of the sanitised ε. Default (as for `beta` and `sigma_ss`): the best valid value.
        beta: Smoothing parameter β of the smooth sensitivity.
        sigma_ss: Noise of the smooth sensitivity.
    """

    mechanism: Literal["lnmax", "gnmax", "confident"]
    delta: float = 1e-5
    sigma: float | None = None
    scale: float | None = None
    threshold: float | None = None
    sigma1: float | None = None
    weighting: Weighting | None = None
    conversion: renyi.Conversion = "improved"
    orders: str = "default"
    sanitise: bool = False
    order: float | None = None
    beta: float | None = None
    sigma_ss: float | None = None

    def __post_init__(self) -> None:
        needed = {"lnmax": ("scale",), "gnmax": ("sigma",), "confident": ("threshold", "sigma1", "sigma")}
        if self.mechanism not in needed:
            raise SettingError(f"The mechanism must be one of {', '.join(needed)}, got {self.mechanism!r}.")
        for name in ("sigma", "scale", "threshold", "sigma1"):
            value = getattr(self, name)
            if name in needed[self.mechanism]:
                if value is None:
                    raise SettingError(f"{self.mechanism} needs {name}.")
                if not (math.isfinite(value) and (value > 0 or name == "threshold")):
                    raise SettingError(f"{name} must be a positive number of votes, got {value!r}.")
            elif value is not None:
                raise SettingError(f"{self.mechanism} has no {name}: leave it out, or choose another mechanism.")
        if not 0 < self.delta < 1:
            raise SettingError(f"delta must lie strictly between 0 and 1, got {self.delta!r}.")
        if self.weighting not in (None, "expected", "realised"):
            raise SettingError(f'The weighting must be "expected" or "realised", got {self.weighting!r}.')
        given = [name for name in ("order", "beta", "sigma_ss") if getattr(self, name) is not None]
        if given and not self.sanitise:
            raise SettingError(f"{given[0]} is for the sanitised ε: add --sanitise.")
        if self.sanitise and self.mechanism == "lnmax":
            raise SettingError("lnmax has no sanitised ε: the smooth sensitivity is known for Gaussian noise only.")


def account(
    histograms: NDArray[np.int64], query: CostQuery, answered: NDArray[np.bool_] | None = None
) -> dict[str, Any]:
    """Return all kinds of ε of answering these queries as JSON values.

    Args:
        histograms: Votes, int64 [queries, classes].
        query: Mechanism and options of the accounting.
        answered: Whether confident answered each query, bool [queries], if known.

    Returns:
        `exact`, `data_independent`, `data_dependent` and `sanitised` (None unless requested), each with
        `may_be_published` and a `note` with the reason.

    Raises:
        InputError: If an array does not contain histograms, or shapes do not match.
        SettingError: If options are invalid, or the realised cost is requested without `answered`.
    """
    counts = dependent.check_histograms(histograms)
    votes = _Votes(counts, query, answered)
    orders = _orders(query.orders)
    public = votes.weighting == "realised" or query.mechanism != "confident"
    basis = (
        "From public parameters and the number of answers that were given."
        if public
        else "From the expected number of answers, which depends on the votes. Give the answered queries instead."
    )
    curve = votes.data_dependent_curve(orders)
    independent, independent_order = renyi.convert(
        orders, votes.data_independent_curve(orders), query.delta, query.conversion
    )
    dependent_epsilon, dependent_order = renyi.convert(orders, curve, query.delta, query.conversion)
    result: dict[str, Any] = {
        "mechanism": query.mechanism,
        "queries": len(counts),
        "answered": votes.answered,
        "teachers": int(counts[0].sum()),
        "classes": counts.shape[1],
        "delta": query.delta,
        "weighting": votes.weighting,
        "conversion": query.conversion,
        "exact": {
            "epsilon": votes.epsilon(votes.answered),
            "epsilon_if_all_answered": votes.epsilon(len(counts)),
            "may_be_published": public,
            "note": basis + (" The figure to publish." if public else ""),
        },
        "data_independent": {
            "epsilon": independent,
            "order": independent_order,
            "may_be_published": public,
            "note": basis + " Never below the exact figure: for comparison with papers.",
        },
        "data_dependent": {
            "epsilon": dependent_epsilon,
            "order": dependent_order,
            "may_be_published": False,
            "note": _PRIVATE + " It may neither be published nor decide when to stop.",
        },
        "sanitised": None,
    }
    if query.sanitise:
        result["sanitised"] = _sanitised(votes, orders, curve)
    return result


class _Votes:
    """Accounting of one set of histograms of votes."""

    def __init__(self, counts: NDArray[np.int64], query: CostQuery, answered: NDArray[np.bool_] | None) -> None:
        self.counts = counts
        self.query = query
        self.noise = (query.scale if query.mechanism == "lnmax" else query.sigma) or 0.0
        self.largest = counts.max(axis=1)
        if answered is not None and answered.shape != (len(counts),):
            raise InputError(f"There are {len(counts)} queries, but `answered` has shape {answered.shape}.")
        if answered is not None and query.mechanism != "confident":
            raise SettingError(f"{query.mechanism} answers every query: leave out which were answered.")
        self.weighting: Weighting = query.weighting or ("expected" if answered is None else "realised")
        # Only confident has these two.
        self.threshold, self.sigma1 = query.threshold or 0.0, query.sigma1 or 0.0
        self.weights = np.ones(len(counts))
        self.answered: float | int = len(counts)
        if query.mechanism != "confident":
            return
        self.log_p = dependent.log_p_answered(self.largest, self.threshold, self.sigma1)
        if self.weighting == "expected":
            self.weights = np.exp(self.log_p)
            self.answered = float(self.weights.sum())
        elif answered is None:
            raise SettingError(
                "The realised cost of confident depends on which queries were answered: give --answered, "
                "or ask for --weighting expected."
            )
        else:
            self.weights = answered.astype(np.float64)
            self.answered = int(answered.sum())

    def epsilon(self, answers: float) -> float:
        """Return the smallest provable ε of this many answers, from public parameters only."""
        query, queries = self.query, len(self.counts)
        if query.mechanism == "lnmax":
            return price(laplace_answers(self.noise, queries), query.delta)
        # The expected number of answers may be fractional, so it is priced by μ² instead of as an event.
        mu = answers * mu_squared(vote_answer(self.noise))
        if query.mechanism == "confident":
            mu += mu_squared(RepeatedEvent(threshold_test(self.sigma1), queries))
        return epsilon_of(math.sqrt(mu), query.delta)

    def data_independent_curve(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.query.mechanism == "lnmax":
            return self.answered * renyi.pure_rdp(2 / self.noise, orders)
        answers = self.answered * renyi.gaussian_rdp(math.sqrt(2), self.noise, orders)
        if self.query.mechanism != "confident":
            return answers
        return answers + len(self.counts) * renyi.gaussian_rdp(1.0, self.sigma1, orders)

    def data_dependent_curve(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.query.mechanism == "lnmax":
            log_q = dependent.log_q_lnmax(self.counts, self.noise)
            return dependent.summed(dependent.lnmax_rdp, log_q, self.noise, orders)
        log_q = dependent.log_q_gnmax(self.counts, self.noise)
        answers = dependent.summed(dependent.gnmax_rdp, log_q, self.noise, orders, self.weights)
        if self.query.mechanism != "confident":
            return answers
        return answers + dependent.summed(dependent.threshold_rdp, self.log_p, self.sigma1, orders)

    def sensitivity(self, order: float) -> NDArray[np.float64]:
        """Return LS_d of the data-dependent RDP at `order` [teachers]."""
        local = summed_answer_sensitivity(self.counts, self.noise, order, self.weights)
        if self.query.mechanism == "confident":
            local = local + summed_threshold_sensitivity(
                self.largest, int(self.counts[0].sum()), self.threshold, self.sigma1, order
            )
        return local


def _sanitised(votes: _Votes, orders: NDArray[np.float64], curve: NDArray[np.float64]) -> dict[str, Any]:
    query, classes = votes.query, votes.counts.shape[1]
    if query.order is None:
        epsilons = curve + renyi.conversion_cost(orders, query.delta, query.conversion)
        order = sanitize.restricted_order(epsilons, orders, votes.noise, classes)
    else:
        order = query.order
        answer = AnswerPrice(votes.noise, classes, order)
        if not answer.always_independent(int(votes.counts[0].sum())) and not all(answer.conditions()):
            raise SettingError(
                f"Conditions C5 and C6 of the smooth sensitivity do not hold at order {order:g} with "
                f"sigma={votes.noise:g} and {classes} classes: take a smaller order."
            )
    figure = sanitize.optimised(
        float(votes.data_dependent_curve(np.array([order]))[0]),
        votes.sensitivity(order),
        query.delta,
        order=order,
        beta=query.beta,
        sigma_ss=query.sigma_ss,
        conversion=query.conversion,
    )
    fixed = None not in (query.order, query.beta, query.sigma_ss)
    sound = fixed and (votes.weighting == "realised" or query.mechanism == "gnmax")
    return {
        **asdict(figure),
        # JSON has no infinity: nothing to protect needs no noise.
        "sigma_ss": figure.sigma_ss if math.isfinite(figure.sigma_ss) else None,
        "may_be_published": False,
        "one_draw_may_be_published": sound,
        "note": _PRIVATE
        + (
            " One draw with this mean and deviation from a secure source may be published: it is the cost of answers "
            "and draw together. No account includes it, and a second draw costs again."
            if sound
            else " A draw may be published only if order, beta and sigma_ss were fixed independently of the votes and "
            "given answers are counted, not expected ones."
        ),
    }


def _orders(text: str) -> NDArray[np.float64]:
    match text:
        case "default":
            return renyi.default_orders()
        case "reference":
            return renyi.reference_orders()
    try:
        return np.sort(renyi.check_orders([float(part) for part in text.split(",")]))
    except ValueError as error:
        raise SettingError(
            f'Orders are "default", "reference" or numbers above 1 separated by commas, got {text!r}.'
        ) from error


def private_figures(
    mechanism: Mechanism, delta: float, histograms: np.ndarray, release: StoredRelease
) -> dict[str, Any]:
    """Return the consensus, the release's agreement with the votes and, if defined, the data-dependent ε."""
    answered = release.arrays["answered"]
    labels = release.arrays["labels"]
    teachers = int(histograms[0].sum())
    winners = histograms.argmax(axis=1)
    return {
        "notice": VOTES_NOTICE,
        "consensus_mean": float(histograms.max(axis=1).mean() / teachers),
        "consensus_deviation": float(histograms.max(axis=1).std() / teachers),
        "released_agrees_with_votes": float((labels == winners)[answered].mean()) if answered.any() else None,
        "votes_per_class": histograms.sum(axis=0).tolist(),
        **data_dependent_epsilon(mechanism, delta, histograms, release),
    }


def data_dependent_epsilon(
    mechanism: Mechanism, delta: float, histograms: np.ndarray, release: StoredRelease
) -> dict[str, float]:
    """Return the realised data-dependent ε and its order, if the analysis applies.

    The data-dependent analysis bounds the information in a *label* when teachers agree. The analysis does not exist for
    noisy histograms, which reveal the counts, for Interactive-GNMax's second round, and for several findings.
    """
    analysed = mechanism.mechanism in ("gnmax", "lnmax", "confident")
    if not analysed or mechanism.findings > 1 or not release.arrays["answered"].any():
        return {}
    queried = release.arrays["round"] != NEVER
    parameters = mechanism.describe()
    if isinstance(mechanism, ConfidentGNMax):
        parameters["sigma"] = parameters.pop("sigma2")
    query = CostQuery(**parameters, delta=delta, weighting="realised")
    answered = release.arrays["answered"][queried] if mechanism.outcome_dependent else None
    figures = account(histograms[queried], query, answered)["data_dependent"]
    return {"epsilon_data_dependent": figures["epsilon"], "order": figures["order"]}
