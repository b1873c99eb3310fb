"""The backbone of a table: its columns as they are (`terrine.models.identity`)."""

from typing import ClassVar, Literal

from terrine.models.architecture import Architecture


class Columns(Architecture):
    """Nothing is learned: the features of a row are its columns."""

    of_images: ClassVar[bool] = False

    kind: Literal["columns"] = "columns"
