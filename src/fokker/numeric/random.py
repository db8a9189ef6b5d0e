"""Counter-based random numbers on the host: the generator of ``random_jax`` in Numba, with the same bits.

Chain words are made here from a seed: ``chain_words(seed, chain, purpose)``. The purpose keeps the numbers of the
sampler, of the batches and of the tuner apart.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

SAMPLER, BATCHES, SHUFFLE, INIT, TUNE, AUDIT = range(6)  # purposes


@njit(inline="always")
def _rotate(x, turn):
    return uint32((uint32(x) << uint32(turn)) | (uint32(x) >> uint32(32 - turn)))


@njit
def threefry2x32(k0, k1, x0, x1, rounds=13):
    """Two 32-bit words from a 64-bit key and a 64-bit counter (scalars)."""
    k0, k1, x0, x1 = uint32(k0), uint32(k1), uint32(x0), uint32(x1)
    k2 = uint32(k0 ^ k1 ^ uint32(0x1BD11BDA))
    x0, x1 = uint32(x0 + k0), uint32(x1 + k1)
    turns = (13, 15, 26, 6, 17, 29, 16, 24)
    for i in range(rounds):
        x0 = uint32(x0 + x1)
        x1 = uint32(_rotate(x1, turns[i % 8]) ^ x0)
        if i % 4 == 3:
            j = i // 4 + 1
            a = k0 if j % 3 == 0 else (k1 if j % 3 == 1 else k2)
            b = k0 if (j + 1) % 3 == 0 else (k1 if (j + 1) % 3 == 1 else k2)
            x0, x1 = uint32(x0 + a), uint32(x1 + b + uint32(j))
    return x0, x1


def chain_words(seed: int, chain: int, purpose: int = SAMPLER) -> np.ndarray:
    """The two words, (2,) uint32, that key everything one chain draws for one purpose."""
    seed = int(seed) & 0xFFFFFFFFFFFFFFFF
    return np.array(threefry2x32(seed & 0xFFFFFFFF, seed >> 32, chain, purpose, 20), dtype=np.uint32)


@njit
def words(key, counter0, counter1):
    """First output word for pairs of counters; key: (2,), counter0, counter1: (n,) -> (n,) uint32."""
    out = np.empty(counter0.size, np.uint32)
    for i in range(counter0.size):
        out[i] = threefry2x32(key[0], key[1], counter0[i], counter1[i])[0]
    return out


@njit
def integers(key, counter0, counter1, bound):
    """Integers in [0, bound) for pairs of counters, bound <= 2^32: 64 bits scaled down, bias below bound / 2^64."""
    out = np.empty(counter0.size, np.int64)
    for i in range(counter0.size):
        a, b = threefry2x32(key[0], key[1], counter0[i], counter1[i])
        high, low = uint64(a) * uint64(bound), (uint64(b) * uint64(bound)) >> uint64(32)
        out[i] = np.int64((high + low) >> uint64(32))
    return out


@njit
def uniforms(key, iteration, stream, size):
    """float32 uniforms in (0, 1], (size,): the same values as ``random_jax.uniform``."""
    out = np.empty(size, np.float32)
    for i in range(size):
        a = threefry2x32(key[0], key[1], iteration, (stream << 28) | i)[0]
        out[i] = np.float32(np.float32(a) * np.float32(2.0**-32)) + np.float32(2.0**-33)
    return out


def permutation(key: np.ndarray, size: int) -> np.ndarray:
    """A random order of range(size): int64 (size,), the ranks of keyed 64-bit numbers."""
    index = np.arange(size, dtype=np.int64)
    a, b = words(key, index, np.zeros_like(index)), words(key, index, np.ones_like(index))
    return np.argsort(a.astype(np.uint64) << np.uint64(32) | b.astype(np.uint64), kind="stable")
