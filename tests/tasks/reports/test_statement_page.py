"""The page for an ethics board: all languages say the same, every kind of statement has words, nothing is typed."""

import functools
import json
import math
import re
import string
import zlib
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import compress, cycle, product
from statistics import NormalDist
from typing import get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tasks.reports.language import LANGUAGES, Language
from tasks.reports.pages import TEMPLATES
from tasks.reports.statement_page import (
    SignatureMark,
    correct_guesses,
    done,
    placeholder_values,
    published_files,
    render_pdf,
    render_statement_page,
    render_technical_page,
)
from tasks.serving.pages import model_card
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.sums import Gradients, Moments, mu_left
from terrine.deployment.signature import fingerprint, sign_approval
from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    GaussianEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    compose,
    laplace_answers,
    of_several,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.facts import TABLE, About, Examples, Facts, Origin, Record, Unprotected, sentences
from terrine.privacy.statement import statement_from
from terrine.privacy.training import Training
from tests.tasks.pipeline.test_report import Page, check_offline
from tests.terrine.privacy.test_statement import statement

MARK = SignatureMark(datetime(2026, 3, 1, tzinfo=UTC), "01ab 23cd")
VOTES = {"mechanism": "histogram", "sigma": 40.0}
ALL = {"queried": 286}  # and answered
ANSWERS = RepeatedEvent(vote_answer(40.0), 286)
YES_OR_NO = (200, 86)
SUMS, GRADIENTS = Moments().schedule(mu_left(9.5, 1e-5)), Gradients(rounds=4)
AVERAGES = GaussianEvent(2.0, 30.0)
FOUND = {"kind": "classes", "names": ["a", "b", "c"], "edges": [], "target": None, "found": True}
INTERACTIVE = {"mechanism": "interactive", "threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0} | {
    "surprise": 50.0,
    "confidence": 0.9,
}
APPROVER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def approved(signer):
    about = {"run": "digits", "releases": ["0123"], "decision": "approved", "role": "data <steward>", "signer": signer}
    return asdict(sign_approval(APPROVER, {**about, "subject": "ab", "signed": "2026-02-03T10:00:00+00:00"}))


