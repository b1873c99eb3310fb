"""Selection of tests by `make quick`."""

import pytest

from tests.quick import REPOSITORY, changed_files, near


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ("terrine/privacy/accounting/gaussian.py", "tests/terrine/privacy/accounting/test_gaussian.py"),
        ("terrine/data/partition.py", "tests/terrine/data/test_partition.py"),
        ("tasks/config/presets.py", "tests/tasks/config/test_presets.py"),
        ("constraints.txt", "tests/test_habits.py"),
        ("tests/test_habits.py", "tests/test_habits.py"),
    ],
)
def test_the_nearest_tests_come_first(changed, first):
    assert (REPOSITORY / changed).is_file()
    assert first in near([changed])[:3]


def test_what_is_reached_over_other_modules_comes_after_what_imports_it():
    found = near(["terrine/privacy/noise.py"])
    direct, far = "tests/terrine/privacy/test_noise.py", "tests/tasks/pipeline/test_aggregate.py"
    assert found.index(direct) < found.index(far)


def test_what_no_test_knows_reaches_nothing():
    assert near([f"{'un' * 2}known.txt"]) == []
    assert changed_files("HEAD~1")
