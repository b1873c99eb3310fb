import numpy as np
import pytest

from terrine.data.labels import encode_groups, encode_labels
from terrine.errors import InputError


def test_integers_name_themselves() -> None:
    labels, names = encode_labels({"labels": np.array([2, 0, 1, 2], dtype=np.uint8)}, None, "x.npz")
    assert labels["labels"].dtype == np.int64
    assert labels["labels"].tolist() == [2, 0, 1, 2]
    assert names == ("0", "1", "2")


def test_a_column_of_labels_is_flattened() -> None:
    assert encode_labels({"labels": np.array([[1], [0]])}, None, "x.npz")[0]["labels"].tolist() == [1, 0]


def test_text_is_numbered_in_alphabetical_order_over_all_splits() -> None:
    splits = {"train_labels": np.array(["b", "c"]), "test_labels": np.array(["a", "c"])}
    labels, names = encode_labels(splits, None, "x.npz")
    assert names == ("a", "b", "c")
    assert labels["train_labels"].tolist() == [1, 2]
    assert labels["test_labels"].tolist() == [0, 2]


def test_text_follows_the_order_of_given_names() -> None:
    labels, names = encode_labels({"labels": np.array(["b", "a"])}, ["b", "a"], "x.npz")
    assert (labels["labels"].tolist(), names) == ([0, 1], ("b", "a"))


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        (np.array([0, 1, 99, 1]), None, r"x\.npz: labels\[2\] is 99 while no record has class 2"),
        (np.array([0, 1, 10**15]), None, r"labels\[2\] is 1000000000000000 while no record has class 2"),
        (np.array([1, 2, 1]), None, r"labels\[0\] is 1 while no record has class 0"),
        (np.array([0, 1, -1]), None, r"labels\[2\] is -1\. Labels must be 0\.\.K-1"),
        (np.array([0, 1, 3]), ["a", "b", "c"], r"labels\[2\] is 3, outside 0\.\.2, the range of the 3 class_names"),
        (np.array(["a", "x"]), ["a", "b"], r"labels\[1\] is 'x', which is none of the classes \['a', 'b'\]"),
        (np.array([0.0, 1.0]), None, r"must be integers 0\.\.K-1 or text, .* but are labels float64"),
        (np.array([[0, 1], [1, 0]]), None, r"labels has shape \[2, 2\]: several labels per image"),
        (np.zeros((2, 1, 1), dtype=np.int64), None, r"labels has shape \[2, 1, 1\]; it must be \[N\]"),
    ],
)
def test_labels_that_name_no_class_are_refused(values: np.ndarray, names: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_labels({"labels": values}, names, "x.npz")


def test_text_and_integers_do_not_mix() -> None:
    with pytest.raises(InputError, match="but are train_labels int64, test_labels <U1"):
        encode_labels({"train_labels": np.array([0, 1]), "test_labels": np.array(["0", "1"])}, None, "x.npz")


def test_equal_groups_get_equal_numbers_across_splits() -> None:
    groups = encode_groups({"train": np.array(["p9", "p1", "p9"]), "test": np.array(["p1", "p5"])}, "x.npz")
    assert groups["train"].dtype == np.int64
    assert (groups["train"].tolist(), groups["test"].tolist()) == ([2, 0, 2], [0, 1])


def test_records_without_a_group_are_refused() -> None:
    with pytest.raises(InputError, match=r"groups\[1\] is empty\. Give every record a group"):
        encode_groups({"groups": np.array(["p1", ""])}, "x.npz")


def test_fractions_are_no_groups() -> None:
    with pytest.raises(InputError, match=r"groups is float64\. A group is an integer or a text"):
        encode_groups({"groups": np.array([1.0, 2.0])}, "x.npz")
