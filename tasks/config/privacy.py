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
    """`record`: one image. `group`: all images with the same group value (a patient); needs groups in the data."""
    units: Annotated[int | None, Unit("records or groups")] = Field(None, ge=1)
    """About how many there are to learn from, where anybody may know it: what `auto` goes by. null: where `auto` needs
    it, they are counted with noise, which takes 1/64 of the run's budget (`terrine.planning`)."""
    counted: Annotated[float, Unit("records or groups")] = Field(0, ge=0)
    """Standard deviation of the noise on `units`, where the run counted them itself and was charged; not for you to
    set."""
    moments: float = Field(0, ge=0, lt=0.5)
    """Share of the run's budget, in μ², for moments of the images' features, with noise: the student then normalises
    every image with them, and an answer does not depend on what else is asked. 0: none are released."""
    anyway: bool = False
    """Whether a run goes on whose votes would drown in their noise."""

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
