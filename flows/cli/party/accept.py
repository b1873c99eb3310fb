"""`terrine party accept`: a party reads a proposal, checks its own data against it, and signs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.printing import printer

if TYPE_CHECKING:
    from tasks.parties.config import GuardianLedger
    from tasks.pipeline.data_remarks import Remarks
    from terrine.data.source import Survey

console = printer(soft_wrap=True)


def accept(
    proposal: Annotated[Path, typer.Argument(help="The proposal that was mailed: a folder, or an archive.")],
    name: Annotated[str, typer.Option("--as", help="This party's name in it.")],
    data: Annotated[
        Path | None,
        typer.Option(help="A teacher party's records: a folder of class folders, a CSV of images, or an .npz file."),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="This party's own folder; default: NAME, here.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A teacher party's own settings: section.key=value.")
    ] = None,
    expect: Annotated[str | None, typer.Option(help="The proposal's digest, as you were told it.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="guardian, student: host:port to listen at, where it is not the proposal's.")
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            help="guardian: the name of the parties' data in its ledger; default: the one there, or collaboration. A "
            "teacher party that names one keeps account of its own people."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="The account's ε over all releases; default: what the ledger has, or that of this release."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Another folder of this party, whose ledger goes on; default: one beside the new folder."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
) -> None:
    """Accept a proposal: read it as a page, have the own data checked, and sign it. Nothing is trained or charged."""
    from tasks.parties.agreement.accept import accept, candidate
    from tasks.parties.agreement.ledgers import Charged
    from tasks.parties.agreement.proposal import opened
    from tasks.parties.config import read_party
    from tasks.parties.standing import account_standing
    from tasks.parties.trial import CONFIG
    from terrine.errors import SettingError

    with opened(proposal, expect) as read:
        party = candidate(
            read,
            name,
            folder=folder,
            data=data,
            assignments=list(set_ or []),
            listen=listen,
            charged=Charged(account, budget, ledger),
        )
        console.print(party.page)
        survey, remarks = party.look()
        _show(survey, remarks)
        if remarks.refusals:
            raise SettingError("\n".join(remarks.refusals))
        if not yes and not typer.confirm(f"\nSign these terms as {name}, a {party.role}?"):
            console.print("Nothing was signed.")
            raise typer.Exit(1)
        accepted = accept(party)
        config = read_party(party.folder / CONFIG)
        if config.ledger is not None:
            console.print(f"\n{_charged(config.ledger, account_standing(config))}")
        console.print(f"\nMail {accepted} back to whoever proposed. {_next(party.role, party.folder)}")


def _charged(ledger: GuardianLedger, standing: dict[str, Any] | None) -> str:
    assert standing is not None
    limit = "no budget" if ledger.epsilon is None else f"ε = {ledger.epsilon:g} over all releases"
    said = f"Charged to account {ledger.account!r} in {ledger.url}: {limit}, of which {standing['spent']:g} is spent."
    if beside := standing["beside"]:
        others = "another account" if beside == 1 else f"{beside} other accounts"
        said += (
            f" Its ledger has {others}, whose releases are not added to this one's: right for data of other people "
            "alone. Accounts of the same people are made to add up by `terrine ledger --link`."
        )
    if standing["left"] is None or standing["price"] <= standing["left"] * (1 + 1e-9):
        return said
    return f"{said} These terms may cost ε = {standing['price']:g}, for which there is no room: the release is refused."


def _next(role: str, folder: Path) -> str:
    if role == "guardian":
        return (
            f"Put what the others mail into {folder}/accepted. When all have accepted: terrine party vote "
            f"--config {folder}/party.yaml."
        )
    step = "teach" if role == "teacher" else "vote"
    return f"Then: terrine party {step} --config {folder}/party.yaml."


def _show(survey: Survey | None, remarks: Remarks) -> None:
    """Print what was found in the data: private, for this terminal alone."""
    if survey is None:
        return
    counts = ", ".join(
        f"{name} {count:,}" for name, count in zip(survey.class_names, survey.train.tolist(), strict=True)
    )
    groups = "" if survey.groups is None else f", of {survey.groups[0]:,} groups"
    console.print(
        f"\nThis party's own data (private)\n  {int(survey.train.sum()):,} records to learn from{groups}: {counts}\n"
        f"  {int(survey.test.sum()):,} held out for the test"
    )
    for sentence in remarks.notes:
        console.print(f"  Note: {sentence}")
    for sentence in remarks.doubts:
        console.print(f"  Doubtful: {sentence}")
