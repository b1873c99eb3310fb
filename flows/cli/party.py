"""`terrine party`: take part in a collaboration as a teacher party, the guardian or the student party.

`key`, `propose` and `accept` come first. Guardian and student party then run `serve`; a teacher party runs `submit`,
which uploads its report and exits. `finish` trains, distributes and evaluates the student.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.cli.options import JsonOption, SetOption
from flows.printing import printer
from flows.stopping import stoppable
from terrine.spans import seconds

console = printer(soft_wrap=True)
party = typer.Typer(
    name="party",
    help="Vote together with other institutions; no party sees another party's votes (docs/collaboration.md).",
    no_args_is_help=True,
    add_completion=False,
)

ConfigOption = Annotated[Path, typer.Option("--config", help="Configuration file party.yaml of the party.")]


@party.command()
def key(
    folder: Annotated[Path, typer.Argument(help="The party's folder.")],
    name: Annotated[str | None, typer.Option(help="The party's name; default: that of the folder.")] = None,
    url: Annotated[
        str | None, typer.Option(help="guardian, student: https://host:port. A TLS certificate is created as well.")
    ] = None,
) -> None:
    """Create a party's key and print the line that it sends to the proposing party. The key itself stays here."""
    from tasks.parties.keys import create_key

    typer.echo(create_key(folder, name or folder.resolve().name, url))


@party.command()
def propose(
    folder: Annotated[Path, typer.Argument(help="Folder of the proposal; its name is the collaboration's.")],
    preset: Annotated[str, typer.Option(help="Preset with queries, backbone, teachers, mechanism and budget.")],
    keys: Annotated[Path, typer.Option(help="File with the lines of all parties (`terrine party key`).")],
    teacher: Annotated[list[str] | None, typer.Option(help="NAME=TEACHERS of a teacher party. Repeatable.")] = None,
    guardian: Annotated[str, typer.Option(help="Name of the guardian.")] = "guardian",
    student: Annotated[str, typer.Option(help="Name of the student party.")] = "student",
    set_: SetOption = None,
    classes: Annotated[
        str | None, typer.Option(help="Class names by label: a,b,c. Default: those of a public benchmark.")
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(help="Smallest number of teachers whose reports a round needs; default: all.")
    ] = None,
    overlap: Annotated[int, typer.Option(help="Largest number of parties that have data of one person.")] = 1,
    records: Annotated[
        int | None,
        typer.Option(help="Largest number of records per teacher, for sums and for aggregation.mechanism=auto."),
    ] = None,
    deadline: Annotated[str, typer.Option(help="Time after which a round closes: 6h, 14d.")] = "14d",
    edition: Annotated[
        str | None,
        typer.Option(help="Name of this version of the data; a release about another edition is charged again."),
    ] = None,
    archive: Annotated[
        bool, typer.Option("--archive", help="Also pack the proposal into one file, FOLDER.zip.")
    ] = False,
) -> None:
    """Propose a collaboration, from a preset and public inputs. No private records are read."""
    from tasks.collaboration.proposal import archive as pack
    from tasks.collaboration.propose import ProposalOptions, propose
    from tasks.collaboration.terms_page import page

    options = ProposalOptions(
        _read_lines(keys),
        _teachers(teacher or []),
        guardian,
        student,
        class_names=None if classes is None else [name.strip() for name in classes.split(",")],
        minimum=minimum,
        edition=edition,
        deadline=_deadline(deadline),
        overlap=overlap,
        records=records,
        name=folder.resolve().name[:100],
    )
    proposal, outlook = propose(folder, preset, list(set_ or []), options)
    console.print(page(proposal.terms))
    for sentence in outlook:
        console.print(sentence)
    sent = pack(folder) if archive else folder
    console.print(
        f"\nSend {sent} to every party, and its digest over another channel: {proposal.shown}.\n"
        f"Each then runs: terrine party accept {sent.name} --as NAME --expect {proposal.shown}"
    )


def _read_lines(path: Path) -> list[Any]:
    from tasks.parties.keys import PartyLine
    from terrine.errors import InputError

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    return [PartyLine.parse(line) for line in text.splitlines() if line.strip()]


def _deadline(text: str) -> float:
    try:
        return float(seconds(text))
    except ValueError as error:
        raise typer.BadParameter(f"--deadline {error}.") from error


def _teachers(given: Sequence[str]) -> dict[str, int]:
    teachers: dict[str, int] = {}
    for one in given:
        name, _, count = one.partition("=")
        if not count.isdigit() or name in teachers:
            raise typer.BadParameter(f"--teacher {one}: write NAME=TEACHERS, each name once: --teacher north=60.")
        teachers[name] = int(count)
    return teachers


