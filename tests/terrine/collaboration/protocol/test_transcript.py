"""What each party sees says nothing about the votes but the output: by statistics over many sessions."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from terrine.collaboration.circuits import garbling, transfer
from terrine.collaboration.circuits.garbling import Engine
from terrine.collaboration.protocol.field import BITS, add
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.phase import argmax_phase, threshold_phase
from terrine.collaboration.protocol.shares import modulo, sharing_of
from tests.collaboration_sessions import (
    GUARDIAN,
    HEAD,
    HEADER,
    STUDENT,
    Noise,
    agreement,
    answered,
    asked_again,
    confident,
    random_votes,
    summing,
)

SESSIONS, QUERIES = 16, 500
# Histograms with the same label, 1, and the same outcome of every test, but otherwise as different as they can be.
ONE, OTHER = [1, 1, 1, 1, 1], [0, 2, 1, 1, 3]
# Bonferroni: about 900 tests are made of real randomness, so one comes out below this in one run of 10^9.
LEAST = 1e-12


def none(kind, shape):
    return np.zeros(shape)


def homogeneity(values, which):
    """p-value for: the values are distributed alike for both kinds of votes. The values are small whole numbers."""
    table = np.stack([np.bincount(values[which == kind], minlength=int(values.max()) + 1) for kind in (0, 1)])
    table = table[:, table.sum(axis=0) > 0]
    return chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0


@pytest.fixture(scope="module")
def seen():
    """What guardian and student saw, query by query, of sessions whose votes are of one kind or the other at random."""
    views = {"which": [], "guardian share": [], "student share": [], "hidden bits": [], "labels": [], "outputs": []}
    views |= {"tables": [], "guardian digits": [], "student digits": []}
    patch = pytest.MonkeyPatch()
    evaluate = Engine.evaluate

    def watched(self, context, tables, inputs):
        outputs = evaluate(self, context, tables, inputs)
        if self.circuit is phase.circuit:
            views["labels"].append(inputs.copy())
            views["tables"].append(tables.copy())
            views["outputs"].append(outputs.copy())
        return outputs

    patch.setattr(Engine, "evaluate", watched)
    rng = np.random.default_rng(0)
    for number in range(SESSIONS):
        agreed = confident(session=f"{number:032x}", queries=QUERIES, threshold=2.0, sigma=0.5)
        phase = argmax_phase(agreed, np.arange(QUERIES))
        which = rng.integers(0, 2, QUERIES)
        votes = rng.permuted(np.array([ONE, OTHER])[which], axis=1)
        _, student, loop = answered(agreed, votes, none)
        assert (student.result == 1).all()
        views["which"].append(which)
        frames = loop.record
        for receiver, key in ((GUARDIAN, "guardian share"), (STUDENT, "student share")):
            frame, _ = [frame for sender, to, frame in frames if (sender, to) == ("north", receiver)]
            _, (_, shares, digits) = Channel(agreed, receiver, "north").receive(
                frame,
                {Kind.SHARES: [("u1", (16,)), (sharing_of(agreed).kind, (QUERIES, 4)), ("<u8", (QUERIES, 4, 1))]},
            )
            views[key].append(shares)
            views[key.replace("share", "digits")].append(digits[..., 0])
        hidden = [frame for sender, to, frame in frames if to == GUARDIAN and frame[6] == Kind.BITS]
        spec, *_ = phase.bits_spec(0)
        columns = np.frombuffer(hidden[-1], "u1", np.prod(spec[1]), HEADER + 16).reshape(spec[1])
        rows = transfer.transposed(columns)[: phase.circuit.inputs[1] * QUERIES]
        views["hidden bits"].append(rows.reshape(-1, QUERIES, 2))
    patch.undo()
    return {key: np.concatenate(parts, axis=0 if parts[0].ndim < 3 else -2) for key, parts in views.items()}


def test_each_partys_shares_are_distributed_alike_whatever_the_votes(seen):
    for key in ("guardian share", "student share", "guardian digits", "student digits"):
        width = sharing_of(confident(queries=QUERIES)).bits if "share" in key else BITS
        for label in range(4):
            for shift in (0, width // 2, width - 4):
                part = seen[key][:, label] >> np.uint64(shift) & np.uint64(15)
                assert homogeneity(part.astype(int), seen["which"]) > LEAST


def test_the_same_statistic_finds_the_votes_in_both_shares_together(seen):
    both = (seen["guardian share"] + seen["student share"]) % 16
    assert min(homogeneity(both[:, label].astype(int), seen["which"]) for label in range(4)) < LEAST
    both = add(seen["guardian digits"], seen["student digits"])
    assert both.max() == 1
    assert min(homogeneity(both[:, label].astype(int), seen["which"]) for label in range(4)) < LEAST


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_seen_of_sums_is_distributed_alike_whatever_is_summed_to_the_same(number):
    agreed = summing(queries=SESSIONS * QUERIES, round=number)
    which = np.random.default_rng(2).integers(0, 2, agreed.queries)
    # Of one kind, north and south have nothing; of the other all, with other signs.
    values = np.array([[0, 0, 0, 0, 0], [3 * 2**40 + 5, 0, -3 * 2**40 - 5, 0, 0]])[which]
    _, student, loop = answered(agreed, values, lambda kind, shape: np.full(shape, -(2**50)))
    moved = len(agreed.teachers) * np.rint(HEAD[: agreed.queries] * 2.0**20) * number
    assert (student.result[:, 0] == moved - 2**50).all()
    seen = {}
    for sender, to, frame in loop.record:
        if Kind(frame[6]) in (Kind.SHARES, Kind.COUNTS):
            seen[sender, to] = np.frombuffer(frame[-8 * agreed.queries :], "<u8")
    assert len(seen) == 2 * len(agreed.teachers) + 1  # and what the guardian opens
    for numbers in seen.values():
        for shift in (0, 40, 60):
            assert homogeneity((numbers >> np.uint64(shift) & np.uint64(15)).astype(int), which) > LEAST
    both = seen["north", GUARDIAN] + seen["north", STUDENT]
    assert homogeneity((both >> np.uint64(40) & np.uint64(15)).astype(int), which) < LEAST


def test_the_bits_that_the_student_hides_are_distributed_alike(seen):
    wires = seen["hidden bits"].shape[0]
    for wire in range(wires):
        for word in (0, 1):
            assert (
                homogeneity(
                    (seen["hidden bits"][wire, :, word] >> np.uint64(7) & np.uint64(15)).astype(int), seen["which"]
                )
                > LEAST
            )


@pytest.mark.parametrize("key", ["labels", "outputs"])
def test_the_labels_that_the_evaluator_holds_are_distributed_alike(seen, key):
    for labels in seen[key]:
        for shift in (0, 40):
            colours = (labels[:, 0] >> np.uint64(shift) & np.uint64(15)).astype(int)
            assert homogeneity(colours, seen["which"]) > LEAST


def test_garbled_tables_are_distributed_alike(seen):
    tables = seen["tables"].reshape(-1, *seen["tables"].shape[-2:])
    for half in tables:
        assert homogeneity((half[:, 0] & np.uint64(15)).astype(int), seen["which"]) > LEAST


def test_labels_with_a_known_offset_would_be_found():
    # The power of the statistic: a garbler that forgets to shift its labels gives its bits away by their colours.
    which = np.random.default_rng(1).integers(0, 2, 4_000)
    labels = garbling.labels_from_seed(bytes(16), 1, 4_000)[0]
    leaking = labels.copy()
    leaking[:, 0] = labels[:, 0] & ~np.uint64(1) | which.astype(np.uint64)
    assert homogeneity((labels[:, 0] & np.uint64(1)).astype(int), which) > LEAST
    assert homogeneity((leaking[:, 0] & np.uint64(1)).astype(int), which) < LEAST


ALLOWED = {
    ("teacher", "guardian"): {Kind.SHARES, Kind.PROOF},
    ("teacher", "student"): {Kind.SHARES, Kind.PROOF},
    ("guardian", "student"): {Kind.PRESENT, Kind.CHOICES, Kind.TABLES, Kind.COUNTS},
    ("student", "guardian"): {Kind.PRESENT, Kind.BASE, Kind.BITS, Kind.OPENED, Kind.DONE},
    ("student", "teacher"): {Kind.HEAD},
}


def by_role(agreed, record):
    roles = {agreed.guardian: "guardian", agreed.student: "student"}
    for sender, receiver, frame in record:
        yield roles.get(sender, "teacher"), roles.get(receiver, "teacher"), Kind(frame[6]), frame


@pytest.mark.parametrize(
    ("reveal", "threshold"),
    [
        *(
            ("argmax", None),
            ("argmax", 3.0),
            ("histogram", None),
            ("histogram", 3.0),
            ("sums", None),
            ("a round", None),
        ),
        *(("argmax after averages", 3.0), ("histogram after averages", None)),
    ],
)
def test_nothing_but_the_output_is_opened(reveal, threshold):
    test = {} if threshold is None else {"threshold": threshold, "sigma_threshold": 1.0}
    if reveal in ("sums", "a round"):
        agreed, reveal = summing(round=int(reveal == "a round")), "sums"
    else:
        reveal, _, after = reveal.partition(" ")
        agreed = (asked_again if after else agreement)(reveal=reveal, **test)
    _, student, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    kinds = {}
    for sender, receiver, kind, frame in by_role(agreed, loop.record):
        assert kind in ALLOWED[sender, receiver]
        kinds.setdefault(kind, []).append(frame)
    # What a teacher party is told is the head, or the average, which follows from what was released, and only where
    # there is one; the guardian is told none.
    heads = kinds.pop(Kind.HEAD, [])
    assert len(heads) == (len(agreed.teachers) if agreed.round else 0)
    assert all(frame[HEADER + 16 :] == HEAD[: agreed.head].astype("<f8").tobytes() for frame in heads)
    # Counts are sent only where histograms are revealed, and labels opened only by the test: one of them per query.
    assert (Kind.COUNTS in kinds) == (reveal != "argmax")
    assert (Kind.OPENED in kinds) == (threshold is not None)
    circuits = []
    if threshold is not None:
        circuits.append(threshold_phase(agreed))
        assert len(circuits[0].circuit.outputs) == 1
        assert [len(frame) for frame in kinds[Kind.OPENED]] == [HEADER + 16 + 16 * agreed.queries]
    if reveal == "argmax":
        circuits.append(argmax_phase(agreed, np.flatnonzero(student.passed)))
        assert len(circuits[-1].circuit.outputs) == 2  # a class of four
    # What opens labels comes for outputs alone: exactly these arrays, of these shapes.
    assert len(kinds.get(Kind.TABLES, [])) == len(circuits)
    for phase, frame in zip(circuits, kinds.get(Kind.TABLES, []), strict=True):
        channel = Channel(agreed, agreed.student, agreed.guardian)
        channel.received = channel_number(frame)
        channel.receive(frame, {Kind.TABLES: phase.tables_spec(0)})
    if reveal != "argmax":
        opened = sum(int(student.passed.sum()) for _ in kinds[Kind.COUNTS])
        (frame,) = kinds[Kind.COUNTS]
        assert len(frame) == HEADER + 16 + (8 if reveal == "sums" else 4) * agreed.classes * opened


def channel_number(frame):
    return Channel(agreement(), STUDENT, GUARDIAN).number_of(frame)


def test_neither_side_receives_the_others_shares():
    agreed = confident(queries=64)
    guardian, student, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    secrets = {
        agreed.student: [guardian.state()["counts"], guardian.state()["tests"]],
        agreed.guardian: [student.state()["shares"], modulo(student.state()["shares"], 4)],
    }
    for (sender, receiver), kinds in ALLOWED.items():
        assert sender != "student" or receiver == "guardian" or kinds == {Kind.HEAD}
        assert Kind.SHARES not in kinds or sender == "teacher"
    for party, arrays in secrets.items():
        received = b"".join(frame[HEADER:] for _, to, frame in loop.record if to == party)
        for array in arrays:
            for kind in ("u1", "<u2", "<u4", "<u8"):
                for part in (array[:8], array[-8:], array.T[:, :8]):
                    assert np.ascontiguousarray(part, kind).tobytes() not in received
    for name, _ in agreed.teachers:
        ours, theirs = (
            b"".join(frame[HEADER + 48 :] for sender, to, frame in loop.record if (sender, to) == (name, receiver))
            for receiver in (agreed.guardian, agreed.student)
        )
        assert ours != theirs
        assert ours[:64] not in theirs
