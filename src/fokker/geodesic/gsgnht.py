"""gSGNHT: geodesic stochastic gradient thermostats (Liu, Zhu & Song 2016, Sec. 3.3 and Algorithm 2).

SGGMC whose friction xi is a variable that keeps the mean of |v|^2 at m, the dimension of the manifold:

    dx = v dt,   dv = P(x) [-grad U - xi v] dt + P(x) sqrt(2 C) dW,   d xi = (|v|^2 / m - 1) / tau dt

Leaves exp(-U_H(x) - |v|^2 / 2 - tau m (xi - C)^2 / 2) invariant as eps -> 0, and with it the density that the user
gave. Isotropic gradient noise of unknown variance V changes nothing but xi, which settles at C + eps V / 2. Noise that
is not isotropic, as that of minibatches, is repaired in the mean only: the law is then off by O(eps V), as without a
thermostat.
One step is the splitting of SGGMC with xi in place of C, between two halves of xi:

    xi += (|v|^2/m - 1) eps / 2 tau; geodesic eps/2; v <- exp(-xi eps/2) v;
    v <- v + P [-eps grad U~ + N(0, eps (2C - eps V^))];
    v <- exp(-xi eps/2) v; geodesic eps/2; xi += (|v|^2/m - 1) eps / 2 tau

m is the intrinsic dimension, n - 1 on a sphere in R^n; with n in its place the chain has the temperature n / m. xi may
be negative for a while. On a product there is one xi for all factors, or with ``thermostat="each"`` one for each.
Departures from print: a fresh batch for every step (see ``sggmc``), the inertia tau, a thermostat for every factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.geodesic.sggmc import START, Info, per_batch
from fokker.geodesic.tangent import force_at, pace, space_of, tangent_push
from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import check_choice, check_number, check_scales, check_schedule, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.manifolds.product import Product
    from fokker.target import Target


class State(NamedTuple):
    position: Any  # pytree of parameters
    point: Array  # (n,) on the carrier
    velocity: Array  # (n,) tangent there
    xi: Array  # () or (factors,)
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


@dataclass(frozen=True)
class gsgnht:
    """Settings of gSGNHT.

    step_size: eps. friction: C, a number, the friction that is injected. thermostat: "all" (one for the whole space)
    or "each" (one for every leaf of the parameters). inertia: tau. schedule: factor of the step by iteration.
    scales: a number, or one for each leaf of the parameters: on leaf k geodesics and forces run for eps * scales[k], as
    with 1 / scales[k]^2 for its mass.
    """

    on_manifolds: ClassVar[bool] = True

    step_size: Any = None
    friction: Any = 1.0
    thermostat: Literal["all", "each"] = "all"
    inertia: Any = 1.0
    schedule: Schedule = constant()
    scales: Any = 1.0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        if np.ndim(self.friction):
            raise InputError(f"gsgnht takes a number as friction, got shape {np.shape(self.friction)}; see sggmc.")
        check_number("friction", self.friction)
        check_number("inertia", self.inertia)
        check_choice("thermostat", self.thermostat, ("all", "each"))
        check_schedule(self.schedule)
        check_scales(self.scales)

    @classmethod
    def from_learning_rate(cls, gamma: float, rho: float, size: int, **more: Any) -> gsgnht:
        """With the learning rate per batch gamma and 1 - momentum rho: eps = sqrt(gamma / N), C = rho / eps."""
        eps = per_batch(gamma, rho, size)
        return cls(step_size=eps, friction=rho / eps, **more)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("gsgnht", self.step_size)
        grad, C, each = gradient.bind(target), jnp.asarray(self.friction), self.thermostat == "each"

        def init(position: Any, key: Any) -> State:
            space, theta = space_of(target, position), ravel_pytree(position)[0]
            x = space.embed(theta)
            v = space.tangent_normal(x, normal(key, x.shape, START, x.dtype))
            xi = jnp.broadcast_to(C.astype(x.dtype), (len(space.factors),) if each else ())
            return State(position, x, v, xi, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            space, unravel = space_of(target, state.position), ravel_pytree(state.position)[1]
            x, v, xi = state.point, state.velocity, state.xi
            dtype = x.dtype
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            heat, friction = noise_scale(self.schedule, state.iteration, dtype), C.astype(dtype)
            time, kick = pace(space, eps, self.scales)
            half = eps / 2 / jnp.asarray(self.inertia, dtype)

            xi = xi + half * (_temperature(space, x, v, each) - 1)
            x, v = space.flow(x, v, time / 2)
            keep = jnp.exp(-eps / 2 * xi)
            keep = space.spread(keep) if each else keep
            force = force_at(space, grad, key, unravel, x, batch, state.aux)
            push, share = tangent_push(space, key, x, 2 * eps * friction, kick, force.noise)
            v = keep * (keep * v - kick * force.grad_u + heat * push)
            x, v = space.retract(*space.flow(x, v, time / 2))
            warmth = _temperature(space, x, v, each)
            xi = xi + half * (warmth - 1)
            kinetic = space.square(x, v) / space.dim if each else warmth
            info = Info(eps, jnp.sqrt(space.square(x, force.grad_u)), share, kinetic)
            return State(unravel(space.value(x)), x, v, xi, state.iteration + 1, force.aux), info

        return Bound(init, step)


def _temperature(space: Product, x: Array, v: Array, each: bool) -> Array:
    """|v|^2 / m, of the whole space or of every factor."""
    if each:
        return space.squares(x, v) / jnp.asarray(space.dims, x.dtype)
    return space.square(x, v) / space.dim
