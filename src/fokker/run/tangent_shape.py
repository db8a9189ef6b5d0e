"""What a posterior on a manifold looks like near its mode: a quadratic in the tangent space there.

The mode is that of U_H, the curvature its Riemannian Hessian in an orthonormal basis B of the tangent space: draws of
the quadratic are brought to the manifold along geodesics, x = exp_mode(B z). However flat the posterior, a compact
manifold ends: the curvature of each direction is counted from one over the variance of the uniform law up
(``least_curvature``), so that a step of the usual speed never goes far round. On a flat space all of it is
``local_shape``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.errors import InputError
from fokker.geodesic.tangent import space_of
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.manifold import Mapped
from fokker.run.carrier import (
    bend,
    coordinates_of_factors,
    embedded,
    least_curvature,
    on_carrier,
    projected_pairs,
    projector,
    scores,
    tangent_basis,
    without_identity,
)
from fokker.run.gradients import control_variates, svrg
from fokker.run.local_noise import POINTS, Noise, gathered
from fokker.run.local_shape import (
    DENSE,
    NEWTON_STEPS,
    SADDLES,
    Shape,
    gradient_of,
    hessian_of,
    hessian_product,
    potential_of,
    remainder,
    unit_diagonal,
)
from fokker.run.mode import find_mode

if TYPE_CHECKING:
    from fokker.manifolds.product import Product
    from fokker.run.plan import Plan
    from fokker.target import Target

PROBES = 30  # for traces where the Hessian is no matrix
ERRATIC = 0.08  # standard error of a pilot's measure that no number of draws explains
RESOLVED = 2.0  # eps^2 times curvature up to which a step at an edge does no harm; 4 is where it explodes
LEAST_AT_EDGES = 1 / 8  # factor of the step that an edge may ask for
WORK = 2e9  # multiplications that a mean over points may take


@dataclass(frozen=True)
class Tangent:
    """The quadratic that touches U_H at its mode, in coordinates z of the tangent space: x = exp_mode(B z).

    Beyond ``DENSE`` entries there is no basis: z are the entries in R^n, of which only the tangent part counts.
    """

    space: Product
    target: Target  # on points (n,)
    point: np.ndarray  # (n,) the mode
    basis: np.ndarray | None  # B (n, m)
    shape: Shape  # of size m, its mode 0
    ambient: np.ndarray  # (n,) gradient of U_H in R^n at the mode
    hessian: np.ndarray | None  # (n, n) of U_H in R^n there
    bounded: float  # share of the directions in which the manifold's own size matters more than the posterior's
    factors: np.ndarray  # (size,) factor of each coordinate

    def points(self, z: np.ndarray) -> np.ndarray:
        """Points (k, n) at coordinates (k, m), along geodesics."""
        return _exponential(self.space, self.point, z if self.basis is None else z @ self.basis.T)

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """B^T (x - mode) of points (..., n)."""
        return (x - self.point) if self.basis is None else (x - self.point) @ self.basis

    def positions(self, x: np.ndarray) -> np.ndarray:
        """Parameters (k, d) of points (k, n)."""
        if not self.space.mapped:
            return x
        with jax.enable_x64(True):
            return np.asarray(jax.jit(jax.vmap(self.space.value))(jnp.asarray(x, jnp.float64)))


def find_tangent(plan: Plan) -> Tangent:
    """The mode near the first start and the curvature there; in float64 up to ``DENSE`` entries of a point."""
    start = np.asarray(plan.starts[0], np.float64)
    space = space_of(plan.target, plan.starts[0])
    if (odd := without_identity(space)) is not None:
        raise InputError(
            f"on {odd.space}, where {odd.name} lies, no step size can be tuned; pass "
            f"fokker.{type(plan.kernel).__name__}(step_size=...), a tenth of the smallest posterior sd for example."
        )
    target = on_carrier(plan.target, space)
    x = embedded(space, np.asarray(find_mode(plan.target, start), np.float64)[None])[0]
    x = np.asarray(jax.jit(lambda x: space.retract(x, x)[0])(jnp.asarray(x)))
    if space.size > DENSE:
        return _matrix_free(space, target, x)
    return _dense(plan, space, target, x)


# --- the mode and the Hessian there -----------------------------------------------------------------------------------


def _dense(plan: Plan, space: Product, target: Target, x: np.ndarray) -> Tangent:
    potential, gradient, hessian = potential_of(target), gradient_of(target), hessian_of(target, space.size)
    of_space = jax.jit(lambda x: projector(space, x))
    bending = jax.jit(lambda x, g, B: bend(space, x, g, B))

    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Gradient and Hessian in R^n, basis, and both in the tangent space."""
        g, H = gradient(x), hessian(x)
        if not (np.isfinite(g).all() and np.isfinite(H).all()):
            raise InputError(_no_mode(plan, "its first or second derivative is not finite there"))
        B = tangent_basis(space, np.asarray(of_space(jnp.asarray(x))))
        curvature = B.T @ H @ B + np.asarray(bending(jnp.asarray(x), jnp.asarray(g), jnp.asarray(B)))
        return g, H, B, B.T @ g, (curvature + curvature.T) / 2

    distance = np.inf
    for _ in range(SADDLES + 1):
        x, distance = _newton(space, potential, at, x)
        g, H, B, _, curvature = at(x)
        values, vectors, scale = unit_diagonal(curvature + _floor(space, x, B))
        if values[0] > 0 and np.linalg.eigvalsh(curvature)[0] > -1e-6 * np.abs(curvature).max():
            break
        lowest = np.linalg.eigh(curvature)[1][:, 0] if values[0] > 0 else scale * vectors[:, 0]
        lower = _downhill(space, potential, x, B @ (lowest / np.linalg.norm(lowest)))
        if lower is None:
            break
        x = lower
    floor = _floor(space, x, B)
    values, vectors = np.linalg.eigh(curvature)
    flat_out = (vectors * np.abs(values)) @ vectors.T if values[0] < 0 and floor.any() else curvature
    whole = flat_out + floor
    scaled, directions, _ = unit_diagonal(whole)
    if not scaled[0] > 1e-10 * scaled[-1]:
        worst = np.argmax(np.abs(B @ directions[:, 0]))
        name = next(f.name for f in space.factors if f.first_point <= worst < f.last_point)
        raise InputError(_no_mode(plan, f"it is not curved downwards along a direction that is mostly {name}"))
    size = np.diag(floor)
    bounded = float(np.mean(np.abs(np.diag(curvature)) < size)) if floor.any() else 0.0
    shape = Shape(np.zeros(len(whole)), whole, np.diag(whole).copy(), whole.__matmul__, distance)
    return Tangent(space, target, x, B, shape, g, H, bounded, coordinates_of_factors(space))


