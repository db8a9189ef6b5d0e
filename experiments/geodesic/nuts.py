"""The reference of the applications: NUTS of BlackJAX, and how draws of any sampler are weighed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import numpy as np
from arviz_stats.base import array_stats


class Draws(NamedTuple):
    values: Any  # pytree of arrays, (chains, draws, ...)
    gradients: int  # of all chains, adaptation left out
    seconds: float  # of all chains one after the other, compilation and adaptation left out
    warmup_seconds: float  # with compilation


def nuts(log_density: Callable[[Any], Any], starts: Any, warmup: int, draws: int, seed: int) -> Draws:
    """Chains from ``starts``, a pytree with a leading axis of chains, each with a step size and a mass of its own."""
    adapt = blackjax.window_adaptation(blackjax.nuts, log_density)

    @partial(jax.jit, static_argnums=2)
    def warm(start: Any, key: Any, steps: int) -> Any:
        (state, settings), _ = adapt.run(key, start, num_steps=steps)
        return state, settings

    @partial(jax.jit, static_argnums=3)
    def run(state: Any, settings: Any, key: Any, count: int) -> Any:
        kernel = blackjax.nuts(log_density, **settings)

        def one(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(one, state, jax.random.split(key, count))[1]

    chains = len(jax.tree.leaves(starts)[0])
    keys = jax.random.split(jax.random.key(seed), 2 * chains)
    begin = time.perf_counter()
    ready = [warm(jax.tree.map(lambda a, c=c: a[c], starts), keys[c], warmup) for c in range(chains)]
    compiled = run.lower(*ready[0], keys[0], draws).compile()
    jax.block_until_ready(ready)
    middle = time.perf_counter()
    found = jax.block_until_ready([compiled(*r, keys[chains + c]) for c, r in enumerate(ready)])
    seconds = time.perf_counter() - middle
    values = jax.tree.map(lambda *leaves: np.stack(leaves), *[f[0] for f in found])
    return Draws(values, int(sum(np.sum(f[1]) for f in found)), seconds, middle - begin)


def standard_error(x: np.ndarray) -> float:
    """Of the mean of (chains, draws)."""
    return float(array_stats.mcse(np.asarray(x, float), chain_axis=0, draw_axis=1, method="mean"))


def effective(x: np.ndarray) -> float:
    """Effective draws of the mean of (chains, draws)."""
    return float(array_stats.ess(np.asarray(x, float), chain_axis=0, draw_axis=1, method="mean"))
