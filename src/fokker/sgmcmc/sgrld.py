"""SGRLD (Patterson & Teh 2013; Ma, Chen & Fox 2015, eq. 14): H = U, D = G(theta)^-1, Q = 0.

    theta+ = theta + eps (-G^-1 grad U~ + Gamma) + Normal(0, 2 eps G^-1 - eps^2 G^-1 V^ G^-1),
    Gamma_i = sum_j d(G^-1)_ij / dtheta_j

Leaves exp(-U) with respect to Lebesgue measure invariant as eps -> 0. Departures from print: eq. 14 subtracts
Gamma, which has to be added (with the printed sign the law in one dimension is exp(-U) / D^2, without Gamma
exp(-U) / D); the Girolami-Calderhead form of the drift that the paper quotes has a factor 2 too many and
serves another measure. The noise of the gradient is subtracted when the estimator knows it (eq. 9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.sgmcmc.checks import check_number, check_schedule, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import compensated_normal, sandwich, times
from fokker.sgmcmc.metrics import Field, MetricFunction, check_at, check_metric, divergence, fields_of
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
    noise_share: Array  # () largest eps^2 B-hat / (2 eps D); above 1 the compensation had to be clipped


@dataclass(frozen=True)
class sgrld:
    """Settings of SGRLD.

    step_size: eps. metric_inverse: params -> G^-1, or metric: params -> G; a scalar, a (d,) diagonal or a (d,
    d) matrix in the ravelled order of the parameters. gamma: closed form of Gamma, params -> (d,), compared
    with differentiation where a chain starts. schedule: factor of the step by iteration. A diagonal or a
    matrix without closed form costs d forward passes through the metric at every step.
    """

    full_data: ClassVar[bool] = False

    step_size: Any = None
    metric_inverse: MetricFunction | None = None
    metric: MetricFunction | None = None
    gamma: Callable[[Any], Array] | None = None
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_schedule(self.schedule)
        check_metric("sgrld", self.metric, self.metric_inverse)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sgrld", self.step_size)
        grad = gradient.bind(target)

        def fields(position: Any) -> tuple[Field, Field | None]:
            return fields_of(target, position, self.metric, self.metric_inverse, self.gamma)

        def init(position: Any, key: Any = None) -> State:
            field, gamma = fields(position)
            check_at(field, ravel_pytree(position)[0], gamma)
            return State(position, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            field, gamma = fields(state.position)
            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), theta.dtype)
            D, div = divergence(field, theta) if gamma is None else (field(theta), gamma(theta))
            taken = None if noise is None else sandwich(eps * D, noise)
            kick, share = compensated_normal(key, 2 * eps * D, taken, theta.size, theta.dtype)
            kick = noise_scale(self.schedule, state.iteration, theta.dtype) * kick
            theta = theta + eps * (div - times(D, grad_u)) + kick
            info = Info(eps, jnp.linalg.norm(grad_u), share)
            return State(unravel(theta), state.iteration + 1, aux), info

        return Bound(init, step)
