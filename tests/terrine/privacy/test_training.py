"""Trainings of other libraries: their events, and ε beside the ε of these libraries."""

import json
import math

import dp_accounting
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant, RDPAccountant

from terrine.errors import InputError
from terrine.privacy.accounting.events import GaussianEvent, RepeatedEvent, SampledGaussianEvent, compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.training import Training, import_dp_event

PHASES = ((1.1, 0.01, 400), (1.4, 0.01, 200))


def epsilon(events, delta=1e-5):
    return price(events[0], delta), price(events[1], delta)


def dpsgd(noise, rate, steps):
    sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(sampled, steps)


def test_epsilon_is_that_of_opacus_within_its_error():
    """PRV's ε is an upper bound with an error of 0.01 by default; RDP's is one without."""
    training = Training("opacus", "poisson", PHASES)
    replaced, added = epsilon(training.events(1e-5))
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [*PHASES]
    assert prv.get_epsilon(1e-5) - 0.02 <= added <= prv.get_epsilon(1e-5) + 1e-3
    assert added < rdp.get_epsilon(1e-5)
    assert added < replaced < 2 * added


def test_epsilon_is_that_of_dp_accounting_and_events_survive_json():
    event = dp_event.ComposedDpEvent([dpsgd(1.1, 0.01, 400), dpsgd(1.4, 0.01, 200)])
    training = import_dp_event(event)
    assert training == Training("dp_accounting", "poisson", PHASES)
    assert import_dp_event(json.loads(json.dumps(event.to_named_tuple()))) == training
    theirs = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).get_epsilon(1e-5)
    assert price(training.events(1e-5)[1], 1e-5) == pytest.approx(theirs, rel=2e-3)


def test_fixed_batches_cost_what_jax_privacy_says_under_add_remove_and_more_under_replacement():
    """jax_privacy prices them as Poisson samples with half the noise, direction by direction."""
    event = dp_event.SelfComposedDpEvent(
        dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(2.0)), 300
    )
    training = import_dp_event(event)
    assert training == Training("dp_accounting", "fixed", ((2.0, 0.01, 300),))
    replaced, added = epsilon(training.events(1e-5))
    theirs = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(dpsgd(1.0, 0.01, 300))
    assert added == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    assert replaced > added


def test_fixed_batches_cost_no_more_than_without_amplification():
    training = Training("flower", "fixed", ((4.0, 0.9, 3),))
    assert training.events(1e-5) == (RepeatedEvent(GaussianEvent(2.0, 4.0), 3), None)


def test_shuffled_batches_cost_one_step_an_epoch_without_amplification():
    ours, added = Training("opacus", "shuffled", ((1.1, 0.01, 250),)).events(1e-5)
    assert ours == RepeatedEvent(GaussianEvent(math.sqrt(5), 1.1), 3)
    assert added is None
    assert price(ours, 1e-5) > 2 * price(Training("opacus", "poisson", ((1.1, 0.01, 250),)).events(1e-5)[0], 1e-5)


def test_a_phase_that_begins_within_an_epoch_may_hold_a_unit_once_more():
    ours, _ = Training("opacus", "shuffled", ((1.0, 0.1, 5), (2.0, 0.1, 10))).events(1e-5)
    parts = (RepeatedEvent(GaussianEvent(math.sqrt(5), noise), 2) for noise in (1.0, 2.0))
    assert ours == compose(*parts)


def test_shuffled_epochs_of_small_data_cost_what_is_charged_for_every_neighbour():
    """Batches of every order of a small dataset: the largest distance between coupled sums is that of the event.

    The order of the smaller dataset comes from that of the larger one: the last unit takes the removed one's place.
    """
    larger, batch, worst = (1.0, -1.0, 1.0, -1.0, 1.0, -1.0), 2, 0.0
    for removed in range(len(larger)):
        order = list(larger)
        last = order.pop()
        smaller = order if removed == len(order) else [*order[:removed], last, *order[removed + 1 :]]

        def sums(values):
            padded = [*values, 0.0, 0.0]
            return [sum(padded[start : start + batch]) for start in range(0, len(larger), batch)]

        distance = math.dist(sums(larger), sums(smaller))
        worst = max(worst, distance)
    assert worst == pytest.approx(math.sqrt(5))


