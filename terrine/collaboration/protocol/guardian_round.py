"""The guardian's computation in one round: it adds noise to its sums, garbles, and learns which queries passed.

The guardian's state consists of *facts*: bytes under a name, stored once and never changed (`Facts`). The noise is
drawn once, in `settle`, and **every request is answered once**. The noise of a threshold test is one number for all
classes. If a query could be tested again with that number on counts that the student party moved in between, exact
votes could be inferred. So a restarted computation repeats its earlier messages: Δ, keys and labels come from a secret
that is stored with the sums, and the digest of every request (the student's point, its hidden bits of each block with
their check) is stored *before* it is answered. The same request gets the same bytes again; a different one is refused.
A student party gains nothing by asking again.

The consistency check of the transfers (`transfer`) runs after its request is stored, and the next block is answered
only after the check has passed. So a failed request is never replaced by another one, in this block or a later one: the
release is not finished, and the reserved cost stays charged. Another edition has new noise, a new Δ and new base
transfers, and is charged again. So a student party has one failed guess of bits of Δ for each paid release.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.circuits.garbling import Labels, fresh_offset, labels_from_seed, shifted
from terrine.collaboration.circuits.transfer import (
    POINT,
    BaseReceiver,
    ExtensionMessage,
    ExtensionSender,
    Transcript,
    TransferError,
    bits_of_offset,
)
from terrine.collaboration.protocol.agreement import Agreement, ProtocolError, Spec, arrays_of, body_of
from terrine.collaboration.protocol.phase import ORIGIN, Phase, Plan
from terrine.collaboration.protocol.randomness import SECRET, Expansion, fresh_secret
from terrine.collaboration.protocol.shares import (
    ShareArray,
    modulo,
    opened_bits,
    sharing_of,
    threshold_bits,
    whole_thresholds,
    whole_votes,
)
from terrine.errors import SettingError

Draw = Callable[[str, tuple[int, ...]], NDArray[Any]]
"""Draws noise in votes: `draw("threshold", (queries,))`, then `draw("counts", (queries, classes))`."""


class Facts(Protocol):
    """Bytes by name, stored once and never changed; durable before `setdefault` returns. A dict will do."""

    def get(self, name: str, /) -> bytes | None:
        """Return the fact stored under a name, or None."""

    def setdefault(self, name: str, value: bytes, /) -> bytes:
        """Store the value unless something is stored; return what is stored."""


class GuardianRound:
    """State and messages of the guardian in one round.

    Args:
        agreement: Parameters of the round.
        facts: Stored facts about the round.
    """

    def __init__(self, agreement: Agreement, facts: Facts) -> None:
        self.agreement, self._facts = agreement, facts

    @property
    def settled(self) -> bool:
        """Whether the counted reports are fixed and the noise is drawn."""
        return self._facts.get("settled") is not None

    def settle(self, sums: ShareArray, present: Sequence[str], draw: Draw) -> None:
        """Add the noise to the sums of the present parties' shares, and store everything at once.

        Noise on counts is rounded to whole votes, which the exact accounting covers (`shares`); on sums it is integer.
        The ledger has reserved the cost before `draw` is called.

        Raises:
            SettingError: The noise has the wrong shape, or is not finite.
        """
        agreement, own = self.agreement, sums.astype(np.int64)
        flags = np.array([name in present for name, _ in agreement.teachers], np.uint8)
        arrays: list[NDArray[Any]] = [np.frombuffer(os.urandom(ORIGIN), np.uint8), flags]
        tests = []
        if agreement.threshold is not None:
            noise = self._drawn(draw, "threshold", (agreement.queries,))
            # n ≥ t is S ≥ t + P·2^u − G for the student's sum S and this party's sum G.
            parties = int(flags.sum())
            bounds = whole_thresholds(agreement.threshold, noise)[:, None]
            bounds = bounds + (parties * 2 ** sharing_of(agreement).bits - own)
            tests = [np.clip(bounds, 0, 2 ** threshold_bits(agreement) - 1).astype("<u8")]
        noise = self._drawn(draw, "counts", own.shape)
        counts = modulo(own + whole_votes(noise), opened_bits(agreement))
        self._facts.setdefault("settled", body_of(*arrays, np.frombuffer(fresh_secret(), np.uint8), counts, *tests))

    @staticmethod
    def _drawn(draw: Draw, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        noise = np.asarray(draw(kind, shape))
        if noise.shape != shape or noise.dtype.kind not in "if" or not np.isfinite(noise).all():
            raise SettingError(f"Noise for {kind} has the shape {list(shape)} and is finite, got {list(noise.shape)}.")
        return noise

    @cached_property
    def _state(self) -> list[NDArray[Any]]:
        """Origin, flags, secret, counts and tests."""
        settled, agreement = self._facts.get("settled"), self.agreement
        if settled is None:
            raise ProtocolError("The round is not closed: nothing was computed yet.")
        shape = (agreement.queries, agreement.classes)
        specs: list[Spec] = [
            *(("u1", (ORIGIN,)), ("u1", (len(agreement.teachers),)), ("u1", (SECRET,))),
            (modulo(0, opened_bits(agreement)).dtype, shape),
            *([("<u8", shape)] if agreement.threshold is not None else []),
        ]
        return arrays_of(settled, specs)

    @property
    def closing(self) -> bytes:
        """Message to the student party: origin of the computation, and flags of the counted parties."""
        return body_of(*self._state[:2])

    @property
    def present(self) -> list[str]:
        """Parties whose reports are counted."""
        return [name for (name, _), flag in zip(self.agreement.teachers, self._state[1], strict=True) if flag]

    @property
    def passed(self) -> NDArray[np.bool_] | None:
        """bool [queries], which queries passed the test; None without a threshold, or before the outcome is known."""
        if self.agreement.threshold is None:
            return None
        blocks = [self._facts.get(f"passed-{number}") for number in range(self._tests.tested)]
        found = [np.frombuffer(block, np.bool_) for block in blocks if block is not None]
        return np.concatenate(found) if len(found) == len(blocks) else None

    @cached_property
    def _tests(self) -> Plan:
        return Plan(self.agreement, self._state[0].tobytes())

    @cached_property
    def _answers(self) -> Plan:
        return Plan(self.agreement, self._state[0].tobytes(), self.passed)

    def _plan(self) -> Plan:
        if self.agreement.threshold is not None and self.passed is not None:
            return self._answers
        return self._tests

    def base(self, body: bytes) -> bytes:
        """Answer the student's point with a point for each base transfer.

        Raises:
            ProtocolError: The point is outside the group, or differs from the stored one.
        """
        (point,) = arrays_of(body, [("u1", (POINT,))])
        base = self._base_of(point.tobytes())[1]
        self._remember("base", point.tobytes(), "point of the base transfers")
        return body_of(base.points)

    def _base_of(self, point: bytes) -> tuple[Labels, BaseReceiver]:
        # Another offer would get another Δ, even if the fact that refuses it were lost.
        draw = Expansion(self._state[2].tobytes(), f"base transfers {point.hex()}")
        delta = fresh_offset(draw)
        try:
            return delta, BaseReceiver(self._tests.context, bits_of_offset(delta), point, draw)
        except TransferError as error:
            raise ProtocolError(str(error)) from error

    @cached_property
    def _base(self) -> tuple[Labels, BaseReceiver, bytes]:
        """Δ, the base transfers, and the first state of the transcript."""
        point = self._facts.get("base")
        if point is None:
            raise ProtocolError("The base transfers come first.")
        delta, base = self._base_of(point)
        return delta, base, Transcript.first(self._tests.context, point, base.points)

    def _remember(self, name: str, value: bytes, what: str) -> None:
        """Store a request before it is answered; refuse a request that differs from the stored one."""
        if self._facts.setdefault(name, value) != value:
            raise ProtocolError(
                f"This {what} is not the one that was answered before. On the same noise another request would reveal "
                "exact votes, so it is never answered. The student party's state was changed or replaced: restore it. "
                "The reserved cost stays charged."
            )

    def block(self, number: int, body: bytes) -> bytes:
        """Answer the transfers of a block with its garbled circuit.

        Raises:
            ProtocolError: The block is out of turn, the request differs from an earlier one, or the check fails.
        """
        plan = self._plan()
        phase, block = plan.find(number)
        message = ExtensionMessage(*arrays_of(body, phase.request_specs(block)))
        delta, base, first = self._base
        before = first
        if number:
            stored = self._facts.get(f"checked-{number - 1}")
            if stored is None:
                raise ProtocolError(f"Block {number} comes too early: block {number - 1} is not answered.")
            before = stored
        sender = ExtensionSender(delta, base.keys, Transcript(before), plan.offset(number))
        challenge = sender.challenge(message)
        digest = hashlib.sha256(challenge + message.bits.tobytes() + message.hashes.tobytes()).digest()
        self._remember(f"request-{number}", digest, f"request of block {number}")
        return self._garble(phase, block, number, sender, message, challenge)

    def _garble(
        self,
        phase: Phase,
        block: int,
        number: int,
        sender: ExtensionSender,
        message: ExtensionMessage,
        challenge: bytes,
    ) -> bytes:
        size, delta = phase.size(block), self._base[0]
        wires, others = phase.circuit.inputs
        try:
            theirs = sender.extend(message, challenge, others, size)
        except TransferError as error:
            raise ProtocolError(
                f"Block {number} fails the consistency check of the transfers, so the student party departs from the "
                "protocol. Nothing of the block was used. No other request is answered instead, and the reserved "
                "cost stays charged. Agree on another edition, with a student party that you trust."
            ) from error
        self._facts.setdefault(f"checked-{number}", challenge)
        seed = Expansion(self._state[2].tobytes(), f"labels {number}")(16)
        labels = np.empty((wires + others, size, 2), "<u8")
        shares = self._state[4] if phase.number == 1 else self._state[3]
        labels[:wires] = shifted(labels_from_seed(seed, wires, size), phase.inputs(shares, block), delta)
        labels[wires:] = theirs
        engine = phase.engine(block)
        tables, outputs = engine.garble(block, delta, labels)
        hashes, values = engine.seal(block, delta, outputs)
        if phase.number == 1:
            self._facts.setdefault(f"outputs-{number}", body_of(outputs[0]))
        return body_of(np.frombuffer(seed, np.uint8), tables, hashes, values)

    def opened(self, number: int, body: bytes) -> bytes:
        """Take the labels of a test's outputs, and store which queries passed.

        Raises:
            ProtocolError: The block was not garbled, or a label does not exist.
        """
        phase, block = self._tests.find(number)
        stored = self._facts.get(f"outputs-{number}")
        if stored is None or phase.number != 1:
            raise ProtocolError(f"Block {number} has no outputs to open.")
        ((labels,), (zero,)) = (arrays_of(part, phase.opened_specs(block)) for part in (body, stored))
        passed = (labels == (zero ^ self._base[0])).all(axis=1)
        if not (passed | (labels == zero).all(axis=1)).all():
            raise ProtocolError("A label that opens a test does not exist.")
        self._facts.setdefault(f"passed-{number}", passed.tobytes())
        return b""

    def counts(self, number: int) -> bytes:
        """Return a block of noised shares, if counts or sums are revealed.

        Raises:
            ProtocolError: The counts are not revealed, or not yet.
        """
        plan = self._plan()
        blocks = plan.count_blocks()
        if plan.answered is None or not 0 <= number < len(blocks):
            raise ProtocolError(f"There is no block {number} of counts.")
        return body_of(self._state[3][plan.answered[blocks[number]]])
