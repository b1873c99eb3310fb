"""Whose budget a run draws on, and in which ledger."""

from __future__ import annotations

from tasks.runtime.keys import site_key
from tasks.runtime.run import Run
from terrine.determinism.randomness import derive_seed
from terrine.privacy.ledger.account import Account
from terrine.privacy.ledger.identity import keyed_digest
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise


def open_ledger(run: Run) -> Ledger:
    """Open the project's ledger, or begin it."""
    settings = run.params.ledger
    return Ledger(run.database(settings.url), run.path(settings.store), site_key(run))


def ledger_account(run: Run) -> str:
    """Return whose budget the run draws on: the named account's, else that of the public benchmark by its name.

    Never a digest of the data: a record more would then be a fresh budget.
    """
    name = run.params.ledger.account
    if name is not None:
        return keyed_digest(site_key(run), "terrine ledger account", name.encode())
    return keyed_digest(site_key(run), "terrine ledger account of a benchmark", run.params.data.name.encode())


def open_registered(run: Run, account: str, *, delta: float, unit: str, public: bool) -> Ledger:
    """Return the ledger, with the account registered in it with the budget that the parameters name.

    public: what anyone may know, which may be used for ablations with replayed noise; anything else never.
    Raises LedgerError where the account is registered with another budget or mode, or for releases in another unit.
    """
    ledger = open_ledger(run)
    ledger.register(account, run.params.ledger.epsilon, delta, "replay" if public else "release", unit=unit)
    return ledger


def open_account(run: Run) -> tuple[Ledger, str]:
    """Return the ledger and the account that a release of votes or averages draws on."""
    account, params = ledger_account(run), run.params
    ledger = open_registered(
        run, account, delta=params.aggregation.delta, unit=params.privacy.unit, public=params.data.public_benchmark
    )
    return ledger, account


def account_of(ledger: Ledger, name: str) -> Account:
    """Return what a registered account may spend and has spent."""
    account = Account.of(name, ledger.rows())
    assert account is not None
    return account


def noise_source(run: Run) -> NoiseSource:
    """Return the operating system's noise, or replayed noise for an ablation."""
    if run.params.aggregation.noise == "secure":
        return SecureNoise()
    return ReplayNoise(derive_seed(run.params.seed, "replayed noise"))
