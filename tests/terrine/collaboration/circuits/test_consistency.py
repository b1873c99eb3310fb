"""The consistency check of the transfer extension: a student that hides different bits in different columns fails it,
unless it guesses the bits of Δ that its columns depend on."""

import numpy as np
import pytest
from scipy.stats import binomtest

from terrine.collaboration.circuits.garbling import fresh_offset
from terrine.collaboration.circuits.transfer import (
    FIELD,
    WIDTH,
    ExtensionMessage,
    ExtensionReceiver,
    TransferError,
    bits_of_offset,
    column_bytes,
    combined,
)
from tests.collaboration_transfers import (
    ANSWERS,
    CONTEXT,
    OFFER,
    flips_of,
    ghash,
    keys_of,
    sides,
    slowly_combined,
    times,
    transcript,
)

# Test case 2 of McGrew & Viega, "The Galois/Counter Mode of Operation (GCM)": H, the ciphertext and its GHASH.
H = bytes.fromhex("66e94bd4ef8a2c3b884cfa59ca342b2e")
C = bytes.fromhex("0388dace60b6a392f328c2b971b2fe78")
X1 = bytes.fromhex("5e2ec746917062882c85b0685353deb7")
GHASH = bytes.fromhex("f38cbb1ad69223dcc3457ae5b6b0f885")
SHAPE = (3, 100)
BITS = 300
BYTES = column_bytes(BITS)


def passes(student, guardian, bits=None):
    """Return True if the guardian accepts the student's message."""
    message, _ = student.extend(np.zeros(SHAPE, np.uint8) if bits is None else bits)
    return accepts(guardian, message)


def accepts(guardian, message, shape=SHAPE):
    try:
        guardian.extend(message, guardian.challenge(message), *shape)
    except TransferError:
        return False
    return True


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def delta(rng):
    return fresh_offset(rng.bytes)


def test_the_oracle_is_the_field_of_gcm(rng):
    assert times(C, H) == X1
    assert ghash(H, C + (128).to_bytes(16, "big")) == GHASH
    one = b"\x80" + bytes(15)
    a, b, c = (rng.bytes(16) for _ in range(3))
    assert times(a, one) == a
    assert times(a, b) == times(b, a)
    assert times(times(a, b), c) == times(a, times(b, c))


@pytest.mark.parametrize("elements", [1, 2, 3, 9, 40])
def test_columns_are_combined_as_the_oracle_does(rng, elements):
    challenge = rng.bytes(32)
    columns = rng.integers(0, 256, (5, FIELD * elements)).astype(np.uint8)
    columns[3], columns[4] = 0, columns[1] ^ columns[2]
    fast = combined(challenge, columns)
    assert [value.tobytes() for value in fast] == [slowly_combined(challenge, column) for column in columns]
    assert not fast[3].any()
    assert np.array_equal(fast[4], fast[1] ^ fast[2])


def test_a_column_that_differs_in_any_one_element_is_combined_to_something_else(rng):
    challenge, column = rng.bytes(32), rng.integers(0, 256, 64 * FIELD).astype(np.uint8)
    changed = np.repeat(column[None], 64, axis=0)
    changed[np.arange(64), FIELD * np.arange(64) + rng.integers(0, FIELD, 64)] ^= 1
    assert len({value.tobytes() for value in combined(challenge, [column, *changed])}) == 65


def test_an_honest_student_passes_block_after_block(rng, delta):
    student, guardian = sides(delta, rng)
    for shape in [(1, 1), (3, 100), (2, 64), (1, 128), (110, 7)]:
        bits = rng.integers(0, 2, shape).astype(np.uint8)
        message, labels = student.extend(bits)
        assert message.columns.shape == (WIDTH, column_bytes(bits.size))
        zero = guardian.extend(message, guardian.challenge(message), *shape)
        assert np.array_equal(labels, zero ^ (bits[..., None] * delta))


EVERY = range(1, WIDTH)
CASES = {
    "one column": [(5, transfer) for transfer in range(BITS)],
    "one transfer in one column": [(77, 12)],
    "one wire, another query in each column": [(column, column - 1) for column in range(1, 101)],
    "all columns but three": [(column, 40) for column in EVERY if column not in (3, 64, 100)],
    "one sacrificed transfer": [(9, 8 * BYTES - 1)],
    "every sacrificed transfer": [(9, 8 * BYTES - 1 - place) for place in range(128)],
    "a transfer between wires and sacrificed ones": [(31, BITS + 3)],
    "everything in every column": [(column, place) for column in EVERY for place in range(column, 8 * BYTES)],
}


@pytest.mark.parametrize("case", CASES)
def test_a_student_that_hides_different_bits_passes_only_if_it_knows_the_bits_of_the_offset(rng, delta, case):
    own = bits_of_offset(delta)
    flips = flips_of(BITS, CASES[case])
    touched = np.flatnonzero(flips.any(axis=1))
    for wrong in (touched[0], touched[-1]):
        student, guardian = sides(delta, rng)
        student.flips, student.guess = flips, own.copy()
        student.guess[wrong] ^= 1
        assert not passes(student, guardian)
    student, guardian = sides(delta, rng)
    student.flips, student.guess = flips, own
    assert passes(student, guardian)


