"""A model that another library trained gets a statement: from real states, charged once, verified by recipients."""

import json
import os
import pickle
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from jsonschema import ValidationError
from typer.testing import CliRunner

from flows.cli import app
from tasks.config.presets import Preset, with_assignments
from tasks.desk.airlock import build_kit
from tasks.desk.imports import Stated, import_training, read_state
from tasks.desk.kit.verify import verify
from tasks.runtime.accounts import ledger_before, open_account, site_signing_file, site_signing_key
from tasks.runtime.decisions import ApprovalNeeded
from tasks.runtime.run import Run, open_run
from tasks.runtime.run_names import name_run, states
from tasks.serving import pages
from tasks.serving.attestations import sign_for_tools
from tasks.serving.verification import verify_statement
from tasks.tools.ledger import overview
from terrine.deployment.signature import fingerprint
from terrine.errors import BudgetError, InputError, LedgerError, SettingError, TerrineError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.accounting.pricing import price
from terrine.privacy.statement import read_statement, statement_from, write_statement
from terrine.privacy.training import Training
from tests.statement_schema import check_schema

ABOUT = [
    f"about.{name}={value}"
    for name, value in {
        "purpose": "triage",
        "description": "blood counts",
        "controller": "Clinic",
        "contact": "dpo@clinic.example",
        "collected": "2019",
        "one_per_person": "true",
    }.items()
]
TRAINING = Training("opacus", "poisson", ((1.1, 0.05, 60),))
FLOWER = {
    "schema_version": 1,
    "backend": "rdp",
    "config": {
        "target_delta": 1e-5,
        "population_size": 1000,
        "neighboring_relation": "replace-one",
        "sampling_method": "no-amplification",
        "max_epsilon": None,
    },
    "orders": [2.0, 4.0],
    "compositions": [
        {"event": {"noise_multiplier": 2.0, "sample_size": 10, "population_size": 1000}, "count": 30},
    ],
}


def without_paper(html):
    raise TerrineError("no WeasyPrint here")


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = tmp_path / "project"
    root.mkdir()
    (root / "params.yaml").write_text("run: terrine-digits\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "model.pt").write_bytes(b"weights")
    monkeypatch.setenv("TERRINE_ROOT", str(root))
    monkeypatch.setattr(pages, "render_pdf", without_paper)
    return root


def stated(root, **changes):
    facts = {"name": "risk", "account": "clinic", "budget": 8.0, "unit": "record", "record": "row", "delta": 1e-5}
    return Stated(**{**facts, "edition": "1", "files": (root / "model.pt",), **changes})


def imported(root, training=TRAINING, **changes):
    return import_training(root, training, stated(root, **changes), ABOUT)


def run_of(root, **changes):
    facts = {"ledger.account": "clinic", "ledger.epsilon": 8.0, "data.public_benchmark": False, "aggregation.sigma": 1}
    settings = [*(f"{key}={json.dumps(value)}" for key, value in {**facts, **changes}.items()), *ABOUT]
    return Run(root, "risk", with_assignments(root, Preset("risk", "", {}), settings)[1])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint as Opacus writes it, and the ε that Opacus states."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore")
    folder = tmp_path_factory.mktemp("opacus")
    features, labels = torch.randn(200, 4), torch.randint(0, 2, (200,))
    model = torch.nn.Linear(4, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=20)
    engine = PrivacyEngine(accountant="prv")
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters()),
        data_loader=loader,
        noise_multiplier=1.2,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        for batch, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(batch), classes).backward()
            optimizer.step()
    engine.save_checkpoint(path=folder / "checkpoint.pt", module=module, optimizer=optimizer)
    return SimpleNamespace(path=folder / "checkpoint.pt", epsilon=engine.get_epsilon(1e-5))


def test_a_checkpoint_of_opacus_is_read_and_costs_what_opacus_says(checkpoint):
    training = read_state(checkpoint.path, "poisson")
    assert training == Training("opacus", "poisson", ((1.2, 0.1, 20),))
    assert price(training.events(1e-5)[1], 1e-5) == pytest.approx(checkpoint.epsilon, abs=0.02)


def test_shuffled_batches_and_none_are_taken_at_their_word_and_others_are_refused(checkpoint):
    assert read_state(checkpoint.path, "shuffled").sampling == "shuffled"
    with pytest.raises(InputError, match="analysed for sampling 'poisson'"):
        read_state(checkpoint.path, "fixed")


def test_a_truncated_history_is_refused(checkpoint, tmp_path):
    state = torch.load(checkpoint.path, weights_only=True)
    state["privacy_accountant_state_dict"]["history"] = [(1.2, 0.1, 19)]
    torch.save(state, tmp_path / "cut.pt")
    with pytest.raises(InputError, match="has 19 steps, and the optimizer made 20"):
        read_state(tmp_path / "cut.pt", "poisson")


