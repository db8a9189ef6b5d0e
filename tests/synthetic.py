"""Targets whose laws are known without sampling: exact draws, quadrature, the bias of Euler's step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# The targets of Ma, Chen & Fox (2015), section 4.1 and the supplement.


def well(theta):
    """U = theta^2 / 2, theta (1,)."""
    return (theta**2).sum() / 2


def double_well(theta):
    """U = theta^4 - 2 theta^2, theta (1,)."""
    return (theta**4 - 2 * theta**2).sum()


def banana(theta):
    """U = theta_1^4 / 10 + (4 (theta_2 + 1.2) - theta_1^2)^2 / 2, theta (2,)."""
    return theta[0] ** 4 / 10 + (4 * (theta[1] + 1.2) - theta[0] ** 2) ** 2 / 2


def banana_draws(seed: int, count: int) -> np.ndarray:
    """Exact draws of the banana, (count, 2): theta_1^4 / 10 ~ Gamma(1/4), theta_2 given theta_1 is normal."""
    rng = np.random.default_rng(seed)
    first = rng.choice([-1.0, 1.0], count) * (10 * rng.gamma(0.25, size=count)) ** 0.25
    return np.stack([first, (first**2 + rng.normal(size=count)) / 4 - 1.2], axis=1)


# Moments of it: names, functions of (n, 2), and their means.
BANANA_MOMENTS = {
    "E x1": (lambda x: x[:, 0], 0.0),
    "E x1^2": (lambda x: x[:, 0] ** 2, 1.0688150),
    "E x1^4": (lambda x: x[:, 0] ** 4, 2.5),
    "E x2": (lambda x: x[:, 1], -0.9327963),
    "E x2^2": (lambda x: x[:, 1] ** 2, 0.1473519 + 0.9327963**2),
    "E x1^2 x2": (lambda x: x[:, 0] ** 2 * x[:, 1], 2.5 / 4 - 1.2 * 1.0688150),
}


# One dimension by quadrature.

GRID = np.linspace(-9.0, 9.0, 20_001)


def density(potential: Callable, grid: np.ndarray = GRID) -> np.ndarray:
    """exp(-U) / Z on the grid, with U of (1,) arrays."""
    u = np.asarray(jax.vmap(lambda x: potential(x[None]))(jnp.asarray(grid)), float)
    p = np.exp(u.min() - u)
    return p / np.trapezoid(p, grid)


def expectation(potential: Callable, f: Callable, grid: np.ndarray = GRID) -> float:
    """E f under exp(-U) in one dimension."""
    return float(np.trapezoid(density(potential, grid) * f(grid), grid))


def exact_draws(potential: Callable, seed: int, count: int) -> np.ndarray:
    """Draws of exp(-U) in one dimension by its distribution function, (count, 1)."""
    p = density(potential)
    cdf = np.concatenate([[0.0], np.cumsum((p[1:] + p[:-1]) / 2 * np.diff(GRID))])
    return np.interp(np.random.default_rng(seed).uniform(size=count), cdf / cdf[-1], GRID)[:, None]


def euler_bias_slope(potential: Callable, diffusion: Callable, f: Callable) -> float:
    """d E_eps f / d eps at eps = 0 for the Euler chain of drift a = -D U' + D' and diffusion D, in one dimension.

    The chain moves E g by eps L g + eps^2 A g + ..., L g = a g' + D g'', A g = a^2 g''/2 + a D g''' + D^2 g''''/2. Its
    law is p + eps p_1 with int p_1 L g = -int p A g for every g; with L u = f - E f the slope is -int p A u.
    potential and diffusion: of a scalar, f too.
    """
    with jax.enable_x64(True):
        a = lambda x: -diffusion(x) * jax.grad(potential)(x) + jax.grad(diffusion)(x)
        x = jnp.asarray(GRID)
        p = density(lambda theta: potential(theta[0]))
        mean = float(np.trapezoid(p * np.asarray(jax.vmap(f)(x)), GRID))
        centred = lambda x: f(x) - mean
        flux = p * np.asarray(jax.vmap(centred)(x))
        step = (flux[1:] + flux[:-1]) / 2 * np.diff(GRID)
        below = np.concatenate([[0.0], np.cumsum(step)])
        above = np.concatenate([-np.cumsum(step[::-1])[::-1], [0.0]])
        # u' = (1 / p D) int_{-inf}^x p (f - E f), from the nearer end
        integral = np.where(GRID < 0, below, above)
        inside = p > 1e-13 * p.max()
        scale = np.where(inside, p * np.asarray(jax.vmap(diffusion)(x)), 1.0)
        v = np.where(inside, integral / scale, 0.0)

        # u'' = (f - E f - a u') / D, and further derivatives along the solution of this equation
        v1 = lambda x, v: (centred(x) - a(x) * v) / diffusion(x)
        along = lambda g: lambda x, v: jax.grad(g, 0)(x, v) + jax.grad(g, 1)(x, v) * v1(x, v)
        v2 = along(v1)
        v3 = along(v2)
        A = lambda x, v: a(x) ** 2 * v1(x, v) / 2 + a(x) * diffusion(x) * v2(x, v) + diffusion(x) ** 2 * v3(x, v) / 2
        values = np.asarray(jax.vmap(A)(x, jnp.asarray(v)))
    return float(-np.trapezoid(np.where(inside, p * values, 0.0), GRID))


def standard_errors_off(sample: np.ndarray, mean: float) -> float:
    """How many standard errors the average of independent numbers lies from ``mean``."""
    return float((sample.mean() - mean) / (sample.std(ddof=1) / np.sqrt(len(sample))))
