"""What the geodesic samplers share: the space that a target names, the gradient and its noise at a point, friction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import expm

from fokker.errors import SpaceError
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.hyperboloid import Hyperboloid
from fokker.manifolds.product import Product, product
from fokker.sgmcmc.matrix import LowRank, as_dense, compensated_normal, sandwich

if TYPE_CHECKING:
    from fokker.sgmcmc.kernel import BoundGradient
    from fokker.target import Target


class Force(NamedTuple):
    """What a batch says at a point x."""

    grad_u: Array  # (n,) tangent gradient of U with respect to the Hausdorff measure
    noise: Any  # covariance of its noise in R^n, or None
    aux: Any  # of the gradient estimator


def space_of(target: Target, position: Any) -> Product:
    """The space of a position, as a kernel sees it: a pytree, or the vector that stands for one in a run."""
    return product(target.space, target.params(position))


def is_flat(space: Product) -> bool:
    return all(isinstance(f.carrier, Euclidean) for f in space.factors)


def force_at(space: Product, grad: BoundGradient, key: Any, unravel: Any, x: Array, batch: Any, aux: Any) -> Force:
    """The estimator's gradient, by the point and tangent, and what is known of its noise."""
    by_params, noise, aux = grad.estimate(key, unravel(space.value(x)), batch, aux)
    return Force(space.potential_gradient(x, by_params), noise_at(space, x, noise), aux)


def noise_at(space: Product, x: Array, noise: Any) -> Any:
    """The covariance of a gradient by the parameters as that of the tangent gradient by the point.

    A scalar or a diagonal stays what it is where points are parameters: the noise that is injected is projected.
    """
    if noise is None:
        return None
    if any(isinstance(f.carrier, Hyperboloid) for f in space.factors):
        raise SpaceError("on a hyperboloid gradient noise cannot be compensated; pass noise='none' to the gradient.")
    if not (isinstance(noise, LowRank) or jnp.ndim(noise) == 2 or space.mapped):
        return noise
    pull = jax.vjp(space.value, x)[1] if space.mapped else lambda g: (g,)
    tangent = jax.vmap(lambda g: space.project(x, pull(g)[0]), in_axes=1, out_axes=1)
    if isinstance(noise, LowRank):
        return LowRank(tangent(noise.factor))
    return tangent(tangent(as_dense(noise, space.factors[-1].last)).T)


def tangent_push(space: Product, key: Any, x: Array, injected: Array, kick: Any, noise: Any) -> tuple[Array, Array]:
    """Tangent noise P N(0, injected - kick^2 V^) at x, and the largest share of it that the gradient brings."""
    taken = None if noise is None else sandwich(kick, noise)
    push, share = compensated_normal(key, injected, taken, x.size, x.dtype)
    return space.tangent_normal(x, push), share


def damped(space: Product, C: Array, x: Array, v: Array, t: Any) -> Array:
    """exp(-P C P t) v with P the projector at x: friction for a time t. C: a number, a (n,) diagonal or (n, n).

    With C a matrix a (n, n) exponential, unless the space is flat and C a diagonal.
    """
    if not C.ndim or (C.ndim == 1 and is_flat(space)):
        return jnp.exp(-C * t) * v
    P = jax.vmap(lambda e: space.project(x, e), out_axes=1)(jnp.eye(space.size, dtype=x.dtype))
    return expm(-t * sandwich(P, as_dense(C, space.size))) @ v


class Pace(NamedTuple):
    """How fast time runs: on a factor whose metric is divided by s^2, geodesics and kicks of eps are those of s eps."""

    time: Array  # () or (factors,)
    kick: Array  # () or (n,)


def pace(space: Product, eps: Array, scales: Any) -> Pace:
    """scales: a number, or one for each leaf of the parameters."""
    if jnp.ndim(scales) == 0:
        return Pace(eps * jnp.asarray(scales, eps.dtype), eps * jnp.asarray(scales, eps.dtype))
    time = eps * jnp.asarray(scales, eps.dtype)
    return Pace(time, space.spread(time))
