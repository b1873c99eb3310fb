"""kill -9 at every step of a release: running again gives one release, charged once, the same labels if any were."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from terrine import files
from terrine.privacy.accounting.events import RepeatedEvent
from terrine.privacy.ledger import chain, database, release_protocol, release_store
from tests.processes import process
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask

RESERVED = RepeatedEvent(ANSWER, 3)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Die as `owner.name` is about to be called."""
    original = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            die()
        return original(*arguments, **options)

    setattr(owner, name, dying)


def after(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Die as soon as `owner.name` has done its work."""
    original = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if when(*arguments):
            die()
        return result

    setattr(owner, name, dying)


def _is(kind: str) -> Callable[..., bool]:
    return lambda _, row: row.kind == kind


def _ends_with(kind: str) -> Callable[..., bool]:
    """Match the head about to be written after a row of this kind; the rows are register, reserve, commit."""
    return lambda _, head: head.count == {"reserve": 2, "commit": 3}[kind]


# Crash point, True if the labels are stored at that point, and the number of releases charged.
STEPS: dict[str, tuple[Callable[[], None], bool, int]] = {
    "before the reservation": (lambda: before(release_protocol.ReleaseProtocol, "charge"), False, 0),
    "inside the reservation's transaction": (lambda: after(database.Transaction, "append", _is("reserve")), False, 0),
    "reserved, head not written": (lambda: before(chain.Tip, "advance", _ends_with("reserve")), False, 1),
    "reserved, head under another name": (lambda: before(files.os, "replace"), False, 1),
    "reserved": (lambda: after(release_protocol.ReleaseProtocol, "charge"), False, 1),
    "drawn, nothing written": (lambda: before(release_store.ReleaseStore, "write"), False, 1),
    "half written": (lambda: before(files.os, "fsync"), False, 1),
    "written under another name": (lambda: before(files.os, "link"), False, 1),
    "in place, still under both names": (lambda: after(files.os, "link"), True, 1),
    "stored": (lambda: after(release_store.ReleaseStore, "write"), True, 1),
    "inside the commit's transaction": (lambda: after(database.Transaction, "append", _is("commit")), True, 1),
    "committed, head not written": (lambda: before(chain.Tip, "advance", _ends_with("commit")), True, 1),
    "committed": (lambda: after(release_protocol.ReleaseProtocol, "commit"), True, 1),
}


def killed(work: Callable[[], Any]) -> None:
    """Do something in a process that dies on the way."""
    dying = process(work)
    dying.start()
    dying.join(120)
    assert dying.exitcode == -signal.SIGKILL


def crash(place: Any, arrange: Callable[[], None], note: Path) -> None:
    """Run a release in a process that dies on the way; the note says what it had drawn."""

    def run() -> None:
        book = place.open()
        draw = Draw()

        def noted() -> Any:
            arrays, event = draw()
            note.write_text(json.dumps(arrays["labels"].tolist()))
            return arrays, event

        arrange()
        ask(book, "release", noted, worst_case=RESERVED)

    killed(run)


def check(place: Any, note: Path, stored: bool, charged: int) -> None:
    book, draw = place.open(), Draw()
    before_again = book.events(DATASET)
    assert len(before_again) == charged
    assert set(before_again) <= {ANSWER, RESERVED}
    release = ask(book, "release", draw, worst_case=RESERVED)
    assert release.reused == stored
    assert len(draw.drawn) == (0 if stored else 1)
    assert release.arrays["labels"].tolist() == (json.loads(note.read_text()) if stored else draw.drawn[0].tolist())
    assert book.events(DATASET) == [ANSWER]
    assert [row.kind for row in book.rows()] == ["register", "reserve", "commit"]
    assert book.verify() == 3
    again = ask(book, "release", draw, worst_case=RESERVED)
    assert again.arrays["labels"].tolist() == release.arrays["labels"].tolist()
    left = {path.name for path in place.store.iterdir()}
    assert {"head.json", "release.npz"} <= left
    assert not [name for name in left if name.endswith(".tmp")], "an abandoned draw must not stay"


@pytest.mark.parametrize("step", STEPS)
def test_a_release_killed_on_the_way_is_made_once_and_charged_once(step: str, place: Place, tmp_path: Path) -> None:
    arrange, stored, charged = STEPS[step]
    place.open().register(DATASET, 2.0, 1e-5, "release")
    crash(place, arrange, tmp_path / "note")
    check(place, tmp_path / "note", stored, charged)


@pytest.mark.parametrize("any_place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("step", ["inside the reservation's transaction", "drawn, nothing written", "stored"])
def test_a_release_killed_on_the_way_in_the_other_database(step: str, any_place: Place, tmp_path: Path) -> None:
    arrange, stored, charged = STEPS[step]
    any_place.open().register(DATASET, 2.0, 1e-5, "release")
    crash(any_place, arrange, tmp_path / "note")
    check(any_place, tmp_path / "note", stored, charged)


def test_killed_at_one_step_after_the_other_it_is_still_one_release(place: Place, tmp_path: Path) -> None:
    place.open().register(DATASET, 2.0, 1e-5, "release")
    for step in ("reserved", "half written", "inside the commit's transaction"):
        crash(place, STEPS[step][0], tmp_path / "note")
    check(place, tmp_path / "note", stored=True, charged=1)


@pytest.mark.parametrize("owner", [(chain.Tip, "advance"), (database.Database, "_create_table")])
def test_a_ledger_killed_while_it_began_begins_again(owner: tuple[Any, str], place: Place, tmp_path: Path) -> None:
    for kill in (before, after):
        killed(lambda kill=kill: (kill(*owner), place.open().register(DATASET, 2.0, 1e-5, "release")))
    place.open().register(DATASET, 2.0, 1e-5, "release")
    check(place, tmp_path / "note", stored=False, charged=0)
