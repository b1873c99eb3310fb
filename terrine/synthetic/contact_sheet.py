"""Contact sheets: one large image made of many small ones."""

import numpy as np
from numpy.typing import NDArray

from terrine.errors import InputError


def contact_sheet(
    images: NDArray[np.uint8], columns: int | None = None, scale: int = 1, gap: int = 2
) -> NDArray[np.uint8]:
    """Arrange images on a grid, row by row, and return the sheet as uint8 [height, width, 3].

    Args:
        images: uint8 [count, 1 or 3, height, width].
        columns: Number of columns; None: about as many as rows.
        scale: Enlargement factor.
        gap: Number of white pixels between images.

    Raises:
        InputError: the array is not a batch of images.
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.dtype != np.uint8 or not images.size:
        raise InputError(
            f"contact sheet: images must be uint8 [count, 1 or 3, height, width], not {images.dtype} {images.shape}."
        )
    count, _, height, width = images.shape
    columns = min(count, columns or int(np.ceil(np.sqrt(count))))
    rows = -(-count // columns)
    height, width = height * scale, width * scale
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        y, x = row * (height + gap), column * (width + gap)
        enlarged = image.repeat(scale, axis=1).repeat(scale, axis=2)
        sheet[y : y + height, x : x + width] = np.broadcast_to(enlarged, (3, height, width)).transpose(1, 2, 0)
    return sheet
