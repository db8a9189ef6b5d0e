"""The methods of Table 1 of Liu, Zhu & Song (2016) on the circle, as steps of a state and standard normals.

U = -2 cos(angle). Methods for manifolds see the circle in the plane, the others its angle, a flat coordinate of which
the law is periodic; Riemannian ones with the metric G^-1 = 1 + sin(angle) / 2. Every step is fokker's own code with the
random numbers put in. Those with a Metropolis test run without it here: it would remove the bias that tells the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import fokker
from experiments.geodesic.chain_law import Angle, Normal, Step
from fokker.geodesic.gmc import geodesic_leapfrog, phase_at
from fokker.manifolds.product import product
from fokker.numeric.random_jax import Given
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.rmhmc import System, draw_momentum, generalised_leapfrog, solve_fixed_point
from fokker.sgmcmc.rmld import propose_from

TIME = 0.8  # of a trajectory, so that its leapfrog steps double as eps is halved
FRICTION = 1.0
GRADIENT_STREAM = 5


@dataclass(frozen=True)
class Method:
    """A row: its name in the table, what is claimed of it, fokker's sampler, its step, and the axes of its state."""

    name: str
    row: str  # of the printed table
    kernel: type
    claimed: int  # printed order
    step: Step
    axes: tuple[Any, ...]
    normals: int = 1
    note: str = ""
    # (step, axes) that see another gradient: exact plus Normal(0, V), told or not
    noisy: Callable[[float, float | None], Method] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class corrupted:
    """The exact gradient plus Normal(0, V) in every entry; ``told``: what the sampler is told of V."""

    V: float = 0.0
    told: float | None = None
    noise: str = "scalar"

    def bind(self, target: Any) -> BoundGradient:
        def estimate(key: Given, position: Array, batch: Any, aux: Any) -> tuple[Array, Any, Any]:
            grad_u = -jax.grad(target.log_prior)(position)
            if self.V:
                grad_u = grad_u + self.V**0.5 * key.normals[GRADIENT_STREAM, : position.size]
            return grad_u, None if self.told is None else jnp.asarray(self.told, position.dtype), aux

        return BoundGradient(lambda position: None, estimate)


FLAT = fokker.Target.from_log_density(lambda q: 2 * jnp.cos(q[0]))
CIRCLE = fokker.Target(lambda x: 2 * x[0], None, space=fokker.Sphere(2))
LOOP = fokker.Target(lambda x: 2 * x[0], None, space=fokker.Implicit(lambda x: x @ x - 1, 2))
metric_inverse = lambda q: 1 + jnp.sin(q) / 2
point = lambda a: jnp.stack([jnp.cos(a), jnp.sin(a)])
tangent = lambda a: jnp.stack([-jnp.sin(a), jnp.cos(a)])
angle = lambda x: jnp.arctan2(x[1], x[0])


def given(normals: Array, along: Array) -> Given:
    """The first normal for the sampler's noise, the second, if there is one, for the gradient's."""
    streams = jnp.zeros((GRADIENT_STREAM + 1, along.size)).at[0].set(normals[0] * along)
    return Given(streams.at[GRADIENT_STREAM].set(normals[-1] * along))


# --- flat: the angle is the position ----------------------------------------------------------------------------------


def flat(make: Callable[[Any], Any], gradient: corrupted = corrupted()) -> Step:
    """Kernels of fokker.sgmcmc; the state is (angle,), (angle, momentum) or (angle, momentum, xi)."""

    def step(eps: Any, z: Array, normals: Array) -> Array:
        bound = make(eps).bind(FLAT, gradient)
        still = given(jnp.zeros(1), jnp.ones(1))
        state = bound.init(z[:1], still)
        parts = [name for name in ("momentum", "xi") if hasattr(state, name)]
        there = {name: z[i].reshape(getattr(state, name).shape) for i, name in enumerate(parts, 1)}
        after = bound.step(given(normals, jnp.ones(1)), state._replace(**there))[0]
        return jnp.concatenate([after.position, *(getattr(after, name).reshape(1) for name in parts)])

    return step


def rmld_proposal(eps: Any, z: Array, normals: Array) -> Array:
    potential = lambda q: -FLAT.log_prior(q)
    proposal = propose_from(z, potential, metric_inverse, None, eps)
    return proposal.mean + proposal.root * normals


def rmhmc_trajectory(eps: Any, z: Array, normals: Array) -> Array:
    system = System(lambda q: -FLAT.log_prior(q), metric_inverse)
    solve = lambda f, x: solve_fixed_point(f, x, 1e-14, 100, "fixed_point")

    def one(_: Any, at: tuple[Array, Array]) -> tuple[Array, Array]:
        end = generalised_leapfrog(system, *at, eps, solve)
        return end.theta, end.momentum

    start = z, draw_momentum(metric_inverse(z), normals)
    return jax.lax.fori_loop(0, jnp.round(TIME / eps).astype(int), one, start)[0]


