"""A recipient can verify that a release is unchanged, and identify its signer."""

import json
import math
import random
import re
import shutil

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from flows.cli.release import statement, verify
from tasks.reports.statement_page import render_statement_page
from tasks.runtime.store import write_json
from tasks.serving import pages
from tasks.serving.pages import pack
from tasks.serving.verification import refuse_wrong, verify_statement
from terrine.aggregation.sums import Gradients
from terrine.deployment.manifest import seal
from terrine.deployment.signature import expected_key, public_pem, read_signature, sign, write_signature
from terrine.errors import ArtefactError, InputError, TerrineError
from terrine.privacy.accounting.events import GaussianEvent, RepeatedEvent, vote_answer
from terrine.privacy.facts import Facts
from tests.student_folders import write_release
from tests.tasks.reports.test_statement_page import CONTENTS, KINDS, SUMS, VOTES
from tests.tasks.reports.test_statement_page import made as made_statement

KEY = Ed25519PrivateKey.generate()


def without_paper(html):
    raise TerrineError("no WeasyPrint here")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A signed release with pages in two languages, one PDF, and the public key."""
    folder = tmp_path_factory.mktemp("made")
    release = folder / "release"
    write_release(release)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "render_pdf", lambda html: b"%PDF " + html[:9].encode())
        written = pages.write_pages(release, ["de", "fr"], KEY)
    assert written.no_pdf is None
    (folder / "site.pem").write_bytes(public_pem(KEY.public_key()))
    return folder


@pytest.fixture
def release(made, tmp_path):
    shutil.copytree(made / "release", tmp_path / "release")
    return tmp_path / "release"


def site_key(folder):
    return expected_key(str(folder / "site.pem"))


def wrong(checks):
    return {check.what for check in checks if check.holds is False}


def terrine(*arguments):
    app = typer.Typer()
    app.command()(statement)
    app.command()(verify)
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_a_release_as_it_was_signed_holds_with_and_without_the_key(made, release):
    for key in (None, site_key(made)):
        checks = verify_statement(release, key)
        assert {check.what: check.holds for check in checks} == dict.fromkeys(
            ["ε", "mechanism", "signature", "student", "classes", "privacy.json", *pages.pages_in(release)], True
        )
        refuse_wrong(checks)
    assert "100 × Gaussian(sensitivity 1.414, sigma 40)" in checks[0].detail
    given, carried = (str(terrine(release, *extra).output) for extra in (("--key", made / "site.pem"), ()))
    assert "All checks passed.\n" in given
    assert "The sender was not verified" in " ".join(carried.split())


def test_a_file_of_the_release_may_be_named_instead_of_its_folder(made, release):
    for name in ("privacy.json", "statement-de.pdf", "signature.json"):
        assert not wrong(verify_statement(release / name, site_key(made)))
    (release / "bericht.pdf").write_bytes(b"")
    for path in (release / "bericht.pdf", release / "none.html", release.parent, release / "student"):
        with pytest.raises(InputError):
            verify_statement(path)


def test_a_release_in_one_file_is_as_good_as_its_folder(made, release, tmp_path):
    pack(release, tmp_path / "student.zip")
    packed = (tmp_path / "student.zip").read_bytes()
    for key in (None, site_key(made)):
        assert verify_statement(tmp_path / "student.zip", key) == verify_statement(release, key)
    assert terrine(tmp_path / "student.zip", "--key", made / "site.pem").exit_code == 0
    (release / "accuracy.json").write_text("{}")
    pack(release, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() != packed
    (release / "privacy.json").unlink()
    pack(release, tmp_path / "again.zip")
    with pytest.raises(InputError, match=re.escape(f"no statement {tmp_path}/again.zip/privacy.json")):
        verify_statement(tmp_path / "again.zip")
    (tmp_path / "cut.zip").write_bytes(packed[:2000] + packed[2100:])
    with pytest.raises(ArtefactError, match="is damaged"):
        verify_statement(tmp_path / "cut.zip")


def changed(value):
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("0" if value[-1:] != "0" else "1")
        case None:
            return 1.0
        case list():
            return [*value, changed(value[-1])] if value else [1]
        case dict():
            first = next(iter(value))
            return {**value, first: changed(value[first])}


FIELDS = sorted([
    "answered", "answered_per_class", "approval", "audit_confidence", "audit_epsilon", "code_version",
    "dataset", "delta", "delta_slack", "epsilon", "epsilon_account", "epsilon_budget", "epsilon_claimed",
    "epsilon_dataset", "epsilon_guaranteed", "epsilon_tuning", "event", "facts", "mechanism", "neighbouring", "noise",
    "partition_digest", "partition_disjoint", "private", "public_inputs", "queried", "queries", "release_id", "run",
    "schema_version", "summary", "task", "teachers", "trust_model", "trust_model_text", "unit", "warning",
])  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_the_statement_can_be_changed(made, release, name):
    content = json.loads((release / "privacy.json").read_text())
    assert sorted(content) == FIELDS
    write_json(release / "privacy.json", {**content, name: changed(content[name])})
    assert "privacy.json" in wrong(verify_statement(release, site_key(made))) & wrong(verify_statement(release))


@pytest.mark.parametrize(
    "task",
    [
        None,
        {"names": ["class 0", "class 1", "class 2", "other"]},
        {"names": ["class 3", "class 2", "class 1", "class 0"]},
        {"names": ["class 0", "class 1"]},
    ],
)
def test_a_student_of_other_classes_than_its_release_needs_no_signature_to_be_found(release, task):
    content = json.loads((release / "privacy.json").read_text())
    write_json(release / "privacy.json", {**content, "task": None if task is None else content["task"] | task})
    (release / "signature.json").unlink()
    assert "classes" in wrong(verify_statement(release))


@pytest.mark.parametrize("task", [{}, {"kind": "guesses"}, {"records": 17}, {"names": [1, 2]}, {"found": "yes"}])
def test_a_statement_says_of_a_task_what_is_public_and_no_more(release, task):
    content = json.loads((release / "privacy.json").read_text())
    said = content["task"] | task if task else {}
    write_json(release / "privacy.json", {**content, "task": said})
    (release / "signature.json").unlink()
    assert "ε" in wrong(verify_statement(release))


@pytest.mark.parametrize("name", ["epsilon", "event", "answered", "unit", "summary", "epsilon_guaranteed"])
def test_a_figure_that_does_not_follow_from_the_events_needs_no_signature_to_be_found(release, name):
    content = json.loads((release / "privacy.json").read_text())
    write_json(release / "privacy.json", {**content, name: changed(content[name])})
    (release / "signature.json").unlink()
    assert "ε" in wrong(verify_statement(release))


def test_parameters_that_are_not_those_of_the_events_need_no_signature_to_be_found(release):
    content = json.loads((release / "privacy.json").read_text())
    write_json(release / "privacy.json", {**content, "mechanism": {"mechanism": "gnmax", "sigma": 400.0}})
    (release / "signature.json").unlink()
    assert "mechanism" in wrong(verify_statement(release))


@pytest.mark.parametrize(
    "name", ["statement.html", "statement-de.html", "statement-fr.html", "statement-de.pdf", "model-card.md"]
)
def test_no_page_can_be_changed_and_html_not_even_where_nothing_is_signed(made, release, name):
    path = release / name
    path.write_bytes(path.read_bytes()[:-1])
    assert wrong(verify_statement(release, site_key(made))) == {name}
    (release / "signature.json").unlink()
    unsigned = {check.what: check.holds for check in verify_statement(release)}
    assert unsigned[name] is (None if name.endswith("pdf") else False)


def test_a_page_of_another_mark_or_that_was_added_is_found(made, release):
    content = json.loads((release / "privacy.json").read_text())
    (release / "statement-es.html").write_text(render_statement_page(content, "es"))
    assert wrong(verify_statement(release, site_key(made))) == {"statement-es.html"}


def test_what_was_signed_and_did_not_come_along_is_named(made, release):
    (release / "statement-de.pdf").unlink()
    shutil.rmtree(release / "student")
    held = {check.what: check.holds for check in verify_statement(release, site_key(made))}
    assert held["statement-de.pdf"] is held["student"] is None
    assert False not in held.values()


def test_weights_cannot_be_changed_nor_another_student_put_there(made, release):
    head = release / "student" / "head.safetensors"
    whole = head.read_bytes()
    head.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "student" in wrong(verify_statement(release, site_key(made)))
    manifest = json.loads((release / "student" / "manifest.json").read_text())
    write_json(release / "student" / "manifest.json", seal(release / "student", manifest))
    assert "another digest" in next(
        check.detail for check in verify_statement(release, site_key(made)) if check.what == "student"
    )
    write_json(release / "student" / "manifest.json", seal(release / "student", {**manifest, "release": "02"}))
    assert "student" in wrong(verify_statement(release))


def test_a_foreign_key_and_a_missing_signature_are_refused_where_a_key_is_given(made, release):
    signed = vars(read_signature(release / "signature.json"))
    content = {name: value for name, value in signed.items() if name not in ("public_key", "signature")}
    write_signature(release / "signature.json", sign(Ed25519PrivateKey.generate(), content))
    # Pages carry the fingerprint of the key, so they do not fit the foreign one, either.
    assert "signature" in wrong(verify_statement(release, site_key(made)))
    assert {"statement-de.html", "statement-fr.html"} <= wrong(verify_statement(release))
    (release / "signature.json").unlink()
    assert "signature" in wrong(verify_statement(release, site_key(made)))
    done = terrine(release, "--key", made / "site.pem")
    assert done.exit_code == 1
    assert "checks failed. Do not rely on this release" in done.output


def averages_of(**changes):
    """Return a statement about averages with changed numbers."""
    mechanism = KINDS["averages"]["mechanism"]
    return KINDS["averages"] | {"mechanism": mechanism | {"averaging": mechanism["averaging"] | changes}}


@pytest.mark.parametrize(
    "forged",
    [
        {"mechanism": KINDS["moments and count"]["mechanism"]},
        {"mechanism": KINDS["moments and count"]["mechanism"] | {"counted": {"units": 9, "sigma": 1e3}}},
        {"mechanism": VOTES | {"findings": 286, "findings_bound": 1}, "event": RepeatedEvent(vote_answer(40.0), 2)}
        | {"facts": Facts("image")},
        {"mechanism": KINDS["averages"]["mechanism"]},
        {"mechanism": VOTES | {"averaging": {"mode": "paper", "averages": 9, "vectors": 0}}},
        KINDS["annotation"] | {"mechanism": KINDS["annotation"]["mechanism"] | {"discriminator": "teacher"}},
        {"mechanism": VOTES | {"overlap": 1.9}},
        averages_of(averages=9),
        averages_of(averages=9, vectors=0, centred=False) | {"event": KINDS["histogram"]["event"]},
        KINDS["annotation"] | {"mechanism": KINDS["annotation"]["mechanism"] | {"samples": 51_200}},
        KINDS["annotation"] | {"mechanism": KINDS["annotation"]["mechanism"] | {"norm": "batch", "iterations": 26}},
        KINDS["annotation of batches"] | {"event": RepeatedEvent(GaussianEvent(2.0, 100.0), 13)},
        KINDS["labels"] | {"unit": "record"},
        KINDS["sums"] | {"event": GaussianEvent(math.sqrt(4.5), 20 * SUMS.sigma), "event_added": None},
        KINDS["gradients"] | {"mechanism": Gradients(rounds=400).describe()},
        KINDS["sums"] | {"event_added": GaussianEvent(0.9, SUMS.sigma)},
        KINDS["sums"] | {"event_added": GaussianEvent(2.0, 2 * SUMS.sigma)},
    ],
    ids=[
        "moments and a count for nothing",
        "moments for nothing",
        "classes as findings",
        "averages for nothing",
        "averages without noise",
        "a teacher as discriminator",
        "part of an institution",
        "nine averages at the price of three",
        "nine averages at the price of none",
        "fewer samples paid for than there are",
        "samples at the price of batches",
        "batches at half the price",
        "randomised labels of protected records",
        "sums with twenty times the noise",
        "four hundred rounds at the price of four",
        "a unit that is added for less than half",
        "a unit that is added, with other noise",
    ],
)
def test_what_was_released_besides_is_in_the_price_and_classes_are_no_findings(forged, tmp_path):
    write_json(tmp_path / "privacy.json", json.loads(json.dumps(made_statement("histogram", **forged))))
    assert "mechanism" in wrong(verify_statement(tmp_path))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_statement_verifies_by_itself(name, tmp_path):
    write_json(tmp_path / "privacy.json", CONTENTS[name])
    found = {check.what: check.holds for check in verify_statement(tmp_path)}
    untold = name in ("interactive", "findings, tested", "a plugin's", "no guarantee")
    consistent = name not in ("a wide limit",)  # of which the parameters were made up
    assert found.pop("approval", False) == name.startswith("approved")
    assert found == {"ε": True, "mechanism": None if untold else consistent, "signature": None, "student": None}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        (name, key)
        for name in ("histogram", "gnmax", "confident", "interactive", "lnmax", "findings, tested", "sums", "gradients",
                     "gradients of parties", "annotation", "annotation of batches", "answers", "labels")
        for key in CONTENTS[name]["mechanism"]
        if key not in ("numbers", "samples", "beta", "rounds" if name == "interactive" else "", "findings_bound")
    ],
)  # fmt: skip
def test_a_parameter_that_is_missing_is_wrong_and_not_only_untold(name, missing, tmp_path):
    content = json.loads(json.dumps(made_statement(name)))
    del content["mechanism"][missing]
    write_json(tmp_path / "privacy.json", content)
    assert wrong(verify_statement(tmp_path)) & {"mechanism", "ε"}


def test_a_statement_that_guarantees_nothing_says_so(release):
    from tests.terrine.privacy.test_statement import statement

    write_json(release / "privacy.json", statement(noise="replay", release_id="01").to_dict())
    (release / "signature.json").unlink()
    assert verify_statement(release)[0].detail.startswith("NOT PRIVATE")


@pytest.mark.parametrize("name", ["privacy.json", "signature.json"])
def test_whatever_is_done_to_a_file_is_refused_without_a_traceback(made, release, name):
    """Bytes exchanged, cut out and doubled, and values of other kinds put in."""
    path, draw = release / name, random.Random(name)
    for page in release.glob("statement*"):
        page.unlink()
    (release / "model-card.md").unlink()
    shutil.rmtree(release / "student")
    whole, content = path.read_bytes(), json.loads(path.read_text())
    odd = [None, True, -1, 1e400, 10**30, "", "x", [], {}, [[]], {"event": "repeated", "of": {}, "count": -1}, "\ud800"]
    for attempt in range(150):
        place = draw.randrange(len(whole))
        if attempt % 3 == 0:
            mutated = whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :]
        elif attempt % 3 == 1:
            mutated = whole[:place] + whole[place + draw.randrange(1, 60) :]
        else:
            other = {**content, draw.choice(list(content)): draw.choice(odd)}
            mutated = json.dumps(other, indent=2, sort_keys=True).encode()
        if mutated == whole:
            continue
        path.write_bytes(mutated)
        assert wrong(verify_statement(release, site_key(made))), mutated
    for mutated in (b"", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"null", b"[]", b"1"):
        path.write_bytes(mutated)
        assert wrong(verify_statement(release, site_key(made))), mutated[:20]


@pytest.mark.parametrize(
    "part",
    [
        {"event": "laplace", "sensitivity": 2.0, "scale": 1e3},
        {"event": "laplace", "sensitivity": 1e300, "scale": 1e-300},
        {"event": "gaussian", "sensitivity": 1e300, "sigma": 1e-300},
        {"event": "randomised_response", "epsilon": 700.0, "categories": 10**9},
        {
            "event": "repeat_and_select",
            "of": {"event": "gaussian", "sensitivity": 1, "sigma": 1},
            "mean": 1e12,
            "shape": 1,
        },
    ],
    ids=lambda part: part["event"],
)
def test_events_of_absurd_size_are_refused_at_once(release, part):
    content = json.loads((release / "privacy.json").read_text())
    event = {"event": "repeated", "of": part, "count": 10**12}
    write_json(release / "privacy.json", {**content, "event": event})
    assert "ε" in wrong(verify_statement(release))


def test_signing_again_leaves_no_page_of_before_and_a_missing_weasyprint_is_said(release, monkeypatch):
    monkeypatch.setattr(pages, "render_pdf", without_paper)
    written = pages.write_pages(release, ["en"])
    assert written.no_pdf == "no WeasyPrint here"
    assert written.files == ["statement-en.html", "model-card.md"]
    assert pages.pages_in(release) == ["model-card.md", "statement-en.html", "statement.html"]
    assert not (release / "signature.json").exists()
    assert not wrong(verify_statement(release))


def test_what_cannot_be_verified_is_not_signed(release):
    page = release / "statement.html"
    page.write_text(page.read_text().replace("among 50 ", "among 51 "))
    with pytest.raises(ArtefactError, match=r"statement\.html differs from what this version"):
        pages.write_pages(release, ["en"], KEY)
    (release / "student" / "more").write_text("")
    with pytest.raises(ArtefactError, match="was added later"):
        pages.write_pages(release, ["en"], KEY)
    with pytest.raises(ArtefactError):
        refuse_wrong(verify_statement(release))


def test_one_page_elsewhere_is_signed_as_those_of_the_release_are(release, tmp_path):
    pages.write_single_page(release, "de", tmp_path / "page.html", None)
    assert (tmp_path / "page.html").read_bytes() == (release / "statement-de.html").read_bytes()
