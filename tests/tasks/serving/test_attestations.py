"""Signatures for other tools are accepted by these tools, and changes are found by them and by Terrine."""

import base64
import json
import shutil
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from tasks.runtime.store import write_json
from tasks.serving import attestations, pages
from tasks.serving.attestations import sign_for_tools, write_attestation, write_model_signature
from tasks.serving.verification import verify_statement
from terrine.deployment.manifest import seal
from terrine.deployment.signature import fingerprint, model_key, signing_key
from terrine.errors import ArtefactError, TerrineError
from tests.student_folders import write_release


def without_paper(html):
    raise TerrineError("no WeasyPrint here")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release signed for all tools, and the site's private keys beside it."""
    folder = tmp_path_factory.mktemp("made")
    release = folder / "release"
    write_release(release)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "render_pdf", without_paper)
        pages.write_pages(release, ["de"], signing_key(folder / "keys" / "signing.pem"))
    assert sign_for_tools(release, folder / "keys" / "signing.pem") == [
        "attestation.json",
        "model.sig",
        "model-key.pem",
    ]
    return folder


@pytest.fixture
def release(made, tmp_path):
    shutil.copytree(made / "release", tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
def public(made):
    return signing_key(made / "keys" / "signing.pem").public_key()


def results(folder, key=None):
    return {check.what: check.holds for check in verify_statement(folder, key and fingerprint(key))}


def model_signing(release):
    """Verify model.sig by the OpenSSF tool; its version 1.1.1 does not declare that it needs pyOpenSSL."""
    pytest.importorskip("OpenSSL", reason="model_signing needs pyOpenSSL")
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=release / "model-key.pem")
    config.verify(release / "student", release / "model.sig")


def test_in_toto_and_dsse_tools_accept_the_attestation(release, public):
    envelope = Envelope.from_dict(json.loads((release / "attestation.json").read_text()))
    assert envelope.payload_type == "application/vnd.in-toto+json"
    assert envelope.verify([SSlibKey.from_crypto(public)], 1)
    statement = Statement.copy_from_pb(json_format.Parse(envelope.payload, statement_pb2.Statement()))
    statement.validate()
    names = {one.name for one in statement.pb.subject}
    student = {f"student/{file.name}" for file in (release / "student").iterdir()}
    beside = {"privacy.json", "statement.html", "statement-de.html", "model-card.md", "signature.json"}
    assert names == student | beside | {"model.sig", "model-key.pem"}
    predicate = json.loads(json_format.MessageToJson(statement.pb.predicate))
    assert predicate == json.loads((release / "privacy.json").read_text())
    other = SSlibKey.from_crypto(signing_key(release / "x" / "signing.pem").public_key())
    with pytest.raises(VerificationError):
        envelope.verify([other], 1)


def test_model_signing_accepts_the_student_and_finds_a_change(release):
    model_signing(release)
    (release / "student" / "more.txt").write_text("more")
    with pytest.raises(ValueError, match="Extra files"):
        model_signing(release)
    (release / "student" / "more.txt").unlink()
    manifest = release / "student" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ValueError, match="Hash mismatch"):
        model_signing(release)


def test_verify_checks_both_and_the_archive_contains_them(release, public, tmp_path):
    pages.pack(release, tmp_path / "student.zip")
    for place in (release, release / "model.sig", release / "attestation.json", tmp_path / "student.zip"):
        for key in (None, public):
            found = results(place, key)
            assert found["attestation.json"] is found["model.sig"] is True
            assert False not in found.values()


def replace_model_key(release):
    write_model_signature(release, model_key(release.parent / "model.pem"))


def sign_with_other_key(release):
    write_attestation(release, signing_key(release.parent / "other.pem"))


def change_predicate(release):
    envelope = json.loads((release / "attestation.json").read_text())
    content = json.loads(base64.b64decode(envelope["payload"]))
    content["predicate"]["epsilon"] = 0.1
    envelope["payload"] = base64.b64encode(json.dumps(content).encode()).decode()
    write_json(release / "attestation.json", envelope)


def drop_signature(release):
    (release / "signature.json").unlink()


def truncate(name):
    def cut(release):
        (release / name).write_bytes((release / name).read_bytes()[:-40])

    return cut


def rewrite(name):
    def change(release):
        (release / name).write_text((release / name).read_text() + "\n")

    return change


def add_to_student(release):
    (release / "student" / "more.txt").write_text("more")
    student = release / "student"
    manifest = json.loads((student / "manifest.json").read_text())
    write_json(student / "manifest.json", seal(student, manifest))


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (replace_model_key, {"attestation.json"}),
        (sign_with_other_key, {"attestation.json"}),
        (change_predicate, {"attestation.json"}),
        (drop_signature, {"attestation.json"}),
        (truncate("attestation.json"), {"attestation.json"}),
        (truncate("model.sig"), {"attestation.json", "model.sig"}),
        (truncate("model-key.pem"), {"attestation.json", "model.sig"}),
        (rewrite("model-card.md"), {"attestation.json"}),
        (rewrite("privacy.json"), {"attestation.json"}),
        (rewrite("signature.json"), {"attestation.json"}),
        (add_to_student, {"attestation.json", "model.sig"}),
    ],
)
def test_a_change_is_found(release, change, fails):
    change(release)
    found = results(release)
    assert {name for name in ("attestation.json", "model.sig") if found[name] is False} == fails


def test_an_attestation_of_another_release_does_not_pass(release, public, tmp_path):
    """Its signature is valid, and its digests and predicate are those of other files."""
    content = json.loads((release / "privacy.json").read_text())
    write_json(release / "privacy.json", content | {"run": "other"})
    found = {check.what: check.detail for check in verify_statement(release, fingerprint(public))}
    assert found["attestation.json"] == "privacy.json has another digest."


def test_a_model_signature_that_no_attestation_vouches_for_is_undecided(release):
    (release / "attestation.json").unlink()
    assert results(release)["model.sig"] is None


def test_the_key_of_model_signatures_is_made_once_for_its_owner(made, tmp_path):
    file = made / "keys" / attestations.MODEL_SIGNING
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    pem = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert model_key(file).public_key().public_bytes(*pem) == (made / "release" / "model-key.pem").read_bytes()
    other = ec.generate_private_key(ec.SECP384R1())
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for wrong in (other.private_bytes(*private), (made / "keys" / "signing.pem").read_bytes()):
        (tmp_path / "key.pem").write_bytes(wrong)
        (tmp_path / "key.pem").chmod(0o600)
        with pytest.raises(ArtefactError, match="not a P-256 key"):
            model_key(tmp_path / "key.pem")


def test_a_release_without_a_student_is_attested_only(made, tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    for name in ("privacy.json", "signature.json"):
        shutil.copyfile(made / "release" / name, folder / name)
    assert sign_for_tools(folder, made / "keys" / "signing.pem") == ["attestation.json"]
    assert results(folder)["attestation.json"] is True
