"""What a release costs in a ledger of so many rows, beside the plain form, in which every transaction reads all rows.

    python benchmarks/ledger.py --rows 1000 10000 100000
    python benchmarks/ledger.py --rows 100000 --url postgresql://terrine@/postgres?host=/tmp/server
    python benchmarks/ledger.py --people 1000000     # what it costs to recognise so many records

Rows are written at once, with the keys and sums that a ledger writes one by one: half of them reserve a release of one
account, half commit it. Noise levels differ from release to release (`--levels`), so that nothing is counted up
that would not be in practice. A release is all of `Ledger.release`, from opening the ledger to the committed row; its
noise is drawn in no time.
"""

import contextlib
import json
import secrets
import statistics
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import numpy as np
from cells import common_options

from terrine.errors import LedgerError
from terrine.privacy.accounting.events import Event, GaussianEvent, LaplaceEvent, to_json
from terrine.privacy.ledger.chain import Head, Row, Tip, row_after
from terrine.privacy.ledger.database import _ROWS, Database
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.people import PUBLIC, TAUGHT, People
from terrine.privacy.ledger.snapshot import LedgerSnapshot

KEY = bytes(range(32))
DATASET = "people"
DELTA = 1e-5
PEOPLE = People.of(np.random.default_rng(0).integers(1, 2**63, 2048).astype(np.uint64))


def event_of(number: int, levels: int, laplace: bool) -> Event:
    """Return what release `number` costs: little, at one of so many levels of noise."""
    scale = 1e6 + number % levels
    return LaplaceEvent(2.0, scale) if laplace else GaussianEvent(1.0, scale)


def filled(url: str, store: Path, rows: int, levels: int, laplace: bool) -> None:
    """Write a ledger of so many rows, its head, and empty files in the place of its releases."""
    store.mkdir(parents=True)
    database, snapshot, written = Database(url), LedgerSnapshot(), "2026-11-22T12:00:00+00:00"
    chain: list[Row] = []

    def add(kind: str, release: str | None, body: dict) -> None:
        last = chain[-1] if chain else None
        chain.append(row_after(last, KEY, kind=kind, dataset=DATASET, release_id=release, body=body, written=written))
        snapshot.add(chain[-1])

    add("register", None, {"epsilon": 8.0, "delta": DELTA, "mode": "release"})
    while len(chain) < rows:
        event, release = to_json(event_of(len(chain), levels, laplace)), f"{len(chain):064x}"
        add("reserve", release, {"event": event, "noise": "secure", "run": "run"})
        add("commit", release, {"event": event, "noise": "secure", "digest": release})
        (store / f"{release}.npz").touch()
    with database._engine.begin() as connection:
        connection.execute(_ROWS.insert(), [asdict(row) for row in chain])
        # As the server does by itself within a minute of so many new rows.
        connection.exec_driver_sql("ANALYZE")
    Tip(store / "head.json", KEY).advance(Head.at(chain[-1], snapshot.to_text()))


def release(url: str, store: Path, event: Event) -> tuple[float, float]:
    """Release once about records that are known; return the seconds it took, and those of this process's processor."""
    begun, spent = time.perf_counter(), time.process_time()
    Ledger(url, store, KEY, site=store.parent / "site").release(
        dataset=DATASET,
        release_id=secrets.token_hex(32),
        run="run",
        worst_case=event,
        delta=DELTA,
        noise_kind="secure",
        draw=lambda: ({"labels": np.zeros(10)}, event),
        data=PEOPLE,
    )
    return time.perf_counter() - begun, time.process_time() - spent


def seconds(url: str, store: Path, event: Event, repeats: int) -> tuple[float, float, float]:
    """Return the median and the least time of a release, and the median of the processor's."""
    clock, processor = zip(*(release(url, store, event) for _ in range(repeats)), strict=True)
    return statistics.median(clock), min(clock), statistics.median(processor)


def recognise(url: str, store: Path, records: int) -> dict[str, float]:
    """Return the seconds to publish a fifth of so many records, to release about the rest, and to refuse others."""
    draws, settings = np.random.default_rng(0), {"data.public_fraction": 0.2}
    contents = draws.integers(1, 2**63, (records, 2)).astype(np.uint64)
    sides = np.where(draws.random(records) < 0.2, PUBLIC, TAUGHT).astype(np.uint8)
    names = draws.integers(0, 2**62, records)
    people = People(contents, sides, names, np.full(records, -1), ("age",), settings)
    moved = replace(people, sides=np.roll(sides, 1))
    ledger, event = Ledger(url, store, KEY, site=store.parent / "site"), GaussianEvent(1.0, 100.0)
    for name in (DATASET, "others"):
        ledger.register(name, 8.0, DELTA, "release")

    def about(dataset: str) -> None:
        ledger.release(
            dataset=dataset, release_id=secrets.token_hex(32), run="run", worst_case=event, delta=DELTA,
            noise_kind="secure", draw=lambda: ({}, event), data=people,
        )  # fmt: skip

    steps = {
        "publish": lambda: ledger.publish(DATASET, people),
        "first release": lambda: about(DATASET),
        "next release": lambda: about(DATASET),
        "publication refused": lambda: ledger.publish(DATASET, moved),
        "account refused": lambda: about("others"),
    }
    taken = {}
    for name, step in steps.items():
        begun = time.perf_counter()
        with contextlib.suppress(LedgerError):
            step()
            assert "refused" not in name
        taken[name] = round(time.perf_counter() - begun, 2)
    return taken


def main() -> None:
    parser = common_options(__doc__, repeats=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--url", help="An empty database in the place of SQLite in a file; for one number of rows.")
    parser.add_argument("--levels", type=int, default=1_000, help="How many levels of noise there are.")
    parser.add_argument("--laplace", action="store_true", help="Laplace noise, which is added up at a Rényi order.")
    parser.add_argument("--people", type=int, help="Measure how long it takes to recognise so many records instead.")
    chosen = parser.parse_args()
    if chosen.people:
        with tempfile.TemporaryDirectory() as folder:
            url = chosen.url or f"sqlite:///{folder}/ledger.db"
            print(json.dumps({"people": chosen.people, **recognise(url, Path(folder) / "releases", chosen.people)}))
        return
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory() as folder:
            url, store = chosen.url or f"sqlite:///{folder}/ledger.db", Path(folder) / "releases"
            filled(url, store, rows, chosen.levels, chosen.laplace)
            event = event_of(0, chosen.levels, chosen.laplace)
            release(url, store, event)  # imports
            ours, least, processor = seconds(url, store, event, chosen.repeats)
            with mock.patch.object(LedgerSnapshot, "from_text", return_value=None):
                plain, *_ = seconds(url, store, event, 1 if rows > 10_000 else chosen.repeats)
            begun = time.perf_counter()
            with mock.patch("terrine.privacy.ledger.release_store.ReleaseStore.read"):
                Ledger(url, store, KEY).rows()
            walk = time.perf_counter() - begun
        figures = {"release": ours, "at least": least, "of the processor": processor, "plain": plain}
        print(json.dumps({"rows": rows, **figures, "all rows verified": walk}))


if __name__ == "__main__":
    main()