def test_whole_batches_and_equal_phases_are_gaussian_mechanisms():
    training = Training("stated", "poisson", ((3.0, 1.0, 2), (3.0, 1, 3)))
    assert training.phases == ((3.0, 1.0, 5),)
    assert training.events(1e-5) == (RepeatedEvent(GaussianEvent(2, 3), 5), RepeatedEvent(GaussianEvent(1, 3), 5))
    assert Training("stated", "all", ((3.0, 0.1, 5),)).events(1e-5) == training.events(1e-5)
    sampled = Training("stated", "poisson", ((3.0, 0.1, 5),)).events(1e-5)
    assert sampled[0] == RepeatedEvent(SampledGaussianEvent(1, 1, 3, 0.1), 5)


def test_a_description_determines_its_training():
    training = Training("flower", "fixed", PHASES)
    assert Training.described(json.loads(json.dumps(training.describe()))) == training


@pytest.mark.parametrize(
    ("phases", "fault"),
    [
        ((), "0 phases"),
        (((0.0, 0.1, 1),), "noise multiplier 0.0"),
        (((-1.0, 0.1, 1),), "noise multiplier -1.0"),
        (((math.nan, 0.1, 1),), "noise multiplier nan"),
        (((math.inf, 0.1, 1),), "noise multiplier inf"),
        (((1.0, 0.0, 1),), "sampling rate 0.0"),
        (((1.0, 1.5, 1),), "sampling rate 1.5"),
        (((1.0, math.nan, 1),), "sampling rate nan"),
        (((1.0, 0.1, 0),), "number of steps is 0"),
        (((1.0, 0.1, -5),), "number of steps is -5"),
        (((1.0, 0.1, 2.5),), "number of steps is 2.5"),
        (((1.0, 0.1, 10**13),), "number of steps is 10000000000000"),
        (((1.0, 0.1, True),), "is not a noise"),
        ((("1", 0.1, 3),), "is not a noise"),
        (((1.0, 0.1),), "is not a noise"),
        (tuple((1.0 + n / 1000, 0.1, 1) for n in range(51)), "51 phases"),
    ],
)
def test_impossible_trainings_are_refused(phases, fault):
    with pytest.raises(InputError, match=fault):
        Training("stated", "poisson", phases)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (dp_event.LaplaceDpEvent(1.0), "LaplaceDpEvent"),
        (dp_event.NonPrivateDpEvent(), "NonPrivateDpEvent"),
        (dp_event.NoOpDpEvent(), "0 phases"),
        (dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0), "TruncatedSubsampledGaussianDpEvent"),
        (dp_event.PoissonSampledDpEvent(0.1, dpsgd(1.0, 0.1, 2)), "samples a composition"),
        (dp_event.SampledWithoutReplacementDpEvent(5, 10, dp_event.GaussianDpEvent(1.0)), "10 of 5 units"),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), -1), "count is -1"),
        (
            dp_event.ComposedDpEvent(
                [dpsgd(1, 0.1, 2), dp_event.SampledWithoutReplacementDpEvent(9, 3, dp_event.GaussianDpEvent(1.0))]
            ),
            "mixes ways of sampling",
        ),
        (["x", "GaussianDpEvent", 1.0, 2.0], "has 2 fields"),
        (["x", "os.system", "ls"], "os.system"),
        ({"event": "gaussian"}, "not a DpEvent"),
        ([["x"]], "not a DpEvent"),
    ],
)
def test_other_events_are_refused(event, fault):
    with pytest.raises(InputError, match=fault):
        import_dp_event(event)


def test_deep_nesting_is_refused():
    event = ["m", "GaussianDpEvent", 1.0]
    for _ in range(60):
        event = ["m", "SelfComposedDpEvent", event, 1]
    with pytest.raises(InputError, match="not a DpEvent"):
        import_dp_event(event)


def test_a_statement_contradicts_the_analysis_only_towards_less_amplification():
    event = dpsgd(1.0, 0.1, 10)
    assert import_dp_event(event, "shuffled").sampling == "shuffled"
    assert import_dp_event(event, "all").sampling == "all"
    with pytest.raises(InputError, match="'poisson', and 'fixed' was stated"):
        import_dp_event(event, "fixed")
