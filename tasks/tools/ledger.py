"""The ledger for people: what it says about each account, whether it is intact, and how its budget is changed.

In the ledger an account is a keyed digest of its name. Here, at home and with the key, names are found again among
those that runs and presets of the project have, and the public benchmarks'; they are printed and never written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.config.presets import PRESETS, project_root, resolve, selected_run
from tasks.config.values import read_yaml
from tasks.runtime.accounts import benchmark_account
from tasks.runtime.run import Run
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.errors import LedgerError, SettingError, did_you_mean
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from terrine.privacy.ledger.site_key import account_of
from terrine.privacy.ledger.snapshot import LedgerSnapshot


def open_existing(
    url: str | None = None, store: Path | None = None, key: Path | None = None
) -> tuple[Ledger, dict[str, str]]:
    """Open a ledger that must exist; looking at it never begins one. What is None comes from params.yaml.

    Returns the ledger, and the names of its accounts as far as they are known here.

    Raises LedgerError when there is none, or when it is not intact.
    """
    if url is None or store is None or key is None:
        run = _of_the_project()
        url = url or run.database(run.params.ledger.url)
        store = store or run.path(run.params.ledger.store)
        key = key or run.path(run.params.ledger.key)
    if not key.is_file():
        raise LedgerError(f"There is no ledger key at {key}: run the pipeline first, or name it with --key.")
    secret = load_or_create_key(key)
    return Ledger(url, store, secret, create=False), _names(secret)


def is_begun() -> bool:
    """Tell whether the project's ledger was begun, as far as can be seen here, or the site remembers one."""
    run = _of_the_project()
    file = run.database(run.params.ledger.url).removeprefix("sqlite:///")
    return "://" in file or any(path.exists() for path in (Path(file), run.path(run.params.ledger.store), run.site))


def _of_the_project() -> Run:
    root = project_root()
    name = selected_run(root)
    return Run(root, name, resolve(root, name))


def read_witness(line_or_file: str) -> str:
    """Return lines of a witness that were given as such, or as the file that they are in."""
    path = Path(line_or_file)
    return path.read_text(encoding="utf-8") if len(line_or_file) < 200 and path.is_file() else line_or_file


def _names(key: bytes) -> dict[str, str]:
    """Return the names of accounts that this project knows, by what a ledger with this key knows them as."""
    names = {benchmark_account(key, name): name for name in PUBLIC_BENCHMARKS}
    try:
        root = project_root()
    except SettingError:
        return names
    files = [*root.glob("data/private/*/parameters.yaml"), *root.glob(f"{PRESETS}/*.yaml"), root / "params.yaml"]
    for path in files:
        account = (read_yaml(path).get("ledger") or {}).get("account")
        if account is not None:
            names[account_of(key, str(account))] = str(account)
    return names


def overview(ledger: Ledger, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return every account with its budget, what was spent over all runs, what is left, and its releases, as JSON
    values.

    A release that was reserved and not committed shows, and counts, at its worst case.
    """
    rows = ledger.rows()
    commits = {row.release_id: row for row in rows if row.kind == "commit"}
    datasets = []
    snapshot = LedgerSnapshot.of(rows)
    for dataset in snapshot.accounts:
        account, *linked = snapshot.together(dataset)
        budget = account.budget
        releases = []
        for row in rows:
            if row.kind != "reserve" or row.dataset != dataset:
                continue
            charged = commits.get(row.release_id, row)
            releases.append(
                {
                    "release_id": row.release_id,
                    "run": row.content["run"],
                    "state": charged.kind.replace("commit", "released").replace("reserve", "reserved"),
                    "noise": row.content["noise"],
                    "epsilon": round_up(price(from_json(charged.content["event"]), budget.delta)),
                    "written": charged.written,
                }
            )
        datasets.append(
            {
                "account": names.get(dataset),
                "dataset": dataset,
                "mode": budget.mode,
                "unit": account.unit,
                "linked": [names.get(other, other[:16]) for other in account.linked],
                "epsilon_budget": budget.epsilon,
                "delta": budget.delta,
                "epsilon_spent": round_up(price(account.used(), budget.delta)),
                "epsilon_left": account.left(*linked),
                "releases": releases,
            }
        )
    return datasets


def change_budget(
    ledger: Ledger, names: dict[str, str], name: str | None, epsilon: float | None, delta: float | None
) -> tuple[str, float | None]:
    """Set the budget of an account, named as runs name it or by the start of its digest.

    Returns what to call it, and what statements name as its limit (`Ledger.guarantee`). Raises SettingError when the
    name fits none or several; without a name there must be one account only.
    """
    account, called = _one(ledger, names, name)
    ledger.set_budget(account, epsilon, delta)
    return called, ledger.guarantee(account)


def link_accounts(ledger: Ledger, names: dict[str, str], one: str, other: str) -> list[str]:
    """Add two accounts up, named as `change_budget` takes them; return what to call them."""
    found = [_one(ledger, names, name) for name in (one, other)]
    ledger.link(*(account for account, _ in found))
    return [called for _, called in found]


def _one(ledger: Ledger, names: dict[str, str], name: str | None) -> tuple[str, str]:
    """Return the account of a name, or of the start of a digest, and what to call it."""
    known = {account: names.get(account, account[:16]) for account in ledger.datasets()}
    if name and (account := ledger.named(name)) in known:
        return account, name
    found = [account for account in known if name == known[account]]
    found = found or [account for account in known if account.startswith(name or "")]
    if len(found) != 1:
        listed = ", ".join(known.values()) or "none"
        near = did_you_mean(name or "", known.values())
        raise SettingError(f"--account {name or ''} fits {len(found)} accounts.{near} Choose one of: {listed}.")
    return found[0], known[found[0]]
