"""A teacher party: its votes as two shares, one for the guardian and one for the student, with a proof that votes are
what they are shares of. Then it is done.

Neither share says anything without the other; the party receives nothing and learns nothing.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.gathering import proof_context, share_blocks
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send, State
from terrine.collaboration.protocol.proof import Proof, digits_of, prove, split_digits
from terrine.collaboration.protocol.shares import ShareArray, sharing_of
from terrine.errors import InputError


class Teacher:
    """Shares the votes of a party's own teachers. Shares are drawn once, here; so frames can be sent again.

    Args:
        agreement: What the parties agreed on.
        name: This party.
        votes: Whole numbers [queries, own teachers], the class each teacher chose; or, where sums are revealed, the
            party's own sums in whole steps, [queries, 1].

    Raises:
        InputError: votes that do not fit the agreement.
        SettingError: the agreement does not know this party.
    """

    def __init__(self, agreement: Agreement, name: str, votes: ArrayLike) -> None:
        held = agreement.held_by(name)
        sums = agreement.reveal == "sums"
        expected = (agreement.queries, 1 if sums else held)
        if np.shape(votes) != expected:
            raise InputError(
                f"The votes of {name!r} have the shape {list(np.shape(votes))}; the agreement has {list(expected)}, "
                "queries and teachers, or sums."
            )
        self.finished = False
        values = np.asarray(votes, dtype=np.int64) if sums else histograms_of(votes, agreement.classes)
        receivers = (agreement.guardian, agreement.student)
        self._blocks = share_blocks(agreement, name)
        self._sharing = np.frombuffer(os.urandom(16), np.uint8)
        self._channels = {receiver: Channel(agreement, name, receiver) for receiver in receivers}
        self._arrays: list[list[NDArray[Any]]] = []
        self._proofs: tuple[Proof, ...] = ()
        self._share(agreement, name, values, sharing_of(agreement).split(values))

    def _share(
        self, agreement: Agreement, name: str, values: NDArray[np.integer], shares: Sequence[ShareArray]
    ) -> None:
        """Keep what is sent to either receiver: shares of the values, and for votes their digits and a proof."""
        self._arrays = [[share] for share in shares]
        if agreement.reveal == "sums":
            return
        held, sharing = agreement.held_by(name), sharing_of(agreement)
        digits = split_digits(values, held)
        first, second = (sharing.in_field(share, second=place == 1) for place, share in enumerate(shares))
        self._proofs = prove(proof_context(agreement, name, self._sharing.tobytes()), held, (first, second), digits)
        if digits_of(held) > 1:
            for arrays, own in zip(self._arrays, digits, strict=True):
                arrays.append(own)

    def start(self) -> Iterator[Send]:
        """All shares, in turns to the guardian and to the student."""
        for sends in zip(*(self.frames(receiver) for receiver in self._channels), strict=True):
            yield from sends
        self.finished = True

    def frames(self, to: str) -> Iterator[Send]:
        """The frames for the guardian or the student, the same every time: for a connection that broke."""
        place, channel = list(self._channels).index(to), self._channels[to]
        for number, rows in enumerate(self._blocks):
            yield Send(
                to, channel.frame(number, Kind.SHARES, [self._sharing, *(array[rows] for array in self._arrays[place])])
            )
        if self._proofs:
            yield Send(to, channel.frame(len(self._blocks), Kind.PROOF, [self._sharing, *self._proofs[place]]))

    def receive(self, sender: str, frame: bytes) -> Iterator[Send]:
        """Refuse it: nobody has anything to tell a teacher party."""
        raise ProtocolError(sender, "a teacher party expects no messages.")

    def state(self) -> State:
        """Nothing: a teacher that restarts shares its votes anew."""
        return {}
