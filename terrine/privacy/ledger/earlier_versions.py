"""Releases that earlier versions of Terrine made: known again, and not drawn a second time.

Identities of earlier versions were functions of the votes. Which release is adopted is decided by what anyone may know:
the account's rows, names of runs, parameters. Several releases of one run, the rounds of an average, are asked for in
the order in which they were made.
"""

from collections.abc import Callable, Iterable

from terrine.privacy.accounting.events import Event, to_json
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.transaction import LedgerTransaction, Transactions


def known_as(
    transactions: Transactions,
    dataset: str,
    release_id: str,
    worst_case: Event,
    noise_kind: str,
    made_by: Callable[[str], bool],
) -> str:
    """Return the identity under which an earlier version made this release, or the one that was asked for.

    Args:
        dataset: The account that is charged; it adopts what is found.
        worst_case: The most that it can spend.
        made_by: Whether a run, by its name, makes this very release, from its parameters alone.
    """
    event = to_json(worst_case)

    def known(transaction: LedgerTransaction) -> str | None:
        adopted = transaction.find("adopt", release_id)
        if adopted is not None:
            return str(adopted.content["of"])
        return None if transaction.find("reserve", release_id) is None else release_id

    def candidates(transaction: LedgerTransaction) -> list[Row]:
        rows = transaction.of_kind("reserve", transaction.standing.earlier) if transaction.standing.earlier else []
        adopted = transaction.of_kind("adopt")
        return [
            row
            for row in rows
            if "identity" not in row.content
            and (row.content["event"], row.content["noise"]) == (event, noise_kind)
            and not is_adopted(str(row.release_id), adopted)
            and transaction.find("commit", str(row.release_id)) is not None
        ]

    def look(transaction: LedgerTransaction) -> tuple[str | None, list[Row]]:
        name = known(transaction)
        return name, [] if name else candidates(transaction)

    name, rows = transactions.transact(look)
    found = name or next((row.release_id for row in rows if made_by(row.content["run"])), None)
    if name or found is None:
        return name or release_id

    def adopt(transaction: LedgerTransaction) -> str:
        name = known(transaction)
        row = next((row for row in candidates(transaction) if row.release_id == found), None)
        if name or row is None:
            return name or release_id
        commit = transaction.find("commit", found)
        assert commit is not None
        cost = commit.content["event"]
        transaction.append("adopt", dataset, release_id, {"of": found, "from": row.dataset, "event": cost})
        return str(found)

    return transactions.transact(adopt)


def is_adopted(release_id: str, adoptions: Iterable[Row]) -> bool:
    """Whether a release is one of those that accounts adopted."""
    return any(row.content["of"] == release_id for row in adoptions)
