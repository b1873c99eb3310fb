"""`terrine release`: show, approve or refuse the release that a run has requested."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import RunArgument, RunOption, chosen_name
from flows.printing import plain_table, printer

if TYPE_CHECKING:
    from tasks.runtime.approval import Choice
    from tasks.runtime.decisions import Content
    from tasks.runtime.run import Run

release = typer.Typer(help="Show, approve or refuse a release before its noise is drawn (release.approval=required).")
RoleOption = Annotated[str, typer.Option(help="Your role. The statement publishes it.")]
PersonOption = Annotated[str, typer.Option(help="Your name. It stays in the site's ledger.")]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        help="File with your private Ed25519 key; created if missing. Default: the site's key. release.approvers lists "
        "the fingerprints that count."
    ),
]


@release.command()
def show(argument: RunArgument = None, run: RunOption = None) -> None:
    """Show what a run asks to release, and the last decision about it."""
    from tasks.runtime.run import unstarted_run

    _show(unstarted_run(chosen_name(argument, run)))


@release.command()
def approve(
    argument: RunArgument = None,
    run: RunOption = None,
    role: RoleOption = "approver",
    person: PersonOption = "",
    why: Annotated[str, typer.Option(help="Reason. It stays in the site's ledger.")] = "",
    key: KeyOption = None,
) -> None:
    """Approve the release that a run asks for. It then continues with `terrine run`."""
    _decide(chosen_name(argument, run), "approved", role, person, why, key)


@release.command()
def refuse(
    why: Annotated[str, typer.Option(help="Reason. It stays in the site's ledger.")],
    argument: RunArgument = None,
    run: RunOption = None,
    role: RoleOption = "approver",
    person: PersonOption = "",
    key: KeyOption = None,
) -> None:
    """Refuse the release that a run asks for. The run stays refused until its settings change or it is approved."""
    _decide(chosen_name(argument, run), "refused", role, person, why, key)


def _decide(name: str | None, decision: Choice, role: str, who: str, why: str, key: Path | None) -> None:
    from tasks.runtime.approval import decide, next_step
    from tasks.runtime.decisions import ApprovalNeeded
    from tasks.runtime.run import unstarted_run
    from terrine.deployment.signature import fingerprint, signing_key

    run, console = unstarted_run(name), printer(soft_wrap=True)
    if key is not None and not key.exists():
        console.print(
            f"Key made: {key}. Keep it outside the project. Nothing is decided yet: add its fingerprint to "
            f"release.approvers in params.yaml, then repeat this command.\n  "
            f"{fingerprint(signing_key(key).public_key())}"
        )
        raise typer.Exit(ApprovalNeeded.status)
    approval = decide(run, None if key is None else signing_key(key), decision, role=role, name=who, why=why)
    request = _show(run)
    console.print(f"Signed with the key {approval.key}.")
    if decision == "approved":
        console.print(f"Next: {next_step(request)}")


def _show(run: Run) -> Content:
    from tasks.runtime.approval import describe_request, pending

    ledger, asked, decision = pending(run)
    table = plain_table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", run.name)
    for row in describe_request(run, ledger, asked.content, private=True):
        table.add_row(*row)
    told = ["none yet"] if decision is None else [decision.report(), decision.name, decision.why]
    table.add_row("decision", "; ".join(filter(None, told)))
    printer().print(table)
    return asked.content
