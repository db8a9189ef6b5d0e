"""The zeros of a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.numeric.random_jax import normal

ATTEMPTS, ITERATIONS = 20, 100  # to reach the manifold from a random point


@dataclass(frozen=True, init=False, repr=False)
class Implicit:
    """Arrays of a shape with constraint(x) = 0, and the surface of that set as measure (``fokker.chmc`` moves on it).

    constraint: a JAX function of an array of ``shape``, to a number or an array of k numbers, whose Jacobian J (k, n)
    has full rank on the set; ``Implicit(lambda x: x @ x - 1, 3)`` is a sphere. Of equations that say the same twice
    leave one out: X^T X = I by its upper triangle.

        project  I - J^T (J J^T)^-1 J = I - N N^T,  N an orthonormal basis of the columns of J^T

    No geodesic and no uniform law is known: ``random_point`` goes from a normal one down to the set.
    """

    constraint: Callable[[Array], Array]
    shape: tuple[int, ...]
    codim: int  # k

    def __init__(self, constraint: Callable[[Array], Array], *shape: int) -> None:
        if not callable(constraint):
            raise SpaceError(f"Implicit(constraint, *shape) needs a function as constraint, got {constraint!r}.")
        try:
            value = jax.eval_shape(constraint, jax.ShapeDtypeStruct(shape, jnp.float32))
        except Exception as error:  # of any kind: the function is the user's
            raise SpaceError(
                f"the constraint could not be evaluated at an array of shape {shape}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(value, jax.ShapeDtypeStruct) or not jnp.issubdtype(value.dtype, jnp.floating):
            raise SpaceError(f"the constraint must return one array of floating numbers, got {value}.")
        if not 1 <= value.size < math.prod(shape):
            raise SpaceError(
                f"Implicit needs at least 1 equation and fewer than the {math.prod(shape)} entries of a point, got "
                f"{value.size}: nothing else is left to move on."
            )
        for name, given in (("constraint", constraint), ("shape", shape), ("codim", value.size)):
            object.__setattr__(self, name, given)

    def __repr__(self) -> str:
        return (
            ", ".join([f"Implicit({getattr(self.constraint, '__name__', 'constraint')}", *map(str, self.shape)]) + ")"
        )

    @property
    def dim(self) -> int:
        return math.prod(self.shape) - self.codim

    def residual(self, x: Array) -> Array:
        """c(x), (k,)."""
        return jnp.ravel(self.constraint(x))

    def jacobian(self, x: Array) -> Array:
        """J(x), (k, n)."""
        return jax.jacrev(self.residual)(x).reshape(self.codim, -1)

    def normals(self, x: Array) -> Array:
        """N(x), (n, k)."""
        return _split(self.jacobian(x))[0]

    def project(self, x: Array, u: Array) -> Array:
        N = self.normals(x)
        return u - (N @ (N.T @ u.ravel())).reshape(self.shape)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self.project(x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self.project(x, z)

    def random_tangent(self, key: Any, x: Array) -> Array:
        return self.project(x, normal(key, self.shape, dtype=x.dtype))

    def square(self, x: Array, v: Array) -> Array:
        return jnp.sum(v * v)

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        x = x - self._excess(x)
        return x, self.project(x, v)

    def off(self, x: Array) -> Array:
        return jnp.sqrt(jnp.sum(self._excess(x) ** 2))

    def is_regular(self, x: Array) -> Array:
        """Whether J has full rank at x: no row depends on the others, and none vanishes some roundings away from x."""
        J, eps = self.jacobian(x), float(jnp.finfo(x.dtype).eps)
        away = normal(jnp.zeros(2, jnp.uint32), self.shape, dtype=x.dtype)
        step = 100 * eps * (1 + jnp.abs(x).max()) / jnp.sqrt(jnp.sum(away**2))
        lengths = jnp.sqrt(jnp.sum(J**2, axis=1, keepdims=True))
        change = (self.jacobian(x + step * away) - J) / lengths
        least = jnp.linalg.svd(J / lengths, compute_uv=False)[-1]
        return least > jnp.maximum(math.sqrt(eps), jnp.sqrt(jnp.sum(change**2)))  # False, too, where a length is 0

    def random_point(self, key: Any, dtype: Any = jnp.float32) -> Array:
        """Newton's iteration from normal points, until one leads to the set; not finite where none does."""
        z = normal(key, (ATTEMPTS, *self.shape), dtype=dtype)
        near = math.sqrt(jnp.finfo(dtype).eps)

        def descend(z: Array) -> tuple[Array, Array]:
            def closer(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                i, x, _ = carry
                excess = self._excess(x)
                return i + 1, x - excess, jnp.abs(excess).max() <= near * (1 + jnp.abs(x).max())

            onward = lambda carry: (carry[0] < ITERATIONS) & ~carry[2] & jnp.isfinite(carry[1]).all()
            _, x, there = jax.lax.while_loop(onward, closer, (jnp.int32(0), z, jnp.zeros((), bool)))
            return x, there

        def try_next(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            return carry[0] + 1, *descend(z[carry[0]])

        onward = lambda carry: (carry[0] < ATTEMPTS) & ~carry[2]
        _, x, there = jax.lax.while_loop(onward, try_next, (jnp.int32(0), z[0], jnp.zeros((), bool)))
        return jnp.where(there, x, jnp.nan)

    def _excess(self, x: Array) -> Array:
        """J^T (J J^T)^-1 c: Newton's step from the set to x, the distance between them to second order."""
        N, R = _split(self.jacobian(x))
        return (N @ jax.scipy.linalg.solve_triangular(R, self.residual(x), trans="T")).reshape(self.shape)


def _split(J: Array) -> tuple[Array, Array]:
    """J^T = N R with orthonormal columns N (n, k) and R (k, k) upper triangular."""
    if len(J) > 1:
        return jnp.linalg.qr(J.T)
    length = jnp.sqrt(jnp.sum(J**2, axis=1, keepdims=True))
    return (J / length).T, length
