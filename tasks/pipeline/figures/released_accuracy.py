"""The one accuracy of a run that may be published: with noise, charged to the account, released exactly once.

`evaluate` measures the student on the private test split, and no ε covers what it finds. Where `evaluation.epsilon`
names a price, it releases one noised accuracy besides (`terrine.privacy.noised_accuracy`), by which runs on private
data can be compared. It is charged in full on top of the answers, whoever a unit taught or tested, so that the account
also covers a unit that changes sides, as it may where the split is given.

Each image is classified by itself, under statistics in which no other image has a part and on the CPU, where an answer
has the same bits in any batch. Under those of a batch, as `evaluate` may use them, one image more would move the
answers to all others. So it is the accuracy of the student as it answers single images. A group counts once, by the
share of its records.

Of numbers in bins (`terrine.data.ordered`) a mean absolute error is released instead: a unit's share a is then
1 − e/L, where e is the mean absolute error over its records and L the distance of the outer edges, which are public.
Truths and answers lie between these, so 0 ≤ a ≤ 1, and a hangs on the unit's own records and the public student alone:
all that `terrine.privacy.noised_accuracy` asks of a share. So its derivation holds as it stands, and L·(1 − a) with
L times the interval is post-processing.

With `evaluation.released_subgroups` the same release says the accuracy of each of these, too. A unit counts for the
value that most of its records have (of equally many, for the first of them), or for none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.records import read_dataset
from tasks.config.params import Params
from tasks.pipeline.figures.subgroups import load_subgroups
from tasks.reports.accuracy import shown_accuracy
from tasks.runtime.accounts import release_at_price, site_key
from tasks.runtime.release_identity import record_data_change
from tasks.runtime.releases import accuracy_mechanism, identity_in_ledger, make_noise
from tasks.runtime.run import Run
from tasks.runtime.store import write_json
from tasks.runtime.task import load_task
from terrine.data.content_digest import digest_of_arrays
from terrine.data.dataset import Dataset
from terrine.data.units import count_units
from terrine.deployment.manifest import MANIFEST
from terrine.errors import InputError, SettingError
from terrine.files import file_digest
from terrine.planning import round_advice
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.noise import delta_slack
from terrine.privacy.noised_accuracy import (
    CONFIDENCE,
    NO_SUBGROUP,
    Estimate,
    NoisedAccuracy,
    epsilon_for,
    shares_of_units,
)

WORST = 0.10
"""An accuracy that is known less well tells no two runs apart, and is not released."""

NONE = (
    "No accuracy was released. evaluation.epsilon=0.5, say, releases one with noise and charges ε=0.5 to the account."
)


def held_out_units(run: Run, dataset: Dataset) -> np.ndarray:
    """Return which unit each test record belongs to, int64 [records].

    A record is what lies under one name, as where teachers are dealt; records are told apart by their places where
    nothing else does. Raises SettingError where groups are protected and the data do not say whose the test records
    are.
    """
    if run.params.privacy.unit != "group":
        return np.arange(len(dataset.test_labels)) if dataset.test_names is None else dataset.test_names
    if dataset.test_groups is None:
        raise SettingError(
            "An accuracy that is to be released needs to know whose the test records are, because "
            "privacy.unit=group protects groups, and a file that is split already does not say it. Give one set with "
            "groups, a CSV table or a folder, or release none (evaluation.epsilon=null). Nothing was charged."
        )
    return dataset.test_groups


def check_use_of_accuracy(run: Run) -> None:
    """Refuse, before anything is charged, an accuracy that would be useless. Raises SettingError."""
    mechanism = accuracy_mechanism(run.params)
    if mechanism is not None:
        dataset = read_dataset(run.folders)
        units = held_out_units(run, dataset)
        check_use(run, mechanism, count_units(units))
        _places(run, dataset, units)


def check_use(run: Run, mechanism: NoisedAccuracy, units: int) -> None:
    """Refuse an accuracy that is known to no better than `WORST`. How many units there are is told at home alone."""
    plus_minus = mechanism.plus_minus(units)
    if plus_minus > WORST:
        settings = run.params
        enough = round_advice(epsilon_for(WORST, units, settings.aggregation.delta))
        what = "a mean error" if _of_numbers(settings) else "an accuracy"
        points = "% of the largest possible error" if _of_numbers(settings) else "percentage points"
        raise SettingError(
            f"evaluation.epsilon={settings.evaluation.epsilon:g} would release {what} that is known to "
            f"±{100 * plus_minus:.0f} {points}: {units:,} {settings.privacy.unit}s are held out, too few for "
            f"so much noise. ±{100 * WORST:.0f} points take evaluation.epsilon={enough:g}, or hold out more "
            "(data.test_fraction); or leave it out with evaluation.epsilon=null. Nothing was charged."
        )


def release_accuracy(run: Run, dataset: Dataset) -> None:
    """Release the run's noised accuracy through the ledger, or write that none is released."""
    mechanism = accuracy_mechanism(run.params)
    if mechanism is None:
        write_json(run.folders.accuracy, {"accuracy": None, "summary": NONE})
        return
    units = held_out_units(run, dataset)
    check_use(run, mechanism, count_units(units))
    shares = shares_of_units(right_answers(run, dataset), units)
    places = _places(run, dataset, units)
    looked_at = {"shares": (shares, "<f8"), **{f"column {number}": (one, "<i8") for number, one in enumerate(places)}}
    inputs = {
        "accuracy": digest_of_arrays("terrine noised accuracy 1", looked_at, site_key(run)),
        "student": file_digest(run.folders.student / MANIFEST),
    }
    noise = make_noise(run, "accuracy")

    def draw() -> dict[str, np.ndarray]:
        return {"sums": mechanism.release(shares, noise, places)}

    identity, task = identity_in_ledger(run, "accuracy"), load_task(run)
    release = release_at_price(run, identity, mechanism.event, noise, draw, inputs, tests=True, task=task)
    record_data_change(run, "accuracy", release, inputs)
    write_json(run.folders.accuracy, about_accuracy(run, mechanism, release))


