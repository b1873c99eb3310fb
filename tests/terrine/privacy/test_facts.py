"""Facts and their sentences: each follows from the facts alone, in every language, for every combination of facts."""

import json
from itertools import compress, product
from typing import get_args

import pytest

from terrine.errors import SettingError
from terrine.privacy.facts import (
    TABLE,
    About,
    Examples,
    Facts,
    Origin,
    Reason,
    Record,
    Unprotected,
    applicable,
    origin_of,
    sentences,
)
from tests.terrine.privacy.test_statement import statement

IMAGES = ("image", "dicom", "volume")
# When each sentence holds, written independently of the table: f are the facts, u is the unit, v whether there was a
# vote, t whether an ε of a search is given (None: no, and the class names are those that occurred).
MEANING = {
    "from_programs": lambda f, u, v, t: "programs" in names(f.examples),
    "from_columns": lambda f, u, v, t: "drawn rows" in names(f.examples),
    "from_rows": lambda f, u, v, t: "own rows" in names(f.examples),
    "from_images": lambda f, u, v, t: "own images" in names(f.examples),
    "from_dataset": lambda f, u, v, t: "public dataset" in names(f.examples),
    "from_provided": lambda f, u, v, t: "provided" in names(f.examples),
    "unprotected_rows": lambda f, u, v, t: "own rows" in names(f.unprotected),
    "unprotected_images": lambda f, u, v, t: "own images" in names(f.unprotected),
    "unprotected_dataset": lambda f, u, v, t: "public dataset" in names(f.unprotected),
    "unprotected_earlier": lambda f, u, v, t: "published earlier" in names(f.unprotected),
    "not_observed": lambda f, u, v, t: v is None,
    "files_images": lambda f, u, v, t: f.record != "row" and v is not None,
    "files_columns": lambda f, u, v, t: f.record == "row" and "drawn rows" in names(f.examples),
    "files_rows": lambda f, u, v, t: f.record == "row" and "drawn rows" not in names(f.examples) and v is not None,
    "who_image": lambda f, u, v, t: (u, f.record) == ("record", "image"),
    "who_dicom": lambda f, u, v, t: (u, f.record) == ("record", "dicom"),
    "who_volume": lambda f, u, v, t: (u, f.record) == ("record", "volume"),
    "who_row": lambda f, u, v, t: (u, f.record) == ("record", "row"),
    "who_images_of_one": lambda f, u, v, t: u == "group" and f.record != "row",
    "who_rows_of_one": lambda f, u, v, t: (u, f.record) == ("group", "row"),
    "who_label": lambda f, u, v, t: u == "label",
    "outside_record": lambda f, u, v, t: u == "record" and one(f) is not True,
    "outside_group": lambda f, u, v, t: u == "group" and one(f) is not True,
    "outside_label": lambda f, u, v, t: u == "label",
    "outside_elsewhere": lambda f, u, v, t: True,
    "outside_held_out": lambda f, u, v, t: f.held_out,
    "outside_accuracy": lambda f, u, v, t: f.accuracy_epsilon is not None,
    "outside_evaluation": lambda f, u, v, t: f.accuracy_epsilon is None,
    "outside_units": lambda f, u, v, t: f.declared_units is not None,
    "outside_classes": lambda f, u, v, t: t is None,
    "outside_tuning": lambda f, u, v, t: not t,
    "person_one_record": lambda f, u, v, t: u == "record" and one(f) is True,
    "person_one_group": lambda f, u, v, t: u == "group" and one(f) is True,
    "person_one_label": lambda f, u, v, t: u == "label" and one(f) is True,
    "person_several_records": lambda f, u, v, t: u == "record" and one(f) is False,
    "person_several_groups": lambda f, u, v, t: u == "group" and one(f) is False,
    "person_several_labels": lambda f, u, v, t: u == "label" and one(f) is False,
    "limit_general": lambda f, u, v, t: True,
    "limit_public_teachers": lambda f, u, v, t: v,
    "limit_public": lambda f, u, v, t: not v,
    "limit_operator": lambda f, u, v, t: True,
    "limit_law": lambda f, u, v, t: True,
}
ABOUT = (None, About(purpose="research"), About(one_per_person=True), About(one_per_person=False))


