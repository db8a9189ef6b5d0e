"""The stationary law by long simulation of many chains, with standard errors from the spread between chains."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bias.linear import Law, NoLaw
from experiments.bias.problem import Chain, Problem, TorchChain
from fokker.numeric.random_jax import Key

LEFT = 1e6  # a chain beyond this many units from the mean has left
BLOCK = 200  # steps that are summed in single precision before their average is kept


class Size(NamedTuple):
    """How much to simulate; ``steps`` and ``burn`` count gradients."""

    chains: int
    steps: int
    burn: int


class Estimate(NamedTuple):
    """A law with the standard errors of its means and variances."""

    law: Law
    mean_error: np.ndarray  # (d,)
    variance_error: np.ndarray  # (d,)


def simulate(chain: Chain | TorchChain, problem: Problem, size: Size, seed: int = 0) -> Estimate:
    """All chains start from exact draws and run ``burn`` gradients before anything is kept."""
    rng = np.random.default_rng([seed, problem.d])
    start = problem.mean + rng.normal(size=(size.chains, problem.d)) / problem.a**0.5
    run = torch_averages if isinstance(chain, TorchChain) else jax_averages
    steps, burn = -(-size.steps // chain.gradients // BLOCK) * BLOCK, size.burn // chain.gradients
    powers = np.asarray(run(chain, problem, start, steps, burn, seed), float)  # (4, chains, d) of x - mean
    if not np.isfinite(powers).all() or np.abs(powers[0]).max() > LEFT:
        raise NoLaw
    first, second, _, _ = overall = powers.mean(1)  # (d,)
    variance = second - first**2
    spread = lambda averages: averages.std(0, ddof=1) / size.chains**0.5
    around = powers[1] - 2 * first * powers[0] + first**2  # (chains, d): each chain's mean of (x - E x)^2
    # Autocorrelation time: the variance of chain averages, times their length, over the variance of one value.
    x, square = powers[0][:, 0], around[:, 0]
    fourth = overall[3] - 4 * first * overall[2] + 6 * first**2 * second - 3 * first**4
    tau = steps * max(x.var() / variance[0], square.var() / (fourth[0] - variance[0] ** 2))
    found = Law(problem.mean + first, variance, chain.gradients * tau)
    return Estimate(found, spread(powers[0]), spread(around))


def jax_averages(chain: Chain, problem: Problem, start: np.ndarray, steps: int, burn: int, seed: int) -> Any:
    """Averages of the first four powers of x - mean along each chain, (4, chains, d)."""
    mean = jnp.asarray(problem.mean, jnp.float32)

    def one(words: Any, x: Any) -> Any:
        base = jax.random.wrap_key_data(words)
        key = lambda t: Key(words, t.astype(jnp.uint32)) if chain.ours else jax.random.fold_in(base, t)
        advance = lambda t, state: chain.step(key(t), state)
        state = chain.init(Key(words, jnp.uint32(2**32 - 1)) if chain.ours else base, x)
        state = jax.lax.fori_loop(0, burn, advance, state)

        def gather(t: Any, carry: Any) -> Any:
            state, sums = carry
            state = advance(t, state)
            y = chain.position(state) - mean
            return state, sums + jnp.stack([y, y**2, y**3, y**4])

        def block(k: Any, carry: Any) -> Any:
            state, total = carry
            low = burn + k * BLOCK
            state, sums = jax.lax.fori_loop(low, low + BLOCK, gather, (state, jnp.zeros((4, *x.shape), x.dtype)))
            return state, total + sums / BLOCK

        blocks = steps // BLOCK
        state, total = jax.lax.fori_loop(0, blocks, block, (state, jnp.zeros((4, *x.shape), x.dtype)))
        return total / blocks

    words = np.random.default_rng([seed, 1]).integers(0, 2**32, (len(start), 2), dtype=np.uint32)
    return jax.jit(jax.vmap(one, out_axes=1))(jnp.asarray(words), jnp.asarray(start, jnp.float32))


def torch_averages(chain: TorchChain, problem: Problem, start: np.ndarray, steps: int, burn: int, seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    state = chain.init(torch.as_tensor(start))
    mean, sums = torch.as_tensor(problem.mean), torch.zeros((4, *start.shape), dtype=torch.float64)
    for t in range(burn + steps):
        state = chain.step(state)
        if t >= burn:
            y = state[0] - mean
            sums += torch.stack([y, y**2, y**3, y**4])
    return (sums / steps).numpy()
