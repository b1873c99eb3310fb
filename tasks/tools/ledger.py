"""The ledger for people: what it says about each dataset, whether it is intact, and how its budget is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.config.presets import project_root, resolve, selected_run
from tasks.runtime.run import Run
from terrine.errors import LedgerError, SettingError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key


def open_existing(url: str | None = None, store: Path | None = None, key: Path | None = None) -> Ledger:
    """Open a ledger that must exist; looking at it never begins one. What is None comes from params.yaml.

    Raises LedgerError when there is none, or when it is not intact.
    """
    if url is None or store is None or key is None:
        root = project_root()
        name = selected_run(root)
        run = Run(root, name, resolve(root, name))
        url = url or run.database(run.params.ledger.url)
        store = store or run.path(run.params.ledger.store)
        key = key or run.path(run.params.ledger.key)
    if not key.is_file():
        raise LedgerError(f"There is no ledger key at {key}: run the pipeline first, or name it with --key.")
    return Ledger(url, store, load_or_create_key(key), create=False)


def overview(ledger: Ledger) -> list[dict[str, Any]]:
    """Return every dataset with its budget, what was spent over all runs, and its releases, as JSON values.

    A release that was reserved and not committed shows, and counts, at its worst case. One that an earlier version made
    shows under the account that it was made for and under the one that it counts for now.
    """
    rows = ledger.rows()
    commits = {row.release_id: row for row in rows if row.kind == "commit"}
    adopted = {(row.dataset, row.content["of"]) for row in rows if row.kind == "adopt"}
    datasets = []
    for dataset in [row.dataset for row in rows if row.kind == "register"]:
        budget = ledger.budget(dataset)
        releases = []
        for row in rows:
            if row.kind != "reserve" or (row.dataset != dataset and (dataset, row.release_id) not in adopted):
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
                "dataset": dataset,
                "mode": budget.mode,
                "epsilon_budget": budget.epsilon,
                "delta": budget.delta,
                "epsilon_spent": round_up(ledger.spent(dataset, budget.delta)),
                "releases": releases,
            }
        )
    return datasets


def change_budget(ledger: Ledger, dataset: str | None, epsilon: float | None, delta: float | None) -> str:
    """Set the budget of a dataset, named by the start of its fingerprint, and return the whole fingerprint.

    Raises SettingError when the name fits none or several; without a name there must be one dataset only.
    """
    known = ledger.datasets()
    found = [name for name in known if name.startswith(dataset or "")]
    if len(found) != 1:
        listed = ", ".join(name[:16] for name in known) or "none"
        raise SettingError(f"--dataset {dataset or ''} fits {len(found)} datasets; choose one of: {listed}.")
    ledger.set_budget(found[0], epsilon, delta)
    return found[0]
