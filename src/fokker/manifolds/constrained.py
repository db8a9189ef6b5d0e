"""Sets with a boundary, each through a space that has none (Lan, Zhou & Shahbaba 2014)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.errors import SpaceError
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.oblique import Oblique
from fokker.manifolds.sphere import Sphere


@dataclass(frozen=True, init=False)
class Positive:
    """Arrays of numbers >= 0: ``Positive()`` one, ``Positive(3)`` three. theta = y^2, log_volume = sum log |2 y|."""

    shape: tuple[int, ...]

    def __init__(self, *shape: int) -> None:
        object.__setattr__(self, "shape", shape)

    @property
    def carrier(self) -> Euclidean:
        return Euclidean(*self.shape)

    def value(self, x: Array) -> Array:
        return x * x

    def embed(self, theta: Array) -> Array:
        return jnp.sqrt(theta)

    def log_volume(self, x: Array) -> Array:
        return jnp.sum(jnp.log(jnp.abs(2 * x)))

    def off(self, theta: Array) -> Array:
        return jnp.where(jnp.min(theta) > 0, 0.0, jnp.inf)


@dataclass(frozen=True)
class Ball:
    """|theta| <= 1 in R^d: the first d entries of a point of the sphere S^d; log_volume = log |x_d|."""

    d: int

    def __post_init__(self) -> None:
        if self.d < 1:
            raise SpaceError(f"Ball(d) needs d >= 1, got {self.d}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def carrier(self) -> Sphere:
        return Sphere(self.d + 1)

    def value(self, x: Array) -> Array:
        return x[: self.d]

    def embed(self, theta: Array) -> Array:
        return jnp.concatenate([theta, jnp.sqrt(jnp.maximum(1 - jnp.sum(theta**2), 0))[None]])

    def log_volume(self, x: Array) -> Array:
        return jnp.log(jnp.abs(x[self.d]))

    def off(self, theta: Array) -> Array:
        return jnp.where(jnp.sum(theta**2) < 1, 0.0, jnp.inf)


@dataclass(frozen=True)
class Box:
    """low <= theta <= high, entry by entry: each is a circle seen from the side.

    theta = low + (high - low) (1 + x_0) / 2, (x_0, x_1) on the circle; log_volume = sum log(|x_1| (high - low) / 2).
    low, high: numbers or (d,) arrays; ``Box(0.0, np.ones(3))``.
    """

    low: Any
    high: Any
    d: int = field(init=False)

    def __post_init__(self) -> None:
        low, high = np.broadcast_arrays(np.atleast_1d(self.low), np.atleast_1d(self.high))
        if low.ndim != 1 or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise SpaceError(
                f"Box needs finite low < high, numbers or (d,) arrays, got {self.low!r} and {self.high!r}."
            )
        for name, value in (("low", tuple(map(float, low))), ("high", tuple(map(float, high))), ("d", len(low))):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def carrier(self) -> Oblique:
        return Oblique(2, self.d)

    def value(self, x: Array) -> Array:
        low, width = self._sides(x)
        return low + width * (1 + x[0]) / 2

    def embed(self, theta: Array) -> Array:
        low, width = self._sides(theta)
        x = jnp.clip(2 * (theta - low) / width - 1, -1, 1)
        return jnp.stack([x, jnp.sqrt((1 - x) * (1 + x))])

    def log_volume(self, x: Array) -> Array:
        return jnp.sum(jnp.log(jnp.abs(x[1]) * self._sides(x)[1] / 2))

    def off(self, theta: Array) -> Array:
        low, width = self._sides(theta)
        return jnp.where(((theta > low) & (theta < low + width)).all(), 0.0, jnp.inf)

    def _sides(self, like: Array) -> tuple[Array, Array]:
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        return low, high - low


@dataclass(frozen=True)
class HalfSpace:
    """normal . theta >= offset in R^d, normal a (d,) vector of any length.

    y in R^d, with u the unit normal: theta = y + u ((u . y)^2 - u . y + offset / |normal|), log_volume = log |2 u . y|.
    """

    normal: Any
    offset: float = 0.0

    def __post_init__(self) -> None:
        normal = np.asarray(self.normal, float)
        if normal.ndim != 1 or not np.isfinite(normal).all() or not normal.any():
            raise SpaceError(f"HalfSpace needs a (d,) vector that is not 0 as its normal, got {self.normal!r}.")
        object.__setattr__(self, "normal", tuple(map(float, normal)))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.normal),)

    @property
    def carrier(self) -> Euclidean:
        return Euclidean(len(self.normal))

    def value(self, x: Array) -> Array:
        u, offset = self._unit(x)
        along = u @ x
        return x + u * (along**2 - along + offset)

    def embed(self, theta: Array) -> Array:
        u, offset = self._unit(theta)
        inside = u @ theta - offset
        return theta + u * (jnp.sqrt(jnp.maximum(inside, 0)) - u @ theta)

    def log_volume(self, x: Array) -> Array:
        return jnp.log(jnp.abs(2 * (self._unit(x)[0] @ x)))

    def off(self, theta: Array) -> Array:
        u, offset = self._unit(theta)
        return jnp.where(u @ theta > offset, 0.0, jnp.inf)

    def _unit(self, like: Array) -> tuple[Array, float]:
        length = math.hypot(*self.normal)
        return jnp.asarray(self.normal, like.dtype) / length, self.offset / length
