"""Contact sheets against a loop over pixels."""

import numpy as np
import pytest

from terrine.errors import InputError
from terrine.synthetic.contact_sheet import contact_sheet


@pytest.mark.parametrize(("count", "channels", "columns"), [(5, 1, 3), (4, 3, None), (1, 3, 7)])
def test_every_pixel_is_where_the_grid_puts_it(count, channels, columns):
    images = np.random.default_rng(0).integers(0, 255, (count, channels, 4, 3), dtype=np.uint8)
    sheet = contact_sheet(images, columns, scale=2, gap=1)
    columns = min(count, columns or 2)
    rows = -(-count // columns)
    expected = np.full((rows * 9 - 1, columns * 7 - 1, 3), 255, dtype=np.uint8)
    for number in range(count):
        for y in range(8):
            for x in range(6):
                for channel in range(3):
                    value = images[number, channel % channels, y // 2, x // 2]
                    expected[number // columns * 9 + y, number % columns * 7 + x, channel] = value
    assert np.array_equal(sheet, expected)


@pytest.mark.parametrize(
    ("shape", "kind"), [((2, 2, 4, 4), "uint8"), ((2, 1, 4, 4), "float32"), ((0, 1, 4, 4), "uint8")]
)
def test_other_arrays_are_refused(shape, kind):
    with pytest.raises(InputError, match="images must be uint8"):
        contact_sheet(np.zeros(shape, dtype=kind))
