"""HMC (Duane et al. 1987; Ma, Chen & Fox 2015, eq. 10): H = U + r^T M^-1 r / 2, D = 0, Q = [[0, -I], [I, 0]].

    r ~ Normal(0, M);
    leapfrog_steps times:  r <- r - eps/2 grad U,  theta <- theta + eps M^-1 r,  r <- r - eps/2 grad U;
    accept with probability min(1, exp(H - H'))

Leaves exp(-U) invariant exactly, at every step size, for which it needs all data. Departure from print: the
paper's eq. 10 is an explicit Euler step, which is unstable for every eps; this is the leapfrog with a
Metropolis test.
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
from fokker.sgmcmc.checks import check_count, check_number, check_positive_definite, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import inverse, root_times, times
from fokker.sgmcmc.metropolis import check_full_data, keep, metropolis, potential_of

if TYPE_CHECKING:
    from fokker.target import Target

MOMENTUM, ACCEPTANCE = 0, 1  # streams of random numbers


class State(NamedTuple):
    position: Any  # pytree of parameters
    iteration: Array  # () int32


class Info(NamedTuple):
    acceptance_probability: Array  # ()
    accepted: Array  # () bool
    energy_error: Array  # () H' - H
    diverging: Array  # () bool: not finite or beyond 1000; always rejected if not finite


@dataclass(frozen=True)
class hmc:
    """Settings of HMC.

    step_size: eps. leapfrog_steps: of one trajectory, which costs leapfrog_steps + 1 gradients of all data.
    mass: M, a number, a (d,) diagonal or a (d, d) matrix in the ravelled order of the parameters.
    """

    full_data: ClassVar[bool] = True
    by_entry: ClassVar[tuple[str, ...]] = ("mass",)  # of shape (), (d,) or (d, d)

    step_size: Any = None
    leapfrog_steps: int = 10
    mass: Any = 1.0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("mass", self.mass)
        check_count("leapfrog_steps", self.leapfrog_steps, 1)

    def bind(self, target: Target, gradient: Gradient | None = None) -> Bound:
        check_step_size("hmc", self.step_size)
        check_full_data("hmc", gradient)

        def init(position: Any, key: Any = None) -> State:
            return State(position, jnp.zeros((), jnp.int32))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            eps, M = jnp.asarray(self.step_size, theta.dtype), jnp.asarray(self.mass, theta.dtype)
            M_inverse = inverse(M)
            potential_and_grad = jax.value_and_grad(potential_of(target, batch, unravel))
            kinetic = lambda r: r @ times(M_inverse, r) / 2

            r = root_times(M, normal(key, theta.shape, MOMENTUM, theta.dtype))
            start = Phase(theta, r, *potential_and_grad(theta))
            end = leapfrog(start, potential_and_grad, eps, self.leapfrog_steps, M_inverse)
            energy, proposed = start.potential + kinetic(r), end.potential + kinetic(end.momentum)
            verdict = metropolis(key, energy, proposed, ACCEPTANCE)
            position = keep(verdict.accepted, unravel(end.theta), state.position)
            info = Info(verdict.probability, verdict.accepted, proposed - energy, verdict.diverging)
            return State(position, state.iteration + 1), info

        return Bound(init, step)


class Phase(NamedTuple):
    """A point of a trajectory."""

    theta: Array  # (d,)
    momentum: Array  # (d,)
    potential: Array  # () U(theta)
    grad_u: Array  # (d,)


def leapfrog(
    phase: Phase,
    potential_and_grad: Callable[[Array], tuple[Array, Array]],
    eps: Any,
    steps: int,
    M_inverse: Any,
) -> Phase:
    """Half kick, drift, half kick; steps times. Reversible, volume preserving, energy error of order
    eps^2."""

    def one(_: Any, phase: Phase) -> Phase:
        r = phase.momentum - eps / 2 * phase.grad_u
        theta = phase.theta + eps * times(M_inverse, r)
        potential, grad_u = potential_and_grad(theta)
        return Phase(theta, r - eps / 2 * grad_u, potential, grad_u)

    return jax.lax.fori_loop(0, steps, one, phase)
