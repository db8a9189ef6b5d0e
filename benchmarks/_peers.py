"""BlackJAX and posteriors on the problem of the speed benchmark."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from _logistic import BATCH, FRICTION, PRIOR_SD, STEP, D, Problem, Work, log_prior, log_row
from blackjax.sgmcmc.gradients import control_variates, grad_estimator

L = 10  # gradients of one step of BlackJAX's SGHMC, on one batch


def posteriors_sgld(p: Problem, steps: int) -> Work:
    """SGLD of posteriors (PyTorch), in place, with contiguous batches, on one thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import warns of a default in TensorDict
        import posteriors
        import torch
    torch.set_num_threads(1)
    X, y, N = torch.from_numpy(p.X), torch.from_numpy(p.y), p.size

    def log_posterior(params: Any, batch: Any) -> Any:
        eta = batch[0] @ params["beta"]
        rows = batch[1] * eta - torch.nn.functional.softplus(eta)
        return N * rows.mean() - 0.5 * ((params["beta"] / PRIOR_SD) ** 2).sum(), torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=STEP)
    state = transform.init({"beta": torch.zeros(D)})

    def work() -> int:
        nonlocal state
        for t in range(steps):
            rows = slice(t * BATCH % N, t * BATCH % N + BATCH)
            state, _ = transform.update(state, (X[rows], y[rows]), inplace=True)
        return steps

    return work


class BlackJAX:
    """BlackJAX's samplers in a compiled scan, fed by a random gather of rows or by contiguous slices in order."""

    def __init__(self, p: Problem, centre: Any = None) -> None:
        self.N, self.compiled = p.size, {}
        self.data = jnp.asarray(p.X), jnp.asarray(p.y)  # rows without order: the data is its own shuffled copy
        self.grad = grad_estimator(log_prior, log_row, self.N)
        if centre is not None:
            self.grad = control_variates(self.grad, jnp.asarray(centre), self.data)

    def gather(self, key: Any, t: Any) -> Any:
        rows = jax.random.randint(key, (BATCH,), 0, self.N)
        return tuple(leaf[rows] for leaf in self.data)

    def contiguous(self, key: Any, t: Any) -> Any:
        return tuple(jax.lax.dynamic_slice_in_dim(leaf, t * BATCH % self.N, BATCH) for leaf in self.data)

    def kernel(self, method: str, step_size: Any, friction: Any, length: int = L) -> tuple[Callable, Callable]:
        """init(key) and step(key, state, batch)."""
        start = jnp.zeros(D)
        if method == "sgld":
            step = blackjax.sgld(self.grad).step
            return lambda key: start, lambda key, state, batch: step(key, state, batch, step_size)
        if method == "sghmc":
            step = blackjax.sghmc(self.grad, length, friction).step
            return lambda key: start, lambda key, state, batch: step(key, state, batch, step_size)
        whole = blackjax.sgnht(self.grad, friction)
        return lambda key: whole.init(start, key), lambda key, state, batch: whole.step(key, state, batch, step_size)

    def scan(self, method: str, feed: str, steps: int, chains: int, shared: bool, length: int = L) -> Callable:
        """run(state or None, key, step_size, friction, first) -> state, positions (steps, [chains,] d), compiled."""
        batch = getattr(self, feed)

        @jax.jit
        def run(state: Any, key: Any, step_size: Any, friction: Any, first: Any) -> Any:
            init, step = self.kernel(method, step_size, friction, length)
            if state is None:
                state = init(key) if chains == 1 else jax.vmap(init)(jax.random.split(key, chains))

            def one(state: Any, key_and_time: Any) -> Any:
                key, t = key_and_time
                if chains == 1:
                    k_batch, k_step = jax.random.split(key)
                    state = step(k_step, state, batch(k_batch, t))
                elif shared:
                    k_batch, k_step = jax.random.split(key)
                    rows = batch(k_batch, t)
                    state = jax.vmap(step, (0, 0, None))(jax.random.split(k_step, chains), state, rows)
                else:
                    keys = jax.random.split(key, 2 * chains)
                    rows = jax.vmap(batch)(keys[:chains], t + jnp.arange(chains) * (self.N // BATCH // chains))
                    state = jax.vmap(step)(keys[chains:], state, rows)
                return state, getattr(state, "position", state)

            return jax.lax.scan(one, state, (jax.random.split(key, steps), first + jnp.arange(steps)))

        return run

    def work(self, method: str, feed: str, gradients: int, *, chains: int = 1, shared: bool = False,
             impl: str | None = None) -> Work:  # fmt: skip
        per_step = chains * (L if method == "sghmc" else 1)
        steps = gradients // per_step
        run = self.scan(method, feed, steps, chains, shared)
        step_size = STEP if method == "sgld" else STEP**0.5
        key = jax.random.key(0, impl=impl)
        return lambda: jax.block_until_ready(run(None, key, step_size, FRICTION, 0)) and steps * per_step

    def drawing(self, method: str, feed: str, step_size: float, friction: float, length: int, gradients: int,
                chains: int, start: np.ndarray) -> Drawing:  # fmt: skip
        """Draws after ``gradients`` a chain, at each call."""
        steps = gradients // (length if method == "sghmc" else 1)
        shape = (method, feed, steps, chains, length)
        if shape not in self.compiled:
            self.compiled[shape] = self.scan(method, feed, steps, chains, False, length)
        state: Any = jnp.tile(jnp.asarray(start), (chains, 1))
        if method == "sgnht":
            keys = jax.random.split(jax.random.key(1), chains)
            state = jax.vmap(lambda key, at: blackjax.sgnht(self.grad, friction).init(at, key))(keys, state)
        return Drawing(self.compiled[shape], state, step_size, friction, steps)


class Drawing:
    """Draws of BlackJAX, a block of ``steps`` at a time; the chains go on from call to call."""

    def __init__(self, run: Callable, state: Any, step_size: float, friction: float, steps: int) -> None:
        self.run, self.state, self.settings, self.steps, self.calls = run, state, (step_size, friction), steps, 0

    def prepare(self) -> None:
        """Compile, if no setting of this shape has been run before."""
        if not self.run._cache_size():
            jax.block_until_ready(self.run(self.state, jax.random.key(0), *self.settings, 0))

    def __call__(self) -> np.ndarray:
        """(chains, draws, d)."""
        key = jax.random.fold_in(jax.random.key(0), self.calls)
        self.state, draws = self.run(self.state, key, *self.settings, self.calls * self.steps)
        self.calls += 1
        return np.asarray(draws).swapaxes(0, 1)
