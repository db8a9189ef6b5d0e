"""Orthonormal frames, and the orthogonal group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import expm

from fokker.errors import SpaceError
from fokker.numeric.random_jax import normal


@dataclass(frozen=True)
class Stiefel:
    """St(n, p): matrices X (n, p) with X^T X = I, and the metric and measure of R^{n p} (Byrne & Girolami 2013).

        project  U - X (X^T U + U^T X) / 2
        flow     [X+, V+] = [X, V] expm(t [[A, -S], [I, A]]) diag(e^{-t A}, e^{-t A}),  A = X^T V,  S = V^T V

    ``Stiefel(n, 1)`` is the sphere, ``Stiefel(n, n)`` the orthogonal group, whose two parts no flow connects.
    A flow costs O(n p^2 + p^3).
    """

    n: int
    p: int

    def __post_init__(self) -> None:
        if not 1 <= self.p <= self.n or self.n < 2:
            raise SpaceError(f"Stiefel(n, p) needs n >= 2 and 1 <= p <= n, got n={self.n} and p={self.p}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.p)

    @property
    def dim(self) -> int:
        return self.n * self.p - self.p * (self.p + 1) // 2

    def project(self, x: Array, u: Array) -> Array:
        return frame_tangent(x, u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        speed = jnp.sqrt(self.square(x, v))
        u, t = v / jnp.where(speed > 0, speed, 1), t * speed  # of length 1, so that the blocks are of one size
        A, S, identity = x.T @ u, u.T @ u, jnp.eye(self.p, dtype=x.dtype)
        A = (A - A.T) / 2  # skew but for rounding, which the exponential would let grow
        turn = jnp.concatenate([x, u], axis=1) @ expm(t * jnp.block([[A, -S], [identity, A]]))
        back = expm(-t * A)
        return turn[:, : self.p] @ back, speed * turn[:, self.p :] @ back

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return to_frame(x, v)

    def off(self, x: Array) -> Array:
        return frame_error(x)

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        return random_frame(key, self.shape, dtype)


@dataclass(frozen=True)
class Orthogonal:
    """O(n): orthogonal matrices. The flow X expm(t X^T V) keeps the determinant, 1 or -1, that the chain began with."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 2:
            raise SpaceError(f"Orthogonal(n) needs n >= 2, got {self.n}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.n)

    @property
    def dim(self) -> int:
        return self.n * (self.n - 1) // 2

    def project(self, x: Array, u: Array) -> Array:
        return frame_tangent(x, u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        A = x.T @ v
        turn = expm(t * (A - A.T) / 2)
        return x @ turn, v @ turn

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return to_frame(x, v)

    def off(self, x: Array) -> Array:
        return frame_error(x)

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        return random_frame(key, self.shape, dtype)


def frame_tangent(x: Array, u: Array) -> Array:
    """What of u is tangent to the frames at x."""
    along = x.T @ u
    return u - x @ ((along + along.T) / 2)


def to_frame(x: Array, v: Array) -> tuple[Array, Array]:
    """A matrix that rounding has moved from the frames back among them, and its velocity tangent."""
    x = newton_schulz(x)
    return x, frame_tangent(x, v)


def newton_schulz(x: Array) -> Array:
    """The nearest frame, to second order in the distance from it: enough for what rounding does in a step."""
    return x @ (3 * jnp.eye(x.shape[1], dtype=x.dtype) - x.T @ x) / 2


def frame_error(x: Array) -> Array:
    return jnp.max(jnp.abs(x.T @ x - jnp.eye(x.shape[1], dtype=x.dtype)))


def random_frame(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Uniform: the Q of a normal matrix, with the signs that make its R positive on the diagonal."""
    Q, R = jnp.linalg.qr(normal(key, shape, dtype=dtype))
    return Q * jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(dtype)
