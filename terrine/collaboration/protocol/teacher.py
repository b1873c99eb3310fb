"""A teacher party: its votes as two shares, one for the guardian and one for the student. Then it is done.

Neither share says anything without the other; the party receives nothing and learns nothing.
"""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.gathering import share_blocks
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send, State
from terrine.collaboration.protocol.shares import sharing_of
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
        shares = sharing_of(agreement).split(values)
        self._blocks = share_blocks(agreement)
        self._sharing = np.frombuffer(os.urandom(16), np.uint8)
        receivers = (agreement.guardian, agreement.student)
        self._shares = dict(zip(receivers, shares, strict=True))
        self._channels = {receiver: Channel(agreement, name, receiver) for receiver in receivers}

    def start(self) -> Iterator[Send]:
        """All shares, in turns to the guardian and to the student."""
        for sends in zip(*(self.frames(receiver) for receiver in self._channels), strict=True):
            yield from sends
        self.finished = True

    def frames(self, to: str) -> Iterator[Send]:
        """The frames for the guardian or the student, the same every time: for a connection that broke."""
        shares, channel = self._shares[to], self._channels[to]
        for number, rows in enumerate(self._blocks):
            yield Send(to, channel.frame(number, Kind.SHARES, [self._sharing, shares[rows]]))

    def receive(self, sender: str, frame: bytes) -> Iterator[Send]:
        """Refuse it: nobody has anything to tell a teacher party."""
        raise ProtocolError(sender, "a teacher party expects no messages.")

    def state(self) -> State:
        """Nothing: a teacher that restarts shares its votes anew."""
        return {}
