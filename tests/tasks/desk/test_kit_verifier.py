"""verify.py of an airlock kit: signatures, ε, and kits that were changed, without Terrine."""

import ast
import json
import math
import subprocess
import sys
import venv
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tasks.desk.kit import verify
from terrine.deployment.signature import fingerprint, public_pem, signing_key
from terrine.privacy.accounting.events import GaussianEvent, LaplaceEvent, RepeatedEvent, compose, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from tests.airlock_kits import CHANGES, STEWARD, STRANGER, approve, copy_of, make_kit
from tests.student_folders import make_statement

FILE = Path(verify.__file__)
VECTORS = (  # RFC 8032, section 7.1: tests 1, 2, 3 and SHA(abc)
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
)


def accepted(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return the verdict of the library `cryptography`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@pytest.mark.parametrize("vector", VECTORS, ids=range(4))
def test_signatures_of_the_standard_are_accepted_and_changed_ones_are_not(vector):
    public, message, signature = map(bytes.fromhex, vector)
    assert verify.verify_ed25519(public, message, signature)
    assert not verify.verify_ed25519(public, message + b".", signature)
    assert not verify.verify_ed25519(public, message, signature[:-1])
    for place in (0, 31, 32, 63):
        changed = bytearray(signature)
        changed[place] ^= 1
        assert not verify.verify_ed25519(public, message, bytes(changed))


def test_random_and_malformed_signatures_are_judged_as_by_cryptography():
    generator = np.random.default_rng(5)
    verdicts = []
    for number in range(60):
        key = Ed25519PrivateKey.from_private_bytes(generator.bytes(32))
        public, message = key.public_key().public_bytes_raw(), generator.bytes(number)
        signature = key.sign(message)
        s = int.from_bytes(signature[32:], "little")
        tries = [(public, signature), (public, signature[:32] + (s + verify.L).to_bytes(32, "little"))]
        for which in (0, 1):
            changed = [bytearray(public), bytearray(signature)]
            changed[which][generator.integers(len(changed[which]))] ^= 1 << int(generator.integers(8))
            tries.append((bytes(changed[0]), bytes(changed[1])))
        tries += [(generator.bytes(32), signature), (public, generator.bytes(64)), (public, signature[:32] + bytes(32))]
        for one, other in tries:
            verdict = verify.verify_ed25519(one, message, other)
            assert verdict == accepted(one, message, other)
            verdicts.append(verdict)
    assert sum(verdicts) == 60


def test_keys_of_small_order_and_encodings_that_are_not_canonical_are_refused():
    base = verify.BASE
    one, minus_one = (1).to_bytes(32, "little"), (verify.P - 1).to_bytes(32, "little")
    # With the neutral element as key, S B = R holds for every message.
    forged = verify.encode_point(verify.multiply(7, base)) + (7).to_bytes(32, "little")
    assert accepted(one, b"anything", forged)
    for public in (one, minus_one, bytes(32)):
        assert not verify.verify_ed25519(public, b"anything", forged)
    assert verify.decode_point((verify.P + 1).to_bytes(32, "little")) is None
    assert verify.decode_point((1 | 1 << 255).to_bytes(32, "little")) is None, "x = 0 has no sign"
    assert verify.decode_point((2).to_bytes(32, "little")) is None, "not on the curve"
    assert verify.encode_point(base) == verify.encode_point(verify.multiply(verify.L + 1, base))


def compositions(count):
    """Return random compositions of Gaussian mechanisms with a δ, from negligible to absurd costs."""
    generator = np.random.default_rng(11)
    for _ in range(count):
        parts = [
            RepeatedEvent(
                GaussianEvent(float(generator.uniform(0.1, 3)), float(10 ** generator.uniform(-0.5, 3))),
                int(10 ** generator.uniform(0, 3)),
            )
            for _ in range(generator.integers(1, 4))
        ]
        yield compose(*parts), float(10 ** generator.uniform(-30, -1))


def test_epsilon_is_that_of_terrine_and_of_dp_accounting():
    seen = []
    for event, delta in compositions(1000):
        mu = math.sqrt(verify.mu_squared(to_json(event)))
        found, ours = verify.epsilon_of(mu, delta), price(event, delta)
        assert found == pytest.approx(ours, rel=1e-11, abs=1e-11)
        theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta, tol=1e-12)
        assert found == pytest.approx(theirs, rel=1e-8, abs=1e-8)
        # To the printed digit: unless the last digit is a matter of rounding.
        if math.ceil(1e4 * ours * (1 - 1e-11)) == math.ceil(1e4 * ours * (1 + 1e-11)):
            assert round_up(found) == round_up(ours)
        seen.append(found)
    assert min(seen) < 0.05
    assert max(seen) > 1e4


