"""Reports: a teacher party's votes or sums as two bodies, one for each service, and their verification.

A body has a random name (the same in both), a share of every count, shares of the counts' binary digits, and the proof
that the counts are votes (`proof`). A single body is independent of the votes. Reports of sums have no proof.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol.agreement import Agreement, ProtocolError, Spec, arrays_of, body_of, body_size
from terrine.collaboration.protocol.field import PRIME
from terrine.collaboration.protocol.proof import (
    DIGEST,
    SALT,
    Proof,
    digits_of,
    halvings_of,
    opening,
    prove,
    split_digits,
)
from terrine.collaboration.protocol.shares import ShareArray, sharing_of
from terrine.errors import InputError

NAME = 16


class Verification(NamedTuple):
    """A service's opening of a report's proof, for the other service.

    Attributes:
        transcript: uint8 [16], equal at both services if they hold parts of the same report.
        opened: uint64 [3], `proof.opening`; zeros for sums.
    """

    transcript: NDArray[np.uint8]
    opened: NDArray[np.uint64]


def report_specs(agreement: Agreement, party: str) -> list[Spec]:
    """Return types and shapes of the arrays of a body: name, shares, digits, proof."""
    shape, held = (agreement.queries, agreement.classes), agreement.held_by(party)
    specs: list[Spec] = [("u1", (NAME,)), (sharing_of(agreement).kind, shape)]
    if agreement.reveal == "sums":
        return specs
    halvings = halvings_of(*shape, held)
    proof: list[Spec] = [("u1", (SALT,)), ("u1", (1 + halvings, DIGEST)), ("<u8", (2,)), ("<u8", (halvings, 2))]
    return [*specs, ("<u8", (*shape, digits_of(held) - 1)), *proof]


def report_size(agreement: Agreement, party: str) -> int:
    """Return the size of a body in bytes."""
    return body_size(report_specs(agreement, party))


def make_report(agreement: Agreement, party: str, votes: ArrayLike) -> tuple[bytes, bytes]:
    """Return the bodies for the guardian and for the student party.

    Args:
        agreement: Parties and parameters of the round.
        party: Name of the teacher party.
        votes: Integers [queries, own teachers], the class each teacher chose; for sums the party's own sums in steps,
            integers [queries, 1].

    Raises:
        InputError: The votes have the wrong shape, or are outside the classes.
    """
    sums, held = agreement.reveal == "sums", agreement.held_by(party)
    expected = (agreement.queries, 1 if sums else held)
    if np.shape(votes) != expected:
        raise InputError(
            f"The votes of {party!r} have the shape {list(np.shape(votes))}; the terms require {list(expected)}, "
            "queries and teachers (or sums)."
        )
    values = np.asarray(votes, dtype=np.int64) if sums else count_votes(votes, agreement.classes)
    return shared_report(agreement, party, values, sharing_of(agreement).split(values))


def shared_report(
    agreement: Agreement, party: str, values: NDArray[np.integer], shares: tuple[ShareArray, ShareArray]
) -> tuple[bytes, bytes]:
    """Return the bodies for counts or sums [queries, classes] and their two shares."""
    name = np.frombuffer(os.urandom(NAME), np.uint8)
    if agreement.reveal == "sums":
        first, second = (body_of(name, share) for share in shares)
        return first, second
    held, sharing = agreement.held_by(party), sharing_of(agreement)
    digits = split_digits(values, held)
    in_field = (sharing.in_field(shares[0], second=False), sharing.in_field(shares[1], second=True))
    proofs = prove(_context(agreement, party, name), held, in_field, digits)
    first, second = (
        body_of(name, share, own, *proof) for share, own, proof in zip(shares, digits, proofs, strict=True)
    )
    return first, second


def check_report(agreement: Agreement, party: str, body: bytes, *, second: bool) -> Verification:
    """Check a body and evaluate its part of the proof.

    Args:
        agreement: Parties and parameters of the round.
        party: Name of the teacher party that sent the body.
        body: Bytes of the body.
        second: Whether this is the student party's body.

    Raises:
        ProtocolError: The body has the wrong size, or contains a number outside its range.
    """
    name, shares, *rest = arrays_of(body, report_specs(agreement, party))
    sharing = sharing_of(agreement)
    if int(shares.max()) > sharing.largest:
        raise ProtocolError(f"A share in the report is larger than shares of {sharing.bits} bits.")
    if agreement.reveal == "sums":
        return Verification(name, np.zeros(3, np.uint64))
    digits, *parts = rest
    if any(array.size and int(array.max()) >= PRIME for array in rest if array.dtype == np.uint64):
        raise ProtocolError("A number in the report is outside its field.")
    context, field = _context(agreement, party, name), sharing.in_field(shares, second=second)
    transcript, opened = opening(context, agreement.held_by(party), field, digits, Proof(*parts), second=second)
    return Verification(np.frombuffer(transcript, np.uint8), opened)


def sum_reports(agreement: Agreement, reports: Iterable[tuple[str, bytes]]) -> ShareArray:
    """Return the sums of the shares in the bodies of all (party, body) pairs: unsigned [queries, classes]."""
    sharing = sharing_of(agreement)
    kind = sharing.kind_of_sums
    sums = np.zeros((agreement.queries, agreement.classes), kind)
    for party, body in reports:
        sums += arrays_of(body, report_specs(agreement, party))[1]
    return sums if sharing.whole else sums & kind.type(2**sharing.bits - 1)


def _context(agreement: Agreement, party: str, name: NDArray[np.uint8]) -> bytes:
    """Return bytes that are unique to this report."""
    return agreement.digest + name.tobytes() + party.encode()
