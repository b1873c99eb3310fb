"""Parties: named, numbered, and one person with one party."""

import numpy as np
import pytest

from terrine.data.partition import check_whole, encode_parties
from terrine.errors import InputError


def test_parties_are_numbered_by_name_over_all_splits():
    numbers, names = encode_parties({"train": np.array(["north", "south"]), "val": np.array(["east", "north"])}, "x")
    assert names == ("east", "north", "south")
    assert numbers["train"].tolist() == [1, 2]
    assert numbers["val"].tolist() == [0, 1]


def test_numbers_may_name_parties_too():
    numbers, names = encode_parties({"parties": np.array([[30], [4], [30]])}, "x")
    assert names == ("4", "30")
    assert numbers["parties"].tolist() == [1, 0, 1]


def test_a_record_without_a_party_is_refused():
    with pytest.raises(InputError, match=r"own\.npz: parties\[1\] is empty\. Give every record a party"):
        encode_parties({"parties": np.array(["a", "", "b"])}, "own.npz")
    with pytest.raises(InputError, match=r"float64. A party is an integer or a text, such as the name of a hospital"):
        encode_parties({"parties": np.array([0.5])}, "own.npz")


def test_one_person_with_two_parties_is_refused_where_persons_are_protected():
    parties = np.array([0, 1, 0, 1, 0, 1])
    groups = np.array([7, 7, 8, 9, 8, 9])
    with pytest.raises(InputError, match=r"1 groups have records with several parties, the first with 'a' and 'b'"):
        check_whole(groups, parties, ["a", "b"])
    check_whole(groups[2:], parties[2:], ["a", "b"])


@pytest.mark.parametrize("seed", range(4))
def test_divided_groups_are_found_as_a_plain_loop_finds_them(seed):
    generator = np.random.default_rng(seed)
    parties, groups = generator.integers(0, 3, 60), generator.integers(0, 25, 60)
    divided = sum(len(set(parties[groups == group].tolist())) > 1 for group in set(groups.tolist()))
    with pytest.raises(InputError, match=f"^{divided} groups have"):
        check_whole(groups, parties, ["a", "b", "c"])
