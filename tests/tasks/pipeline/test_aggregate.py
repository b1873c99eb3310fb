"""The release as a stage: every mechanism, in one round or several, within one budget and exactly once."""

import math
import shutil

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.teachers import teachers_made_from, votes_made_from
from tasks.config.params import merge_overrides, validate
from tasks.config.values import merge
from tasks.pipeline import aggregate, student
from tasks.runtime.release_identity import data_changes
from tasks.runtime.releases import record_audit
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, read_table, write_array, write_json
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, BudgetError, SettingError
from terrine.privacy.accounting.events import (
    GaussianEvent,
    RepeatedEvent,
    compose,
    from_json,
    to_json,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.accounting.pricing import price

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 20},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1, "dead_leaves": 1}},
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2, "noise": "replay"},
}
INTERACTIVE = {"mechanism": "interactive", "threshold": 8, "sigma1": 30, "sigma2": 15} | {
    "surprise": 8,
    "confidence": 0.5,
    "epsilon": 3,
}


def run_with(root, **sections):
    return Run(root, "small", validate(merge_overrides(VALUES, sections)))


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A folder in which all stages up to the votes have run."""
    root = tmp_path_factory.mktemp("project")
    run = run_with(root)
    run_through(run, "dataset", "vote")
    return root


def as_made_now(run):
    """Mark the existing teachers and votes as made with this run's settings and artefacts."""
    for folder, made_from in ((run.folders.teachers, teachers_made_from), (run.folders.votes, votes_made_from)):
        write_json(folder / "manifest.json", read_json(folder / "manifest.json") | {"made_from": made_from(run)})
    return run


def released(run):
    aggregate.release_answers.fn(run)
    return read_table(run.folders.answers / "answers.parquet"), read_json(run.folders.statement)


@pytest.mark.parametrize(
    ("aggregation", "queries"),
    [
        ({}, {}),
        ({"mechanism": "gnmax"}, {}),
        ({"mechanism": "lnmax", "scale": 30}, {}),
        (INTERACTIVE, {"rounds": 2}),
        ({}, {"rounds": 3, "select": "uncertain"}),
        ({"mechanism": "gnmax"}, {"rounds": 3, "select": "uncertain"}),
        (INTERACTIVE | {"epsilon": 9}, {"rounds": 3, "select": "uncertain"}),
    ],
)
def test_a_release_in_any_number_of_rounds_stays_within_its_budget_and_is_made_once(voted, aggregation, queries):
    run = run_with(voted, aggregation=aggregation, queries=queries)
    answers, statement = released(run)
    queried = answers["round"] >= 0
    assert statement["epsilon"] <= run.params.aggregation.epsilon
    assert statement["queried"] == queried.sum() > statement["answered"] - 1
    assert statement["answered"] == answers["answered"].sum() > 0
    assert not answers["answered"][~queried].any()
    assert answers["round"].max() + 1 <= run.params.queries.rounds
    event = from_json(statement["event"])
    assert to_json(event) == statement["event"]
    if run.params.aggregation.mechanism != "lnmax":
        assert statement["epsilon"] == pytest.approx(price(event, 1e-5), abs=2e-4)
    ledger, account = aggregate.open_account(run)
    releases = len(ledger.events(account))
    again, _ = released(run)
    assert again.equals(answers)
    assert len(ledger.events(account)) == releases
    student.train_student.fn(run)


def test_what_counting_units_cost_is_in_the_statement_and_leaves_the_answers_less(voted):
    alone = run_with(voted, aggregation={"sigma": 19})
    counted = run_with(voted, aggregation={"sigma": 19}, privacy={"units": 1450, "counted": 4.0})
    (_, without), (_, statement) = released(alone), released(counted)
    assert statement["mechanism"]["counted"] == {"units": 1450, "sigma": 4.0}
    answers = RepeatedEvent(vote_answer(19.0), statement["queried"])
    whole = price(compose(GaussianEvent(1.0, 4.0), answers), 1e-5)
    assert statement["epsilon"] == pytest.approx(whole, abs=2e-4)
    assert statement["epsilon"] <= 2
    assert statement["queried"] < without["queried"]


def test_what_is_asked_in_a_later_round_depends_on_what_the_earlier_released(voted):
    answers, _ = released(run_with(voted, queries={"rounds": 3, "select": "uncertain"}))
    in_order, _ = released(run_with(voted))
    assert set(answers["round"]) == {-1, 0, 1, 2}
    assert not (answers["round"] >= 0).equals(in_order["round"] >= 0)


def test_a_round_is_a_new_release_of_its_own_identity(voted):
    identities = set()
    for queries in ({}, {"rounds": 2}, {"rounds": 2, "select": "uncertain"}, {"rounds": 3, "select": "uncertain"}):
        run = run_with(voted, queries=queries)
        released(run)
        identities.add(read_json(run.folders.answers / "manifest.json")["release_id"])
    assert len(identities) == 4


