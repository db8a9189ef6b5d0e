"""The covariance V of a run's stochastic gradient and whether its mean is grad U, from many of its own minibatches.

Nothing is assumed of the estimator: its gradients on windows of the run's own kind are collected at a few points. At
draws their covariance is V. Away from the mode, where grad U is large, the slope of their mean on the full-data
gradient is 1 for an unbiased estimator; a wrong factor N/n shows as that factor.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run import blocks
from fokker.run.gradients import svrg

if TYPE_CHECKING:
    from fokker.run.plan import Plan

LEAST, MOST = 1000, 8000  # batches at each point
PER_COORDINATE = 20
ROUND = 500  # batches in one call


class Measured(NamedTuple):
    """Of stochastic gradients at some points."""

    means: np.ndarray  # (points, d)
    covariances: np.ndarray  # (points, d, d)
    known: Any  # V^ of the estimator after the last batch at the first of the points, or None
    batches: int  # at each point

    @property
    def covariance(self) -> np.ndarray:
        """V, the mean over the points, (d, d)."""
        return self.covariances.mean(0)

    def at(self, points: slice) -> Measured:
        """Of some of the points."""
        return self._replace(means=self.means[points], covariances=self.covariances[points])


def measure(plan: Plan, points: np.ndarray, feed: tuple[blocks.Feed, Any], seconds: float) -> Measured | None:
    """None if the least number of batches would take more than three times as long. feed: of ``minibatches``."""
    k, d = points.shape
    gradient, (kind, data) = plan.gradient.bind(plan.target), feed
    wanted = int(np.clip(PER_COORDINATE * d, LEAST, MOST)) // ROUND * ROUND

    @jax.jit
    def collect(theta: Any, aux: Any, words: Any, data: Any, index: Any) -> Any:
        def one(aux: Any, i: Any) -> Any:
            key, batch = Key(words, i.astype(jnp.uint32)), kind.batch(data, index, i)
            grad_u, known, aux = gradient.estimate(key, theta, batch, aux)
            return aux, (grad_u, known)

        aux, (gradients, known) = jax.lax.scan(one, aux, jnp.arange(ROUND))
        return gradients, jax.tree.map(lambda leaf: leaf[-1], known), aux

    def round_at(p: int, first: int, aux: Any) -> tuple[np.ndarray, Any, Any]:
        words = jnp.asarray(random.chain_words(plan.seed, p, random.AUDIT))
        index, batches = indices(plan, p, first, ROUND, data)
        gradients, known, aux = collect(jnp.asarray(points[p], plan.dtype), aux, words, batches, index)
        return np.asarray(gradients, np.float64), known, aux

    init = lambda p: gradient.init(jnp.asarray(points[p], plan.dtype))
    shared = init(0)
    round_at(0, 0, shared)  # compiles
    started, means, covariances, estimates = time.perf_counter(), [], [], []
    for p in range(k):
        # an SVRG centre is left behind by the chain: another of the points stands for it
        aux, got = init(p - 1 if p else 1) if isinstance(plan.gradient, svrg) else shared, []
        for first in range(0, wanted, ROUND):
            if first >= LEAST and time.perf_counter() - started > seconds * (p + 1) / k:
                break
            gradients, known, aux = round_at(p, first, aux)
            got.append(gradients)
            if time.perf_counter() - started > 3 * seconds:
                return None
        g = np.concatenate(got)
        means.append(g.mean(0))
        covariances.append(np.cov(g.T).reshape(d, d))
        estimates.append(known)
    return Measured(np.array(means), np.array(covariances), estimates[0], len(g))


def minibatches(plan: Plan) -> tuple[blocks.Feed, Any]:
    """How batches reach a step, and the rows they are cut from (None for rows that stay on disk)."""
    if plan.batches is not None:
        data = blocks.resident(plan.target.data, plan.batches.resident_rows())
        return blocks.Feed("windows", plan.batches.batch_size), data
    if plan.source is not None:
        return blocks.Feed("stacked"), None
    if plan.target.log_likelihood is not None:
        return blocks.Feed("whole"), jax.tree.map(jnp.asarray, plan.target.data)
    return blocks.Feed("none"), None


def indices(plan: Plan, chain: int, first: int, count: int, data: Any) -> tuple[Any, Any]:
    """Index and data of ``count`` batches from iteration ``first`` on, as ``Feed.batch`` wants them."""
    if plan.batches is not None:
        return jnp.asarray(plan.batches.starts(chain, first, count)), data
    if plan.source is not None:
        assert plan.batch_size is not None
        stream = chain if plan.source.streams is None else 0  # an iterator has one, and begins again at 0
        stacked = plan.source.batches(stream, first, count, plan.batch_size, plan.seed)
        return jnp.zeros(1, jnp.int32), jax.tree.map(jnp.asarray, stacked)
    return jnp.zeros(1, jnp.int32), data


def scale_of_mean(full: np.ndarray, measured: Measured, covariance: np.ndarray) -> tuple[float, float]:
    """The slope of the estimator's mean on grad U, and its standard error.

    full: (points, d) grad U; covariance: of the draws, which says in what units a gradient is large.
    """
    weight = np.einsum("pi,ij,pj->p", full, covariance, full).sum()
    slope = np.einsum("pi,ij,pj->", full, covariance, measured.means) / weight
    tilted = full @ covariance
    variance = np.einsum("pi,pij,pj->", tilted, measured.covariances, tilted) / measured.batches
    return float(slope), float(np.sqrt(variance) / weight)
