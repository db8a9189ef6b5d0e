"""GMC: geodesic Monte Carlo (Byrne & Girolami 2013; Liu, Zhu & Song 2016, Sec. 2.2), HMC along geodesics.

    v ~ Normal(0, I) in the tangent space at x;
    steps times:  v <- v - eps/2 P grad U,  (x, v) <- geodesic for a time eps,  v <- v - eps/2 P grad U;
    accept with probability min(1, exp(H - H')),  H = U_H(x) + |v|^2 / 2

Leaves exp(-U_H) invariant exactly, at every step size, with U_H with respect to the Hausdorff measure, and with it the
density that the user gave; for that it needs all data. On a Euclidean space it is HMC with unit mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.geodesic.tangent import Pace, pace, space_of
from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import check_count, check_number, check_scales, check_step_size
from fokker.sgmcmc.hmc import ACCEPTANCE, MOMENTUM, Info
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.metropolis import check_full_data, keep, metropolis, potential_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fokker.manifolds.product import Product
    from fokker.target import Target


class State(NamedTuple):
    position: Any  # pytree of parameters
    point: Array  # (n,) on the carrier
    iteration: Array  # () int32
    potential: Array  # () U_H there, from the first step on
    grad_u: Array  # (n,) its tangent gradient


class Phase(NamedTuple):
    """A point of a trajectory."""

    x: Array  # (n,)
    v: Array  # (n,) tangent
    potential: Array  # () U_H
    grad_u: Array  # (n,) its tangent gradient


@dataclass(frozen=True)
class gmc:
    """Settings of GMC.

    step_size: eps. leapfrog_steps: of one trajectory, which costs as many gradients of all data.
    scales: a number, or one for each leaf of the parameters: on leaf k geodesics and forces
    run for eps * scales[k], as with 1 / scales[k]^2 for its mass.
    """

    full_data: ClassVar[bool] = True
    on_manifolds: ClassVar[bool] = True

    step_size: Any = None
    leapfrog_steps: int = 10
    scales: Any = 1.0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_count("leapfrog_steps", self.leapfrog_steps, 1)
        check_scales(self.scales)

    def bind(self, target: Target, gradient: Gradient | None = None) -> Bound:
        check_step_size("gmc", self.step_size)
        check_full_data("gmc", gradient)

        def init(position: Any, key: Any = None) -> State:
            return start_at(position, space_of(target, position).embed(ravel_pytree(position)[0]))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            space, unravel = space_of(target, state.position), ravel_pytree(state.position)[1]
            x = state.point
            step = pace(space, jnp.asarray(self.step_size, x.dtype), self.scales)
            by_params = potential_of(target, batch, unravel)
            potential = jax.value_and_grad(lambda x: by_params(space.value(x)) - space.log_volume(x))

            v = space.tangent_normal(x, normal(key, x.shape, MOMENTUM, x.dtype))
            start = phase_of(space, potential, state, v)
            end = geodesic_leapfrog(space, potential, start, step, self.leapfrog_steps)
            energy = lambda phase: phase.potential + space.square(phase.x, phase.v) / 2
            verdict = metropolis(key, energy(start), energy(end), ACCEPTANCE)
            x, value, grad_u = keep(
                verdict.accepted,
                (end.x, end.potential, end.grad_u),
                (x, start.potential, start.grad_u),
            )
            info = Info(verdict.probability, verdict.accepted, energy(end) - energy(start), verdict.diverging)
            return State(unravel(space.value(x)), x, state.iteration + 1, value, grad_u), info

        return Bound(init, step)


def start_at(position: Any, x: Array) -> State:
    return State(position, x, jnp.zeros((), jnp.int32), jnp.zeros((), x.dtype), jnp.zeros_like(x))


def phase_of(space: Product, potential: Callable[[Array], tuple[Array, Array]], state: State, v: Array) -> Phase:
    """The state with a velocity; its gradient is what the last trajectory left, which saves one in each."""
    known = lambda: Phase(state.point, v, state.potential, state.grad_u)
    return jax.lax.cond(state.iteration == 0, lambda: phase_at(space, potential, state.point, v), known)


def phase_at(space: Product, potential: Callable[[Array], tuple[Array, Array]], x: Array, v: Array) -> Phase:
    value, ambient = potential(x)
    return Phase(x, v, value.astype(x.dtype), space.gradient(x, ambient))


def geodesic_leapfrog(
    space: Product, potential: Callable[[Array], tuple[Array, Array]], phase: Phase, step: Any, steps: int
) -> Phase:
    """Half kick, geodesic, half kick; steps times. Reversible, volume preserving, energy error of order eps^2.

    step: eps, or a Pace.
    """
    time, kick = step if isinstance(step, Pace) else (step, step)

    def one(_: Any, phase: Phase) -> Phase:
        # A point off the manifold by a rounding d has a gradient with a normal part of order d, whose kick moves it off
        # by d eps^2 |grad U|: where that factor is above 1 it grows. So every step ends on the manifold.
        x, v = space.retract(*space.flow(phase.x, phase.v - kick / 2 * phase.grad_u, time))
        end = phase_at(space, potential, x, v)
        return end._replace(v=v - kick / 2 * end.grad_u)

    return jax.lax.fori_loop(0, steps, one, phase)
