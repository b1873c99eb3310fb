"""The section `privacy`: whose privacy is protected."""

from __future__ import annotations

from typing import Annotated, Literal

from terrine.settings import Field, Settings, Unit


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
    anyway: bool = False
    """Whether a run goes on whose votes would drown in their noise."""