PARTIES = {"rounds": 4, "clip": 0.5, "learning_rate": 1.0, "sigma": 3.0, "sigma_gradients": 2.0}
ROWS = Facts("row", (Examples("own rows", 1000),), (Unprotected("own rows", 1234),), held_out=True)
POOL = Facts(
    "dicom",
    (Examples("programs", 500), Examples("own images", 500)),
    (Unprotected("own images", 600), Unprotected("published earlier", 7)),
    held_out=True,
    accuracy_epsilon=0.5,
    declared_units=2000,
)
INVENTED = Facts("volume")
IMPORTED = [
    Training("opacus", "poisson", ((4.0, 0.01, 500),)),
    Training("stated", "shuffled", ((9.0, 0.01, 500),)),
    Training("flower", "fixed", ((8.0, 0.01, 50),)),
    Training("dp_accounting", "all", ((30.0, 1.0, 50),)),
]
NOT_OBSERVED = {
    **{"noise": "not observed", "teachers": None, "delta_slack": None, "partition_digest": None},
    **{"partition_disjoint": None, "queries": 0, "queried": 0, "answered": 0, "answered_per_class": ()},
}
KINDS = {
    "histogram": {"mechanism": VOTES, "event": ANSWERS, **ALL},
    "gnmax": {"mechanism": VOTES | {"mechanism": "gnmax"}, "event": ANSWERS, "unit": "group", "epsilon_account": 9.5}
    | ALL,
    "confident": {},
    "interactive": {"mechanism": INTERACTIVE | {"rounds": 2}},
    "lnmax": {"mechanism": {"mechanism": "lnmax", "scale": 400.0}, "event": laplace_answers(400.0, 286), **ALL},
    "moments and count": {
        "mechanism": VOTES
        | {"counted": {"units": 1234, "sigma": 9.0}, "moments": {"numbers": 4051, "noise_multiplier": 30.0}},
        "event": compose(GaussianEvent(1.0, 9.0), GaussianEvent(2.0, 30.0), ANSWERS),
    }
    | ALL,
    "findings": {
        "mechanism": VOTES | {"findings": 4, "findings_bound": 1},
        "facts": Facts("image", (Examples("programs", 250),)),
        "answered_per_class": YES_OR_NO,
        "event": RepeatedEvent(vote_answer(40.0), 144),  # two of each of 71 queries, and the first two of another
        **ALL,
    },
    "grades": {"mechanism": VOTES | {"grades": 5}, "event": ANSWERS, **ALL},
    "numbers": {"mechanism": VOTES | {"bins": [-5.0, 0.0, 2.5, 1e7]}, "event": ANSWERS, **ALL},
    "findings, tested": {
        "mechanism": {"mechanism": "confident", "threshold": 90.0, "sigma1": 60.0, "sigma2": 40.0}
        | {"findings": 4, "findings_bound": 1},
        "facts": Facts("image", (Examples("programs", 250),)),
        "answered_per_class": YES_OR_NO,
    },
    "averages": {
        "mechanism": VOTES
        | {
            "averaging": {"mode": "private", "averages": 3, "vectors": 4, "clip": 0.5, "noise_multiplier": 90.0}
            | {"centred": True}
        }
        | {"block": 5},
        "event": compose(GaussianEvent(2.0, 90.0), RepeatedEvent(GaussianEvent(1.0, 45.0), 3), ANSWERS),
    }
    | ALL,
    "sums": {
        "mechanism": {"mechanism": "moments", "numbers": 12345},
        "event": SUMS.event,
        "event_added": SUMS.event_added,
    },
    "sums of groups": {
        "mechanism": {"mechanism": "moments", "numbers": 12345},
        "unit": "group",
        "event": SUMS.event,
    },
    "sums and averages": {
        "mechanism": {"mechanism": "moments", "numbers": 12345}
        | {"moments": {"numbers": 4051, "noise_multiplier": 30.0}},
        "event": compose(AVERAGES, Moments().schedule(mu_left(9.5, 1e-5, AVERAGES)).event),
        "task": FOUND,
    },
    "gradients": {
        "mechanism": GRADIENTS.describe() | {"numbers": 12345},
        "event": GRADIENTS.event(mu_left(9.5, 1e-5)),
    },
    "gradients of parties": {
        "mechanism": {"mechanism": "gradients", "numbers": 12345, **PARTIES},
        "event": RoundSchedule(**PARTIES).event,
    },
    "own rows": {"mechanism": VOTES, "event": ANSWERS, "facts": ROWS, **ALL},
    "own images and all other facts": {"mechanism": VOTES, "event": ANSWERS, "facts": POOL, "unit": "group", **ALL},
    "annotation": {
        "facts": INVENTED,
        "mechanism": {"mechanism": "annotation", "sigma": 100.0, "beta": 1.0, "norm": "sample", "samples": 286},
        "event": RepeatedEvent(GaussianEvent(2.0, 100.0), 286),
        "epsilon_claimed": 0.05,
        "teachers": 1,
    },
    "annotation of batches": {
        "facts": INVENTED,
        "mechanism": {"mechanism": "annotation", "sigma": 100.0, "norm": "batch", "iterations": 26, "samples": 286},
        "event": RepeatedEvent(GaussianEvent(2.0, 100.0), 26),
    },
    "answers": {
        "facts": INVENTED,
        "mechanism": {"mechanism": "answers", "epsilon": 0.01, "top_k": 3},
        "event": RepeatedEvent(RandomisedResponseEvent(0.01, 3), 286),
    },
    **{
        f"imported, {training.sampling}": {
            "facts": Facts("row" if training.sampling == "fixed" else "image"),
            "mechanism": {**training.describe(), "files": {"model.pt": "ab"}},
            "event": training.events(1e-5)[0],
            "event_added": training.events(1e-5)[1],
            **NOT_OBSERVED,
        }
        for training in IMPORTED
    },
    "labels": {
        "facts": INVENTED,
        "mechanism": {"mechanism": "labels", "epsilon": 1.0},
        "event": RandomisedResponseEvent(1.0, 3),
        "unit": "label",
    },
    "overlap": {
        "mechanism": VOTES | {"overlap": 2, "parties": ["north", "trust", "uni"], "opened": "2026-11-26"},
        "event": of_several(ANSWERS, 2),
        **ALL,
        "trust_model": "parties",
        "epsilon_account": 10.0,
    },
    "a plugin's": {"mechanism": {"mechanism": "somebody's own"}},
    "all figures": {
        "epsilon_tuning": 5.0,
        "epsilon_budget": 4.0,
        "epsilon_dataset": 4.5,
        "audit_epsilon": 0.71239,
        "audit_confidence": 0.95,
        "delta": 2.5e-9,
    },
    "approved by a person": {"approval": approved("person")},
    "approved in a form": {"approval": approved("site")},
    "replayed": {"noise": "replay"},
    "overlapping parts": {"partition_disjoint": False},
    "no guarantee": {
        "mechanism": VOTES | {"averaging": {}},
        "event": NonPrivateEvent(),
        "epsilon_budget": 9e9,
        "epsilon_dataset": 9e9,
        "epsilon_claimed": 1.0,
    },
    "a wide limit": {
        "event": GaussianEvent(100.0, 1.0),
        "epsilon_budget": 1e5,
        "epsilon_dataset": 1e5,
        "mechanism": VOTES,
    },
}


