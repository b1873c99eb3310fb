"""What the guardian and the student have in common: they gather shares, and agree on whose are complete.

Until the round is closed nothing has been added to anything, so a party that fails costs nothing: it is left out. The
guardian and the student tell each other whose shares they have in full and go on with those that both have. Each
teacher party names its sharing by a random number, so that a party which restarted in between and shared anew is not
added to its former self. With the same message each opens its part of every proof that shares are of votes (`proof`):
whoever shared something else is left out, and named.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.protocol.field import PRIME
from terrine.collaboration.protocol.messages import Channel, Kind, Spec
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send, State
from terrine.collaboration.protocol.proof import DIGEST, OPENED, SALT, Proof, accepted, digits_of, halvings_of, opening
from terrine.collaboration.protocol.shares import ShareArray, opened_bits, sharing_of
from terrine.errors import InputError, SettingError

_BLOCK = 2**20
_MOST_RESTARTS = 16


def share_blocks(agreement: Agreement, party: str) -> list[slice]:
    """The queries whose shares go into one frame of a party, frame by frame: about 1 MiB each."""
    numbers = 1 if agreement.reveal == "sums" else digits_of(agreement.held_by(party))
    width = agreement.classes * numbers * sharing_of(agreement).kind.itemsize
    return blocks_of(agreement.queries, max(1, _BLOCK // width))


def head_blocks(agreement: Agreement) -> list[slice]:
    """The numbers of a head that go into one frame, frame by frame: 1 MiB each."""
    return blocks_of(agreement.head, _BLOCK // 8)


def proof_context(agreement: Agreement, party: str, sharing: bytes) -> bytes:
    """What no other sharing of any session has."""
    return agreement.digest + sharing + party.encode()


def blocks_of(rows: int, block: int) -> list[slice]:
    """Blocks of rows, all of one size but the last."""
    return [slice(first, min(first + block, rows)) for first in range(0, rows, block)]


class _Present(NamedTuple):
    """What guardian and student tell each other: whose shares are complete, and what they open of their proofs.

    Attributes:
        flags: uint8 [parties], 1 for complete.
        ids: uint8 [parties, 16], what both must have alike: the sharing's name, or the transcript of its proof.
        opened: uint64 [parties, 3], `proof.opening`.
    """

    flags: NDArray[np.uint8]
    ids: NDArray[np.uint8]
    opened: NDArray[np.uint64]


class _Sharing:
    """What has come from one teacher party."""

    def __init__(self, channel: Channel, held: int, blocks: list[slice], proven: bool) -> None:
        self.channel, self.held, self.blocks, self.proven = channel, held, blocks, proven
        self.frames = len(blocks) + proven
        self.seen: list[bytes] = []
        self.shares: NDArray[Any] | None = None
        self.digits: NDArray[np.uint64] | None = None
        self.transcript = bytes(16)
        self.opened = np.zeros(OPENED, np.uint64)
        self.complete = False


class Gatherer(ABC):
    """Gathers shares, settles with the peer, and then computes: guardian and student.

    Args:
        peer: The guardian's student, or the student's guardian.

    Attributes:
        finished: Whether the session is over for this party.
        aborted: Why it ended without answers, or None.
        refused: Teacher parties whose shares are not of votes, once that is settled.
    """

    def __init__(self, agreement: Agreement, name: str, peer: str) -> None:
        self.agreement, self.name = agreement, name
        self.finished = False
        self.aborted: str | None = None
        self.sharing = sharing_of(agreement)
        self.bits = opened_bits(agreement)
        self._peer = Channel(agreement, name, peer)
        self._proven = agreement.reveal != "sums"
        self._sharings = {
            party: _Sharing(Channel(agreement, name, party), held, share_blocks(agreement, party), self._proven)
            for party, held in agreement.teachers
        }
        self.refused: list[str] = []
        self._mine: _Present | None = None
        self._theirs: _Present | None = None
        self._present: NDArray[np.uint8] | None = None
        # The agreement under the session in which the noise was drawn: a resumed one repeats what was said in that.
        self._round = agreement
        self._resumed = False

    @classmethod
    def resume(cls, agreement: Agreement, state: State, *, session: str) -> Self:
        """Go on with a stored state under a new session, saying again what was said before, byte for byte.

        Raises:
            InputError: a state that is damaged, none of this party's, or of another agreement.
            SettingError: a session that was used before.
        """
        party = cls(agreement.resumed(session))  # type: ignore[call-arg]
        party._resume(state)
        return party

    def start(self) -> Iterator[Send]:
        """See `Party.start`. A party that resumes says which round it holds; a new one waits for shares."""
        if not self._resumed or self._present is None:
            return iter(())
        return iter([self._peer.send(Kind.RESUMED, self._origin, self._present)])

    def receive(self, sender: str, frame: bytes) -> Iterator[Send]:
        if self.finished:
            raise ProtocolError(sender, "the session is over.")
        if sender == self._peer.peer:
            return self._receive_from_peer(frame)
        if sender not in self._sharings:
            raise ProtocolError(sender, "its sender is no party of this session, or has nothing to tell this one.")
        self._take_shares(self._sharings[sender], frame)
        return self.close() if all(sharing.complete for sharing in self._sharings.values()) else iter(())

    def close(self, absent: Collection[str] = ()) -> Iterator[Send]:
        """Stop gathering: the deadline is past. When all shares are complete, this happens by itself.

        As after `receive`, what `state` returns is stored before anything is sent: the noise may be drawn here.

        Args:
            absent: Parties to be left out, complete or not.
        """
        if self.closed or self.finished:
            return iter(())
        flags = np.zeros(len(self._sharings), np.uint8)
        ids = np.zeros((len(self._sharings), 16), np.uint8)
        opened = np.zeros((len(self._sharings), OPENED), np.uint64)
        for place, (party, sharing) in enumerate(self._sharings.items()):
            if sharing.complete and party not in absent:
                flags[place], opened[place] = 1, sharing.opened
                ids[place] = np.frombuffer(sharing.transcript, np.uint8)
        self._mine = _Present(flags, ids, opened)
        told = self._peer.send(Kind.PRESENT, *self._mine)
        return chain([told], self._settle()) if self._theirs is not None else iter([told])

    @property
    def complete(self) -> list[str]:
        """The teacher parties all of whose shares are here."""
        return [party for party, sharing in self._sharings.items() if sharing.complete]

    @property
    def origin(self) -> str:
        """The session in which the round began: this one, or the one that it resumes."""
        return self._round.session

    @property
    def _origin(self) -> NDArray[np.uint8]:
        return np.frombuffer(bytes.fromhex(self.origin), np.uint8)

    @property
    def closed(self) -> bool:
        """Whether shares are no longer taken."""
        return self._mine is not None or self._present is not None

    @property
    def present(self) -> list[str] | None:
        """The teacher parties whose votes are counted, once that is settled."""
        if self._present is None:
            return None
        return [party for party, flag in zip(self._sharings, self._present.tolist(), strict=True) if flag]

    def state(self) -> State:
        """See `Party.state`: empty until it is settled who is counted."""
        if self._present is None:
            return {}
        return {
            "agreement": np.frombuffer(self.agreement.substance, np.uint8),
            "origin": self._origin,
            "present": self._present,
            **self._sums(),
        }

    @abstractmethod
    def _sums(self) -> State:
        """The arrays of the state that are this party's own."""

    @abstractmethod
    def _restore(self, state: State) -> None:
        """Take them back, once they are known to have the right types and shapes."""

    @abstractmethod
    def _take_sums(self, sums: ShareArray, parties: int) -> None:
        """Take the sums of the shares of so many parties that are present, unsigned [queries, classes]."""

    @abstractmethod
    def _compute(self) -> Iterator[Send]:
        """Begin to compute on what `_take_sums` or `_restore` left."""

    @abstractmethod
    def _answer(self, frame: bytes) -> Iterator[Send]:
        """Take a frame of the peer while computing."""

    def _take_shares(self, sharing: _Sharing, frame: bytes) -> None:
        channel, agreement = sharing.channel, self.agreement
        if self.closed:
            raise channel.refusal("it comes after the round was closed.")
        before = channel.received
        again = before > 0 and len(sharing.seen) < _MOST_RESTARTS and channel.number_of(frame) == 0
        if before == sharing.frames and not again:
            raise channel.refusal("all its shares are here already.")
        number = 0 if again else before
        kind, (name, *arrays) = channel.receive(frame, self._share_specs(sharing, number), restart=again)
        fault = None
        if number == 0 and name.tobytes() in sharing.seen:
            fault = f"message 0 was received before; message {before} is next."
        elif number > 0 and name.tobytes() != sharing.seen[-1]:
            fault = "it belongs to another sharing of the same votes."
        elif kind == Kind.SHARES and int(arrays[0].max()) > self.sharing.largest:
            fault = f"a share in it is larger than shares of {self.sharing.bits} bits are."
        elif any(array.dtype == np.uint64 and int(array.max()) >= PRIME for array in arrays[kind == Kind.SHARES :]):
            fault = "a number in it is larger than those of its field."
        if fault is not None:
            channel.received = before
            raise channel.refusal(fault)
        if number == 0:
            sharing.seen.append(name.tobytes())
            sharing.complete = False
            shape = (agreement.queries, agreement.classes)
            if sharing.shares is None:
                sharing.shares = np.empty(shape, self.sharing.kind)
            sharing.digits = np.empty((*shape, self._digits(sharing)), np.uint64)
            sharing.transcript = name.tobytes()
        assert sharing.shares is not None
        assert sharing.digits is not None
        if kind == Kind.PROOF:
            self._open(sharing, Proof(*arrays))
        else:
            rows = sharing.blocks[number]
            sharing.shares[rows] = arrays[0]
            if len(arrays) > 1:
                sharing.digits[rows] = arrays[1]
        sharing.complete = number == sharing.frames - 1

    def _digits(self, sharing: _Sharing) -> int:
        """How many digits of a count are shared beside it."""
        return digits_of(sharing.held) - 1 if sharing.proven else 0

    def _share_specs(self, sharing: _Sharing, number: int) -> dict[Kind, Sequence[Spec]]:
        agreement, name = self.agreement, ("u1", (16,))
        if number == len(sharing.blocks):
            halvings = halvings_of(agreement.queries, agreement.classes, sharing.held)
            others, parts = ("u1", (1 + halvings, DIGEST)), ("<u8", (halvings, 2))
            return {Kind.PROOF: [name, ("u1", (SALT,)), others, ("<u8", (2,)), parts]}
        rows = sharing.blocks[number]
        shape = (rows.stop - rows.start, agreement.classes)
        digits = self._digits(sharing)
        specs: list[Spec] = [name, (self.sharing.kind, shape)]
        return {Kind.SHARES: [*specs, ("<u8", (*shape, digits))] if digits else specs}

    def _open(self, sharing: _Sharing, proof: Proof) -> None:
        """Work out what is said of a proof; the digits have done their part."""
        agreement, second = self.agreement, self.name == self.agreement.student
        assert sharing.shares is not None
        assert sharing.digits is not None
        context = proof_context(agreement, sharing.channel.peer, sharing.seen[-1])
        shares = self.sharing.in_field(sharing.shares, second=second)
        sharing.transcript, sharing.opened = opening(
            context, sharing.held, shares, sharing.digits, proof, second=second
        )
        sharing.digits = None

    def _receive_from_peer(self, frame: bytes) -> Iterator[Send]:
        parties = len(self._sharings)
        if self._resumed and self._present is not None:
            _, (origin, present) = self._peer.receive(frame, {Kind.RESUMED: [("u1", (16,)), ("u1", (parties,))]})
            self._resumed = False
            if not (np.array_equal(origin, self._origin) and np.array_equal(present, self._present)):
                return self._abort("the guardian and the student hold sums of different rounds.")
            return self._compute()
        if self._present is not None:
            return self._answer(frame)
        present: Sequence[Spec] = [("u1", (parties,)), ("u1", (parties, 16)), ("<u8", (parties, OPENED))]
        _, arrays = self._peer.receive(frame, {} if self._theirs is not None else {Kind.PRESENT: present})
        self._theirs = _Present(*(array.copy() for array in arrays))
        return self._settle() if self._mine is not None else iter(())

    def _settle(self) -> Iterator[Send]:
        assert self._mine is not None
        assert self._theirs is not None
        mine, theirs = self._mine, self._theirs
        present = ((mine.flags == 1) & (theirs.flags == 1) & (mine.ids == theirs.ids).all(axis=1)).astype(np.uint8)
        for place, party in enumerate(self._sharings):
            if self._proven and present[place] and not accepted(mine.opened[place], theirs.opened[place]):
                present[place] = 0
                self.refused.append(party)
        there = sum(held for (_, held), flag in zip(self.agreement.teachers, present.tolist(), strict=True) if flag)
        if there < self.agreement.minimum:
            needed = self.agreement.minimum
            counted = f"votes of {there} teachers" if self.agreement.reveal != "sums" else f"sums of {there} parts"
            why = f"the {counted} are there, and {needed} are needed. Nothing was drawn."
            strange = ", ".join(self.refused)
            return self._abort(why + (f" What {strange} shared are no votes of its teachers." if strange else ""))
        kind = self.sharing.kind_of_sums
        sums = np.zeros((self.agreement.queries, self.agreement.classes), kind)
        for sharing, flag in zip(self._sharings.values(), present.tolist(), strict=True):
            if flag:
                assert sharing.shares is not None
                sums += sharing.shares
            sharing.shares = None
        if not self.sharing.whole:
            sums &= kind.type(2**self.sharing.bits - 1)
        self._take_sums(sums, int(present.sum()))
        self._present = present
        return self._compute()

    def _abort(self, why: str) -> Iterator[Send]:
        self.aborted, self.finished = f"The session ended without answers: {why}", True
        for sharing in self._sharings.values():
            sharing.shares = None
        return iter(())

    def _resume(self, state: State) -> None:
        expected = {
            "agreement": (np.uint8, (32,)),
            "origin": (np.uint8, (16,)),
            "present": (np.uint8, (len(self._sharings),)),
        }
        wrong = [key for key, (kind, shape) in expected.items() if not _is(state.get(key), kind, shape)]
        if wrong or state["agreement"].tobytes() != self.agreement.substance:
            raise InputError(f"The stored state of {self.name!r} is damaged or belongs to another agreement.")
        if state["origin"].tobytes().hex() == self.agreement.session:
            raise SettingError("A session is resumed under a new random id: its frames are not those of the old one.")
        self._restore(state)
        self._present, self._resumed = state["present"].copy(), True
        self._round = replace(self.agreement, session=state["origin"].tobytes().hex())

    def _restored(self, state: State, key: str, kind: Any, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The array of a state, by default one with a row for every query and a column for every class."""
        array = state.get(key)
        if not _is(array, kind, shape or (self.agreement.queries, self.agreement.classes)):
            raise InputError(f"The stored state of {self.name!r} is damaged: {key} is not what it was.")
        return np.array(array)


def _is(array: Any, kind: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == kind and array.shape == shape