def _no_mode(plan: Plan, why: str) -> str:
    return (
        f"no step size could be tuned: the log density has no proper mode near init; {why}. Give that parameter a "
        f"proper and smooth prior, start nearer to the bulk (init=...), or pass fokker.{type(plan.kernel).__name__}"
        "(step_size=...)."
    )


def _floor(space: Product, x: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``least_curvature`` in the tangent space, (m, m)."""
    return np.asarray(B.T @ (least_curvature(space, x)[:, None] * B))


def _newton(
    space: Product, potential: Callable[[np.ndarray], float], at: Callable[[np.ndarray], Any], x: np.ndarray
) -> tuple[np.ndarray, float]:
    """Damped steps along geodesics, downhill whatever the signs of the curvature; the last one's length in sds."""
    value, distance = potential(x), np.inf
    for _ in range(NEWTON_STEPS):
        _, _, B, g, curvature = at(x)
        values, vectors, scale = unit_diagonal(curvature + _floor(space, x, B))
        values = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
        move = -scale * (vectors @ ((vectors.T @ (scale * g)) / values))
        distance = float(np.sqrt(max(-(g @ move), 0.0)))
        if distance < 0.02:
            break
        for halving in range(30):
            trial = _exponential(space, x, (B @ move * 0.5**halving)[None])[0]
            lower = potential(trial)
            if np.isfinite(lower) and lower < value + 1e-9 * abs(value):
                break
        else:
            break
        x, value = trial, lower
    return x, distance


def _downhill(
    space: Product, potential: Callable[[np.ndarray], float], x: np.ndarray, along: np.ndarray
) -> np.ndarray | None:
    """Away from a saddle: the lowest of some points along a direction, None where none is lower."""
    sizes = np.array([part for size in (0.1, 0.3, 1.0) for part in (size, -size)])
    points = _exponential(space, x, sizes[:, None] * along)
    values = np.nan_to_num([potential(p) for p in points], nan=np.inf)
    here, best = potential(x), int(np.argmin(values))
    return points[best] if values[best] < here - 1e-9 * max(1.0, abs(here)) else None


def _exponential(space: Product, x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Where geodesics from x (n,) with velocities (k, n) are at time 1, (k, n)."""
    with jax.enable_x64(True):
        return np.asarray(_flows(space, jnp.asarray(x, jnp.float64), jnp.asarray(v, jnp.float64)))


@partial(jax.jit, static_argnums=0)
def _flows(space: Product, x: Any, v: Any) -> Any:
    return jax.vmap(lambda v: space.retract(*space.flow(x, space.project(x, v), 1.0))[0])(v)


def _matrix_free(space: Product, target: Target, x: np.ndarray) -> Tangent:
    """Products with the Hessian in R^n, projected; normal directions get the mean curvature, which nobody looks at."""
    product, g = hessian_product(target, x), gradient_of(target)(x)
    at, ambient = jnp.asarray(x), jnp.asarray(g)
    project = jax.jit(lambda u: space.project(at, u))
    turn = jax.jit(lambda u: jax.jvp(lambda y: space.project(y, ambient), (at,), (u,))[1])
    flat = lambda u: np.asarray(project(jnp.asarray(u)))
    floor = least_curvature(space, x)

    def bent(v: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            w = flat(v)
            return flat(product(w) + np.asarray(turn(jnp.asarray(w)))) + flat(floor * w)

    signs = np.random.default_rng(space.size).choice([-1.0, 1.0], (PROBES, space.size))
    mean = float(np.mean([z @ bent(z) for z in signs]) / space.dim)
    if not np.isfinite(mean) or mean <= 0:
        raise InputError(
            "no step size could be tuned: the log density has no proper mode near init. Give proper and smooth priors, "
            "start nearer to the bulk (init=...), or pass step_size=... to the kernel."
        )

    def whole(v: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return bent(v) + mean * (v - flat(v))

    bounded = float(np.mean(floor) > mean / 2)
    shape = Shape(np.zeros(space.size), None, np.full(space.size, mean), whole, float("nan"))
    sizes = [f.last_point - f.first_point for f in space.factors]
    factors = np.repeat(np.arange(len(sizes)), sizes)
    return Tangent(space, target, x, None, shape, g, None, bounded, factors)


# --- the gradient's noise ---------------------------------------------------------------------------------------------


def tangent_noise(plan: Plan, near: Tangent, at_mode: bool = False) -> Noise:
    """The noise of the plan's own gradient, or of control variates centred at the mode, in tangent coordinates.

    At each point it is made tangent there and brought to the mode by the isometry nearest to B_mode^T B_x.
    """
    target, gradient, size = plan.target, plan.gradient, near.shape.size
    if target.log_likelihood is None or plan.batch_size is None:
        return Noise(np.zeros((1, size)), False, "none", 1, 0.0)
    points = near.points(near.shape.draws(2 * POINTS, plan.seed))
    thetas = near.positions(points)
    centres = None
    if at_mode or isinstance(gradient, control_variates):
        centre = near.positions(near.point[None])[0] if at_mode else np.asarray(gradient.centre, np.float64)  # type: ignore[attr-defined]
        centres = np.tile(centre, (POINTS, 1))
    elif isinstance(gradient, svrg):
        centres = thetas[POINTS:]
    pull = jax.jit(lambda x: jax.jacfwd(near.space.value)(x)) if near.space.mapped else None
    projected = jax.jit(lambda x: projector(near.space, x))
    project = jax.jit(lambda x, u: jax.lax.map(lambda w: near.space.project(x, w), u, batch_size=64))

    def made_tangent(i: int, each: np.ndarray) -> np.ndarray:
        x = jnp.asarray(points[i])
        each = each if pull is None else each @ np.asarray(pull(x))
        if near.basis is None:
            return np.asarray(project(x, jnp.asarray(each)))
        B = tangent_basis(near.space, np.asarray(projected(x)))
        left, _, right = np.linalg.svd(near.basis.T @ B)
        return each @ (B @ (left @ right).T)

    factor = gathered(plan, thetas[:POINTS], centres, made_tangent)
    runs = np.inf if plan.batches is None else plan.batches.copies * plan.batches.runs
    doubt = 0.0 if at_mode else float(np.sqrt(2 / runs))
    form = "none" if at_mode else gradient.noise
    return Noise(factor, centres is not None, form, getattr(gradient, "rank", 1), doubt)


# --- starts and pilots ------------------------------------------------------------------------------------------------


def starts_on(plan: Plan, near: Tangent, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draws of the quadratic on the manifold, nearer to the mode where the density does not reach."""
    prior = jax.jit(plan.target.log_prior)
    starts = []
    for draw in near.shape.draws(count, seed):
        parts = 0.5 ** np.arange(11)
        points = near.positions(near.points(parts[:, None] * draw)).astype(plan.dtype)
        starts.append(next((p for p in points if np.isfinite(prior(p))), points[-1]))
    return tuple(starts)


def sd_error_on(
    plan: Plan, near: Tangent, positions: np.ndarray, effective: float, count: int, rows_used: int
) -> tuple[float | None, float, bool]:
    """The worst direction's error of the sd, its standard error, and whether that is far above what an ESS explains.

    positions: draws (chains, draws, d). The last is so where gradients at some draws are so large that they decide all:
    where a step too large has thrown the chain at the boundary of a map.

    With z = B^T (x - mode), the score g of ``carrier`` and S the inverse of the Hessian, whatever the law's shape

        E z_c (S B^T g)_c = E (B^T P(x) B S)_cc ,

    in which a law at a temperature T has T times the part of the left side that is of U. Where there is no matrix, the
    trace: E (x - mode) . g = m.
    """
    chains, _, d = positions.shape
    space, shape = near.space, near.shape
    with jax.enable_x64(True):
        x = embedded(space, positions.reshape(-1, d))
        every = max(1, len(x) // count)
        few, z = x[::every], near.coordinates(x)
        values = jax.jit(plan.target.log_prior)
        inside = np.isfinite([values(p) for p in positions.reshape(-1, d)[::every].astype(np.float64)]).all()
        beyond = remainder(near.target, near.point, few, rows_used)
        if not inside or not np.isfinite(beyond).all():
            return None, 0.0, False
        away = few - near.point
        if near.hessian is None:
            product = hessian_product(near.target, near.point)
            ambient = near.ambient + np.array([product(a) for a in away]) + beyond
            along = np.sum(away * _projected(space, few, ambient), axis=1) - _divergences(space, few, away)
            ratio = np.array([along.mean() / space.dim])
            error = 1 / np.sqrt(2 * min(effective, len(few)) * space.dim)
            return float(np.abs(np.sqrt(np.maximum(ratio, 0.0)) - 1).max()), float(error), False
        assert near.basis is not None
        g = scores(space, few, near.ambient + away @ near.hessian + beyond) @ near.basis
        S, at = shape.covariance(), near.coordinates(few)
        some = few[:: max(1, int(len(few) * near.basis.size * len(S) / WORK))]
        right = projected_pairs(space, some, near.basis, near.basis @ S)
        goal = np.einsum("kcc->c", right) / len(some)
    curved = at * ((g - at @ shape.hessian) @ S)
    ratio = ((z**2).mean(0) + curved.mean(0)) / goal
    by_stretch = np.array([part.mean(0) for part in np.array_split(curved, 8 * chains)]) / goal
    noisy = float(np.max(by_stretch.std(0, ddof=1)) / np.sqrt(len(by_stretch)) / 2)
    by_chance = 1 / np.sqrt(2 * effective)
    erratic = noisy > max(ERRATIC, 3 * by_chance)
    error = float(np.abs(np.sqrt(np.maximum(ratio, 0.0)) - 1).max())
    return error, float(np.hypot(by_chance, min(noisy, 10.0))), erratic


def step_at_edges(plan: Plan, near: Tangent, positions: np.ndarray) -> float:
    """The factor of the step, at most 1, with which no chain is thrown away at the boundary of a map from R^n.

    Near a boundary at the distance y the density is like y^k, its curvature k / y^2, and a step that finds itself where
    eps^2 k / y^2 > ``RESOLVED`` throws the chain, on R^n as far as it likes. Of the draw that is nearest to the
    boundary k and y are measured, and P(y) ~ y^(k+1) says how near a run comes that is ten times as long as this one.
    """
    worst = 1.0
    kernel: Any = plan.kernel
    bare = [f for f in near.space.factors if isinstance(f.space, Mapped) and isinstance(f.carrier, Euclidean)]
    if not bare:
        return worst
    scales = np.broadcast_to(np.asarray(kernel.scales, float), (len(near.space.factors),))
    steps = 10 * plan.chains * (plan.warmup + plan.draws * plan.thin)
    with jax.enable_x64(True):
        x = embedded(near.space, positions.reshape(-1, positions.shape[-1]))
        gradient = gradient_of(near.target)
        for f, scale in zip(near.space.factors, scales, strict=True):
            if f not in bare:
                continue
            part = slice(f.first_point, f.last_point)
            volume = lambda p, f=f: f.space.log_volume(p.reshape(f.carrier.shape))
            away = np.asarray(jax.jit(jax.vmap(jax.grad(volume)))(jnp.asarray(x[:, part])))
            at = int(np.argmax(np.abs(away).max(1)))
            n = np.zeros(near.space.size)
            n[part] = away[at] * (np.abs(away[at]) > 0.5 * np.abs(away[at]).max())
            n /= np.linalg.norm(n)
            y = 1 / float(np.abs(away[at]).max())
            there = x[at]
            left, right = (float(n @ gradient(there + part * 1e-3 * y * n)) for part in (-1, 1))
            curvature, force = (right - left) / (2e-3 * y), (left + right) / 2
            if not curvature > 0:
                continue
            k = max(1.0, force**2 / curvature)
            nearer = min(1.0, (len(x) / steps) ** (1 / (k + 1)))
            allowed = np.sqrt(RESOLVED * nearer**2 / curvature) / scale
            worst = min(worst, float(allowed / kernel.step_size))
    return max(worst, LEAST_AT_EDGES)


def _projected(space: Product, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    one = jax.jit(lambda x, u: jax.lax.map(lambda p: space.project(*p), (x, u), batch_size=16))
    return np.asarray(one(jnp.asarray(x), jnp.asarray(u)))


def _divergences(space: Product, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """b . h(x), the divergence of the field P b, by random probes, (k,)."""
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, space.size)))

    def one(pair: Any) -> Any:
        x, b = pair

        def probe(z: Any) -> Any:
            return z @ jax.jvp(lambda y: space.project(y, b), (x,), (space.project(x, z),))[1]

        return jax.lax.map(probe, signs).mean()

    return np.asarray(jax.jit(lambda x, b: jax.lax.map(one, (x, b)))(jnp.asarray(x), jnp.asarray(b)))
