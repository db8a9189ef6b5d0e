"""The problem of the speed benchmark and every way to move on it: ours, the peers', and loops written by hand.

Bayesian logistic regression, N rows, d = 50, batches of 100, float32. Each contestant is a function of no arguments
that makes some steps, waits for them, and gives the number of gradients evaluated.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.sgmcmc.gradients import control_variates as blackjax_control_variates
from blackjax.sgmcmc.gradients import grad_estimator

import fokker
from fokker.run.loop import Chains
from fokker.run.plan import Plan, make_plan

D, BATCH, PRIOR_SD = 50, 100, 10.0
STEP = 2e-8  # of SGLD; the second-order samplers move with STEP ** 0.5, which costs the same
FRICTION = 1e3
L = 10  # gradients of one step of BlackJAX's SGHMC, on one batch
THIN = 10  # steps of ours to a kept draw
Work = Callable[[], int]


@dataclass(frozen=True)
class Problem:
    X: np.ndarray  # (N, d)
    y: np.ndarray  # (N,)

    @property
    def size(self) -> int:
        return len(self.y)


def problem(size: int) -> Problem:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((size, D)).astype(np.float32)
    beta = 0.3 * rng.standard_normal(D)
    return Problem(X, (rng.random(size) < 1 / (1 + np.exp(-X @ beta))).astype(np.float32))


def log_prior(beta: Any) -> Any:
    return -0.5 * jnp.sum((beta / PRIOR_SD) ** 2)


def log_row(beta: Any, row: Any) -> Any:
    """log p(y | x, beta) as people write it; BlackJAX vmaps it over rows."""
    x, y = row
    return y * (x @ beta) - jax.nn.softplus(x @ beta)


# --- ours -----------------------------------------------------------------------------------------------------------


def built_in(p: Problem) -> Any:
    return fokker.glm(p.X, p.y, "bernoulli", intercept=False, prior_scale=PRIOR_SD)


def user_written(p: Problem) -> Any:
    """The same density, from plain functions, its gradient by automatic differentiation."""
    return fokker.Target(log_prior, log_row_batch, (p.X, p.y), start=np.zeros(D, np.float32))


def log_row_batch(beta: Any, batch: Any) -> Any:
    X, y = batch
    return y * (X @ beta) - jax.nn.softplus(X @ beta)


def kernels(size: int) -> dict[str, Any]:
    """Ours, at steps that suit the size of the data."""
    eps = STEP * 100_000 / size
    return {
        "sgld": fokker.sgld(step_size=eps),
        "sghmc": fokker.sghmc(step_size=eps**0.5, friction=FRICTION),
        "sgnht": fokker.sgnht(step_size=eps**0.5, diffusion=FRICTION),
    }


def plan(target: Any, kernel: Any, *, chains: int = 1, thin: int = THIN, draws: int = 10**9, **more: Any) -> Plan:
    """What ``fokker.sample`` makes of its arguments before it begins."""
    settings = dict(gradient=fokker.minibatch(), init=None, warmup=0, batch_size=BATCH, batches=None,
                    share_batches=False, seed=0, dtype="float32")  # fmt: skip
    return make_plan(target, kernel, chains=chains, thin=thin, draws=draws, **(settings | more))


def ours(plan: Plan, steps: int) -> Work:
    """The run's own blocks: batches chosen, steps made, finiteness looked at, draws handed over."""
    chains = Chains(plan)
    each = max(1, steps // (plan.thin * plan.chains))

    def work() -> int:
        return chains.draw(each).positions.shape[1] * plan.thin * plan.chains

    return work


class Ours:
    """Draws of a run, a block of ``steps`` a chain at a time; the chains go on from call to call."""

    def __init__(self, plan: Plan, steps: int) -> None:
        self.plan, self.draws = plan, steps // plan.thin
        self.chains: Chains | None = None

    def __call__(self) -> np.ndarray:
        """(chains, draws, d)."""
        self.chains = self.chains or Chains(self.plan)
        out: list[np.ndarray] = []
        while (have := sum(part.shape[1] for part in out)) < self.draws:
            out.append(self.chains.draw(self.draws - have).positions)
        return np.concatenate(out, axis=1)


def ours_draws(plan: Plan) -> np.ndarray:
    """All draws of a plan after its warm-up, (chains, draws, d)."""
    draw = Ours(plan, plan.draws * plan.thin)
    draw.chains = Chains(plan)
    draw.chains.skip(plan.warmup)
    return draw()


# --- loops by hand --------------------------------------------------------------------------------------------------


def without_noise(p: Problem, steps: int) -> Work:
    """The arithmetic alone: contiguous slices of the data in order, the gradient, the step, every tenth kept."""
    X, y, N = jnp.asarray(p.X), jnp.asarray(p.y), p.size

    def step(beta: Any, t: Any) -> Any:
        Xb, yb = (jax.lax.dynamic_slice_in_dim(leaf, t * BATCH % N, BATCH) for leaf in (X, y))
        grad = N / BATCH * ((yb - jax.nn.sigmoid(Xb @ beta)) @ Xb) - beta / PRIOR_SD**2
        return beta + STEP * grad

    def keep(beta: Any, k: Any) -> Any:
        beta = jax.lax.fori_loop(k * THIN, k * THIN + THIN, lambda t, beta: step(beta, t), beta)
        return beta, beta

    run = jax.jit(lambda beta: jax.lax.scan(keep, beta, jnp.arange(steps // THIN)))
    return lambda: jax.block_until_ready(run(jnp.zeros(D))) and steps // THIN * THIN


def numpy_sgld(p: Problem, steps: int) -> Work:
    """SGLD in NumPy with contiguous batches."""
    rng, N = np.random.default_rng(0), p.size

    def work() -> int:
        beta, scale = np.zeros(D, np.float32), np.float32((2 * STEP) ** 0.5)
        for t in range(steps):
            rows = slice(t * BATCH % N, t * BATCH % N + BATCH)
            Xb = p.X[rows]
            grad = N / BATCH * ((p.y[rows] - 1 / (1 + np.exp(-(Xb @ beta)))) @ Xb) - beta / PRIOR_SD**2
            beta = beta + STEP * grad + scale * rng.standard_normal(D, np.float32)
        return steps

    return work


# --- peers ----------------------------------------------------------------------------------------------------------


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
            self.grad = blackjax_control_variates(self.grad, jnp.asarray(centre), self.data)

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
                chains: int, start: np.ndarray) -> Callable[[], np.ndarray]:  # fmt: skip
        """A function that goes on for ``gradients`` a chain and gives (chains, draws, d)."""
        steps = gradients // (length if method == "sghmc" else 1)
        shape = (method, feed, steps, chains, length)
        if shape not in self.compiled:
            self.compiled[shape] = self.scan(method, feed, steps, chains, False, length)
        run, calls = self.compiled[shape], 0
        state: Any = jnp.tile(jnp.asarray(start, jnp.float32), (chains, 1))
        if method == "sgnht":
            keys = jax.random.split(jax.random.key(1), chains)
            state = jax.vmap(lambda key, at: blackjax.sgnht(self.grad, friction).init(at, key))(keys, state)

        def draw() -> np.ndarray:
            nonlocal state, calls
            key = jax.random.fold_in(jax.random.key(0), calls)
            state, draws = run(state, key, step_size, friction, calls * steps)
            calls += 1
            return np.asarray(draws).swapaxes(0, 1)

        return draw


def weighted_laplace(p: Problem, mode: np.ndarray, A: np.ndarray, pairs: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the posterior: antithetic draws of its Gaussian approximation, weighted, in float64.

    What the weights change is added to the Gaussian's own moments, so that only the change has a sampling error.
    """
    rng, d = np.random.default_rng(1), len(mode)
    z = rng.standard_normal((pairs, d)) @ np.linalg.cholesky(np.linalg.inv(A)).T
    z = np.concatenate([z, -z])
    log_weight = 0.5 * np.einsum("si,ij,sj->s", z, A, z) - 0.5 * ((mode + z) ** 2).sum(1) / PRIOR_SD**2
    with jax.enable_x64(True):
        rows = jax.jit(lambda beta, X, y: (y * (X @ beta.T).T - jax.nn.softplus((X @ beta.T).T)).sum(1))
        for first in range(0, p.size, 10_000):
            X, y = (a[first : first + 10_000].astype(np.float64) for a in (p.X, p.y))
            log_weight += np.concatenate([np.asarray(rows(mode + part, X, y)) for part in np.split(z, 20)])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    shift = weight @ z  # antithetic: without weights it is 0
    variance = np.diag(np.linalg.inv(A)) + weight @ z**2 - (z**2).mean(0) - shift**2
    return mode + shift, np.sqrt(variance)


def compile_each(makers: dict[str, Callable[[], Work]]) -> tuple[dict[str, Work], dict[str, float]]:
    """The contestants, each called once; and the seconds until then, most of which are compilation."""
    works, seconds = {}, {}
    for name, make in makers.items():
        begun = time.perf_counter()
        works[name] = make()
        works[name]()
        seconds[name] = round(time.perf_counter() - begun, 2)
    return works, seconds