@pytest.mark.parametrize("mu", [1e-8, 1e-4, 0.1, 1.0, 30.0, 1e3])
def test_epsilon_is_right_for_extreme_parameters(mu):
    for delta in (1e-300, 1e-12, 0.4, 0.999):
        found = verify.epsilon_of(mu, delta)
        assert found == pytest.approx(price(GaussianEvent(mu, 1.0), delta), rel=1e-9, abs=1e-13)
    with pytest.raises(ValueError, match="out of range"):
        verify.epsilon_of(mu, 1.0)


def statement_file(tmp_path, **changes):
    (tmp_path / "student").mkdir(exist_ok=True)
    (tmp_path / "student" / "manifest.json").write_text('{"class_names": ["a", "b", "c", "d"]}')
    return json.loads(json.dumps(make_statement(tmp_path / "student", **changes)))


def test_figures_that_do_not_follow_are_found(tmp_path):
    added = {"event_added": RepeatedEvent(GaussianEvent(1.0, 40.0), 100), "mechanism": {"mechanism": "x", "numbers": 4}}
    added["mechanism"] = {"mechanism": "moments", "numbers": 4}
    content = statement_file(tmp_path, **added)
    assert verify.check_epsilon(content)[0] is True
    for changes, told in (
        ({"epsilon": round(content["epsilon"] + 1e-4, 4)}, "epsilon is printed as"),
        ({"epsilon": content["epsilon"] - 5e-5}, "epsilon is printed as"),
        ({"epsilon_added": 0.1}, "epsilon_added is printed as"),
        ({"epsilon_guaranteed": 1.0}, "does not follow"),
        ({"epsilon_budget": 0.1}, "does not follow"),
        ({"private": False}, "NOT PRIVATE"),
        ({"noise": "replay"}, "NOT PRIVATE"),
        ({"partition_disjoint": False}, "NOT PRIVATE"),
        ({"schema_version": 2}, "another version"),
        ({"delta": 0}, "damaged"),
        ({"delta": "1e-5"}, "damaged"),
        ({"epsilon": True}, "damaged"),
        ({"mechanism": None}, "damaged"),
        ({"event": {"event": "gaussian", "sensitivity": 1.0, "sigma": 0}}, "damaged"),
        ({"event": {"event": "gaussian", "sensitivity": -1.0, "sigma": 1.0}}, "damaged"),
        ({"event": {"event": "gaussian", "sensitivity": 1e308, "sigma": 1e-308}}, "damaged"),
        ({"event": {"event": "repeated", "of": [], "count": 1}}, "damaged"),
        ({"event": None}, "damaged"),
    ):
        with pytest.raises(verify.Wrong, match=told):
            verify.check_epsilon(content | changes)
    deep = content["event"]
    for _ in range(100):
        deep = {"event": "composed", "of": [deep]}
    with pytest.raises(verify.Wrong, match="nested too deeply"):
        verify.check_epsilon(content | {"event": deep})
    laplace = to_json(LaplaceEvent(2.0, 10.0))
    assert verify.check_epsilon(content | {"event": laplace})[0] is None


