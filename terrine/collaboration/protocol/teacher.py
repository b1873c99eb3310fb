"""A teacher party: its votes as two shares, one for the guardian and one for the student, with a proof that votes are
what they are shares of. Then it is done.

Neither share says anything without the other. The party learns nothing; it receives nothing either, unless sums or
votes are asked at a head, which is public.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.gathering import head_blocks, proof_context, share_blocks
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send, State
from terrine.collaboration.protocol.proof import Proof, digits_of, prove, split_digits
from terrine.collaboration.protocol.shares import ShareArray, sharing_of
from terrine.errors import InputError

Answer = Callable[[NDArray[np.float64]], ArrayLike]


class Teacher:
    """Shares the votes of a party's own teachers. Shares are drawn once, here; so frames can be sent again.

    Args:
        votes: Whole numbers [queries, own teachers], the class each teacher chose; or, where sums are revealed, the
            party's own sums in whole steps, [queries, 1]. Where they are asked at a head, what makes them of it.

    Raises:
        InputError: votes that do not fit the agreement.
        SettingError: the agreement does not know this party.
    """

    def __init__(self, agreement: Agreement, name: str, votes: ArrayLike | Answer) -> None:
        self.agreement, self.name, self.finished = agreement, name, False
        self._held = agreement.held_by(name)
        self._blocks = share_blocks(agreement, name)
        self._channels = {to: Channel(agreement, name, to) for to in (agreement.guardian, agreement.student)}
        self._sharing = np.frombuffer(os.urandom(16), np.uint8)
        self._arrays: list[list[NDArray[Any]]] = []
        self._proofs: tuple[Proof, ...] = ()
        self._answer = votes if callable(votes) else None
        if callable(votes):
            self._head = np.empty(agreement.head)
        else:
            self._split(votes)

    def _split(self, votes: ArrayLike) -> None:
        agreement, sums = self.agreement, self.agreement.reveal == "sums"
        expected = (agreement.queries, 1 if sums else self._held)
        if np.shape(votes) != expected:
            raise InputError(
                f"The votes of {self.name!r} have the shape {list(np.shape(votes))}; the agreement has "
                f"{list(expected)}, queries and teachers, or sums."
            )
        values = np.asarray(votes, dtype=np.int64) if sums else histograms_of(votes, agreement.classes)
        self._share(values, sharing_of(agreement).split(values))

    def _share(self, values: NDArray[np.integer], shares: Sequence[ShareArray]) -> None:
        """Keep what is sent to either receiver: shares of the values, and for votes their digits and a proof."""
        self._arrays = [[share] for share in shares]
        if self.agreement.reveal == "sums":
            return
        held, sharing = self._held, sharing_of(self.agreement)
        digits = split_digits(values, held)
        first, second = (sharing.in_field(share, second=place == 1) for place, share in enumerate(shares))
        context = proof_context(self.agreement, self.name, self._sharing.tobytes())
        self._proofs = prove(context, held, (first, second), digits)
        if digits_of(held) > 1:
            for arrays, own in zip(self._arrays, digits, strict=True):
                arrays.append(own)

    def start(self) -> Iterator[Send]:
        """All shares, in turns to the guardian and to the student; none yet where a head is to come."""
        return iter(()) if self._answer is not None else self._all()

    def _all(self) -> Iterator[Send]:
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
        """Take a part of the head from the student, and answer the last one with all shares; refuse all else."""
        if sender != self.agreement.student or self._answer is None:
            raise ProtocolError(sender, "a teacher party expects no messages.")
        channel = self._channels[sender]
        blocks = head_blocks(self.agreement)
        rows = blocks[min(channel.received, len(blocks) - 1)]
        _, (part,) = channel.receive(frame, {Kind.HEAD: [("<u8", (rows.stop - rows.start, 1))]})
        self._head[rows] = part[:, 0].view("<f8")
        if channel.received < len(blocks):
            return iter(())
        if not np.isfinite(self._head).all():
            raise channel.refusal("a number of the head in it is none.")
        self._split(self._answer(self._head))
        self._answer = None
        return self._all()

    def state(self) -> State:
        """Nothing: a teacher that restarts shares its votes anew."""
        return {}
