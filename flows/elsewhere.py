"""A stage that a deployment makes on another machine, and what becomes of a run whose other machine dies.

A job that its cluster ends, a machine that loses its power and a pod that is evicted leave a flow run on the server
that is Pending or Running for ever. Whoever waits for it looks at its state and at the heartbeats that Prefect sends
for a flow that runs; where both are silent for long, the flow run is declared crashed. A crashed one is handed over
again: a stage goes on from what it had finished.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed

from flows.stopping import at_the_end
from terrine.errors import SettingError, TerrineError

TRIES = 3
"""How often a stage is handed over whose maker crashes."""
LONGEST_SILENCE = 900.0
"""Seconds without a new state or heartbeat after which a flow run has nobody who makes it: five of Prefect's heartbeats
(PREFECT_FLOWS_HEARTBEAT_FREQUENCY), and as long as a machine may take to begin."""
PAUSE = 5.0
"""Seconds between two looks."""


def make_elsewhere(deployment: str, run: str, stage: str, name: str) -> None:
    """Have a deployment make a stage of a run, under this name, and wait until it is made.

    Raises SettingError where there is no such deployment, TerrineError where the stage failed there or crashed as
    often as it is tried.
    """
    log = get_run_logger()
    for remaining in reversed(range(TRIES)):
        ended = _wait(_hand_over(deployment, run, stage, name), f"Stage {stage}, for the deployment {deployment},", log)
        if ended.is_completed():
            return
        if not ended.is_crashed() or not remaining:
            how = f"{ended.name}: {ended.message}"
            raise TerrineError(f"Stage {stage} was to be made by the deployment {deployment}, and ended as {how}")
        log.warning("Stage %s crashed at the deployment %s and is handed over again", stage, deployment)


def _hand_over(deployment: str, run: str, stage: str, name: str) -> UUID:
    """Return the identity of the flow run that a worker will take."""
    try:
        return run_deployment(deployment, parameters={"run": run, "stage": stage}, flow_run_name=name, timeout=0).id
    except ObjectNotFound:
        raise SettingError(
            f"runner.elsewhere has the deployment {deployment} make {stage}, and your server knows none of that name. "
            "`prefect deploy --all` registers those of prefect.yaml"
        ) from None


def _wait(flow_run_id: UUID, what: str, log: logging.Logger | logging.LoggerAdapter) -> State:
    """Return the state in which a flow run ended; one that nobody makes any more ends as crashed."""
    with get_client(sync_client=True) as client, _cancelled_when_stopped(flow_run_id):
        last, heard = None, time.monotonic()
        while True:
            state = client.read_flow_run(flow_run_id).state
            if state.is_final():
                return state
            sign = (state.id, None if state.is_scheduled() else _last_heartbeat(client, flow_run_id))
            if sign != last:
                last, heard = sign, time.monotonic()
            elif time.monotonic() - heard > LONGEST_SILENCE:
                if not state.is_scheduled():
                    nobody = f"nothing was heard of it for {LONGEST_SILENCE / 60:.0f} minutes"
                    return client.set_flow_run_state(flow_run_id, Crashed(message=nobody), force=True).state or state
                # In a queue it may wait for as long as it takes, but whoever reads the log should know.
                log.warning("%s waits for a worker that takes it", what)
                heard = time.monotonic()
            time.sleep(PAUSE)


def _last_heartbeat(client: SyncPrefectClient, flow_run_id: UUID) -> UUID | None:
    asked = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{flow_run_id}"]),
    )
    events = client.read_events(asked, limit=1).events  # the newest first
    return events[0].id if events else None


@contextmanager
def _cancelled_when_stopped(flow_run_id: UUID) -> Iterator[None]:
    """Call the other machine off where nobody waits for it any more: the next run would make the stage beside it."""

    def call_off() -> None:
        # Nobody is left to hear of a server that does not answer.
        with suppress(Exception), get_client({"timeout": 1.0}, sync_client=True) as client:
            state = client.read_flow_run(flow_run_id).state
            if state is not None and not state.is_final():
                over = Cancelled if state.is_scheduled() else Cancelling
                client.set_flow_run_state(flow_run_id, over(message="the run was stopped"), force=True)

    with at_the_end(call_off):
        try:
            yield
        except BaseException:
            call_off()
            raise
