"""Scalars, diagonals and dense matrices in one vocabulary, and the noise that compensates gradient noise.

A covariance or diffusion is an array of shape (), (d,) or (d, d), or ``LowRank`` for F F^T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fokker.numeric.random_jax import normal


class LowRank(NamedTuple):
    """A covariance F F^T, factor: (d, rank)."""

    factor: Array


def times(matrix: Any, vector: Array) -> Array:
    """matrix @ vector for a scalar, diagonal or dense matrix."""
    return matrix @ vector if jnp.ndim(matrix) == 2 else matrix * vector


def root_times(matrix: Any, vector: Array) -> Array:
    """L @ vector with L L^T = matrix (Cholesky); a standard normal vector becomes Normal(0, matrix)."""
    return jnp.linalg.cholesky(matrix) @ vector if jnp.ndim(matrix) == 2 else jnp.sqrt(matrix) * vector


def inverse(matrix: Any) -> Any:
    """The inverse, in the same form."""
    return jnp.linalg.inv(matrix) if jnp.ndim(matrix) == 2 else 1.0 / matrix


def sandwich(outer: Any, inner: Any) -> Any:
    """outer @ inner @ outer for symmetric outer; low rank stays low rank."""
    if isinstance(inner, LowRank):
        return LowRank(outer @ inner.factor if jnp.ndim(outer) == 2 else jnp.reshape(outer, (-1, 1)) * inner.factor)
    if jnp.ndim(outer) < 2 and jnp.ndim(inner) < 2:
        return outer * inner * outer
    d = max(jnp.shape(outer) + jnp.shape(inner))
    return as_dense(outer, d) @ as_dense(inner, d) @ as_dense(outer, d)


def as_dense(matrix: Any, d: int) -> Array:
    """The (d, d) matrix."""
    if isinstance(matrix, LowRank):
        return matrix.factor @ matrix.factor.T
    return matrix if jnp.ndim(matrix) == 2 else jnp.diag(jnp.broadcast_to(matrix, (d,)))


def compensated_normal(
    key: Any, injected: Any, taken: Any, d: int, dtype: Any, stream: int = 0
) -> tuple[Array, Array]:
    """A draw of Normal(0, injected - taken) and the largest share of injected noise that is taken in any direction.

    injected is 2 eps D, taken is eps^2 B-hat or None (Ma, Chen & Fox 2015, eq. 9). The difference is PSD if and only
    if the share is <= 1; directions beyond that get no noise, and the caller reports the share. The share of every
    method here is proportional to eps, so eps / share is the largest step that would do.
    """
    z = normal(key, (d,), stream, dtype)
    if taken is None:
        return root_times(injected, z), jnp.zeros((), dtype)
    if isinstance(taken, LowRank) and jnp.ndim(injected) < 2:
        scaled = taken.factor / jnp.sqrt(jnp.reshape(jnp.broadcast_to(injected, (d,)), (-1, 1)))
        shares, turn = jnp.linalg.eigh(scaled.T @ scaled)
        shares = jnp.maximum(shares, 0.0)
        axes = scaled @ turn * jnp.where(shares > 0, jax.lax.rsqrt(jnp.where(shares > 0, shares, 1.0)), 0.0)
        kept = jnp.sqrt(jnp.maximum(1.0 - shares, 0.0))
        return jnp.sqrt(injected) * (z - axes @ ((1.0 - kept) * (axes.T @ z))), shares[-1]
    if jnp.ndim(injected) < 2 and jnp.ndim(taken) < 2:
        share = jnp.max(taken / injected)
        return jnp.sqrt(jnp.maximum(injected - taken, 0.0)) * z, share
    root = jnp.linalg.cholesky(as_dense(injected, d))
    half = jax.scipy.linalg.solve_triangular(root, as_dense(taken, d), lower=True)
    whitened = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    shares, axes = jnp.linalg.eigh((whitened + whitened.T) / 2)
    return root @ (axes @ (jnp.sqrt(jnp.maximum(1.0 - shares, 0.0)) * z)), shares[-1]
