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
            help="Check all rows and stored releases, and print a witness: a line to keep elsewhere.",
        ),
    ] = False,
    witness: Annotated[
        str | None,
        typer.Option(
            help="Witness, or file of witnesses, from an earlier --verify. An older copy of the ledger is detected."
        ),
    ] = None,
    account: Annotated[
        str | None,
        _change_option(
            help="Account: ledger.account of its runs, or the start of its digest. Required if there are several."
        ),
    ] = None,
    budget: Annotated[
        str | None, _change_option(help="New ε of the account over all runs, or none for no limit.")
    ] = None,
    delta: Annotated[float | None, _change_option(help="New δ. Default: unchanged.")] = None,
    link: Annotated[
        str | None,
        _change_option(
            help="Second account about the same people, linked permanently: each release is charged to both."
        ),
    ] = None,
    url: Annotated[str | None, _place_option(help="Database. Default: ledger.url in params.yaml.")] = None,
    store: Annotated[Path | None, _place_option(help="Folder of the releases. Default: ledger.store.")] = None,
    key: Annotated[Path | None, _place_option(help="Key of the site. Default: ledger.key.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show budgets, spending and releases of all accounts; or verify or change the ledger.

    To check a release that you received, use `terrine verify`.
    """
    from tasks.tools.ledger import ledger_exists, link_accounts, open_existing, overview, read_witness

    if verify or witness is not None:
        opened, _ = open_existing(url, store, key)
        count = opened.verify(read_witness(witness or ""))
        printer(stderr=True).print(f"The ledger is intact: {count} rows and all committed releases are unchanged.")
        typer.echo(opened.witness())
    elif link is not None:
        names = link_accounts(*open_existing(url, store, key), account or "", link)
        printer().print(f"{' and '.join(names)} are now linked permanently.")
    elif budget is not None:
        _set_budget(*open_existing(url, store, key), account, budget, delta)
    elif account is not None or delta is not None:
        raise SettingError("--account and --delta require --budget or --link.")
    else:
        exists = any((url, store, key)) or ledger_exists()
        accounts = overview(*open_existing(url, store, key)) if exists else []
        if as_json:
            typer.echo(json.dumps(accounts, indent=2))
            return
        for found in accounts:
            _show(found)
        if not exists:
            printer().print("There is no ledger yet. The first run creates it.")
        elif not accounts:
            printer().print("The ledger is empty: nothing was released.")


def _show(account: dict[str, Any]) -> None:
    """Print budget, balance and releases of an account."""
    console = printer()
    name, digest = account["account"], f"account {account['dataset'][:16]}"
    console.print(f"{name} ({digest})" if name else f"{digest} (name unknown in this project)", style="bold")
    console.print(Padding(_balance(account), (0, 0, 0, 2)))
    table = plain_table(
        Column("run", overflow="fold"),
        "release",
        Column("ε", no_wrap=True),
        Column("when", no_wrap=True),
        "",
        padding=(0, 1),
    )
    for release in account["releases"]:
        when = datetime.fromisoformat(release["written"]).astimezone()
        notes = ["reserved at worst case, not released"] * (release["state"] == "reserved")
        notes += ["replayed noise, NOT PRIVATE"] * (release["noise"] == "replay")
        table.add_row(
            release["run"], release["kind"], f"{release['epsilon']:g}", f"{when:%Y-%m-%d %H:%M}", ", ".join(notes)
        )
    if account["releases"]:
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print()


def _balance(account: dict[str, Any]) -> str:
    """Return sentences about the spent and remaining budget."""
    budget, left = account["epsilon_budget"], account["epsilon_left"]
    limit = "" if budget is None else f" of {budget:g}"
    unit = f" per {account['unit']}" if account["unit"] else ""
    text = f"ε {account['epsilon_spent']:g}{limit} spent{unit} over all runs, at δ = {account['delta']:g}."
    if budget is None:
        text += " No limit."
    elif left < 0.01:
        text += " Nothing is left."
    else:
        most = math.floor(100 * left) / 100
        text += f" Left: one run of up to ε {most:g} (costs do not add up linearly)."
    if account["linked"]:
        text += f" Linked with {', '.join(account['linked'])}."
    return text


def _set_budget(ledger: Ledger, names: dict[str, str], account: str | None, budget: str, delta: float | None) -> None:
    """Change an account's budget over all runs and print the result."""
    from tasks.tools.ledger import change_budget

    try:
        limit = None if budget == "none" else float(budget)
    except ValueError as error:
        raise SettingError(f"--budget must be a number or none, got {budget!r}.") from error
    name, promised = change_budget(ledger, names, account, limit, delta)
    shown, setting = ("no limit", "null") if limit is None else (f"ε {limit:g}", f"{limit:g}")
    console = printer()
    console.print(
        f"The budget of {name} over all runs is now {shown}. Also set it in runs (--set ledger.epsilon={setting}) and "
        f"in the party.yaml of a guardian (ledger.epsilon: {setting})."
    )
    if promised != limit:
        named = "no limit" if promised is None else f"ε {promised:g}"
        console.print(f"Statements name {named}, as promised with earlier releases. A promise cannot be reduced.")
