"""SGLD (Welling & Teh 2011; Ma, Chen & Fox 2015, eq. 13): H = U, D constant, Q = 0.

    theta+ = theta - eps D grad U~(theta) + Normal(0, 2 eps D - eps^2 D V^ D)

Leaves exp(-U) invariant as eps -> 0. On a Gaussian U = a theta^2 / 2 the discrete chain has variance (2 + eps
D (V - V^)) / (a (2 - eps D a)) exactly. Departure from print: the noise of the gradient is subtracted when
the estimator knows it (eq. 9); without an estimate V^ = 0, as printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.sgmcmc.checks import check_number, check_positive_definite, check_schedule, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import compensated_normal, root, sandwich, times
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
class sgld:
    """Settings of SGLD.

    step_size: eps; None lets the run tune it. schedule: factor of the step by iteration. diffusion: constant
    D, a number, a (d,) diagonal or a (d, d) matrix in the ravelled order of the parameters.
    """

    by_entry: ClassVar[tuple[str, ...]] = ("diffusion",)  # of shape (), (d,) or (d, d)

    step_size: Any = None
    schedule: Schedule = constant()
    diffusion: Any = 1.0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("diffusion", self.diffusion)
        check_schedule(self.schedule)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sgld", self.step_size)
        grad = gradient.bind(target)
        D = jnp.asarray(self.diffusion)
        D_root = root(D)

        def init(position: Any, key: Any = None) -> State:
            return State(position, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), theta.dtype)
            diffusion = D.astype(theta.dtype)
            taken = None if noise is None else sandwich(eps * diffusion, noise)
            injected_root = jnp.sqrt(2 * eps) * D_root.astype(theta.dtype)
            kick, share = compensated_normal(
                key, 2 * eps * diffusion, taken, theta.size, theta.dtype, injected_root=injected_root
            )
            kick = noise_scale(self.schedule, state.iteration, theta.dtype) * kick
            theta = theta - eps * times(diffusion, grad_u) + kick
            info = Info(eps, jnp.linalg.norm(grad_u), share)
            return State(unravel(theta), state.iteration + 1, aux), info

        plain = gradient.noise == "none" and isinstance(self.schedule, constant)
        return Bound(init, step, (lambda state: {}) if plain else None)