def one(facts):
    return facts.about and facts.about.one_per_person


def names(items):
    return {item.origin if isinstance(item, Examples) else item.why for item in items}


def subsets(values):
    return [list(compress(values, bits)) for bits in product((0, 1), repeat=len(values))]


def every_combination():
    for chosen, reasons in product(subsets(get_args(Origin)), subsets(get_args(Reason))):
        if not {"own rows", "own images", "public dataset"} & set(chosen) <= set(reasons):
            continue
        examples = tuple(Examples(origin, 10 + number) for number, origin in enumerate(chosen))
        unprotected = tuple(Unprotected(why, 100 + number) for number, why in enumerate(reasons))
        for record, tested, units, about in product(get_args(Record), range(3), (None, 77), ABOUT):
            yield Facts(
                record,
                examples,
                unprotected,
                held_out=tested > 0,
                accuracy_epsilon=0.5 if tested > 1 else None,
                declared_units=units,
                about=about,
            )


def test_every_combination_of_facts_has_its_sentences_and_no_other():
    assert MEANING.keys() == {key for _, key, *_ in TABLE}
    sections = sorted({section for section, *_ in TABLE})
    number = 0
    for facts in every_combination():
        content = facts.to_json()
        for unit, votes, tuned in (
            ("record", 1, 0),
            ("group", 0, 0),
            ("label", 1, 1),
            ("record", 0, 1),
            ("record", None, 0),
            ("group", 0, None),
        ):
            said = {
                "facts": content,
                "unit": unit,
                "mechanism": {1: {}, 0: {"numbers": 8}, None: {"phases": []}}[votes],
                "epsilon_tuning": 3.0 if tuned else None,
                "task": {1: None, 0: {"found": False}, None: {"found": True}}[tuned],
            }
            found = [key for section in sections for key, *_ in applicable(said, section)]
            assert sorted(found) == sorted(key for key, holds in MEANING.items() if holds(facts, unit, votes, tuned))
        number += 1
    assert number > 5_000


def test_numbers_are_those_of_the_facts():
    facts = Facts("row", (Examples("own rows", 1234),), (Unprotected("own rows", 6546),), held_out=True)
    said = statement(facts=facts, queries=1234).to_dict()
    assert sentences(said, "examples") == ["1,234 rows that the operator declared public"]
    assert sentences(said, "unprotected")[0].startswith("The operator declared 6,546 rows of this table public.")
    assert said["summary"].endswith("the people they describe are not protected.")
    assert origin_of(facts.examples) == sentences(said, "examples")[0]


def test_facts_are_read_back_and_changed_ones_are_refused():
    about = About(description="scans", contact="ethics@clinic", one_per_person=False)
    facts = Facts("row", (Examples("own rows", 5),), (Unprotected("own rows", 6),), about=about)
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    for wrong in (
        {"more": 1},
        {"record": "person"},
        {"unprotected": []},
        {"examples": [{"origin": "own rows"}]},
        {"about": {"owner": "x"}},
    ):
        with pytest.raises((SettingError, TypeError, ValueError)):
            Facts.from_json(facts.to_json() | wrong)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"examples": (Examples("own rows", 5),)}, "5 examples are own rows, and only 0 are listed as not protected"),
        ({"examples": (Examples("own images", 5),), "unprotected": (Unprotected("own images", 4),)}, "only 4"),
        ({"examples": (Examples("programs", 0),)}, "counts must be positive"),
        ({"examples": (Examples("private", 3),)}, "'private' is not one of"),
        ({"unprotected": (Unprotected("unlucky", 3),)}, "'unlucky' is not one of"),
        ({"accuracy_epsilon": 0.5}, "set aside"),
    ],
)
def test_facts_that_contradict_one_another_are_refused(arguments, words):
    with pytest.raises(SettingError, match=words):
        Facts("image", **arguments)


def test_a_statement_about_other_examples_than_its_queries_is_refused():
    with pytest.raises(SettingError, match="public examples make 999 queries, not 1000"):
        statement(facts=Facts("image", (Examples("programs", 999),)))