@party.command()
def accept(
    proposal: Annotated[Path, typer.Argument(help="The proposal: a folder, or an archive.")],
    name: Annotated[str, typer.Option("--as", help="Name of this party in the proposal.")],
    data: Annotated[
        Path | None, typer.Option(help="A teacher party's records: class folders, a CSV of images, or an .npz file.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="This party's folder, with its key; default: NAME, here.")] = None,
    set_: SetOption = None,
    expect: Annotated[str | None, typer.Option(help="The proposal's digest, received over another channel.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="guardian, student: host:port; default: its URL's port on all interfaces.")
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(help="Name of the charged account. A teacher party with an account keeps a ledger of its people."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="The account's ε over all releases; default: the ledger's, or this release's.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of the ledger; default: ledger-NAME beside this party's folder.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
) -> None:
    """Accept a proposal: show it as a page, check the own data, and sign it. Nothing is trained or charged."""
    from tasks.collaboration.accept import accept, candidate
    from tasks.collaboration.proposal import opened
    from tasks.collaboration.terms_page import page
    from tasks.parties.config import CONFIG, read_party
    from terrine.errors import SettingError

    with opened(proposal, expect) as read:
        others = {"listen": listen, "account": account, "budget": budget, "ledger": ledger}
        one = candidate(read, name, folder=folder, data=data, assignments=list(set_ or []), **others)
        console.print(page(read.terms))
        survey, remarks = one.check_data()
        if survey is not None:
            _show_data(survey, remarks)
        if remarks.refusals:
            raise SettingError("\n".join(remarks.refusals))
        if not yes and not typer.confirm(f"\nSign these terms as {name}, a {one.role}?"):
            console.print("Nothing was signed.")
            raise typer.Exit(1)
        accept(one)
    config = read_party(one.folder / CONFIG)
    if config.ledger is not None:
        _show_account(config)
    step = "submit" if one.role == "teacher" else "serve"
    console.print(f"Signed. Then: terrine party {step} --config {one.folder / CONFIG}")


def _show_account(config: Any) -> None:
    from tasks.parties.ledgers import account_status

    ledger, found = config.ledger, account_status(config) or {}
    limit = "no budget" if ledger.epsilon is None else f"ε = {ledger.epsilon:g} over all releases"
    lines = [f"Charged to account {ledger.account!r} in {ledger.url}: {limit}, of which {found['spent']:g} is spent."]
    if beside := found["beside"]:
        lines.append(
            f"Its ledger has {beside} other account{'s' * (beside != 1)}, whose releases are not added to this one's: "
            "right only for data of other people. `terrine ledger link` makes accounts of the same people add up."
        )
    if found["left"] is not None and found["price"] > found["left"] * (1 + 1e-9):
        lines.append(f"These terms may cost ε = {found['price']:g}, more than is left: the release is refused.")
    console.print(" ".join(lines))


def _show_data(survey: Any, remarks: Any) -> None:
    """Print a summary of the private data on this terminal."""
    counts = ", ".join(
        f"{name} {count:,}" for name, count in zip(survey.class_names, survey.train.tolist(), strict=True)
    )
    groups = "" if survey.groups is None else f", of {survey.groups[0]:,} groups"
    console.print(
        f"\nThis party's own data (private)\n  {int(survey.train.sum()):,} training records{groups}: {counts}\n"
        f"  {int(survey.test.sum()):,} held out for the test"
    )
    for title, sentences in (("Note", remarks.notes), ("Doubtful", remarks.doubts)):
        for sentence in sentences:
            console.print(f"  {title}: {sentence}")


@party.command()
@stoppable()
def serve(config: ConfigOption) -> None:
    """guardian, student: run the service until it is stopped. The service can be restarted at any moment."""
    from tasks.parties.config import read_party
    from tasks.parties.serve import serve
    from terrine.errors import SettingError

    _show_log()
    read = read_party(config)
    if read.role == "teacher":
        raise SettingError(f"A teacher party serves nothing. It runs: terrine party submit --config {config}")
    serve(read)


@party.command()
@stoppable()
def submit(
    config: ConfigOption,
    watch: Annotated[bool, typer.Option("--watch", help="Stay for further rounds of gradients and averages.")] = False,
    as_json: JsonOption = False,
) -> None:
    """teacher: train if necessary, upload this round's report to both services, print the receipts, and exit.

    Repeated, it sends the same report and gets the same receipts, or reports in the next round.
    """
    from tasks.collaboration.local_training import report_source
    from tasks.parties.config import read_party
    from tasks.parties.submit import submit

    _show_log()
    read = read_party(config, "teacher")
    found = submit(read, report_source, watch=watch)
    if as_json:
        typer.echo(json.dumps(found, indent=2, sort_keys=True))
        return
    for receipt in found["receipts"]:
        console.print(f"Receipt of {receipt['service']}: SHA-256 {receipt['sha256'][:16]}, {receipt['at']}")
    last = found["counted"].get(str(found["last"]))
    if last is not None:
        counted = "is counted" if read.name in last else "came too late and is not counted"
        console.print(f"The last round is closed. The report of {read.name} {counted}.")
    elif found["last"] > found["round"]:
        console.print(f"Round {found['round']} of {found['last']}. Repeat the command for the next, or use --watch.")
    else:
        console.print("Nothing else is needed. `terrine party status` shows when the round is closed.")


@party.command()
def status(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Show terms, reports, charges, and this party's next step."""
    from tasks.collaboration.status import status

    found = status(config)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console.print(f"{found['name']}, {found['role']}")
    for title in ("terms", "round", "account", "parties"):
        header = ["party", "role", "accepted", "report"] if title == "parties" else []
        table = Table(title=f"\n{title}", title_justify="left", box=None, pad_edge=False, show_header=bool(header))
        for name in header or ("", ""):
            table.add_column(name, overflow="fold")
        for row in found[title]:
            table.add_row(*row)
        console.print(table)
    console.print(f"\nnext: {found['next']}")


@party.command()
@stoppable()
def finish(
    config: ConfigOption,
    student: Annotated[
        Path | None, typer.Option(help="teacher, guardian: student.zip of the student party, or its content.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Release one accuracy over all parties at this price; every party runs this.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Export the student into this folder (ONNX).")] = None,
    sign: Annotated[
        bool, typer.Option("--sign", help="student: write the pages for ethics boards, and sign everything.")
    ] = False,
) -> None:
    """student: train the student and write the file for the others. teacher: evaluate it on the own held-out split.

    With --epsilon every party takes part in the release of one accuracy: guardian and student party register it, and
    teacher parties upload their sums. The student party then repeats the command and gets the figure.
    """
    from tasks.collaboration import finish as finishing
    from tasks.parties.config import read_party
    from tasks.reports.accuracy import shown_accuracy
    from terrine.errors import SettingError

    _show_log()
    one = read_party(config)
    if sign and one.role != "student":
        raise SettingError("--sign is for the student party, which answers for the student.")
    if one.role == "guardian":
        if epsilon is None or export is not None or student is None:
            raise SettingError("A guardian finishes only an accuracy over all parties: --student and --epsilon.")
        finishing.finish_guardian(one, student, epsilon)
        console.print(f"The accuracy is registered at ε = {epsilon:g}. It is charged when it is released.")
    elif one.role == "teacher":
        if student is None:
            raise SettingError("--student names the file of the student party, student.zip.")
        found = finishing.finish_teacher(one, student, epsilon, export).evaluation or {}
        console.print(
            f"PRIVATE, on {found['images']:,} test records of this party: the student is right in "
            f"{100 * (found['accuracy'] or 0):.1f} % of cases. Do not publish."
        )
    else:
        if student is not None:
            raise SettingError("--student is for the other parties: this one trains the student.")
        done = finishing.finish_student(one, epsilon, export, sign=sign)
        console.print(f"{done.folder}: the student, and beside it its privacy.json.")
        console.print(f"{done.archive}: the same in one file, public. Send it to every party.")
        if done.key is not None and done.archive is not None:
            console.print(
                f"Signed with the key {done.key}. Send its public half over another channel, for terrine verify "
                f"--key: {done.archive.with_name(finishing.PUBLIC)}"
            )
        if done.released is not None:
            shown = shown_accuracy(done.released["accuracy"], done.released["plus_minus"])
            console.print(f"Accuracy over all parties, which may be published: {shown}")
        elif epsilon is not None:
            console.print("The accuracy is registered. Repeat the command when all parties have run theirs.")
    if export is not None:
        console.print(f"{export}: the student as ONNX, with its statement.")


@party.command()
@stoppable()
def trial(
    folder: Annotated[Path, typer.Argument(help="The folder that contains the folders of all parties.")],
    limit: Annotated[float, typer.Option(help="Seconds after which everything is stopped.")] = 1800.0,
) -> None:
    """Run a whole collaboration on this machine: both services on loopback, and every teacher party's reports."""
    from tasks.collaboration.local_training import report_source
    from tasks.parties.trial import run_trial

    _show_log()
    typer.echo(json.dumps(run_trial(folder, report_source, limit=limit)["guardian"], indent=2, sort_keys=True))


def _show_log() -> None:
    """Write progress to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("terrine.party")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
