"""The backbone of a table: the columns themselves. It turns rows into features by leaving them as they are.

With it a table goes through the same pipeline as images: `Backbone.features` takes rows [B, columns] where it
otherwise takes images [B, C, H, W].
"""

from typing import Any

import torch
from torch import Tensor, nn

from terrine.errors import InputError, SettingError
from terrine.models.backbone import Backbone


class ColumnsBackbone(Backbone):
    """Float32 rows [B, columns] to features [B, columns], unchanged.

    In its description `channels` is the number of columns and `size` is 1: a row is an image of one pixel.
    """

    def __init__(self, columns: int) -> None:
        if columns < 1:
            raise SettingError(f"backbone: a table of {columns} columns. At least one is needed.")
        architecture: dict[str, Any] = {"kind": "columns", "channels": columns, "size": 1, "options": {}}
        super().__init__(nn.Identity(), columns, architecture)

    def _check(self, images: Tensor) -> None:
        if images.dim() != 2 or images.shape[1] != self.feature_dim or images.dtype != torch.float32:
            raise InputError(
                f"The backbone 'columns' takes float32 rows of shape (B, {self.feature_dim}) and was given "
                f"{images.dtype} {tuple(images.shape)}. Encode the table as its public rows were encoded."
            )
