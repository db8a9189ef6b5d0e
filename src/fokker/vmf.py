"""Directional statistics on the unit sphere of R^d, from NumPy or JAX: von Mises-Fisher (vMF), Bingham, Fisher-Bingham.

vMF(mu, kappa) has the density c_d(kappa) exp(kappa mu.x) with respect to the area of the sphere, the measure of
``fokker.Sphere``. In the papers' letters, with nu = d/2 - 1,

    log_normaliser     log c_d(kappa), c_d = kappa^nu / ((2 pi)^(nu + 1) I_nu(kappa))
    mean_length        A_d(kappa) = I_(nu+1)(kappa) / I_nu(kappa) = E mu.x = -d log c_d / d kappa
    mean_length_slope  A_d'(kappa) = Var mu.x
    concentration      A_d^-1(R)

No Bessel function is formed: ``scipy.special.ive`` is 0 at d = 5000, kappa = 4000. For d from 2 to 100,000 and kappa
from 0 to 10^6 errors in float64 are below 1e-14 of A, 1e-12 of A' and 1e-10 of max(1, |log c|).

With a JAX array among the arguments, or a JAX key, the result is a JAX array: differentiable in kappa, R, mu and x, for
``jit`` and ``vmap`` with d known when JAX compiles. In float32 A is good to 1e-6, but log c to 3e-6 of d + kappa only:
take float64 for it. With anything else NumPy computes in float64, and single numbers give floats; JAX is not even
imported. Arguments broadcast.

Beside the ratio of two ``ive``, where that works, A of an array takes about a tenth of the time by NumPy and less than
a hundredth by JAX, A of a single number three to five times as long (``benchmarks/vmf_speed.py``).

>>> import numpy as np, fokker
>>> x = fokker.vmf.sample(np.random.default_rng(0), mu=[0.6, 0.0, 0.8], kappa=50.0, shape=100_000)
>>> R = np.linalg.norm(x.mean(0))
>>> print(f"{R:.4f}, where A is {fokker.vmf.mean_length(3, 50.0):.4f}: kappa = {fokker.vmf.concentration(3, R):.1f}")
0.9799, where A is 0.9800: kappa = 49.9
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fokker.errors import InputError
from fokker.numeric import vmf as on_the_host

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = (
    "bingham_log_density",
    "concentration",
    "fisher_bingham_log_density",
    "log_density",
    "log_normaliser",
    "mean_length",
    "mean_length_slope",
    "sample",
)


def _twin(*arguments: Any) -> ModuleType:
    """The implementation that these arguments ask for. Where JAX was never imported, none of them is JAX's."""
    jax = sys.modules.get("jax")
    if jax is None or not any(isinstance(argument, jax.Array) for argument in arguments):
        return on_the_host
    from fokker.numeric import vmf_jax

    return vmf_jax


def log_normaliser(d: int, kappa: ArrayLike) -> Any:
    """log c_d(kappa); minus the logarithm of the sphere's area at kappa = 0. Its derivative in kappa is -A_d.

    d: whole number >= 2, the length of the vectors; with NumPy an array of them too. kappa: (...) >= 0. Returns (...).
    """
    return _twin(d, kappa).log_normaliser(d, kappa)


def mean_length(d: int, kappa: ArrayLike) -> Any:
    """A_d(kappa), the mean of mu.x and so the length of the mean vector, in [0, 1). d, kappa: as in log_normaliser."""
    return _twin(d, kappa).mean_length(d, kappa)


def mean_length_slope(d: int, kappa: ArrayLike) -> Any:
    """A_d'(kappa), the derivative of mean_length and the variance of mu.x. d, kappa: as in log_normaliser."""
    return _twin(d, kappa).mean_length_slope(d, kappa)


def concentration(d: int, R: ArrayLike) -> Any:
    """kappa with A_d(kappa) = R, to 4 ulp of R.

    The maximum-likelihood estimate of kappa when R is the length of the mean of unit vectors. d: as in log_normaliser.
    R: (...) in [0, 1). Returns (...).
    """
    return _twin(d, R).concentration(d, R)


def log_density(x: ArrayLike, mu: ArrayLike, kappa: ArrayLike) -> Any:
    """log c_d(kappa) + kappa mu.x, what ``scipy.stats.vonmises_fisher(mu, kappa).logpdf(x)`` is for few dimensions.

    x, mu: (..., d) unit vectors, kappa: (...) >= 0. Returns (...).
    """
    return _twin(x, mu, kappa).log_density(x, mu, kappa)


def sample(rng: Any, mu: ArrayLike, kappa: ArrayLike, shape: int | tuple[int, ...] | None = None) -> Any:
    """Exact draws of vMF(mu, kappa), (*shape, d), by Wood's rejection; at least 0.65 of the proposals are accepted.

    rng: a ``numpy.random.Generator``, or a JAX key, of which the draws are a pure function. mu: (..., d) unit vectors
    and kappa: (...) >= 0 broadcast to shape, which is their common shape if it is not given. kappa = 0 is the uniform
    law. A draw costs d + 2 or so random numbers; with a JAX key it is of the type of mu.
    """
    if isinstance(rng, np.random.Generator):
        return on_the_host.sample(rng, mu, kappa, shape)
    twin = _twin(rng)
    if twin is on_the_host:
        raise InputError(
            f"sample needs random numbers: a numpy.random.Generator or a JAX key, got {type(rng).__name__}; "
            "try numpy.random.default_rng(0) or jax.random.key(0)."
        )
    return twin.sample(rng, mu, kappa, (shape,) if isinstance(shape, int) else shape)


def bingham_log_density(x: Any, matrix: Any) -> Any:
    """x^T A x, the log density of Bingham's law up to a constant. x: (..., d) unit vectors, matrix: (d, d) symmetric.

    As a target: ``Target.from_log_density(lambda x: fokker.vmf.bingham_log_density(x, A), space=fokker.Sphere(d))``.
    """
    return on_the_host.bingham_log_density(x, matrix)


def fisher_bingham_log_density(x: Any, vector: Any, matrix: Any) -> Any:
    """v.x + x^T A x, up to a constant, v = kappa mu. x: (..., d), vector: (d,), matrix: (d, d) symmetric.

    Kent's density is the one with A mu = 0 and tr A = 0.
    """
    return on_the_host.fisher_bingham_log_density(x, vector, matrix)
