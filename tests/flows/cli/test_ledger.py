"""`terrine ledger`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from terrine.errors import LedgerError, SettingError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from terrine.privacy.ledger.site_key import account_of

ANSWER = GaussianEvent(1.0, 10.0)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """A ledger with one dataset and two releases, one of them not finished; the options that name it."""
    url, store, key = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "releases", tmp_path / "key"
    ledger = Ledger(url, store, load_or_create_key(key))
    ledger.register("abcdef" * 10, 6.0, 1e-5, "replay")

    def ask(name: str, noise: str, draw: object) -> None:
        ledger.release(
            dataset="abcdef" * 10,
            release_id=name,
            run="digits",
            worst_case=GaussianEvent(1.0, 5.0),
            delta=1e-5,
            noise_kind=noise,
            draw=draw,  # type: ignore[arg-type]
        )

    ask("first", "replay", lambda: ({"labels": np.arange(3)}, ANSWER))
    with pytest.raises(ZeroDivisionError):
        ask("second", "secure", lambda: 1 / 0)
    return ["--url", url, "--store", str(store), "--key", str(key)]


def terrine(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["ledger", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_says_in_words_what_is_left_and_marks_replayed_noise(options: list[str]) -> None:
    output = " ".join(terrine(*options).split())
    assert "account abcdefabcdefabcd (name unknown in this project)" in output
    assert re.search(r"ε 0\.\d+ of 6 spent over all runs, at δ = 1e-05\. Left: one run of up to ε 5\.\d+", output)
    assert re.search(r"digits 0\.\d+ 20\d\d-\d\d-\d\d \d\d:\d\d replayed noise, NOT PRIVATE", output)
    assert "reserved at worst case, not released" in output


def test_show_calls_accounts_by_the_names_that_the_project_has_and_folds_long_runs(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = load_or_create_key(Path(options[5]))
    ledger = Ledger(options[1], Path(options[3]), key)
    run = "a-run-with-a-name-" * 6
    dear = GaussianEvent(1.0, 0.65)
    for name in ("xrays-2026", "unknown"):
        ledger.register(account_of(key, name), 8.0, 1e-5, "release", unit="group")
    ledger.release(
        dataset=account_of(key, "xrays-2026"),
        release_id="third",
        run=run,
        worst_case=dear,
        delta=1e-5,
        noise_kind="secure",
        draw=lambda: ({}, dear),
    )
    (tmp_path / "params.yaml").write_text("run: digits\nledger: {account: xrays-2026}\n")
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    output = terrine(*options)
    assert max(map(len, output.splitlines())) <= 80
    assert re.search(r"^xrays-2026 \(account [0-9a-f]{16}\)$", output, re.MULTILINE)
    assert "per group" in output
    # The run's name wraps within its column and is not truncated.
    column = [line[2:].partition(" ")[0] for line in output.partition("ε  ")[2].splitlines()]
    assert run in "".join(column)
    changed = terrine("--budget", "9", "--account", "xrays-2026", *options)
    assert "The budget of xrays-2026 over all runs is now ε 9." in changed
    with pytest.raises(SettingError, match=r"matches 0 accounts\. Did you mean xrays-2026\?"):
        terrine("--budget", "9", "--account", "xray-2026", *options)


def test_show_as_json_counts_a_reservation_at_its_worst_case(options: list[str]) -> None:
    (dataset,) = json.loads(terrine("--json", *options))
    assert (dataset["epsilon_budget"], dataset["delta"], dataset["mode"]) == (6.0, 1e-5, "replay")
    first, second = dataset["releases"]
    assert (first["state"], second["state"]) == ("released", "reserved")
    assert first["epsilon"] < second["epsilon"] < dataset["epsilon_spent"] < first["epsilon"] + second["epsilon"]


def test_a_witness_is_a_line_or_a_file_of_them(options: list[str], tmp_path: Path) -> None:
    detail, line = terrine("--verify", *options).splitlines()
    assert "intact: 4 rows" in detail
    assert re.fullmatch(r"Terrine ledger, \d{4}-\d\d-\d\d: 4 rows, head [0-9a-f]{64}", line)
    assert "intact: 4 rows" in terrine("--witness", line, *options)
    (tmp_path / "seen").write_text(line.replace("4 rows", "5 rows"))
    with pytest.raises(LedgerError, match="not continue the one of the witness"):
        terrine("--witness", str(tmp_path / "seen"), *options)


def test_verify_refuses_a_ledger_whose_release_was_lost(options: list[str]) -> None:
    (Path(options[3]) / "first.npz").unlink()
    with pytest.raises(LedgerError, match="missing"):
        terrine("--verify", *options)


def test_linked_accounts_say_so_and_add_up(options: list[str]) -> None:
    ledger = Ledger(options[1], Path(options[3]), load_or_create_key(Path(options[5])))
    ledger.register("second", 6.0, 1e-5, "replay")
    assert "abcdefabcdefabcd and second are now linked permanently" in terrine(
        "--account", "abc", "--link", "second", *options
    )
    first, second = json.loads(terrine("--json", *options))
    assert first["epsilon_spent"] == second["epsilon_spent"] > 0
    assert (first["linked"], second["linked"]) == (["second"], ["abcdefabcdefabcd"])
    assert "Linked with second." in " ".join(terrine(*options).split())


def test_set_budget_changes_the_budget_over_all_runs(options: list[str]) -> None:
    raised, lowered = (" ".join(terrine("--budget", budget, *options).split()) for budget in ("8.5", "2"))
    assert "now ε 8.5" in raised
    assert "Statements name" not in raised
    assert "now ε 2" in lowered
    assert re.search(r"Statements name ε \d+, as promised with earlier releases", lowered)
    assert "now no limit" in terrine("--budget", "none", "--account", "abc", "--delta", "1e-6", *options)
    (dataset,) = json.loads(terrine("--json", *options))
    assert (dataset["epsilon_budget"], dataset["delta"]) == (None, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["many"], "must be a number or none"),
        (["0"], "greater than 0"),
        (["1", "--account", "x"], "Choose one of: abcdef"),
    ],
)
def test_a_budget_that_is_none_is_refused(options: list[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        terrine("--budget", *arguments, *options)


def test_looking_begins_no_ledger(tmp_path: Path) -> None:
    options = ["--url", f"sqlite:///{tmp_path}/l.db", "--store", str(tmp_path / "s"), "--key", str(tmp_path / "key")]
    with pytest.raises(LedgerError, match="no ledger key"):
        terrine(*options)
    load_or_create_key(tmp_path / "key")
    with pytest.raises(LedgerError, match="There is no ledger"):
        terrine("--verify", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_before_any_run_nothing_was_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "digits.yaml").write_text("description: digits\ndata: {public_benchmark: true}\n")
    (tmp_path / "params.yaml").write_text("run: digits\n")
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert terrine().startswith("There is no ledger yet.")
    assert json.loads(terrine("--json")) == []
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "data" / "private" / "site").mkdir(parents=True)
    with pytest.raises(LedgerError, match="There is no ledger key"):  # one was, and is gone
        terrine()


def test_without_options_the_ledger_of_the_project_is_meant(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "digits.yaml").write_text("description: digits\ndata: {public_benchmark: true}\n")
    (tmp_path / "params.yaml").write_text(
        "run: digits\nledger: {url: 'sqlite:///ledger.db', store: releases, key: key}\n"
    )
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    assert "intact: 4 rows" in terrine("--verify")
