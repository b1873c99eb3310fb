"""party.yaml and terms.yaml: errors are reported in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.parties.config import read_party
from tasks.parties.keys import PartyLine, create_key
from tasks.parties.terms import Terms
from tasks.parties.trial import teachers_of_parties
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import mu_squared
from tests.party_trials import (
    AVERAGED,
    change,
    keys_of,
    terms_of,
    terms_of_averages,
    terms_of_gradients,
    terms_of_sums,
    trial,
)


@pytest.fixture
def folder(tmp_path):
    trial(tmp_path, guardian={"ledger": {"account": "trial", "epsilon": 3.0}})
    return tmp_path


def test_a_trial_has_a_configuration_and_a_key_for_every_party(folder):
    terms = read_party(folder / "student" / "party.yaml").terms
    assert sorted(path.name for path in folder.iterdir()) == sorted(terms.roles())
    for name, role in terms.roles().items():
        config = read_party(folder / name / "party.yaml", role)
        assert (config.terms, config.name) == (terms, name)
        assert config.state == folder / name / "state"
        assert (folder / name).stat().st_mode & 0o077 == 0
        assert (folder / name / "key.pem").stat().st_mode & 0o077 == 0
    ledger = read_party(folder / "guardian" / "party.yaml").ledger
    assert ledger.url == f"sqlite:///{folder}/guardian/ledger/ledger.db"
    assert ledger.store == folder / "guardian" / "ledger" / "releases"


def test_a_key_belongs_to_its_party_and_role(folder):
    path = folder / "party-1" / "party.yaml"
    change(path, folder="../student")
    with pytest.raises(SettingError, match=r"student is the student in the terms, and party\.yaml says teacher"):
        read_party(path).name  # noqa: B018
    change(path, folder="../stranger")
    with pytest.raises(InputError, match="terrine party key"):
        read_party(path).name  # noqa: B018
    create_key(folder / "stranger", "party-1")
    with pytest.raises(SettingError, match="belongs to no party of these terms"):
        read_party(path).name  # noqa: B018


def test_the_line_of_a_party_is_read_as_it_is_printed_and_a_key_is_made_once(tmp_path):
    line = create_key(tmp_path / "trust", "trust", "https://guardian.example.org:7801")
    assert PartyLine.parse(str(line)) == line
    assert create_key(tmp_path / "trust", "trust", "https://guardian.example.org:7801") == line
    assert str(create_key(tmp_path / "north", "north")).count(" ") == 1
    for wrong in ("", "north", "north ed25519:12", f"No {line.key}", f"{line} x", f"a {line.key} http://b:1",
                  f"a {line.key} https://b:1 sha256:1"):  # fmt: skip
        with pytest.raises((InputError, SettingError)):
            PartyLine.parse(wrong)


@pytest.mark.parametrize(
    ("who", "values", "sentence"),
    [
        ("party-1", {"vote": "x"}, "vote: there is no such setting"),
        ("party-1", {"own": None}, "own is missing: a teacher needs it"),
        ("party-1", {"listen": "0.0.0.0:1"}, "listen has no meaning for a teacher"),
        ("party-1", {"patience": 0}, "patience=0"),
        ("guardian", {"ledger": None}, "ledger is missing: a guardian needs it"),
        ("guardian", {"own": {"params": {}}}, "own has no meaning for a guardian"),
        ("student", {"answers": None}, "answers is missing"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(who, values, sentence, folder):
    with pytest.raises(SettingError, match=sentence):
        read_party(change(folder / who / "party.yaml", **values))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"student": "guardian"}, "must have different names"),
        ({"teachers": {"guardian": 1}, "keys": keys_of("guardian", "student")}, "must have different names"),
        ({"keys": keys_of("guardian", "student", "party-1")}, "keys must have one public key for each party"),
        (
            {
                "keys": dict.fromkeys(
                    keys_of("guardian", "student", "party-1", "party-2", "party-3"), "ed25519:" + "0" * 64
                )
            },
            "one key for two",
        ),
        ({"services": {"guardian": {"url": "https://a:1"}}}, "services"),
        ({"services": {"guardian": {"url": "http://a:1"}, "student": {"url": "https://a:1"}}}, "https://host:port"),
        ({"teachers": {"a b": 1}, "minimum": 1}, "cannot be a party's name"),
        ({"teachers": {"one": 0}}, "holds at least one"),
        ({"minimum": 7}, "minimum=7 is above the 6 teachers"),
        ({"queried": 21}, "queried=21 is above queries=20"),
        ({"sigma": 4.0}, "sigma is not a part of confident"),
        ({"sigma1": None}, "sigma1 is missing of confident"),
        ({"mechanism": "interactive"}, "mechanism=interactive cannot be computed by parties"),
        ({"queries_digest": "x"}, "queries_digest='x'"),
        ({"class_names": ["a", "b", "a"]}, "names a class twice"),
        ({"class_names": ["a"]}, "class_names"),
        ({"overlap": 4}, "overlap=4 is above the 3 teacher parties"),
        ({"unit": None}, "terms.unit is missing"),
        ({"unit": "label"}, "terms.unit='label'"),
    ],
)
def test_terms_that_no_collaboration_could_have_are_refused(values, sentence, folder):
    change(folder / "student" / "terms.yaml", **values)
    with pytest.raises(SettingError, match=sentence):
        read_party(folder / "student" / "party.yaml")


OWN = {"images": "queries", "backbone": "backbone"}


def own(**params):
    return {"own": OWN | {"params": {"data": {"name": "digits"}} | params}}


@pytest.mark.parametrize(
    ("agreed", "values", "sentence"),
    [
        ("group", {}, "unit=record, and the terms protect a group"),
        ("group", own(), "own.params.privacy.unit=record, and the terms protect a group"),
        ("group", own(privacy={"unit": "record"}), "own.params.privacy.unit=record, and the terms protect a group"),
        ("record", own(privacy={"unit": "group"}), "own.params.privacy.unit=group, and the terms protect a record"),
    ],
)
def test_a_teacher_party_that_protects_somebody_else_than_the_terms_say_is_refused(agreed, values, sentence, folder):
    change(folder / "party-1" / "terms.yaml", unit=agreed)
    with pytest.raises(SettingError, match=sentence):
        read_party(change(folder / "party-1" / "party.yaml", **values))


@pytest.mark.parametrize(
    ("agreed", "values"),
    [("record", {}), ("record", own()), ("group", own(privacy={"unit": "group"}))],
)
def test_a_teacher_party_that_protects_whom_the_terms_say_is_taken(agreed, values, folder):
    change(folder / "party-1" / "terms.yaml", unit=agreed)
    assert read_party(change(folder / "party-1" / "party.yaml", **values)).terms.unit == agreed


def test_only_a_teacher_party_says_by_what_its_votes_were_dealt(folder):
    with pytest.raises(SettingError, match="own has no meaning for a student"):
        read_party(change(folder / "student" / "party.yaml", own=OWN | {"params": {}}))
    ledger = {"ledger": {"account": "trial", "unit": "group"}}
    with pytest.raises(SettingError, match=r"ledger\.unit: there is no such setting"):
        read_party(change(folder / "guardian" / "party.yaml", **ledger))


def test_parties_compare_all_that_they_agreed_on_also_whom_the_budget_protects():
    terms, unnamed = terms_of(), set(Terms.model_fields) - {"name", "learning", "backbone_manifest", "table"}
    rounds, sums = {"rounds", "clip", "learning_rate", "sigma_gradients"}, {"length", "records"}
    averages = {"teaching", "noise_multiplier", "weights", "features"}
    assert set(terms.public()) == unnamed - sums - rounds - averages
    assert set(terms_of(name="lungs").public()) == {"name", *terms.public()}
    assert set(terms_of_sums().public()) == unnamed - rounds - averages
    assert set(terms_of_gradients().public()) == unnamed - averages
    assert set(terms_of_averages().public()) == unnamed - rounds - sums
    other = "group" if terms.unit == "record" else "record"
    assert terms.model_copy(update={"unit": other}).public() != terms.public()


def test_a_release_of_parties_is_known_by_what_is_asked_and_the_names_and_order_of_classes():
    terms = terms_of()
    known = {
        "guardian",
        "student",
        "teachers",
        "unit",
        "minimum",
        "queries",
        "queried",
        "queries_digest",
        "class_names",
    }
    known |= {"class_names", "mechanism", "sigma", "threshold", "sigma1", "sigma2", "epsilon", "delta", "edition"}
    assert set(terms.identity()) == known
    for names in ("dcba", "abc", "abcx"):
        assert terms.model_copy(update={"class_names": [*names]}).identity() != terms.identity()
    later = {"deadline": 60.0, "version": "9", "learning": {"seed": 1}, "backbone_manifest": "a" * 64}
    assert terms.model_copy(update=later).identity() == terms.identity()
    assert terms.model_copy(update={"overlap": 2}).identity() == terms.identity() | {"overlap": 2}
    # By which teachers votes are cast is not what is released, unless averages of them are.
    taught = terms_of(teaching={"teachers": {"kind": "prompt"}})
    assert taught.public() != terms.public()
    assert taught.identity() == terms.identity()
    averaged = terms_of_averages()
    slower = {"seed": 3, "teachers": AVERAGED | {"learning_rate": 0.1}}
    for changes in ({"teaching": slower}, {"noise_multiplier": 3.0}, {"weights": 6}):
        assert terms_of_averages(**changes).identity() != averaged.identity()


def test_an_agreement_follows_from_the_terms():
    terms = terms_of()
    agreement = terms.agreement()
    assert (agreement.total, agreement.minimum, agreement.queries) == (6, 4, 20)
    assert (agreement.reveal, agreement.threshold) == ("argmax", 3.0)
    assert (agreement.sigma, agreement.sigma_threshold) == (3.0, 4.0)
    plain = {"threshold": None, "sigma1": None, "sigma2": None, "sigma": 5.0}
    agreement = terms_of(mechanism="histogram", queried=7, **plain).agreement()
    assert (agreement.reveal, agreement.sigma, agreement.sigma_threshold) == ("histogram", 5.0, None)
    assert agreement.queries == 7


def test_teachers_are_dealt_in_order_and_evenly():
    assert teachers_of_parties(200, 50) == {f"party-{number:02d}": 4 for number in range(1, 51)}
    assert list(teachers_of_parties(11, 4).values()) == [3, 3, 3, 2]
    with pytest.raises(SettingError, match="each holds at least one"):
        teachers_of_parties(3, 4)


def test_a_partys_process_loads_no_heavy_library():
    """Both services of a trial start with every run by parties."""
    heavy = ["torch", "prefect", "mlflow", "dvc", "pandas", "sklearn", "matplotlib"]
    modules = "tasks.parties.submit, tasks.parties.student, tasks.parties.guardian, flows.cli.party"
    program = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("mechanism", ["histogram", "confident"])
def test_terms_of_averages_price_every_vector_and_the_votes_and_ask_in_rounds(mechanism, overlap):
    confident = {"mechanism": "confident", "threshold": 3.0, "sigma1": 4.0, "sigma2": 3.0, "sigma": None}
    terms = terms_of_averages(overlap=overlap, **(confident if mechanism == "confident" else {}))
    vectors = 1 + 2  # a centre, and two mean updates
    votes = 20 * (1 / 4.0**2 + 2 / 3.0**2) if mechanism == "confident" else 20 * 2 / 4.0**2
    assert mu_squared(terms.event()) == pytest.approx(overlap**2 * (vectors * (2 / 2.0) ** 2 + votes))
    assert terms.numbers == 3 + 2 * 5 + 20 * 5
    rounds = [terms.agreement(number) for number in range(terms.last + 1)]
    assert [one.reveal for one in rounds] == ["sums"] * 3 + ["argmax" if mechanism == "confident" else "histogram"]
    assert [(one.queries, one.classes, one.weights) for one in rounds] == [
        (3, 1, 0),
        (5, 1, 3),
        (5, 1, 13),
        (20, 4, 13),
    ]
    assert [one.threshold for one in rounds] == [None] * 3 + [terms.threshold]


def test_terms_of_averages_lack_nothing_and_hold_nothing_that_contradicts_them():
    def teaching(**changes):
        return {"seed": 3, "teachers": AVERAGED | changes}

    apart = {"clip": None, "budget_share": None}
    for changes, sentence in (
        ({"noise_multiplier": None}, "noise_multiplier is missing of teachers that average"),
        ({"weights": None}, "weights is missing of teachers that average"),
        ({"features": None}, "features is missing of teachers that average"),
        ({"teaching": teaching(centre="none")}, "features is not a part of teachers that average"),
        ({"teaching": None}, "noise_multiplier is not a part of teachers that do not average"),
        ({"teaching": teaching(averaging="none", **apart)}, "not a part of teachers that do not average"),
        ({"teaching": teaching(averaging="blocks", block=2, **apart)}, "teachers.averaging=blocks is not for institu"),
        ({"teaching": teaching(mode="paper", **apart)}, "teachers.mode=paper is not for institutions"),
        ({"teaching": {"teachers": {"kind": "prompts"}}}, "kind=prompts is not a valid value. Did you mean prompt"),
        ({"teaching": teaching(steps=0)}, "steps=0: input should be greater than or equal to 1"),
        ({"noise_multiplier": 1e-5}, "Averages of 6 teachers could overflow"),
    ):
        with pytest.raises(ValueError, match=sentence):
            terms_of_averages(**changes)
    with pytest.raises(ValueError, match="moments sums records, and no teacher learns"):
        terms_of_sums(**{key: terms_of_averages().public()[key] for key in _OF_AVERAGES})


_OF_AVERAGES = ("teaching", "noise_multiplier", "weights", "features")


def test_terms_of_sums_hold_what_cannot_wrap_around():
    assert {"length": 3, "records": 1000}.items() <= terms_of_sums().public().items()
    most = terms_of_sums().fixed_point.most_units // 6
    assert Terms(**terms_of_sums(records=most).public()).records == most
    for changes, sentence in (
        ({"records": most + 1}, f"records={most + 1} of each of 6 parts could wrap sums around"),
        ({"records": None}, "records is missing"),
        ({"length": None}, "length is missing"),
        ({"sigma": None}, "sigma is missing"),
        ({"threshold": 3.0}, "threshold is not a part of moments"),
        ({"sigma": 4000.0}, "too coarse"),
        ({"rounds": 2}, "rounds is not a part of moments"),
        ({"mechanism": "lnmax"}, "cannot be computed by parties"),
    ):
        with pytest.raises(ValueError, match=sentence):
            terms_of_sums(**changes)
    # The finer lattice of the two kinds of rounds decides.
    fine = terms_of_gradients(sigma_gradients=0.3).fixed_point.most_units // 6
    assert fine < most
    for changes, sentence in (
        ({"records": fine + 1, "sigma_gradients": 0.3}, "could wrap sums around"),
        ({"sigma_gradients": 4000.0}, "too coarse"),
        ({"clip": None}, "clip is missing"),
        ({"rounds": None}, "rounds is missing"),
    ):
        with pytest.raises(ValueError, match=sentence):
            terms_of_gradients(**changes)
    with pytest.raises(ValueError, match="length is not a part of confident"):
        terms_of(length=3)
