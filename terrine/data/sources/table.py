"""A CSV file with one row per record, for teachers that are not image models (`terrine.data.table`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from terrine.data.dataset import Dataset
from terrine.data.ordered import InOrder
from terrine.data.source import Own, Progress, Source, Survey

if TYPE_CHECKING:
    from terrine.data.encoding import Encoding


class Table(InOrder, Own, Source):
    """A CSV file with a header: private rows, public ones that are asked about, and those for evaluation."""

    of_images: ClassVar[bool] = False
    # What stood for the geometry of rows since there are tables: digests of shared backbones and manifests hold it.
    size: ClassVar[int] = 28
    channels: ClassVar[int] = 1

    name: Literal["table"] = "table"
    target: str = Field(min_length=1)
    """The column to be predicted."""
    id: str | None = Field(None, min_length=1)
    """The column that names a row, in which no value occurs twice; without it the row's number is its name."""
    group: str | None = Field(None, min_length=1)
    """The column that says whose record a row is."""
    party: str | None = Field(None, min_length=1)
    """The column that says who holds a row."""
    public_fraction: float = Field(gt=0, lt=1)
    """Share of rows, drawn by name, that you declare public: they are the queries. They are published, and nothing
    protects them. There is no default."""
    categorical: tuple[str, ...] = ()
    """Columns that hold words even where these look like numbers: postal codes, numbers of wards. Any other column that
    holds numbers holds nothing else."""

    @model_validator(mode="before")
    @classmethod
    def _declares_what_is_public(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("public_fraction") is None:
            raise ValueError(
                "public_fraction is missing: the share of rows that may be published. Nothing protects these rows, and "
                "the student learns from them. Set data.public_fraction, for example to 0.2"
            )
        return values

    @model_validator(mode="after")
    def _some_records_are_left_to_teach(self) -> Table:
        if self.public_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        return self

    @property
    def has_public_records(self) -> bool:
        return True

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features."""
        return tuple(column for column in (self.target, self.id, self.group, self.party) if column is not None)

    def check(self, run: Any) -> None:
        super().check(run)
        if self.group is not None and run.privacy.unit == "record" and not self.public_benchmark:
            raise ValueError(
                "privacy.unit=record protects a row with all that it says, also whose it is, and data.group decides by "
                "that which rows are public: a row that is exchanged for another person's could be published. Set "
                "privacy.unit=group, which protects all rows of a person, or leave data.group out"
            )

    def load(self, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None) -> Dataset:
        from terrine.data import table  # and with it pandas, which images do without

        return table.load(self, at, seed=seed)[0]

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        from terrine.data import table

        return table.survey(self, at, seed=seed)

    def public_rows(self, at: Path = Path(), *, seed: int = 0) -> tuple[np.ndarray, Encoding]:
        """Return the features, float32 [Q, F], of the public rows, and how they are encoded.

        Targets, and the values of all other rows, are not looked at. Raises InputError for a file that cannot be used.
        """
        from terrine.data import table

        return table.public_rows(self, at, seed=seed)