# --- on the circle: the angle of a point, its velocity along the tangent ----------------------------------------------


def geodesic(make: Callable[[Any], Any], gradient: corrupted = corrupted()) -> Step:
    """Kernels of fokker.geodesic; the state is (angle, velocity) or (angle, velocity, xi).

    Noise enters in the middle of the step, where only its part along the tangent is kept: one number is enough.
    """

    def step(eps: Any, z: Array, normals: Array) -> Array:
        bound = make(eps).bind(CIRCLE, gradient)
        x = point(z[0])
        state = bound.init(x, given(jnp.zeros(1), x))._replace(velocity=z[1] * tangent(z[0]))
        if hasattr(state, "xi"):
            state = state._replace(xi=z[2])
        after = bound.step(given(normals, tangent(z[0] + z[1] * eps / 2)), state)[0]
        speed = after.velocity @ tangent(angle(after.point))
        return jnp.stack([angle(after.point), speed, *([after.xi] if hasattr(after, "xi") else [])])

    return step


def gmc_trajectory(eps: Any, z: Array, normals: Array) -> Array:
    space, potential, start = beginning(CIRCLE, z, normals)
    return angle(geodesic_leapfrog(space, potential, start, eps, jnp.round(TIME / eps).astype(int)).x)[None]


def chmc_trajectory(eps: Any, z: Array, normals: Array) -> Array:
    space, potential, start = beginning(LOOP, z, normals)
    one = fokker.chmc(0.1, leapfrog_steps=1, tolerance=1e-12)
    move = lambda _, phase: one.trajectory(space, potential, phase, eps)[0]
    return angle(jax.lax.fori_loop(0, jnp.round(TIME / eps).astype(int), move, start).x)[None]


def beginning(target: Any, z: Array, normals: Array) -> tuple[Any, Any, Any]:
    x = point(z[0])
    space = product(target.space, x)
    potential = jax.value_and_grad(lambda x: -target.log_prior(x))
    return space, potential, phase_at(space, potential, x, normals[0] * tangent(z[0]))


# --- the rows ---------------------------------------------------------------------------------------------------------

ONE = (Angle(41),)
TWO = (Angle(), Normal())
THREE = (Angle(23), Normal(12), Normal(10, mean=FRICTION))


def by_batches(
    name: str, row: str, kernel: type, claimed: int, kind: Any, make: Any, axes: Any, note: str = ""
) -> Method:
    """A row whose sampler can be given a noisy gradient."""
    plain = Method(name, row, kernel, claimed, kind(make), axes, note=note)

    def noisy(V: float, told: float | None) -> Method:
        return replace(plain, step=kind(make, corrupted(V, told)), normals=2)

    return replace(plain, noisy=noisy)


euler, aboba = dict(integrator="euler"), dict(integrator="aboba")
METHODS = (
    Method("GMC", "GMC", fokker.gmc, 2, gmc_trajectory, ONE),
    Method("RMLD", "RMLD", fokker.rmld, 1, rmld_proposal, ONE),
    Method("RMHMC", "RMHMC", fokker.rmhmc, 2, rmhmc_trajectory, ONE),
    Method("CHMC", "CHMC", fokker.chmc, 2, chmc_trajectory, ONE),
    by_batches("SGLD", "SGLD", fokker.sgld, 1, flat, lambda e: fokker.sgld(e), ONE),
    by_batches("SGHMC", "SGHMC / SGNHT", fokker.sghmc, 1, flat, lambda e: fokker.sghmc(e, FRICTION, **euler), TWO,
               "Euler's rule, as printed"),
    by_batches("SGHMC, split", "SGHMC / SGNHT", fokker.sghmc, 2, flat, lambda e: fokker.sghmc(e, FRICTION, **aboba),
               TWO, "Chen, Ding & Carin 2015"),
    by_batches("SGNHT", "SGHMC / SGNHT", fokker.sgnht, 1, flat, lambda e: fokker.sgnht(e, FRICTION, **euler), THREE,
               "Euler's rule, as printed"),
    by_batches("SGNHT, split", "SGHMC / SGNHT", fokker.sgnht, 2, flat, lambda e: fokker.sgnht(e, FRICTION, **aboba),
               THREE),
    by_batches("SGRLD", "SGRLD / SGRHMC", fokker.sgrld, 1, flat,
               lambda e: fokker.sgrld(e, metric_inverse=metric_inverse), ONE),
    by_batches("SGRHMC", "SGRLD / SGRHMC", fokker.sgrhmc, 1, flat,
               lambda e: fokker.sgrhmc(e, metric_inverse=metric_inverse), TWO, "fokker's default order of the updates"),
    by_batches("SGGMC", "SGGMC / gSGNHT", fokker.sggmc, 2, geodesic, lambda e: fokker.sggmc(e, FRICTION), TWO),
    by_batches("gSGNHT", "SGGMC / gSGNHT", fokker.gsgnht, 2, geodesic, lambda e: fokker.gsgnht(e, FRICTION), THREE),
)  # fmt: skip
