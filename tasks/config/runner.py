"""The section `runner`: who carries the tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from terrine.settings import AtHome, Settings, Unit


class Runner(Settings):
    """Who carries the tasks."""

    kind: Literal["threads", "processes", "dask", "ray"] = "threads"
    """threads and processes of this machine, or a cluster of Dask or Ray."""
    workers: Annotated[int | None, Unit("workers")] = Field(None, ge=1)
    """null: one per CUDA device, or one per core where there is none."""
    address: Annotated[str | None, AtHome()] = Field(None, min_length=1)
    """Where an existing cluster listens: Dask's scheduler (tcp://host:8786) or Ray's head (ray://host:10001)."""

    elsewhere: Annotated[dict[str, str], AtHome()] = Field(default_factory=dict)
    """Stages that a deployment of your Prefect server makes on other machines: {teach: stage/gpu}."""

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> Runner:
        if self.address is None:
            return self
        if self.kind not in ("dask", "ray"):
            raise ValueError(
                f"address={self.address} needs runner.kind=dask or ray. Set it, or set runner.address=null"
            )
        if self.workers is not None:
            raise ValueError(
                f"workers={self.workers} has no meaning beside runner.address: the cluster has the workers it has. "
                "Set runner.workers=null"
            )
        return self
