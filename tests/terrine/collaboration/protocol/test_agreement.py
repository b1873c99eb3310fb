import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrine.collaboration.protocol.agreement import Agreement, ProtocolError, arrays_of, body_of, body_size
from terrine.errors import SettingError
from tests.collaboration_sessions import agreement, confident, summing

CHANGES = [
    {"collaboration": "c" * 64},
    {"guardian": "other"},
    {"student": "other"},
    {"teachers": (("north", 2), ("south", 3))},
    {"minimum": 4},
    {"queries": 41},
    {"classes": 5},
    {"queries_digest": "c" * 64},
    {"reveal": "histogram"},
    {"threshold": 2.0},
    {"sigma": 1.25},
    {"sigma_threshold": 2.0},
]


def test_an_agreement_survives_json():
    assert Agreement(**json.loads(json.dumps(asdict(confident())))) == confident()


@pytest.mark.parametrize("change", CHANGES)
def test_every_term_of_an_agreement_is_in_its_digest(change):
    assert confident(**change).digest != confident().digest


def test_rounds_have_different_digests():
    digests = {summing(round=number, weights=9 * bool(number)).digest for number in range(3)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collaboration": "xyz"}, "collaboration"),
        ({"collaboration": "A" * 64}, "collaboration"),
        ({"queries_digest": ""}, "queries_digest"),
        ({"guardian": "north"}, "different, non-empty names"),
        ({"guardian": "student.example"}, "different, non-empty names"),
        ({"teachers": (("north", 2), ("north", 2))}, "different, non-empty names"),
        ({"teachers": (("", 2),)}, "non-empty"),
        ({"teachers": ()}, "teacher"),
        ({"teachers": (("north", 0),)}, "teacher"),
        ({"minimum": 0}, "minimum"),
        ({"minimum": 6}, "minimum"),
        ({"queries": 0}, "queries"),
        ({"classes": 1}, "classes"),
        ({"classes": 10_000}, "classes"),
        ({"reveal": "votes"}, "reveal"),
        ({"threshold": 3.0}, "together"),
        ({"threshold": float("nan"), "sigma_threshold": 1.0}, "threshold"),
        ({"threshold": 1e10, "sigma_threshold": 1.0}, "threshold"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": float("inf")}, "sigma"),
        ({"round": 1}, "weights"),
        ({"reveal": "sums", "classes": 1, "round": -1}, "round"),
    ],
)
def test_an_impossible_agreement_is_refused_by_its_field(change, words):
    with pytest.raises(SettingError, match=words):
        agreement(**change)


SPECS = st.lists(
    st.tuples(st.sampled_from(["u1", "<u2", "<u4", "<u8"]), st.lists(st.integers(0, 4), min_size=1, max_size=3)),
    max_size=4,
)


@given(SPECS)
def test_arrays_survive_a_body_and_every_other_body_is_refused(specs):
    specs = [(kind, tuple(shape)) for kind, shape in specs]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2**8, shape).astype(kind) for kind, shape in specs]
    body = body_of(*arrays)
    assert len(body) == body_size(specs)
    for array, read in zip(arrays, arrays_of(body, specs), strict=True):
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)
    for wrong in (body + b"\0", body[:-1] if body else b"x"):
        with pytest.raises(ProtocolError, match="are expected here"):
            arrays_of(wrong, specs)


def test_padding_is_empty():
    body = bytearray(body_of(np.ones(3, np.uint8)))
    body[-1] = 1
    with pytest.raises(ProtocolError, match="padding"):
        arrays_of(bytes(body), [("u1", (3,))])
