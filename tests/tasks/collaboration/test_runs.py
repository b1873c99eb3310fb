"""A run whose parties vote apart: the same answers, the same cost, and the same stages afterwards as a local run."""

import json
import shutil
import zipfile
from datetime import UTC, date, datetime, timedelta

import mlflow
import numpy as np
import pytest
import yaml

from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.artefacts.teachers import read_votes
from tasks.collaboration import finish
from tasks.collaboration.finish import PUBLIC, finish_student, finish_teacher
from tasks.collaboration.local_training import cast_votes, own_records, prepare_run
from tasks.collaboration.student_training import learn
from tasks.config.params import merge_overrides, validate
from tasks.parties.accuracy_terms import AccuracyTerms
from tasks.parties.answers import stored_answers, write_answers
from tasks.parties.config import OwnTeachers, PartyConfig, read_party
from tasks.parties.release import make_terms, released_arrays, trial_folder, trial_terms
from tasks.parties.store import Store
from tasks.parties.terms import checked
from tasks.pipeline import aggregate, student
from tasks.pipeline.evaluate import probabilities
from tasks.pipeline.figures.released_accuracy import right_answers
from tasks.pipeline.sums import split_records
from tasks.runtime.releases import identity_in_ledger
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, read_table, read_tensors
from tasks.serving.verification import verify_statement
from terrine.aggregation.gradient_rounds import moments_in_steps
from terrine.aggregation.votes import count_votes
from terrine.data.source import load_dataset
from terrine.deployment.model import StudentModel
from terrine.deployment.signature import expected_key
from terrine.errors import BudgetError, InputError, SettingError
from terrine.files import file_digest
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.statement import statement_from
from tests.airlock_kits import kit_of
from tests.party_trials import Site, keys_of, terms_of

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 20},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1, "dead_leaves": 1}},
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 6, "noise": "replay"},
    "collaboration": {"parties": 5},
    "teachers": {},
    "student": {"l2": 0.3},
}
SUMS = {"aggregation": {"mechanism": "moments", "sigma": None}, "student": {"kind": "sums"}}
GRADIENTS = {"aggregation": {"mechanism": "gradients", "rounds": 3, "sigma": None}, "student": {"kind": "sums"}}
CONFIDENT = {"mechanism": "confident", "threshold": 9, "sigma1": 15, "sigma2": 20}
DIGITS = [str(digit) for digit in range(10)]


def run_with(root, name="small", **sections):
    return Run(root, name, validate(merge_overrides(VALUES, sections)))


