"""A space of parameters as one vector: manifolds side by side, in the ravelled order of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.errors import SpaceError
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.manifold import ByConstraint, Embedded, Mapped, Space

TOLERANCE = 1e-4  # of a start's distance from its manifold; what rounding to float32 leaves is far below


@dataclass(frozen=True)
class Factor:
    """One leaf: entries first .. last - 1 of the parameters, first_point .. last_point - 1 of a point."""

    name: str
    space: Any  # Embedded, or Mapped from such a one
    first: int
    last: int
    first_point: int
    last_point: int

    @property
    def carrier(self) -> Embedded:
        return carrier_of(self.space)


@dataclass(frozen=True)
class Product:
    """M_1 x ... x M_k. Flows, projections and volumes are those of the factors; points x are vectors (n,)."""

    factors: tuple[Factor, ...]

    @property
    def mapped(self) -> bool:
        """Whether values are other than points."""
        return any(isinstance(f.space, Mapped) for f in self.factors)

    @property
    def size(self) -> int:
        """Entries of a point."""
        return self.factors[-1].last_point

    @property
    def dim(self) -> int:
        return sum(f.carrier.dim for f in self.factors)

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(f.carrier.dim for f in self.factors)

    def value(self, x: Array) -> Array:
        """The parameters (d,) of a point (n,)."""
        return self.join([f.space.value(p) if isinstance(f.space, Mapped) else p for f, p in self.points(x)])

    def embed(self, theta: Array) -> Array:
        """A point (n,) with these parameters (d,)."""
        leaves = ((f, theta[f.first : f.last].reshape(f.space.shape)) for f in self.factors)
        return self.join([f.space.embed(v) if isinstance(f.space, Mapped) else v for f, v in leaves])

    def log_volume(self, x: Array) -> Array:
        each = [f.space.log_volume(p) for f, p in self.points(x) if isinstance(f.space, Mapped)]
        return sum(each, jnp.zeros((), x.dtype))

    def potential_gradient(self, x: Array, grad_u: Array) -> Array:
        """From the gradient of U by the parameters, (d,), that of U - log_volume by the point, tangent, (n,)."""
        if self.mapped:
            grad_u = jax.vjp(self.value, x)[1](grad_u)[0] - jax.grad(self.log_volume)(x)
        return self.gradient(x, grad_u)

    def project(self, x: Array, u: Array) -> Array:
        return self._each(lambda m, p, w: m.project(p, w), x, u)

    def gradient(self, x: Array, ambient: Array) -> Array:
        return self._each(lambda m, p, w: m.gradient(p, w), x, ambient)

    def tangent_normal(self, x: Array, z: Array) -> Array:
        return self._each(lambda m, p, w: m.tangent_normal(p, w), x, z)

    def squares(self, x: Array, v: Array) -> Array:
        """|v|^2 of each factor, (factors,)."""
        return jnp.stack(
            [f.carrier.square(p, w) for (f, p), (_, w) in zip(self.points(x), self.points(v), strict=True)]
        )

    def square(self, x: Array, v: Array) -> Array:
        if len(self.factors) == 1:
            return self.factors[0].carrier.square(*(self.points(a)[0][1] for a in (x, v)))
        return jnp.sum(self.squares(x, v))

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]:
        """Geodesics for a time t (), or a time of its own for each factor, (factors,)."""
        times = iter([t] * len(self.factors) if jnp.ndim(t) == 0 else list(t))
        return self._each_pair(lambda m, p, w: m.flow(p, w, next(times)), x, v)

    def retract(self, x: Array, v: Array) -> tuple[Array, Array]:
        return self._each_pair(lambda m, p, w: m.retract(p, w), x, v)

    def spread(self, each: Array) -> Array:
        """(factors,) -> (n,): every factor's number at its entries."""
        sizes = np.array([f.last_point - f.first_point for f in self.factors])
        return jnp.repeat(each, sizes, total_repeat_length=self.size)

    def check(self, theta: Any, what: str = "the start") -> None:
        """SpaceError where the parameters (d,) are not in their space; what: they are called."""
        for f in self.factors:
            leaf = jnp.asarray(np.asarray(theta[f.first : f.last]).reshape(f.space.shape))
            if isinstance(f.space, ByConstraint) and not jax.jit(f.space.is_regular)(leaf):
                raise SpaceError(
                    f"the constraint of {f.name}, {f.space}, has a Jacobian without full rank at the start "
                    f"{_shown(leaf)}: its equations depend on each other there, or one has a double zero. Leave out "
                    "what says the same twice (of X^T X = I the lower triangle), take roots of squares, or start "
                    "elsewhere."
                )
            off = float(f.space.off(leaf))
            if not off <= TOLERANCE:
                where = "on its boundary or outside" if not math.isfinite(off) else f"{off:.2g} away from it"
                raise SpaceError(
                    f"{f.name} is to lie in {f.space}, but {what} is {where}: {_shown(leaf)}. Start inside: "
                    "normalise it, or take fokker.random_params(space, key)."
                )

    def points(self, x: Array) -> list[tuple[Factor, Array]]:
        """What belongs to each factor of a point or a vector (n,)."""
        return [(f, x[f.first_point : f.last_point].reshape(f.carrier.shape)) for f in self.factors]

    def _each(self, f: Callable[[Embedded, Array, Array], Array], x: Array, u: Array) -> Array:
        pairs = zip(self.points(x), self.points(u), strict=True)
        return self.join([f(factor.carrier, p, w) for (factor, p), (_, w) in pairs])

    def _each_pair(self, f: Callable[..., tuple[Array, Array]], x: Array, v: Array) -> tuple[Array, Array]:
        pairs = zip(self.points(x), self.points(v), strict=True)
        points, velocities = zip(*(f(factor.carrier, p, w) for (factor, p), (_, w) in pairs), strict=True)
        return self.join(points), self.join(velocities)

    @staticmethod
    def join(leaves: Sequence[Array]) -> Array:
        """The factors' points or vectors as one, (n,)."""
        return leaves[0].ravel() if len(leaves) == 1 else jnp.concatenate([leaf.ravel() for leaf in leaves])