def made(name, **changes):
    budgets = {"epsilon_budget": 9.5, "epsilon_dataset": 9.5} if "event" in KINDS[name] else {}
    return statement(**{**budgets, **KINDS[name], **changes}).to_dict()


CONTENTS = {name: json.loads(json.dumps(made(name))) for name in KINDS}


@functools.cache
def pages_of(name):
    return {code: render_statement_page(CONTENTS[name], code, MARK) for code in LANGUAGES}


def used(message: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(message) if name}


def text_of(page: str) -> str:
    shown_text = "".join(data for data, _ in Page(re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)).texts)
    return re.sub(r"\s+", " ", shown_text)


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_language_has_the_same_messages_with_the_same_placeholders(code):
    own, english = Language.load(code).messages, Language.load("en").messages
    assert own.keys() == english.keys()
    assert own["format"].keys() == english["format"].keys()
    assert len(own["months"]) == 12
    assert own["nouns"].keys() == english["nouns"].keys() == {*get_args(Record), "group", "label"}
    for key, message in english.items():
        if isinstance(message, str):
            assert used(own[key]) == used(message), key
            assert message.count("<strong>") == own[key].count("<strong>") == own[key].count("</strong>"), key
            assert own[key].strip()


def test_every_message_is_said_somewhere_and_every_value_is_in_a_message_or_on_the_page():
    language = Language.load("en")
    template = (TEMPLATES / "statement_page.html").read_text(encoding="utf-8")
    keys = {key for key, message in language.messages.items() if isinstance(message, str)}
    found = {key for content in CONTENTS.values() for key in done(content)}
    found |= {key for content in CONTENTS.values() for _, key in published_files(content, signed=True)}
    found |= {key for _, key, *_ in TABLE} | {"code_no", "code_yes"}
    found |= {key for key in keys if f'"{key}"' in template}
    found |= {f"{kind}_{unit}" for kind in ("worlds", "replaced") for unit in ("record", "group", "label")}
    found |= {f"about_{name}" for name in ("description", "purpose", "controller", "contact", "collected")}
    found |= {"added_record", "added_group", "trust_central", "trust_parties", "row_none"}
    found |= {f"approved_{content['approval']['signer']}" for content in CONTENTS.values() if content["approval"]}
    found |= {"broken_replay", "broken_partition", "broken_method", "library_stated"}
    assert found == keys
    values = placeholder_values(CONTENTS["confident"], language, MARK, 60.0).keys()
    placeholders = {name for key in keys for name in used(language.messages[key])} - {"count"}  # of the table's
    assert placeholders | set(re.findall(r"shown\.(\w+)", template)) == values


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_statement_has_a_page_in_every_language(name):
    content = CONTENTS[name]
    pages = pages_of(name)
    for code, page in pages.items():
        check_offline(page)
        assert f'<html lang="{code}">' in page
        text = text_of(page)
        assert content["run"] in text
        assert content["release_id"] in text
        assert not re.search(r"[{}]|\b(None|nan|inf)\b", text)
        assert ("NOT PRIVATE" in text) == (not content["private"])
        if content["private"]:
            assert Language.load(code).exact(content["epsilon_guaranteed"]).replace("\u202f", " ") in text
            assert Language.load(code).number(correct_guesses(content), 1) in text
    assert len(set(pages.values())) == len(LANGUAGES)


