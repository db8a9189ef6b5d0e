"""SGGMC: stochastic gradient geodesic Monte Carlo (Liu, Zhu & Song 2016, eq. 5 and Algorithm 1).

On the tangent bundle of a manifold in R^n, with P(x) the projector on the tangent space and C the friction:

    dx = v dt  along geodesics,    dv = P(x) [-grad U - C v] dt + P(x) sqrt(2 C) dW

Leaves exp(-U_H(x) - |v|^2 / 2) invariant as eps -> 0, U_H with respect to the Hausdorff measure, and with it the
density that the user gave, in the measure that the manifold names. One step is one gradient of one batch:

    "aboba"  geodesic eps/2; v <- exp(-P C P eps/2) v; v <- v + P [-eps grad U~ + N(0, eps (2C - eps V^))];
             exp(-P C P eps/2) v; geodesic eps/2.  Algorithm 1; bias of order eps^2.
    "baoab"  v <- v - eps P grad U~; geodesic eps/2;
             v <- exp(-C eps) v + P N(0, (1 - exp(-2 C eps)) I - exp(-2 C eps) eps^2 V^); geodesic eps/2.
             Order eps^2 too, exact for a Gaussian in flat space, and 20 times less biased on the circle.

Departures from print: Algorithm 1 draws one batch and keeps it for L steps. The noise of the gradient then stands still
and heats the chain to the temperature 1 + (L - 1) eps V / 2C; here each step has its own batch, and ``thin`` of the run
is the L of the paper. ``steps_per_batch`` is its literal reading.
On a product of Euclidean spaces this is SGHMC with unit mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.geodesic import columns
from fokker.geodesic.tangent import Force, damped, force_at, pace, space_of, tangent_push
from fokker.numeric.random_jax import Given, normal
from fokker.sgmcmc.checks import (
    check_choice,
    check_count,
    check_number,
    check_positive_definite,
    check_scales,
    check_schedule,
    check_step_size,
)
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target

Integrator = Literal["aboba", "baoab"]
INTEGRATORS = ("aboba", "baoab")
START = 2  # stream of random numbers for the first velocity, beside 0 for the noise of a step


class State(NamedTuple):
    position: Any  # pytree of parameters
    point: Array  # (n,) on the carrier
    velocity: Array  # (n,) tangent there
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # () of the tangent gradient
    noise_share: Array  # () largest share of injected noise that the gradient brings; above 1 it had to be clipped
    kinetic: Array  # () |v|^2 / m with m the dimension of the manifold; near 1 for small steps


@dataclass(frozen=True)
class sggmc:
    """Settings of SGGMC.

    step_size: eps. friction: C, a number, or a (n,) diagonal or (n, n) matrix over the entries of a point, for "aboba".
    integrator: see the module. schedule: factor of the step by iteration. steps_per_batch: steps made with one batch;
    more than 1 is the paper's literal reading, and too hot.
    scales: a number, or one for each leaf of the parameters: on leaf k geodesics and forces run for eps * scales[k], as
    with 1 / scales[k]^2 for its mass.
    """

    on_manifolds: ClassVar[bool] = True
    by_entry: ClassVar[tuple[str, ...]] = ("friction",)  # of shape (), (n,) or (n, n)

    step_size: Any = None
    friction: Any = 1.0
    integrator: Integrator = "aboba"
    schedule: Schedule = constant()
    steps_per_batch: int = 1
    scales: Any = 1.0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("friction", self.friction)
        check_choice("integrator", self.integrator, INTEGRATORS)
        if self.integrator == "baoab" and jnp.ndim(self.friction):
            raise InputError("integrator='baoab' takes a number as friction; for a matrix take 'aboba'.")
        check_count("steps_per_batch", self.steps_per_batch, 1)
        check_scales(self.scales)
        check_schedule(self.schedule)

    @classmethod
    def from_learning_rate(cls, gamma: float, rho: float, size: int, **more: Any) -> sggmc:
        """With the learning rate per batch gamma and 1 - momentum rho: eps = sqrt(gamma / N), C = rho / eps."""
        eps = per_batch(gamma, rho, size)
        return cls(step_size=eps, friction=rho / eps, **more)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sggmc", self.step_size)
        grad, C = gradient.bind(target), jnp.asarray(self.friction)

        # in a run, which knows positions as vectors; what a caller steps by hand has the fields of State
        by_columns = target.unravel is not None and not C.ndim and not jnp.ndim(self.scales)
        by_columns &= self.steps_per_batch == 1 and gradient.noise == "none"

        def init(position: Any, key: Any) -> State | columns.State:
            space, theta = space_of(target, position), ravel_pytree(position)[0]
            x = space.embed(theta)
            v = space.tangent_normal(x, normal(key, x.shape, START, x.dtype))
            if by_columns and columns.suits(space, x.dtype):
                return columns.state_of(space, x, v, grad.init(position))
            return State(position, x, v, jnp.zeros((), jnp.int32), grad.init(position))

        def step_by_columns(key: Any, state: columns.State, batch: Any) -> tuple[columns.State, Info]:
            dtype = state.pairs.dtype
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            heat = noise_scale(self.schedule, state.iteration, dtype)
            numbers = columns.Step(key, eps, eps * self.scales, eps * self.scales, heat, C.astype(dtype))
            move = columns.aboba if self.integrator == "aboba" else columns.baoab
            state, seen = move(state, numbers, lambda position, aux: grad.estimate(key, position, batch, aux))
            dim = len(state.pairs) * (state.pairs.shape[1] // 2 - 1)
            return state, Info(eps, jnp.sqrt(seen.gradient), jnp.zeros((), dtype), seen.velocity / dim)

        def step(key: Any, state: Any, batch: Any = None) -> tuple[Any, Info]:
            if isinstance(state, columns.State):
                return step_by_columns(key, state, batch)
            space, unravel = space_of(target, state.position), ravel_pytree(state.position)[1]
            dtype = state.point.dtype
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            heat, friction = noise_scale(self.schedule, state.iteration, dtype), C.astype(dtype)
            time, kick = pace(space, eps, self.scales)

            def move(x: Array, v: Array, aux: Any, normals: Any) -> tuple[Array, Array, Force, Array]:
                if self.integrator == "aboba":
                    x, v = space.flow(x, v, time / 2)
                    v = damped(space, friction, x, v, eps / 2)
                    force = force_at(space, grad, key, unravel, x, batch, aux)
                    push, share = tangent_push(space, normals, x, 2 * eps * friction, kick, force.noise)
                    v = damped(space, friction, x, v - kick * force.grad_u + heat * push, eps / 2)
                else:
                    force = force_at(space, grad, key, unravel, x, batch, aux)
                    x, v = space.flow(x, v - kick * force.grad_u, time / 2)
                    keep = jnp.exp(-eps * friction)
                    push, share = tangent_push(
                        space, normals, x, -jnp.expm1(-2 * eps * friction), kick * keep, force.noise
                    )
                    v = keep * v + heat * push
                return *space.retract(*space.flow(x, v, time / 2)), force, share

            x, v, aux, normals = state.point, state.velocity, state.aux, key
            if self.steps_per_batch > 1:  # one number per step and entry, all of this iteration
                z = normal(key, (self.steps_per_batch, 1, x.size), dtype=dtype)

                def again(carry: tuple[Array, Array, Any], z: Array) -> tuple[tuple[Array, Array, Any], None]:
                    x, v, force, _ = move(*carry, Given(z))
                    return (x, v, force.aux), None

                (x, v, aux), _ = jax.lax.scan(again, (x, v, aux), z[:-1])
                normals = Given(z[-1])
            x, v, force, share = move(x, v, aux, normals)
            norm, kinetic = jnp.sqrt(space.square(x, force.grad_u)), space.square(x, v) / space.dim
            return State(unravel(space.value(x)), x, v, state.iteration + 1, force.aux), Info(eps, norm, share, kinetic)

        return Bound(init, step)


def per_batch(gamma: float, rho: float, size: int) -> float:
    """eps = sqrt(gamma / N), checked."""
    check_number("gamma", gamma)
    check_number("rho", rho)
    check_number("size", size)
    return float((gamma / size) ** 0.5)
