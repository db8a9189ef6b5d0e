"""R^n, the space of parameters without a constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from fokker.numeric.random_jax import normal


@dataclass(frozen=True, init=False)
class Euclidean:
    """All arrays of a shape: ``Euclidean()`` a number, ``Euclidean(3)`` a vector, ``Euclidean(3, 2)`` a matrix.

    Geodesics are straight lines. There is no uniform law; ``random_point`` is the origin.
    """

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", shape)

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    def project(self, x: Array, u: Array) -> Array:
        return u

    def gradient(self, x: Array, ambient: Array) -> Array:
        return ambient

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return z

    def random_tangent(self, key: Any, x: Array) -> Array:
        return normal(key, self.shape, dtype=x.dtype)

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        return x + t * v, v

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return x, v

    def off(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        return jnp.zeros(self.shape, dtype)
