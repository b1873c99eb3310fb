"""The kit with which a release leaves: what is in it, when it is refused, and that it can be made again."""

import json
import re
import shutil
from importlib import metadata

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from tasks.desk.airlock import TOOLS, build_kit, package_list, satre_controls
from tasks.desk.sacro import membership_report
from tasks.runtime.releases import record_audit
from tasks.runtime.store import write_json
from tasks.serving.verification import verify_statement
from terrine.deployment.signature import fingerprint
from terrine.errors import ArtefactError, InputError
from terrine.privacy.accounting.events import NonPrivateEvent
from terrine.privacy.statement import SCHEMA
from tests.airlock_kits import STEWARD, STRANGER, approve, make_signed_run
from tests.flows.test_what_leaves import MEMBERSHIP
from tests.statement_schema import check_schema


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A signed run with an audit of its mechanism."""
    run = make_signed_run(tmp_path_factory.mktemp("project"), audit_epsilon=0.5, audit_confidence=0.95)
    record_audit(run, {"epsilon": 0.5, "confidence": 0.95, "may_be_published": True})
    return run


@pytest.fixture(scope="module")
def kit(run):
    return build_kit(run, run.root / "kit")


def test_it_has_the_release_and_the_records_about_it(kit):
    names = {path.relative_to(kit.folder).as_posix() for path in kit.folder.rglob("*") if path.is_file()}
    student = {f"student/{name}" for name in ("manifest.json", "backbone.safetensors", "head.safetensors")}
    pages = {"statement.html", "statement-en.html", "statement-de.html", "model-card.md", "index.html"}
    signatures = {"signature.json", "attestation.json", "model.sig", "model-key.pem", "kit.json", "kit.sig"}
    records = {"privacy.json", "statement-1.json", "ledger.json", "audit.json", "satre.yaml", "sbom.json"}
    assert student | pages | signatures | records | {"verify.py", "verify.html"} <= names
    assert {
        name for name in names if not name.startswith(("student/", "statement-"))
    } <= pages | signatures | records | {
        "verify.py",
        "verify.html",
    }
    check_schema(json.loads((kit.folder / "privacy.json").read_text()))
    assert (kit.folder / "statement-1.json").read_bytes() == SCHEMA.read_bytes()
    assert {check.holds for check in verify_statement(kit.folder)} == {True}


def test_equal_content_gives_equal_bytes(kit, run):
    before = kit.archive.read_bytes()
    again = build_kit(run, kit.folder)
    assert again.archive.read_bytes() == before
    assert again == kit


def test_the_page_tells_what_to_check(kit):
    text = (kit.folder / "index.html").read_text(encoding="utf-8")
    assert text.count(kit.key) == 1
    assert "ε = 1.3565, δ = 1e-5 per record" in text
    assert "If one record is replaced, added or removed" in text
    steward = fingerprint(STEWARD.public_key())
    assert (
        f"on 2026-02-03, before noise was drawn, with\nthe key <code>{steward}</code>, which only this person" in text
    )
    assert f"{len(json.loads((kit.folder / 'kit.json').read_text())['files'])} files that they cover" in text
    assert all((kit.folder / name).is_file() for name in re.findall(r'href="([^"]+)"', text))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda kit: (kit / "index.html").write_text("changed"), "index.html was changed"),
        (lambda kit: (kit / "ledger.json").write_text("{}"), "ledger.json was changed"),
        (lambda kit: (kit / "patients.csv").write_text(""), "patients.csv was added"),
        (lambda kit: (kit / "\x1b[31mred").write_text(""), "?[31mred was added"),
        (lambda kit: (kit / "kit.json").unlink(), "kit.json cannot be read"),
    ],
)
def test_terrine_verify_also_compares_a_kit_with_its_list(kit, tmp_path, change, wrong):
    def terrine_verify(name=""):
        return CliRunner().invoke(app, ["verify", str(folder / name), "--key", kit.key], env={"COLUMNS": "500"})

    folder = shutil.copytree(kit.folder, tmp_path / "kit")
    for name in ("", "privacy.json", "statement-de.html"):
        before = terrine_verify(name)
        assert before.exit_code == 0, before.output
        assert "kit: files" in before.output
    change(folder)
    after = terrine_verify()
    assert after.exit_code == 1
    assert wrong in after.output
    assert "1 of " in after.output


def test_the_page_names_what_may_be_published_but_is_not_in_the_kit(kit):
    text = (kit.folder / "index.html").read_text(encoding="utf-8")
    assert "are not in this kit: answers/, accuracy.json, metrics.json, plots/.</li>" in text
    assert "Both leave out ε" not in text


def test_controls_name_files_that_are_there_and_claim_no_more(kit):
    content = yaml.safe_load((kit.folder / "satre.yaml").read_text(encoding="utf-8"))
    assert content["standard"].startswith("SATRE 2.0.1")
    controls = {control["control"]: control for control in content["controls"]}
    assert list(controls) == ["3.1.05", "3.1.16", "3.3.02", "3.3.06", "3.3.07", "3.3.08", "3.3.09"]
    for control in controls.values():
        assert all((kit.folder / name).is_file() for name in control["evidence"])
        assert control["remains"]
        assert "{" not in control["contribution"]
    assert "ε = 1.3565 per record" in controls["3.3.07"]["contribution"]
    statement = json.loads((kit.folder / "privacy.json").read_text())
    fewer = yaml.safe_load(satre_controls(statement, {"verify.py", "verify.html"}))
    assert [control["control"] for control in fewer["controls"]] == ["3.3.08"]
    approved = yaml.safe_load(satre_controls({**statement, "approval": {"role": "data steward"}}, {"privacy.json"}))
    assert [control["control"] for control in approved["controls"]] == ["3.1.05"]


def test_the_list_of_packages_has_what_terrine_needs_and_nothing_else_of_the_environment(monkeypatch):
    content = package_list()
    versions = {item["name"]: item["version"] for item in content["components"]}
    for name in ("numpy", "scipy", "torch", "pydantic", "typing-extensions"):
        assert versions[name] == metadata.version(name)
    assert content["metadata"]["component"]["version"] == metadata.version("terrine")
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.6")
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=1 ; extra == 'x'"] if name == "terrine" else None)
    assert [item["name"] for item in package_list()["components"]] == ["numpy"]


def test_the_list_of_packages_follows_the_schema_of_cyclonedx():
    json_validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib")
    from cyclonedx.schema import SchemaVersion

    check = json_validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str
    content = package_list()
    assert check(json.dumps(content)) is None
    content["components"][0]["more"] = 1
    assert "'more' was unexpected" in str(check(json.dumps(content)))


def test_attacks_on_public_benchmarks_are_in_the_kit_and_in_the_format_of_sacro_ml(tmp_path):
    run = make_signed_run(tmp_path)
    write_json(run.folders.private / "membership.json", MEMBERSHIP)
    inside = build_kit(run, tmp_path / "kit")
    assert not (tmp_path / "kit" / "attacks").exists()
    assert (inside.inside / "report.json").is_file()
    benchmark = run.params.data.model_copy(update={"public_benchmark": True})
    public = type(run)(run.root, run.name, run.params.model_copy(update={"data": benchmark}))
    kit = build_kit(public, tmp_path / "public")
    assert kit.inside is None
    assert (kit.folder / "attacks" / "report.json").read_bytes() == (inside.inside / "report.json").read_bytes()


def test_a_report_has_the_layout_of_sacro_ml():
    report = membership_report(MEMBERSHIP, {"release_id": "01", "run": "clinic"}, "0.2.0")
    ((name, content),) = report.items()
    assert name == f"LiRA Attack_{content['log_id']}"
    assert content["metadata"]["sacroml_version"] == "2.0.0"
    (instance,) = content["attack_experiment_logger"]["attack_instance_logger"].values()
    assert (instance["AUC"], instance["TPR@0.1%"]) == (0.123456, 0.123456)
    assert membership_report(MEMBERSHIP, {"release_id": "02", "run": "clinic"}, "0.2.0").keys() != report.keys()


@pytest.mark.parametrize(
    ("value", "low", "expected"),
    [(0.5, 0.4, 0.5), (0.6, 0.5, 0.025), (0.99, 0.98, 0.0), (0.4, 0.3, 0.975), (0.9, 0.9, 0.0), (0.3, 0.3, 1.0)],
)
def test_a_report_says_how_probable_its_auc_is_by_chance(value, low, expected):
    """SACRO-ML takes a report without this figure for evidence that the model may leave."""
    result = MEMBERSHIP | {"auc": {"value": value, "low": low, "high": 1.0}}
    (content,) = membership_report(result, {"release_id": "01", "run": "clinic"}, "0.2.0").values()
    (instance,) = content["attack_experiment_logger"]["attack_instance_logger"].values()
    assert instance["P_HIGHER_AUC"] == pytest.approx(expected, abs=1e-9)


def test_a_release_that_is_unsigned_changed_or_not_private_gets_no_kit(tmp_path):
    unsigned = make_signed_run(tmp_path / "unsigned", sign_it=False)
    with pytest.raises(ArtefactError, match=r"is not signed\. Sign it first: terrine statement --sign --run clinic"):
        build_kit(unsigned, tmp_path / "kit")
    changed = make_signed_run(tmp_path / "changed")
    (changed.folders.release / "statement-de.html").write_text("changed")
    with pytest.raises(ArtefactError, match=r"does not verify, so there is no kit of it\. .*statement-de\.html"):
        build_kit(changed, tmp_path / "kit")
    other = make_signed_run(tmp_path / "other")
    (other.root / "data" / "private" / "ledger" / "signing.pem").unlink()
    with pytest.raises(ArtefactError, match="signature: It was signed with the key"):
        build_kit(other, tmp_path / "kit")
    infinite = {"event": NonPrivateEvent(), "epsilon_budget": float("inf"), "epsilon_dataset": float("inf")}
    for name, changes in (("replayed", {"noise": "replay"}), ("none", infinite)):
        open_run = make_signed_run(tmp_path / name, **changes)
        with pytest.raises(ArtefactError, match=r"guarantees nothing that a kit could document\. NOT PRIVATE"):
            build_kit(open_run, tmp_path / "kit")
    unsigned.folders.statement.unlink()
    with pytest.raises(ArtefactError, match=r"has no released student\. Make it first"):
        build_kit(unsigned, tmp_path / "kit")
    assert not (tmp_path / "kit").exists()


def test_an_approval_that_another_key_gave_in_the_sites_name_gets_no_kit(tmp_path):
    run = make_signed_run(tmp_path, approval=approve(STRANGER, signer="site"))
    with pytest.raises(ArtefactError, match=r"does not verify.* approval: Its signature does not hold"):
        build_kit(run, tmp_path / "kit")


def test_a_folder_that_is_no_kit_is_not_replaced(run, tmp_path):
    (tmp_path / "kit").mkdir()
    with pytest.raises(InputError, match="exists and is no earlier kit"):
        build_kit(run, tmp_path / "kit")


def test_the_command_names_the_kit_and_its_key(run, kit, monkeypatch, tmp_path):
    monkeypatch.setattr("tasks.runtime.run.chosen_run", lambda name: {"clinic": run}[name])
    done = CliRunner().invoke(app, ["airlock", "clinic", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert f"signed with the site's key {kit.key}" in done.output
    assert (tmp_path / "out.zip").is_file()
    assert TOOLS.joinpath("verify.py").read_bytes() == (tmp_path / "out" / "verify.py").read_bytes()
