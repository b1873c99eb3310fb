"""`terrine party enrol`: certificates by files that may be mailed; a private key never leaves its party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flows.printing import printer

console = printer(soft_wrap=True)

AuthorityArgument = Annotated[Path, typer.Argument(help="The folder of the authority. No party has it.")]
FolderArgument = Annotated[Path, typer.Argument(help="The party's own folder of credentials, NAME/credentials.")]
DaysOption = Annotated[float, typer.Option(help="For how long the certificate is good.")]
TokenOption = Annotated[str, typer.Option(prompt=True, hide_input=True, help="The token that the party was told.")]


enrol = typer.Typer(
    help="Certificates: an authority, a token for each party, a request and its answer, as files.",
    no_args_is_help=True,
    add_completion=False,
)


@enrol.command()
def authority(
    folder: AuthorityArgument, days: Annotated[float, typer.Option(help="For how long it may sign.")] = 3650
) -> None:
    """At whoever keeps the authority: make it."""
    from terrine.collaboration.transport.credentials import create_authority

    create_authority(folder, days=days)
    console.print(f"{folder}: an authority. Keep it where no party can read it, and back it up.")


@enrol.command()
def token(
    folder: AuthorityArgument,
    party: Annotated[list[str], typer.Option(help="NAME=ROLE (teacher, guardian or student). May be repeated.")],
    days: Annotated[float, typer.Option(help="For how long the token is good.")] = 7,
) -> None:
    """At the authority: make a token for each party, good once. Tell it by another way than the mails."""
    from terrine.collaboration.transport.enrolment import make_token

    for given in party:
        name, _, role = given.partition("=")
        made = make_token(folder, name, cast(Any, role), days=days)
        parts = [made.secret[place : place + 5] for place in range(0, len(made.secret), 5)]
        console.print(f"{name} ({role}), until {made.expires}: {'-'.join(parts)}")


@enrol.command()
def request(
    folder: FolderArgument,
    name: Annotated[str, typer.Option(help="The party's name, as in the terms.")],
    role: Annotated[str, typer.Option(help="teacher, guardian or student.")],
    token: TokenOption,
) -> None:
    """At the party: make a key, which stays here, and a request for its certificate."""
    from terrine.collaboration.transport.enrolment import request

    console.print(
        f"Mail {request(folder, name, cast(Any, role), token)} to the authority. The key beside it stays here."
    )


@enrol.command()
def sign(
    folder: AuthorityArgument,
    file: Annotated[Path, typer.Argument(help="A party's request.json.")],
    days: DaysOption = 365,
) -> None:
    """At the authority: answer a request, once for a token."""
    from terrine.collaboration.transport.enrolment import sign

    console.print(f"Mail {sign(folder, file, days=days)} back to the party.")


@enrol.command()
def renew(
    folder: AuthorityArgument,
    party: Annotated[list[str], typer.Option(help="The party's name. May be repeated.")],
    days: DaysOption = 365,
) -> None:
    """At the authority: certify the same keys of parties anew, before or after their certificates run out."""
    from terrine.collaboration.transport.enrolment import renew

    for name in party:
        console.print(f"Mail {renew(folder, name, days=days)} to {name}.")


@enrol.command()
def install(
    folder: FolderArgument,
    file: Annotated[Path, typer.Argument(help="The authority's answer, NAME.enrolment.json.")],
    token: Annotated[str | None, typer.Option(help="The token that the party was told. Asked for, if needed.")] = None,
) -> None:
    """At the party: check the answer, and take up the certificate. One that was renewed needs no token."""
    from terrine.collaboration.transport.credentials import CERTIFICATE
    from terrine.collaboration.transport.enrolment import install, install_renewed

    if token is None and (folder / CERTIFICATE).exists():
        own = install_renewed(folder, file)
    else:
        own = install(folder, file, token or typer.prompt("Token", hide_input=True))
    console.print(f"{folder}: credentials of {own.name}, a {own.identity.role}, good until {own.expires:%Y-%m-%d}.")
