"""The section `data`: whose records, where they lie, and the geometry their images are brought to."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.settings import AtHome, Settings

OWN_DATA = ("npz", "folder", "table")
"""Data sources that read somebody's own records from `data.path`."""


class Data(Settings):
    """The private dataset and the geometry every image of the run is brought to."""

    name: str = "digits"
    root: Annotated[Path, AtHome()] = Path("data/private/source")
    """Where torchvision's and MedMNIST's own files lie, or are downloaded to."""
    path: Annotated[Path | None, AtHome()] = None
    """The user's own .npz file, image folder or CSV file (`name: npz`, `folder` or `table`)."""
    target: str | None = Field(None, min_length=1)
    """`table`: the column to be predicted."""
    id: str | None = Field(None, min_length=1)
    """`table`: the column that names a row, in which no value occurs twice; without it the row's number is its name."""
    group: str | None = Field(None, min_length=1)
    """`table`: the column that says whose record a row is."""
    party: str | None = Field(None, min_length=1)
    """`table`: the column that says who holds a row."""
    public_fraction: float = Field(0.2, gt=0, lt=1)
    """`table`: the share of rows, drawn by name, that you declare public: they are the queries."""
    size: int = Field(28, ge=8, le=320)
    channels: Literal[1, 3] = 1
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """The share held out for evaluation where the source has no test split of its own."""
    pool: Literal["validation", "test"] | None = None
    """Real images that you declare public, as the source `pool` of queries: the validation split, or a part of the test
    split. No record is in two of private records, pool and test images, and no test image is in the pool."""
    pool_fraction: float = Field(0.7, gt=0, lt=1)
    """pool=test: the share of the test split, drawn by name, that is public."""
    download: bool = True
    public_benchmark: bool = Field(None, validate_default=True)  # type: ignore[assignment]
    """Whether anyone may already read the data, which allows an unlimited budget and private figures in MLflow. null:
    whether `name` is a known public benchmark's (`terrine.data.public`). false treats a benchmark as private, for
    rehearsals; true makes nothing public that is not on that list."""
    edition: str = Field("1", min_length=1)
    """A name that you give this version of your data: a release is identified by account, edition and settings. A new
    edition is released, and charged, anew."""

    @field_validator("edition", mode="before")
    @classmethod
    def _edition_as_text(cls, value: Any) -> Any:
        # YAML reads 2 and 2026-03-01 as a number and a date; 2026.10, as a number, would lose its last digit.
        return str(value) if type(value) in (int, date) else value

    @field_validator("public_benchmark", mode="before")
    @classmethod
    def _known_to_be_public(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("name") in PUBLIC_BENCHMARKS if value is None else value

    @model_validator(mode="after")
    def _path_where_needed(self) -> Data:
        if self.name in OWN_DATA and self.path is None:
            raise ValueError(f"path is missing: data.name={self.name} reads your own data. Set data.path to it")
        if self.public_benchmark and self.name not in PUBLIC_BENCHMARKS:
            raise ValueError(
                f"public_benchmark=true does not go with data.name={self.name}, which is not a known public benchmark. "
                "Leave it out, and set ledger.account and ledger.epsilon"
            )
        if self.name == "table" and self.target is None:
            raise ValueError("target is missing: data.name=table predicts one of your columns. Set data.target to it")
        if self.name == "table" and self.public_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        if self.name == "table" and self.pool is not None:
            raise ValueError(f"pool={self.pool} is for images. Set data.pool=null and use data.public_fraction")
        for key in ("target", "id", "group", "party"):
            if self.name != "table" and getattr(self, key) is not None:
                raise ValueError(f"{key}={getattr(self, key)} has no meaning for data.name={self.name}. Remove it")
        return self

    @property
    def has_public_records(self) -> bool:
        """Whether some of its records are public and are asked about: their source is then opened to get at them."""
        return self.name == "table" or self.pool is not None
