"""SGFS, stochastic gradient Fisher scoring (Ahn, Korattikara & Welling 2012).

    theta+ = theta + P (-grad U~ + Normal(0, 4 B / eps)),    P = 2 (L^ + V^ + 4 B / eps)^-1

L^ estimates the posterior precision, V^ the covariance of the gradient's noise, B is any SPD matrix. On a
Gaussian posterior with L^ and V^ right, exp(-U) is invariant exactly for every eps and B: gradient noise is
not compensated but used, and eps -> infinity leaves it as the only noise. Elsewhere, or with L^ or V^ wrong,
in the limit eps -> 0.

Without ``precision`` L^ = N S, from the same running covariance S of row gradients that gives
V^ = N^2/n (1 - n/N) S: L^ = V^ n / (N - n), which leaves the prior out and holds where the model holds (Fisher
information = curvature). S stands for the row gradients themselves only under the plain minibatch gradient;
with control variates give ``precision``. Departure from print: V^ has the factor 1 - n/N of batches without
replacement. A dense estimate costs a Cholesky factorisation, d^3 / 3, a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.numeric.random_jax import normal
from fokker.run.gradients import batch_rows, minibatch, rows
from fokker.sgmcmc.checks import check_number, check_positive_definite, check_schedule, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import LowRank, as_dense, root, times
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target


class State(NamedTuple):
    position: Any  # pytree of parameters
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # ()
    noise_share: Array  # () gradient noise as a share of all noise, trace V^ / trace(V^ + 4 B / eps); below 1


@dataclass(frozen=True)
class sgfs:
    """Settings of SGFS.

    step_size: eps, which a run does not choose. injected: B, the shape of the added noise. precision: L^, None
    estimates it. Both a number, a (d,) diagonal or a (d, d) matrix in the ravelled order of the parameters.
    schedule: factor of the step by iteration. The gradient must estimate its noise: noise="dense" (Fisher
    scoring proper), "diagonal" or "scalar".
    """

    by_entry: ClassVar[tuple[str, ...]] = ("injected", "precision")  # of shape (), (d,) or (d, d)

    step_size: Any = None
    injected: Any = 1.0
    precision: Any = None
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("injected", self.injected)
        check_positive_definite("precision", self.precision, optional=True)
        check_schedule(self.schedule)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sgfs", self.step_size)
        if target.log_likelihood is not None and gradient.noise not in ("scalar", "diagonal", "dense"):
            raise InputError(
                f'sgfs needs a gradient with noise="dense", "diagonal" or "scalar", got noise={gradient.noise!r}.'
            )
        if self.precision is None and (target.log_likelihood is None or not isinstance(gradient, minibatch)):
            raise InputError(
                "sgfs estimates the posterior precision from row gradients, which needs a target with rows and "
                "gradient=fokker.minibatch(noise=...); else give precision=..."
            )
        grad = gradient.bind(target)
        B = jnp.asarray(self.injected)
        B_root = root(B)

        def precision(noise: Any, batch: Any, dtype: Any) -> Any:
            if self.precision is not None:
                return jnp.asarray(self.precision, dtype)
            n, N = batch_rows(batch), rows(target)
            if n >= N:
                raise InputError(f"sgfs learns the precision from gradient noise; batch_size={n} of {N} rows has none.")
            return noise * (n / (N - n))

        def init(position: Any, key: Any = None) -> State:
            return State(position, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            d, dtype = theta.size, theta.dtype
            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            noise = jnp.zeros((), dtype) if noise is None else noise
            if isinstance(noise, LowRank):
                raise InputError('sgfs needs noise="dense", "diagonal" or "scalar", got "low_rank".')
            added = 4 / eps * B.astype(dtype)
            push = times(jnp.sqrt(4 / eps) * B_root.astype(dtype), normal(key, (d,), 0, dtype))
            push = noise_scale(self.schedule, state.iteration, dtype) * push
            parts = (precision(noise, batch, dtype), noise, added)
            theta = theta + 2 * _solve_sum(parts, push - grad_u)
            share = _trace(noise, d) / (_trace(noise, d) + _trace(added, d))
            return State(unravel(theta), state.iteration + 1, aux), Info(eps, jnp.linalg.norm(grad_u), share)

        return Bound(init, step)


def _solve_sum(parts: tuple[Array, ...], vector: Array) -> Array:
    """(sum of parts)^-1 vector; a dense one makes the sum dense."""
    if all(jnp.ndim(part) < 2 for part in parts):
        return vector / sum(parts)
    total = sum(as_dense(part, vector.size) for part in parts)
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(total), True), vector)


def _trace(matrix: Any, d: int) -> Array:
    return jnp.trace(matrix) if jnp.ndim(matrix) == 2 else jnp.sum(jnp.broadcast_to(matrix, (d,)))
