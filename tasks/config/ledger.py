"""The section `ledger`: who remembers what was released, and how much may be released in all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from terrine.settings import AtHome, Settings, Unit


class LedgerSettings(Settings):
    """Who remembers what was released, and how much may be released in all."""

    url: Annotated[str, AtHome()] = "sqlite:///data/private/ledger/ledger.db"
    """The database, as SQLAlchemy names it: SQLite in a file, or PostgreSQL for several machines."""
    key: Annotated[Path, AtHome()] = Path("data/private/ledger/key")
    """File of the key that seals the rows; made when it is missing."""
    store: Annotated[Path, AtHome()] = Path("data/private/ledger/releases")
    """Folder of the releases themselves, so that the same one can be returned again."""
    account: Annotated[str | None, AtHome()] = Field(None, min_length=1)
    """Name under which all versions of a dataset share one budget. null: the account of the public benchmark that
    data.name names (public benchmarks only)."""
    epsilon: Annotated[float | None, Unit("ε")] = Field(None, gt=0)
    """Budget of the account over all runs. null: record and compose, never refuse (public benchmarks only)."""
