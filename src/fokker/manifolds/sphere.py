"""The unit sphere. With the same formulas column by column: ``oblique.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.numeric.random_jax import normal
from fokker.numeric.sums import dot


@dataclass(frozen=True)
class Sphere:
    """The unit sphere S^{n-1} in R^n, with its surface as measure (Liu, Zhu & Song 2016, eq. 7).

    project = I - x x^T. The flow is the great circle, with sin(a t) / a in a form that is finite at speed a = 0.
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 2:
            raise SpaceError(f"Sphere(n) needs n >= 2 entries, got {self.n}; the circle is Sphere(2).")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def dim(self) -> int:
        return self.n - 1

    def project(self, x: Array, u: Array) -> Array:
        return u - x * dot(x, u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return dot(v, v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        return great_circle(x, v, t)

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return to_unit(x, v)

    def off(self, x: Array) -> Array:
        return jnp.abs(dot(x, x) - 1) / 2

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        z = normal(key, self.shape, dtype=dtype)
        return to_unit(z, z)[0]


def great_circle(x: Array, v: Array, t: Any) -> tuple[Array, Array]:
    """x cos(a t) + v sin(a t) / a and its velocity, a = |v|; column by column."""
    speed = jnp.sqrt(dot(v, v))
    cos, sin = jnp.cos(speed * t), jnp.sin(speed * t)
    return x * cos + v * jnp.where(speed > 0, sin / jnp.where(speed > 0, speed, 1), t), v * cos - x * (speed * sin)


def to_unit(x: Array, v: Array) -> tuple[Array, Array]:
    """Points of length 1, velocities orthogonal to them."""
    x = x / jnp.sqrt(dot(x, x))
    return x, v - x * dot(x, v)
