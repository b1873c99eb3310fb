"""What "to the bit" rests on: a row's product does not depend on where the row lies in memory."""

import pytest
import torch

import terrine  # noqa: F401  # asks MKL for it


@pytest.mark.parametrize("columns", [2, 4, 10, 11, 30])
@pytest.mark.parametrize("inner", [9, 30, 33, 81, 500])
def test_rows_have_the_same_product_wherever_they_lie(inner, columns):
    generator = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(16, inner, generator=generator), torch.randn(inner, columns, generator=generator)
    for matrix in (weight, weight.T.contiguous().T):
        together = rows @ matrix
        for shift in range(1, 16):
            torch.testing.assert_close(rows.roll(shift, 0) @ matrix, together.roll(shift, 0), rtol=0, atol=0)


@pytest.mark.parametrize("count", [7, 8, 33])
def test_stacked_products_do_not_depend_on_their_place_in_the_stack(count):
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(6, count, 33, generator=generator), torch.randn(6, 33, 4, generator=generator)
    together = torch.bmm(left, right)
    for place in range(6):
        alone = torch.bmm(left[place : place + 1].clone(), right[place : place + 1].clone())
        torch.testing.assert_close(alone[0], together[place], rtol=0, atol=0)