def _of_numbers(params: Params) -> bool:
    """Return whether what is released is the mean absolute error of numbers, not how often a class is right."""
    return params.data.scale is not None and bool(params.data.scale.edges)


def _places(run: Run, dataset: Dataset, units: np.ndarray) -> list[np.ndarray]:
    """Return for each column of released subgroups which of its values each unit counts for, int64 [units]."""
    wanted = run.params.evaluation.released_subgroups
    said, found = load_subgroups(run, dataset), []
    for column, values in wanted.items():
        if column not in said:
            raise InputError(
                f"evaluation.released_subgroups names {column}, and evaluation.subgroups has {', '.join(said)}. "
                "Nothing was charged."
            )
        place = np.full(len(units), len(values))
        for number, value in enumerate(values):
            place[said[column] == value] = number
        _, own = np.unique(units, return_inverse=True)
        counts = np.bincount(own * (len(values) + 1) + place, minlength=(own.max() + 1) * (len(values) + 1))
        most = counts.reshape(-1, len(values) + 1).argmax(axis=1)
        found.append(np.where(most == len(values), NO_SUBGROUP, most).astype(np.int64))
    return found


def right_answers(run: Run, dataset: Dataset) -> np.ndarray:
    """Return how right the student is about each test record by itself, [records] from 0 to 1: whether it is, or of a
    number the share of the largest possible error that it is not off."""
    from terrine.deployment.model import StudentModel  # with torch, which a stage that only asks for the price spares

    model, scale = StudentModel.load(run.folders.student, device="cpu"), dataset.scale
    said = model.predict(np.asarray(dataset.test_images))
    if scale is None or dataset.test_numbers is None:
        return np.asarray(dataset.decided(said) == dataset.test_labels)
    return scale.closeness(scale.numbers(said), dataset.test_numbers)


def about_accuracy(run: Run, mechanism: NoisedAccuracy, release: StoredRelease) -> dict[str, Any]:
    """Return the content of accuracy.json: a function of public settings and of what the ledger holds."""
    sums, settings = release.arrays["sums"], run.params
    estimate = mechanism.estimate(sums)
    delta, unit, noise = settings.aggregation.delta, settings.privacy.unit, settings.aggregation.noise
    epsilon = round_up(price(release.event, delta))
    guarantee = (
        f"It is ({epsilon:g}, {delta:g})-differentially private towards the {unit}s that were held out, and charged to "
        f"the account on top of the answers: together with all earlier releases about the same dataset, "
        f"ε={round_up(release.epsilon_total):g} was used so far."
        if noise == "secure"
        else "NOT PRIVATE: the noise was replayed from a seed and can be subtracted again."
    )
    columns = zip(settings.evaluation.released_subgroups.items(), mechanism.of_subgroups(sums), strict=True)
    subgroups = {
        column: [{"subgroup": value, **_known(one)} for value, one in zip(values, estimates, strict=True)]
        for (column, values), estimates in columns
    }
    about: dict[str, Any] = {"accuracy": estimate.accuracy, "plus_minus": estimate.plus_minus}
    told = f"the student is right in {shown_accuracy(estimate.accuracy, estimate.plus_minus)} of cases"
    if _of_numbers(settings) and settings.data.scale is not None:
        span = settings.data.scale.span
        error, known_to = span * (1 - estimate.accuracy), span * estimate.plus_minus
        about = {"accuracy": None, "mean_absolute_error": error, "plus_minus": known_to, "largest_error": span}
        told = f"the student's mean absolute error is {error:.4g} ± {known_to:.2g}"
    return {
        **about,
        "confidence": CONFIDENCE,
        "units": estimate.units,
        "unit": unit,
        **({"subgroups": subgroups} if subgroups else {}),
        "epsilon": epsilon if noise == "secure" else None,
        "delta": delta,
        "delta_slack": delta_slack(len(release.arrays["sums"]), epsilon),
        "event": to_json(release.event),
        "noise": noise,
        "release_id": release.release_id,
        "epsilon_dataset": round_up(release.epsilon_total),
        "summary": f"On the {unit}s that were held out {told}: one figure with noise, the interval that "
        f"noise leaves at {CONFIDENCE:.0%}, every {unit} counting alike, each image answered by itself. {guarantee}",
    }


def _known(estimate: Estimate) -> dict[str, Any]:
    """Return what is published of a subgroup: no accuracy where noise leaves nothing of it."""
    if estimate.plus_minus > 1:
        return {"accuracy": None, "plus_minus": None, "units": estimate.units}
    return {"accuracy": estimate.accuracy, "plus_minus": estimate.plus_minus, "units": estimate.units}
