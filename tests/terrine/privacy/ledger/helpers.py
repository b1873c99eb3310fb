"""Helpers shared by the ledger's tests."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sql

from terrine.privacy.accounting.events import Event, GaussianEvent
from terrine.privacy.ledger.ledger import Ledger, StoredRelease

DATASET = "fingerprint"
ANSWER = GaussianEvent(1.0, 10.0)
KEY = bytes(range(32))


@dataclass(frozen=True)
class Place:
    """Location of a test's ledger."""

    url: str
    store: Path

    def open(self, **options: Any) -> Ledger:
        return Ledger(self.url, self.store, KEY, **({"patience": 60.0} | options))

    @property
    def database(self) -> Path:
        """The file of an SQLite database."""
        return Path(sql.make_url(self.url).database or "")

    @contextlib.contextmanager
    def by_hand(self) -> Iterator[sql.Connection]:
        """A connection that bypasses the ledger, like that of a database client."""
        url = sql.make_url(self.url)
        if url.get_backend_name() == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        engine = sql.create_engine(url, poolclass=sql.NullPool)
        with engine.begin() as connection:
            yield connection


class Draw:
    """Draws unpredictable labels and records them."""

    def __init__(self, event: Event = ANSWER) -> None:
        self.event = event
        self.drawn: list[np.ndarray] = []

    def __call__(self) -> tuple[dict[str, np.ndarray], Event]:
        self.drawn.append(np.frombuffer(secrets.token_bytes(40), dtype=np.int64))
        return {"labels": self.drawn[-1]}, self.event


def ask(ledger: Ledger, release_id: str, draw: Any, **changes: Any) -> StoredRelease:
    """Ask for a release, as a run does."""
    arguments = {
        "dataset": DATASET,
        "release_id": release_id,
        "run": "test",
        "worst_case": ANSWER,
        "delta": 1e-5,
        "noise_kind": "secure",
        "draw": draw,
    }
    return ledger.release(**(arguments | changes))
