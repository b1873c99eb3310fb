"""Reports about a ledger, and changes of budgets and links, for `terrine ledger`.

The ledger stores a keyed digest of each account's name. With the key, names are recovered from the runs and presets of
the project and from public benchmarks. Names of accounts are printed and never written to a file.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.config.presets import project_root, resolve, selected_run
from tasks.runtime.accounts import account_names
from tasks.runtime.releases import list_releases, name_of
from tasks.runtime.run import Run, check_not_transcription, open_run
from tasks.runtime.store import read_json
from terrine.errors import LedgerError, SettingError, TerrineError, did_you_mean
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from terrine.privacy.ledger.snapshot import LedgerSnapshot


def open_existing(
    url: str | None = None, store: Path | None = None, key: Path | None = None
) -> tuple[Ledger, dict[str, str]]:
    """Open an existing ledger. Arguments that are None are read from params.yaml.

    Returns:
        The ledger, and the known names of accounts by their digests.

    Raises:
        LedgerError: If there is no ledger or it is damaged.
    """
    if url is None or store is None or key is None:
        run = _selected()
        url = url or run.database(run.params.ledger.url)
        store = store or run.path(run.params.ledger.store)
        key = key or run.path(run.params.ledger.key)
    if not key.is_file():
        raise LedgerError(f"There is no ledger key at {key}. Make a run first, or name the key with --key.")
    secret = load_or_create_key(key)
    try:
        root = project_root()
    except SettingError:  # not in a project: --url, --store and --key name the ledger
        root = None
    return Ledger(url, store, secret, create=False), account_names(root, secret)


def ledger_exists() -> bool:
    """Return whether the project has a ledger, or the site registry knows one."""
    run = _selected()
    file = run.database(run.params.ledger.url).removeprefix("sqlite:///")
    return "://" in file or any(path.exists() for path in (Path(file), run.path(run.params.ledger.store), run.site))


def _selected() -> Run:
    """Return the selected run, which may not have been started."""
    root = project_root()
    name = selected_run(root)
    return Run(root, name, resolve(root, name))


def read_witness(line_or_file: str) -> str:
    """Return the lines of a witness, given as text or as a file."""
    path = Path(line_or_file)
    return path.read_text(encoding="utf-8") if len(line_or_file) < 200 and path.is_file() else line_or_file


def overview(ledger: Ledger, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return all accounts with budget, spending, balance and releases, as JSON values.

    A release that is reserved but not committed counts at its worst case.
    """
    rows = ledger.rows()
    kinds = _kinds({row.content["run"] for row in rows if row.kind == "reserve"})
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
                    "kind": kinds.get(row.release_id or ""),
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


def _kinds(names: set[str]) -> dict[str, str]:
    """Return what each release of these runs contains, by release ID; runs that the project lacks are left out."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(TerrineError):
            run = open_run(project_root(), name)
            if run.folders.imported and "files" in (statement := read_json(run.folders.statement))["mechanism"]:
                found[statement["release_id"]] = "an imported model"
                continue
            check_not_transcription(name, run.params)
            for release in list_releases(run):
                found[release.identity] = name_of(run.params, release.kind)
    return found


def change_budget(
    ledger: Ledger, names: dict[str, str], name: str | None, epsilon: float | None, delta: float | None
) -> tuple[str, float | None]:
    """Set the budget of an account.

    Args:
        ledger: An open ledger.
        names: Names of accounts by digest.
        name: Name of the account or start of its digest. The name may be None if there is only one account.
        epsilon: New ε, or None for no limit.
        delta: New δ, or None to keep it.

    Returns:
        The account's name, and the limit that statements name (`Ledger.guarantee`).

    Raises:
        SettingError: If the name matches no account or several.
    """
    account, shown = _find(ledger, names, name)
    ledger.set_budget(account, epsilon, delta)
    return shown, ledger.guarantee(account)


def link_accounts(ledger: Ledger, names: dict[str, str], one: str, other: str) -> list[str]:
    """Link two accounts, named as in `change_budget`, and return their names."""
    found = [_find(ledger, names, one), _find(ledger, names, other, "--link")]
    ledger.link(*(account for account, _ in found))
    return [shown for _, shown in found]


def _find(ledger: Ledger, names: dict[str, str], name: str | None, option: str = "--account") -> tuple[str, str]:
    """Return the digest and name of the account with this name, or whose digest starts with it."""
    known = {account: names.get(account, account[:16]) for account in ledger.datasets()}
    if name and (account := ledger.named(name)) in known:
        return account, name
    found = [account for account in known if name == known[account]]
    found = found or [account for account in known if account.startswith(name or "")]
    if len(found) != 1:
        listed = ", ".join(known.values()) or "none"
        near = did_you_mean(name or "", known.values())
        raise SettingError(f"{option} {name or ''} matches {len(found)} accounts.{near} Choose one of: {listed}.")
    return found[0], known[found[0]]
