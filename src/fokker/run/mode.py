"""A point near the mode, for the centre of control variates and for starts: L-BFGS on growing shares of the data.

Deterministic, and in coordinates of unit Fisher information, so that the units of the columns do not matter. Most of
the way is gone on a subset of the rows (their likelihood scaled up); the last stage uses all rows, in chunks, for a few
passes. It need not converge: a centre within a posterior sd or so of the mode
is enough for control variates to remove most of the gradient's noise. On a manifold the same descent goes along
geodesics, and what it looks for is the mode of the density on the carrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from fokker.errors import InputError
from fokker.manifolds.euclidean import Euclidean
from fokker.run.carrier import curved_space, on_carrier
from fokker.run.gradients import likelihood_gradient, prior_gradient, row_gradients, rows, take

if TYPE_CHECKING:
    from fokker.manifolds.product import Product
    from fokker.target import Target

CHUNK = 10_000
STAGES = ((0.01, 60), (0.1, 30), (1.0, 30))  # share of the rows (at least 10,000), iterations
MEMORY = 10  # pairs that a descent along geodesics remembers
LONGEST = 1.0  # way of one of its steps on a compact factor, where 3.1 is halfway round


def find_mode(target: Target, init: Any) -> Any:
    """A pytree like ``init`` near a local maximum of the log density; InputError if it is not finite on the way."""
    vector, unravel = ravel_pytree(init)
    space = curved_space(target, init)
    flat = target.ravelled(unravel)
    if space is not None:
        return unravel(jnp.asarray(_mode_on(space, flat, vector), vector.dtype))
    theta = np.asarray(vector, dtype=np.float64)
    size = 0 if flat.log_likelihood is None else rows(flat)
    stages = [(0, 100)] if not size else [(min(size, max(10_000, int(size * share))), n) for share, n in STAGES]
    evaluate = jax.jit(lambda t, batch: _likelihood(flat, t, batch))
    prior = jax.jit(lambda t: (flat.log_prior(t), prior_gradient(flat, t)))
    scale = _scale(flat, theta, vector.dtype)
    for i, (used, iterations) in enumerate(stages):
        if i and used == stages[i - 1][0] and used < size:
            continue

        def potential(u: np.ndarray, used: int = used) -> tuple[float, np.ndarray]:
            x = jnp.asarray(scale * u, vector.dtype)
            value, grad = (np.asarray(v, dtype=np.float64) for v in prior(x))
            for first in range(0, used, CHUNK):
                more, more_grad = evaluate(x, take(flat.data, first, min(first + CHUNK, used)))
                value, grad = (
                    value + float(more) * size / used,
                    grad + np.asarray(more_grad, np.float64) * size / used,
                )
            return -float(value), -scale * grad

        found = minimize(potential, theta / scale, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
        if not np.isfinite(found.x).all() or not np.isfinite(found.fun):
            raise InputError(
                "no mode was found: the log density is not finite along the way from init. Start nearer to the bulk "
                "(init=...), or pass what the mode is needed for: step_size=... to the kernel, or "
                "fokker.control_variates(centre=...)."
            )
        theta = scale * found.x
    return unravel(jnp.asarray(theta, vector.dtype))


# --- on a manifold --------------------------------------------------------------------------------------------------


def _mode_on(space: Product, flat: Target, vector: Any) -> np.ndarray:
    """Parameters (d,) near a mode of exp(-U_H), by stages of rows."""
    target, dtype = on_carrier(flat, space), vector.dtype
    x = np.asarray(space.embed(jnp.asarray(vector)), np.float64)
    size = 0 if flat.log_likelihood is None else rows(flat)
    stages = [(0, 100)] if not size else [(min(size, max(10_000, int(size * share))), n) for share, n in STAGES]
    evaluate = jax.jit(lambda x, batch: _likelihood(target, x, batch))
    prior = jax.jit(lambda x: (target.log_prior(x), prior_gradient(target, x)))
    scale, moves = by_factor(space, _scale(target, x, dtype)), Moves.of(space, dtype)
    for i, (used, iterations) in enumerate(stages):
        if i and used == stages[i - 1][0] and used < size:
            continue

        def potential(x: np.ndarray, used: int = used) -> tuple[float, np.ndarray]:
            at = jnp.asarray(x, dtype)
            value, grad = (np.asarray(v, np.float64) for v in prior(at))
            for first in range(0, used, CHUNK):
                more, more_grad = evaluate(at, take(flat.data, first, min(first + CHUNK, used)))
                value, grad = value + float(more) * size / used, grad + np.asarray(more_grad, float) * size / used
            return -float(value), -grad

        x, value = descend(space, potential, x, iterations, scale, moves)
        if not np.isfinite(x).all() or not np.isfinite(value):
            raise InputError(
                "no mode was found: the log density is not finite along the way from init. Start nearer to the bulk "
                "(init=...), or pass what the mode is needed for: step_size=... to the kernel, or "
                "fokker.control_variates(centre=...)."
            )
    return np.asarray(space.value(jnp.asarray(x, dtype)))


def by_factor(space: Product, scale: np.ndarray) -> np.ndarray:
    """Scales of entries (n,), one for all of a factor that is not flat: other metrics have no geodesics here."""
    out = scale.copy()
    for f, bent in zip(space.factors, _compact(space), strict=True):
        if bent:
            part = slice(f.first_point, f.last_point)
            out[part] = np.exp(np.log(scale[part]).mean())
    return out


class Moves(NamedTuple):
    """What a descent does on a space, compiled once."""

    tangent: Callable[[np.ndarray, np.ndarray], np.ndarray]  # point, vector in R^n
    flow: Callable[[np.ndarray, np.ndarray], np.ndarray]  # point, velocity: where it is at time 1

    @classmethod
    def of(cls, space: Product, dtype: Any) -> Moves:
        project, flow = jax.jit(space.project), jax.jit(lambda x, v: space.retract(*space.flow(x, v, 1.0))[0])
        both = lambda f: lambda x, u: np.asarray(f(jnp.asarray(x, dtype), jnp.asarray(u, dtype)), np.float64)
        return cls(both(project), both(flow))


def descend(
    space: Product,
    potential: Callable[[np.ndarray], tuple[float, np.ndarray]],
    x: np.ndarray,
    iterations: int,
    scale: np.ndarray,
    moves: Moves,
) -> tuple[np.ndarray, float]:
    """L-BFGS along geodesics from x (n,): the end and U_H there.

    potential(x) gives U_H and its gradient in R^n. Remembered pairs are projected on the tangent space of where the
    descent is. scale: (n,) lengths in which a first step is made. Steps are halved until U_H falls.
    """
    tangent = moves.tangent
    value, ambient = potential(x)
    grad = tangent(x, ambient)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(iterations):
        move = tangent(x, -_two_loops(pairs, grad, scale))
        slope = float(move @ grad)
        if not slope < 0:
            if not pairs:
                break
            pairs = []
            continue
        move = move * min(1.0, LONGEST / max(_longest(space, move), 1e-300))
        slope = float(move @ grad)
        for halving in range(30):
            step = move * 0.5**halving
            trial = moves.flow(x, step)
            lower, ambient = potential(trial)
            if np.isfinite(lower) and lower <= value + 1e-4 * slope * 0.5**halving and np.isfinite(ambient).all():
                break
        else:
            break
        after = tangent(trial, ambient)
        carried = [(tangent(trial, s), tangent(trial, y)) for s, y in [*pairs, (step, after - tangent(trial, grad))]]
        pairs = [(s, y) for s, y in carried if s @ y > 1e-12 * (s @ s) ** 0.5 * (y @ y) ** 0.5][-MEMORY:]
        gain, x, value, grad = value - lower, trial, lower, after
        if gain <= 1e-9 * max(1.0, abs(value)):
            break
    return x, value


def _two_loops(pairs: list[tuple[np.ndarray, np.ndarray]], grad: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """H grad with the inverse Hessian of the remembered pairs."""
    q = grad.copy()
    parts: list[float] = []
    for s, y in reversed(pairs):
        a = (s @ q) / (s @ y)
        q, parts = q - a * y, [*parts, float(a)]
    factor = 1.0 if not pairs else (pairs[-1][0] @ pairs[-1][1]) / ((scale * pairs[-1][1]) @ (scale * pairs[-1][1]))
    q = factor * scale**2 * q
    for (s, y), a in zip(pairs, reversed(parts), strict=True):
        q = q + s * (a - (y @ q) / (s @ y))
    return q


def _longest(space: Product, move: np.ndarray) -> float:
    """The longest way on a factor that is not flat."""
    parts = zip(space.factors, _compact(space), strict=True)
    return max((float(np.linalg.norm(move[f.first_point : f.last_point])) for f, bent in parts if bent), default=0.0)


def _compact(space: Product) -> list[bool]:
    return [not isinstance(f.carrier, Euclidean) for f in space.factors]


# --- of any space ---------------------------------------------------------------------------------------------------


def _scale(target: Target, theta: np.ndarray, dtype: Any) -> np.ndarray:
    """Fisher information^-1/2 of each coordinate at the start, from a few rows, (d,); 1 where no row knows of it."""
    if target.log_likelihood is None:
        return np.ones(theta.size)
    few = min(rows(target), max(10, min(CHUNK, 40_000_000 // theta.size)))
    each = jax.jit(lambda t, batch: (row_gradients(target, t, batch) ** 2).mean(0))
    fisher = rows(target) * np.asarray(each(jnp.asarray(theta, dtype), take(target.data, 0, few)), np.float64)
    usable = np.isfinite(fisher) & (fisher > 0)
    return np.where(usable, 1 / np.sqrt(np.where(usable, fisher, 1.0)), 1.0)


def _likelihood(target: Target, theta: Any, batch: Any) -> tuple[Any, Any]:
    assert target.log_likelihood is not None
    return target.log_likelihood(theta, batch).sum(), likelihood_gradient(target, theta, batch)
