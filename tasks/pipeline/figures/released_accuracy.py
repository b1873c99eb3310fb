"""Release of a run's accuracy with noise: charged to the account, exactly once.

With `evaluation.epsilon` the stage `evaluate` releases one noisy accuracy (`terrine.privacy.noised_accuracy`), by which
runs on private data can be compared. The full cost of the accuracy is added to that of the answers, so the account also
covers a unit that moves between training and test data.

Images are classified one by one on the CPU, where the result has the same bits in any batch. With batch statistics, an
additional image would change the predictions for all others. A group counts once, with the accuracy over its records.

For binned numbers (`terrine.data.ordered`) a mean absolute error is released. A unit's share is then a = 1 − e/L with
the mean absolute error e over its records and the public distance L of the outer edges. True and predicted values lie
between these, so 0 ≤ a ≤ 1, and a depends only on the unit's records and the public student, as
`terrine.privacy.noised_accuracy` requires. L·(1 − a) and L times the interval are post-processing.

With `evaluation.released_subgroups` the release includes the accuracy of each subgroup. A unit counts for the most
frequent value of its records (the first of several), or for none.
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
"""Largest half-width of the noise interval with which an accuracy is released."""

NONE = (
    "No accuracy was released. evaluation.epsilon=0.5, say, releases one with noise and charges ε=0.5 to the account."
)


def held_out_units(run: Run, dataset: Dataset) -> np.ndarray:
    """Return the unit of each test record, int64 [records].

    Test records with one name are one unit, as in the partition. Test records without names are one unit each.

    Raises:
        SettingError: If groups are protected and the test records have none.
    """
    if run.params.privacy.unit != "group":
        return np.arange(len(dataset.test_labels)) if dataset.test_names is None else dataset.test_names
    if dataset.test_groups is None:
        raise SettingError(
            "privacy.unit=group protects groups, and the test records of these split data have none, so an accuracy "
            "cannot be released. Give one set with groups, a CSV table or a folder, or set evaluation.epsilon=null. "
            "Nothing was charged."
        )
    return dataset.test_groups


def check_use_of_accuracy(run: Run) -> None:
    """Check before anything is charged that a released accuracy would be useful; see `check_use`."""
    mechanism = accuracy_mechanism(run.params)
    if mechanism is not None:
        dataset = read_dataset(run.folders)
        units = held_out_units(run, dataset)
        check_use(run, mechanism, count_units(units))
        _places(run, dataset, units)


def check_use(run: Run, mechanism: NoisedAccuracy, units: int) -> None:
    """Raise SettingError if an accuracy's interval would be wider than `WORST`. The error message is private."""
    plus_minus = mechanism.plus_minus(units)
    if plus_minus > WORST:
        settings, errors = run.params, _releases_error(run.params)
        enough = round_advice(epsilon_for(WORST, units, settings.aggregation.delta))
        what = "a mean error" if errors else "an accuracy"
        points = "% of the largest possible error" if errors else "percentage points"
        raise SettingError(
            f"evaluation.epsilon={settings.evaluation.epsilon:g} would release {what} with an interval of "
            f"±{100 * plus_minus:.0f} {points}, because only {units:,} {settings.privacy.unit}s are held out. Set "
            f"evaluation.epsilon={enough:g} for ±{100 * WORST:.0f} points, hold out more (data.test_fraction), or set "
            "evaluation.epsilon=null. Nothing was charged."
        )


def release_accuracy(run: Run, dataset: Dataset) -> None:
    """Release the run's noisy accuracy through the ledger, or write a note without it."""
    mechanism = accuracy_mechanism(run.params)
    if mechanism is None:
        write_json(run.folders.accuracy, {"accuracy": None, "summary": NONE})
        return
    units = held_out_units(run, dataset)
    check_use(run, mechanism, count_units(units))
    shares = shares_of_units(right_answers(run, dataset), units)
    places = _places(run, dataset, units)
    arrays = {"shares": (shares, "<f8"), **{f"column {number}": (one, "<i8") for number, one in enumerate(places)}}
    inputs = {
        "accuracy": digest_of_arrays("terrine noised accuracy 1", arrays, site_key(run)),
        "student": file_digest(run.folders.student / MANIFEST),
    }
    noise = make_noise(run, "accuracy")

    def draw() -> dict[str, np.ndarray]:
        return {"sums": mechanism.release(shares, noise, places)}

    identity, task = identity_in_ledger(run, "accuracy"), load_task(run)
    release = release_at_price(run, identity, mechanism.event, noise, draw, inputs, tests=True, task=task)
    record_data_change(run, "accuracy", release, inputs)
    write_json(run.folders.accuracy, about_accuracy(run, mechanism, release))


