"""Releases of each stage of the main pipeline, as proposed for approval (`tasks.runtime.approval`)."""

from __future__ import annotations

import math

from tasks.artefacts.averages import rounds
from tasks.artefacts.released import sums_over_records
from tasks.artefacts.teachers import read_votes
from tasks.runtime.accounts import open_account, site_key
from tasks.runtime.approval import Proposal
from tasks.runtime.parameters import signal_of_run
from tasks.runtime.release_identity import input_digests
from tasks.runtime.releases import (
    CENTRE,
    Release,
    averaging_mechanism,
    identity_in_ledger,
    inputs_cost,
    list_releases,
    name_of,
    plan_votes,
)
from tasks.runtime.run import Run
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.aggregation.release import SALT
from terrine.aggregation.sums import mu_left
from terrine.data.content_digest import digest_of_arrays
from terrine.files import file_digest
from terrine.planning import ADVISED_OF_SUMS, ENOUGH_OF_SUMS, judge_sums, judge_votes
from terrine.privacy.accounting.events import Event, compose


def propose_averages(run: Run) -> Proposal:
    """Return the averages of teachers, one release per round; none if they are not released with noise."""
    averaging, found = averaging_mechanism(run.params), []
    if averaging is not None:
        events = {number: averaging.event(1) for number in range(rounds(run))}
        events |= {CENTRE: averaging.centre_mechanism.event} if averaging.centred else {}
        found = [
            Release("averages", identity_in_ledger(run, "averages", number), event)
            for number, event in sorted(events.items())
        ]
    return _proposal(
        run, found, f"the run asks again for its answers; all together ε ≤ {run.params.aggregation.epsilon:g}"
    )


def propose_answers(run: Run) -> Proposal:
    """Return moments, answers or sums, and the accuracy, which later depends on no additional private settings."""
    mechanism, queries = run.params.aggregation, file_digest(run.folders.images / "manifest.json")
    if sums_over_records(run):
        before = inputs_cost(run.params)
        added = mechanism.schedule(mu_left(mechanism.epsilon, mechanism.delta, before)).event_added
        releases = [one for one in list_releases(run) if one.kind in ("moments", "answers", "accuracy")]
        rest = [one.worst_case for one in releases if one.kind != "answers"]
        return _proposal(run, releases, expect_sums(run), compose(*rest, added), queries=queries)
    votes = read_votes(run.folders)
    digest = digest_of_arrays("terrine votes 1", {"votes": (votes, "<i8")}, site_key(run))
    releases = [
        one
        for one in list_releases(run, len(votes) * mechanism.findings)
        if one.kind in ("moments", "answers", "accuracy")
    ]
    return _proposal(run, releases, expect_votes(run), votes=digest, queries=queries)


def propose_accuracy(run: Run) -> Proposal:
    """Return the accuracy, if it is released. The accuracy is usually approved together with the answers."""
    return _proposal(run, [one for one in list_releases(run) if one.kind == "accuracy"])


def _proposal(
    run: Run, releases: list[Release], expected: str | None = None, added: Event | None = None, **inputs: str
) -> Proposal:
    ledger, account = open_account(run)
    digests = input_digests(run, records=run.folders.dataset_manifest()["fingerprint"], **inputs)
    del digests[SALT]
    delta = run.params.aggregation.delta
    names = [name_of(run.params, one.kind) for one in releases]
    classes = ", ".join(run.folders.dataset_manifest()["class_names"])
    what = f"{' and '.join(dict.fromkeys(names))}, for the classes {classes}"
    return Proposal(ledger, account, releases, digests, run.params.privacy.unit, delta, added, expected, what)


def expect_votes(run: Run) -> str | None:
    """Describe the expected usefulness of noisy histograms of votes; None for other mechanisms."""
    mechanism, names = run.params.aggregation, run.folders.dataset_manifest()["class_names"]
    if not isinstance(mechanism, GaussianHistogram):
        return None
    plan = plan_votes(run.params, len(names))
    asked = f"{plan.queries:,} answers of {plan.teachers:,} teachers"
    return f"{asked} with noise of {plan.sigma:.1f} votes: {judge_votes(plan)}{_despite(run)}"


def expect_sums(run: Run) -> str | None:
    """Describe the expected usefulness of noisy sums; None if the number of features is not public.

    If the number of units is private, the text states how many are needed.
    """
    params, names = run.params, run.folders.dataset_manifest()["class_names"]
    features, units = getattr(params.backbone, "projection", None), params.privacy.units
    if features is None:
        return None
    strength = signal_of_run(params, 1, len(names), features + 1)  # of one unit, or of the declared number
    noised = f"{params.aggregation.numbers(features + 1, len(names)):,} noisy sums"
    if units is None:
        least, better = (math.ceil(signal / strength) for signal in (ENOUGH_OF_SUMS, ADVISED_OF_SUMS))
        return (
            f"{noised}; a useful student needs at least {least:,} {params.privacy.unit}s, better {better:,}; how "
            f"many there are is private: see terrine check{_despite(run)}"
        )
    return f"{noised} over about {units:,} {params.privacy.unit}s: {judge_sums(strength)}{_despite(run)}"


def _despite(run: Run) -> str:
    return ". privacy.anyway=true: the run continues even if check advises against it" * run.params.privacy.anyway
