"""A Dask cluster that stands carries tasks of several runs, each of which may have a Prefect server of its own.

Prefect keeps one connection for events in a process, whatever server a task belongs to. A worker would tell the server
of its first run about the tasks of all others; that one does not know them and ends with its run, and every event after
that is an error with a traceback in the worker's log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

from distributed import WorkerPlugin
from prefect.events import utilities
from prefect.events.clients import EventsClient, PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.settings import PREFECT_API_URL
from prefect_dask import DaskTaskRunner, PrefectDaskClient

from flows import server


class EventsByServer(EventsWorker):
    """Sends events to the server of the task that they are about: one for each server in a process."""

    @classmethod
    def instance(cls, client_type: type[EventsClient] | None = None) -> EventsWorker:
        url = PREFECT_API_URL.value()
        if client_type is not None or cls._client_override is not None or url is None or emit_events_to_cloud():
            return super().instance(client_type)
        return cls._of(url)

    @classmethod
    def _of(cls, url: str) -> EventsWorker:
        return super(EventsWorker, cls).instance(PrefectEventsClient, (("api_url", url),))

    @classmethod
    def end(cls, url: str) -> None:
        """Send what waits to be sent to this server, and close the connection; there may be none."""
        with cls._instance_cache_lock:
            ours = [each for each in cls._instances.values() if dict(each.client_options).get("api_url") == url]
        for each in ours:
            each.drain()


class Events(WorkerPlugin):
    """Has a worker tell each server about its own tasks, for as long as a run uses the cluster.

    Args:
        ending: The server that ends after the run, which nobody else has.
    """

    def __init__(self, ending: str | None) -> None:
        self._ending = ending

    def setup(self, worker: Any) -> None:
        utilities.EventsWorker = EventsByServer  # type: ignore[misc]  # where Prefect looks it up for each event

    async def teardown(self, worker: Any) -> None:
        if self._ending is not None:
            await asyncio.to_thread(EventsByServer.end, self._ending)


class StandingDask(DaskTaskRunner):  # type: ignore[type-arg]
    """Prefect's runner for Dask, on a cluster that is there before the run and after it."""

    @property
    def client(self) -> PrefectDaskClient:
        """The connection, made when it is first asked for: workers have a runner with every task, and never submit."""
        connected = self._client is not None
        client = super().client
        if not connected:
            name, ending = f"terrine-{uuid4()}", PREFECT_API_URL.value() if server.is_own() else None
            client.register_plugin(Events(ending), name=name)
            self._exit_stack.callback(self._leave, name)
        return client

    def _leave(self, name: str) -> None:
        with suppress(Exception):  # of workers that are gone: the work is done
            self.client.unregister_worker_plugin(name)
