"""Each party's view depends on the votes only through the output: statistical tests over many sessions."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from terrine.collaboration.circuits import garbling, transfer
from terrine.collaboration.circuits.garbling import Engine
from terrine.collaboration.protocol.agreement import arrays_of
from terrine.collaboration.protocol.field import BITS, add
from terrine.collaboration.protocol.phase import Plan
from terrine.collaboration.protocol.report import report_specs
from terrine.collaboration.protocol.shares import modulo, sharing_of
from terrine.collaboration.protocol.student_round import StudentRound
from tests.collaboration_sessions import Noise, agreement, answered, confident, random_votes, summing

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
    """Views of the guardian and the student, by query, of sessions with votes of one of two kinds at random."""
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
        agreed = confident(collaboration=f"{number:064x}", queries=QUERIES, threshold=2.0, sigma=0.5)
        phase = Plan(agreed, bytes(16), np.ones(QUERIES, bool)).phases[1]
        which = rng.integers(0, 2, QUERIES)
        votes = rng.permuted(np.array([ONE, OTHER])[which], axis=1)
        _, result, loop = answered(agreed, votes, none)
        assert (result == 1).all()
        views["which"].append(which)
        for place, key in enumerate(("guardian share", "student share")):
            _, shares, digits, *_ = arrays_of(loop.reports["north"][place], report_specs(agreed, "north"))
            views[key].append(shares)
            views[key.replace("share", "digits")].append(digits[..., 0])
        hidden = [request for path, request, _ in loop.record if path == "blocks/1"]
        columns = arrays_of(hidden[0], phase.request_specs(0))[0]
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


def test_what_is_seen_of_sums_is_distributed_alike_whatever_is_summed_to_the_same():
    agreed = summing(queries=SESSIONS * QUERIES)
    which = np.random.default_rng(2).integers(0, 2, agreed.queries)
    # In one kind, all parties have zeros; in the other, north and south have large values of opposite sign.
    values = np.array([[0, 0, 0, 0, 0], [3 * 2**40 + 5, 0, -3 * 2**40 - 5, 0, 0]])[which]
    _, result, loop = answered(agreed, values, lambda kind, shape: np.full(shape, -(2**50)))
    assert (result[:, 0] == -(2**50)).all()
    seen = {(name, place): np.frombuffer(body[-8 * agreed.queries :], "<u8")
            for name, bodies in loop.reports.items() for place, body in enumerate(bodies)}  # fmt: skip
    ((_, _, counts),) = loop.record
    for numbers in (*seen.values(), np.frombuffer(counts, "<u8")):
        for shift in (0, 40, 60):
            assert homogeneity((numbers >> np.uint64(shift) & np.uint64(15)).astype(int), which) > LEAST
    both = seen["north", 0] + seen["north", 1]
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


CASES = {
    "argmax": agreement(),
    "argmax, test": confident(),
    "histogram": agreement(reveal="histogram"),
    "histogram, test": confident(reveal="histogram"),
    "sums": summing(),
    "a round of sums": summing(round=2, weights=9),
    "votes after averages": confident(round=3, weights=6),
}


@pytest.mark.parametrize("agreed", CASES.values(), ids=CASES)
def test_nothing_but_the_output_is_opened(agreed):
    passed, _, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    said = {path: answer for path, _, answer in loop.record}
    plan = Plan(agreed, bytes(16), passed if agreed.threshold is not None else None)
    # Counts are sent only if they are revealed, and labels opened only by the test: one of them per query.
    circuits = (agreed.threshold is not None) + (agreed.reveal == "argmax")
    expected = {f"blocks/{number}" for number in range(circuits)} | ({"base"} if circuits else set())
    expected |= {"opened/0"} if agreed.threshold is not None else set()
    expected |= {"counts/0"} if agreed.reveal != "argmax" else set()
    assert set(said) == expected
    assert len(plan.phases) == circuits
    for number, one in enumerate(plan.phases):
        assert len(one.circuit.outputs) == (1 if one.number == 1 else 2)  # whether it passed; a class of four
        arrays_of(said[f"blocks/{number}"], one.tables_specs(0))  # what decodes labels, for outputs only
    if agreed.threshold is not None:
        ((request, answer),) = [(request, answer) for path, request, answer in loop.record if path == "opened/0"]
        assert (len(request), answer) == (16 * agreed.queries, b"")
    if agreed.reveal != "argmax":
        arrays_of(said["counts/0"], [(plan.count_kind, (int(passed.sum()), agreed.classes))])


def test_neither_side_receives_the_others_shares():
    agreed = confident(queries=64)
    _, _, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    from terrine.collaboration.protocol.guardian_round import GuardianRound

    student = loop.student()
    assert isinstance(student, StudentRound)
    state = GuardianRound(agreed, loop.facts[0])._state
    secrets = {"guardian": [student._shares, modulo(student._shares, 4)], "student": [state[3], state[4]]}
    received = {
        "guardian": b"".join([request for _, request, _ in loop.record] + [one for one, _ in loop.reports.values()]),
        "student": b"".join([answer for _, _, answer in loop.record] + [one for _, one in loop.reports.values()]),
    }
    for party, arrays in secrets.items():
        for array in arrays:
            for kind in ("u1", "<u2", "<u4", "<u8"):
                for part in (array[:8], array[-8:], array.T[:, :8]):
                    assert np.ascontiguousarray(part, kind).tobytes() not in received[party]
    for ours, theirs in loop.reports.values():
        assert ours[16:80] not in theirs
