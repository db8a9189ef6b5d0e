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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker.numeric import random
from fokker.numeric.random_jax import Given, Key, normal
from fokker.run import blocks
from fokker.run.gradient_noise import indices
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.schedules import constant
from fokker.sgmcmc.sghmc import sghmc

if TYPE_CHECKING:
    from fokker.run.plan import Plan

STREAMS = 3  # of normals that kernels use
MOST_STEPS = 16_384  # of one call
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
    kernel = dataclasses.replace(plan.kernel, step_size=step_size)
    fine_changes: dict[str, Any] = {"step_size": step_size / 2}
    if hasattr(kernel, "schedule"):
        kernel = dataclasses.replace(kernel, schedule=constant())
    for name in ("resample_momentum", "resample_every"):
        if getattr(kernel, name, None) is not None:
            fine_changes[name] = 2 * getattr(kernel, name)
    kind, data = feed
    own_batches = plan.gradient.noise != "none" and kind.kind in ("windows", "stacked")
    coarse, fine = (k.bind(plan.target, plan.gradient) for k in (kernel, dataclasses.replace(kernel, **fine_changes)))
    refresh = plan.gradient.bind(plan.target) if plan.target.log_likelihood is not None else None
    d, dtype = starts.shape[1], plan.dtype
    centre, unit = jnp.asarray(starts.mean(0), dtype), jnp.asarray(1 / scale, dtype)

    @jax.jit
    def pairs(states: Any, words: Any, first: Any, steps: Any, data: Any, index: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            (a, b), sums = carry
            z1, z2 = (
                jnp.stack(
                    [
                        normal(Key(words, (2 * (first + i) + half).astype(jnp.uint32)), (d,), s, dtype)
                        for s in range(STREAMS)
                    ]
                )
                for half in (0, 1)
            )
            batch = kind.batch(data, index, 2 * i if own_batches else i)
            second = kind.batch(data, index, 2 * i + 1) if own_batches else batch
            a, _ = coarse.step(Given((z1 + z2) / jnp.sqrt(2.0).astype(dtype)), a, batch)
            b, _ = fine.step(Given(z1), b, batch)
            b, _ = fine.step(Given(z2), b, second)
            x, y = (a.position - centre) * unit, (b.position - centre) * unit
            return (a, b), sums + jnp.stack([x, y, x * x, y * y])

        return jax.lax.fori_loop(0, steps, body, (states, jnp.zeros((4, d), dtype)))

    words = [jnp.asarray(random.chain_words(plan.seed, c, random.AUDIT)) for c in range(len(starts))]
    states = []
    for c, start in enumerate(starts):
        key = Key(jnp.asarray(random.chain_words(plan.seed, c + len(starts), random.AUDIT)), jnp.uint32(0))
        a = coarse.init(jnp.asarray(start, dtype), key)
        states.append((a, a))
    each = 2 if own_batches else 1
    iteration = 0

    def advance(steps: int) -> np.ndarray:
        """(chains, 4, d) sums over the steps."""
        nonlocal states, iteration

        def run(c: int) -> Any:
            index, batches = indices(
                plan, c, iteration * each, each * MOST_STEPS if plan.source is None else each * steps, data
            )
            out = pairs(states[c], words[c], jnp.int32(iteration), jnp.int32(steps), batches, index)
            return jax.block_until_ready(out)

        done = list(pool.map(run, range(len(starts))))
        states = [state for state, _ in done]
        iteration += steps
        if refresh is not None and refresh.refresh is not None:
            states = [tuple(s._replace(aux=refresh.refresh(s.position, s.aux)) for s in pair) for pair in states]
        return np.stack([np.asarray(sums, np.float64) for _, sums in done])

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = MOST_STEPS if plan.source is None else 256
    if refresh is not None and refresh.refresh_every:
        most = min(most, refresh.refresh_every)
    with ThreadPoolExecutor(min(cores, len(starts))) as pool:
        started = time.perf_counter()
        advance(0 if plan.source is None else 1)  # compiles
        if time.perf_counter() - started > 2 * seconds:
            return f"compiling the paired chains took {time.perf_counter() - started:.0f} s of {seconds:.0f} s"
        started = time.perf_counter()
        trial = min(100, most)
        advance(trial)
        rate = trial / (time.perf_counter() - started)
        settle = int(RELAXATIONS * relaxation) + 10
        if isinstance(kernel, psgld):
            settle = max(settle, 2 * (kernel.adapt_steps or 0))
        stretch = int(max(2 * relaxation, 20))
        per_chain = -(-STRETCHES // len(starts))
        need = settle + stretch * per_chain
        if need / rate > 2 * seconds:
            return (
                f"the chains forget in about {relaxation:,.0f} iterations, so that {need:,} paired steps a chain are "
                f"needed, {need / rate:,.0f} s"
            )

        def many(steps: int) -> np.ndarray:
            total = np.zeros((len(starts), 4, d))
            while steps > 0:
                now = min(steps, most)
                total += advance(now)
                steps -= now
            return total

        many(settle)
        kept: list[np.ndarray] = []
        while True:
            kept += list(many(stretch) / stretch)
            if not np.isfinite(kept[-1]).all():
                return "a paired chain became non-finite"
            if len(kept) < STRETCHES:
                continue
            bias = _bias(np.array(kept), order_of(kernel), iteration * len(starts))
            if (
                bias.sd_error.max() < wanted and bias.mean_error.max() < wanted
            ) or time.perf_counter() - started > seconds:
                return bias


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
        factor * (np.sqrt(vx / vy) - 1), factor * error(d_var), factor * (x - y) / np.sqrt(vy), factor * error(d_mean),
        order, steps,
    )  # fmt: skip
