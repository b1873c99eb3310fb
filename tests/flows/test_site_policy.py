"""Deployments may not override budgets or the site's files."""

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import pipeline as flow
from flows.site_policy import check_overrides
from terrine.errors import SettingError


@pytest.mark.parametrize(
    "override",
    [
        "ledger.account=others",
        "ledger.epsilon=100",
        "ledger.url=sqlite:///other.db",
        "ledger={account: others}",
        "ledger.key=other",
        "ledger=null",
        "data.public_benchmark=true",
        "data={name: digits}",
        "data.edition=2",
        "data.path=/srv/others",
        "aggregation.noise=replay",
        "aggregation={epsilon: 1, noise: replay}",
        "aggregation.delta=0.5",
        "transcription={delta: 0.5}",
        "privacy.unit=record",
        "tracking.private_metrics=true",
        "tracking.uri=http://elsewhere",
        "runner.address=tcp://elsewhere:8786",
        "runner.elsewhere={aggregate: stage/other}",
        "backbone.weights=/srv/weights.pt",
        "transcription.teacher.file=/srv/teacher",
    ],
)
def test_budgets_noise_and_places_are_not_overridden_whatever_is_listed(override: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="A deployment may not override"):
        check_overrides(tmp_path, ["seed=3", override])
    if override.partition(".")[0] not in ("data", "tracking", "transcription"):
        (tmp_path / "site.yaml").write_text("overridable: [ledger, aggregation, privacy, runner]\n")
        with pytest.raises(SettingError, match="A deployment may not override"):
            check_overrides(tmp_path, [override])


def test_the_rest_is_overridden_as_the_site_lists_it(tmp_path: Path) -> None:
    usual = ["aggregation.epsilon=2", "seed=3", "student={l2: 0.1}"]
    check_overrides(tmp_path, usual)
    (tmp_path / "site.yaml").write_text("overridable: [student, data.edition]\n")
    check_overrides(tmp_path, ["student.l2=0.1", "data.edition=2"])
    for refused in ("seed=3", "data.size=8"):
        with pytest.raises(SettingError, match=r"it may set student, data\.edition"):
            check_overrides(tmp_path, [refused])


@pytest.mark.parametrize("deployment", [None, "id of a deployment"])
def test_the_flow_checks_overrides_only_if_a_deployment_starts_it(
    deployment: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for name, value in {
        "deployment": SimpleNamespace(id=deployment),
        "project_root": lambda: tmp_path,
        "derive": lambda root, preset, overrides: made.append(overrides) or "run",
        "run_stages": lambda *_, **__: None,
        "get_run_logger": lambda: logging.getLogger("flow"),
        "create_table_artifact": lambda *_, **__: None,
        "for_anybody": lambda run: {},
        "open_run": lambda root, run: run,
        "shorten_users_errors": lambda: None,
    }.items():
        monkeypatch.setattr(flow, name, value)
    with pytest.raises(SettingError) if deployment else nullcontext():
        flow.pipeline.fn("digits", ["ledger.account=others"])
    assert made == ([] if deployment else [["ledger.account=others"]])


@pytest.mark.parametrize(
    ("vary", "overrides"), [(["ledger.epsilon=5,6"], None), (["student.l2=0.1,1"], ["aggregation.noise=replay"])]
)
def test_a_sweep_that_a_deployment_starts_varies_what_may_be_overridden(
    vary: list[str], overrides: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import sweep

    made = []
    monkeypatch.setattr(sweep, "sweep", lambda *given: made.append(given) or {"candidates": [{"run": "a"}]})
    monkeypatch.setattr("tasks.tools.sweep.table_cells", lambda result: [["run"], ["a"]])
    monkeypatch.setattr("tasks.tools.sweep.summary", lambda result: [])
    monkeypatch.setattr(sweep, "create_table_artifact", lambda *_, **__: None)
    monkeypatch.setattr(sweep, "project_root", lambda: tmp_path)
    monkeypatch.setattr(sweep, "deployment", SimpleNamespace(id="id of a deployment"))
    with pytest.raises(SettingError, match="A deployment may not override"):
        sweep.sweep_flow.fn(vary, None, overrides)
    assert not made
    sweep.sweep_flow.fn(["student.l2=0.1,1"], "digits")
    assert made == [(["student.l2=0.1,1"], "digits", None, "none")]
