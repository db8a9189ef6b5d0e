"""Many unit spheres side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.manifolds.sphere import great_circle, to_unit
from fokker.numeric.random_jax import normal
from fokker.numeric.sums import dot


@dataclass(frozen=True)
class Oblique:
    """Matrices (n, k) whose columns are unit vectors: the product of k spheres, column by column."""

    n: int
    k: int

    def __post_init__(self) -> None:
        if self.n < 2 or self.k < 1:
            raise SpaceError(f"Oblique(n, k) needs n >= 2 rows and k >= 1 columns, got n={self.n} and k={self.k}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.k)

    @property
    def dim(self) -> int:
        return self.k * (self.n - 1)

    def project(self, x: Array, u: Array) -> Array:
        return u - x * dot(x, u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        return great_circle(x, v, t)

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return to_unit(x, v)

    def off(self, x: Array) -> Array:
        return jnp.max(jnp.abs(dot(x, x) - 1)) / 2

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        z = normal(key, self.shape, dtype=dtype)
        return to_unit(z, z)[0]
