"""Processes of one project wait for each other where they must, and clear away what the dead have left."""

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from tasks.runtime.locks import at_work, making, when_alone
from tasks.runtime.store import Folders, project_leftovers, remove_leftovers, run_leftovers


def test_a_run_is_made_by_one_at_a_time_and_whoever_waits_says_so(tmp_path, caplog):
    begun, told, done = Event(), Event(), []

    def make(name, wait):
        with making(tmp_path, "small"):
            begun.set()
            if wait:
                told.wait(20)
            done.append(name)

    class Told(logging.Handler):
        def emit(self, record):
            told.set()

    logger = logging.getLogger("terrine.locks")
    logger.addHandler(handler := Told(logging.WARNING))
    try:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(make, "first", True)
            begun.wait(20)
            with making(tmp_path, "another"):  # is not waited for
                pass
            second = pool.submit(make, "second", False)
            first.result()
            second.result()
    finally:
        logger.removeHandler(handler)
    assert done == ["first", "second"]
    assert [record.getMessage() for record in caplog.records] == [
        "Another process is making small: waiting until it is done."
    ]


def test_what_the_dead_left_is_cleared_when_nobody_makes_a_run_and_nothing_else_is(tmp_path):
    folders = Folders(tmp_path, "small")
    shared = folders.shared("backbone", "1234")
    dead = [
        folders.dataset / ".train.npy.0123456789ab.tmp",
        folders.private / f".votes.{32 * 'a'}.tmp" / "votes.npy",
        folders.release / f".answers.{32 * 'a'}.old" / "answers.parquet",
        shared / ".checkpoint.0123456789ab.tmp",
        tmp_path / ".dvc.lock.0123456789ab.tmp",
        tmp_path / ".mlflow.db.k3_x0q9z.tmp" / "fresh.db",
        tmp_path / "experiments" / ".small-00.yaml.0123456789ab.tmp",
    ]
    kept = [
        folders.dataset / "train.npy",
        shared / "manifest.json",
        Folders(tmp_path, "other").private / ".votes.0123456789ab.tmp",  # of a run that another process may be making
        tmp_path / "data" / "private" / "ledger" / "releases" / ".0.npz.0123456789ab.tmp",  # somebody else's, maybe
        tmp_path / ".notes.tmp",
        tmp_path / ".notes.old",
    ]
    cache = tmp_path / ".dvc" / "cache" / "files" / "md5"
    dead += [
        cache / "cd" / "emptied by a power cut",
        cache / f".{22 * 'a'}.tmp",
        cache / "ab" / f"cdef.{11 * 'a-'}.tmp",
    ]
    dead += [folders.private / ".YejvyA83k6GkM9f4cF4ipg.tmp", folders.student / f"head.safetensors.{11 * '_B'}.tmp"]
    kept += [cache / "ab" / "cdef", cache / "ab" / "cdef.tmp"]
    kept += [Folders(tmp_path, "other").private / f".{22 * 'a'}.tmp"]
    kept += [cache / "d4" / "1d8cd98f00b204e9800998ecf8427e"]  # an empty file
    for path in (*dead, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "cache" in path.parts and path.parent.name != "ab" else "content")
    remove_leftovers(run_leftovers(folders) + project_leftovers(tmp_path))
    assert [path for path in dead if path.exists()] == []
    assert all(path.exists() for path in kept)


def test_what_runs_share_is_cleared_by_one_that_is_alone(tmp_path):
    calls = []
    when_alone(tmp_path, lambda: calls.append("first"))
    with making(tmp_path, "small"), making(tmp_path, "other"):
        when_alone(tmp_path, lambda: calls.append("beside others"))
    when_alone(tmp_path, lambda: calls.append("last"))
    assert calls == ["first", "last"]


def test_who_is_at_work_waits_for_no_run_and_is_not_alone(tmp_path):
    done = []
    with making(tmp_path, "one"), at_work(tmp_path):
        when_alone(tmp_path, lambda: done.append("beside a run"))
    with at_work(tmp_path):
        when_alone(tmp_path, lambda: done.append("beside other work"))
    when_alone(tmp_path, lambda: done.append("alone"))
    assert done == ["alone"]
