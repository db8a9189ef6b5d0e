"""Which rows make the minibatch of an iteration: a function of (seed, chain, iteration) alone.

Rows lie in a random order; a batch is a contiguous cyclic window of them (docs/adr/0003-batches.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fokker.errors import InputError
from fokker.numeric import random

Order = Literal["epochs", "independent"]


@dataclass(frozen=True)
class Batches:
    """Windows of ``batch_size`` out of ``size`` rows.

    ``"epochs"``: within an epoch of size // batch_size batches no row comes twice; offset and stride are drawn anew
    every epoch. ``"independent"``: every window starts at a fresh uniform row. Either way each row is in the batch of
    an iteration with probability batch_size / size exactly.
    """

    size: int
    batch_size: int
    seed: int
    order: Order = "epochs"

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.size:
            raise InputError(
                f"batch_size must be between 1 and the number of rows, got batch_size={self.batch_size} "
                f"for {self.size} rows."
            )
        if self.order not in ("epochs", "independent"):
            raise InputError(f"batches must be 'epochs' or 'independent', got {self.order!r}.")

    def row_order(self) -> np.ndarray:
        """The order of the rows in the resident copy: a permutation, int64 (size,)."""
        return random.permutation(random.chain_words(self.seed, 0, random.SHUFFLE), self.size)

    def starts(self, chain: int, first: int, count: int) -> np.ndarray:
        """First row of the windows of iterations first .. first + count - 1 of a chain: int32 (count,)."""
        key = random.chain_words(self.seed, chain, random.BATCHES)
        t = np.arange(first, first + count, dtype=np.int64)
        if self.order == "independent":
            return random.integers(key, t, np.zeros_like(t), self.size).astype(np.int32)
        per_epoch = self.size // self.batch_size
        epoch = t // per_epoch  # quotients by one number are many times as fast as remainders
        position = t - epoch * per_epoch
        epochs = np.arange(epoch[0], epoch[-1] + 1, dtype=np.int64)
        offset = random.integers(key, epochs, np.zeros_like(epochs), self.size)
        stride = random.integers(key, epochs, np.ones_like(epochs), per_epoch)
        coprime = np.array([_coprime_from(int(s), per_epoch) for s in stride], dtype=np.int64)
        epoch -= epochs[0]
        turn = coprime[epoch] * position
        start = offset[epoch] + self.batch_size * (turn - turn // per_epoch * per_epoch)
        return (start - self.size * (start >= self.size)).astype(np.int32)


def _coprime_from(start: int, modulus: int) -> int:
    """The first number from ``start`` on, cyclically, that is coprime to ``modulus``."""
    candidate = start % modulus
    while math.gcd(candidate, modulus) != 1:
        candidate = (candidate + 1) % modulus
    return candidate
