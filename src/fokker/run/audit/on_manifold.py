"""The draws of a run on a manifold as the audit sees them: flat coordinates, and a score that belongs there.

Points x are looked at along constant directions B in R^n, u = B^T (x - c): all entries of a flat leaf, and of another
the principal directions of its draws, as many as it has dimensions and further ones that are not much narrower. For
these hold the identities of ``carrier``,

    E B^T g = 0,        E u (B^T g)^T = E B^T P(x) B ,

with the score g = P grad U_H - h: those of flat space but for the right side. Where they say nothing, on Grassmann
manifolds and hyperboloids, there is no such view, and what rests on it is not measured.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import block_diag

from fokker.geodesic.tangent import noise_at, pace
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.manifold import Mapped
from fokker.run.audit.draws import Draws
from fokker.run.audit.gradient_noise import Measured
from fokker.run.carrier import (
    coordinates_of_factors,
    curved_space,
    embedded,
    on_carrier,
    projected_pairs,
    projector,
    scores,
    tangent_basis,
    without_identity,
)
from fokker.sgmcmc.matrix import LowRank, as_dense
from fokker.sgmcmc.schedules import constant

if TYPE_CHECKING:
    from fokker.manifolds.product import Product
    from fokker.run.plan import Plan
    from fokker.target import Target

NARROW = 0.1  # variance of a direction beyond the dimension, against the median of the others, that is looked at


@dataclass(frozen=True)
class View:
    """Flat coordinates of the draws."""

    space: Product
    target: Target  # on points
    points: np.ndarray  # (chains, draws, n)
    basis: np.ndarray  # B (n, k), orthonormal
    draws: Draws  # of u, (chains, draws, k)

    def scores(self, points: np.ndarray, ambient: np.ndarray) -> np.ndarray:
        """B^T g at points (j, n), from gradients of U_H in R^n: (j, k)."""
        return scores(self.space, points, ambient) @ self.basis

    def pairings(self, points: np.ndarray) -> np.ndarray:
        """B^T P(x) B, (j, k, k)."""
        return projected_pairs(self.space, points, self.basis, self.basis)

    def pulled(self, points: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """From gradients of U by the parameters (j, d) those of U_H by the points, in R^n: (j, n)."""
        if not self.space.mapped:
            return gradients
        one = lambda x, g: jax.vjp(self.space.value, x)[1](g)[0] - jax.grad(self.space.log_volume)(x)
        with jax.enable_x64(True):
            wide = (jnp.asarray(points, jnp.float64), jnp.asarray(gradients, jnp.float64))
            return np.asarray(jax.jit(jax.vmap(one))(*wide))

    def around(self, rng: np.random.Generator, count: int, sds: float) -> np.ndarray:
        """Parameters (count, d) of points that are so many sds away from draws, along geodesics."""
        flat = self.points.reshape(-1, self.space.size)
        values, vectors = np.linalg.eigh(self.draws.covariance)
        root = self.basis @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        x = flat[rng.choice(len(flat), count)]
        v = sds * rng.standard_normal((count, root.shape[1])) @ root.T
        go = lambda x, v: self.space.value(self.space.retract(*self.space.flow(x, self.space.project(x, v), 1.0))[0])
        with jax.enable_x64(True):
            return np.asarray(jax.jit(jax.vmap(go))(jnp.asarray(x, jnp.float64), jnp.asarray(v)))


@dataclass(frozen=True)
class Linear:
    """A run near its mean as a run in flat space: tangent coordinates, each leaf in units of its scale."""

    plan: Plan
    precision: np.ndarray  # (m, m)
    measured: Measured | None
    names: list[str]
    groups: np.ndarray  # (m,) leaf of each coordinate


def view_of(plan: Plan, x: Draws) -> View | str | None:
    """None for a flat space; a sentence for one that has no such view."""
    space = curved_space(plan.target, plan.starts[0])
    if space is None:
        return None
    if (odd := without_identity(space)) is not None:
        return f"On {odd.space}, where {odd.name} lies, no identity for this is known here."
    chains, draws, d = x.positions.shape
    points = embedded(space, x.positions.reshape(-1, d))
    blocks, names = [], []
    entries, leaves = plan.layout.entry_names(), [v.name for v in plan.layout.variables]
    for f, leaf in zip(space.factors, leaves, strict=True):
        own = points[:, f.first_point : f.last_point]
        block = _directions(own, f.carrier)
        blocks.append(block)
        whole = block.shape[1] == own.shape[1]
        if whole and not isinstance(f.space, Mapped):
            names += entries[f.first : f.last]
        elif whole and f.last - f.first == own.shape[1]:
            names += [f"point of {name}" for name in entries[f.first : f.last]]
        else:
            names += [f"{leaf}, direction {i + 1}" for i in range(block.shape[1])]
    basis = np.asarray(block_diag(*blocks))
    u = ((points - points.mean(0)) @ basis).reshape(chains, draws, -1)
    seen = Draws.from_array(u, names, x.spacing, x.may_reject)
    return View(space, on_carrier(plan.target, space), points.reshape(chains, draws, -1), basis, seen)


def _directions(points: np.ndarray, carrier: Any) -> np.ndarray:
    """(n, k) orthonormal, the widest first; the entries where all of them count."""
    size = points.shape[1]
    if isinstance(carrier, Euclidean):
        return np.eye(size)
    values, vectors = np.linalg.eigh(np.cov(points.T).reshape(size, size))
    values, vectors = values[::-1], vectors[:, ::-1]
    m = carrier.dim
    k = m + int((values[m:] > NARROW * np.median(values[:m])).sum())
    return np.eye(size) if k == size else vectors[:, :k]


def linear_run(plan: Plan, view: View, precision: np.ndarray, measured: Measured | None, near: np.ndarray) -> Linear:
    """The run in the tangent space at the mean of the draws. precision: (k, k) of u; near: parameters (points, d) at
    which the noise was measured, each brought there by the nearest isometry."""
    space, kernel = view.space, plan.kernel
    mean = view.points.reshape(-1, space.size).mean(0)
    with jax.enable_x64(True):
        back = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda _, y: space.retract(y, y)[0], x))
        centre = back(jnp.asarray(mean, jnp.float64))
        if not bool(jnp.isfinite(centre).all()) or float(jnp.linalg.norm(centre)) == 0:
            centre = jnp.asarray(view.points[0, -1], jnp.float64)
        of_point = jax.jit(lambda x: projector(space, x))
        T = tangent_basis(space, np.asarray(of_point(centre)))
        leaf = coordinates_of_factors(space)
        scales = np.asarray(pace(space, jnp.ones(()), getattr(kernel, "scales", 1.0)).time)
        s = np.broadcast_to(scales, (len(space.factors),))[leaf]
        R = view.basis.T @ T
        H = (R.T @ precision @ R) * np.outer(s, s)
        seen = None
        if measured is not None:
            turned = []
            for theta in near:
                x = jnp.asarray(embedded(space, np.asarray(theta, float)[None])[0])
                J = np.asarray(jax.jacfwd(space.value)(x)) if space.mapped else np.eye(space.size)
                B = tangent_basis(space, np.asarray(of_point(x)))
                left, _, right = np.linalg.svd(T.T @ B)
                turned.append((J @ B @ (left @ right).T * s, B @ (left @ right).T * s, x))
            V = np.array([t.T @ c @ t for (t, _, _), c in zip(turned, measured.covariances, strict=True)])
            known = measured.known
            if known is not None:
                known = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), known)
                point = noise_at(space, turned[0][2], known)
                F = point.factor if isinstance(point, LowRank) else None
                t = turned[0][1]
                known = t.T @ np.asarray(F @ F.T if F is not None else as_dense(point, space.size)) @ t
            seen = Measured(np.zeros((len(V), len(s))), V, known, measured.batches)
        C: Any = np.asarray(getattr(kernel, "friction", 1.0))
        if C.ndim:
            C = T.T @ np.asarray(as_dense(jnp.asarray(C), space.size)) @ T
    flat: Any = dataclasses.replace(kernel, friction=C, scales=1.0, schedule=constant())  # type: ignore[type-var]
    dims = zip(plan.layout.variables, space.dims, strict=True)
    names = [f"{v.name}, tangent {i + 1}" for v, m in dims for i in range(m)]
    return Linear(dataclasses.replace(plan, kernel=flat), (H + H.T) / 2, seen, names, leaf)
