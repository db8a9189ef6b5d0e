"""``vmf`` in JAX: the same names and formulas, differentiable in kappa and R, for jit and vmap with d static.

Derivatives are the functions themselves: (log c)' = -A, A' the slope, (A^-1)' = 1 / A'. In float32, A is good to 1e-6
and log c, which reaches 10^6, to as much of its size; for log c use float64.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fokker.errors import InputError
from fokker.numeric import bessel, vmf
from fokker.numeric.random_jax import STREAM_SHIFT, Key, as_key, normal, threefry2x32, uniform
from fokker.numeric.vmf import bingham_log_density as bingham_log_density
from fokker.numeric.vmf import fisher_bingham_log_density as fisher_bingham_log_density


def _dimension(d: Any) -> int:
    try:
        return int(vmf.check_dimension(operator.index(d)))
    except (TypeError, jax.errors.TracerIntegerConversionError):
        raise InputError(f"d must be a whole number >= 2 that is known when JAX compiles, got {d!r}.") from None


def _checked(check: Any, x: Any) -> Array:
    """x as an array of floats; what is traced cannot be checked."""
    if not isinstance(x, jax.core.Tracer):
        check(x)
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_normaliser(d: int, kappa: Array) -> Array:
    return bessel.log_c(jnp, 0.5 * d - 1.0, kappa)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _mean_length(d: int, kappa: Array) -> Array:
    return bessel.ratio(jnp, 0.5 * d - 1.0, kappa)


def _mean_length_slope(d: int, kappa: Array) -> Array:
    return bessel.ratio_slope(jnp, 0.5 * d - 1.0, kappa)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _concentration(d: int, R: Array) -> Array:
    nu = 0.5 * d - 1.0
    inside = jnp.where(R > 0, R, 0.5)
    eps = float(jnp.finfo(R.dtype).eps)
    step = lambda _, kappa: bessel.newton(jnp, nu, inside, kappa, eps)
    kappa = jax.lax.fori_loop(0, vmf.NEWTON, step, bessel.first_guess(nu, inside))
    return jnp.where(R > 0, kappa, 0.0)


@_log_normaliser.defjvp
def _(d: int, primals: Any, tangents: Any) -> Any:
    (kappa,), (change,) = primals, tangents
    return _log_normaliser(d, kappa), -_mean_length(d, kappa) * change


@_mean_length.defjvp
def _(d: int, primals: Any, tangents: Any) -> Any:
    (kappa,), (change,) = primals, tangents
    return _mean_length(d, kappa), _mean_length_slope(d, kappa) * change


@_concentration.defjvp
def _(d: int, primals: Any, tangents: Any) -> Any:
    kappa = _concentration(d, *primals)
    return kappa, tangents[0] / _mean_length_slope(d, kappa)


_compiled = {
    f: jax.jit(f, static_argnums=0) for f in (_log_normaliser, _mean_length, _mean_length_slope, _concentration)
}


def log_normaliser(d: int, kappa: Any) -> Array:
    """log c_d(kappa); its derivative in kappa is -A_d."""
    return _compiled[_log_normaliser](_dimension(d), _checked(vmf.check_concentration, kappa))


def mean_length(d: int, kappa: Any) -> Array:
    """A_d(kappa), the mean of mu.x."""
    return _compiled[_mean_length](_dimension(d), _checked(vmf.check_concentration, kappa))


def mean_length_slope(d: int, kappa: Any) -> Array:
    """A_d'(kappa), the variance of mu.x."""
    return _compiled[_mean_length_slope](_dimension(d), _checked(vmf.check_concentration, kappa))


def concentration(d: int, R: Any) -> Array:
    """kappa with A_d(kappa) = R to 4 ulp of R."""
    return _compiled[_concentration](_dimension(d), _checked(vmf.check_mean_length, R))


def log_density(x: Any, mu: Any, kappa: Any) -> Array:
    """log c_d(kappa) + kappa mu.x; x, mu: (..., d), kappa: (...)."""
    x, mu = _checked(partial(vmf.check_direction, name="x"), x), _checked(vmf.check_direction, mu)
    vmf.check_same_length(x, mu)
    return log_normaliser(mu.shape[-1], kappa) + jnp.asarray(kappa) * (x * mu).sum(-1)


def sample(key: Any, mu: Any, kappa: Any, shape: tuple[int, ...] | None = None, stream: int = 0) -> Array:
    """Exact draws of vMF(mu, kappa), (*shape, d), of the type of mu: a pure function of (key, stream).

    mu: (..., d) and kappa: (...) are broadcast to shape, which is their common shape if it is not given. Attempt j of
    the rejection has a key of its own, number j of the stream; a draw depends on its place alone, not on how
    often its neighbours were refused.
    """
    mu = _checked(vmf.check_direction, mu)
    kappa = _checked(vmf.check_concentration, kappa).astype(mu.dtype)
    if shape is None:
        shape = jnp.broadcast_shapes(mu.shape[:-1], kappa.shape)
    return _sample(as_key(key), mu, kappa, jnp.uint32(stream << STREAM_SHIFT), vmf.check_shape(tuple(shape), mu, kappa))


@partial(jax.jit, static_argnums=4)
def _sample(key: Key, mu: Array, kappa: Array, stream: Array, shape: tuple[int, ...]) -> Array:
    d, dtype = mu.shape[-1], mu.dtype
    kappa = jnp.broadcast_to(kappa, shape)

    def child(j: Any) -> Key:
        words = threefry2x32(key.words[0], key.words[1], key.iteration, jnp.uint32(j) | stream)
        # Once for the attempt: left to itself, XLA makes the key anew for every number (and compiles twice as long).
        return Key(jax.lax.optimization_barrier(jnp.stack(words)), jnp.uint32(0))

    def attempt(state: Any) -> Any:
        j, cos, sin, left = state
        u, v, chance = (uniform(child(j), shape, stream=i, dtype=dtype) for i in range(3))
        new_cos, new_sin, log_chance = vmf.proposal(jnp, d, kappa, u, v)
        refused = jnp.log(chance) > log_chance  # not-a-number is accepted: it must end the loop
        return j + 1, jnp.where(left, new_cos, cos), jnp.where(left, new_sin, sin), left & refused

    start = (jnp.uint32(1), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.ones(shape, bool))
    _, cos, sin, _ = jax.lax.while_loop(lambda state: state[3].any(), attempt, start)
    mu = mu / jnp.linalg.norm(mu, axis=-1, keepdims=True)
    return vmf.assemble(jnp, mu, cos, sin, normal(child(0), (*shape, d - 1), dtype=dtype))
