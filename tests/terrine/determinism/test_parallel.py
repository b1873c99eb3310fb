"""Results do not depend on threads."""

import threading
import time

import pytest
import torch

from terrine.determinism.parallel import side_by_side


def test_results_come_in_the_order_of_the_parts_whoever_finishes_first():
    def compute(part: int) -> int:
        time.sleep(0.02 if part == 0 else 0.0)
        return part * part

    assert list(side_by_side(compute, range(20))) == [part * part for part in range(20)]


def test_every_part_is_computed_by_one_thread_and_the_caller_keeps_its_own():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(side_by_side(lambda _: torch.get_num_threads(), range(8))) == {1}
        assert torch.get_num_threads() == 2
        seen: list[int] = []
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


def test_an_error_reaches_the_caller_and_stops_the_parts_that_have_not_begun():
    begun = []

    def compute(part: int) -> int:
        begun.append(part)
        if part == 3:
            raise ValueError("part 3")
        return part

    with pytest.raises(ValueError, match="part 3"):
        list(side_by_side(compute, range(1000)))
    assert len(begun) < 1000


def test_parts_are_taken_from_their_iterator_only_as_they_are_needed():
    taken = []

    def parts():
        for part in range(1000):
            taken.append(part)
            yield part

    results = side_by_side(lambda part: part, parts())
    next(results)
    assert len(taken) <= 2 * torch.get_num_threads() + 1
    results.close()


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
