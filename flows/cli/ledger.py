"""`terrine ledger`: look at the ledger, verify it, change a budget."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table

from flows.cli.options import JsonOption
from flows.printing import printer

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Database of the ledger; default: params.yaml's ledger.url.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of the releases; default: ledger.store.")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="The site's key; default: ledger.key.")]

ledger = typer.Typer(
    name="ledger",
    help="What was released about whom, over all runs, and what is left of each budget.",
    no_args_is_help=True,
    add_completion=False,
)


@ledger.command()
def show(
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show budgets, what was spent, and every release."""
    from tasks.tools.ledger import is_begun, open_existing, overview

    begun = any((url, store, key)) or is_begun()
    accounts = overview(*open_existing(url, store, key)) if begun else []
    if as_json:
        typer.echo(json.dumps(accounts, indent=2))
        return
    console = printer()
    for account in accounts:
        name, digest = account["account"], f"account {account['dataset'][:16]}"
        called = f"{name} ({digest})" if name else f"{digest} (no run or preset here has its name)"
        console.print(called, style="bold")
        console.print(Padding(_balance(account), (0, 0, 0, 2)))
        table = Table("run", "ε by itself", "when", "", box=None, padding=(0, 1), pad_edge=False)
        table.columns[0].overflow = "fold"
        for column in table.columns[1:3]:
            column.no_wrap = True
        for release in account["releases"]:
            when = datetime.fromisoformat(release["written"]).astimezone()
            table.add_row(release["run"], f"{release['epsilon']:g}", f"{when:%Y-%m-%d %H:%M}", _notes(release))
        if account["releases"]:
            console.print(Padding(table, (0, 0, 0, 2)))
        console.print()
    if not begun:
        console.print("No ledger was begun: nothing was released, and nothing was spent. The first run begins it.")
    elif not accounts:
        console.print("The ledger is empty: nothing was released.")


def _balance(account: dict[str, Any]) -> str:
    """Say in words what was spent and what is left."""
    budget, left, another = account["epsilon_budget"], account["epsilon_left"], account["another_like_the_last"]
    limit = "" if budget is None else f" of {budget:g}"
    whom = f" on each {account['unit']}" if account["unit"] else ""
    said = f"ε {account['epsilon_spent']:g}{limit} spent{whom} over all runs, at δ = {account['delta']:g}."
    if budget is None:
        said += " No limit."
    elif left < 0.01:
        said += " Nothing is left."
    else:
        said += (
            f" Left: one more run of up to ε {math.floor(100 * left) / 100:g} by itself (costs do not add up linearly)."
        )
    if account["linked"]:
        said += f" It adds up with {', '.join(account['linked'])}."
    if another is not None:
        said += f" Another run like the last one, {another['run']}, {'fits' if another['fits'] else 'does not fit'}."
    return said


def _notes(release: dict[str, Any]) -> str:
    notes = ["reserved at its worst, not released"] * (release["state"] == "reserved")
    return ", ".join([*notes, *["replayed noise, NOT PRIVATE"] * (release["noise"] == "replay")])


@ledger.command()
def witness(url: UrlOption = None, store: StoreOption = None, key: KeyOption = None) -> None:
    """Print a line to be kept elsewhere, by which `verify --witness` knows this ledger again, and no older copy."""
    from tasks.tools.ledger import open_existing

    opened, _ = open_existing(url, store, key)
    typer.echo(opened.witness())


@ledger.command()
def verify(
    witness: Annotated[
        str, typer.Option(help="A line that `terrine ledger witness` printed, or a file of such lines.")
    ] = "",
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
) -> None:
    """Check the chain of rows, its end, what it adds up to, and every stored release.

    A release that somebody sent is checked with `terrine verify`.
    """
    from tasks.tools.ledger import open_existing, said_by_witness

    opened, _ = open_existing(url, store, key)
    count = opened.verify(said_by_witness(witness))
    printer().print(f"The ledger is intact: {count} rows, and every committed release is as it was written.")


@ledger.command()
def link(
    one: Annotated[str, typer.Argument(help="ledger.account of runs, or the start of its digest.")],
    other: Annotated[str, typer.Argument(help="Another account, about the same people.")],
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
) -> None:
    """Add two accounts up, for ever: what either releases, and has released, counts against both budgets."""
    from tasks.tools.ledger import link_accounts, open_existing

    names = link_accounts(*open_existing(url, store, key), one, other)
    printer().print(f"{' and '.join(names)} add up from now on, and cannot be parted.")


@ledger.command("set-budget")
def set_budget(
    epsilon: Annotated[str, typer.Argument(help="The new ε over all runs, or 'none' for no limit.")],
    account: Annotated[
        str | None,
        typer.Option(help="ledger.account of the runs, or the start of its digest; needed if there are several."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The new δ; default: as before.")] = None,
    url: UrlOption = None,
    store: StoreOption = None,
    key: KeyOption = None,
) -> None:
    """Change an account's budget over all runs. What was spent stays spent; the change is a row of its own."""
    from tasks.tools.ledger import change_budget, open_existing
    from terrine.errors import SettingError

    try:
        limit = None if epsilon == "none" else float(epsilon)
    except ValueError as error:
        raise SettingError(f"A budget is a number or 'none', got {epsilon!r}.") from error
    name, promised = change_budget(*open_existing(url, store, key), account, limit, delta)
    shown, setting = ("no limit", "null") if limit is None else (f"ε {limit:g}", f"{limit:g}")
    printer().print(
        f"The budget of {name} over all runs is now {shown}. Runs say so, too: --set ledger.epsilon={setting}; or, at "
        f"a guardian, ledger.epsilon: {setting} in its party.yaml"
    )
    if promised != limit:
        named = "no limit" if promised is None else f"ε {promised:g}"
        printer().print(
            f"Statements name {named}: what was released was promised that, and no less can be promised now"
        )
