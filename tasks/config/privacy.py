"""The sections `privacy` and `ledger`: whose privacy is protected, and how much may be released in all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from terrine.settings import AtHome, Field, Settings, Unit

WITH_MOMENTS = "scattering"
"""The backbone whose moments are released: a preset's fall away where another is chosen (`params.lay_over`)."""


class Privacy(Settings):
    """Whose privacy is protected."""

    unit: Literal["record", "group"] = "record"
    """Unit of protection: `record`, one image or row; `group`, all records with the same group value (such as a
    patient)."""
    units: Annotated[int | None, Unit("records or groups")] = Field(None, ge=1)
    """Approximate number of training units, if it is public; `auto` settings depend on it. null: if `auto` needs it, it
    is counted with noise, for 1/64 of the run's budget (`terrine.planning`)."""
    counted: Annotated[float, Unit("records or groups")] = Field(0, ge=0)
    """Standard deviation of the noise on `units` if the run counted them. Set by the run."""
    moments: float = Field(0, ge=0, lt=0.5)
    """Share of the run's budget, in μ², for noisy moments of the image features. The student normalises each image with
    them, so predictions do not depend on the batch. 0: none."""
    anyway: bool = False
    """Continue even if the noise is too large for the votes."""

    def check(self, run: Any) -> None:
        """Raise ValueError where a run releases no moments that it is told to release."""
        if not self.moments:
            return
        reason = None
        if run.transcription is not None:
            reason = "a transcription's student normalises with none"
        elif run.teachers.averages:
            reason = "teachers that learn from one another have a share of the budget already"
        elif run.aggregation.where == "parties":
            reason = "where parties hold the records, nobody adds up their moments"
        elif run.backbone.kind != WITH_MOMENTS:
            reason = f"backbone.kind={run.backbone.kind} has another or no normalisation than that of {WITH_MOMENTS}"
        if reason:
            raise ValueError(f"privacy.moments={self.moments:g} cannot be released: {reason}. Set privacy.moments=0")


class LedgerSettings(Settings):
    """Who remembers what was released, and how much may be released in all."""

    url: Annotated[str, AtHome()] = "sqlite:///data/private/ledger/ledger.db"
    """Ledger database as an SQLAlchemy URL: an SQLite file, or PostgreSQL for several machines."""
    key: Annotated[Path, AtHome()] = Path("data/private/ledger/key")
    """File with the key that seals the ledger. Created if missing."""
    store: Annotated[Path, AtHome()] = Path("data/private/ledger/releases")
    """Folder with the stored releases, from which repeated requests are answered."""
    account: Annotated[str | None, AtHome()] = Field(None, min_length=1)
    """Name under which all versions of a dataset share one budget. null: the account of the benchmark data.name (public
    benchmarks only)."""
    epsilon: Annotated[float | None, Unit("ε")] = Field(None, gt=0)
    """Budget of the account over all runs. null: unlimited, but recorded (public benchmarks only)."""
