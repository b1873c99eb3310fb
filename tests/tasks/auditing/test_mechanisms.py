import json

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.audit import audit as audit_command
from tasks.auditing.mechanisms import audit, canaries
from terrine.aggregation.gnmax import ConfidentGNMax, GNMax
from terrine.aggregation.lnmax import LNMax
from terrine.aggregation.sums import Gradients, Moments
from terrine.errors import SettingError
from terrine.privacy.noise import ReplayNoise
from tests.noises import QuieterNoise


@pytest.mark.parametrize(
    "mechanism", [GNMax(sigma=10.0), LNMax(scale=2.0), ConfidentGNMax(threshold=80.0, sigma1=10.0, sigma2=40.0)]
)
def test_sound_mechanisms_pass_and_quiet_ones_are_caught(mechanism):
    sound = audit(mechanism, noise=ReplayNoise(1), runs=200)
    assert not sound["caught"]
    assert json.loads(json.dumps(sound, allow_nan=False)) == sound
    assert all(entry["epsilon_at_least"] <= entry["epsilon_charged"] for entry in sound["canaries"])
    assert audit(mechanism, noise=QuieterNoise(0.4, seed=1), runs=200)["caught"]


@pytest.mark.parametrize("mechanism", [Moments(), Gradients(rounds=4)])
def test_sums_pass_with_a_bound_of_one_at_a_charge_of_two_and_quiet_ones_are_caught(mechanism):
    sound = audit(mechanism, noise=ReplayNoise(1), runs=160)
    assert not sound["caught"]
    assert json.loads(json.dumps(sound, allow_nan=False)) == sound
    (entry,) = sound["canaries"]
    assert 1 <= entry["epsilon_at_least"] == sound["epsilon"] <= entry["epsilon_charged"] == pytest.approx(2)
    assert (entry["runs"], entry["coins"]) == (8, 8000)
    assert audit(mechanism, noise=QuieterNoise(0.5, seed=1), runs=160)["caught"]
    assert audit(mechanism, noise=QuieterNoise(0.001, seed=1), runs=20)["epsilon"] > 3


def test_sums_about_several_findings_are_audited_at_the_price_that_is_asked_for():
    found = audit(Gradients(rounds=4, findings=5), noise=ReplayNoise(1), runs=20, mu=0.9)
    assert not found["caught"]
    assert (found["mu"], found["findings"]) == (0.9, 5)
    assert found["canaries"][0]["mu_charged"] == pytest.approx(0.9)
    assert found["canaries"][0]["moved"] > 0.8


@pytest.mark.parametrize(
    "mechanism", [GNMax(sigma=10.0), LNMax(scale=2.0), ConfidentGNMax(threshold=80.0, sigma1=10.0, sigma2=40.0)]
)
def test_canaries_move_one_vote_of_the_ensemble(mechanism):
    for one, other in canaries(mechanism, 101).values():
        assert sum(one) == sum(other) == 101
        assert sorted(after - before for before, after in zip(one, other, strict=True)) == [-1, 1]


def test_a_threshold_test_without_noise_is_caught_with_the_vote_that_reaches_the_threshold():
    class NoTest(ReplayNoise):
        def gaussian(self, shape, sigma):
            return super().gaussian(shape, sigma) * (sigma != 5.0)

    assert audit(ConfidentGNMax(threshold=80.0, sigma1=5.0, sigma2=40.0), noise=NoTest(1), runs=100)["caught"]


def test_impossible_audits_are_refused():
    with pytest.raises(SettingError, match="ten teachers"):
        audit(GNMax(sigma=10.0), noise=ReplayNoise(0), teachers=3)
    with pytest.raises(SettingError, match="smaller sigma1"):
        audit(ConfidentGNMax(threshold=80.0, sigma1=40.0, sigma2=10.0), noise=ReplayNoise(0))
    with pytest.raises(SettingError, match="confidence"):
        audit(GNMax(sigma=10.0), noise=ReplayNoise(0), confidence=1.0)
    with pytest.raises(SettingError, match="asks none"):
        audit(Moments(), noise=ReplayNoise(0), queries=5)


def test_the_command_prints_what_was_found():
    app = typer.Typer()
    app.command("audit")(audit_command)
    app.callback()(lambda: None)
    options = ["audit", "--mechanism", "histogram", "--noise", "replay", "--runs", "40", "--queries", "20"]
    table = CliRunner().invoke(app, options, catch_exceptions=False)
    assert table.exit_code == 0
    assert "No leak beyond the charged ε" in table.stdout
    found = json.loads(CliRunner().invoke(app, [*options, "--json"], catch_exceptions=False).stdout)
    assert found["mechanism"] == "histogram"
    assert found["canaries"][0]["queries"] == 20
    assert found["noise"] == {"kind": "replay", "seed": 0}
    options = ["audit", "--mechanism", "moments", "--noise", "replay", "--runs", "20"]
    table = CliRunner().invoke(app, options, catch_exceptions=False)
    assert table.exit_code == 0
    assert "synthetic rows" in table.stdout
    assert "1,000" in table.stdout
