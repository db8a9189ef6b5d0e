"""RMHMC (Girolami & Calderhead 2011; Ma, Chen & Fox 2015, section 3.1): Q = [[0, -I], [I, 0]], D = 0,

    H = U + log|G(theta)| / 2 + r^T G(theta)^-1 r / 2

by the generalised leapfrog, whose first two lines are implicit:

    r'     = r - eps/2 dH/dtheta (theta, r')
    theta+ = theta + eps/2 (G^-1(theta) + G^-1(theta+)) r'
    r+     = r' - eps/2 dH/dtheta (theta+, r')

then a Metropolis test. Leaves exp(-U) with respect to Lebesgue measure invariant exactly (to the tolerance of
the inner iterations), for which it needs all data. What print leaves out: an implicit equation may have no
solution that the inner iteration finds, or two, and then the map is not reversible. A step that does not
converge, or whose reverse does not lead back to its start, ends the trajectory, and the point is rejected and
counted (``converged`` is False).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import check_choice, check_count, check_number, check_step_size
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import times
from fokker.sgmcmc.metrics import Field, MetricFunction, check_at, check_metric, fields_of
from fokker.sgmcmc.metropolis import check_full_data, keep, metropolis, potential_of

if TYPE_CHECKING:
    from fokker.target import Target

MOMENTUM, ACCEPTANCE = 0, 1  # streams of random numbers
RETURN = 100  # a reverse step must come back to within this many tolerances


class State(NamedTuple):
    position: Any  # pytree of parameters
    iteration: Array  # () int32


class Info(NamedTuple):
    acceptance_probability: Array  # ()
    accepted: Array  # () bool
    energy_error: Array  # () H' - H where the trajectory ended
    diverging: Array  # () bool: not finite or beyond 1000; always rejected if not finite
    converged: Array  # () bool: every inner iteration converged and every step was reversible; else rejected
    inner_iterations: Array  # () int32, of the trajectory


@dataclass(frozen=True)
class rmhmc:
    """Settings of RMHMC.

    step_size: eps. leapfrog_steps: of one trajectory. metric: params -> G, or metric_inverse: params -> G^-1;
    a scalar, a (d,) diagonal or a (d, d) matrix in the ravelled order of the parameters. tolerance: of the
    inner iterations, relative; None: 32 roundings. max_iterations: of each. solver: "fixed_point", or
    "newton" which costs d forward passes an iteration and converges at larger steps. check_reversibility:
    solve each step backwards too, twice the cost; without it the law is exact only where the solutions are
    unique.
    """

    full_data: ClassVar[bool] = True

    step_size: Any = None
    leapfrog_steps: int = 10
    metric: MetricFunction | None = None
    metric_inverse: MetricFunction | None = None
    tolerance: float | None = None
    max_iterations: int = 50
    solver: Literal["fixed_point", "newton"] = "fixed_point"
    check_reversibility: bool = True

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_number("tolerance", self.tolerance, optional=True)
        check_metric("rmhmc", self.metric, self.metric_inverse)
        for name in ("leapfrog_steps", "max_iterations"):
            check_count(name, getattr(self, name), 1)
        check_choice("solver", self.solver, ("fixed_point", "newton"))

    def bind(self, target: Target, gradient: Gradient | None = None) -> Bound:
        check_step_size("rmhmc", self.step_size)
        check_full_data("rmhmc", gradient)

        def field_at(position: Any) -> Field:
            return fields_of(target, position, self.metric, self.metric_inverse)[0]

        def init(position: Any, key: Any = None) -> State:
            check_at(field_at(position), ravel_pytree(position)[0])
            return State(position, jnp.zeros((), jnp.int32))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            G_inverse = field_at(state.position)
            system = System(potential_of(target, batch, unravel), G_inverse)
            eps = jnp.asarray(self.step_size, theta.dtype)

            r = draw_momentum(G_inverse(theta), normal(key, theta.shape, MOMENTUM, theta.dtype))
            end = self._trajectory(system, theta, r, eps)
            energy, proposed = system.energy(theta, r), system.energy(end.theta, end.momentum)
            verdict = metropolis(key, energy, jnp.where(end.converged, proposed, jnp.inf), ACCEPTANCE)
            diverging = end.converged & verdict.diverging
            position = keep(verdict.accepted, unravel(end.theta), state.position)
            return State(position, state.iteration + 1), Info(
                verdict.probability,
                verdict.accepted,
                proposed - energy,
                diverging,
                end.converged,
                end.iterations,
            )

        return Bound(init, step)

    def _trajectory(self, system: System, theta: Array, r: Array, eps: Array) -> Point:
        """leapfrog_steps generalised leapfrogs, or fewer if one fails."""

        def solve(f: Callable[[Array], Array], x: Array) -> Solution:
            return solve_fixed_point(f, x, self._tolerance(x.dtype), self.max_iterations, self.solver)

        def advance(carry: tuple[Array, Point]) -> tuple[Array, Point]:
            i, now = carry
            then = generalised_leapfrog(system, now.theta, now.momentum, eps, solve)
            iterations = then.iterations
            converged = then.converged
            if self.check_reversibility:
                back = generalised_leapfrog(system, then.theta, -then.momentum, eps, solve)
                near = RETURN * self._tolerance(theta.dtype)
                same = _close(back.theta, now.theta, near) & _close(-back.momentum, now.momentum, near)
                converged, iterations = converged & back.converged & same, iterations + back.iterations
            return i + 1, Point(then.theta, then.momentum, converged, now.iterations + iterations)

        start = Point(theta, r, jnp.ones((), bool), jnp.zeros((), jnp.int32))
        onward = lambda carry: (carry[0] < self.leapfrog_steps) & carry[1].converged
        return jax.lax.while_loop(onward, advance, (jnp.zeros((), jnp.int32), start))[1]

    def _tolerance(self, dtype: Any) -> float:
        return 32 * float(jnp.finfo(dtype).eps) if self.tolerance is None else self.tolerance


class System(NamedTuple):
    """The Hamiltonian: U and G^-1 as functions of theta."""

    potential: Callable[[Array], Array]
    G_inverse: Callable[[Array], Array]

    def kinetic(self, theta: Array, r: Array) -> Array:
        """log|G| / 2 + r^T G^-1 r / 2."""
        P = self.G_inverse(theta)
        if P.ndim == 2:
            log_det = 2 * jnp.log(jnp.diagonal(jnp.linalg.cholesky(P))).sum()
        else:
            log_det = jnp.log(jnp.broadcast_to(P, theta.shape)).sum()
        return r @ times(P, r) / 2 - log_det / 2

    def energy(self, theta: Array, r: Array) -> Array:
        return self.potential(theta) + self.kinetic(theta, r)


class Point(NamedTuple):
    """A point of a trajectory and whether it was reached."""

    theta: Array  # (d,)
    momentum: Array  # (d,)
    converged: Array  # () bool
    iterations: Array  # () int32, inner ones so far


class Solution(NamedTuple):
    x: Array  # (d,)
    converged: Array  # () bool
    iterations: Array  # () int32


def draw_momentum(G_inverse: Array, z: Array) -> Array:
    """A draw of Normal(0, G) from a standard normal vector z, (d,)."""
    if G_inverse.ndim == 2:
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(G_inverse), z, lower=True, trans="T")
    return z / jnp.sqrt(G_inverse)


def generalised_leapfrog(
    system: System,
    theta: Array,
    r: Array,
    eps: Array,
    solve: Callable[[Callable[[Array], Array], Array], Solution],
) -> Point:
    """One step: reversible (where the solutions are found), volume preserving, energy error of order
    eps^2."""
    force = jax.grad(system.kinetic)
    kick = eps / 2 * jax.grad(system.potential)(theta)
    half = solve(lambda p: r - kick - eps / 2 * force(theta, p), r - kick)
    p = half.x

    velocity = times(system.G_inverse(theta), p)
    drift = solve(lambda x: theta + eps / 2 * (velocity + times(system.G_inverse(x), p)), theta + eps * velocity)
    after = drift.x
    r = p - eps / 2 * (jax.grad(system.potential)(after) + force(after, p))
    return Point(after, r, half.converged & drift.converged, half.iterations + drift.iterations)


def solve_fixed_point(
    f: Callable[[Array], Array], x: Array, tolerance: float, max_iterations: int, solver: str
) -> Solution:
    """x = f(x) from a first guess. Converged: an iteration moved x by no more than tolerance (1 + max|x|)."""

    def newton(x: Array) -> Array:
        jacobian = jnp.eye(x.size, dtype=x.dtype) - jax.jacfwd(f)(x)
        return x - jnp.linalg.solve(jacobian, x - f(x))

    improve = newton if solver == "newton" else f

    def one(carry: Solution) -> Solution:
        new = improve(carry.x)
        return Solution(new, _close(new, carry.x, tolerance), carry.iterations + 1)

    def onward(carry: Solution) -> Array:
        return ~carry.converged & (carry.iterations < max_iterations) & jnp.isfinite(carry.x).all()

    return jax.lax.while_loop(onward, one, Solution(x, jnp.zeros((), bool), jnp.zeros((), jnp.int32)))


def _close(a: Array, b: Array, tolerance: float) -> Array:
    return jnp.abs(a - b).max() <= tolerance * (1 + jnp.abs(b).max())