def carrier_of(space: Any) -> Embedded:
    return space.carrier if isinstance(space, Mapped) else space


def product(space: Space, params: Any) -> Product:
    """The space of these parameters (a pytree; shapes are enough) as one vector. Leaves without a space are Euclidean.

    space: a manifold, where the parameters are one array, or a pytree of manifolds that mirrors them.
    """
    given = {} if space is None else dict(jax.tree_util.tree_leaves_with_path(space))
    for path, leaf in given.items():
        if isinstance(leaf, type):
            name = leaf.__name__
            raise SpaceError(f"space{_at(path)} is the class {name}; give it its size: fokker.{name}(...).")
        if not isinstance(leaf, (Embedded, Mapped)):
            raise SpaceError(f"space{_at(path)} must be a manifold such as fokker.Sphere(3), got {leaf!r}.")
    factors, first, first_point = [], 0, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        shape = tuple(np.shape(leaf))
        manifold = given.pop(path, None)
        if manifold is None:
            manifold = Euclidean(*shape)
        if manifold.shape != shape:
            raise SpaceError(
                f"space{_at(path)} is {manifold}, for arrays of shape {manifold.shape}; the parameter has {shape}."
            )
        last = first + math.prod(shape)
        last_point = first_point + math.prod(carrier_of(manifold).shape)
        factors.append(Factor(f"params{_at(path)}", manifold, first, last, first_point, last_point))
        first, first_point = last, last_point
    if given:
        names = ", ".join(f"params{_at(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(params))
        wrong = ", ".join(f"space{_at(path)}" for path in given)
        raise SpaceError(f"space has to mirror the parameters: there is no parameter for {wrong}; there are {names}.")
    return Product(tuple(factors))


def random_params(space: Space, key: Any, dtype: Any = "float32") -> Any:
    """Parameters in ``space``: uniform on the carriers where such a law exists, at their origins elsewhere."""
    leaves, tree = jax.tree.flatten(space)
    keys = jax.random.split(key, len(leaves))

    def one(leaf: Any, key: Any) -> Array:
        carrier = carrier_of(leaf)
        x = carrier.random_point(key, jnp.dtype(dtype))
        if not isinstance(x, jax.core.Tracer) and not jnp.isfinite(x).all():
            raise SpaceError(f"no point of {leaf} was found near the origin of R^n; give one as the start.")
        if not isinstance(leaf, Mapped):
            return x
        return leaf.value(x + carrier.random_tangent(key, x) if isinstance(carrier, Euclidean) else x)

    return jax.tree.unflatten(tree, [one(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])


def _at(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path)


def _shown(leaf: Array) -> str:
    return np.array2string(np.asarray(leaf), precision=4, threshold=8)