def in_process(monkeypatch):
    """Have a run's services answer in this process."""

    def run_trial(folder, report_source, *, limit):
        terms = read_party(folder / "student" / "party.yaml").terms
        with pytest.MonkeyPatch.context() as patch:
            site = Site(folder, terms, report_source, patch).run()
            for name in ("guardian", "student"):
                site.end(name)
        return stored_answers(read_party(folder / "student" / "party.yaml"))

    monkeypatch.setattr("tasks.parties.release.run_trial", run_trial)


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A folder in which all stages up to the votes have run."""
    root = tmp_path_factory.mktemp("project")
    run_through(run_with(root), "dataset", "vote")
    return root


class WholeVotes:
    """The noise of a guardian: drawn for all queries, on counts in whole votes."""

    def __init__(self, noise, passed=None):
        self._noise, self._passed, self.kind = noise, passed, noise.kind
        self.describe = noise.describe

    def gaussian(self, shape, sigma):
        if isinstance(shape, int):
            return self._noise.gaussian(shape, sigma)  # the test's noise goes into the threshold as it is
        if self._passed is None:
            return np.floor(self._noise.gaussian(shape, sigma) + 0.5)
        drawn = np.floor(self._noise.gaussian((len(self._passed), shape[1]), sigma) + 0.5)
        return drawn[self._passed]


@pytest.mark.parametrize("settings", [{}, {"mechanism": "gnmax"}, CONFIDENT], ids=["histogram", "gnmax", "confident"])
def test_five_parties_release_what_the_local_pipeline_releases_with_the_same_noise(settings, voted, monkeypatch):
    in_process(monkeypatch)
    run = run_with(voted, aggregation=settings | {"where": "parties"})
    aggregate.release_answers.fn(run)
    apart = read_table(run.folders.answers / "answers.parquet")
    statement = read_json(run.folders.statement)
    manifest = read_json(run.folders.answers / "manifest.json")
    ledger, account = aggregate.open_account(run)
    releases = len(ledger.events(account))

    # Asked again: nothing is drawn, and no process is started.
    monkeypatch.setattr("tasks.parties.release.run_trial", None)
    aggregate.release_answers.fn(run)
    assert read_table(run.folders.answers / "answers.parquet").equals(apart)
    assert read_json(run.folders.statement) == statement
    assert len(ledger.events(account)) == releases
    student.train_student.fn(run)

    local = run_with(voted, aggregation=settings)
    passed, plain = None, aggregate.noise_source(local)
    if settings.get("mechanism") == "confident":
        counts = count_votes(read_votes(run.folders), 10)
        noise = aggregate.noise_source(local).gaussian(len(counts), 15.0)
        passed = counts.max(axis=1) + noise >= 9
        assert 0 < passed.sum() < len(passed)
    monkeypatch.setattr(aggregate, "noise_source", lambda _: WholeVotes(plain, passed))
    aggregate.release_answers.fn(local)
    assert read_table(local.folders.answers / "answers.parquet").equals(apart)
    together = read_json(local.folders.statement)
    same = ("epsilon", "event", "queried", "answered", "answered_per_class", "teachers", "noise", "delta_slack")
    assert {name: statement[name] for name in same} == {name: together[name] for name in same}
    assert manifest["release_id"] != read_json(local.folders.answers / "manifest.json")["release_id"]
    assert (statement["trust_model"], together["trust_model"]) == ("parties", "central")
    assert "privacy guardian" in statement["trust_model_text"]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """A folder in which all is done that comes before sums over records."""
    root = tmp_path_factory.mktemp("sums")
    run_through(run_with(root, **SUMS), "dataset", "vote")
    return root


@pytest.mark.parametrize("mechanism", [SUMS, GRADIENTS], ids=["moments", "gradients"])
def test_five_parties_sum_what_one_place_sums_with_the_same_noise_to_the_bit(mechanism, dealt, monkeypatch):
    in_process(monkeypatch)
    released, statements, before = [], [], None
    for where in ("parties", "local", "parties"):
        run = run_with(dealt, **merge_overrides(mechanism, {"aggregation": {"where": where}}))
        ledger, account = aggregate.open_account(run)
        before = len(ledger.events(account)) if before is None else before
        aggregate.release_answers.fn(run)
        released.append(read_tensors(run.folders.answers / "sums.safetensors"))
        statements.append(read_json(run.folders.statement))
        if where == "parties":
            student.train_student.fn(run)
            # Asked again: nothing is drawn, and no process is started.
            monkeypatch.setattr("tasks.parties.release.run_trial", None)
    assert len(ledger.events(account)) == before + 2
    for other in released[1:]:
        assert released[0].keys() == other.keys()
        assert all((released[0][name] == array).all() for name, array in other.items())
    apart, together, again = statements
    assert apart == again
    same = ("epsilon", "event", "teachers", "noise", "delta_slack", "mechanism")
    assert {name: apart[name] for name in same} == {name: together[name] for name in same}
    assert (apart["trust_model"], together["trust_model"]) == ("parties", "central")


def test_a_party_with_its_own_data_sums_what_a_run_on_that_data_does(dealt, tmp_path):
    run = run_with(dealt, **merge_overrides(SUMS, {"aggregation": {"where": "parties"}}))
    terms = trial_terms(run, DIGITS, "")
    params = {"data": run.params.data.model_dump(mode="json"), "partition": {"teachers": 20}}
    own = OwnTeachers(params=params, images=run.folders.images, backbone=run.folders.backbone, work=tmp_path)
    found = moments_in_steps(own_records(own, terms, 20))
    np.testing.assert_array_equal(found, sum(split_records(run, terms.teachers).values()))
    with pytest.raises(InputError, match="31 coordinates, and the terms have 40"):
        own_records(own, terms.model_copy(update={"length": 40}), 20)


def test_no_votes_are_left_in_the_folders_of_a_trial_that_is_complete(voted, monkeypatch):
    in_process(monkeypatch)
    run = run_with(voted, aggregation={"where": "parties"})
    aggregate.release_answers.fn(run)
    folder = next(trial for trial in (voted / "data/private/ledger/parties").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == ["guardian", "inputs.json", "student"]
    assert not list(folder.rglob("votes.npy"))
    assert not [path for path in folder.rglob("*.npz") if path.name != "answers.npz"]


@pytest.mark.parametrize("name", ["voted", "dealt"])
def test_a_student_party_makes_the_student_that_a_run_makes_with_its_public_statement(
    name, request, monkeypatch, tmp_path
):
    root, sections = request.getfixturevalue(name), {"voted": {}, "dealt": GRADIENTS}[name]
    in_process(monkeypatch)
    run = run_with(root, **merge_overrides(sections, {"aggregation": {"where": "parties"}}))
    aggregate.release_answers.fn(run)
    student.train_student.fn(run)
    terms = trial_terms(run, DIGITS, identity_in_ledger(run, "answers"))
    path = trial_folder(run, terms.identity()) / "student" / "party.yaml"
    config = yaml.safe_load(path.read_text())
    with pytest.raises(SettingError, match=r"learn is missing in party\.yaml"):
        learn(read_party(path))
    public = {"images": str(run.folders.images), "backbone": str(run.folders.backbone), "work": str(tmp_path)}
    # Files instead of a database, which would take long to lay out.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracked = (tmp_path / "mlruns").as_uri()
    params = {"student": run.params.student.model_dump(mode="json"), "tracking": {"uri": tracked}}
    path.write_text(yaml.safe_dump(config | {"learn": {**public, "params": params}}))
    assert learn(read_party(path)).folders.student == tmp_path / "data/release/student/student"
    for file in ("head.safetensors", "backbone.safetensors", "reference.safetensors", "manifest.json"):
        assert (tmp_path / "data/release/student/student" / file).read_bytes() == (
            run.folders.student / file
        ).read_bytes()
    own, statement = read_json(tmp_path / "data/release/student/privacy.json"), read_json(run.folders.statement)
    statement_from(own)
    checks = verify_statement(tmp_path / "data/release/student")
    assert {check.what: check.holds for check in checks if check.what in ("ε", "mechanism")} == {
        "ε": True,
        "mechanism": True,
    }
    for key in ("epsilon", "event", "unit", "trust_model", "noise", "release_id", "dataset", "answered_per_class"):
        assert own[key] == statement[key]
    assert own["mechanism"]["parties"] == [*terms.teachers, terms.guardian, terms.student]
    today = datetime.now(UTC).date()
    assert today - timedelta(1) <= date.fromisoformat(own["mechanism"]["opened"]) <= today
    page = (tmp_path / "data/release/student/statement.html").read_text()
    assert all(told in page for told in (*terms.roles(), own["mechanism"]["opened"]))
    assert ", ".join(DIGITS) in page
    assert not list((tmp_path / "data").glob("private/*/*/*"))
    if name == "voted":
        check_handed_on(read_party(path), terms, run, tmp_path, monkeypatch)
        (logged,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
        assert logged.data.metrics["accuracy_released"] > 0
        assert logged.data.tags["release"] == own["release_id"]
    for changes, error, sentence in (
        ({"params": {"aggregation": {"epsilon": 9}}}, SettingError, "not the student party's to set"),
        ({"images": str(tmp_path)}, InputError, "is not the agreed file"),
    ):
        path.write_text(yaml.safe_dump(config | {"learn": {**public, **changes}}))
        with pytest.raises(error, match=sentence):
            learn(read_party(path))


def test_the_kit_of_a_run_of_parties_is_verified(voted, monkeypatch, tmp_path):
    in_process(monkeypatch)
    run = run_with(voted, aggregation={"where": "parties", "noise": "secure"})
    aggregate.release_answers.fn(run)
    student.train_student.fn(run)
    kit, statement = kit_of(run, tmp_path / "kit"), read_json(run.folders.statement)
    assert statement["trust_model"] == "parties"
    excerpt = read_json(kit / "ledger.json")
    assert excerpt["account"] == statement["dataset"]
    assert [one["event"] for one in excerpt["releases_of_this_run"]] == [statement["event"]] * excerpt["verified"]


def made(values):
    """Return terms with public keys for which no private keys exist."""
    names = ["guardian", "student", *values["teachers"]]
    services = {role: {"url": "https://a:1"} for role in names[:2]}
    return checked(values | {"keys": keys_of(*names), "services": services})


@pytest.mark.parametrize("settings", [{"sigma": 60}, CONFIDENT, {"sigma": 60, "epsilon": 3.0}])
@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_of_somebody_at_several_parties_the_budget_pays_for_the_more(settings, overlap, voted):
    run = run_with(voted, aggregation=settings | {"where": "parties"})
    terms = made(make_terms(run, {"north": 7, "south": 7, "west": 6}, class_names=DIGITS, overlap=overlap))
    cost = price(terms.event(), terms.delta)
    one = run.params.aggregation.cost(1, 1)
    assert cost <= terms.epsilon * (1 + 1e-9)
    assert mu_squared(terms.event()) == pytest.approx(overlap**2 * terms.queried * mu_squared(one))
    # One more answer would be one too many.
    assert terms.queried == 60 or overlap**2 * (terms.queried + 1) * mu_squared(one) > mu_of(terms.epsilon, 1e-5) ** 2


@pytest.mark.parametrize("overlap", [1, 2])
def test_of_somebody_at_several_parties_sums_have_the_more_noise_at_the_same_price(overlap, dealt):
    run = run_with(dealt, **merge_overrides(GRADIENTS, {"aggregation": {"where": "parties"}}))
    alone, terms = (made(make_terms(run, {"a": 1, "b": 2}, class_names=DIGITS, overlap=k)) for k in (1, overlap))
    assert price(terms.event(), terms.delta) == pytest.approx(terms.epsilon, rel=1e-6)
    assert price(terms.event(), terms.delta) <= terms.epsilon
    assert (terms.sigma, terms.sigma_gradients) == pytest.approx(
        (overlap * alone.sigma, overlap * alone.sigma_gradients)
    )


def check_handed_on(config, terms, run, folder, monkeypatch):
    """The student party packs the student, and a party tests that very student on its own records."""

    def fails(*_):
        raise RuntimeError("MLflow is away")

    monkeypatch.setattr("tasks.pipeline.mlflow_runs.create_database", fails)
    done = finish_student(config, None, None)
    monkeypatch.setattr("tasks.pipeline.mlflow_runs.create_database", lambda _: None)
    packed = done.archive.read_bytes()
    signed = finish_student(config, None, None, sign=True).archive
    found = {check.what: check.holds for check in verify_statement(signed, expected_key(str(signed.with_name(PUBLIC))))}
    assert False not in found.values()
    assert all(found[what] for what in ("signature", "student", "statement-de.html"))
    assert finish_student(config, None, None).archive.read_bytes() == packed
    data = {"data": run.params.data.model_dump(mode="json")}
    own = OwnTeachers(params=data, images=run.folders.images, backbone=run.folders.backbone, work=folder / "party")
    party = PartyConfig(role="teacher", terms=terms, own=own, state=folder / "state")
    monkeypatch.setattr(PartyConfig, "name", next(iter(terms.teachers)))
    shutil.copytree(run.folders.dataset, Run(own.work, "own", run.params).folders.dataset)
    met = {}

    def submit(config, report_source):
        met.update(terms=config.terms, shared=report_source(config)(0, None))

    monkeypatch.setattr(finish, "submit", submit)
    site_local = finish_teacher(party, done.archive, 2.0, None)
    test = read_dataset(run.folders)
    right = StudentModel.load(run.folders.student).predict(test.test_images).argmax(axis=1) == test.test_labels
    assert (site_local.evaluation["images"], site_local.evaluation["accuracy"]) == (len(right), right.mean())
    in_batches = (probabilities(run, test.test_images).argmax(axis=1) == test.test_labels).mean()
    assert site_local.evaluation.get("in_batches", {}).get("accuracy") in (in_batches, None)
    assert (site_local.folder / "manifest.json").read_bytes() == (run.folders.student / "manifest.json").read_bytes()
    # The party shares its accuracy on the terms of the student party, which has the same student.
    np.testing.assert_array_equal(met["shared"], met["terms"].shared(right_answers(run, test).astype(float)))
    assert met["terms"] == AccuracyTerms.of(terms, 2.0, file_digest(done.folder / "manifest.json"))
    check_released(config, met["terms"], right)
    other = party.model_copy(update={"terms": terms.model_copy(update={"edition": "another"})})
    with pytest.raises(InputError, match="the student of other terms than this party's"):
        finish_teacher(other, done.archive, None, None)


def check_released(config, terms, right):
    """The student party publishes what was opened, once it is."""
    assert finish_student(config, 2.0, None).released is None
    store = Store(config.state)
    assert terms.digest in store.terms()
    store.close()
    sums, noise = terms.fixed_point, ReplayNoise(0)
    totals = terms.shared(right.astype(float))[:, 0] + sums.noise(noise, 0)
    record = stored_answers(config)["guardian"] | {"event": to_json(terms.event()), "counted": ["a", "b"]}
    arrays, about = {"passed": np.ones(2, bool), "result": totals[:, None]}, {"terms": terms.digest, "guardian": record}
    write_answers(config.with_terms(terms), arrays, about)
    done = finish_student(config, 2.0, None)
    expected = terms.described.estimate(sums.released(totals)["sums"])
    assert done.released["accuracy"] == expected.accuracy
    assert (done.released["parties"], done.released["unit"]) == (["a", "b"], "record")
    assert finish_student(config, None, None).released == done.released  # it stays for as long as the student does
    with zipfile.ZipFile(done.archive) as packed:
        assert json.loads(packed.read("accuracy.json")) == done.released


def test_a_budget_that_pays_for_nothing_starts_nobody(voted):
    run = run_with(voted, aggregation={"where": "parties", "epsilon": 0.01, "sigma": 1.0})
    with pytest.raises(BudgetError, match="does not pay for one answer"):
        aggregate.release_answers.fn(run)


def test_what_was_not_asked_or_did_not_pass_has_no_label():
    terms = terms_of(queries=5, queried=3)
    arrays = released_arrays(terms, np.array([True, False, True]), np.array([2, -1, 0]))
    assert arrays["labels"].tolist() == [2, -1, 0, -1, -1]
    assert arrays["answered"].tolist() == [True, False, True, False, False]
    assert arrays["round"].tolist() == [0, 0, 0, -1, -1]
    terms = terms_of(queries=3, queried=2, mechanism="histogram", threshold=None, sigma1=None, sigma2=None, sigma=2.0)
    arrays = released_arrays(terms, np.array([True, True]), np.array([[1, 5, -2, 0], [7, 7, 0, 0]]))
    assert arrays["labels"].tolist() == [1, 0, -1]
    np.testing.assert_array_equal(arrays["histograms"][:2], [[1, 5, -2, 0], [7, 7, 0, 0]])
    assert np.isnan(arrays["histograms"][2]).all()


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"aggregation": CONFIDENT | {"mechanism": "interactive", "surprise": 1, "confidence": 0.5}}, "interactive"),
        ({"queries": {"rounds": 2}}, "asks all queries at once"),
        ({"collaboration": {"parties": 21}}, "collaboration.parties=21 is above"),
        ({"collaboration": {"minimum": 21}}, "collaboration.minimum=21 is above"),
    ],
)
def test_what_parties_cannot_do_together_is_refused_before_any_work(sections, sentence, tmp_path):
    own = sections.get("aggregation", {})
    if own.get("mechanism") == "interactive":
        sections = sections | {"queries": {"rounds": 2}}
    with pytest.raises(SettingError, match=sentence):
        run_with(tmp_path, **(sections | {"aggregation": own | {"where": "parties"}}))


def own_teachers(voted, work, **params):
    run = run_with(voted)
    values = {"data": {"name": "digits", "public_benchmark": True}, "teachers": VALUES["teachers"], **params}
    return OwnTeachers(params=values, images=run.folders.images, backbone=run.folders.backbone, work=work)


def terms_on(voted, held, **changes):
    folders = run_with(voted).folders
    public = {"queries_digest": file_digest(folders.images / "manifest.json")}
    public["query_shards"] = [file_digest(path) for path in sorted(folders.images.glob("queries-*.npy"))]
    public["backbone"] = file_digest(folders.backbone / "backbone.safetensors")
    values = {"class_names": DIGITS, "epsilon": 60.0} | public | changes
    return terms_of(parties=2, held=held, queries=60, **values)


def own_votes(own, terms, held):
    return cast_votes(prepare_run(own, terms, held))


def test_a_party_with_its_own_data_votes_as_a_run_on_that_data_does(voted, tmp_path):
    votes = own_votes(own_teachers(voted, tmp_path), terms_on(voted, 20), 20)
    np.testing.assert_array_equal(votes, read_votes(run_with(voted).folders))
    alone = own_votes(own_teachers(voted, tmp_path / "one"), terms_on(voted, 1), 1)
    assert alone.shape == (60, 1)
    labels = read_array(run_with(voted).folders.dataset / "train_labels.npy")
    assert set(np.unique(alone)) <= set(np.unique(labels))


def own_digits(voted, folder, names, **arrays):
    """A party with a separate digits file, whose classes have these names in this order."""
    whole = load_dataset("digits", size=8)
    folder.mkdir(exist_ok=True)
    path = folder / f"{'-'.join(names)[:40]}.npz"
    digits = {"train_images": whole.train_images, "train_labels": whole.train_labels}
    digits |= {"test_images": whole.test_images, "test_labels": whole.test_labels}
    known = [DIGITS.index(name) if name in DIGITS else place for place, name in enumerate(names)]
    for split in ("train", "test"):
        digits[f"{split}_labels"] = np.argsort(known)[digits[f"{split}_labels"]]
    np.savez(path, class_names=names, **digits, **arrays)
    own = own_teachers(voted, folder / "work", data={"name": "npz", "path": str(path)})
    return own


def test_a_party_whose_classes_sort_differently_votes_for_them_by_name(voted, tmp_path):
    expected = own_votes(own_digits(voted, tmp_path / "one", DIGITS), terms_on(voted, 4), 4)
    swapped = ["0", "7", "2", "1", *"34", "5", "6", "9", "8"]
    assert sorted(swapped) == DIGITS
    found = own_votes(own_digits(voted, tmp_path / "other", swapped), terms_on(voted, 4), 4)
    np.testing.assert_array_equal(found, expected)


def test_a_party_whose_classes_have_other_names_is_told_which(voted, tmp_path):
    own = own_digits(voted, tmp_path, [*DIGITS[:9], "nine"])
    sentence = "The agreed classes are .* but these data contain .nine."
    with pytest.raises(InputError, match=sentence):
        own_votes(own, terms_on(voted, 2), 2)


def flipped(source, folder, name):
    """Copy a folder with one byte of one file flipped."""
    shutil.copytree(source, folder)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("part", "name"),
    [("images", "queries-00001.npy"), ("images", "manifest.json"), ("backbone", "backbone.safetensors")],
)
def test_a_party_does_not_train_for_public_files_of_which_one_byte_is_another(part, name, voted, tmp_path):
    folder = flipped(getattr(run_with(voted).folders, part), tmp_path / part, name)
    own = own_teachers(voted, tmp_path / "work").model_copy(update={part: folder})
    with pytest.raises(InputError, match=f"{name} is not the agreed file: its SHA-256 is "):
        own_votes(own, terms_on(voted, 2), 2)
    assert not (tmp_path / "work").exists()


def test_a_party_with_its_own_data_refuses_what_was_not_agreed_on(voted, tmp_path):
    with pytest.raises(
        SettingError, match=r"own\.params\.data\.size=28, and the terms say 8: all parties read their records alike"
    ):
        own_votes(own_teachers(voted, tmp_path, data={"name": "digits", "size": 28}), terms_on(voted, 2), 2)
    with pytest.raises(SettingError, match=r"agreed on Terrine 0\.0\.1, and this is "):
        own_votes(own_teachers(voted, tmp_path), terms_on(voted, 2, version="0.0.1"), 2)
    with pytest.raises(SettingError, match=r"own\.params\.aggregation is not a teacher party's to set"):
        own_votes(own_teachers(voted, tmp_path, aggregation={"sigma": 1}), terms_on(voted, 2), 2)
    with pytest.raises(SettingError, match="the terms say this party holds 2"):
        own_votes(own_teachers(voted, tmp_path, partition={"teachers": 3}), terms_on(voted, 2), 2)