def test_the_software_is_named_in_the_pages_language():
    content = CONTENTS["confident"] | {"code_version": "terrine 0.2.0 project commit 1a2b modified no"}
    assert "Terrine 0.2.0; Programmcode unverändert seit Commit 1a2b des Projekts" in text_of(
        render_statement_page(content, "de")
    )
    other = content | {"code_version": "terrine 0.2.0 epsilon 1 modified no"}
    assert "terrine 0.2.0 epsilon 1 modified no" in text_of(render_statement_page(other, "de"))


def test_an_approval_is_on_the_page_of_every_language_with_date_role_and_key():
    for name, site in (("approved by a person", False), ("approved in a form", True)):
        texts = {code: text_of(page) for code, page in pages_of(name).items()}
        for code, text in texts.items():
            assert "data &lt;steward&gt;" in pages_of(name)[code]
            assert "data <steward>" in text
            assert fingerprint(APPROVER.public_key()) in text
        assert "Approved on 3 February 2026 (UTC)" in texts["en"]
        assert ("the site signed for this person" in texts["en"]) == site
    assert "Approved on" not in text_of(pages_of("all figures")["en"])


def test_a_run_that_guarantees_nothing_prints_no_epsilon():
    for name in ("replayed", "overlapping parts", "no guarantee"):
        text = text_of(pages_of(name)["en"])
        assert "2.5427" not in text
        assert "What is guaranteed" not in text
        assert "part of ε" not in text
        assert "what is published" not in text
        assert "ε guaranteednone" in text
    reasons = [text_of(pages_of(name)["de"]) for name in ("replayed", "overlapping parts", "no guarantee")]
    for text, reason in zip(reasons, ("Startwert", "überschneiden", "keine Differential Privacy"), strict=True):
        assert reason in text


def test_what_holds_only_sometimes_is_said_only_then():
    def text(name):
        return text_of(pages_of(name)["en"])

    assert "the budget that was fixed in advance, ε = 3. Of this, ε = 2.5427 was used" in text("confident")
    assert "the budget that was fixed" not in text("histogram")
    assert "must not collude" in text("overlap")
    assert "up to 2 of the institutions" in text("overlap")
    assert "Partiesnorth, trust, uniOpened on26 November 2026" in text("overlap").replace("\u00a0", " ")
    assert "institutions" not in text("histogram")
    assert "Parties" not in text("histogram")
    assert "this limit is wide" in text("a wide limit").lower()
    assert "this limit is wide" not in text("histogram").lower()
    assert "The records themselves are not protected." in text("labels")
    assert "annotations/, generator/" in text("annotation")
    assert "answers/the noisy answers" in text("histogram")
    assert "answers/" not in text("overlap")
    assert "4,051 averages over all images" in text("moments and count")
    assert "The 12,345 noisy sums are all that the model learned" in text("sums")
    assert "The 12,345 noisy sums and the averages named below are all that" in text("sums and averages")
    assert ["records of a group counted as one" in text(name) for name in ("sums of groups", "sums")] == [True, False]
    for name in KINDS:
        observed = not name.startswith("imported")
        assert ("is proven how" in text(name)) == CONTENTS[name]["private"]
        assert ("if the operator’s statement about the training is true. Then it is proven" in text(name)) != observed
        assert ('class="banner sound"' in pages_of(name)["en"]) == (observed and CONTENTS[name]["private"])
        assert ("fixed in advance" in text(name)) <= observed
    for name in ("sums", "labels", "annotation", "answers"):
        assert "put to the vote" not in text(name)
    assert "Random noise" not in text("no guarantee")
    assert "chose by looking" not in text("all figures")
    assert "at least 0.7123 (confidence 95 %)" in text("all figures")
    assert "at most 2.5 × 10⁻⁹ (1 in 400,000,000, called δ)" in text("all figures")
    assert "Of the total fixed in advance, ε = 9.5, ε = 9.5 has been used" in text("gnmax").replace("\u00a0", " ")
    for name, said in CONTENTS.items():
        later = "The separate ε of the accuracy is added to this." in text(name)
        assert later == (said["private"] and said["facts"]["accuracy_epsilon"] is not None)
    assert "somebody's own" in text("a plugin's")


