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


def root(matrix: Any) -> Array:
    """L with L L^T = matrix, in the same form: Cholesky, or the square roots."""
    return jnp.linalg.cholesky(matrix) if jnp.ndim(matrix) == 2 else jnp.sqrt(matrix)


def root_times(matrix: Any, vector: Array) -> Array:
    """L @ vector with L L^T = matrix (Cholesky); a standard normal vector becomes Normal(0, matrix)."""
    return times(root(matrix), vector)


def inverse(matrix: Any) -> Any:
    """The inverse, in the same form."""
    return jnp.linalg.inv(matrix) if jnp.ndim(matrix) == 2 else 1.0 / matrix


def scale_rows(values: Any, matrix: Any) -> Array:
    """diag(values) @ matrix."""
    return _column(values) * matrix if jnp.ndim(matrix) == 2 else values * matrix


def sandwich(outer: Any, inner: Any) -> Any:
    """outer @ inner @ outer^T; low rank stays low rank."""
    if isinstance(inner, LowRank):
        return LowRank(outer @ inner.factor if jnp.ndim(outer) == 2 else _column(outer) * inner.factor)
    if jnp.ndim(outer) < 2 and jnp.ndim(inner) < 2:
        return outer * inner * outer
    d = max(jnp.shape(outer) + jnp.shape(inner))
    if jnp.ndim(outer) < 2:
        return _column(outer) * as_dense(inner, d) * outer
    return outer @ as_dense(inner, d) @ outer.T


def as_dense(matrix: Any, d: int) -> Array:
    """The (d, d) matrix."""
    if isinstance(matrix, LowRank):
        return matrix.factor @ matrix.factor.T
    return matrix if jnp.ndim(matrix) == 2 else jnp.diag(jnp.broadcast_to(matrix, (d,)))


def compensated_normal(
    key: Any, injected: Any, taken: Any, d: int, dtype: Any, stream: int = 0, injected_root: Any = None
) -> tuple[Array, Array]:
    """A draw of Normal(0, injected - taken) and the largest share of injected noise that is taken in any direction.

    injected is 2 eps D, taken is eps^2 B-hat or None (Ma, Chen & Fox 2015, eq. 9). The difference is PSD if
    and only if the share is <= 1; directions beyond that get no noise, and the caller reports the share.
    Where injected is proportional to eps so is the share, and eps / share is the largest step that would do.
    A caller that knows ``injected_root`` (lower triangular where dense) saves a Cholesky factorisation a
    step.
    """
    z = normal(key, (d,), stream, dtype)
    if taken is not None and not isinstance(taken, LowRank) and jnp.ndim(injected) < 2 and jnp.ndim(taken) < 2:
        return jnp.sqrt(jnp.maximum(injected - taken, 0.0)) * z, jnp.max(taken / injected)
    L = root(injected) if injected_root is None else injected_root
    if taken is None:
        return times(L, z), jnp.zeros((), dtype)
    if isinstance(taken, LowRank):
        scaled = _solve_root(L, taken.factor)
        shares, turn = jnp.linalg.eigh(scaled.T @ scaled)
        shares = jnp.maximum(shares, 0.0)
        axes = scaled @ turn * jnp.where(shares > 0, jax.lax.rsqrt(jnp.where(shares > 0, shares, 1.0)), 0.0)
        kept = jnp.sqrt(jnp.maximum(1.0 - shares, 0.0))
        return times(L, z - axes @ ((1.0 - kept) * (axes.T @ z))), shares[-1]
    whitened = _solve_root(L, _solve_root(L, as_dense(taken, d)).T)
    shares, axes = jnp.linalg.eigh((whitened + whitened.T) / 2)
    return times(L, axes @ (jnp.sqrt(jnp.maximum(1.0 - shares, 0.0)) * z)), shares[-1]


def _column(values: Any) -> Array:
    """A number or a (d,) array as a column, to scale rows."""
    return jnp.reshape(values, (-1, 1))


def _solve_root(L: Array, columns: Array) -> Array:
    """L^-1 @ columns for a root in any form."""
    if jnp.ndim(L) == 2:
        return jax.scipy.linalg.solve_triangular(L, columns, lower=True)
    return columns / _column(L)