def _releases_error(params: Params) -> bool:
    """Return whether a mean absolute error is released instead of an accuracy."""
    return params.data.scale is not None and bool(params.data.scale.edges)


def _places(run: Run, dataset: Dataset, units: np.ndarray) -> list[np.ndarray]:
    """Return the index of the value that each unit counts for, int64 [units], by column of the released subgroups."""
    wanted = run.params.evaluation.released_subgroups
    given, found = load_subgroups(run, dataset), []
    for column, values in wanted.items():
        if column not in given:
            raise InputError(
                f"evaluation.released_subgroups names {column}, but evaluation.subgroups has only {', '.join(given)}. "
                "Nothing was charged."
            )
        place = np.full(len(units), len(values))
        for number, value in enumerate(values):
            place[given[column] == value] = number
        _, own = np.unique(units, return_inverse=True)
        counts = np.bincount(own * (len(values) + 1) + place, minlength=(own.max() + 1) * (len(values) + 1))
        most = counts.reshape(-1, len(values) + 1).argmax(axis=1)
        found.append(np.where(most == len(values), NO_SUBGROUP, most).astype(np.int64))
    return found


def right_answers(run: Run, dataset: Dataset) -> np.ndarray:
    """Return the student's score on each test record in [0, 1]: correctness, or 1 − error/(largest error)."""
    from terrine.deployment.model import StudentModel  # imports torch, which checks of the cost do not need

    model, scale = StudentModel.load(run.folders.student, device="cpu"), dataset.scale
    predicted = model.predict(np.asarray(dataset.test_images))
    if scale is None or dataset.test_numbers is None:
        return np.asarray(dataset.decided(predicted) == dataset.test_labels)
    return scale.closeness(scale.numbers(predicted), dataset.test_numbers)


def about_accuracy(run: Run, mechanism: NoisedAccuracy, release: StoredRelease) -> dict[str, Any]:
    """Return the content of accuracy.json, from public settings and the release only."""
    sums, settings = release.arrays["sums"], run.params
    estimate = mechanism.estimate(sums)
    delta, unit, noise = settings.aggregation.delta, settings.privacy.unit, settings.aggregation.noise
    epsilon = round_up(price(release.event, delta))
    guarantee = (
        f"It is ({epsilon:g}, {delta:g})-differentially private for the held-out {unit}s and was charged in addition "
        f"to the answers. With all earlier releases about the dataset, ε={round_up(release.epsilon_total):g} was used."
        if noise == "secure"
        else "NOT PRIVATE: the noise was replayed from a seed and can be subtracted."
    )
    columns = zip(settings.evaluation.released_subgroups.items(), mechanism.of_subgroups(sums), strict=True)
    subgroups = {
        column: [{"subgroup": value, **_known(one)} for value, one in zip(values, estimates, strict=True)]
        for (column, values), estimates in columns
    }
    about: dict[str, Any] = {"accuracy": estimate.accuracy, "plus_minus": estimate.plus_minus}
    sentence = f"the student is right in {shown_accuracy(estimate.accuracy, estimate.plus_minus)} of cases"
    if _releases_error(settings) and settings.data.scale is not None:
        span = settings.data.scale.span
        error, known_to = span * (1 - estimate.accuracy), span * estimate.plus_minus
        about = {"accuracy": None, "mean_absolute_error": error, "plus_minus": known_to, "largest_error": span}
        sentence = f"the student's mean absolute error is {error:.4g} ± {known_to:.2g}"
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
        "summary": f"On the held-out {unit}s {sentence}, with the {CONFIDENCE:.0%} interval of the noise, equal weight "
        f"of every {unit}, and images classified one by one. {guarantee}",
    }


def _known(estimate: Estimate) -> dict[str, Any]:
    """Return the published figures of a subgroup; the accuracy is omitted if the noise is too large."""
    if estimate.plus_minus > 1:
        return {"accuracy": None, "plus_minus": None, "units": estimate.units}
    return {"accuracy": estimate.accuracy, "plus_minus": estimate.plus_minus, "units": estimate.units}
