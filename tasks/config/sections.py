"""Sections of params.yaml with one type each: privacy, ledger, queries, evaluation, runner, tracking and others.

Sections with several types (data, partition, backbone, teachers, aggregation, student) are declared with their code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from terrine.pretraining.settings import SimCLRSettings
from terrine.queries import shares
from terrine.settings import Automatic, Settings, SiteLocal, Unit

Weights = dict[str, Annotated[float, Field(gt=0)]]


WITH_MOMENTS = "scattering"
"""The only backbone whose moments can be released."""


class Privacy(Settings):
    """Protected unit, public number of units, and share of the budget for moments."""

    unit: Literal["record", "group"] = "record"
    """Unit of protection: `record`, one image or row; `group`, all records with the same group (such as a patient)."""
    units: Annotated[int | None, Unit("records or groups")] = Field(None, ge=1)
    """Approximate number of training units, if it is public; `auto` settings depend on it. null: if an `auto` setting
    needs the number, units are counted with noise, for 1/64 of the run's budget (`terrine.planning`)."""
    counted: Annotated[float, Unit("records or groups")] = Field(0, ge=0)
    """Standard deviation of the noise on `units` if the run counted them. Set by the run."""
    moments: float = Field(0, ge=0, lt=0.5)
    """Share of the run's budget, in μ², for noisy moments of the image features. The student normalises each image with
    them, so predictions do not depend on the batch. 0: none."""
    anyway: bool = False
    """Continue even if the noise is too large for the votes."""

    def check(self, run: Any) -> None:
        """Raise ValueError if `moments` is set but the run cannot release moments."""
        if not self.moments:
            return
        reason = None
        if run.transcription is not None:
            reason = "students of transcriptions do not use them"
        elif run.teachers.averages:
            reason = "averaging teachers already use a share of the budget"
        elif run.aggregation.where == "parties":
            reason = "moments are not summed over parties"
        elif run.backbone.kind != WITH_MOMENTS:
            reason = f"they require backbone.kind={WITH_MOMENTS}, not {run.backbone.kind}"
        if reason:
            raise ValueError(f"privacy.moments={self.moments:g} cannot be released: {reason}. Set privacy.moments=0")


class LedgerSettings(Settings):
    """Ledger and budget of the account."""

    url: Annotated[str, SiteLocal()] = "sqlite:///data/private/ledger/ledger.db"
    """Ledger database as an SQLAlchemy URL: an SQLite file, or PostgreSQL for several machines."""
    key: Annotated[Path, SiteLocal()] = Path("data/private/ledger/key")
    """File with the key that seals the ledger. Created if missing."""
    store: Annotated[Path, SiteLocal()] = Path("data/private/ledger/releases")
    """Folder with the stored releases, from which repeated requests are answered."""
    account: Annotated[str | None, SiteLocal()] = Field(None, min_length=1)
    """Name under which all versions of a dataset share one budget. null: the account of the benchmark data.name (public
    benchmarks only)."""
    epsilon: Annotated[float | None, Unit("ε")] = Field(None, gt=0)
    """Budget of the account over all runs. null: unlimited, but recorded (public benchmarks only)."""


