"""How much of a chain's noise comes from its gradient, looked at while it runs, for the progress line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run import blocks
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht

if TYPE_CHECKING:
    from fokker.run.loop import Chains

BATCHES = 100  # a share is known to 15 % in one dimension, better in more


def noise_share(chains: Chains) -> float | None:
    """eps V / 2C (SGLD: eps D V / 2), the mean over coordinates, where the first chain is now.

    None where the gradient has no noise, or batches cannot be drawn twice, or the kernel is of another kind. The audit
    looks closer, after the run.
    """
    plan, kernel = chains.plan, chains.plan.kernel
    if plan.batches is None or not isinstance(kernel, (sgld, sghmc, sgnht)):
        return None
    state = jax.tree.map(lambda leaf: leaf[0], chains.states[0]) if plan.share_batches else chains.states[0]
    gradient, feed = plan.gradient.bind(plan.target), blocks.Feed("windows", plan.batches.batch_size)
    words = jnp.asarray(random.chain_words(plan.seed, 0, random.AUDIT))

    @jax.jit
    def variance(state: Any, data: Any, index: Any) -> Any:
        def one(aux: Any, i: Any) -> Any:
            key, batch = Key(words, i.astype(jnp.uint32)), feed.batch(data, index, i)
            grad_u, _, aux = gradient.estimate(key, state.position, batch, aux)
            return aux, grad_u

        return jnp.var(jax.lax.scan(one, state.aux, jnp.arange(BATCHES))[1], axis=0, ddof=1)

    index = jnp.asarray(plan.batches.starts(0, chains.iteration, BATCHES))
    V = np.asarray(variance(state, chains.data, index), float)
    friction = _friction(kernel)
    if friction.size not in (1, V.size):  # groups of thermostats
        return None
    return float(np.mean(float(kernel.step_size) / 2 * V / friction))


def _friction(kernel: sgld | sghmc | sgnht) -> np.ndarray:
    """The diagonal of F, with 2 eps F the noise that a step injects beside eps grad U: D^-1, C or A."""
    if isinstance(kernel, sgld):
        D = np.asarray(kernel.diffusion, float)
        return 1 / D if D.ndim < 2 else np.diag(np.linalg.inv(D))
    F = np.asarray(kernel.friction if isinstance(kernel, sghmc) else kernel.diffusion, float)
    return F if F.ndim < 2 else np.diag(F)
