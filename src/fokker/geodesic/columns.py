"""SGGMC on many spheres, one after the other in the cache.

On an Oblique the spheres meet in the gradient alone. Made array by array, a step of ``sggmc`` on a state larger than the
caches goes through memory for each of its operations; here every sphere makes all of its step while its point, velocity
and noise are in the first-level cache:

    "aboba"  for all spheres: geodesic eps/2.  One gradient.  For all spheres: friction, kick and noise, geodesic eps/2.
    "baoab"  one gradient.  For all spheres: the whole step.

The same chain as the step of ``sggmc``, to rounding: entry (j, i) of a point has number j k + i of the step's normals.

Two things make it fast. Point and velocity of a sphere lie side by side in one array, since a compiled loop updates one
array in place and copies two. And nothing else of that size is kept: the position is put together when it is asked for.
A run asks at the draws it keeps, and a gradient that does not depend on it not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fokker.manifolds.oblique import Oblique
from fokker.manifolds.sphere import great_circle, to_unit
from fokker.numeric.random_jax import normal_at
from fokker.numeric.sums import dot

if TYPE_CHECKING:
    from fokker.manifolds.product import Product

MIN_BYTES = 1 << 20  # of points and velocities; fewer stay in the caches, and array by array is as fast
MIN_ROWS = 64  # of a column; shorter ones do not fill the vector units
WIDTH = 16  # columns that are turned into rows together: a line of the cache, in single precision


class State(NamedTuple):
    pairs: Array  # (k, 2n), row i: point and velocity of sphere i; (chains, k, 2n) where chains move together
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator

    @property
    def position(self) -> Array:
        """The parameters (n k,) as a run knows them."""
        points = lambda pairs: transposed(pairs, pairs.shape[-1] // 2).ravel()
        return points(self.pairs) if self.pairs.ndim == 2 else jax.vmap(points)(self.pairs)


class Step(NamedTuple):
    """The numbers of one step of ``sggmc``."""

    key: Any
    eps: Array
    time: Array  # of the geodesics
    kick: Array
    heat: Array
    friction: Array


class Seen(NamedTuple):
    """What a step has met, for its info."""

    gradient: Array  # () |P grad U|^2
    velocity: Array  # () |v|^2


def suits(space: Product, dtype: Any) -> bool:
    """Whether the space is one large Oblique, and the machine one whose caches count."""
    if len(space.factors) > 1 or not isinstance(manifold := space.factors[0].space, Oblique):
        return False
    state_bytes = 2 * space.size * jnp.dtype(dtype).itemsize
    return jax.default_backend() == "cpu" and manifold.n >= MIN_ROWS and state_bytes > MIN_BYTES


def state_of(space: Product, x: Array, v: Array, aux: Any) -> State:
    (_, x), (_, v) = (*space.points(x), *space.points(v))
    return State(jnp.concatenate([x.T, v.T], axis=1), jnp.zeros((), jnp.int32), aux)


def aboba(state: State, step: Step, gradient: Callable[..., tuple[Array, Any, Any]]) -> tuple[State, Seen]:
    pairs = over_spheres(state.pairs, None, lambda i, x, v, g: great_circle(x, v, step.time / 2))
    keep, scale = jnp.exp(-step.friction * step.eps / 2), step.heat * jnp.sqrt(2 * step.eps * step.friction)

    def one(i: Array, x: Array, v: Array, g: Array) -> tuple[Array, Array]:
        push = tangent(x, scale * noise(step.key, i, len(pairs), x) - step.kick * g)
        return to_unit(*great_circle(x, keep * (keep * v + push), step.time / 2))

    return moved(state._replace(pairs=pairs), gradient, one)


def baoab(state: State, step: Step, gradient: Callable[..., tuple[Array, Any, Any]]) -> tuple[State, Seen]:
    keep, scale = jnp.exp(-step.friction * step.eps), step.heat * jnp.sqrt(-jnp.expm1(-2 * step.eps * step.friction))

    def one(i: Array, x: Array, v: Array, g: Array) -> tuple[Array, Array]:
        x, v = great_circle(x, v - step.kick * tangent(x, g), step.time / 2)
        v = keep * v + tangent(x, scale * noise(step.key, i, len(state.pairs), x))
        return to_unit(*great_circle(x, v, step.time / 2))

    return moved(state, gradient, one)


def moved(state: State, gradient: Callable[..., tuple[Array, Any, Any]], one: Callable[..., Any]) -> tuple[State, Seen]:
    """All spheres by ``one``, with the gradient where they are now."""
    grad_u, _, aux = gradient(state.position, state.aux)
    k, n = len(state.pairs), state.pairs.shape[1] // 2
    by_column = grad_u.reshape(n, k)
    pairs = over_spheres(state.pairs, by_column, one)
    # in loops of their own, which fall away where nobody looks
    norm = over_spheres(state.pairs, by_column, lambda i, x, v, g: squared(tangent(x, g)), total=True)
    energy = over_spheres(pairs, None, lambda i, x, v, g: squared(v), total=True)
    return State(pairs, state.iteration + 1, aux), Seen(norm, energy)


def over_spheres(pairs: Array, grad_u: Array | None, one: Callable[..., Any], total: bool = False) -> Array:
    """The pairs after x, v = one(i, x, v, g) for every sphere, or the sum of the numbers one(i, x, v, g).

    g of (n, k), if there is one, is turned into rows on the way.
    """
    k, n = len(pairs), pairs.shape[1] // 2
    width = min(WIDTH, k)
    flat = pairs.ravel()

    def block(b: Array, carry: Array) -> Array:
        first = jnp.minimum(b * width, k - width)  # the last block begins where it is whole, and moves what is left
        rows = None if grad_u is None else jax.lax.dynamic_slice(grad_u, (0, first), (n, width)).T.ravel()

        def sphere(i: Array, carry: Array) -> Array:
            pair = jax.lax.dynamic_slice(flat if total else carry, (i * 2 * n,), (2 * n,))
            g = jnp.zeros(n, pairs.dtype) if rows is None else jax.lax.dynamic_slice(rows, ((i - first) * n,), (n,))
            out = one(i, pair[:n], pair[n:], g)
            return carry + out if total else jax.lax.dynamic_update_slice(carry, jnp.concatenate(out), (i * 2 * n,))

        return jax.lax.fori_loop(b * width, jnp.minimum(b * width + width, k), sphere, carry)

    out = jax.lax.fori_loop(0, -(-k // width), block, jnp.zeros((), pairs.dtype) if total else flat)
    return out if total else out.reshape(k, 2 * n)


def squared(u: Array) -> Array:
    return dot(u, u)


def tangent(x: Array, u: Array) -> Array:
    return u - x * dot(x, u)


def noise(key: Any, i: Array, k: int, x: Array) -> Array:
    """The normals of sphere i, those of column i of a (n, k)."""
    return normal_at(key, jax.lax.iota(jnp.uint32, x.size) * jnp.uint32(k) + i.astype(jnp.uint32), dtype=x.dtype)


def transposed(rows: Array, n: int) -> Array:
    """The first n entries of k rows as columns, (n, k). Some rows at a time: one by one each entry is a line of cache."""
    k = len(rows)
    width = min(WIDTH, k)

    def block(b: Array, columns: Array) -> Array:
        first = jnp.minimum(b * width, k - width)
        few = jax.lax.dynamic_slice(rows, (first, 0), (width, n))
        return jax.lax.dynamic_update_slice(columns, few.T, (0, first))

    return jax.lax.fori_loop(0, -(-k // width), block, jnp.zeros((n, k), rows.dtype))
