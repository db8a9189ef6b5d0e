"""The problem of the speed benchmark, our ways to move on it, and loops written by hand.

Bayesian logistic regression, N rows, d = 50, batches of 100, float32. Each contestant is a function of no arguments
that makes some steps, waits for them, and gives the number of gradients evaluated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fokker
from fokker.run.loop import Chains
from fokker.run.plan import Plan, make_plan

D, BATCH, PRIOR_SD = 50, 100, 10.0
STEP = 2e-8  # of SGLD; the second-order samplers move with STEP ** 0.5, which costs the same
FRICTION = 1e3
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
    """log p(y | x, beta) of one row, which BlackJAX vmaps, or of a batch.

    The product is written once: written twice, its automatic derivative is three products with the rows, not two.
    """
    x, y = row
    eta = x @ beta
    return y * eta - jax.nn.softplus(eta)


# --- ours -----------------------------------------------------------------------------------------------------------


def built_in(p: Problem) -> Any:
    return fokker.glm(p.X, p.y, "bernoulli", intercept=False, prior_scale=PRIOR_SD)


def user_written(p: Problem) -> Any:
    """The same density, from plain functions, its gradient by automatic differentiation."""
    return fokker.Target(log_prior, log_row, (p.X, p.y), start=np.zeros(D, np.float32))


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

    def prepare(self) -> None:
        """Compile, and make the steps of the warm-up."""
        self.chains = Chains(self.plan)
        self.chains.skip(self.plan.warmup)

    def __call__(self) -> np.ndarray:
        """(chains, draws, d)."""
        out: list[np.ndarray] = []
        while (have := sum(part.shape[1] for part in out)) < self.draws:
            out.append(self.chains.draw(self.draws - have).positions)
        return np.concatenate(out, axis=1)


def ours_draws(plan: Plan) -> np.ndarray:
    """All draws of a plan after its warm-up, (chains, draws, d)."""
    draw = Ours(plan, plan.draws * plan.thin)
    draw.prepare()
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


# --- the truth, and the time to compile ------------------------------------------------------------------------------


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