class ReleaseSettings(Settings):
    """Approval of releases before their noise is drawn."""

    approval: Literal["none", "required"] = "none"
    """`required`: a run stops before it draws noise, until a person approves the release (`terrine release`). A
    deployment cannot override it."""
    approvers: tuple[str, ...] = ()
    """Fingerprints of the keys that may approve. Empty: only the site's own key, which every operator of the project
    can use."""

    @field_validator("approvers")
    @classmethod
    def _fingerprints(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        digits = ["".join(value.split()).lower() for value in values]
        for value, own in zip(values, digits, strict=True):
            if not re.fullmatch("[0-9a-f]{32}", own):
                raise ValueError(
                    f"names {value!r}, which is not the fingerprint of a key (32 hexadecimal digits). `terrine release "
                    "approve --key FILE` prints it"
                )
        return tuple(" ".join(own[place : place + 4] for place in range(0, 32, 4)) for own in digits)

    def check(self, run: Any) -> None:
        """Raise ValueError if approval is required for a trial of parties."""
        if self.approval == "required" and run.aggregation.where == "parties":
            raise ValueError(
                "release.approval=required does not go with aggregation.where=parties: the guardian draws the noise, "
                "after every party has accepted the terms. Set release.approval=none"
            )


class Images(Settings):
    """Synthetic images from weighted sources."""

    count: Annotated[int, Unit("images")] = Field(ge=1)
    """Number of images."""
    sources: Weights = Field(min_length=1)
    """Image programs and their weights, such as {dead_leaves: 1, stylegan: 1}. `terrine images` shows examples."""

    def shares(self) -> dict[str, int]:
        """Return the number of images of each source; they add up to `count` (largest remainders)."""
        return shares(self.count, self.sources)


class Queries(Images):
    """Query images, in fixed batches, each from a single source."""

    count: Annotated[int, Unit("images"), Automatic(1000)] = Field(1000, ge=1)
    """Number of query images. Fewer are answered if the budget is spent."""
    sources: Weights = Field(default={"dead_leaves": 1.0, "stylegan": 1.0}, min_length=1)
    """Image programs and their weights. `pool` is the public images of data.pool."""
    batch: Annotated[int, Unit("images")] = Field(500, ge=1)
    """Number of images per batch. Each batch has one source and its own batch statistics."""
    select: Literal["order", "uncertain"] = "order"
    """Order of the queries: as drawn, or those first of which a student of the released labels is least certain."""
    rounds: Annotated[int, Unit("rounds")] = Field(1, ge=1, le=100)
    """Number of selection rounds."""


class Pretraining(SimCLRSettings):
    """SimCLR on synthetic images (ignored by a backbone without weights)."""

    images: Images | None = None
    """Number and sources of the pretraining images. Required if the backbone is pretrained in the run."""


class Evaluation(Settings):
    """Evaluation on the private test split, and release of the accuracy."""

    epsilon: float | None = Field(None, gt=0, le=8)
    """ε of releasing the accuracy with noise, at aggregation.delta, charged to the account. Only a released accuracy
    may be published. null: accuracy stays private."""

    specificity: float = Field(0.9, gt=0, lt=1)
    """Specificity of the reported sensitivities: share of records without a class that are not assigned to it."""

    subgroups: Annotated[Path | None, SiteLocal()] = None
    """CSV file with test records (path, id or group as in the data) in the first column and a subgroup (scanner, site,
    sex, age band) in each other column. The report shows the private accuracy of each subgroup."""

    released_subgroups: dict[str, tuple[str, ...]] = Field({})
    """Columns of `subgroups` with the public values whose accuracy is also released, such as {sex: [f, m]}. The cost
    remains `epsilon`; each column increases the noise on all released accuracies."""

    def check(self, run: Any) -> None:
        """Raise ValueError for subgroups without ε or table, and for settings that transcriptions do not support."""
        for column, values in self.released_subgroups.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"evaluation.released_subgroups: {column} needs values, each named once")
        if self.released_subgroups and (self.epsilon is None or self.subgroups is None):
            raise ValueError(
                "evaluation.released_subgroups needs evaluation.epsilon, its price, and evaluation.subgroups, its table"
            )
        if self.epsilon is not None and run.transcription is not None:
            raise ValueError("evaluation.epsilon has no meaning for a transcription, which releases no accuracy")


class Collaboration(Settings):
    """A trial of `aggregation.where: parties`: both services on this machine (docs/collaboration.md)."""

    parties: Annotated[int, Unit("parties")] = Field(5, ge=1)
    """Number of teacher parties. Teachers are assigned to parties in order."""
    minimum: Annotated[int | None, Unit("teachers")] = Field(None, ge=1)
    """Minimum number of teachers that must vote. null: all."""
    deadline: Annotated[float, Unit("seconds")] = Field(300.0, gt=0)
    """Time limit of a round and of the trial. A round then closes without missing parties."""

    def check(self, run: Any) -> None:
        """Raise ValueError if the run needs something that parties do not support."""
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


class Runner(Settings):
    """Prefect task runner."""

    kind: Literal["threads", "processes", "dask", "ray"] = "threads"
    """Task runner: threads or processes of this machine, or a Dask or Ray cluster."""
    workers: Annotated[int | None, Unit("workers")] = Field(None, ge=1)
    """Number of workers. null: one per CUDA device, or one per core without CUDA."""
    address: Annotated[str | None, SiteLocal()] = Field(None, min_length=1)
    """Address of an existing cluster: Dask scheduler (tcp://host:8786) or Ray head (ray://host:10001)."""

    elsewhere: Annotated[dict[str, str], SiteLocal()] = Field(default_factory=dict)
    """Stages that run in deployments of your Prefect server, on other machines: {teach: stage/gpu}."""

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> Runner:
        if self.address is None:
            return self
        if self.kind not in ("dask", "ray"):
            raise ValueError(
                f"address={self.address} needs runner.kind=dask or ray. Set it, or set runner.address=null"
            )
        if self.workers is not None:
            raise ValueError(f"workers={self.workers} has no meaning with runner.address. Set runner.workers=null")
        return self


class Tracking(Settings):
    """MLflow."""

    uri: Annotated[str, SiteLocal()] = "sqlite:///mlflow.db"
    """MLflow database or server."""
    experiment: str = "terrine"
    """MLflow experiment of the runs."""
    private_metrics: bool | None = None
    """Log figures that depend on private records, such as votes and durations of private stages. null: only for public
    benchmarks. true is an error for other data."""
    register_student: bool = True
    """Log the student as an MLflow model and register it under the name of the run."""
