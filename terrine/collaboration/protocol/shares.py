"""Additive secret sharing: a single share is random; two sum to the votes as integers, or to sums modulo 2^64.

**Opened numbers** are counts modulo 2^k (argmax, histograms), each with its own noise. The modulus carries a noisy
count with its sign: 2^(k−1) > N + 12σ, so noise wraps around with probability below 1e-32.

**Sums over records** are modulo 2^64, in steps of the lattice of their noise, which is drawn in whole steps
(`terrine.aggregation.fixed_point` has the bound that keeps them from wrapping around).

**Noise in whole votes costs nothing.** n + ⌊η + ½⌋ is ⌊n + η + ½⌋ for an integer n: rounding, and reduction modulo 2^k,
are post-processing of n + η, so the exact figures of the Gaussian mechanism hold for the rounded noise of
`terrine.privacy.noise`. (A discrete Gaussian on whole votes has another trade-off curve.) They also hold if a party
adds anything to a class: n + c + η modulo 2^k is computed from n + η.

**Votes are shared as integers**, for two reasons: the proof is a statement about integers (`proof`), and in a threshold
test one η serves all classes. One share is a mask r, uniform below 2^u, the other n + 2^u − r, and nothing is reduced
before noise is added. The sums S and G of P parties' shares give S + G − P·2^u = n, and n_j ≥ t is S_j ≥ t + P·2^u −
G_j, a comparison of the student's number with the guardian's.

*Privacy against deviating parties.* Let parties that depart from the protocol, with or without the student party, move
the counts by any integers c that depend on everything opened before. The test opens max_j (n_j + c_j) ≥ t with
t = ⌈T − η⌉ (`whole_thresholds`), which is max_j (n_j + c_j) + η ≥ T: a function of a number that one vote moves by at
most 1, plus the Gaussian noise that was paid for. So it is the accounted mechanism, with another c. Two things would
break this, and are avoided:

- clipping t, e.g. to [0, N + 1]. Then n_j + c_j = N + 1 always passes and N sometimes fails: a failure reveals n_j;
- shares modulo 2^k. There, a class can be moved to the other change of sign: with c_b = 2^(k−1) − d class b passes for
  *large* t. Then a query fails for n_a < t ≤ n_b − d, which happens for one of two neighbours and never for the other,
  however large k and σ are. A single class would be safe, since n + c − t modulo 2^k is computed from n + η; several
  under one η are not, because numbers modulo 2^k have no maximum.

The guardian's number is clipped to the range of the student's inputs, [0, 2^w); so the comparison is that of integers,
except if a student enters 2^w − 1: it always passes, which reveals nothing. No honest sum comes near either end.

*Correctness* holds for honest parties: a party that adds c gets answers about n + c.

*Hiding.* The mask is uniform, so the guardian, which gets it, learns nothing. The distributions of the student's share
for two counts that differ by d have distance d / 2^u; u has 40 bits more than twice the queries, so the student's view
of one teacher's votes is within 2^-40 of its view of any other votes.
"""

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.collaboration.protocol.agreement import Agreement
from terrine.collaboration.protocol.field import Numbers, reduced, subtract
from terrine.errors import SettingError

ShareArray = NDArray[np.unsignedinteger]
NOISE_WIDTH = 12
_MOST_BITS = 32
_SUM_BITS = 64
_HIDDEN_BITS = 40
_MOST_MASK_BITS = 59  # so that any two shares differ from a sum of votes by less than 2^61 − 1: `proof`
_FARTHEST = 2.0**52  # threshold in votes: far beyond the noise, and far below the range of int64


def opened_bits(agreement: Agreement) -> int:
    """Return k, the bits of an opened number: a sum, or a count with its noise."""
    return _SUM_BITS if agreement.reveal == "sums" else count_bits(agreement.total, agreement.sigma)


def count_bits(teachers: int, sigma: float) -> int:
    """Return the smallest k with 2^(k−1) > N + 12σ.

    Raises:
        SettingError: The number of bits is above 32.
    """
    bits = math.floor(math.log2(teachers + NOISE_WIDTH * sigma)) + 2
    while bits > 2 and 2.0 ** (bits - 2) > teachers + NOISE_WIDTH * sigma:
        bits -= 1
    if bits > _MOST_BITS:
        raise SettingError(
            f"Shares of {teachers} teachers' votes with noise of {sigma} votes need {bits} bits, more than "
            f"{_MOST_BITS}: use less noise."
        )
    return bits


@dataclass(frozen=True)
class Sharing:
    """Parameters of the sharing of a party's votes.

    Attributes:
        bits: Bits of a mask: k modulo 2^k, u for integers.
        whole: Whether shares are integers; else they are numbers modulo 2^bits.
        largest: Largest value of a share.
    """

    bits: int
    whole: bool
    largest: int

    @property
    def kind(self) -> np.dtype:
        """The type of a share."""
        return share_type(self.largest.bit_length())

    @property
    def kind_of_sums(self) -> np.dtype:
        """The type of sums of shares."""
        return np.dtype("<u8" if self.whole or self.bits > _MOST_BITS else "<u4")

    def in_field(self, shares: ShareArray, *, second: bool) -> Numbers:
        """Return one side's shares of votes as elements of F (`field`), which sum to the votes over both sides.

        Args:
            shares: Shares as sent, of type `kind`.
            second: Whether these are the student party's shares instead of the guardian's.
        """
        return subtract(reduced(shares), np.full_like(shares, 2**self.bits)) if second else reduced(shares)

    def split(self, values: NDArray[np.integer]) -> tuple[ShareArray, ShareArray]:
        """Return the guardian's and the student party's shares of `values`."""
        return split_whole(values, self.bits) if self.whole else split(values, self.bits)


