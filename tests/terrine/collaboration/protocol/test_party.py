import json
from dataclasses import asdict

import pytest

from terrine.collaboration.protocol.party import Agreement
from terrine.errors import SettingError
from tests.collaboration_sessions import agreement, confident, summing


def test_an_agreement_survives_json():
    agreed = confident()
    assert Agreement(**json.loads(json.dumps(asdict(agreed)))) == agreed


@pytest.mark.parametrize(
    "change",
    [
        {"session": "f" * 32},
        {"release": "c" * 64},
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
    ],
)
def test_every_term_of_an_agreement_is_in_its_digest(change):
    assert confident(**change).digest != confident().digest


def test_a_resumed_agreement_differs_in_its_session_alone():
    assert summing(round=1).digest != summing(round=2).digest != summing().digest
    agreed = agreement()
    again = agreed.resumed("f" * 32)
    assert again.session == "f" * 32
    assert again.digest != agreed.digest
    assert again.substance == agreed.substance != agreement(queries=41).substance
    with pytest.raises(SettingError, match="new random id"):
        agreed.resumed(agreed.session)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"session": "xyz"}, "session"),
        ({"session": "A" * 32}, "session"),
        ({"release": "a"}, "release"),
        ({"queries_digest": ""}, "queries_digest"),
        ({"guardian": "north"}, "different names"),
        ({"guardian": "student.example"}, "different names"),
        ({"teachers": (("north", 2), ("north", 2))}, "different names"),
        ({"teachers": (("", 2),)}, "empty"),
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
        ({"round": 1}, "head"),
        ({"reveal": "sums", "classes": 1, "round": -1}, "round"),
    ],
)
def test_an_impossible_agreement_is_refused_by_its_field(change, words):
    with pytest.raises(SettingError, match=words):
        agreement(**change)
