"""Independent answers that the tests of several folders compare with."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import solve_discrete_lyapunov

from fokker.numeric import random_jax
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.matrix import as_dense
from fokker.target import Target

STREAMS = 6  # of random numbers that `linear_step` reads off; the last one is for gradients
GRADIENT_STREAM = 5


@contextmanager
def normals_given(z):
    """Every kernel's standard normals become the rows of z, (streams, size), by stream."""

    def given(key, shape=(), stream=0, dtype=jnp.float32):
        if isinstance(key, random_jax.Given):  # drawn already, from z
            return original(key, shape, stream, dtype)
        return z[stream, : int(np.prod(shape))].reshape(shape).astype(dtype)

    places = [m for name, m in sys.modules.items() if name.startswith("fokker.") and hasattr(m, "normal")]
    places = [m for m in places if m.normal is random_jax.normal or m is random_jax]
    original = random_jax.normal
    try:
        for module in places:
            module.normal = given
        yield
    finally:
        for module in places:
            module.normal = original


def linear_step(step, state, size, moving=("position", "momentum")):
    """The affine map of a step that is deterministic given its normals: z+ = M z + b + F noise.

    Returns M (n, n), b (n,), F (n, STREAMS * size) at ``state``, by automatic differentiation.
    """
    fields = [name for name in moving if hasattr(state, name)]
    z0, unravel = ravel_pytree([getattr(state, name) for name in fields])

    def advance(z, noise):
        with normals_given(noise):
            after, _ = step(jax.random.key(0), state._replace(**dict(zip(fields, unravel(z), strict=True))), None)
        return ravel_pytree([getattr(after, name) for name in fields])[0]

    still = jnp.zeros((STREAMS, size), z0.dtype)
    both = lambda z, noise: (*jax.jacfwd(advance, argnums=(0, 1))(z, noise), advance(z, noise))
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state)):
        # one program that runs once: quicker than op by op, and than with the compiler's optimisations
        both = jax.jit(both, compiler_options={"xla_backend_optimization_level": 0})
    M, F, there = both(z0, still)
    return M, there - M @ z0, F.reshape(z0.size, -1)


def stationary_covariance(M, F):
    """The covariance P of the chain z+ = M z + F noise: P = M P M^T + F F^T, refused if the chain has none."""
    M, F = np.asarray(M), np.asarray(F)
    assert np.abs(np.linalg.eigvals(M)).max() < 1, "the chain is not stable"
    return solve_discrete_lyapunov(M, F @ F.T)


def spd(rng, d, low=0.5, high=2.0):
    """A random symmetric positive definite matrix with eigenvalues in [low, high]."""
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return turn * rng.uniform(low, high, d) @ turn.T


def moments_1d(log_density, low=-8.0, high=8.0, powers=(1, 2, 4), nodes=4001):
    """E x^k of an unnormalised density on a line, by the trapezoidal rule (exponentially accurate in the tails)."""
    x = np.linspace(low, high, nodes)
    weight = np.exp(np.asarray(log_density(x)) - np.max(np.asarray(log_density(x))))
    return np.array([(x**k * weight).sum() / weight.sum() for k in powers])


def slope(h, bias):
    """The order p of |bias| ~ h^p: the least-squares slope in logarithms."""
    return np.polyfit(np.log(h), np.log(np.abs(bias)), 1)[0]


def weighted_slope(h, bias, error):
    """The slope of log |bias| against log h and its standard error, from biases with standard errors."""
    x, y, w = np.log(h), np.log(np.abs(bias)), np.abs(bias / error) ** 2
    centre = (w * x).sum() / w.sum()
    spread = (w * (x - centre) ** 2).sum()
    return (w * (x - centre) * y).sum() / spread, spread**-0.5


# --- Gaussian targets with a gradient noise that is known -----------------------------------------------------------


@dataclass(frozen=True)
class noisy:
    """The exact gradient plus Normal(0, V), with ``known`` reported as its covariance. None, None: no noise."""

    V: Any = None
    known: Any = None
    noise: str = "dense"

    def bind(self, target):
        def estimate(key, position, batch, aux):
            grad_u = -jax.grad(target.log_prior)(position)
            if self.V is not None:
                z = random_jax.normal(key, position.shape, GRADIENT_STREAM, position.dtype)
                grad_u = grad_u + root_of(self.V, position.size) @ z
            return grad_u, self.known, aux

        return BoundGradient(lambda position: None, estimate)


def root_of(V, d):
    """A symmetric root, which exists for V = 0 too."""
    values, turn = jnp.linalg.eigh(as_dense(jnp.asarray(V), d))
    return turn * jnp.sqrt(jnp.maximum(values, 0.0)) @ turn.T


def gaussian(A):
    return Target.from_log_density(lambda x: -0.5 * x @ as_dense(A, x.size) @ x)


def read_off(kernel, target, gradient, d):
    bound = kernel.bind(target, gradient)
    state = bound.init(jnp.linspace(-1.0, 2.0, d), jax.random.key(1))
    return linear_step(bound.step, state, d)


def preconditioner(rng, d, form):
    """P in its form, its inverse, and its symmetric root as a matrix."""
    if form == "scalar":
        P, half = np.array(0.7), np.sqrt(0.7) * np.eye(d)
    elif form == "diagonal":
        P = rng.uniform(0.4, 1.6, d)
        half = np.diag(np.sqrt(P))
    else:
        P = spd(rng, d, 0.4, 1.6)
        half = np.asarray(root_of(P, d))
    return jnp.asarray(P), jnp.asarray(np.linalg.inv(P) if P.ndim == 2 else 1 / P), half
