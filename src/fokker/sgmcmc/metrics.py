"""Riemannian metrics G(theta) as kernels use them: G^-1, its symmetric root, and their divergences.

A metric is a function of the parameters (the user's pytree) that gives G or G^-1 in the ravelled order of the
parameters: a scalar c for c I, a (d,) diagonal, or a symmetric positive definite (d, d) matrix. Any smooth
one is legal: it changes how fast a sampler moves, not where to.

    Gamma_i = sum_j d(G^-1)_ij / dtheta_j      (Ma, Chen & Fox 2015, eqs. 3, 14; of G^{-1/2} in Algorithm 1)

by forward differentiation. It costs one gradient for a scalar, and d forward passes for a diagonal or a
matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.recipe.catalogue import symmetric_root
from fokker.recipe.recipe import over_basis
from fokker.sgmcmc.checks import check_positive

if TYPE_CHECKING:
    from fokker.target import Target

MetricFunction = Callable[[Any], Array]  # params -> (), (d,) or (d, d)
Field = Callable[[Array], Array]  # the same, of the ravelled theta (d,)

_GAMMA_TOLERANCE = 1e-4  # of a closed form against differentiation, in float32; 1e-8 in float64


@dataclass(frozen=True)
class level_set:
    """G^-1 = scale ((U + offset)^2 + smoothing^2)^{1/4}, a scalar: large steps where the density is low.

    The supplement of Ma, Chen & Fox (2015) has scale sqrt|U + offset|, whose root has no derivative where U =
    -offset; ``smoothing`` rounds that off, and any smooth metric keeps the target. ``potential`` is
    U(params), in which the additive constant counts. It must not see the minibatch that the gradient sees, or
    the noise of the two would be correlated: take all data, or any other function of the right shape.
    """

    potential: MetricFunction
    scale: float = 1.5
    offset: float = 0.5
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not callable(self.potential):
            raise InputError(f"level_set needs the potential U as a function, got {type(self.potential).__name__}.")
        check_positive("scale", self.scale)
        check_positive("smoothing", self.smoothing, zero=True)

    def __call__(self, params: Any) -> Array:
        return self.scale * ((self.potential(params) + self.offset) ** 2 + self.smoothing**2) ** 0.25


def check_metric(method: str, metric: Any, metric_inverse: Any) -> None:
    """Exactly one of the two, a function."""
    if (metric is None) == (metric_inverse is None):
        given = "neither" if metric is None else "both"
        raise InputError(
            f"{method} needs one of metric (G) and metric_inverse (G^-1), got {given}; "
            f"try metric_inverse=fokker.level_set(potential)."
        )
    f = metric_inverse if metric is None else metric
    if not callable(f):
        raise InputError(
            f"the metric of {method} must be a function of the parameters, got {type(f).__name__}; "
            "a constant one is what sgld's diffusion and the mass of sghmc and hmc are for."
        )


def fields_of(
    target: Target,
    position: Any,
    metric: MetricFunction | None,
    metric_inverse: MetricFunction | None,
    gamma: MetricFunction | None = None,
) -> tuple[Field, Field | None]:
    """G^-1, and the closed form of Gamma if there is one, as functions of the ravelled theta."""
    unravel = ravel_pytree(position)[1]
    f = metric_inverse if metric is None else metric
    assert f is not None

    def field(theta: Array) -> Array:
        value = jnp.asarray(f(target.params(unravel(theta))), theta.dtype)
        d = theta.size
        if value.shape not in ((), (d,), (d, d)):
            raise InputError(
                f"a metric must return a number, a ({d},) diagonal or a ({d}, {d}) matrix "
                f"for {d} parameters, got shape {value.shape}."
            )
        if metric is None:
            return value
        return _inverse(value) if value.ndim == 2 else 1.0 / value

    closed = lambda theta: jnp.asarray(gamma(target.params(unravel(theta))), theta.dtype)  # type: ignore[misc]
    return field, None if gamma is None else closed


def _inverse(G: Array) -> Array:
    """Inverse of a symmetric positive definite matrix, symmetric to the last bit."""
    root = jnp.linalg.cholesky(G)
    half = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(G), dtype=G.dtype), lower=True)
    return half.T @ half


def root_field(field: Field) -> Field:
    """The symmetric root of the field, in the same form."""

    def root(theta: Array) -> Array:
        value = field(theta)
        return symmetric_root(value) if value.ndim == 2 else jnp.sqrt(value)

    return root


def divergence(field: Field, theta: Array) -> tuple[Array, Array]:
    """The field and sum_j d field_ij / dtheta_j, (d,), at theta."""
    form = jax.eval_shape(field, theta).ndim
    if form == 0:
        value, gamma = jax.value_and_grad(field)(theta)
    else:
        value, push = jax.linearize(field, theta)
        dot = (lambda e: push(e) * e) if form == 1 else (lambda e: push(e) @ e)
        gamma = over_basis(dot, theta).sum(0)
    return value, gamma


def check_at(
    field: Field, theta: Array, gamma: Callable[[Array], Array] | None = None, of: Field | None = None
) -> None:
    """Where a chain starts: G^-1 must be symmetric positive definite, and a closed Gamma that of ``of`` (or
    field).

    Numbers only: inside a compiled program nothing can be raised, so start chains outside of one to be
    checked.
    """
    if isinstance(theta, jax.core.Tracer):
        return
    value = np.asarray(field(theta), float)
    where = f"at the start {np.array2string(np.asarray(theta), precision=4, threshold=10)}"
    if not np.isfinite(value).all():
        raise InputError(f"the metric is not finite {where}; start elsewhere, or bound it away from 0.")
    if value.ndim == 2:
        if not np.allclose(value, value.T, rtol=1e-4, atol=1e-5 * np.abs(value).max()):
            raise InputError(
                f"the metric must be symmetric {where}, it differs by {np.abs(value - value.T).max():.3g}."
            )
        least = np.linalg.eigvalsh((value + value.T) / 2).min()
    else:
        least = value.min()
    if not least > 0:
        raise InputError(f"the metric must be positive definite {where}, its least eigenvalue is {least:.3g}.")
    if gamma is not None:
        closed, automatic = np.asarray(gamma(theta)), np.asarray(divergence(of or field, theta)[1])
        tolerance = 1e-8 if automatic.dtype == np.float64 else _GAMMA_TOLERANCE
        if closed.shape != automatic.shape:
            raise InputError(f"gamma must return shape {automatic.shape}, got {closed.shape}.")
        error, size = np.abs(closed - automatic), max(np.abs(closed).max(), np.abs(automatic).max())
        if not error.max() <= tolerance * size:
            i = int(error.argmax())
            raise InputError(
                f"gamma is {closed[i]:.8g} at entry {i}, differentiation gives {automatic[i]:.8g}, {where}; "
                "Gamma_i is the sum over j of d D_ij / dtheta_j and is added to the drift. "
                "Mend it or leave it out."
            )
