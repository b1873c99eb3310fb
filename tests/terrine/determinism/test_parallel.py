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
