"""What a manifold offers; nothing to inherit (docs/adr/0008-spaces.md)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jax import Array


@runtime_checkable
class Embedded(Protocol):
    """A manifold in R^n. Points x and vectors u, v are arrays of ``shape``; times, lengths are ()."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dim(self) -> int: ...  # intrinsic: what a thermostat counts

    def project(self, x: Array, u: Array) -> Array: ...  # onto the tangent space at x
    def gradient(self, x: Array, ambient: Array) -> Array: ...  # tangent, from the gradient in R^n
    def tangent_normal(self, x: Array, z: Array) -> Array: ...  # Normal(0, I) in the tangent space, from that in R^n
    def random_tangent(self, key: Any, x: Array) -> Array: ...  # the same from a key
    def square(self, x: Array, v: Array) -> Array: ...  # |v|^2 in the metric
    def retract(self, x: Array, v: Array) -> tuple[Array, Array]: ...  # what rounding moved away, back
    def off(self, x: Array) -> Array: ...  # how far x is from the manifold
    def random_point(self, key: Any, dtype: Any = ...) -> Array: ...  # uniform where such a law is known, else a start


@runtime_checkable
class Manifold(Embedded, Protocol):
    """One whose geodesics are known."""

    def flow(self, x: Array, v: Array, t: Any) -> tuple[Array, Array]: ...  # along the geodesic, for a time t


@runtime_checkable
class ByConstraint(Embedded, Protocol):
    """The x with residual(x) = 0, of which no more is known: what RATTLE needs to move there."""

    def residual(self, x: Array) -> Array: ...  # (k,)
    def jacobian(self, x: Array) -> Array: ...  # (k, n)
    def normals(self, x: Array) -> Array: ...  # (n, k), an orthonormal basis of the columns of the Jacobian's transpose
    def is_regular(self, x: Array) -> Array: ...  # whether the Jacobian has rank k at x


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
