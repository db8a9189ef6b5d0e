"""The covariance V of a minibatch's gradient near the mode, from the rows' own gradients, in float64.

A batch of n of N rows has V = N^2 / n (1 - n / N) times the covariance of the rows' gradients; control variates and
SVRG that of the rows' differences to a centre. V is averaged over a few draws of the quadratic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.run.gradients import _nystrom, _sketch, control_variates, row_gradients, rows, svrg
from fokker.run.local_shape import CHUNK, Shape, spread

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.target import Target

POINTS = 16  # draws of the quadratic at which the noise is measured
ENTRIES = 2e7  # numbers that the rows' gradients may take


@dataclass(frozen=True)
class Noise:
    """V = factor^T factor (d, d), and what of it the kernel takes off its own noise."""

    factor: np.ndarray  # (m, d)
    centred: bool  # of control variates
    known: str  # form of the estimate V^ that is compensated: "none", "scalar", "diagonal", "dense", "low_rank"
    rank: int
    doubt: float  # relative error of the covariance of rows as that of windows of rows, in a direction

    def along(self, vectors: np.ndarray) -> np.ndarray:
        """v^T V v for every column of (d, k)."""
        return ((self.factor @ vectors) ** 2).sum(0)

    def compensated_along(self, vectors: np.ndarray) -> np.ndarray:
        """v^T V^ v for every column."""
        if self.known == "scalar":
            return (self.factor**2).sum() / self.factor.shape[1] * (vectors**2).sum(0)
        if self.known == "diagonal":
            return (self.factor**2).sum(0) @ vectors**2
        if self.known == "dense":
            return self.along(vectors)
        if self.known == "low_rank":
            return self._low_rank_along(vectors)
        return np.zeros(vectors.shape[1])

    def _low_rank_along(self, vectors: np.ndarray) -> np.ndarray:
        d = self.factor.shape[1]
        with jax.enable_x64(True):
            omega = np.asarray(_sketch(d, min(self.rank, d), np.float64))
            F = np.asarray(_nystrom(self.factor.T @ (self.factor @ omega)))
        return ((F.T @ vectors) ** 2).sum(0)


def measure_noise(plan: Plan, shape: Shape) -> Noise:
    """The noise of the plan's own gradient. A centre of SVRG is about as far away as two draws are from each other."""
    target, gradient = plan.target, plan.gradient
    if target.log_likelihood is None or plan.batch_size is None:
        return Noise(np.zeros((1, shape.size)), False, "none", 1, 0.0)
    points = shape.draws(2 * POINTS, plan.seed)
    centres = None
    if isinstance(gradient, control_variates):
        assert gradient.centre is not None
        centres = np.tile(np.asarray(gradient.centre, np.float64), (POINTS, 1))
    elif isinstance(gradient, svrg):
        centres = points[POINTS:]
    # rows in memory are cut into runs of windows once and for all: what a chain sees of their noise rests on so many
    runs = np.inf if plan.batches is None else plan.batches.copies * plan.batches.runs
    doubt = float(np.sqrt(2 / runs))
    factor = gathered(plan, points[:POINTS], centres)
    return Noise(factor, centres is not None, gradient.noise, getattr(gradient, "rank", 1), doubt)


def noise_at_mode(plan: Plan, shape: Shape) -> Noise:
    """The noise that control variates centred at the mode would have."""
    points = shape.draws(2 * POINTS, plan.seed)[:POINTS]
    return Noise(gathered(plan, points, np.tile(shape.mode, (POINTS, 1))), True, "none", 1, 0.0)


def gathered(
    plan: Plan,
    points: np.ndarray,
    centres: np.ndarray | None,
    seen_as: Callable[[int, np.ndarray], np.ndarray] = lambda i, each: each,
) -> np.ndarray:
    """A factor of V; seen_as(i, gradients (rows, d) at point i): these in the coordinates that V is wanted in."""
    N, n = rows(plan.target), plan.batch_size
    assert n is not None
    each = _row_noise(plan.target, points, centres, seen_as)
    d = each.shape[1]
    factor = each * (N * np.sqrt((1 - n / N) / n / len(each)))
    if len(factor) > 4 * d and d <= 2000:  # the same V from fewer rows
        return np.asarray(np.linalg.qr(factor, mode="r"))
    return factor


def _row_noise(
    target: Target, points: np.ndarray, centres: np.ndarray | None, seen_as: Callable[[int, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Per-row gradients, less those at the centres where given, and less their mean: (points * rows, d)."""

    @jax.jit
    def one(theta: Any, centre: Any, batch: Any) -> Any:
        g = row_gradients(target, theta, batch)
        return g if centre is None else g - row_gradients(target, centre, batch)

    few = max(500, int(min(CHUNK, ENTRIES / points.size)))
    out = []
    for i, theta in enumerate(points):
        centre = None if centres is None else jnp.asarray(centres[i])
        each = np.concatenate([np.asarray(one(jnp.asarray(theta), centre, batch)) for batch in spread(target, few)])
        out.append(seen_as(i, each - each.mean(0)))
    return np.concatenate(out)
