"""The section `collaboration`: a trial of parties on this machine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from terrine.settings import AtHome, Settings, Unit


class Collaboration(Settings):
    """A trial of `aggregation.where: parties`: every party a process on this machine (docs/collaboration.md)."""

    parties: Annotated[int, Unit("parties")] = Field(5, ge=1)
    """How many teacher parties the teachers are dealt to, in order."""
    minimum: Annotated[int | None, Unit("teachers")] = Field(None, ge=1)
    """The fewest teachers whose votes must be there; null: all of them."""
    deadline: Annotated[float, Unit("seconds")] = Field(60.0, gt=0)
    """Seconds that teacher parties are waited for."""
    patience: Annotated[float, Unit("seconds")] = Field(300.0, gt=0)
    """Seconds after which a party that hears nothing gives up."""
    guardian: Annotated[str | None, AtHome()] = Field(None, pattern=r"^.+:\d+$")
    """host:port at which the guardian listens; null: a free port of this machine."""
    student: Annotated[str | None, AtHome()] = Field(None, pattern=r"^.+:\d+$")
    """host:port at which the student party listens; null: a free port of this machine."""

    def check(self, run: Any) -> None:
        """Raise ValueError where parties cannot do together what the run asks for."""
        if run.aggregation.where != "parties":
            return
        if run.queries.rounds > 1:
            raise ValueError(
                f"queries.rounds={run.queries.rounds} does not go with aggregation.where=parties, which asks all "
                "queries at once. Set queries.rounds=1 and queries.select=order"
            )
        for key in ("parties", "minimum"):
            value = getattr(self, key)
            if value is not None and value > run.partition.teachers:
                raise ValueError(
                    f"collaboration.{key}={value} is above partition.teachers={run.partition.teachers}. Set it to "
                    f"{run.partition.teachers} or less"
                )
