"""Which rows make the minibatch of an iteration: a function of (seed, chain, iteration) alone.

Rows lie in a random order; a batch is a contiguous cyclic window of them. Data that are cut into few windows lie in
several orders, one after the other, so that the law of the batches does not hang on one (docs/adr/0003-batches.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from fokker.errors import InputError
from fokker.numeric import random

Order = Literal["epochs", "independent"]
WINDOWS = 400  # that do not overlap, for the covariance of their gradients to be that of random batches to 7 %
MAX_BYTES = 1 << 24  # of all orders of the rows together, where there are several: within the last level of cache
COPY = 2  # counter of the draw that chooses an order, beside 0 for the offset and 1 for the stride


@dataclass(frozen=True)
class Batches:
    """Windows of ``batch_size`` out of ``size`` rows.

    ``"epochs"``: within an epoch of size // batch_size batches no row comes twice; offset and stride are drawn anew
    every epoch. ``"independent"``: every window starts at a fresh uniform row. Either way each row is in the batch of
    an iteration with probability batch_size / size exactly. copies: orders of the rows that lie in memory; an epoch, or
    an independent batch, is of one of them at random.
    """

    size: int
    batch_size: int
    seed: int
    order: Order = "epochs"
    copies: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.size:
            raise InputError(
                f"batch_size must be between 1 and the number of rows, got batch_size={self.batch_size} "
                f"for {self.size} rows."
            )
        if self.order not in ("epochs", "independent"):
            raise InputError(f"batches must be 'epochs' or 'independent', got {self.order!r}.")

    @classmethod
    def of(cls, size: int, batch_size: int, row_bytes: int, seed: int, order: Order) -> Batches:
        """With as many orders of the rows as make WINDOWS windows, and fit."""
        wanted = 1 if batch_size == size else -(-WINDOWS * batch_size // size)
        fitting = MAX_BYTES // max(1, size * row_bytes)
        return cls(size, batch_size, seed, order, max(1, min(wanted, fitting)))

    def row_orders(self) -> np.ndarray:
        """Permutations of the rows, int64 (copies, size)."""
        words = [random.chain_words(self.seed, copy, random.SHUFFLE) for copy in range(self.copies)]
        return np.stack([random.permutation(key, self.size) for key in words])

    def resident_rows(self) -> np.ndarray:
        """Which rows lie in memory: every order, with its first rows once more at its end; int64."""
        orders = self.row_orders()
        return np.concatenate([orders, orders[:, : self.batch_size - 1]], axis=1).ravel()

    def starts(self, chain: int, first: int, count: int) -> np.ndarray:
        """Where the windows of iterations first .. first + count - 1 of a chain begin in memory: int32 (count,)."""
        key = random.chain_words(self.seed, chain, random.BATCHES)
        length = self.size + self.batch_size - 1  # of an order in memory
        if self.order == "independent":
            t = np.arange(first, first + count, dtype=np.int64)
            start = random.integers(key, t, np.zeros_like(t), self.size)
            return (start + length * self._copy(key, t)).astype(np.int32)
        per_epoch = self.size // self.batch_size
        epochs = np.arange(first // per_epoch, (first + count - 1) // per_epoch + 1, dtype=np.int64)
        offset = random.integers(key, epochs, np.zeros_like(epochs), self.size)
        stride = random.integers(key, epochs, np.ones_like(epochs), per_epoch)
        coprime = np.array([_coprime_from(int(s), per_epoch) for s in stride], dtype=np.int64)
        start = _windows(first, count, offset, coprime, self.size, self.batch_size)
        if self.copies == 1:
            return start
        epoch = np.arange(first, first + count) // per_epoch - epochs[0]
        return (start + length * self._copy(key, epochs)[epoch]).astype(np.int32)

    def _copy(self, key: np.ndarray, counter: np.ndarray) -> Any:
        """Which order of the rows, of epochs or iterations."""
        return 0 if self.copies == 1 else random.integers(key, counter, np.full_like(counter, COPY), self.copies)


@njit
def _windows(first, count, offset, stride, size, batch_size):
    """First rows of the windows of ``count`` iterations; offset, stride: of the epochs that they touch."""
    per_epoch = size // batch_size
    out = np.empty(count, np.int32)
    epoch, position = 0, first % per_epoch
    turn = stride[0] * position % per_epoch
    for i in range(count):
        start = offset[epoch] + batch_size * turn
        out[i] = start - size if start >= size else start
        position += 1
        turn += stride[epoch]
        if turn >= per_epoch:
            turn -= per_epoch
        if position == per_epoch:
            epoch, position, turn = epoch + 1, 0, 0
    return out


def _coprime_from(start: int, modulus: int) -> int:
    """The first number from ``start`` on, cyclically, that is coprime to ``modulus``."""
    candidate = start % modulus
    while math.gcd(candidate, modulus) != 1:
        candidate = (candidate + 1) % modulus
    return candidate
