"""pSGLD, SGLD with an RMSprop preconditioner (Li et al. 2016) that is learned in warm-up and then frozen.

    theta+ = theta - eps D grad U~ + Normal(0, 2 eps D - eps^2 D V^ D),    D = diag(1 / (damping + sqrt(v)))
    v+     = decay v + (1 - decay) (grad U~ / N)^2      while iteration < adapt_steps, then constant

Leaves exp(-U) invariant as eps -> 0 from iteration ``adapt_steps`` on. The published method lets v run on and
drops the term Gamma_i = d D_ii / d theta_i. But v is a function of the chain's history and not of theta, so
that no Gamma makes it right (Ma, Chen & Fox 2015, eq. 3 asks for D(z)); where v follows theta closely,
dropping Gamma samples exp(-U) / D in one dimension. A D that is constant needs no Gamma, hence the freeze:
states before it are no draws. Departures from print: the freeze; v is divided by 1 - decay^t, since it starts
at 0; the compensation of eq. 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.run.gradients import rows
from fokker.sgmcmc.checks import check_count, check_number, check_schedule, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import compensated_normal, sandwich
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target


class State(NamedTuple):
    position: Any  # pytree of parameters
    square: Array  # (d,) v, the running mean of squared gradients per row, before its division by 1 - decay^t
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # ()
    noise_share: Array  # () largest eps^2 B-hat / (2 eps D); above 1 the compensation had to be clipped


@dataclass(frozen=True)
class psgld:
    """Settings of pSGLD.

    step_size: eps, which a run does not choose. adapt_steps: iterations that learn v; None stands for the run's
    whole warm-up. decay, damping: of RMSprop. schedule: factor of the step by iteration.
    """

    step_size: Any = None
    adapt_steps: int | None = None
    decay: Any = 0.99
    damping: Any = 1e-5
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_number("decay", self.decay, below=1)
        check_number("damping", self.damping)
        check_count("adapt_steps", self.adapt_steps, 1, optional=True)
        check_schedule(self.schedule)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("psgld", self.step_size)
        if self.adapt_steps is None:
            raise InputError("psgld outside of fokker.sample needs adapt_steps=..., after which its draws are valid.")
        adapt_steps = self.adapt_steps
        grad = gradient.bind(target)
        size = 1 if target.log_likelihood is None else rows(target)

        def init(position: Any, key: Any = None) -> State:
            theta = ravel_pytree(position)[0]
            return State(position, jnp.zeros_like(theta), jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            dtype = theta.dtype
            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            decay, damping = jnp.asarray(self.decay, dtype), jnp.asarray(self.damping, dtype)
            learned = decay * state.square + (1 - decay) * (grad_u / size) ** 2
            square = jnp.where(state.iteration < adapt_steps, learned, state.square)
            seen = jnp.minimum(state.iteration + 1, adapt_steps).astype(dtype)
            D = 1 / (damping + jnp.sqrt(square / (1 - decay**seen)))
            taken = None if noise is None else sandwich(eps * D, noise)
            push, share = compensated_normal(key, 2 * eps * D, taken, theta.size, dtype)
            push = noise_scale(self.schedule, state.iteration, dtype) * push
            theta = theta - eps * D * grad_u + push
            info = Info(eps, jnp.linalg.norm(grad_u), share)
            return State(unravel(theta), square, state.iteration + 1, aux), info

        return Bound(init, step)
