import numpy as np
import pytest

from terrine.data.labels import encode_labels, group_codes, id_codes, similar_groups_warning
from terrine.data.units import name_codes
from terrine.errors import InputError


def test_integers_name_themselves_and_a_column_is_flattened() -> None:
    labels, names = encode_labels({"labels": np.array([[2], [0], [1], [2]], dtype=np.uint8)}, None, "x.npz")
    assert labels["labels"].dtype == np.int64
    assert labels["labels"].tolist() == [2, 0, 1, 2]
    assert names == ("0", "1", "2")


def test_text_is_numbered_in_alphabetical_or_in_the_given_order() -> None:
    splits = {"train_labels": np.array(["b", "c"]), "test_labels": np.array(["a", "c"])}
    labels, names = encode_labels(splits, None, "x.npz")
    assert names == ("a", "b", "c")
    assert labels["train_labels"].tolist() == [1, 2]
    assert labels["test_labels"].tolist() == [0, 2]
    labels, names = encode_labels({"labels": np.array(["b", "a", "A."])}, ["b", "a"], "x.npz")
    assert (labels["labels"].tolist(), names) == ([0, 1, 1], ("b", "a"))


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        (np.array([0, 1, 99, 1]), None, r"x\.npz: labels\[2\] is 99, but the 3 classes.*data\.bins"),
        (np.array([0, 1, 10**15]), None, r"labels\[2\] is 1000000000000000, but the 3 classes"),
        (np.array([1, 2, 1]), None, r"labels\[1\] is 2, but the 2 classes are numbered 0\.\.1"),
        (np.array([0, 1, -1]), None, r"labels\[2\] is -1, but"),
        (np.array([0, 1, 3]), ["a", "b", "c"], r"labels\[2\] is 3, but the 3 classes"),
        (np.array(["a", "x"]), ["a", "b"], r"labels\[1\]: the label is 'x', not one of data\.classes=\[a, b\]"),
        (np.array([0.0, 1.0]), None, r"must be integers 0\.\.K-1 or texts .* but are labels float64.*data\.bins"),
        (np.array([[0, 1], [1, 0]]), None, r"labels has shape \[2, 2\], .* data\.findings"),
        (np.zeros((2, 1, 1), dtype=np.int64), None, r"labels has shape \[2, 1, 1\], but needs one value"),
    ],
)
def test_labels_without_a_class_are_refused(values: np.ndarray, names: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_labels({"labels": values}, names, "x.npz")


def test_text_and_integers_do_not_mix() -> None:
    with pytest.raises(InputError, match="but are train_labels int64, test_labels <U1"):
        encode_labels({"train_labels": np.array([0, 1]), "test_labels": np.array(["0", "1"])}, None, "x.npz")


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint64, str])
def test_the_code_of_a_group_depends_only_on_its_text(kind: type) -> None:
    groups = group_codes({"train": np.array([[7], [12], [7]]).astype(kind), "test": np.array(["12", "5"])}, "x.npz")
    assert groups["train"].dtype == np.int64
    assert np.array_equal(groups["train"], name_codes(["7", "12", "7"]))
    assert np.array_equal(groups["test"], name_codes(["12", "5"]))


def test_ids_have_codes_and_are_ordered_by_text() -> None:
    codes, order = id_codes({"train_ids": np.array(["b", "d"]), "val_ids": np.array(["a", "c"])}, "x.npz")
    assert np.array_equal(codes, name_codes("bdac"))
    assert order.tolist() == [2, 0, 3, 1]
    codes, order = id_codes({"ids": np.array([10, 9, 2])}, "x.npz")
    assert np.array_equal(codes, name_codes(["10", "9", "2"]))
    assert order.tolist() == [0, 2, 1]
    with pytest.raises(InputError, match=r"x\.npz: train_ids\[1\] and val_ids\[0\] are both '7'"):
        id_codes({"train_ids": np.array([5, 7]), "val_ids": np.array([7, 8])}, "x.npz")


@pytest.mark.parametrize(
    ("values", "message"), [(np.array(["p1", ""]), r"x\[1\] is empty"), (np.array([1.0, 2.0]), "x is float64")]
)
def test_groups_and_ids_are_integers_or_texts(values: np.ndarray, message: str) -> None:
    for encode in (group_codes, id_codes):
        with pytest.raises(InputError, match=message):
            encode({"x": values}, "x.npz")


def test_similar_groups_are_counted_and_not_named() -> None:
    (warning,) = similar_groups_warning(["0007", "7", "P 1", "p1", "8", "8", "x"])
    assert warning.startswith("2 of 6 group names look like another")
    assert "P 1" not in warning
    assert similar_groups_warning(["1", "2", "10"]) == ()
