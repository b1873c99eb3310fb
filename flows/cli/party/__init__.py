"""`terrine party`: take part in a collaboration as a teacher party, the guardian or the student party.

Each proposes or accepts terms (`propose`, `enrol`, `accept`), and then runs, with its own party.yaml, `teach` when it
suits, `vote` for the session, `finish` and, for another edition, `again`; `init` and `trial` are for one machine.
"""

from __future__ import annotations

import typer

from flows.cli.party import accept, again, enrol, finish, propose, status, teach, trial, vote
from flows.stopping import stoppable

party = typer.Typer(
    name="party",
    help="Vote together with other institutions; nobody sees anybody's votes (docs/collaboration.md).",
    no_args_is_help=True,
    add_completion=False,
)
for command in (
    *(propose.propose, accept.accept, trial.init, trial.trial, stoppable()(teach.teach), stoppable()(vote.vote)),
    *(stoppable()(finish.finish), again.again, status.status),
):
    party.command()(command)
party.add_typer(enrol.enrol, name="enrol")