@pytest.mark.parametrize("flipped", [1, 3, 64, 125])
def test_a_student_may_answer_for_the_majority_of_its_columns(rng, delta, flipped):
    """Only the columns that differ from its answer cost a guess; the input bits are then those of the others."""
    own = bits_of_offset(delta)
    flips = flips_of(BITS, [(column, 40) for column in range(WIDTH - flipped)])
    for change, expected in ((0, True), (1, False)):
        student, guardian = sides(delta, rng)
        student.flips, student.answer, student.guess = flips, flips[0], own.copy()
        student.guess[-1] ^= change
        assert passes(student, guardian) == expected


def test_the_lowest_bit_of_the_offset_is_public_so_its_column_needs_no_guess(rng, delta):
    student, guardian = sides(delta, rng)
    student.flips, student.guess = flips_of(BITS, [(0, 7)]), np.eye(1, WIDTH, 0, np.uint8)[0]
    message, labels = student.extend(np.zeros(SHAPE, np.uint8))
    assert np.array_equal(guardian.extend(message, guardian.challenge(message), *SHAPE), labels)


@pytest.mark.parametrize("guessed", [1, 2, 3, 5])
def test_a_guess_of_bits_of_the_offset_succeeds_as_often_as_it_is_right(guessed):
    rng, trials = np.random.default_rng(guessed), 1_000
    shape, passed = (1, 4), 0
    for _ in range(trials):
        student, guardian = sides(fresh_offset(rng.bytes), rng)
        columns = rng.choice(np.arange(1, WIDTH), guessed, replace=False)
        student.flips = flips_of(4, [(column, int(rng.integers(4))) for column in columns])
        student.guess = rng.integers(0, 2, WIDTH).astype(np.uint8)
        message, _ = student.extend(np.zeros(shape, np.uint8))
        passed += accepts(guardian, message, shape)
    assert binomtest(passed, trials, 2.0**-guessed).pvalue > 1e-9


def tampered(message, name, place):
    arrays = {field: array.copy() for field, array in message._asdict().items()}
    arrays[name].reshape(-1)[place] ^= 1
    return ExtensionMessage(**arrays)


@pytest.mark.parametrize("place", [0, 5, 15])
def test_an_answer_with_other_bits_fails(rng, delta, place):
    student, guardian = sides(delta, rng)
    message, _ = student.extend(np.ones(SHAPE, np.uint8))
    assert not accepts(guardian, tampered(message, "bits", place))


@pytest.mark.parametrize("column", [0, 1, 64, 127])
def test_an_answer_with_another_hash_of_a_column_fails(rng, delta, column):
    student, guardian = sides(delta, rng)
    message, _ = student.extend(np.ones(SHAPE, np.uint8))
    assert not accepts(guardian, tampered(message, "hashes", 16 * column + int(rng.integers(16))))


def test_an_answer_of_zeros_or_of_another_block_fails(rng, delta):
    for which in range(2):
        student, guardian = sides(delta, rng)
        first, _ = student.extend(np.ones(SHAPE, np.uint8))
        assert accepts(guardian, first)
        message, _ = student.extend(np.ones(SHAPE, np.uint8))
        other = first if which else ExtensionMessage(*map(np.zeros_like, first))
        assert not accepts(guardian, ExtensionMessage(message.columns, other.bits, other.hashes))


@pytest.mark.parametrize("changed", ["context", "offer", "answers", "an earlier matrix", "this matrix"])
def test_the_challenge_depends_on_everything_that_was_sent_before(rng, changed):
    given = {"context": CONTEXT, "offer": OFFER, "answers": ANSWERS}
    matrices = rng.integers(0, 256, (2, WIDTH, BYTES)).astype(np.uint8)
    one = transcript(**given)
    if changed in given:
        value = np.array(bytearray(given[changed]), np.uint8) if changed != "answers" else ANSWERS.copy()
        value.reshape(-1)[-1] ^= 1
        other = transcript(**given | {changed: value if changed == "answers" else value.tobytes()})
    else:
        other = transcript(**given)
    others = matrices.copy()
    others[0 if changed == "an earlier matrix" else 1, -1, -1] ^= changed.endswith("matrix")
    challenges = [[side.challenge(matrix) for matrix in sent] for side, sent in ((one, matrices), (other, others))]
    assert challenges[0][1] != challenges[1][1]
    assert (challenges[0][0] == challenges[1][0]) == (changed == "this matrix")


def test_an_honest_student_of_another_session_fails(rng, delta):
    student, guardian = sides(delta, rng, transcript(context=b"another"))
    assert not passes(student, guardian)


def test_sacrificed_bits_are_fresh_and_hide_the_others(rng, delta):
    """The same bits give other answers each time; with the sacrificed bits known, the answer would be theirs."""
    keys, _ = keys_of(delta, rng)
    answers = {bits: [] for bits in (0, 1)}
    for number in range(300):
        student = ExtensionReceiver(keys, transcript(context=number.to_bytes(4, "little")))
        answers[number % 2].append(student.extend(np.full((1, 4), number % 2, np.uint8))[0].bits)
    for values in answers.values():
        ones = np.unpackbits(np.stack(values), axis=1).sum(axis=0)
        assert min(binomtest(int(count), 150).pvalue for count in ones) > 1e-12
    students = [ExtensionReceiver(keys, transcript(), lambda size: bytes(size)) for _ in range(2)]
    known = [student.extend(np.zeros((1, 4), np.uint8))[0].bits for student in students]
    assert not known[0].any()
    assert not known[1].any()
