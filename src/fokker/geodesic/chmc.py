"""CHMC: constrained HMC (Brubaker, Salzmann & Urtasun 2012), RATTLE with a Metropolis test.

On {c(x) = 0}, with J the Jacobian of c and P = I - J^T (J J^T)^-1 J the projector on the tangent space:

    v ~ Normal(0, P) in the tangent space at x;
    steps times:  v  <- v - eps/2 P grad U,
                  x+ = x + eps (v + J(x)^T lambda) with c(x+) = 0,  v <- P(x+) (x+ - x) / eps,
                  v  <- v - eps/2 P grad U;
    accept with probability min(1, exp(H - H')),  H = U_H(x) + |v|^2 / 2

Leaves exp(-U_H) invariant exactly, at every step size (to the tolerance of the inner iterations), with U_H with respect
to the Hausdorff measure, and with it the density that the user gave; for that it needs all data. It needs no geodesic.
A factor of the space whose geodesics are known follows them instead of the middle line: on a space without
``fokker.Implicit`` this is ``fokker.gmc``.

What print leaves out: Newton's iteration for lambda may find nothing, or another point than the one that x is found
from, and then the map is not reversible. A step that does not converge, or whose reverse does not lead back to x, ends
the trajectory, and the point is rejected and counted (``converged`` is False). Departures in form: the gradient is
projected before the kick, whose normal part lambda would take up anyhow; lambda is found in an orthonormal basis of
the normal space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.geodesic.gmc import Phase, State, phase_at, phase_of, start_at
from fokker.geodesic.tangent import space_of
from fokker.manifolds.manifold import ByConstraint, Manifold
from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import check_count, check_number, check_step_size
from fokker.sgmcmc.hmc import ACCEPTANCE, MOMENTUM
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.metropolis import check_full_data, keep, metropolis, potential_of
from fokker.sgmcmc.rmhmc import Info

if TYPE_CHECKING:
    from collections.abc import Callable

    from fokker.manifolds.product import Product
    from fokker.target import Target


class Drift(NamedTuple):
    """Where a point and its velocity are after a time eps without forces."""

    x: Array
    v: Array
    converged: Array  # () bool: found, and the way back leads back
    iterations: Array  # () int32, of Newton's


@dataclass(frozen=True)
class chmc:
    """Settings of CHMC.

    step_size: eps. leapfrog_steps: of one trajectory, which costs as many gradients of all data.
    tolerance: relative to the point, of the last of Newton's iterations, which leaves the square of it, and of the way
    back; None: 1e-8 in float64, 1e-4 in float32. max_iterations: of Newton's, per step.
    """

    full_data: ClassVar[bool] = True
    on_manifolds: ClassVar[bool] = True
    on_constraints: ClassVar[bool] = True

    step_size: Any = None
    leapfrog_steps: int = 10
    tolerance: float | None = None
    max_iterations: int = 20

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_number("tolerance", self.tolerance, optional=True)
        for name in ("leapfrog_steps", "max_iterations"):
            check_count(name, getattr(self, name), 1)

    def bind(self, target: Target, gradient: Gradient | None = None) -> Bound:
        check_step_size("chmc", self.step_size)
        check_full_data("chmc", gradient)

        def init(position: Any, key: Any = None) -> State:
            return start_at(position, space_of(target, position).embed(ravel_pytree(position)[0]))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            space, unravel = space_of(target, state.position), ravel_pytree(state.position)[1]
            x = state.point
            eps = jnp.asarray(self.step_size, x.dtype)
            by_params = potential_of(target, batch, unravel)
            potential = jax.value_and_grad(lambda x: by_params(space.value(x)) - space.log_volume(x))

            v = space.tangent_normal(x, normal(key, x.shape, MOMENTUM, x.dtype))
            start = phase_of(space, potential, state, v)
            end, converged, iterations = self.trajectory(space, potential, start, eps)
            energy = lambda phase: phase.potential + space.square(phase.x, phase.v) / 2
            error = energy(end) - energy(start)
            verdict = metropolis(key, energy(start), jnp.where(converged, energy(end), jnp.inf), ACCEPTANCE)
            x, value, grad_u = keep(
                verdict.accepted,
                (end.x, end.potential, end.grad_u),
                (x, start.potential, start.grad_u),
            )
            diverging = converged & verdict.diverging
            info = Info(verdict.probability, verdict.accepted, error, diverging, converged, iterations)
            return State(unravel(space.value(x)), x, state.iteration + 1, value, grad_u), info

        return Bound(init, step)

    def trajectory(
        self, space: Product, potential: Callable[[Array], tuple[Array, Array]], start: Phase, eps: Array
    ) -> tuple[Phase, Array, Array]:
        """leapfrog_steps of RATTLE, or fewer if one fails: the end, whether none failed, Newton's iterations."""
        tolerance = (1e-8 if eps.dtype == jnp.float64 else 1e-4) if self.tolerance is None else self.tolerance

        def one(carry: tuple[Array, Phase, Array, Array]) -> tuple[Array, Phase, Array, Array]:
            i, phase, _, iterations = carry
            moved = drift(space, phase.x, phase.v - eps / 2 * phase.grad_u, eps, tolerance, self.max_iterations)
            end = phase_at(space, potential, moved.x, moved.v)
            end = end._replace(v=moved.v - eps / 2 * end.grad_u)
            return i + 1, end, moved.converged, iterations + moved.iterations

        onward = lambda carry: (carry[0] < self.leapfrog_steps) & carry[2]
        none = jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(onward, one, (none, start, jnp.ones((), bool), none))[1:]


