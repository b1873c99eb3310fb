"""Circuits for tests: random ones, and AES-128 (put together here, since none can be downloaded)."""

import numpy as np

from terrine.collaboration.circuits.circuit import AND, NOT, ONE, XOR, ZERO, Builder, Circuit, Word


def random_circuit(seed: int, gates: int, inputs: tuple[int, ...] = (5, 6)) -> Circuit:
    """Return random gates between random wires, including unused wires and wires that one gate reads twice."""
    rng = np.random.default_rng(seed)
    width = sum(inputs)
    left, right = (
        np.array([rng.integers(max(0, width + gate - 60), width + gate) for gate in range(gates)], np.int32)
        for _ in range(2)
    )
    kinds = rng.choice([XOR, AND, NOT], gates, p=[0.4, 0.4, 0.2]).astype(np.uint8)
    right[kinds == NOT] = left[kinds == NOT]
    outputs = rng.integers(0, width + gates, 9).astype(np.int32)
    outputs[-2:] = 0, width + gates - 1
    return Circuit(inputs, kinds, left, right, outputs, widths=(4, 5))


def bits_of_bytes(data: bytes) -> np.ndarray:
    """Bits [8 · bytes], the lowest of each byte first."""
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")


def bytes_of_bits(bits: np.ndarray) -> bytes:
    """The inverse of `bits_of_bytes`."""
    return np.packbits(np.asarray(bits, np.uint8), bitorder="little").tobytes()


def _constant(value: int, width: int) -> Word:
    return [ONE if value >> place & 1 else ZERO for place in range(width)]


def _times(a: int, b: int) -> int:
    product = 0
    for place in range(8):
        product ^= (a << place) * (b >> place & 1)
    for place in range(14, 7, -1):
        product ^= (0x11B << (place - 8)) * (product >> place & 1)
    return product


def aes128() -> Circuit:
    """AES-128: key and block in, 16 bytes each; a block out (FIPS 197)."""
    builder = Builder(128, 128)

    def xor(a: Word, b: Word) -> Word:
        return [builder.xor(x, y) for x, y in zip(a, b, strict=True)]

    def linear(images: list[int], word: Word) -> Word:
        out = [ZERO] * 8
        for image, wire in zip(images, word, strict=True):
            for place in range(8):
                if image >> place & 1:
                    out[place] = builder.xor(out[place], wire)
        return out

    def power(word: Word, times: int) -> Word:  # squaring is linear
        for _ in range(times):
            word = linear([_times(1 << place, 1 << place) for place in range(8)], word)
        return word

    def times(a: Word, b: Word) -> Word:
        product = [ZERO] * 15
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                product[i + j] = builder.xor(product[i + j], builder.conjunction(x, y))
        for place in range(14, 7, -1):  # x^8 is x^4 + x^3 + x + 1
            for lower in (8, 7, 5, 4):
                product[place - lower] = builder.xor(product[place - lower], product[place])
        return product[:8]

    def substituted(word: Word) -> Word:  # x^254, then the affine map
        cube = times(power(word, 1), word)
        twelve = power(cube, 2)
        inverse = times(times(power(times(twelve, cube), 4), twelve), power(word, 1))
        affine = [sum(1 << (place + turn) % 8 for turn in range(5)) for place in range(8)]
        return xor(linear(affine, inverse), _constant(0x63, 8))

    def doubled(word: Word) -> Word:
        return linear([_times(2, 1 << place) for place in range(8)], word)

    key, block = ([word[8 * place : 8 * place + 8] for place in range(16)] for word in builder.inputs)
    state, constant = [xor(a, b) for a, b in zip(block, key, strict=True)], 1
    for turn in range(1, 11):
        tail = [substituted(key[place]) for place in (13, 14, 15, 12)]
        tail[0] = xor(tail[0], _constant(constant, 8))
        constant = _times(2, constant)
        new: list[Word] = []
        for place in range(16):
            new.append(xor(key[place], tail[place] if place < 4 else new[place - 4]))
        key = new
        state = [substituted(byte) for byte in state]
        state = [state[(place + 4 * (place % 4)) % 16] for place in range(16)]
        if turn < 10:
            mixed = []
            for column in range(0, 16, 4):
                bytes_ = state[column : column + 4]
                for row in range(4):
                    a, b, c, d = (bytes_[(row + turn_) % 4] for turn_ in range(4))
                    mixed.append(xor(xor(doubled(xor(a, b)), b), xor(c, d)))
            state = mixed
        state = [xor(a, b) for a, b in zip(state, key, strict=True)]
    return builder.finish([wire for byte in state for wire in byte])
