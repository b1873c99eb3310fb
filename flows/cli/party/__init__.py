"""`terrine party`: take part in a collaboration as a teacher party, the guardian or the student party.

terrine party propose lungs --preset my-preset --teacher north=60 --teacher south=60 ...
terrine party enrol ...
terrine party accept lungs.zip --as north --data images
terrine party init trial --parties 3 --preset my-preset
terrine party teach --config trial/party-1/party.yaml     # when it suits
terrine party vote --config trial/guardian/party.yaml     # and each other party: the session
terrine party finish --config trial/student/party.yaml    # and each teacher party: student and evaluation
terrine party again --config trial/guardian/party.yaml --edition 2
terrine party status --config trial/student/party.yaml
terrine party trial trial          # or all of them at once, each in a process of its own
"""

from __future__ import annotations

import typer

from flows.cli.party import accept, again, enrol, finish, propose, status, teach, trial, vote


def register(app: typer.Typer) -> None:
    """Add `party`, with a command of each module here, to the command line."""
    party = typer.Typer(
        name="party",
        help="Vote together with other institutions; nobody sees anybody's votes (docs/collaboration.md).",
        no_args_is_help=True,
        add_completion=False,
    )
    for module in (propose, enrol, accept, trial, teach, vote, finish, again, status):
        module.register(party)
    app.add_typer(party)
