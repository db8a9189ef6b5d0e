"""Short runs that check what the quadratic around the mode cannot know.

By partial integration, for every potential U that grows, any point m and every coordinate c,

    E (theta - m)_c (H^-1 grad U(theta))_c = (H^-1)_cc ,

so the average of the left side over a chain's draws, divided by the right side, is the error of the chain's own
variance as U has it, without knowing the truth: for a quadratic U it is Var(theta_c) / (H^-1)_cc.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fokker.run.local_shape import Shape, remainder
from fokker.run.loop import Chains, _Diverged, _Uncompensated
from fokker.run.tangent_shape import Tangent, sd_error_on, starts_on, step_at_edges
from fokker.sgmcmc.schedules import constant

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.run.search import Settings

CHAINS, MOST_STEPS = 4, 60_000
ENTRIES = 2e7  # numbers that the draws of a pilot may take
TIMES = 1500  # autocorrelation times that a chain should see
POINTS, POINTS_MATRIX_FREE = 1000, 50  # draws at which the gradient is looked at
ROWS = 5000  # of which it is taken there
EDGES = 0.8  # factor of the step below which an edge asks for another one
STREAM = 0x70696C6F  # tells the pilots' random numbers from those of the run


@dataclass(frozen=True)
class Pilot:
    """What a pilot found."""

    step_size: float
    steps: int  # of a chain
    sd_error: float | None  # relative, of the coordinate where it is worst; None: a chain left every bound
    standard_error: float  # of that
    doubt: float  # the largest error that chance makes of so many coordinates
    edge: float = 1.0  # factor of the step with which no chain is thrown away at an edge of its space
    erratic: bool = False  # a few draws with huge gradients decide all: the step is too large near an edge

    def refutes(self, allowed: float) -> bool:
        """Whether the step is not to be used."""
        return self.erratic or self.edge < EDGES or self.off(allowed)

    def off(self, allowed: float) -> bool:
        """Whether the sd is off by more than is allowed, beyond chance."""
        return self.sd_error is None or self.sd_error - self.doubt > allowed


def run_pilot(tuned: Plan, shape: Shape, settings: Settings, near: Tangent | None = None) -> Pilot:
    """Chains with the tuned kernel, of other seeds than the run, as long as needed but no longer than half the run.

    near: where the posterior is on a manifold; ``shape`` is then that of its tangent space.
    """
    kernel: Any = dataclasses.replace(tuned.kernel, schedule=constant())  # type: ignore[type-var]
    half = max(1000, (tuned.warmup + tuned.draws * tuned.thin) // 2)
    length = int(np.clip(TIMES * settings.steps, 1000, min(MOST_STEPS, half)))
    count = min(length, int(np.clip(ENTRIES / (CHAINS * shape.size), 500, 2000)))
    thin = length // count
    seed = (tuned.seed ^ STREAM) & 0x7FFFFFFF
    batches = None if tuned.batches is None else dataclasses.replace(tuned.batches, seed=seed)
    starts = starts_near(tuned, shape, CHAINS, seed) if near is None else starts_on(tuned, near, CHAINS, seed)
    plan = dataclasses.replace(
        tuned, kernel=kernel, starts=starts, draws=count, warmup=0, thin=thin,
        seed=seed, batches=batches, share_batches=False,
    )  # fmt: skip
    positions = _positions(plan, int(min(5 * settings.slowest, length)))
    error, spread, erratic, edge = None, 0.0, False, 1.0
    if positions is not None:
        effective = CHAINS * length / max(settings.steps_square, thin)
        if near is None:
            error, spread = _sd_error(plan, shape, positions, effective)
        else:
            points = POINTS if shape.hessian is not None else POINTS_MATRIX_FREE
            error, spread, erratic = sd_error_on(plan, near, positions, effective, points, ROWS)
            edge = 1.0 if error is None else step_at_edges(tuned, near, positions)
    doubt = float(np.sqrt(2 * np.log(2 * shape.size)) * spread)
    return Pilot(kernel.step_size, length, error, spread, doubt, edge, erratic)


def starts_near(plan: Plan, shape: Shape, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draws of the quadratic in the run's precision, nearer to the mode where the density does not reach."""
    prior = jax.jit(plan.target.log_prior)
    starts = []
    for draw in shape.draws(count, seed):
        parts = 0.5 ** np.arange(11)
        points = [(shape.mode + part * (draw - shape.mode)).astype(plan.dtype) for part in parts]
        starts.append(next((p for p in points if np.isfinite(prior(p))), points[-1]))
    return tuple(starts)


def _positions(plan: Plan, skipped: int) -> np.ndarray | None:
    """(chains, draws, d), or None where a chain left every bound."""
    chains = Chains(plan)
    got: list[np.ndarray] = []
    try:
        chains.skip(skipped)
        while (missing := plan.draws - sum(g.shape[1] for g in got)) > 0:
            got.append(chains.draw(missing).positions)
    except (_Diverged, _Uncompensated):
        return None
    finally:
        chains.close()
    return np.concatenate(got, axis=1)


def _sd_error(plan: Plan, shape: Shape, positions: np.ndarray, effective: float) -> tuple[float | None, float]:
    """The worst coordinate's error and its standard error; of all coordinates together where H is no matrix."""
    x = positions.reshape(-1, shape.size).astype(np.float64) - shape.mode
    points = POINTS if shape.hessian is not None else POINTS_MATRIX_FREE
    few = x[:: max(1, len(x) // points)]
    with jax.enable_x64(True):
        inside = np.isfinite([plan.target.log_prior(shape.mode + v) for v in few]).all()
        beyond = remainder(plan.target, shape.mode, shape.mode + few, ROWS)
    if not inside or not np.isfinite(beyond).all():
        return None, 0.0
    if shape.hessian is None:
        linear = np.array([v @ shape.product(v) for v in few])
        ratio = np.array([np.mean(linear + np.sum(few * beyond, axis=1)) / shape.size])
        spread = 1 / np.sqrt(2 * min(effective, len(few)) * shape.size)
    else:
        covariance = shape.covariance()
        ratio = ((x**2).mean(0) + (few * (beyond @ covariance)).mean(0)) / np.diag(covariance)
        spread = 1 / np.sqrt(2 * effective)
    return float(np.abs(np.sqrt(np.maximum(ratio, 0.0)) - 1).max()), float(spread)