# Words that are true only under a condition: on a page of its language they occur if and only if the condition holds.
CLAIMS = {
    "own rows were asked about": (
        lambda said: origins(said) & {"own rows"},
        {"en": "rows that the operator declared public", "de": "Zeilen, die der Betreiber für öffentlich",
         "fr": "lignes que l’opérateur a déclarées", "es": "filas que el operador declaró"},
    ),
    "own images were asked about": (
        lambda said: origins(said) & {"own images"},
        {"en": "real images that the operator declared", "de": "echte Bilder, die der Betreiber",
         "fr": "images réelles que l’opérateur a déclarées", "es": "imágenes reales que el operador declaró"},
    ),
    "the examples have nothing of the private data": (
        lambda said: origins(said) & {"programs"},
        {"en": "without using the private data", "de": "ohne Verwendung der privaten Daten",
         "fr": "sans recours aux données privées", "es": "sin usar los datos privados"},
    ),
    "somebody is not protected": (
        lambda said: said["facts"]["unprotected"],
        {"en": "Not protected. ", "de": "Nicht geschützt. ", "fr": "Non protégés. ", "es": "No protegidos. "},
    ),
    "an earlier run published records": (
        lambda said: any(item["why"] == "published earlier" for item in said["facts"]["unprotected"]),
        {"en": "an earlier run", "de": "einem früheren Lauf", "fr": "une exécution antérieure",
         "es": "una ejecución anterior"},
    ),
    "the student has no row": (
        lambda said: said["facts"]["record"] == "row",
        {"en": "contain no row", "de": "keine Zeile", "fr": "aucune ligne", "es": "ninguna fila"},
    ),
    "the student has no image": (
        lambda said: said["facts"]["record"] != "row",
        {"en": "contain no real image", "de": "kein echtes Bild", "fr": "aucune image réelle",
         "es": "ninguna imagen real"},
    ),
    "records are of DICOM files": (
        lambda said: said["facts"]["record"] == "dicom" and said["unit"] == "record",
        {"en": "a series or a study", "de": "eine Serie oder eine Studie", "fr": "une série ou une étude",
         "es": "una serie o un estudio"},
    ),
    "there were teachers": (
        lambda said: "numbers" not in said["mechanism"],
        {"en": "teachers", "de": "Lehrermodelle", "fr": "enseignants", "es": "maestros"},
    ),
    "there was a vote": (
        lambda said: "numbers" not in said["mechanism"],
        {"en": "vote", "de": "Stimmenzahl", "fr": " vot", "es": "vota"},
    ),
    "records were set aside": (
        lambda said: said["facts"]["held_out"],
        {"en": "set aside for testing", "de": "zum Testen zurückgehalten", "fr": "mis de côté pour les tests",
         "es": "apartados para las pruebas"},
    ),
    "an accuracy is released": (
        lambda said: said["facts"]["accuracy_epsilon"],
        {"en": "a separate ε of 0.5", "de": "eigene Kosten von ε = 0,5",
         "fr": "un coût propre, ε = 0,5", "es": "un coste propio, ε = 0,5"},
    ),
    "the number of units was declared": (
        lambda said: said["facts"]["declared_units"],
        {"en": "are about 54,321", "de": "etwa 54.321 geschützte", "fr": "environ 54 321 enregistrements",
         "es": "unos 54 321 registros"},
    ),
    "adding or removing costs less": (
        lambda said: "event_added" in said,
        {"en": "most other tools", "de": "meisten anderen Werkzeuge", "fr": "plupart des autres outils",
         "es": "mayoría de las demás herramientas"},
    ),
    "the class names occurred in the data": (
        lambda said: said["task"],
        {"en": "labels that occurred in the data", "de": "die in den Daten vorkamen",
         "fr": "étiquettes présentes dans les données", "es": "etiquetas que aparecían en los datos"},
    ),
    "the operator states something": (
        lambda said: said["facts"]["about"],
        {"en": "Statement of the operator", "de": "Angaben des Betreibers", "fr": "Déclarations de l’opérateur",
         "es": "Declaraciones del operador"},
    ),
    "a person has one record or group": (
        lambda said: (said["facts"]["about"] or {}).get("one_per_person"),
        {"en": "ε holds for each person", "de": "ε gilt daher für jede Person", "fr": "ε vaut donc pour chaque",
         "es": "ε vale para cada persona"},
    ),
    "the operator did not give the purpose": (
        lambda said: stated(said) and said["facts"]["about"]["purpose"] is None,
        {"en": "Purposenot stated", "de": "Zweckkeine Angabe", "fr": "Finaliténon indiqué", "es": "Finalidadno consta"},
    ),
    "the operator gave no information": (
        lambda said: said["facts"]["about"] and not stated(said),
        {"en": "has not described the data", "de": "nichts angegeben", "fr": "n’a décrit ni les données",
         "es": "no ha indicado los datos"},
    ),
    "an attack is on record": (
        lambda said: said["audit_epsilon"] is not None,
        {"en": "proved that ε is at least", "de": "dass ε mindestens", "fr": "a prouvé que ε vaut au moins",
         "es": "demostró que ε vale al menos"},
    ),
}  # fmt: skip


