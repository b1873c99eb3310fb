"""`terrine ledger`: look at the ledger, verify it, change a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Database of the ledger; default: params.yaml's ledger.url.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of the releases; default: ledger.store.")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="The site's key; default: ledger.key.")]

ledger = typer.Typer(
    name="ledger",
    help="What was released about each dataset, over all runs.",
    no_args_is_help=True,
    add_completion=False,
)


def register(app: typer.Typer) -> None:
    """Add `ledger` to the command line."""
    app.add_typer(ledger)


@ledger.command()
def show(
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show budgets, what was spent, and every release."""
    from tasks.tools.ledger import open_existing, overview

    datasets = overview(open_existing(url, store, key))
    if as_json:
        typer.echo(json.dumps(datasets, indent=2))
        return
    console = Console()
    for entry in datasets:
        limit = "no limit" if entry["epsilon_budget"] is None else f"{entry['epsilon_budget']:g}"
        console.print(
            f"dataset [bold]{entry['dataset'][:16]}[/bold]  mode {entry['mode']}  budget ε {limit}  "
            f"spent ε [bold]{entry['epsilon_spent']:g}[/bold]  δ {entry['delta']:g}"
        )
        table = Table("release", "run", "state", "noise", "ε by itself", "written", box=None, pad_edge=False)
        for release in entry["releases"]:
            noise = "replay, NOT PRIVATE" if release["noise"] == "replay" else release["noise"]
            table.add_row(
                release["release_id"][:16],
                release["run"],
                release["state"],
                noise,
                f"{release['epsilon']:g}",
                release["written"],
            )
        console.print(table)
    if not datasets:
        console.print("The ledger is empty: nothing was released.")


@ledger.command()
def verify(url: UrlOption = None, store: StoreOption = None, key: KeyOption = None) -> None:
    """Check the chain of rows, its end, and every stored release."""
    from tasks.tools.ledger import open_existing

    count = open_existing(url, store, key).verify()
    Console().print(f"The ledger is intact: {count} rows, and every committed release is as it was written.")


@ledger.command("set-budget")
def set_budget(
    epsilon: Annotated[str, typer.Argument(help="The new ε over all runs, or 'none' for no limit.")],
    dataset: Annotated[
        str | None, typer.Option(help="Start of the dataset's fingerprint; needed if there are several.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The new δ; default: as before.")] = None,
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
) -> None:
    """Change a dataset's budget over all runs. What was spent stays spent; the change is a row of its own."""
    from tasks.tools.ledger import change_budget, open_existing
    from terrine.errors import SettingError

    try:
        limit = None if epsilon == "none" else float(epsilon)
    except ValueError as error:
        raise SettingError(f"A budget is a number or 'none', got {epsilon!r}.") from error
    name = change_budget(open_existing(url, store, key), dataset, limit, delta)
    shown = "no limit" if limit is None else f"ε {limit:g}"
    Console().print(f"The budget of dataset {name[:16]} over all runs is now {shown}.")