class Attack:
    """Runs code if it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("/tmp/terrine-was-here",)


def test_no_state_runs_code(tmp_path):
    torch.save({"privacy_accountant_state_dict": {"history": [(1.0, 0.1, 1)]}, "more": Attack()}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Attack()))
    for name in ("a.pt", "b.pkl"):
        with pytest.raises(InputError, match=r"without running code|Pickles are never read"):
            read_state(tmp_path / name, "poisson")
    assert not os.path.exists("/tmp/terrine-was-here")


def test_states_of_other_libraries_are_read(tmp_path):
    path = tmp_path / "state.json"
    sampled = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
    event = dp_event.SelfComposedDpEvent(sampled, 500)
    path.write_text(json.dumps(event.to_named_tuple()))
    assert read_state(path, "poisson") == Training("dp_accounting", "poisson", ((1.1, 0.01, 500),))
    path.write_text(json.dumps(FLOWER))
    assert read_state(path, "all") == Training("flower", "all", ((2.0, 0.01, 30),))
    assert read_state(path, "fixed").sampling == "fixed"
    parameters = {"noise_multiplier": 2.0, "clipping_norm": 0.5, "num_sampled_clients": 10, "num_clients": 1000}
    path.write_text(json.dumps({**parameters, "num_rounds": 30}))
    assert read_state(path, "fixed") == Training("flower", "fixed", ((2.0, 0.01, 30),))
    path.write_text(json.dumps({"history": [[1.0, 0.1, 3]], "mechanism": "rdp"}))
    assert read_state(path, "poisson").phases == ((1.0, 0.1, 3),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"3",
        b"null",
        b'{"history": []}',
        b'{"history": 3}',
        b'{"history": [[1, 0.1]]}',
        b'{"history": [[NaN, 0.1, 5]]}',
        b'{"history": [[1, 1.5, 5]]}',
        b'{"compositions": [{}]}',
        b'{"compositions": [], "config": {"sampling_method": "poisson"}}',
        b'{"num_sampled_clients": 10}',
        b'{"num_sampled_clients": "10", "num_clients": 5, "noise_multiplier": 1, "num_rounds": 3}',
        b"[" * 100_000,
        b"PK\x03\x04 no archive",
    ],
)
def test_damaged_states_are_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(InputError):
        read_state(tmp_path / "state", "poisson")


def test_the_accountant_of_flower_describes_itself_as_it_is_read(tmp_path):
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant", reason="needs flwr[dp] ≥ 1.42")
    from flwr.supercore.privacy_accounting import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )

    config = PrivacyConfig(1e-5, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    accountant = accounting.RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(2.0, 10, 1000), 300)
    (tmp_path / "state.json").write_text(json.dumps(accountant.state_dict()))
    training = read_state(tmp_path / "state.json", "poisson")
    assert training == Training("flower", "poisson", ((2.0, 0.01, 300),))
    assert price(training.events(1e-5)[1], 1e-5) <= accountant.get_epsilon(1e-5)


def test_the_plan_of_jax_privacy_is_read(tmp_path):
    accounting = pytest.importorskip("jax_privacy.experimental.accounting", reason="needs jax_privacy")
    event = accounting.dpsgd_event(1.1, 500, sampling_prob=0.01)
    (tmp_path / "event.json").write_text(json.dumps(event.to_named_tuple()))
    assert read_state(tmp_path / "event.json", "poisson") == Training("dp_accounting", "poisson", ((1.1, 0.01, 500),))
    fixed = accounting.fixed_dpsgd_event(2.0, 300, dataset_size=1000, batch_size=10)
    (tmp_path / "event.json").write_text(json.dumps(fixed.to_named_tuple()))
    assert read_state(tmp_path / "event.json", "fixed") == Training("dp_accounting", "fixed", ((2.0, 0.01, 300),))


def test_an_import_is_charged_once_signed_and_verified(project):
    done = imported(project)
    again = imported(project, name="the-same-again")
    other_model = project / "other.pt"
    other_model.write_bytes(b"other weights")
    ledger = ledger_before(run_of(project))
    assert len(ledger.rows()) == len({row.position for row in ledger.rows()})
    assert again.statement.release_id == done.statement.release_id
    (account,) = {row.dataset for row in ledger.rows()}
    assert len(ledger.costs(account)) == 1
    assert imported(project, name="other", files=(other_model,)).statement.release_id != done.statement.release_id
    assert len(ledger.costs(account)) == 2
    statement = read_statement(done.folder / "privacy.json")
    check_schema(statement)
    assert statement["private"] is True
    assert "The training was not observed by Terrine." in statement["summary"]
    key = fingerprint(site_signing_key(run_of(project)).public_key())
    found = {check.what: check.holds for check in verify_statement(done.folder, key)}
    assert {name for name, holds in found.items() if holds is not True} == {"student"}
    assert {"ε", "mechanism", "signature", "attestation.json", "model", "statement-fr.html"} <= found.keys()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda folder: (folder / "model" / "model.pt").write_bytes(b"other"), "model"),
        (lambda folder: (folder / "model" / "more.pt").write_bytes(b""), "model"),
        (lambda folder: rewrite(folder, sampling="all"), "mechanism"),
        (lambda folder: rewrite(folder, phases=[[1.1, 0.05, 59]]), "mechanism"),
        (lambda folder: rewrite(folder, phases=[[-1.1, 0.05, 60]]), "mechanism"),
    ],
)
def test_changes_are_found(project, change, wrong):
    folder = imported(project).folder
    change(folder)
    assert wrong in {check.what for check in verify_statement(folder) if check.holds is False}


def rewrite(folder, **changes):
    statement = statement_from(json.loads((folder / "privacy.json").read_text()))
    write_statement(folder / "privacy.json", replace(statement, mechanism={**statement.mechanism, **changes}))


def test_the_page_states_in_every_language_that_nobody_observed_the_training(project):
    folder = imported(project).folder
    ledger = ledger_before(run_of(project))
    [released] = overview(ledger, {})[0]["releases"]
    assert released["kind"] == "an imported model"
    texts = {"en": "not observed", "de": "nicht beobachtet", "fr": "pas observé", "es": "no observó"}
    for code, text in texts.items():
        page = (folder / f"statement-{code}.html").read_text()
        assert text in page
        assert "model/model.pt" in page
    assert "operating system" not in (folder / "statement-en.html").read_text()


def test_a_budget_holds_over_imports_and_own_releases(project):
    imported(project)
    run = run_of(project)
    ledger, account = open_account(run)
    before = ledger.spent(account, 1e-5)

    def release(name, sigma):
        return ledger.release(
            dataset=account,
            release_id=name,
            run="own",
            worst_case=GaussianEvent(1.0, sigma),
            delta=1e-5,
            noise_kind="secure",
            draw=lambda: ({"labels": np.zeros(3)}, GaussianEvent(1.0, sigma)),
        )

    assert before < release("a" * 64, 4.0).epsilon_total < 8
    with pytest.raises(BudgetError):
        release("b" * 64, 0.5)
    with pytest.raises(BudgetError, match="a sampled step counts like one on all units"):
        imported(project, Training("stated", "poisson", ((0.5, 0.1, 500),)), name="dear")


def test_an_account_that_began_with_gaussian_noise_counts_steps_without_amplification(project):
    ledger, account = open_account(run_of(project))
    event = GaussianEvent(1.0, 4.0)
    ledger.release(
        dataset=account,
        release_id="a" * 64,
        run="own",
        worst_case=event,
        delta=1e-5,
        noise_kind="secure",
        draw=lambda: ({"labels": np.zeros(3)}, event),
    )
    with pytest.raises(BudgetError, match="like one on all units"):
        imported(project)
    imported(project, Training("stated", "poisson", ((30.0, 0.1, 50),)))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"files": ()}, InputError, "no file"),
        ({"files": ("nowhere.pt",)}, InputError, "not a file"),
        ({"delta": 2.0}, TerrineError, "delta"),
        ({"budget": 0.5}, BudgetError, "budget"),
        ({"name": "../out"}, SettingError, "name"),
    ],
)
def test_impossible_facts_are_refused_before_anything_is_charged(project, changes, error, text):
    files = tuple(project / file for file in changes.get("files", ("model.pt",)))
    with pytest.raises(error, match=text):
        imported(project, **{**changes, "files": files})
    ledger = ledger_before(run_of(project))
    assert ledger is None or not [row for row in ledger.rows() if row.kind == "reserve"]


def test_the_command_asks_for_what_is_missing_and_imports(project, checkpoint):
    def terrine(*arguments, typed=""):
        return CliRunner().invoke(app, ["statement", "import", *map(str, arguments)], input=typed)

    facts = ["--release", "risk", "--account", "clinic", "--budget", 20, "--unit", "record", "--record", "row"]
    facts += ["--delta", 1e-5, "--model", project / "model.pt", *(part for each in ABOUT for part in ("--set", each))]
    assert "is not one of" in terrine(checkpoint.path, *facts, "--sampling", "random").output
    assert "STATE, or --noise-multiplier" in str(terrine(*facts, "--sampling", "shuffled").exception)
    assert terrine(checkpoint.path, *facts).exit_code == 1
    done = terrine(checkpoint.path, *facts, typed="random\nshuffled\n")
    assert "How batches were drawn (poisson, fixed, shuffled, all)" in done.output
    assert done.exception is None, done.exception
    assert "Shuffled batches are no Poisson sample" in done.output
    stated_only = terrine(
        "--noise-multiplier", 9, "--sample-rate", 0.01, "--steps", 10, *facts, "--sampling", "poisson"
    )
    assert stated_only.exception is None, stated_only.exception
    assert "if one is only added or removed" in stated_only.output


def test_another_budget_of_a_known_account_is_refused(project):
    imported(project)
    with pytest.raises(LedgerError, match="has a budget of"):
        imported(project, budget=20.0, name="other", files=(project / "params.yaml",))


def test_an_import_is_approved_like_a_run_and_its_kit_is_verified(project, tmp_path):
    (project / "params.yaml").write_text("run: terrine-digits\nrelease: {approval: required}\n")
    with pytest.raises(ApprovalNeeded, match=r"in 60 steps: model\.pt[\s\S]*terrine release approve risk"):
        imported(project)
    assert not (project / "data" / "release").exists()
    shown = CliRunner().invoke(app, ["release", "show", "risk"]).output
    for fact in ("batches poisson", "noise multiplier", "sampling rate", "clipped", "one record per person: yes"):
        assert fact in " ".join(shown.split()), shown
    assert not [row for row in ledger_before(run_of(project)).rows() if row.kind == "reserve"]
    done = CliRunner().invoke(app, ["release", "approve", "risk", "--role", "data steward"])
    assert done.exit_code == 0, done.output
    assert "Next: repeat the import" in done.output
    changed = project / "other.pt"
    changed.write_bytes(b"other weights")
    with pytest.raises(ApprovalNeeded, match="was approved on"):
        imported(project, files=(changed,))
    folder = imported(project).folder
    statement = read_statement(folder / "privacy.json")
    assert (statement["approval"]["role"], statement["approval"]["signer"]) == ("data steward", "site")
    run = open_run(project, "risk")
    kit = build_kit(run, tmp_path / "kit")
    assert [told for _, name, told in verify(str(kit.folder), None) if name == "approval" and "data steward" in told]
    assert {check.holds for check in verify_statement(kit.folder, kit.key)} == {True, None}
    [charged] = json.loads((kit.folder / "ledger.json").read_text())["releases_of_this_run"]
    assert charged["event"] == statement["event"]
    text = (kit.folder / "index.html").read_text()
    assert re.search(r"δ\.\s+<strong>This holds if what the site states about the training is true:", text)
    assert "<strong>Integrity.</strong>" in text
    assert "before it was charged to the account; its noise was drawn elsewhere, earlier." in text
    assert "before noise was drawn" not in text + (kit.folder / "satre.yaml").read_text()
    assert "Both leave out ε" in text
    assert "are not in this kit" not in text
    assert 'class="banner sound"' not in text
    assert all((kit.folder / name).is_file() for name in re.findall(r'href="([^"]+)"', text))
    before = (folder / "privacy.json").read_bytes()
    with pytest.raises(InputError, match=r"about\.purpose changed[\s\S]*statement import --set"):
        import_training(project, TRAINING, stated(project), [*ABOUT, "about.purpose=selling advertisements"])
    assert (folder / "privacy.json").read_bytes() == before
    said = json.loads(before)
    said["facts"]["about"]["purpose"] = "selling advertisements"
    (folder / "privacy.json").write_text(json.dumps(said))
    refused = CliRunner().invoke(app, ["statement", "risk", "--sign"])
    assert isinstance(refused.exception, InputError), refused.output
    assert "states something else" in str(refused.exception)
    pages.write_pages(folder, ["en"], site_signing_key(run))
    sign_for_tools(folder, site_signing_file(run))
    with pytest.raises(InputError, match="states something else"):
        build_kit(run, tmp_path / "other")
    (kit.folder / "model" / "model.pt").write_bytes(b"other")
    assert [told for holds, _, told in verify(str(kit.folder), None) if holds is False] == [
        "model/model.pt was changed: it differs from the file that kit.json lists."
    ]


def test_a_statement_states_nothing_that_was_not_observed(project):
    statement = read_statement(imported(project).folder / "privacy.json")
    for name in ("teachers", "delta_slack", "partition_digest", "partition_disjoint"):
        assert statement[name] is None
    assert statement["noise"] == "not observed"
    for change in ({"noise": "secure"}, {"teachers": 1}, {"partition_disjoint": True}, {"delta_slack": 0.0}):
        with pytest.raises(SettingError):
            statement_from(statement | change)
        with pytest.raises(ValidationError):
            check_schema(statement | change)


def test_the_name_of_an_import_is_no_run_and_the_reverse(project):
    imported(project)
    assert states(project) == [("risk", "imported")]
    with pytest.raises(SettingError, match="another library trained"):
        name_run(project, "risk", "terrine-digits", [])
