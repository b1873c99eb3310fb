import numpy as np
import pytest

from terrine.data.labels import encode_groups, encode_labels, encode_names, on_alike_groups
from terrine.data.units import name_codes
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
        (np.array([0, 1, 99, 1]), None, r"x\.npz: labels\[2\] is 99 while no record has class 2.*data\.bins"),
        (np.array([0, 1, 10**15]), None, r"labels\[2\] is 1000000000000000 while no record has class 2"),
        (np.array([1, 2, 1]), None, r"labels\[0\] is 1 while no record has class 0"),
        (np.array([0, 1, -1]), None, r"labels\[2\] is -1\. Labels must be 0\.\.K-1"),
        (np.array([0, 1, 3]), ["a", "b", "c"], r"labels\[2\] is 3, outside 0\.\.2, the range of the 3 class_names"),
        (np.array(["a", "x"]), ["a", "b"], r"labels\[1\] is 'x', which is none of the classes \['a', 'b'\]"),
        (np.array([0.0, 1.0]), None, r"must be integers 0\.\.K-1 or text, .* but are labels float64.*data\.bins"),
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


def test_a_group_is_the_code_of_its_text_whoever_else_is_there() -> None:
    groups = encode_groups({"train": np.array(["p9", "p1", "p9"]), "test": np.array(["p1", "p5"])}, "x.npz")
    assert groups["train"].dtype == np.int64
    assert np.array_equal(groups["train"], name_codes(["p9", "p1", "p9"]))
    assert np.array_equal(groups["test"], name_codes(["p1", "p5"]))


def test_an_integer_is_the_group_of_its_digits() -> None:
    for kind in (np.uint8, np.int64, np.uint64):
        groups = encode_groups({"groups": np.array([[7], [12], [7]], dtype=kind)}, "x.npz")["groups"]
        assert np.array_equal(groups, name_codes(["7", "12", "7"]))


def test_names_have_codes_and_an_order_that_is_that_of_their_texts() -> None:
    codes, order = encode_names({"train_ids": np.array(["b", "d"]), "val_ids": np.array(["a", "c"])}, "x.npz")
    assert np.array_equal(codes, name_codes("bdac"))
    assert order.tolist() == [2, 0, 3, 1]
    codes, order = encode_names({"ids": np.array([10, 9, 2])}, "x.npz")
    assert np.array_equal(codes, name_codes(["10", "9", "2"]))
    assert order.tolist() == [0, 2, 1]


def test_two_records_of_one_name_are_refused_with_both_places() -> None:
    with pytest.raises(InputError, match=r"x\.npz: train_ids\[1\] and val_ids\[0\] are both '7'\. An id names one"):
        encode_names({"train_ids": np.array([5, 7]), "val_ids": np.array([7, 8])}, "x.npz")
    with pytest.raises(InputError, match=r"ids\[1\] is empty\. Give every record an id"):
        encode_names({"ids": np.array(["a", ""])}, "x.npz")
    with pytest.raises(InputError, match=r"ids is float64\. An id is an integer or a text, such as the number of an"):
        encode_names({"ids": np.array([0.5])}, "x.npz")


def test_records_without_a_group_are_refused() -> None:
    with pytest.raises(InputError, match=r"groups\[1\] is empty\. Give every record a group"):
        encode_groups({"groups": np.array(["p1", ""])}, "x.npz")


def test_fractions_are_no_groups() -> None:
    with pytest.raises(InputError, match=r"groups is float64\. A group is an integer or a text"):
        encode_groups({"groups": np.array([1.0, 2.0])}, "x.npz")


def test_groups_that_look_like_one_are_counted_and_not_named() -> None:
    (said,) = on_alike_groups(["0007", "7", "P 1", "p1", "8", "8", "x"])
    assert said.startswith("2 of 6 names of groups look like another")
    assert "P 1" not in said
    assert on_alike_groups(["1", "2", "10"]) == ()
