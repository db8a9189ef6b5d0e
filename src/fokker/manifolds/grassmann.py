"""Subspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.manifolds.stiefel import frame_error, newton_schulz, random_frame
from fokker.numeric.random_jax import normal


@dataclass(frozen=True)
class Grassmann:
    """Gr(n, p): subspaces of dimension p of R^n, each by an orthonormal frame X (n, p) (Edelman, Arias & Smith 1998).

    The density has to be the same for X and X O, O orthogonal. Velocities are horizontal, X^T V = 0:

        project  U - X X^T U
        flow     V = W diag(s) Z^T:  X+ = (X Z cos(s t) + W sin(s t)) Z^T,
                                     V+ = (-X Z sin(s t) + W cos(s t)) diag(s) Z^T

    A flow costs a singular value decomposition, O(n p^2).
    """

    n: int
    p: int

    def __post_init__(self) -> None:
        if not 1 <= self.p < self.n:
            raise SpaceError(f"Grassmann(n, p) needs 1 <= p < n, got n={self.n} and p={self.p}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.p)

    @property
    def dim(self) -> int:
        return self.p * (self.n - self.p)

    def project(self, x: Array, u: Array) -> Array:
        return u - x @ (x.T @ u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        W, s, Zt = jnp.linalg.svd(v, full_matrices=False)
        cos, sin, XZ = jnp.cos(s * t), jnp.sin(s * t), x @ Zt.T
        return (XZ * cos + W * sin) @ Zt, ((W * cos - XZ * sin) * s) @ Zt

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        x = newton_schulz(x)
        return x, self.project(x, v)

    def off(self, x: Array) -> Array:
        return frame_error(x)

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        return random_frame(key, self.shape, dtype)
