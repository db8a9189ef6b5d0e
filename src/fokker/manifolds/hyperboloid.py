"""Hyperbolic space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.numeric.random_jax import normal


@dataclass(frozen=True)
class Hyperboloid:
    """Hyperbolic space of dimension m: <x, x> = -1, x_0 > 0 in R^{m+1}, <a, b> = -a_0 b_0 + a_1 b_1 + ... + a_m b_m.

    Its volume is that of the metric <v, v>, not the surface in Euclidean space; no uniform law exists, ``random_point``
    is the origin (1, 0, ..., 0). Entries grow like e^r with the distance r from there, and lengths of velocities are
    known to 1e-16 e^2r: float64 only, and r up to about 10.

        project  u + <x, u> x;  gradient: the same of the gradient with its entry 0 negated
        flow     cosh(a t) x + sinh(a t) / a v,  a = sqrt <v, v>

    A normal vector in the tangent space is (0, z) moved from the origin to x; projecting one of R^{m+1} is wrong.
    """

    m: int

    def __post_init__(self) -> None:
        if self.m < 1:
            raise SpaceError(f"Hyperboloid(m) needs a dimension m >= 1, got {self.m}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m + 1,)

    @property
    def dim(self) -> int:
        return self.m

    def project(self, x: Array, u: Array) -> Array:
        return u + _lorentz(x, u) * x

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient.at[0].multiply(-1))

    def tangent_normal(self, x: Array, z: Array) -> Array:
        u = z.at[0].set(0)
        return u + _lorentz(u, x) / (1 + x[0]) * x.at[0].add(1)  # x + o

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.tangent_normal(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.maximum(_lorentz(v, v), 0)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        speed = jnp.sqrt(self.square(x, v))
        cosh, sinh = jnp.cosh(speed * t), jnp.sinh(speed * t)
        return cosh * x + jnp.where(
            speed > 0, sinh / jnp.where(speed > 0, speed, 1), t
        ) * v, cosh * v + speed * sinh * x

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        x = x.at[0].set(jnp.sqrt(1 + jnp.sum(x[1:] ** 2)))
        return x, self.project(x, v)

    def off(self, x: Array) -> Array:
        return jnp.where(x[0] > 0, jnp.abs(_lorentz(x, x) + 1) / x[0] ** 2, jnp.inf)

    def random_point(self, key: Any, dtype: Any = jnp.float64) -> Array:
        return jnp.zeros(self.shape, dtype).at[0].set(1)


def _lorentz(a: Array, b: Array) -> Array:
    return jnp.sum(a[1:] * b[1:]) - a[0] * b[0]
