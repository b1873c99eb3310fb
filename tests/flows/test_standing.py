"""A Dask cluster that stands between runs."""

import pytest
from distributed import Client
from prefect import flow
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from flows import server
from flows.execution import executor
from flows.runners import local_cluster, task_runner
from tasks.config.runner import Runner
from tasks.runtime.step import step


@step("something")
def something(number):
    """Do nothing."""


def fan_out(address):
    executor().map(something, [(0,), (1,)], ["0", "1"])
    return servers(address)


def servers(address):
    """The servers that the worker of a cluster tells about tasks."""
    with Client(address, set_as_default=False) as client:
        (told,) = client.run(
            lambda: sorted(each._client._api_url for each in EventsWorker._instances.values())
        ).values()
        return told


@pytest.mark.slow
def test_a_worker_tells_each_server_about_its_own_tasks_and_none_that_has_ended(
    prefect_server, prefect_database, tmp_path, monkeypatch
):
    monkeypatch.setattr(server, "empty_database", lambda: prefect_database)
    users, own = PREFECT_API_URL.value(), server.OwnServer(tmp_path)
    own.wait(print)

    def run(address, url):
        monkeypatch.setattr(server, "_own", own if url == own.url else None)
        runner = task_runner(Runner(kind="dask", address=address))
        with temporary_settings({PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            return flow(fan_out, task_runner=runner)(address), servers(address)

    try:
        with local_cluster(1) as cluster:
            assert run(cluster.scheduler_address, users) == ([users], [users])
            assert run(cluster.scheduler_address, own.url) == (sorted([users, own.url]), [users])
            own.end()
            assert run(cluster.scheduler_address, users) == ([users], [users])
    finally:
        own.end()
