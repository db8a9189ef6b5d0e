"""Directional statistics on the unit sphere of R^d: von Mises-Fisher (vMF), and unnormalised Bingham densities.

vMF(mu, kappa) has the density c_d(kappa) exp(kappa mu.x) with respect to the area of the sphere. In the papers'
letters, with nu = d/2 - 1,

    log_normaliser     log c_d(kappa), c_d = kappa^nu / ((2 pi)^(nu + 1) I_nu(kappa))
    mean_length        A_d(kappa) = I_(nu+1) / I_nu = E mu.x = -d log c_d / d kappa
    mean_length_slope  A_d'(kappa) = Var mu.x
    concentration      A_d^-1(R)

On the host, in float64; ``vmf_jax`` has the same names, differentiable. The formulas are in ``bessel``. Errors against
mpmath, d from 2 to 10^5, kappa from 0 to 10^6: A 5e-16 and A' 1e-13 relative, log c 5e-14 of max(1, |log c|) (2e-11 in
the few places where it crosses 0 at large d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fokker.errors import InputError, SpaceError
from fokker.numeric import bessel

NEWTON = 6  # steps to kappa from R: 4 but for the last bits
CHUNK = 4096  # numbers worked on at a time; out of the cache all is three to eight times as slow
FLOATS = SimpleNamespace(  # one number: Python's floats are about five times as quick as NumPy's scalars
    **{name: getattr(math, name) for name in ("exp", "floor", "hypot", "log")},
    maximum=max,
    minimum=min,
    where=lambda condition, yes, no: yes if condition else no,
)


def check_dimension(d: Any) -> NDArray[Any]:
    """Whole numbers >= 2, the dimension of the space around the sphere."""
    d = np.asarray(d)
    if d.dtype.kind not in "iuf" or not (np.isfinite(d) & (d >= 2) & (d == np.floor(d))).all():
        raise InputError(f"d must be a whole number >= 2, the length of the unit vectors, got {d}.")
    return d


def check_concentration(kappa: Any) -> NDArray[np.float64]:
    """Finite numbers >= 0."""
    array = np.asarray(kappa)
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array < math.inf)).all():
        raise InputError(f"kappa must be >= 0 and finite, got {kappa}; a density that falls towards mu has -mu.")
    return array.astype(np.float64)


def check_mean_length(R: Any) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    array = np.asarray(R)
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array < 1)).all():
        raise InputError(f"R, the length of a mean of unit vectors, must be in [0, 1), got {R}; 1 needs kappa = inf.")
    return array.astype(np.float64)


def check_direction(mu: Any, name: str = "mu") -> NDArray[Any]:
    """Unit vectors in the last axis, of 2 entries or more."""
    mu = np.asarray(mu)
    if mu.ndim == 0 or mu.shape[-1] < 2 or mu.dtype.kind not in "iuf":
        raise InputError(
            f"{name} must be a unit vector, or an array of them, of 2 numbers or more, got shape {mu.shape}."
        )
    length = np.linalg.norm(mu, axis=-1)
    if not (abs(length - 1) < 1e-5).all():
        raise SpaceError(f"{name} must have length 1 in its last axis, got {length}; divide it by its length.")
    return mu


def check_same_length(x: Any, mu: Any) -> None:
    """Both in R^d; vectors of one entry would broadcast."""
    if x.shape[-1:] != mu.shape[-1:]:
        raise InputError(f"x and mu must be vectors of the same length, got shapes {x.shape} and {mu.shape}.")


def _evaluate(formula: Callable[..., Any], d: NDArray[Any], x: NDArray[np.float64]) -> Any:
    """formula(xp, nu, x), nu = d/2 - 1 a float: for one pair as floats, else for each dimension and CHUNK by CHUNK."""
    if d.ndim == 0 and x.ndim == 0:
        return formula(FLOATS, 0.5 * float(d) - 1.0, float(x))
    dimensions = np.unique(d)
    d, x = np.broadcast_arrays(d, x)
    flat_d, flat_x, out = d.ravel(), x.ravel(), np.empty(x.size)
    for one in dimensions:
        here = np.flatnonzero(flat_d == one)
        for start in range(0, here.size, CHUNK):
            part = here[start : start + CHUNK]
            out[part] = formula(np, 0.5 * float(one) - 1.0, flat_x[part])
    return out.reshape(x.shape)


def log_normaliser(d: ArrayLike, kappa: ArrayLike) -> Any:
    """log c_d(kappa); minus the logarithm of the sphere's area at kappa = 0."""
    return _evaluate(bessel.log_c, check_dimension(d), check_concentration(kappa))


