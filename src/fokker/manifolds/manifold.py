"""What a manifold offers; nothing to inherit (docs/adr/0008-spaces.md)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jax import Array


@runtime_checkable
class Manifold(Protocol):
    """A manifold embedded in R^n. Points x and vectors u, v are arrays of ``shape``; times, lengths are ()."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dim(self) -> int: ...  # intrinsic: what a thermostat counts

    def project(self, x: Array, u: Array) -> Array: ...  # onto the tangent space at x
    def gradient(self, x: Array, ambient: Array) -> Array: ...  # tangent, from the gradient in R^n
    def tangent_normal(self, x: Array, z: Array) -> Array: ...  # Normal(0, I) in the tangent space, from that in R^n
    def random_tangent(self, key: Any, x: Array) -> Array: ...  # the same from a key
    def square(self, x: Array, v: Array) -> Array: ...  # |v|^2 in the metric
    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]: ...  # geodesic
    def retract(self, x: Array, v: Array) -> tuple[Array, Array]: ...  # what rounding moved away, back
    def off(self, x: Array) -> Array: ...  # how far x is from the manifold
    def random_point(self, key: Any, dtype: Any = ...) -> Array: ...  # uniform where such a law exists, else an origin


@runtime_checkable
class Mapped(Protocol):
    """A set of values theta = value(x), x on a ``carrier`` whose flow is known: a simplex, a ball, a box.

    A density p(theta) on the set is exp(log_volume(x)) p(value(x)) on the carrier, with its Hausdorff measure. At the
    boundary log_volume goes to -inf: chains turn around before it, and no code for reflections is needed.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # of a value
    @property
    def carrier(self) -> Manifold: ...

    def value(self, x: Array) -> Array: ...
    def embed(self, theta: Array) -> Array: ...  # one of the points whose value is theta
    def log_volume(self, x: Array) -> Array: ...
    def off(self, theta: Array) -> Array: ...  # how far theta is from the inside of the set


Space = Any  # a manifold, or a pytree of them that mirrors the parameters
