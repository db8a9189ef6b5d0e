"""Many short chains at once, for tests that compare laws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch
from fokker.target import Target


def keys(seed: int, chains: int) -> Any:
    """The words of every chain, (chains, 2) uint32."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, (chains, 2), dtype=np.uint32))


def move(
    kernel: Any, potential: Any, start: Any, iterations: int, *, gradient: Any = None, seed: int = 0, space: Any = None
):
    """Every chain ``iterations`` steps on from its row of ``start``: final positions (chains, d), all infos."""
    bound = kernel.bind(Target(lambda theta: -potential(theta), None, space=space), gradient or minibatch())

    def chain(words, position):
        def one(state, t):
            return bound.step(Key(words, t), state)

        state = bound.init(position, Key(words ^ jnp.uint32(0x5A5A5A5A), jnp.uint32(0)))
        state, info = jax.lax.scan(one, state, jnp.arange(iterations, dtype=jnp.uint32))
        return state.position, info

    start = jnp.asarray(start)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(chain))(keys(seed, len(start)), start))


def averages(
    kernel: Any,
    potential: Any,
    start: Any,
    iterations: int,
    f: Any,
    *,
    gradient: Any = None,
    seed: int = 0,
    space: Any = None,
):
    """The average of f(state) along every chain, (chains, k); independent from chain to chain."""
    target = Target(lambda theta: -potential(theta), None, space=space)
    bound = kernel.bind(target, gradient or minibatch())

    def chain(words, position):
        def one(carry, t):
            state, total = carry
            state, _ = bound.step(Key(words, t), state)
            return (state, total + f(state)), None

        state = bound.init(position, Key(words ^ jnp.uint32(0x5A5A5A5A), jnp.uint32(0)))
        total = jnp.zeros_like(f(state))
        (_, total), _ = jax.lax.scan(one, (state, total), jnp.arange(iterations, dtype=jnp.uint32))
        return total / iterations

    start = jnp.asarray(start)
    return np.asarray(jax.jit(jax.vmap(chain))(keys(seed, len(start)), start))
