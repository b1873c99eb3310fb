"""verify.html of an airlock kit in a browser: the same verdicts as verify.py, offline."""

import base64
import copy
import hashlib
import json
import math
import random
import re
from pathlib import Path

import pytest

from tasks.desk.kit import verify
from terrine.privacy.accounting.events import to_json
from tests.airlock_kits import CHANGES, copy_of, make_kit
from tests.devtools import browser
from tests.tasks.desk.test_kit_verifier import compositions
from tests.tasks.reports.test_pages_in_a_browser import findings

FILE = Path(verify.__file__).with_suffix(".html")


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit and the fingerprint of its key."""
    return make_kit(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page, opened from a file in a browser."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def verdict(page, folder, key, file=FILE):
    """Choose a folder in the page; return the verdict and the checks with their outcomes."""
    page.open(file.as_uri())
    page.evaluate(f"document.getElementById('key').value = {json.dumps(key)}")
    page.choose("#folder", folder)
    return concluded(page)


def concluded(page):
    page.wait("document.getElementById('verdict').className !== ''")
    checks = page.evaluate("Array.from(checks.children, item => [item.className, item.lastChild.textContent])")
    return page.evaluate("verdict.textContent"), checks


def test_nothing_can_be_loaded_and_no_other_script_can_run():
    text = FILE.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    hashes = {
        tag: base64.b64encode(hashlib.sha256(re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1].encode()).digest())
        for tag in ("script", "style")
    }
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes['script'].decode()}'; "
        f"style-src 'sha256-{hashes['style'].decode()}'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|innerHTML|\beval\(", text)


def test_a_kit_is_verified_with_and_without_the_key(page, kit):
    folder, key = kit
    told, checks = verdict(page, folder, key, folder / "verify.html")
    assert told == "No check failed."
    assert [outcome for outcome, _ in checks] == ["ok"] * 5
    assert checks[-1][1] == "ε: 1.3565 at δ = 1e-5 follows from the events. Guaranteed: ε = 1.3565."
    told, checks = verdict(page, folder, "")
    assert told == "No check failed, but the signer was not checked."
    assert [outcome for outcome, _ in checks] == ["ok", "ok", "unknown", "ok", "ok"]
    assert page.messages == []


def test_a_folder_may_be_dropped_and_an_archive_may_not(page, kit):
    folder, _ = kit
    for path, expected in ((folder, "No check failed, but"), (folder.with_name("kit.zip"), "Drop the unpacked folder")):
        page.open(FILE.as_uri())
        x, y = page.evaluate("(box => [box.x + box.width / 2, box.y + 8])(folder.getBoundingClientRect())")
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            page.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
        assert concluded(page)[0].startswith(expected)


def test_what_is_dropped_beside_the_field_does_not_replace_the_page(page, kit):
    page.open(FILE.as_uri())
    data = {"items": [], "files": [str(kit[0] / "index.html")], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.send("Input.dispatchDragEvent", type=kind, x=3, y=3, data=data)
    assert concluded(page)[0].startswith("Drop the unpacked folder of the kit on the field")
    assert page.evaluate("location.href") == FILE.as_uri()


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_kit_is_refused_with_its_reason(page, kit, tmp_path, name):
    change, told = CHANGES[name]
    folder = copy_of(kit[0], tmp_path)
    change(folder)
    concluded, checks = verdict(page, folder, kit[1])
    assert concluded == "Do not rely on this kit. Request it again from the site."
    outcome, sentence = checks[-1]
    assert outcome == "wrong"
    assert told in sentence


def test_a_wrong_key_and_a_folder_that_is_no_kit_are_told(page, kit, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    assert verdict(page, tmp_path, "")[0] == "kit.json is missing. Choose the unpacked folder of a kit."
    assert verdict(page, kit[0], "12 34")[0].startswith("The fingerprint must have 32 hexadecimal digits")
    _, checks = verdict(page, kit[0], "0" * 32)
    assert checks[-1][1].startswith("signature: Signed with the key ")


def test_a_browser_without_ed25519_is_told(page, kit):
    page.open(FILE.as_uri())
    page.evaluate("crypto.subtle.importKey = async () => { throw new DOMException('', 'NotSupportedError'); }")
    page.choose("#folder", kit[0])
    assert concluded(page)[0].startswith("This browser cannot check Ed25519 signatures.")


def test_epsilon_is_that_of_python(page):
    page.open(FILE.as_uri())
    asked = [(to_json(event), delta) for event, delta in compositions(1000)]
    found = page.evaluate(f"{json.dumps(asked)}.map(([event, delta]) => epsilonOf(Math.sqrt(muSquared(event)), delta))")
    for (event, delta), epsilon in zip(asked, found, strict=True):
        assert epsilon == pytest.approx(
            verify.epsilon_of(math.sqrt(verify.mu_squared(event)), delta), rel=1e-12, abs=1e-9
        )


def damaged(value, generator):
    """Return JSON in which one value, chosen at random, became something else or is absent."""
    value, place = copy.deepcopy(value), []
    inner = value
    while isinstance(inner, dict | list) and inner and (not place or generator.random() < 0.8):
        place.append((inner, generator.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))))
        inner = place[-1][0][place[-1][1]]
    outer, key = place[-1]
    if isinstance(outer, dict) and generator.random() < 0.2:
        del outer[key]
    else:
        outer[key] = generator.choice([None, False, 0, -1, 1e308, 10**300, "", "x", [], {}, [1], {"event": "gaussian"}])
    return value


def test_damaged_statements_are_judged_as_by_python(page, kit):
    content, generator = json.loads((kit[0] / "privacy.json").read_text()), random.Random(3)
    decisive = {name: content[name] for name in ("event", "epsilon", "delta", "mechanism", "epsilon_budget")}
    tried = [content | damaged(decisive, generator) for _ in range(500)]

    def verdict_of(statement):
        try:
            return str(verify.check_epsilon(statement)[0])
        except verify.Wrong:
            return "wrong"

    page.open(FILE.as_uri())
    script = (
        "statement => { try { return {true: 'True', null: 'None'}[checkEpsilon(statement)[0]]; } "
        "catch (error) { return error instanceof Wrong ? 'wrong' : String(error); } }"
    )
    expected = [verdict_of(statement) for statement in tried]
    assert page.evaluate(f"{json.dumps(tried)}.map({script})") == expected
    assert set(expected) == {"True", "None", "wrong"}


def test_signed_text_is_written_as_python_writes_it(page):
    page.open(FILE.as_uri())
    value = {"ä": 'é\u2028\x7f"\\\n\x01😀', "a": None, "Z": {"2": "b", "10": "c"}}
    expected = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert page.evaluate(f"canonical({json.dumps(value)})") == expected


def test_duplicate_keys_are_found_at_any_depth_and_equal_texts_are_none(page):
    page.open(FILE.as_uri())
    for text, wrong in (
        ('{"a": 1, "b": {"a": "a"}, "c": ["a", "a"]}', False),
        ('{"a": 1, "\\u0061": 2}', True),
        ('{"b": [{"a": 1, "a": 1}]}', True),
        ('{"a": "\\"b\\": 1, \\"b\\": 2"}', False),
        ('{"a": 1e999}', True),
        ('{"a": NaN}', True),
        ("[]", True),
    ):
        page.evaluate(f"globalThis.tried = bytesOf({json.dumps(text)})")
        caught = "try { parseJson(tried, 'x'); false } catch (error) { error instanceof Wrong }"
        assert page.evaluate(caught) is wrong, text


def test_the_pages_of_a_kit_can_be_read_at_every_width_light_and_dark(kit, tmp_path):
    # Framed by another page, whose policy is not that of the kit's page.
    text = re.sub(r"<meta http-equiv[^>]+>", "", FILE.read_text(encoding="utf-8"))
    pages = {"verify": text, "index": (kit[0] / "index.html").read_text(encoding="utf-8")}
    found = findings(pages, tmp_path)
    assert {name: sentences for name, sentences in found.items() if sentences} == {}
