"""The problems of the geodesic benchmark: steps on the sphere written by hand, and one posterior for GMC and NUTS.

Each contestant is a function of no arguments that does some work, waits for it, and gives how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _logistic import compile_each as compile_each
from arviz_stats.base import array_stats
from numba import njit

import fokker
from fokker.numeric.random_jax import Key, normal
from fokker.run.loop import Chains
from fokker.run.plan import Plan, make_plan

KAPPA, STEP, FRICTION = 500.0, 0.02, 2.0  # of SGGMC on a von Mises-Fisher density
THIN = 10  # steps to a kept draw
Work = Callable[[], int]


def mean_direction(n: int) -> np.ndarray:
    return np.full(n, n**-0.5, np.float32)


def von_mises_fisher(n: int) -> Any:
    mu = mean_direction(n)
    return fokker.Target(lambda x: KAPPA * (x @ mu), None, space=fokker.Sphere(n), start=mu)


def plan(target: Any, kernel: Any, **more: Any) -> Plan:
    """What ``fokker.sample`` makes of its arguments before it begins, for one chain."""
    settings = dict(gradient=fokker.minibatch(), init=None, draws=10**9, warmup=0, thin=THIN, chains=1, batch_size=None,
                    batches=None, share_batches=False, seed=0, dtype="float32")  # fmt: skip
    gradient = (settings | more).pop("gradient")
    return make_plan(target, kernel, gradient, **{k: v for k, v in (settings | more).items() if k != "gradient"})


def ours(kernel: Any, n: int, steps: int) -> Work:
    """The run's own blocks: steps made, finiteness looked at, draws handed over."""
    chains = Chains(plan(von_mises_fisher(n), kernel))
    return lambda: chains.draw(steps // THIN).positions.shape[1] * THIN


def aboba_by_hand(n: int, steps: int, noise: bool = True) -> Work:
    """The same step in a ``lax.scan``, as one would write it: keys split, ``jax.random.normal`` inside."""
    mu = jnp.asarray(mean_direction(n))
    keep, scale = math.exp(-FRICTION * STEP / 2), math.sqrt(2 * FRICTION * STEP)

    def flow(x: Any, v: Any, t: float) -> Any:
        a = jnp.sqrt(v @ v)
        cos, sin = jnp.cos(a * t), jnp.sin(a * t)
        return x * cos + v * (sin / a), v * cos - x * (a * sin)

    def step(carry: Any, key: Any) -> Any:
        x, v = flow(*carry, STEP / 2)
        push = STEP * KAPPA * mu
        if noise:
            push = push + scale * jax.random.normal(key, (n,))
        v = keep * (keep * v + push - x * (x @ push))
        x, v = flow(x, v, STEP / 2)
        x = x / jnp.sqrt(x @ x)
        return (x, v - x * (x @ v)), None

    def to_next_draw(carry: Any, key: Any) -> Any:
        carry, _ = jax.lax.scan(step, carry, jax.random.split(key, THIN))
        return carry, carry[0]

    run = jax.jit(lambda carry, key: jax.lax.scan(to_next_draw, carry, jax.random.split(key, steps // THIN)))
    state: Any = (mu, jnp.zeros(n).at[0].set(1.0))
    key = jax.random.key(0)

    def work() -> int:
        nonlocal state, key
        key = jax.random.fold_in(key, 0)
        state, _ = jax.block_until_ready(run(state, key))
        return steps // THIN * THIN

    return work


def aboba_in_numpy(n: int, steps: int) -> Work:
    """The same step in NumPy, in place, its noise in float32 from NumPy's generator."""
    f, rng, mu = np.float32, np.random.default_rng(0), mean_direction(n)
    keep, scale, kick = f(math.exp(-FRICTION * STEP / 2)), f(math.sqrt(2 * FRICTION * STEP)), f(STEP * KAPPA) * mu
    x, v, z, spare = mu.copy(), np.zeros(n, f), np.empty(n, f), np.empty(n, f)
    v[0] = 1

    def flow(t: float) -> None:
        a = math.sqrt(float(v @ v))
        np.multiply(x, f(a * math.sin(a * t)), out=spare)
        np.multiply(v, f(math.sin(a * t) / a), out=z)
        np.multiply(x, f(math.cos(a * t)), out=x)
        np.add(x, z, out=x)
        np.multiply(v, f(math.cos(a * t)), out=v)
        np.subtract(v, spare, out=v)

    def onto_tangent(u: np.ndarray) -> None:
        np.multiply(x, x @ u, out=spare)
        np.subtract(u, spare, out=u)

    def work() -> int:
        for _ in range(steps):
            flow(STEP / 2)
            rng.standard_normal(n, dtype=f, out=z)
            np.multiply(z, scale, out=z)
            np.add(z, kick, out=z)
            onto_tangent(z)
            np.multiply(v, keep, out=v)
            np.add(v, z, out=v)
            np.multiply(v, keep, out=v)
            flow(STEP / 2)
            np.divide(x, f(math.sqrt(float(x @ x))), out=x)
            onto_tangent(v)
        return steps

    return work


# --- many spheres -----------------------------------------------------------------------------------------------------


def ours_on_columns(kernel: Any, n: int, k: int) -> Work:
    """SGGMC on Oblique(n, k), every column with its own mean direction, as the run's program makes its steps."""
    push = np.random.default_rng(0).standard_normal((n, k), dtype=np.float32)
    start = np.full((n, k), n**-0.5, np.float32)
    target = fokker.Target(lambda x: jnp.sum(push * x), None, space=fokker.Oblique(n, k), start=start)
    chains = Chains(plan(target, kernel))
    return lambda: chains.draw(1).positions.shape[1] * THIN


@njit
def _stream(x: np.ndarray, v: np.ndarray, g: np.ndarray) -> None:
    for i in range(x.size):
        a, b = x[i], v[i]
        x[i] = np.float32(0.5) * (a + b)
        v[i] = np.float32(0.5) * (b + g[i])


def through_memory(size: int) -> Work:
    """Three arrays read and two of them written, one pass."""
    arrays = [np.ones(size, np.float32) for _ in range(3)]

    def work() -> int:
        _stream(*arrays)
        return 1

    return work


def normals_alone(size: int) -> Work:
    """As many normals of the library's generator, into an array that is used again."""
    fill = jax.jit(lambda old, i: old * 0 + normal(Key(jnp.array([1, 2], jnp.uint32), i), (size,)), donate_argnums=0)
    array, count = jnp.zeros(size, jnp.float32), 0

    def work() -> int:
        nonlocal array, count
        array, count = jax.block_until_ready(fill(array, jnp.uint32(count))), count + 1
        return 1

    return work


# --- a logistic regression on the unit vector -------------------------------------------------------------------------

D, ROWS, PRIOR = 50, 2000, 50.0


def ess(draws: np.ndarray) -> np.ndarray:
    """For the means, (d,); draws: (chains, draws, d)."""
    one = lambda x: float(array_stats.ess(x.astype(np.float64), chain_axis=0, draw_axis=1, method="mean"))
    return np.array([one(draws[..., c]) for c in range(draws.shape[-1])])


class Regression:
    """Unit vector x in R^50 with prior vMF(mu, 50), 2,000 rows: y ~ Bernoulli(sigmoid(3 a.x))."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.mu = mean_direction(D)
        truth = self.mu + 0.5 * rng.standard_normal(D) / math.sqrt(D)
        truth /= np.linalg.norm(truth)
        self.A = (3 * rng.standard_normal((ROWS, D))).astype(np.float32)
        self.y = (rng.random(ROWS) < 1 / (1 + np.exp(-self.A @ truth))).astype(np.float32)

    def log_prior(self, x: Any) -> Any:
        return PRIOR * (x @ self.mu)

    def log_rows(self, x: Any, rows: Any) -> Any:
        eta = rows[0] @ x
        return rows[1] * eta - jax.nn.softplus(eta)

    def target(self) -> Any:
        return fokker.Target(self.log_prior, self.log_rows, (self.A, self.y), space=fokker.Sphere(D), start=self.mu)

    def of_gaussian(self) -> Callable[[Any], Any]:
        """Log density of z ~ Normal(0, I) whose direction is x, as users write it for NUTS."""
        rows = jnp.asarray(self.A), jnp.asarray(self.y)

        def log_density(z: Any) -> Any:
            x = z / jnp.linalg.norm(z)
            return self.log_prior(x) + jnp.sum(self.log_rows(x, rows)) - 0.5 * (z @ z)

        return log_density


class OurGMC:
    """Draws of a run of ``fokker.gmc``, a block at a time; the chain goes on from call to call."""

    def __init__(self, problem: Regression, step_size: float, leapfrog_steps: int, draws: int) -> None:
        kernel = fokker.gmc(step_size, leapfrog_steps=leapfrog_steps)
        self.plan, self.draws = plan(problem.target(), kernel, thin=1), draws

    def prepare(self) -> None:
        self.chains = Chains(self.plan)
        self.chains.skip(200)

    def __call__(self) -> np.ndarray:
        out: list[np.ndarray] = []
        while (have := sum(part.shape[1] for part in out)) < self.draws:
            out.append(self.chains.draw(self.draws - have).positions)
        return np.concatenate(out, axis=1)


class BlackJAXNuts:
    """BlackJAX's NUTS after its window adaptation, in a compiled scan."""

    def __init__(self, problem: Regression, acceptance: float, dense: bool, draws: int) -> None:
        self.log_density, self.acceptance, self.dense, self.draws = problem.of_gaussian(), acceptance, dense, draws
        self.start = jnp.asarray(problem.mu * math.sqrt(D))

    def prepare(self) -> None:
        import blackjax

        warmup = blackjax.window_adaptation(
            blackjax.nuts, self.log_density, is_mass_matrix_diagonal=not self.dense,
            target_acceptance_rate=self.acceptance,
        )  # fmt: skip
        (self.state, settings), _ = warmup.run(jax.random.key(0), self.start, num_steps=1000)
        step = blackjax.nuts(self.log_density, **settings).step

        def one(state: Any, key: Any) -> Any:
            state, _ = step(key, state)
            return state, state.position / jnp.linalg.norm(state.position)

        self.run = jax.jit(lambda state, key: jax.lax.scan(one, state, jax.random.split(key, self.draws)))
        self.calls = 0
        self()

    def __call__(self) -> np.ndarray:
        self.calls += 1
        self.state, x = self.run(self.state, jax.random.fold_in(jax.random.key(1), self.calls))
        return np.asarray(x)[None]


class NumPyroNuts:
    """NumPyro's NUTS after its warm-up, its compiled loop used again for every block."""

    def __init__(self, problem: Regression, acceptance: float, dense: bool, draws: int) -> None:
        from numpyro.infer import MCMC, NUTS

        log_density = problem.of_gaussian()
        kernel = NUTS(potential_fn=lambda z: -log_density(z), target_accept_prob=acceptance, dense_mass=dense)
        self.mcmc = MCMC(kernel, num_warmup=1000, num_samples=draws, progress_bar=False)
        self.start, self.calls = jnp.asarray(problem.mu * math.sqrt(D)), 0

    def prepare(self) -> None:
        self.mcmc.warmup(jax.random.key(0), init_params=self.start)
        self()

    def __call__(self) -> np.ndarray:
        self.calls += 1
        if self.calls > 1:
            self.mcmc.post_warmup_state = self.mcmc.last_state
        self.mcmc.run(jax.random.fold_in(jax.random.key(1), self.calls), init_params=self.start)
        z = np.asarray(self.mcmc.get_samples())
        return (z / np.linalg.norm(z, axis=1, keepdims=True))[None]