def stated(said):
    return {value for value in (said["facts"]["about"] or {}).values() if value is not None}


def origins(said):
    return {item["origin"] for item in said["facts"]["examples"]}


def combinations():
    """Every choice of origins with each other fact switched on and off, over all kinds of records and units."""
    every = list(get_args(Origin))
    subsets = [list(compress(every, bits)) for bits in product((0, 1), repeat=len(every))]
    switches = cycle(product((0, 1), repeat=4))
    statements = cycle(
        (None, About(), About(purpose="care", one_per_person=True), About(description="scans", one_per_person=False))
    )
    audits = cycle(({}, {"task": FOUND}, {"audit_epsilon": 0.5, "audit_confidence": 0.95}))
    for chosen, record, unit in product(subsets, get_args(Record), ("record", "group")):
        earlier, held_out, declared, sums = next(switches)
        counts = [100 + number for number in range(len(chosen))]
        own = [Unprotected(why, 3210) for why in chosen if why in ("own rows", "own images", "public dataset")]
        facts = Facts(
            record,
            tuple(map(Examples, chosen, counts)),
            (*own, *[Unprotected("published earlier", 7)] * earlier),
            held_out=bool(held_out),
            accuracy_epsilon=0.5 if held_out and declared else None,
            declared_units=54321 * declared or None,
            about=next(statements),
        )
        number = sum(counts)
        votes = {"mechanism": VOTES, "event": ANSWERS, "queried": 286, "queries": max(number, 286)}
        yield facts, unit, (votes if number >= 286 and not sums else KINDS["sums"]) | next(audits)


def test_no_page_contradicts_a_fact_or_leaves_one_out():
    seen = {name: set() for name in CLAIMS}
    for facts, unit, kind in combinations():
        budgets = {"epsilon_budget": 9.5, "epsilon_dataset": 9.5}
        said = json.loads(json.dumps(statement(**budgets, **kind, facts=facts, unit=unit).to_dict()))
        assert statement_from(said).to_dict() == said
        technical, card = render_technical_page(said, ["a", "b", "c"]), model_card(said, ["a", "b", "c"])
        for code in LANGUAGES:
            text = text_of(render_statement_page(said, code)).replace("\u202f", " ").replace("\xa0", " ")
            for name, (holds, words) in CLAIMS.items():
                assert (words[code] in text) == bool(holds(said)), (name, code, facts, text)
                seen[name].add(bool(holds(said)))
            for item in (*facts.examples, *facts.unprotected):
                assert Language.load(code).number(item.count).replace("\u202f", " ") in text
        for text in (said["summary"], text_of(technical), card):
            for sentence in sentences(said, "unprotected"):
                assert sentence in text
        assert ("teacher" in text_of(technical)) == ("numbers" not in said["mechanism"])
        assert ("answered" in text_of(technical)) == ("numbers" not in said["mechanism"])
        for page in (technical, card):
            assert ("DICOM" in page) is False
            assert all(sentence in text_of(page) for sentence in sentences(said, "files"))
    assert all(each == {True, False} for name, each in seen.items()), seen


def test_each_epsilon_stands_beside_the_factor_and_the_guess_of_its_own_relation():
    """The best guess between N(0, 1) and N(μ, 1) is right with probability Φ(μ/2), for the μ of either relation."""
    said = CONTENTS["sums"]
    texts = (text_of(pages_of("sums")["en"]), text_of(render_technical_page(said, ["a", "b", "c"])))
    assert "Signed on" in texts[0]
    assert "Signed on" not in texts[1]  # the technical page is written before the signature, which covers it
    assert "not signed" not in texts[1]
    assert "signature.json is next to it as well, that file contains the date, the key" in texts[1]
    for name, event, epsilon in (
        ("event", SUMS.event, said["epsilon"]),
        ("event_added", SUMS.event_added, said["epsilon_added"]),
    ):
        expected = 100 * NormalDist().cdf(math.sqrt(mu_squared(event)) / 2)
        guesses = correct_guesses(said, name)
        assert expected <= guesses <= expected + 0.11
        assert all(f"{guesses:.1f}" in text for text in texts)
        assert all(Language.load("en").factor(epsilon) in text for text in texts)
    assert correct_guesses(said, "event_added") < correct_guesses(said) - 3