def test_a_crash_between_rounds_leaves_one_release_and_one_charge(voted, monkeypatch):
    run = run_with(voted, queries={"rounds": 3, "select": "uncertain"}, aggregation={"sigma": 21})
    ledger, account = aggregate.open_account(run)
    before = len(ledger.events(account))
    true_adviser, calls = aggregate.adviser, []

    def dying(*arguments):
        advise = true_adviser(*arguments)

        def advise_until_killed(released):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return advise(released)

        return advise_until_killed

    monkeypatch.setattr(aggregate, "adviser", dying)
    with pytest.raises(KeyboardInterrupt):
        released(run)
    assert len(ledger.events(account)) == before + 1
    monkeypatch.undo()
    answers, _ = released(run)
    assert set(answers["round"]) == {-1, 0, 1, 2}
    assert len(ledger.events(account)) == before + 1
    assert np.isfinite(answers.loc[answers["round"] >= 0, "count_0"]).all()


def test_a_statement_quotes_the_audit_of_its_own_mechanism_and_no_other(voted):
    run = run_with(voted)
    record_audit(run, {"mechanism": "histogram", "sigma": 20.0, "epsilon": 0.125, "confidence": 0.95})
    assert released(run)[1]["audit_epsilon"] == 0.125
    other = run_with(voted, aggregation={"sigma": 22})
    assert released(other)[1]["audit_epsilon"] is None


def test_a_budget_beyond_what_the_noises_lattice_allows_is_refused_before_anything_is_charged(voted):
    run = run_with(voted, aggregation={"epsilon": 50})
    ledger, account = aggregate.open_account(run)
    releases = len(ledger.events(account))
    with pytest.raises(SettingError, match="too large for a guarantee"):
        aggregate.release_answers.fn(run)
    assert len(ledger.events(account)) == releases


def charged(run):
    ledger, account = aggregate.open_account(run)
    return len(ledger.events(account))


def change_a_vote(run):
    votes = read_array(run.folders.votes / "votes.npy")
    votes[3, 7] = (votes[3, 7] + 1) % 10
    write_array(run.folders.votes / "votes.npy", votes)


def published(run):
    return {path.name: path.read_bytes() for path in run.folders.release.rglob("*") if path.is_file()}


def test_equal_votes_and_other_votes_get_the_same_release_and_only_the_operator_is_told(voted, tmp_path):
    """Were a release known by its votes, "release 2 equals release 1" would say whether a record's vote moved."""
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    secure = {"mechanism": "histogram", "sigma": 23, "epsilon": 2, "noise": "secure"}
    run = run_with(tmp_path, aggregation=secure)
    released(run)
    first, releases = published(run), charged(run)
    released(run)
    assert published(run) == first
    assert data_changes(run) == []
    change_a_vote(run)
    write_json(
        run.folders.partition / "manifest.json", read_json(run.folders.partition / "manifest.json") | {"hash": "0"}
    )
    released(as_made_now(run))
    assert published(run) == first
    assert charged(run) == releases
    [told] = data_changes(run)
    assert "partition, votes" in told
    assert "data.edition=2" in told
    assert not any("changed since" in text.decode(errors="ignore") for text in published(run).values())


def test_a_new_edition_and_a_teachers_penalty_are_drawn_and_charged_though_no_vote_differs(voted, tmp_path):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    before = run_with(tmp_path)
    released(before)
    releases = charged(before)
    for number, changes in enumerate(({"data": {"edition": "2"}}, {"teachers": {"ridge": 0.2}}), start=1):
        run = Run(tmp_path, "small", validate(merge(before.params.model_dump(mode="json"), changes)))
        released(as_made_now(run))
        assert charged(run) == releases + number


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"privacy": {"unit": "group"}}, "partition"),
        ({"seed": 7}, "partition"),
        ({"partition": {"kind": "dirichlet", "alpha": 1.0}}, "partition"),
        ({"teachers": {"ridge": 0.3}}, "teachers"),
        ({"teachers": {"kind": "averaged", "clip": 1.0, "budget_share": 0.3}}, "teachers"),
        ({"teachers": {"statistics": "original"}}, "teachers"),
        ("images", "votes"),
        ("backbone", "teachers"),
        ("teachers", "votes"),
    ],
    ids=str,
)
def test_votes_of_other_settings_are_released_by_no_stage_that_is_run_alone(voted, tmp_path, changes, what):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    run = run_with(tmp_path, **(changes if isinstance(changes, dict) else {}))
    before = charged(run_with(tmp_path))
    if isinstance(changes, str):
        file = {
            "images": run.folders.images / "manifest.json",
            "backbone": run.folders.backbone / "backbone.safetensors",
            "teachers": run.folders.teachers / "manifest.json",
        }[changes]
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content.replace(b'"digest": "', b'"digest": "0') if changes == "teachers" else content + b" ")
    with pytest.raises(ArtefactError, match=rf"The {what} of small were made with other settings.*was released"):
        released(run)
    assert charged(run_with(tmp_path)) == before


