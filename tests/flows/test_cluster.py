"""A cluster that cannot do the work is found out in a sentence, before the work."""

import socket
import threading

import pytest

from flows.cluster import check_cluster
from flows.runners import local_cluster, task_runner
from tasks.config.params import validate
from tasks.config.sections import Runner
from terrine.errors import SettingError
from terrine.ports import free_ports


def at(address, kind="dask"):
    return Runner(kind=kind, address=address)


@pytest.fixture
def free_port():
    return free_ports()[0]


@pytest.fixture
def somebody_else():
    """A server that accepts and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        kept = []

        def serve():
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_without_an_address_nobody_is_asked(tmp_path):
    assert check_cluster(Runner(kind="dask"), tmp_path) == []
    assert check_cluster(Runner(), tmp_path) == []


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_an_address_nobody_answers_is_refused(kind, free_port, tmp_path):
    with pytest.raises(SettingError, match=rf"127\.0\.0\.1:{free_port}: nobody answers there .*runner\.address=null"):
        check_cluster(at(f"tcp://127.0.0.1:{free_port}", kind), tmp_path)


def test_an_address_that_swallows_everything_is_refused_within_half_a_minute(tmp_path, monkeypatch):
    waited = []

    def silent(address, timeout):
        waited.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", silent)
    with pytest.raises(SettingError, match=r"nobody answers there \(no answer within 10 seconds\)"):
        check_cluster(at("tcp://192.0.2.1:8786"), tmp_path)
    assert sum(waited) <= 30


@pytest.mark.parametrize("address", ["head-node", "tcp://head-node", "tcp://:8786", "http//x:1", "tcp://a b:1"])
def test_what_is_no_address_is_refused_with_an_example(address, tmp_path):
    with pytest.raises(SettingError, match=r"is no address of a cluster\. Write it like tcp://head-node:8786"):
        check_cluster(at(address), tmp_path)


def test_somebody_else_behind_the_address_is_found_out(somebody_else, tmp_path):
    with pytest.raises(SettingError, match="something answers there, but not as a Dask scheduler"):
        check_cluster(at(f"tcp://127.0.0.1:{somebody_else}"), tmp_path, seconds=2)


@pytest.mark.slow
def test_workers_are_asked_whether_they_see_the_project(tmp_path):
    with local_cluster(1) as cluster:
        settings = at(cluster.scheduler_address)
        with pytest.raises(SettingError, match=r"1 of 1 workers cannot work here.*it does not see .*mount the project"):
            check_cluster(settings, tmp_path)
        (tmp_path / "params.yaml").write_text("run: small\n")
        assert check_cluster(settings, tmp_path) == []


def test_a_cluster_without_workers_is_waited_for_and_it_is_said(tmp_path):
    from distributed import Scheduler, SpecCluster

    options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
    with SpecCluster(scheduler={"cls": Scheduler, "options": options}) as cluster:
        (line,) = check_cluster(at(cluster.scheduler_address), tmp_path)
    assert "no worker yet" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "threads", "address": "tcp://a:1"}, r"address=tcp://a:1 needs runner\.kind=dask or ray"),
        ({"kind": "dask", "address": "tcp://a:1", "workers": 2}, r"workers=2 has no meaning beside runner\.address"),
        ({"kind": "slurm"}, r"runner\.kind"),
        ({"workers": 0}, r"runner\.workers"),
        ({"kind": "dask", "address": ""}, r"runner\.address"),
    ],
)
def test_impossible_runners_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        validate({"data": {"public_benchmark": True}, "runner": settings})


def test_ray_that_is_not_installed_is_asked_for(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    with pytest.raises(SettingError, match=r"runner\.kind=ray needs packages.*pip install 'terrine\[ray\]'"):
        task_runner(Runner(kind="ray"))


def test_a_run_with_an_address_nobody_answers_ends_before_any_work(project, prefect_server, free_port):
    from flows.pipeline import pipeline

    with pytest.raises(SettingError, match=rf"{free_port}: nobody answers there"):
        pipeline(overrides=["runner.kind=dask", f"runner.address=tcp://127.0.0.1:{free_port}"])
    # The key alone, with which the run got a name that does not show the address.
    assert [path.name for path in (project / "data").glob("private/**/*") if path.is_file()] == ["key"]
