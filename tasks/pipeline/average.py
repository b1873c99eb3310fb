"""average: all rounds, except the last, in which teachers average their models (docs/components.md).

In each round, groups of teachers take local steps in parallel tasks, and the averages of their updates start the next
round. Private averages are releases: each round has its own release ID, is charged before its noise is drawn, and is
drawn once. Averages stay in the private zone because only teachers need them. The cost of the averages composes with
that of the votes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.averages import AVERAGE, OWN, rounds, write_averages
from tasks.artefacts.records import in_groups
from tasks.artefacts.teachers import group_name, load_records, teacher_context, teacher_inputs
from tasks.config.values import digest
from tasks.runtime.accounts import ledger_account, release_at_price
from tasks.runtime.release_identity import input_digests, record_data_change
from tasks.runtime.releases import CENTRE, averaging_mechanism, check_releases, identity_in_ledger, make_noise
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_array, read_json, read_tensors, write_array, write_json, write_tensors
from tasks.runtime.task import load_task
from terrine.device import resolve_device
from terrine.privacy.accounting.events import Event, NonPrivateEvent, to_json
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.noise import NoiseSource, check_slack
from terrine.teachers.averaging.averaged import AveragedTeachers, centre_records, party_means
from terrine.teachers.averaging.learners import Learner
from terrine.teachers.averaging.ttac import Average, derived_control, local_round, mean_over_groups, server_step

CENTRE_FILE = "centre.npy"


def groups(run: Run) -> list[range]:
    """Return the groups of teachers whose local steps form one task."""
    return in_groups(run.params.partition.teachers, run.params.teachers.per_task)


def averaging_folder(run: Run) -> Path:
    """Return the folder of intermediate results for exactly these inputs."""
    aggregation = run.params.aggregation
    budget = {name: getattr(aggregation, name) for name in ("epsilon", "delta", "noise")}
    return run.folders.work / f"average-{digest({**teacher_inputs(run), 'account': ledger_account(run), **budget})}"


def _round_folder(run: Run, number: int) -> Path:
    return averaging_folder(run) / f"round-{number:04d}"


def make_learner(run: Run) -> Learner:
    """Return the learner, which trains and votes; see `AveragedTeachers.make_learner`."""
    return run.params.teachers.make_learner(teacher_context(run))


@step("check the budget of averages")
def check_budget(run: Run) -> None:
    """Check that the budget covers averages and votes, before anything is charged.

    Raises:
        SettingError: If the rounding grid of the noise leaves no guarantee.
        BudgetError: If the account's budget does not cover the run.
    """
    averaging = averaging_mechanism(run.params)
    if averaging is None:
        return
    aggregation = run.params.aggregation
    learner = make_learner(run)
    averaging.mechanism.clipped(np.zeros((1, learner.length)))
    check_slack(_coordinates(run), aggregation.epsilon, aggregation.delta, "aggregation.epsilon")
    check_releases(run)


@step("centre")
def release_centre(run: Run) -> None:
    """Release the centre of all parties' features, unless it is on disk or not used."""
    path = averaging_folder(run) / CENTRE_FILE
    learner = make_learner(run)
    if not learner.centred or path.is_file():
        return
    means = party_means(load_records(run, learner.inputs), range(run.params.partition.teachers))
    averaging = averaging_mechanism(run.params)
    if averaging is None:
        write_array(path, means.mean(axis=0))
        return
    noise, event = make_noise(run, "averages", CENTRE), averaging.centre_mechanism.event
    release = _release(run, CENTRE, event, noise, lambda: {"centre": averaging.release_centre([means], noise)})
    write_array(path, release.arrays["centre"])


def _release(
    run: Run, number: int, event: Event, noise: NoiseSource, draw: Callable[[], dict[str, np.ndarray]]
) -> StoredRelease:
    """Release through the ledger under the release ID of this round."""
    identity = identity_in_ledger(run, "averages", number)
    inputs = input_digests(run, records=run.folders.dataset_manifest()["fingerprint"])
    release = release_at_price(run, identity, event, noise, draw, inputs, task=load_task(run))
    record_data_change(run, "averages", release, inputs)
    return release


