"""The section `aggregation`: the mechanism that turns votes into a release, and the budget of the run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from terrine.settings import Settings

MECHANISM_PARAMETERS: dict[str, tuple[str, ...]] = {
    "histogram": ("sigma",),
    "gnmax": ("sigma",),
    "lnmax": ("scale",),
    "confident": ("threshold", "sigma1", "sigma2"),
    "interactive": ("threshold", "sigma1", "sigma2", "surprise", "confidence"),
}
ALL_MECHANISM_PARAMETERS = tuple(dict.fromkeys(key for keys in MECHANISM_PARAMETERS.values() for key in keys))


class Aggregation(Settings):
    """The mechanism that turns votes into a release, and the budget of the run."""

    mechanism: Literal["histogram", "gnmax", "confident", "interactive", "lnmax"] = "histogram"
    sigma: float | None = Field(None, gt=0)
    """Standard deviation, in votes, of the noise on an answer (`histogram`, `gnmax`)."""
    scale: float | None = Field(None, gt=0)
    """`lnmax`: scale, in votes, of the Laplace noise on an answer."""
    threshold: float | None = None
    """`confident`, `interactive`: how many votes the winner must have."""
    sigma1: float | None = Field(None, gt=0)
    """`confident`, `interactive`: standard deviation of the noise on the threshold test."""
    sigma2: float | None = Field(None, gt=0)
    """`confident`, `interactive`: standard deviation of the noise on the answer."""
    surprise: float | None = None
    """`interactive`: by how many votes the teachers must differ from the student to be asked in later rounds."""
    confidence: float | None = Field(None, ge=0, le=1)
    """`interactive`: how sure the student must be of its own label for it to be confirmed."""
    epsilon: float = Field(8.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    noise: Literal["secure", "replay"] = "secure"
    where: Literal["local", "parties"] = "local"
    """`local`: one process counts the votes. `parties`: each party keeps its own, see `collaboration`."""

    @model_validator(mode="after")
    def _parameters_of_the_mechanism(self) -> Aggregation:
        wanted = MECHANISM_PARAMETERS[self.mechanism]
        for key in ALL_MECHANISM_PARAMETERS:
            value = getattr(self, key)
            if key in wanted and value is None:
                raise ValueError(f"{key} is missing: mechanism={self.mechanism} needs it. Set aggregation.{key}")
            if key not in wanted and value is not None:
                raise ValueError(
                    f"{key}={value} has no meaning for mechanism={self.mechanism}. Set aggregation.{key}=null"
                )
        return self

    @property
    def mechanism_parameters(self) -> dict[str, float]:
        """The parameters of the chosen mechanism alone."""
        return {key: getattr(self, key) for key in MECHANISM_PARAMETERS[self.mechanism]}