def sharing_of(agreement: Agreement) -> Sharing:
    """Return the sharing of an agreement: of votes as integers, or of sums modulo 2^64.

    Raises:
        SettingError: Shares would be too wide.
    """
    if agreement.reveal == "sums":
        return Sharing(_SUM_BITS, False, 2**_SUM_BITS - 1)
    if agreement.threshold is not None:
        threshold_bits(agreement)
    bits = _mask_bits(agreement.queries)
    return Sharing(bits, True, 2**bits + agreement.total)


def threshold_bits(agreement: Agreement) -> int:
    """Return w, the bits of the compared numbers, which hold the sum of all parties' shares and one number above it.

    Raises:
        SettingError: The number of bits is above 63.
    """
    parties, bits = len(agreement.teachers), _mask_bits(agreement.queries)
    largest = parties * (2**bits + agreement.total)
    if largest + 2 * int(_FARTHEST) >= 2**63:
        raise SettingError(
            f"Shares of {parties} parties that hide {agreement.queries:,} queries do not fit 63 bits: with a "
            f"threshold, at most {2**21 // parties:,} queries are possible. Ask fewer at a time."
        )
    return (largest + 1).bit_length()


def _mask_bits(queries: int) -> int:
    """Return u with 2 · queries / 2^u ≤ 2^-40. A changed vote moves two counts of a query by 1."""
    bits = _HIDDEN_BITS + (2 * queries - 1).bit_length()
    if bits > _MOST_MASK_BITS:
        most = 2 ** (_MOST_MASK_BITS - _HIDDEN_BITS - 1)
        raise SettingError(f"At most {most:,} queries are possible, got {queries:,}. Ask fewer at a time.")
    return bits


def share_type(bits: int) -> np.dtype:
    """Return the smallest unsigned type that holds a share of `bits` bits."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")


def random_shares(shape: tuple[int, ...], bits: int) -> NDArray[np.unsignedinteger]:
    """Return uniform numbers below 2^bits from the operating system's entropy, of `share_type`."""
    kind = share_type(bits)
    drawn = np.frombuffer(os.urandom(math.prod(shape) * kind.itemsize), kind).reshape(shape)
    shares: NDArray[np.unsignedinteger] = drawn & kind.type(2**bits - 1)
    return shares


def split(values: NDArray[np.integer], bits: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
    """Return two arrays of `share_type` that sum to `values` modulo 2^bits."""
    one = random_shares(values.shape, bits)
    return one, modulo(values.astype("<u8") - one.astype("<u8"), bits).astype(one.dtype)


def split_whole(values: NDArray[np.integer], bits: int) -> tuple[ShareArray, ShareArray]:
    """Return two arrays of integers that sum to `values` + 2^bits, the first one uniform below 2^bits."""
    one = random_shares(values.shape, bits).astype("<u8")
    return one, values.astype("<u8") + np.uint64(2**bits) - one


def modulo(values: ArrayLike, bits: int) -> ShareArray:
    """Return integers modulo 2^bits, as 32-bit numbers, or 64-bit numbers if necessary."""
    reduced: NDArray[np.uint64] = np.asarray(values).astype("<u8") & np.uint64(2**bits - 1)
    return reduced if bits > _MOST_BITS else reduced.astype("<u4")


def signed(shares: ArrayLike, bits: int) -> NDArray[np.int64]:
    """Return numbers modulo 2^bits as signed numbers in [−2^(bits−1), 2^(bits−1))."""
    unused = 64 - bits
    numbers: NDArray[np.int64] = (np.asarray(shares).astype("<u8") << np.uint64(unused)).view(np.int64) >> unused
    return numbers


def whole_votes(noise: ArrayLike) -> NDArray[np.int64]:
    """Return noise rounded to whole votes, ⌊η + ½⌋, which commutes with adding votes. Integers stay unchanged."""
    if np.asarray(noise).dtype.kind == "i":
        return np.asarray(noise, dtype=np.int64)
    return np.floor(np.asarray(noise, dtype=np.float64) + 0.5).astype(np.int64)


def whole_thresholds(threshold: float, noise: ArrayLike) -> NDArray[np.int64]:
    """Return the integer t for which n ≥ t is equivalent to n + η ≥ T, for every integer n: ⌈T − η⌉, never clipped.

    The comparison is the one of the plaintext mechanism, n + η ≥ T in double precision: a function of the exact n + η,
    which rises with n. T − η may have to be rounded, so the neighbours of ⌈T − η⌉ are tried as well.

    Args:
        threshold: Threshold T, in votes.
        noise: Noise η of each query, in votes. Beyond 2^51 votes, which noise does not reach, it counts as 2^51.
    """
    eta = np.clip(np.asarray(noise, dtype=np.float64), -_FARTHEST / 2, _FARTHEST / 2)
    first = np.ceil(threshold - eta).astype(np.int64)
    first -= (first - 1) + eta >= threshold
    first += first + eta < threshold
    return first


def bits_of(shares: ShareArray, bits: int) -> NDArray[np.uint8]:
    """Return the lowest bits of shares [queries, classes] as a circuit's input: uint8 [classes · bits, queries].

    A class's lowest bit comes first.
    """
    kind = np.dtype("<u8" if bits > 32 else "<u4")
    columns = shares.T.astype(kind)
    spread = (columns[:, None, :] >> np.arange(bits, dtype=kind)[None, :, None]) & kind.type(1)
    return spread.astype(np.uint8).reshape(shares.shape[1] * bits, len(shares))