@step("local steps", retries=2)
def local_steps(run: Run, number: int, teachers: range) -> None:
    """Take the local steps of a group of teachers in round `number`, unless they are on disk."""
    folder = _round_folder(run, number)
    path = folder / group_name(teachers)
    if path.is_file() or (folder / AVERAGE).is_file():
        return
    learner = make_learner(run)
    records = load_records(run, learner.inputs)
    if learner.centred:
        records = centre_records(records, teachers, read_array(averaging_folder(run) / CENTRE_FILE))
    local = local_round(
        learner,
        _start_of(run, number, learner),
        np.asarray(_own_before(run, number, learner)[teachers.start : teachers.stop]),
        records,
        teachers,
        run.params.teachers,
        number,
        seed=run.params.seed,
        device=resolve_device(run.params.device),
    )
    write_tensors(path, {"update": local.update, "own": local.own})


@step("average")
def combine(run: Run, number: int, groups: list[range]) -> None:
    """Average the updates of all groups in round `number`, with noise through the ledger if they are private."""
    folder = _round_folder(run, number)
    if (folder / AVERAGE).is_file():
        return
    learner = make_learner(run)
    start, before = _start_of(run, number, learner), _own_before(run, number, learner)
    parts = [read_tensors(folder / group_name(group)) for group in groups]
    updates, own = [part["update"] for part in parts], np.concatenate([part["own"] for part in parts])
    averaging, settings = averaging_mechanism(run.params), run.params.teachers
    assert isinstance(settings, AveragedTeachers)
    history: dict[str, Any] = _figures(updates, None if averaging is None else settings.clip)
    if averaging is None:
        update, change = mean_over_groups(updates), mean_over_groups([own - before])
    else:
        noise, event = make_noise(run, "averages", number), averaging.event(1)
        release = _release(run, number, event, noise, lambda: {"update": averaging.release(updates, noise)})
        update = release.arrays["update"]
        change = derived_control(start, update, settings, number)
        history["release_id"] = release.release_id
    after = server_step(start, update, change, settings)
    write_array(folder / OWN, own)
    write_json(folder / "history.json", {"round": number, **history})
    write_tensors(folder / AVERAGE, {"value": after.value, "control": after.control})
    for group in groups:
        (folder / group_name(group)).unlink(missing_ok=True)
    if number:
        (_round_folder(run, number - 1) / OWN).unlink(missing_ok=True)


@step("collect averages")
def collect_averages(run: Run) -> None:
    """Write the artefact: last average, control variates, cost and private figures."""
    count = rounds(run)
    last = _round_folder(run, count - 1)
    averaging = averaging_mechanism(run.params)
    about: dict[str, Any] = {"averages": count, "mode": run.params.teachers.mode}
    if averaging is not None:
        about |= averaging.describe() | {
            "vectors": count + averaging.centred,
            "coordinates": _coordinates(run),
            "noise": run.params.aggregation.noise,
        }
    centre = averaging_folder(run) / CENTRE_FILE
    arrays = {"centre": read_array(centre)} if centre.is_file() else {}
    write_averages(
        run,
        read_tensors(last / AVERAGE) | arrays,
        read_array(last / OWN),
        **about,
        event=to_json(NonPrivateEvent() if averaging is None else averaging.whole_event()),
        history=[read_json(_round_folder(run, number) / "history.json") for number in range(count)],
    )
    shutil.rmtree(averaging_folder(run), ignore_errors=True)


def _coordinates(run: Run) -> int:
    """Return the number of noisy values in all averages."""
    averaging, learner = averaging_mechanism(run.params), make_learner(run)
    if averaging is None:
        return 0
    released = rounds(run) * learner.length
    return released + (teacher_context(run).backbone().feature_dim if averaging.centred else 0)


def _start_of(run: Run, number: int, learner: Learner) -> Average:
    """Return the average at the start of round `number`."""
    if number == 0:
        return Average.start(learner)
    arrays = read_tensors(_round_folder(run, number - 1) / AVERAGE)
    return Average(arrays["value"], arrays["control"])


def _own_before(run: Run, number: int, learner: Learner) -> np.ndarray:
    """Return the teachers' control variates before round `number`, [teachers, P]."""
    if number == 0:
        return np.zeros((run.params.partition.teachers, learner.length), learner.initial().numpy().dtype)
    return read_array(_round_folder(run, number - 1) / OWN, memory_map=True)


def _figures(updates: list[np.ndarray], clip: float | None) -> dict[str, float]:
    """Return private figures of a round: norms of updates and the share of updates that is clipped."""
    norms = np.array([np.linalg.norm(update) for group in updates for update in group])
    found = {"update_norm_median": float(np.median(norms)), "update_norm_largest": float(norms.max())}
    return found if clip is None else found | {"clipped_share": float((norms > clip).mean())}