def drift(space: Product, x: Array, v: Array, eps: Array, tolerance: float, max_iterations: int) -> Drift:
    """Every factor for a time eps: along its geodesic where that is known, else by RATTLE."""
    moved = []
    for (factor, p), (_, w) in zip(space.points(x), space.points(v), strict=True):
        m = factor.carrier
        if isinstance(m, Manifold):
            moved.append(Drift(*m.retract(*m.flow(p, w, eps)), jnp.ones((), bool), jnp.zeros((), jnp.int32)))
        else:
            assert isinstance(m, ByConstraint)
            moved.append(there_and_back(m, p, w, eps, tolerance, max_iterations))
    xs, vs, converged, iterations = zip(*moved, strict=True)
    return Drift(space.join(xs), space.join(vs), jnp.stack(converged).all(), sum(iterations))


def there_and_back(m: ByConstraint, x: Array, v: Array, eps: Array, tolerance: float, max_iterations: int) -> Drift:
    """RATTLE; not converged unless, from where it leads and with the velocity reversed, it leads back to x."""
    there = rattle(m, x, v, eps, tolerance, max_iterations)
    back = rattle(m, there.x, -there.v, eps, tolerance, max_iterations)
    same = jnp.abs(back.x - x).max() <= tolerance * (1 + jnp.abs(x).max())
    return there._replace(
        converged=there.converged & back.converged & same, iterations=there.iterations + back.iterations
    )


def rattle(m: ByConstraint, x: Array, v: Array, eps: Array, tolerance: float, max_iterations: int) -> Drift:
    """x + eps v + N(x) lambda on the manifold, by Newton's iteration for lambda from 0, and the velocity made tangent.

    Converged: an iteration moved the point by at most ``tolerance`` of 1 + its largest entry; it was the last.
    """
    N = m.normals(x)  # (n, k)
    ahead = x + eps * v
    at = lambda multiplier: ahead + (N @ multiplier).reshape(x.shape)

    def newton(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, multiplier, _ = carry
        y = at(multiplier)
        change = _solve(m.jacobian(y) @ N, m.residual(y))
        return i + 1, multiplier - change, jnp.abs(change).max() <= tolerance * (1 + jnp.abs(y).max())

    onward = lambda carry: (carry[0] < max_iterations) & ~carry[2] & jnp.isfinite(carry[1]).all()
    begin = (jnp.zeros((), jnp.int32), jnp.zeros(N.shape[1], x.dtype), jnp.zeros((), bool))
    iterations, multiplier, converged = jax.lax.while_loop(onward, newton, begin)
    y = at(multiplier)
    v = m.project(y, v + (N @ multiplier).reshape(x.shape) / eps)
    return Drift(y, v, converged & jnp.isfinite(v).all(), iterations)


def _solve(A: Array, b: Array) -> Array:
    return b / A[0] if len(b) == 1 else jnp.linalg.solve(A, b)
