"""SGRLD in spherical coordinates, as Liu, Zhu & Song (2016) argue that it should not be run, beside SGGMC.

x_1 = cos q_1, x_2 = sin q_1 cos q_2, ..., x_n = sin q_1 ... sin q_{n-1}, with the metric G = diag(1, sin^2 q_1,
sin^2 q_1 sin^2 q_2, ...). At the poles of every angle but the last G is zero, and G^-1 and the force of the volume,
(n - 1 - k) cot q_k, have no bound. The coordinates are continued beyond the poles as periodic functions: nothing is
reflected or refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fokker
from fokker.numeric import vmf
from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch

LOST = 1e3  # an angle beyond this many radians has been thrown there by the metric


def to_sphere(q: Array) -> Array:
    """(n - 1,) -> (n,)."""
    sines = jnp.cumprod(jnp.sin(q))
    return jnp.concatenate([jnp.cos(q[:1]), sines[:-1] * jnp.cos(q[1:]), sines[-1:]])


def to_angles(x: np.ndarray) -> np.ndarray:
    """(., n) -> (., n - 1)."""
    tails = np.sqrt(np.cumsum(x[:, ::-1] ** 2, 1))[:, ::-1]  # |x_k, ..., x_n|
    q = np.arctan2(tails[:, 1:], x[:, :-1])
    q[:, -1] = np.arctan2(x[:, -1], x[:, -2])
    return q


def metric_inverse(q: Array) -> Array:
    return jnp.concatenate([jnp.ones(1, q.dtype), 1 / jnp.cumprod(jnp.sin(q) ** 2)[:-1]])


def log_volume(q: Array) -> Array:
    """log sqrt|G|."""
    powers = jnp.arange(len(q) - 1, -1, -1, dtype=q.dtype)
    return jnp.sum(powers[:-1] * jnp.log(jnp.sin(q[:-1]) ** 2)) / 2


def coordinates(direction: Array, eps: Any) -> Any:
    """SGRLD's step for the density exp(direction.x) of the surface; Gamma is 0, as G_kk does not depend on q_k."""
    target = fokker.Target.from_log_density(lambda q: direction @ to_sphere(q) + log_volume(q))
    return fokker.sgrld(eps, metric_inverse=metric_inverse, gamma=jnp.zeros_like).bind(target, minibatch())


def embedded(direction: Array, eps: Any) -> Any:
    n = len(direction)
    target = fokker.Target(lambda x: direction @ x, None, space=fokker.Sphere(n))
    return fokker.sggmc(eps, friction=1.0).bind(target, minibatch())


@partial(jax.jit, static_argnames="method")
def _run(words: Array, start: Array, eps: Array, method: Any, direction: Array, steps: Array) -> tuple[Array, Array]:
    bound = method(direction, eps)
    point = to_sphere if method is coordinates else (lambda x: x)

    def chain(words: Array, start: Array) -> tuple[Array, Array]:
        state = bound.init(start, Key(words ^ jnp.uint32(1), jnp.uint32(0)))

        def gather(t: Any, carry: Any) -> Any:
            state = bound.step(Key(words, t.astype(jnp.uint32)), carry[0])[0]
            x = point(state.position)
            return state, carry[1] + x

        state, total = jax.lax.fori_loop(0, steps, gather, (state, jnp.zeros_like(direction)))
        return total / steps, state.position

    return jax.vmap(chain)(words, start)


class Found(NamedTuple):
    """Of the chains that are still there."""

    mean: float  # of mu.x, mu the direction
    error: float  # its standard error
    lost: float  # share of chains that are not


def run(method: Any, direction: np.ndarray, eps: float, chains: int, time: float, seed: int = 0) -> Found:
    """Chains that start from exact draws."""
    rng = np.random.default_rng(seed)
    kappa = float(np.linalg.norm(direction))
    mu = direction / kappa if kappa else np.eye(len(direction))[0]
    x = vmf.sample(rng, mu, kappa, chains)
    start = to_angles(x) if method is coordinates else x
    words = rng.integers(0, 2**32, (chains, 2), dtype=np.uint32)
    single = lambda a: jnp.asarray(a, jnp.float32)
    steps = jnp.int32(np.ceil(time / eps))
    averages, last = (
        np.asarray(a, float) for a in _run(words, single(start), single(eps), method, single(direction), steps)
    )
    there = np.isfinite(last).all(1) & (np.abs(last).max(1) < LOST) & np.isfinite(averages).all(1)
    lost = float(1 - there.mean())
    if there.sum() < 2:
        return Found(np.nan, np.nan, lost)
    along = averages[there] @ mu
    return Found(float(along.mean()), float(along.std(ddof=1) / len(along) ** 0.5), lost)
