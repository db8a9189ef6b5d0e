"""RMLD, Riemann-manifold Langevin with a Metropolis test (Girolami & Calderhead 2011; Xifara et al. 2014).

    theta' ~ Normal(mu(theta), 2 eps G^-1(theta)),   mu = theta + eps (-G^-1 grad U + Gamma),
    Gamma_i = sum_j d(G^-1)_ij / dtheta_j
    accept with probability min(1, exp(-U(theta')) q(theta' -> theta) / (exp(-U(theta)) q(theta -> theta')))

Leaves exp(-U) with respect to Lebesgue measure invariant exactly, at every step size, for which it needs all
data. The proposal is SGRLD's step with the exact gradient. Departure from print: the drift of Girolami &
Calderhead belongs to another diffusion; the test would correct it, at the price of a lower acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import check_number, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import times
from fokker.sgmcmc.metrics import Field, MetricFunction, check_at, check_metric, divergence, fields_of
from fokker.sgmcmc.metropolis import check_full_data, keep, metropolis, potential_of

if TYPE_CHECKING:
    from fokker.target import Target

PROPOSAL, ACCEPTANCE = 0, 1  # streams of random numbers


class State(NamedTuple):
    position: Any  # pytree of parameters
    iteration: Array  # () int32


class Info(NamedTuple):
    acceptance_probability: Array  # ()
    accepted: Array  # () bool
    energy_error: Array  # () minus the logarithm of the acceptance ratio
    diverging: Array  # () bool: not finite or beyond 1000; always rejected if not finite


class Proposal(NamedTuple):
    """Where the next point is drawn: Normal(mean, L L^T), with the potential where it starts."""

    potential: Array  # () U(theta)
    mean: Array  # (d,)
    root: Array  # L: (), (d,) or (d, d) lower triangular


@dataclass(frozen=True)
class rmld:
    """Settings of RMLD.

    step_size: eps. metric_inverse: params -> G^-1, or metric: params -> G; a scalar, a (d,) diagonal or a (d,
    d) matrix in the ravelled order of the parameters. gamma: closed form of Gamma, params -> (d,), compared
    with differentiation where a chain starts. An iteration costs two gradients of all data.
    """

    full_data: ClassVar[bool] = True

    step_size: Any = None
    metric_inverse: MetricFunction | None = None
    metric: MetricFunction | None = None
    gamma: Callable[[Any], Array] | None = None

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_metric("rmld", self.metric, self.metric_inverse)

    def bind(self, target: Target, gradient: Gradient | None = None) -> Bound:
        check_step_size("rmld", self.step_size)
        check_full_data("rmld", gradient)

        def fields(position: Any) -> tuple[Field, Field | None]:
            return fields_of(target, position, self.metric, self.metric_inverse, self.gamma)

        def init(position: Any, key: Any = None) -> State:
            field, gamma = fields(position)
            check_at(field, ravel_pytree(position)[0], gamma)
            return State(position, jnp.zeros((), jnp.int32))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            field, gamma = fields(state.position)
            eps = jnp.asarray(self.step_size, theta.dtype)
            potential = potential_of(target, batch, unravel)

            there = propose_from(theta, potential, field, gamma, eps)
            proposed = there.mean + times(there.root, normal(key, theta.shape, PROPOSAL, theta.dtype))
            back = propose_from(proposed, potential, field, gamma, eps)
            energy = there.potential - log_density(there, proposed)
            verdict = metropolis(key, energy, back.potential - log_density(back, theta), ACCEPTANCE)
            error = back.potential - log_density(back, theta) - energy
            position = keep(verdict.accepted, unravel(proposed), state.position)
            return State(position, state.iteration + 1), Info(
                verdict.probability, verdict.accepted, error, verdict.diverging
            )

        return Bound(init, step)


def propose_from(
    theta: Array,
    potential: Callable[[Array], Array],
    field: Callable[[Array], Array],
    gamma: Callable[[Array], Array] | None,
    eps: Array,
) -> Proposal:
    """The normal law of the proposal from theta."""
    u, grad_u = jax.value_and_grad(potential)(theta)
    D, div = divergence(field, theta) if gamma is None else (field(theta), gamma(theta))
    root = jnp.linalg.cholesky(2 * eps * D) if D.ndim == 2 else jnp.sqrt(2 * eps * D)
    return Proposal(u, theta + eps * (div - times(D, grad_u)), root)


def log_density(proposal: Proposal, point: Array) -> Array:
    """log q(start -> point), up to the constant of the normal law."""
    root, offset = proposal.root, point - proposal.mean
    if root.ndim == 2:
        z = jax.scipy.linalg.solve_triangular(root, offset, lower=True)
        return -z @ z / 2 - jnp.log(jnp.diagonal(root)).sum()
    z = offset / root
    return -z @ z / 2 - jnp.log(jnp.broadcast_to(root, offset.shape)).sum()
