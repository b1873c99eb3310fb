"""`terrine party teach`: a teacher party trains and votes when it suits, before anybody connects."""

from __future__ import annotations

from flows.cli.party.vote import ConfigOption
from flows.printing import printer

console = printer(soft_wrap=True)


def teach(config: ConfigOption) -> None:
    """Train this party's teachers and have them vote, or prepare its records; what comes of it stays in its folder.

    The session uses it at once. It is taught anew where terms, settings or data have changed since.
    """
    from tasks.parties.config import read_party
    from tasks.parties.process import show_progress
    from tasks.parties.teaching import teach_before

    show_progress()
    console.print(teach_before(read_party(config, "teacher")))