def test_a_published_digest_of_the_partition_is_another_in_every_release(voted, tmp_path):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    digests = {released(run_with(tmp_path, aggregation={"sigma": sigma}))[1]["partition_digest"] for sigma in (24, 25)}
    assert len(digests) == 2
    assert read_json(run_with(tmp_path).folders.partition / "manifest.json")["hash"] not in digests


def test_what_is_sealed_with_a_release_is_in_nothing_that_is_published(voted, tmp_path, monkeypatch):
    """The salt would allow to check a guess of the partition."""
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    sealed = {}
    monkeypatch.setattr(
        aggregate, "record_data_change", lambda run, kind, release, inputs: sealed.update(release.inputs)
    )
    run = run_with(tmp_path, aggregation={"sigma": 27})
    released(run)
    assert {"salt", "partition", "votes", "queries"} == set(sealed)
    for name in ("salt", "partition", "votes"):  # query images are public
        assert not any(sealed[name].encode() in content for content in published(run).values())


def test_a_release_is_not_given_to_other_query_images_than_it_is_about(voted, tmp_path):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    run = run_with(tmp_path, aggregation={"sigma": 26})
    released(run)
    first, path = published(run), run.folders.images / "manifest.json"
    write_json(path, read_json(path) | {"drawn_by": "another version"})
    as_made_now(run)
    with pytest.raises(ArtefactError, match="other query images"):
        released(run)
    assert published(run) == first


MOMENTS = {"privacy": {"moments": 0.1}}


@pytest.mark.parametrize(("aggregation", "rounds"), [({"epsilon": 2.01}, 1), (INTERACTIVE, 2)])
def test_moments_are_released_once_for_their_share_and_the_statement_prices_them_with_the_answers(
    voted, aggregation, rounds
):
    sections = {"aggregation": aggregation, "queries": {"rounds": rounds}, **MOMENTS}
    run = run_with(voted, **sections)
    ledger, account = aggregate.open_account(run)
    before = ledger.events(account)
    _, statement = released(run)
    moments, _ = ledger.events(account)[len(before) :]
    budget = run.params.aggregation.epsilon
    assert moments.sensitivity == 2
    assert mu_squared(moments) == pytest.approx(0.1 * mu_of(budget, 1e-5) ** 2, rel=1e-6)
    answers = math.sqrt(mu_squared(from_json(statement["event"])) - mu_squared(moments))
    if aggregation is not INTERACTIVE:  # every answer is a histogram of sensitivity √2
        assert answers == pytest.approx(math.sqrt(2 * statement["queried"]) / run.params.aggregation.sigma)
    exact = epsilon_of(math.hypot(answers, math.sqrt(mu_squared(moments))), 1e-5)
    assert statement["epsilon"] == pytest.approx(exact, abs=2e-4)
    assert statement["epsilon"] <= budget
    assert statement["mechanism"]["moments"]["numbers"] == 324 + 81 + 1
    first = (run.folders.answers / "moments.safetensors").read_bytes()
    released(as_made_now(run_with(voted, teachers={"ridge": 0.2}, **sections)))  # shares the moments
    released(as_made_now(run))
    assert (run.folders.answers / "moments.safetensors").read_bytes() == first
    assert len(ledger.events(account)) == len(before) + 3
    student.train_student.fn(run)
    assert StudentModel.load(run.folders.student).statistics == "released"


def test_moments_do_not_depend_on_the_teachers_that_records_are_assigned_to(voted, tmp_path):
    """Another number of teachers is no change of the data, which would advise a new edition at its own cost."""
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    run = run_with(tmp_path, aggregation={"epsilon": 2.01}, **MOMENTS)
    released(run)
    manifest = run.folders.partition / "manifest.json"
    write_json(manifest, read_json(manifest) | {"hash": "0"})
    released(as_made_now(run))
    assert not [told for told in data_changes(run) if "moments" in told]
    assert [told for told in data_changes(run) if "answers were released (partition)" in told]


def test_moments_that_the_account_cannot_pay_with_the_answers_are_refused_before_anything_is_charged(voted):
    own = {"ledger": {"account": "poor", "epsilon": 1.9}, "aggregation": {"sigma": 15}}
    run = run_with(voted, **own, **MOMENTS)
    ledger, account = aggregate.open_account(run)
    with pytest.raises(BudgetError):
        released(run)
    assert ledger.events(account) == []


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"backbone": {"kind": "resnet10"}}, "require backbone.kind=scattering, not resnet10"),
        ({"aggregation": {"where": "parties"}}, "are not summed over parties"),
        ({"teachers": {"kind": "averaged", "clip": 1.0, "budget_share": 0.5}}, "already use a share of the budget"),
    ],
)
def test_moments_are_refused_where_there_are_none(tmp_path, other, reason):
    with pytest.raises(SettingError, match=f"privacy.moments=0.1 cannot be released: .*{reason}"):
        run_with(tmp_path, **other, **MOMENTS)
