import pytest

from terrine.collaboration.protocol.randomness import Expansion, fresh_secret


def test_the_same_secret_and_purpose_give_the_same_bytes_in_the_same_order():
    secret = fresh_secret()
    one, other = Expansion(secret, "labels"), Expansion(secret, "labels")
    drawn = [one(size) for size in (16, 64, 16)]
    assert [other(size) for size in (16, 64, 16)] == drawn
    assert [len(part) for part in drawn] == [16, 64, 16]
    assert len({drawn[0], drawn[1][:16], drawn[2]}) == 3


def test_another_secret_or_purpose_gives_other_bytes():
    secret = fresh_secret()
    assert secret != fresh_secret()
    streams = Expansion(secret, "labels"), Expansion(secret, "base transfers"), Expansion(fresh_secret(), "labels")
    assert len({stream(16) for stream in streams}) == 3


def test_a_secret_of_another_length_is_none():
    with pytest.raises(ValueError, match="32 bytes"):
        Expansion(b"short", "labels")
