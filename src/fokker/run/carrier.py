"""A posterior as the carriers of its space see it: points x (n,) in place of parameters, and what bends there.

With P(x) the projector on the tangent space and U_H the potential with respect to the Hausdorff measure, for every
constant vector b the field P b has the divergence b . h(x), h the mean curvature vector: -(n - 1) x on a sphere, 0
where the space is flat. So with the score g(x) = P grad U_H - h, integration by parts reads as in flat space,

    E g = 0,        E (x - c) g^T = E P(x)    for every constant point c

on every manifold without a boundary, and on one where the density vanishes at its boundary, as under every ``Mapped``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import block_diag

from fokker.geodesic.tangent import is_flat, space_of
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.grassmann import Grassmann
from fokker.manifolds.hyperboloid import Hyperboloid

if TYPE_CHECKING:
    from fokker.manifolds.product import Factor, Product
    from fokker.target import Target

AT_ONCE = 2_000_000  # numbers that one call of a vectorised function makes


def curved_space(target: Target, position: Any) -> Product | None:
    """The space of a target, None where it is flat and points are parameters."""
    if target.space is None:
        return None
    space = space_of(target, position)
    return None if is_flat(space) and not space.mapped else space


def without_identity(space: Product) -> Factor | None:
    """A factor on which the identities of the module say nothing about draws, if there is one.

    A point of a Grassmann manifold stands for its plane in a frame that the chain turns as it likes, and on a
    hyperboloid the projector is not symmetric.
    """
    return next((f for f in space.factors if isinstance(f.carrier, (Grassmann, Hyperboloid))), None)


def on_carrier(target: Target, space: Product) -> Target:
    """exp(-U_H) as a target on points (n,): the volumes of the maps are in its prior. Smooth off the carrier, too."""
    if not space.mapped:
        return dataclasses.replace(target, space=None, unravel=None)
    prior, likelihood = target.log_prior, target.log_likelihood
    return dataclasses.replace(
        target,
        log_prior=lambda x: prior(space.value(x)) + space.log_volume(x),
        log_likelihood=None if likelihood is None else lambda x, batch: likelihood(space.value(x), batch),
        linear=None,
        space=None,
        unravel=None,
    )


def projector(space: Product, x: Array) -> Array:
    """P(x), (n, n)."""
    return jax.vmap(lambda e: space.project(x, e), out_axes=1)(jnp.eye(space.size, dtype=x.dtype))


def mean_curvature(space: Product, x: Array) -> Array:
    """h(x) = sum over tangent directions u of (D_u P) u, (n,)."""
    if is_flat(space):
        return jnp.zeros_like(x)
    along = lambda u: jax.jvp(lambda y: space.project(y, u), (x,), (u,))[1]
    return jax.lax.map(along, projector(space, x).T, batch_size=64).sum(0)


def bend(space: Product, x: Array, ambient: Array, basis: Array) -> Array:
    """What the curvature of the space adds to the Hessian of a function with this gradient in R^n: (m, m)."""
    turned = jax.vmap(lambda e: jax.jvp(lambda y: space.project(y, ambient), (x,), (e,))[1], in_axes=1, out_axes=1)
    return basis.T @ turned(basis)


def tangent_basis(space: Product, P: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the tangent space with the projector P, (n, m), factor by factor."""
    blocks = []
    for f in space.factors:
        part, size = slice(f.first_point, f.last_point), f.last_point - f.first_point
        if isinstance(f.carrier, Euclidean):
            blocks.append(np.eye(size))
        else:
            block = P[part, part]
            blocks.append(np.linalg.eigh((block + block.T) / 2)[1][:, size - f.carrier.dim :])
    return np.asarray(block_diag(*blocks))


def coordinates_of_factors(space: Product) -> np.ndarray:
    """The factor that each of the m tangent coordinates of ``tangent_basis`` belongs to."""
    return np.repeat(np.arange(len(space.factors)), space.dims)


def least_curvature(space: Product, x: np.ndarray) -> np.ndarray:
    """Of each entry of a point, (n,): one over the variance that the uniform law has there, 0 where there is none.

    However wide a posterior, on a compact manifold it is no wider than that: sd 1 / sqrt(n) on the sphere in R^n.
    """
    out = np.zeros(space.size)
    for f in space.factors:
        if not isinstance(f.carrier, (Euclidean, Hyperboloid)):
            part = slice(f.first_point, f.last_point)
            out[part] = (f.last_point - f.first_point) / float(np.sum(x[part] ** 2))
    return out


def embedded(space: Product, positions: np.ndarray) -> np.ndarray:
    """Points (k, n) of parameters (k, d), in float64."""
    if not space.mapped:
        return np.asarray(positions, np.float64)
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(space.embed))(jnp.asarray(positions, jnp.float64)))


def scores(space: Product, points: np.ndarray, ambient: np.ndarray) -> np.ndarray:
    """g at points (k, n), from gradients of U_H in R^n there, (k, n)."""
    if is_flat(space):
        return ambient
    one = lambda x, u: space.project(x, u) - mean_curvature(space, x)
    with jax.enable_x64(True):
        few = max(1, AT_ONCE // space.size**2)
        many = jax.jit(lambda x, u: jax.lax.map(lambda p: one(*p), (x, u), batch_size=few))
        return np.asarray(many(jnp.asarray(points, jnp.float64), jnp.asarray(ambient, jnp.float64)))


def projected_pairs(space: Product, points: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left^T P(x) right at every point, for constant matrices (n, j) and (n, k): (points, j, k)."""
    with jax.enable_x64(True):
        L, R = jnp.asarray(left, jnp.float64), jnp.asarray(right, jnp.float64)
        columns = lambda x: L.T @ jax.vmap(lambda b: space.project(x, b), in_axes=1, out_axes=1)(R)
        few = max(1, AT_ONCE // R.size)
        return np.asarray(jax.jit(lambda x: jax.lax.map(columns, x, batch_size=few))(jnp.asarray(points, jnp.float64)))