def mean_length(d: ArrayLike, kappa: ArrayLike) -> Any:
    """A_d(kappa), the mean of mu.x and so the length of the mean vector (mean resultant length)."""
    return _evaluate(bessel.ratio, check_dimension(d), check_concentration(kappa))


def mean_length_slope(d: ArrayLike, kappa: ArrayLike) -> Any:
    """A_d'(kappa), the variance of mu.x."""
    return _evaluate(bessel.ratio_slope, check_dimension(d), check_concentration(kappa))


def concentration(d: ArrayLike, R: ArrayLike) -> Any:
    """kappa with A_d(kappa) = R to 4 ulp of R: the maximum-likelihood estimate when R is the length of the mean."""

    def solve(xp: Any, nu: float, R: Any) -> Any:
        inside = xp.where(R > 0, R, 0.5)
        kappa = bessel.first_guess(nu, inside)
        for _ in range(NEWTON):
            before, kappa = kappa, bessel.newton(xp, nu, inside, kappa, 2.0**-52)
            if np.all(before == kappa):
                break
        return xp.where(R > 0, kappa, 0.0)

    return _evaluate(solve, check_dimension(d), check_mean_length(R))


def log_density(x: ArrayLike, mu: ArrayLike, kappa: ArrayLike) -> Any:
    """log c_d(kappa) + kappa mu.x; x, mu: (..., d), kappa: (...)."""
    x, mu = check_direction(x, "x"), check_direction(mu)
    check_same_length(x, mu)
    return log_normaliser(mu.shape[-1], kappa) + np.asarray(kappa) * (x * mu).sum(-1)


def bingham_log_density(x: Any, matrix: Any) -> Any:
    """x^T A x for unit vectors x (..., d) and a symmetric A (d, d), up to a constant; arrays of NumPy or of JAX."""
    return ((x @ matrix) * x).sum(-1)


def fisher_bingham_log_density(x: Any, vector: Any, matrix: Any) -> Any:
    """v.x + x^T A x, up to a constant, v = kappa mu (d,). Kent's density has A mu = 0 and tr A = 0."""
    return (x * vector).sum(-1) + bingham_log_density(x, matrix)


def check_shape(shape: tuple[int, ...], mu: Any, kappa: Any) -> tuple[int, ...]:
    """The shape of the draws, to which those of mu (..., d) and kappa (...) have to broadcast."""
    try:
        fits = np.broadcast_shapes(shape, mu.shape[:-1], kappa.shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f"draws of shape {shape} need mu {mu.shape} without its last axis, and kappa {kappa.shape}, to "
            "broadcast to that shape; put the axes of the draws first."
        )
    return shape


