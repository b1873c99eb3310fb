"""`terrine party status`: where a collaboration stands, as one of its parties sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.cli.party.vote import ConfigOption
from flows.printing import printer

console = printer()


def status(
    config: ConfigOption,
    html: Annotated[Path | None, typer.Option(help="Write the page as HTML into this file as well.")] = None,
) -> None:
    """Show terms, who takes part and who is missing, what was charged, what remains, and what to do next.

    All of it is read from the party's own folder; nobody is asked.
    """
    from tasks.parties.standing import standing
    from tasks.reports.pages import render
    from tasks.runtime.store import write_text

    found = standing(config)
    console.print(f"{found['name']}, {found['role']}: {found['edition']}", soft_wrap=True)
    if found["problem"] is not None:
        console.print(f"PROBLEM: {found['problem']}", soft_wrap=True)
    for title in ("terms", "session", "account"):
        console.print(_table(title, [], found[title]))
    rows = [[party["name"], party["role"], party["accepted"], party["state"]] for party in found["parties"]]
    console.print(_table("parties", ["party", "role", "accepted", "in the session"], rows))
    rows = [[step["what"], "done" if step["done"] else "to do"] for step in found["steps"]]
    console.print(_table("this party", [], rows))
    console.print(f"\nnext: {found['next']}", soft_wrap=True)
    if html is not None:
        write_text(html, render("party.html", found | {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}))
        console.print(f"{html}: the same as a page", soft_wrap=True)


def _table(title: str, names: list[str], rows: list[Any]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, show_header=bool(names))
    for name in names or ("", ""):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