def test_a_changed_figure_changes_every_page():
    """No figure is typed into a template or a message."""
    more = {"queries": 1001, "facts": Facts("image", (Examples("programs", 1001),), held_out=True)}
    for changes in ({"teachers": 251}, {"epsilon_dataset": 9.25}, {"delta": 2e-5}, more, {"run": "other"}):
        other = made("overlap", **changes)
        for code in LANGUAGES:
            assert render_statement_page(other, code, MARK) != pages_of("overlap")[code], changes


def test_numbers_and_dates_are_written_as_each_language_does():
    german, french, spanish, english = (Language.load(code) for code in ("de", "fr", "es", "en"))
    assert [language.number(1234.5, 1) for language in (english, german)] == ["1,234.5", "1.234,5"]
    assert [language.number(12345) for language in (french, spanish)] == ["12\u202f345", "12\u202f345"]
    assert [language.number(1234) for language in (french, spanish)] == ["1\u202f234", "1234"]
    assert [language.exact(1e-5) for language in (english, german)] == ["0.00001", "0,00001"]
    assert german.exact(1.25e-20) == "1,25\xa0·\xa010⁻²⁰"
    assert english.exact(0) == "0"
    assert english.percent(0.95) == "95\xa0%"
    first = datetime(2026, 3, 1, tzinfo=UTC)
    assert [language.date(first).replace("\xa0", " ") for language in (english, german, french, spanish)] == [
        "1 March 2026", "1. März 2026", "1er mars 2026", "1 de marzo de 2026",
    ]  # fmt: skip


def test_the_factor_is_e_to_the_epsilon_rounded_up():
    language = Language.load("en")
    assert [language.factor(value) for value in (0.0, 0.5, 3.0, 7.9878)] == ["1", "1.65", "20.1", "2,950"]
    assert language.factor(1000.0) == "1.98\xa0×\xa010⁴³⁴"


def test_a_language_that_there_is_none_of_is_refused_in_a_sentence():
    with pytest.raises(SettingError, match=r"no statement in 'it'.*de, en, es, fr"):
        Language.load("it")


def test_names_from_outside_are_escaped():
    page = render_statement_page({**CONTENTS["histogram"], "run": "<script>{epsilon}"}, "fr")
    assert "&lt;script&gt;{epsilon}" in page


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_longest_statement_fits_two_sheets(code):
    try:
        from weasyprint import HTML
    except (ImportError, OSError):  # OSError: of libraries of the system
        pytest.skip("weasyprint, or the pango that it needs, is not installed")

    mechanism = {**KINDS["moments and count"]["mechanism"], "mechanism": "interactive", "overlap": 3, "averaging": {}}
    about = About(
        description="chest X-rays",
        purpose="triage",
        controller="Clinic A",
        contact="privacy@clinic.example",
        collected="2019 to 2023",
        one_per_person=True,
    )
    facts = Facts("image", (Examples("programs", 1000),), held_out=True, about=about)
    content = made(
        "all figures",
        mechanism=mechanism,
        trust_model="parties",
        unit="group",
        facts=facts,
        task=FOUND,
        epsilon_account=9.5,
    )
    page = render_statement_page(content, code, MARK)
    assert len(HTML(string=page).render().pages) <= 2
    if code == "de":
        pdf = render_pdf(page)
        assert pdf.startswith(b"%PDF")
        parts = [pdf, *(zlib.decompress(part) for part in re.findall(rb"stream\n(x.*?)\nendstream", pdf, re.DOTALL))]
        for entry in (b"/Lang (de)", b"/Author (Clinic A)", b"/CreationDate (D:20"):
            assert any(entry in part for part in parts), entry


def test_what_is_missing_for_a_pdf_is_said_in_a_sentence(monkeypatch):
    import sys

    from terrine.extras import MissingExtraError

    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(MissingExtraError, match=r"weasyprint.*terrine\[pdf\]"):
        render_pdf("<p>")


def test_statements_of_these_tests_are_statements():
    for name, content in CONTENTS.items():
        if name != "no guarantee":
            assert statement_from(content).to_dict() == content
