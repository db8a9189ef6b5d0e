"""Which rows make the minibatch of an iteration: a function of (seed, chain, iteration) alone.

Rows lie in a random order; a batch is a contiguous cyclic window of them. Data that are cut into few windows lie in
several orders, one after the other, so that the law of the batches does not hang on one. Where there are many, some are
read one after the other before the next jump (docs/adr/0003-batches.md).
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
RUN = 8  # windows between two jumps, at most: what memory reads ahead pays by then
RUNS = 200  # that do not overlap, for the noise of their sums to be that of random batches to 10 %
COPY = 2  # counter of the draw that chooses an order, beside 0 for the offset and 1 for the stride


@dataclass(frozen=True)
class Batches:
    """Windows of ``batch_size`` out of ``size`` rows.

    ``"epochs"``: within an epoch of ``per_epoch`` batches no row comes twice; offset and stride are drawn anew every
    epoch. ``"independent"``: windows start at fresh uniform rows. Either way each row is in the batch of an iteration
    with probability batch_size / size exactly. copies: orders of the rows that lie in memory; an epoch, or an
    independent batch, is of one of them at random. run: windows that follow each other in memory, too; the stride is
    between runs, and an independent start is that of a run.
    """

    size: int
    batch_size: int
    seed: int
    order: Order = "epochs"
    copies: int = 1
    run: int = 1

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
        """With as many orders of the rows as make WINDOWS windows, and fit; runs as long as leave RUNS of them."""
        wanted = 1 if batch_size == size else -(-WINDOWS * batch_size // size)
        fitting = MAX_BYTES // max(1, size * row_bytes)
        run = size // batch_size // RUNS
        return cls(size, batch_size, seed, order, max(1, min(wanted, fitting)), max(1, min(run, RUN)))

    @property
    def runs(self) -> int:
        """Of an epoch."""
        return self.size // self.batch_size // self.run

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch: whole runs."""
        return self.runs * self.run

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
        t = np.arange(first, first + count, dtype=np.int64)
        if self.order == "independent":
            begun, position = np.divmod(t, self.run)
            start = (random.integers(key, begun, np.zeros_like(t), self.size) + position * self.batch_size) % self.size
            return (start + length * self._copy(key, begun)).astype(np.int32)
        epochs = np.arange(first // self.per_epoch, (first + count - 1) // self.per_epoch + 1, dtype=np.int64)
        offset = random.integers(key, epochs, np.zeros_like(epochs), self.size)
        stride = random.integers(key, epochs, np.ones_like(epochs), self.runs)
        coprime = np.array([_coprime_from(int(s), self.runs) for s in stride], dtype=np.int64)
        start = _windows(first, count, offset, coprime, self.size, self.batch_size, self.runs, self.run)
        if self.copies == 1:
            return start
        epoch = t // self.per_epoch - epochs[0]
        return (start + length * self._copy(key, epochs)[epoch]).astype(np.int32)

    def _copy(self, key: np.ndarray, counter: np.ndarray) -> Any:
        """Which order of the rows, of epochs or iterations."""
        return 0 if self.copies == 1 else random.integers(key, counter, np.full_like(counter, COPY), self.copies)


@njit
def _windows(first, count, offset, stride, size, batch_size, runs, run):
    """First rows of the windows of ``count`` iterations; offset, stride: of the epochs that they touch."""
    out = np.empty(count, np.int32)
    epoch, in_epoch = 0, first % (runs * run)
    position, in_run = in_epoch // run, in_epoch % run
    turn = stride[0] * position % runs
    for i in range(count):
        start = offset[epoch] + batch_size * (run * turn + in_run)
        out[i] = start - size if start >= size else start
        in_run += 1
        if in_run == run:
            position, in_run = position + 1, 0
            turn += stride[epoch]
            if turn >= runs:
                turn -= runs
        if position == runs:
            epoch, position, turn = epoch + 1, 0, 0
    return out


def _coprime_from(start: int, modulus: int) -> int:
    """The first number from ``start`` on, cyclically, that is coprime to ``modulus``."""
    candidate = start % modulus
    while math.gcd(candidate, modulus) != 1:
        candidate = (candidate + 1) % modulus
    return candidate