def test_the_budget_is_guaranteed_if_outcomes_decide_about_the_number_of_answers(tmp_path):
    mechanism = {"mechanism": "confident", "threshold": 30.0, "sigma1": 30.0, "sigma2": 40.0}
    content = statement_file(tmp_path, mechanism=mechanism)
    assert verify.check_epsilon(content) == (
        True,
        "ε",
        "1.3565 at δ = 1e-05 follows from the events. Guaranteed: ε = 3.0.",
    )


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit and the fingerprint of its key."""
    return make_kit(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment without any package."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def run(python, kit, *arguments, file=FILE):
    done = subprocess.run([python, "-I", file, kit, *arguments], capture_output=True, text=True, cwd="/")
    return done.returncode, done.stdout + done.stderr


def test_it_needs_the_standard_library_only_and_has_fewer_than_400_lines(python):
    source = FILE.read_text(encoding="utf-8")
    assert source.count("\n") < 400
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source, feature_version=(3, 9)))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
    assert not {"importlib", "pickle", "subprocess", "ctypes", "runpy"} & imported
    missing = subprocess.run([python, "-I", "-c", "import terrine"], capture_output=True, text=True)
    assert "No module named 'terrine'" in missing.stderr


def test_a_kit_is_verified_in_a_new_environment_with_and_without_the_key(python, kit, tmp_path):
    folder, key = kit
    pem = tmp_path / "site.pem"
    pem.write_bytes(folder.joinpath("x").name.encode())
    status, told = run(python, folder, "--key", key, file=folder / "verify.py")
    assert status == 0
    assert told.splitlines()[-2:] == [
        "ok    ε          1.3565 at δ = 1e-05 follows from the events. Guaranteed: ε = 1.3565.",
        "No check failed.",
    ]
    assert "It is the key you gave." in told
    key_of_steward = fingerprint(STEWARD.public_key())
    assert f"approval   By the role 'data steward' on 2026-02-03, {key_of_steward}: the person's key." in told
    status, told = run(python, folder)
    assert status == 0
    assert "signer     NOT checked" in told
    assert told.splitlines()[-1] == "No check failed, but the signer was not checked."
    pem.write_text(json.loads((folder / "signature.json").read_text())["public_key"])
    assert run(python, folder, "--key", pem)[0] == 0
    assert run(python, folder, "--key", key.replace(" ", "").upper())[0] == 0


@pytest.mark.parametrize(("given", "told"), [(None, "privacy.json contains none."), ("site", "the site's key, for")])
def test_a_kit_without_an_approval_by_a_person_says_so(python, tmp_path, given, told):
    site = signing_key(tmp_path / "data" / "private" / "ledger" / "signing.pem")
    folder, key = make_kit(tmp_path, approval=given and approve(site, signer=given))
    status, output = run(python, folder, "--key", key)
    assert status == 0
    assert told in output


def test_what_is_no_kit_and_no_key_is_refused(python, kit, tmp_path):
    folder, _ = kit
    (tmp_path / "key.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for arguments, told in (
        ([tmp_path], "is no kit: kit.json is missing"),
        ([folder, "--key", "12 34"], "neither a fingerprint nor a file with a public key"),
        ([folder, "--key", tmp_path / "key.pem"], "for a certificate, use `terrine verify`"),
        ([folder, "more", "still more"], "unrecognized arguments"),
    ):
        status, output = run(python, *arguments)
        assert status == 2
        assert told in output
    status, output = run(python, folder, "--key", fingerprint(STRANGER.public_key()))
    assert status == 1
    assert "Signed with the key " in output


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_kit_is_refused_with_its_reason(python, kit, tmp_path, name):
    change, told = CHANGES[name]
    folder = copy_of(kit[0], tmp_path)
    assert run(python, folder, "--key", kit[1])[0] == 0
    change(folder)
    status, output = run(python, folder, "--key", kit[1])
    assert status == 1
    (wrong,) = [line for line in output.splitlines() if line.startswith("WRONG")]
    assert told in wrong
    assert "Do not rely on this kit" in output


def test_without_a_key_a_kit_of_another_signer_is_consistent_and_the_signer_open(python, kit, tmp_path):
    folder = copy_of(kit[0], tmp_path)
    CHANGES["other signer"][0](folder)
    status, output = run(python, folder)
    assert status == 0
    assert "signer     NOT checked" in output
    assert fingerprint(STRANGER.public_key()) in output


def test_links_to_folders_pipes_and_odd_names_do_no_harm(python, kit, tmp_path):
    import os

    folder = copy_of(kit[0], tmp_path)
    (folder / "more").symlink_to("/")
    assert "more is a symbolic link or neither" in run(python, folder)[1]
    (folder / "more").unlink()
    os.mkfifo(folder / "more")
    assert "more is a symbolic link or neither a file nor a folder" in run(python, folder)[1]
    (folder / "more").unlink()
    (folder / "\x1b[31mred").write_text("")
    output = run(python, folder)[1]
    assert "?[31mred was added" in output
    assert "\x1b" not in output


def test_a_huge_file_is_not_read_to_its_end(python, kit, tmp_path):
    folder = copy_of(kit[0], tmp_path)
    for name, told in (
        ("privacy.json", "privacy.json was changed"),
        ("kit.sig", "kit.sig was changed: it has more than 16,777,216 bytes"),
    ):
        before = (folder / name).read_bytes()
        with (folder / name).open("wb") as file:
            file.truncate(2**40)
        status, output = run(python, folder)
        assert status == 1
        assert told in output
        (folder / name).write_bytes(before)


def test_the_fingerprint_is_the_one_that_terrine_prints():
    key = STRANGER.public_key()
    assert verify.fingerprint(verify.public_key(public_pem(key).decode())) == fingerprint(key)
