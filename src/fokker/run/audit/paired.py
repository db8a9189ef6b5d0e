"""Step-size bias, measured: the run's kernel at eps beside itself at eps/2, coupled through their noise.

For one step of the coarse chain the fine one makes two, from normals z1 and z2; the coarse step uses
(z1 + z2) / sqrt 2. The two chains then stay within O(eps) of each other, and the difference of their moments, which is
what is wanted, has a far smaller error than either moment. Where gradient noise is not compensated both chains see the
same batch, so that its effect is the same in both and the difference is that of the step alone; where it is, the fine
chain has two batches of its own.

With a bias of order eps^p, bias(eps) = (difference) / (1 - 2^-p). The standard error is from stretches of the chains.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker.geodesic.gsgnht import gsgnht
from fokker.geodesic.sggmc import sggmc
from fokker.geodesic.tangent import space_of
from fokker.numeric import random
from fokker.numeric.random_jax import Given, Key, normal
from fokker.run import blocks
from fokker.run.audit.gradient_noise import indices
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.schedules import constant
from fokker.sgmcmc.sghmc import sghmc

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.sgmcmc.kernel import Bound

STREAMS = 3  # of normals that kernels use
MOST_STEPS, MOST_FROM_DISK = 16_384, 256  # of one call
TRIAL = 100  # steps that say how fast it goes
STRETCHES = 30  # in all, at least
RELAXATIONS = 4  # of the slowest coordinate that the fine chain gets to settle


class Bias(NamedTuple):
    """The bias of the law at eps, by coordinate."""

    sd: np.ndarray  # (d,) relative
    sd_error: np.ndarray  # (d,)
    mean: np.ndarray  # (d,) in sd
    mean_error: np.ndarray  # (d,)
    order: int
    steps: int  # of the coarse chains together


def order_of(kernel: Any) -> int:
    """The order in eps of the bias of theta; 1 where a higher one is not proved."""
    splitting = getattr(kernel, "integrator", None)
    if isinstance(kernel, (sggmc, gsgnht)):
        return 2
    if isinstance(kernel, sghmc):
        return 1 if splitting == "euler" else 2
    return 2 if splitting == "aboba" else 1


def measure_bias(
    plan: Plan,
    step_size: float,
    starts: np.ndarray,
    scale: np.ndarray,
    relaxation: float,
    feed: tuple[blocks.Feed, Any],
    seconds: float,
    wanted: float,
) -> Bias | str:
    """Coupled chains from ``starts`` (chains, d) until the bias is known to ``wanted`` sd or the time is up.

    scale: (d,) sd of the draws; relaxation: iterations in which the slowest coordinate forgets. Gives a sentence
    instead when too few steps fit in the time, or a chain leaves all bounds.
    """
    with Pairs(plan, step_size, starts, scale, feed) as pairs:
        started = time.perf_counter()
        pairs.advance(1)
        compiling = time.perf_counter() - started
        if compiling > 2 * seconds:
            return f"compiling the paired chains took {compiling:.0f} s of {seconds:.0f} s"
        started = time.perf_counter()
        trial = pairs.advance(TRIAL)
        rate = TRIAL / (time.perf_counter() - started)
        stretch = int(max(2 * relaxation, 20))
        settle = _time_to_settle(plan.kernel, relaxation)
        need = settle + stretch * -(-STRETCHES // len(starts))
        if not np.isfinite(trial).all():
            return "a paired chain became non-finite"
        if need / rate > 2 * seconds:
            return (
                f"the chains forget in about {relaxation:,.0f} iterations, so that {need:,} paired steps a chain are "
                f"needed, {need / rate:,.0f} s"
            )
        pairs.advance(settle)
        kept: list[np.ndarray] = []
        while True:
            kept.append(pairs.advance(stretch) / stretch)
            if not np.isfinite(kept[-1]).all():
                return "a paired chain became non-finite"
            if len(kept) * len(starts) < STRETCHES:
                continue
            bias = _bias(_merged(kept), order_of(plan.kernel), pairs.iteration * len(starts))
            known = max(bias.sd_error.max(), bias.mean_error.max()) < wanted
            if known or time.perf_counter() - started > seconds:
                return bias


class Pairs:
    """A coarse and a fine chain from every start, and the sums that their moments are made of."""

    def __init__(
        self, plan: Plan, step_size: float, starts: np.ndarray, scale: np.ndarray, feed: tuple[blocks.Feed, Any]
    ) -> None:
        self._plan, self._data, chains = plan, feed[1], len(starts)
        coarse, fine = (kernel.bind(plan.target, plan.gradient) for kernel in _coarse_and_fine(plan.kernel, step_size))
        own_batches = plan.gradient.noise != "none" and feed[0].kind in ("windows", "stacked")
        self._each = 2 if own_batches else 1  # batches of a coarse step
        entries, inner = plan.layout.size, int(getattr(plan.kernel, "steps_per_batch", 1))
        if getattr(plan.kernel, "on_manifolds", False):  # noise is by entry of a point
            entries = space_of(plan.target, jnp.asarray(starts[0])).size
        own = _Normals(entries, inner, plan.dtype)
        self._step = _paired_steps(coarse, fine, feed[0], starts.mean(0), scale, own_batches, own)
        self._words = [jnp.asarray(random.chain_words(plan.seed, c, random.AUDIT)) for c in range(2 * chains)]
        self._states = []
        for start, words in zip(starts, self._words[chains:], strict=True):
            state = coarse.init(jnp.asarray(start, plan.dtype), Key(words, jnp.uint32(0)))
            self._states.append((state, state))
        # SVRG renews its centre between calls
        estimator = None if plan.target.log_likelihood is None else plan.gradient.bind(plan.target)
        self._refresh = None if estimator is None else estimator.refresh
        # a table of batches has always the same length, so that the program is compiled once
        self._table = self._most = MOST_STEPS if plan.source is None else MOST_FROM_DISK
        if estimator is not None and estimator.refresh_every:
            self._most = min(self._most, estimator.refresh_every)
        self._pool = ThreadPoolExecutor(min(_cores(), chains))
        self.iteration = 0

    def __enter__(self) -> Pairs:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def advance(self, steps: int) -> np.ndarray:
        """(chains, 4, d) sums over the steps of x, y, x^2, y^2, with x coarse and y fine."""
        total = np.zeros(())
        while steps > 0:
            now = min(steps, self._most)
            total = total + self._call(now)
            steps -= now
        return total

    def _call(self, steps: int) -> np.ndarray:
        def one(chain: int) -> Any:
            index, batches = indices(
                self._plan, chain, self.iteration * self._each, self._each * self._table, self._data
            )
            now = jnp.int32(self.iteration), jnp.int32(steps)
            return jax.block_until_ready(self._step(self._states[chain], self._words[chain], *now, batches, index))

        done = list(self._pool.map(one, range(len(self._states))))
        self._states = [states for states, _ in done]
        self.iteration += steps
        if self._refresh is not None:
            renew = lambda s: s._replace(aux=self._refresh(s.position, s.aux))
            self._states = [(renew(a), renew(b)) for a, b in self._states]
        return np.stack([np.asarray(sums, np.float64) for _, sums in done])


def _coarse_and_fine(kernel: Any, step_size: float) -> tuple[Any, Any]:
    """The kernel at a constant eps, and at eps / 2 with momenta resampled at the same times."""
    changes: dict[str, Any] = {"step_size": step_size}
    if hasattr(kernel, "schedule"):
        changes["schedule"] = constant()
    coarse = dataclasses.replace(kernel, **changes)
    every = getattr(kernel, "resample_momentum", None)
    twice = {} if every is None else {"resample_momentum": 2 * every}
    return coarse, dataclasses.replace(coarse, step_size=step_size / 2, **twice)


class _Normals(NamedTuple):
    """The noise of a pair: ``inner`` steps of one batch, each with numbers for all entries of a point."""

    entries: int
    inner: int
    dtype: str

    def __call__(self, words: Any, step: Any) -> tuple[Any, Any, Any]:
        """For the coarse step and the two fine ones, each (STREAMS, inner * entries)."""

        def of(half_step: Any) -> Any:
            key, size = Key(words, half_step.astype(jnp.uint32)), self.entries * self.inner
            return jnp.stack([normal(key, (size,), stream, self.dtype) for stream in range(STREAMS)])

        z1, z2 = of(2 * step), of(2 * step + 1)
        if self.inner == 1:
            return (z1 + z2) / jnp.sqrt(2.0).astype(self.dtype), z1, z2
        each = jnp.concatenate([z.reshape(STREAMS, self.inner, -1) for z in (z1, z2)], axis=1)
        both = (each[:, 0::2] + each[:, 1::2]) / jnp.sqrt(2.0).astype(self.dtype)  # neighbours in time
        return both.reshape(STREAMS, -1), z1, z2


def _paired_steps(
    coarse: Bound,
    fine: Bound,
    feed: blocks.Feed,
    centre: np.ndarray,
    scale: np.ndarray,
    own_batches: bool,
    normals: _Normals,
) -> Callable[..., Any]:
    """steps(states, words, first, count, data, index) -> (states, sums (4, d)), compiled."""
    dtype, d = normals.dtype, len(centre)
    middle, unit = jnp.asarray(centre, dtype), jnp.asarray(1 / scale, dtype)

    @jax.jit
    def steps(states: Any, words: Any, first: Any, count: Any, data: Any, index: Any) -> Any:
        def one(i: Any, carry: Any) -> Any:
            (a, b), sums = carry
            z, z1, z2 = normals(words, first + i)
            batch = feed.batch(data, index, 2 * i if own_batches else i)
            second = feed.batch(data, index, 2 * i + 1) if own_batches else batch
            a, _ = coarse.step(Given(z), a, batch)
            b, _ = fine.step(Given(z1), b, batch)
            b, _ = fine.step(Given(z2), b, second)
            x, y = (a.position - middle) * unit, (b.position - middle) * unit
            return (a, b), sums + jnp.stack([x, y, x * x, y * y])

        return jax.lax.fori_loop(0, count, one, (states, jnp.zeros((4, d), dtype)))

    return steps


def _time_to_settle(kernel: Any, relaxation: float) -> int:
    """Iterations after which the fine chain has its own law."""
    adapt = (kernel.adapt_steps or 0) if isinstance(kernel, psgld) else 0
    return max(int(RELAXATIONS * relaxation) + 10, 2 * adapt)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _merged(rounds: list[np.ndarray]) -> np.ndarray:
    """Means of neighbouring rounds (chains, 4, d), as few as still make STRETCHES: (stretches, 4, d).

    Stretches that are long against the time of forgetting are nearly independent, as the standard error assumes.
    """
    each = len(rounds) // -(-STRETCHES // len(rounds[0]))
    means = [np.mean(rounds[i : i + each], axis=0) for i in range(0, len(rounds) - each + 1, each)]
    return np.concatenate(means)


def _bias(kept: np.ndarray, order: int, steps: int) -> Bias:
    """kept: (stretches, 4, d) means of x, y, x^2, y^2 with x coarse and y fine."""
    x, y, xx, yy = kept.mean(0)
    vx, vy = xx - x**2, yy - y**2
    # of each stretch: the linear part of (vx - vy) / (2 vy) and of (x - y) / sd
    d_var = (kept[:, 2] - kept[:, 3] - 2 * x * kept[:, 0] + 2 * y * kept[:, 1]) / (2 * vy)
    d_mean = (kept[:, 0] - kept[:, 1]) / np.sqrt(vy)
    error = lambda values: values.std(0, ddof=1) / np.sqrt(len(values))
    factor = 1 / (1 - 2.0**-order)
    return Bias(
        sd=factor * (np.sqrt(vx / vy) - 1),
        sd_error=factor * error(d_var),
        mean=factor * (x - y) / np.sqrt(vy),
        mean_error=factor * error(d_mean),
        order=order,
        steps=steps,
    )
