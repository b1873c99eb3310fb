"""The kind `prompt`: a trained frame around each image, and a mapping of a frozen network's outputs (Prom-PATE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from terrine.settings import Field, Settings, Unit
from terrine.teachers.teachers import Teachers

if TYPE_CHECKING:
    from terrine.teachers.prompt import PromptKind
    from terrine.teachers.registry import TeacherContext


class Prompt(Settings):
    """How a prompt is shaped and trained; the defaults are those of Li et al. 2023."""

    inner: Annotated[int | None, Unit("pixels")] = Field(None, ge=1)
    """Side of the shrunken image on the source's canvas; null is 192/224 of the canvas, the best of Table 11."""
    mask: bool = True
    """Whether the trained pattern is the frame alone; false lays it over the image, too (Table 9)."""
    mapping: Literal["random", "fc1", "fc2"] = "fc1"
    """ω2, from the source's outputs to classes: drawn beforehand at random and not trained, or one or two layers."""
    hidden: Annotated[int, Unit("units")] = Field(64, ge=1)
    """`fc2`: width of the first layer."""
    epochs: int = Field(10, ge=1)
    """Passes over a teacher's records."""
    learning_rate: float = Field(0.05, gt=0)
    """Of Adam."""
    decay: float = Field(0.7, gt=0, le=1)
    """Factor of the learning rate after every epoch (the paper does not say after what)."""
    batch: Annotated[int, Unit("records")] = Field(16, ge=2)
    """Of a teacher in a step: its places in a pass."""
    together: Annotated[int, Unit("places")] = Field(256, ge=2)
    """Places of all teachers in one pass through the source: with the number of passes side by side (one a core; one on
    a GPU) it bounds the memory of training, and of voting with original statistics. With current ones a vote takes a
    query batch at once, which is its own statistics."""

    @model_validator(mode="after")
    def _a_step_fits_into_a_pass(self) -> Prompt:
        if self.together < self.batch:
            raise ValueError(
                f"together={self.together} is less than the records of one teacher in a step, "
                f"teachers.prompt.batch={self.batch}. Raise it, or lower the batch"
            )
        return self


class PromptTeachers(Teachers):
    """Prom-PATE: visual prompts on one frozen source (Li et al. 2023, section 3.2)."""

    shares_passes: ClassVar[bool] = True

    kind: Literal["prompt"] = "prompt"
    prompt: Prompt = Prompt()

    @property
    def inputs(self) -> Literal["features", "images"]:
        return "images"

    def check(self, run: Any) -> None:
        """Raise ValueError for an image that leaves no frame on a canvas whose side is known."""
        super().check(run)
        if not isinstance(run.data.size, int):
            raise ValueError(
                f"teachers.kind=prompt puts square images on a square canvas, and data.size={list(run.data.size)}. Set "
                "data.size to one number"
            )
        canvas, inner = run.backbone.side(run.data.size), self.prompt.inner
        if canvas is not None and inner is not None and inner >= canvas + (not self.prompt.mask):
            raise ValueError(
                f"teachers.prompt.inner={inner} leaves no border on a canvas of {canvas}. Use 1 to {canvas - 1}"
            )

    def build(self, context: TeacherContext) -> PromptKind:
        from terrine.teachers.prompt import PromptKind

        return PromptKind(self, context.backbone(), context.classes)