def proposal(xp: Any, d: int, kappa: Any, u: Any, v: Any) -> tuple[Any, Any, Any]:
    """Wood's (1994) proposal from two uniforms in (0, 1]: cosine and sine of the angle to mu, log chance to accept.

    xi = mu.x of a uniform point, boosted towards mu. With b of the paper, x0 = (1 - b) / (1 + b) and g = x0 xi,

        1 - cos = (1 - x0) (1 + xi) / (1 - g),    log chance = -(d - 1) (log(1 - g) + g / (1 - g))

    The chance is the paper's kappa (cos - x0) + (d - 1) log((1 - x0 cos) / (1 - x0^2)) with kappa = (d - 1) x0 /
    (1 - x0^2) put in, which leaves no large numbers. 1 - x0, 1 - g, 1 + xi and 1 - xi are sums of positive terms, so
    neither tail rounds away. xi is one of two coordinates of a uniform point in polar form: radius
    r = sqrt(1 - u^(2 / (d - 2))), angle pi v (Ulrich 1984).
    """
    a = d - 1.0
    root = xp.hypot(2.0 * kappa, a)
    x0 = 2.0 * kappa / (a + root)
    y0 = a * (1.0 + a / (root + 2.0 * kappa)) / (a + root)  # 1 - x0
    log_s = xp.log(u) * (2.0 / (d - 2.0)) if d > 2 else xp.full_like(u, -xp.inf)
    r = xp.sqrt(-xp.expm1(log_s))
    cos, sin = xp.cos(0.5 * xp.pi * v), xp.sin(0.5 * xp.pi * v)
    rim = 0.5 * xp.exp(log_s) / (1.0 + r)  # (1 - r) / 2
    near, far = rim + r * cos * cos, rim + r * sin * sin  # (1 + xi) / 2, (1 - xi) / 2
    g = x0 * r * (cos - sin) * (cos + sin)
    gap = y0 + 2.0 * x0 * far  # 1 - g
    log_chance = -a * (xp.where(abs(g) < 0.5, xp.log1p(-xp.minimum(g, 0.5)), xp.log(gap)) + g / gap)
    return 1.0 - 2.0 * y0 * near / gap, 2.0 * xp.sqrt(y0 * (1.0 + x0) * near * far) / gap, log_chance


def assemble(xp: Any, mu: Any, cos: Any, sin: Any, normals: Any) -> Any:
    """cos mu + sin u, u a uniform unit vector normal to mu: the direction of d - 1 normals, reflected from e1 to mu.

    mu: (..., d), cos, sin: (...), normals: (..., d - 1). A reflection loses nothing where projecting and normalising
    would divide by a small remainder (d = 2).
    """
    first, rest = mu[..., :1], mu[..., 1:]
    cos, sin = cos[..., None], sin[..., None]
    if mu.shape[-1] == 2:
        normals = xp.where(normals < 0, -1.0, 1.0)  # a sign, also where the normal is 0
    scale = sin / xp.linalg.norm(normals, axis=-1, keepdims=True)
    dot = (rest * normals).sum(-1, keepdims=True) * scale
    head = cos * first - xp.where(first < 0, -dot, dot)
    return xp.concatenate([head, normals * scale + rest * (cos - dot / (1.0 + abs(first)))], axis=-1)


def sample(
    rng: np.random.Generator, mu: ArrayLike, kappa: ArrayLike, size: int | tuple[int, ...] | None = None
) -> NDArray[np.float64]:
    """Exact draws of vMF(mu, kappa), (size, d), by Wood's rejection; at least 0.65 of the proposals are accepted.

    mu: (..., d) and kappa: (...) are broadcast to size, which is their common shape if it is not given. kappa = 0 gives
    the uniform law. Costs d + 2 or so random numbers a draw.
    """
    mu = check_direction(mu).astype(np.float64)
    kappa = check_concentration(kappa)
    d = mu.shape[-1]
    if size is None:
        size = np.broadcast_shapes(mu.shape[:-1], kappa.shape)
    shape = check_shape((size,) if isinstance(size, int) else tuple(size), mu, kappa)
    kappa = np.broadcast_to(kappa, shape).ravel()
    cos, sin = np.empty_like(kappa), np.empty_like(kappa)
    left = np.arange(kappa.size)
    while left.size:
        u, v, chance = 1.0 - rng.random((3, left.size))
        new_cos, new_sin, log_chance = proposal(np, d, kappa[left], u, v)
        accepted = np.log(chance) <= log_chance
        cos[left[accepted]], sin[left[accepted]] = new_cos[accepted], new_sin[accepted]
        left = left[~accepted]
    mu = mu / np.linalg.norm(mu, axis=-1, keepdims=True)
    normals = rng.standard_normal((*shape, d - 1))
    return assemble(np, mu, cos.reshape(shape), sin.reshape(shape), normals)
