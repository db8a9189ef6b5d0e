"""gSGRHMC (Ma, Chen & Fox 2015, Algorithm 1): H = U + r.r / 2, D = diag(0, A), Q = [[0, -S], [S, 0]], S =
G^{-1/2}.

    theta+ = theta + eps S r
    r+     = r + eps (-S grad U~ + Gamma - A r) + Normal(0, 2 eps A - eps^2 S V^ S),
    Gamma_i = sum_j dS_ij / dtheta_j

with S the symmetric root and A = G^-1 as printed, or a constant friction. Leaves exp(-U - r.r / 2) invariant
as eps -> 0. Departures from print: eq. 17 has the signs of Gamma and of the friction wrong (Algorithm 1 is
right); the default moves theta with the new r ("symplectic"), which is stable where the printed order
("euler", the old r) is not. The metric is evaluated once a step, at the old theta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import (
    check_choice,
    check_count,
    check_number,
    check_positive_definite,
    check_schedule,
    check_step_size,
)
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import compensated_normal, sandwich, times
from fokker.sgmcmc.metrics import (
    Field,
    MetricFunction,
    check_at,
    check_metric,
    divergence,
    fields_of,
    root_field,
)
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target

RESAMPLE, START = 1, 2  # streams of random numbers, beside 0 for the noise of a step


class State(NamedTuple):
    position: Any  # pytree of parameters
    momentum: Array  # (d,) ravelled
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # ()
    noise_share: Array  # () largest eps^2 B-hat / (2 eps A); above 1 the compensation had to be clipped
    kinetic: Array  # () r.r / d, of law 1


@dataclass(frozen=True)
class sgrhmc:
    """Settings of gSGRHMC.

    step_size: eps. metric_inverse: params -> G^-1, or metric: params -> G; a scalar, a (d,) diagonal or a (d,
    d) matrix in the ravelled order of the parameters. gamma: closed form of Gamma (the divergence of
    G^{-1/2}), params -> (d,), compared with differentiation where a chain starts. friction: a constant A in
    place of G^-1. integrator: "symplectic" or "euler". resample_momentum: momentum is drawn anew every so many
    iterations; None: never.
    """

    full_data: ClassVar[bool] = False
    by_entry: ClassVar[tuple[str, ...]] = ("friction",)  # of shape (), (d,) or (d, d)

    step_size: Any = None
    metric_inverse: MetricFunction | None = None
    metric: MetricFunction | None = None
    gamma: Callable[[Any], Array] | None = None
    friction: Any = None
    integrator: Literal["symplectic", "euler"] = "symplectic"
    resample_momentum: int | None = None
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("friction", self.friction, optional=True)
        check_metric("sgrhmc", self.metric, self.metric_inverse)
        check_choice("integrator", self.integrator, ("symplectic", "euler"))
        check_count("resample_momentum", self.resample_momentum, 1, optional=True)
        check_schedule(self.schedule)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sgrhmc", self.step_size)
        grad = gradient.bind(target)

        def fields(position: Any) -> tuple[Field, Field | None]:
            return fields_of(target, position, self.metric, self.metric_inverse, self.gamma)

        def init(position: Any, key: Any) -> State:
            theta = ravel_pytree(position)[0]
            field, gamma = fields(position)
            check_at(field, theta, gamma, of=root_field(field))
            momentum = normal(key, theta.shape, START, theta.dtype)
            return State(position, momentum, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            field, gamma = fields(state.position)
            root = root_field(field)
            r = state.momentum
            if self.resample_momentum is not None:
                fresh = normal(key, theta.shape, RESAMPLE, theta.dtype)
                r = jnp.where(state.iteration % self.resample_momentum == 0, fresh, r)

            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), theta.dtype)
            S, div = divergence(root, theta) if gamma is None else (root(theta), gamma(theta))
            if self.friction is None:
                A = S @ S if S.ndim == 2 else S * S
            else:
                A = jnp.asarray(self.friction, theta.dtype)
            taken = None if noise is None else sandwich(eps * S, noise)
            kick, share = compensated_normal(key, 2 * eps * A, taken, theta.size, theta.dtype)
            kick = noise_scale(self.schedule, state.iteration, theta.dtype) * kick
            r_new = r + eps * (div - times(S, grad_u) - times(A, r)) + kick
            theta = theta + eps * times(S, r if self.integrator == "euler" else r_new)
            info = Info(eps, jnp.linalg.norm(grad_u), share, r_new @ r_new / theta.size)
            return State(unravel(theta), r_new, state.iteration + 1, aux), info

        return Bound(init, step)
