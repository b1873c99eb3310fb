"""The section `partition`: how records are dealt to teachers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from terrine.settings import Settings


class Partition(Settings):
    """How records are dealt to teachers."""

    kind: Literal["iid", "dirichlet", "similarity", "party"] = "iid"
    """`iid`: by a hash of each unit's own name. `party`: as the data's own column says. `dirichlet`, `similarity`: by
    label, imitating parties whose data differ."""
    teachers: int = Field(100, ge=2)
    alpha: float | None = Field(None, gt=0)
    """`dirichlet`: concentration; the smaller, the fewer classes a teacher has."""
    similarity: float | None = Field(None, ge=0, le=100)
    """`similarity`: percentage of the records dealt at random; the rest is sorted by label and cut."""

    @model_validator(mode="after")
    def _parameters_of_the_kind(self) -> Partition:
        for key, kind in (("alpha", "dirichlet"), ("similarity", "similarity")):
            value = getattr(self, key)
            if self.kind == kind and value is None:
                raise ValueError(f"{key} is missing: kind={kind} needs it. Set partition.{key}")
            if self.kind != kind and value is not None:
                raise ValueError(f"{key}={value:g} has no meaning for kind={self.kind}. Set partition.{key}=null")
        return self

    @property
    def reads_labels(self) -> bool:
        """Whether exchanging one record may move others to another teacher."""
        return self.kind in ("dirichlet", "similarity")
