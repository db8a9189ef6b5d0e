"""A point near the mode, for the centre of control variates and for starts: L-BFGS on growing shares of the data.

Deterministic, and in coordinates of unit Fisher information, so that the units of the columns do not matter. Most of
the way is gone on a subset of the rows (their likelihood scaled up); the last stage uses all rows, in chunks, for a few
passes. It need not converge: a centre within a posterior sd or so of the mode
is enough for control variates to remove most of the gradient's noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from fokker.errors import InputError
from fokker.run.gradients import likelihood_gradient, prior_gradient, row_gradients, rows, take

if TYPE_CHECKING:
    from fokker.target import Target

CHUNK = 10_000
STAGES = ((0.01, 60), (0.1, 30), (1.0, 30))  # share of the rows (at least 10,000), iterations


def find_mode(target: Target, init: Any) -> Any:
    """A pytree like ``init`` near a local maximum of the log density; InputError if it is not finite on the way."""
    vector, unravel = ravel_pytree(init)
    flat = target.ravelled(unravel)
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
