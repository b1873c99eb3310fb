"""Settings: what a class below another changes, and what it keeps."""

from typing import Annotated, Literal

import pytest
from pydantic import ValidationError

from terrine.settings import Field, Settings, Unit


class Shape(Settings):
    radius: Annotated[float, Unit("pixels")] = Field(1.0, gt=0)
    """Reach in pixels."""
    sides: Annotated[int, Unit("sides")] = Field(4, ge=3)
    turned: Annotated[float | None, Unit("degrees")] = Field(None, lt=360)


class Small(Shape):
    kind: Literal["small"] = "small"
    radius: float = 0.1
    turned: "float | None" = 5.0
    sides: Annotated[int, Unit("edges")] = Field(5, ge=1)


def test_another_default_keeps_bounds_and_unit_and_another_declaration_does_not() -> None:
    assert (Small().radius, Small().sides, Shape().radius) == (0.1, 5, 1.0)
    assert Unit("pixels") in Small.model_fields["radius"].metadata
    with pytest.raises(ValidationError, match="greater than 0"):
        Small(radius=-1.0)
    with pytest.raises(ValidationError, match="less than 360"):
        Small(turned=400.0)
    assert Small(sides=1).sides == 1
    assert Unit("edges") in Small.model_fields["sides"].metadata
