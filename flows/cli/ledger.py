"""`terrine ledger`: show and verify the ledger, change a budget, link accounts."""

from __future__ import annotations

import json
import math
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Column

from flows.cli.options import JsonOption
from flows.printing import plain_table, printer
from terrine.errors import SettingError

if TYPE_CHECKING:
    from terrine.privacy.ledger.ledger import Ledger

_place_option = partial(typer.Option, rich_help_panel="Ledger of another project")
_change_option = partial(typer.Option, rich_help_panel="Changes")


def ledger(
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check every row, the head and all stored releases, and print a line to keep elsewhere (a witness).",
        ),
    ] = False,
    witness: Annotated[
        str | None,
        typer.Option(
            help="Verify against a line that --verify printed, or a file of such lines: an older copy is refused."
        ),
    ] = None,
    account: Annotated[
        str | None,
        _change_option(help="ledger.account of runs, or the start of its digest; required if there are several."),
    ] = None,
    budget: Annotated[
        str | None, _change_option(help="New ε of the account over all runs, or 'none' for no limit.")
    ] = None,
    delta: Annotated[float | None, _change_option(help="New δ; default: unchanged.")] = None,
    link: Annotated[
        str | None,
        _change_option(
            help="Another account about the same people, to be linked permanently: releases of either are charged to "
            "both budgets."
        ),
    ] = None,
    url: Annotated[str | None, _place_option(help="Database; default: ledger.url of params.yaml.")] = None,
    store: Annotated[Path | None, _place_option(help="Folder of the releases; default: ledger.store.")] = None,
    key: Annotated[Path | None, _place_option(help="The site's key; default: ledger.key.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show budgets, what was spent, and every release over all runs; or verify or change the ledger.

    A release that you received is checked with `terrine verify`.
    """
    from tasks.tools.ledger import is_begun, link_accounts, open_existing, overview, read_witness

    if verify or witness is not None:
        opened, _ = open_existing(url, store, key)
        count = opened.verify(read_witness(witness or ""))
        told = f"The ledger is intact: {count} rows, and every committed release is as it was written."
        printer(stderr=True).print(told)
        typer.echo(opened.witness())
    elif link is not None:
        names = link_accounts(*open_existing(url, store, key), account or "", link)
        printer().print(f"{' and '.join(names)} are linked from now on, permanently.")
    elif budget is not None:
        _set_budget(*open_existing(url, store, key), account, budget, delta)
    elif account is not None or delta is not None:
        raise SettingError("--account and --delta belong to --budget and --link.")
    else:
        begun = any((url, store, key)) or is_begun()
        accounts = overview(*open_existing(url, store, key)) if begun else []
        if as_json:
            typer.echo(json.dumps(accounts, indent=2))
            return
        for found in accounts:
            _show(found)
        if not begun:
            printer().print("There is no ledger yet: nothing was released or spent. The first run creates it.")
        elif not accounts:
            printer().print("The ledger is empty: nothing was released.")


def _show(account: dict[str, Any]) -> None:
    """Print an account: its budget, what is left, and its releases."""
    console = printer()
    name, digest = account["account"], f"account {account['dataset'][:16]}"
    console.print(f"{name} ({digest})" if name else f"{digest} (no run or preset here has its name)", style="bold")
    console.print(Padding(_balance(account), (0, 0, 0, 2)))
    table = plain_table(
        Column("run", overflow="fold"),
        Column("ε by itself", no_wrap=True),
        Column("when", no_wrap=True),
        "",
        padding=(0, 1),
    )
    for release in account["releases"]:
        when = datetime.fromisoformat(release["written"]).astimezone()
        notes = ["reserved at its worst, not released"] * (release["state"] == "reserved")
        notes += ["replayed noise, NOT PRIVATE"] * (release["noise"] == "replay")
        table.add_row(release["run"], f"{release['epsilon']:g}", f"{when:%Y-%m-%d %H:%M}", ", ".join(notes))
    if account["releases"]:
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print()


def _balance(account: dict[str, Any]) -> str:
    """Return sentences about what was spent and what is left."""
    budget, left = account["epsilon_budget"], account["epsilon_left"]
    limit = "" if budget is None else f" of {budget:g}"
    whom = f" on each {account['unit']}" if account["unit"] else ""
    said = f"ε {account['epsilon_spent']:g}{limit} spent{whom} over all runs, at δ = {account['delta']:g}."
    if budget is None:
        said += " No limit."
    elif left < 0.01:
        said += " Nothing is left."
    else:
        most = math.floor(100 * left) / 100
        said += f" Left: one more run of up to ε {most:g} by itself (costs do not add up linearly)."
    if account["linked"]:
        said += f" It adds up with {', '.join(account['linked'])}."
    return said


def _set_budget(ledger: Ledger, names: dict[str, str], account: str | None, budget: str, delta: float | None) -> None:
    """Change an account's budget over all runs. Spent budget stays spent; the change is a row of its own."""
    from tasks.tools.ledger import change_budget

    try:
        limit = None if budget == "none" else float(budget)
    except ValueError as error:
        raise SettingError(f"A budget is a number or 'none', got {budget!r}.") from error
    name, promised = change_budget(ledger, names, account, limit, delta)
    shown, setting = ("no limit", "null") if limit is None else (f"ε {limit:g}", f"{limit:g}")
    console = printer()
    console.print(
        f"The budget of {name} over all runs is now {shown}. Set it in runs, too: --set ledger.epsilon={setting}; at a "
        f"guardian, ledger.epsilon: {setting} in its party.yaml"
    )
    if promised != limit:
        named = "no limit" if promised is None else f"ε {promised:g}"
        console.print(f"Statements name {named}: earlier releases were promised that, and no less can be promised now")
