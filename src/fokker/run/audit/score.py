"""What full-data gradients at the draws say about their law.

Under exp(-U), for any U and any constant m (integration by parts),

    E grad U = 0,        E (theta - m) grad U^T = I

So with the slope Lambda of the regression of grad U on theta, Cov(theta) Lambda = I: the draws' covariance is
Lambda^-1. On a Gaussian posterior Lambda is its precision, known without Monte Carlo error from a few hundred draws,
and sqrt(Cov_ii / (Lambda^-1)_ii) is the factor by which the draws' sd is wrong, Lambda^-1 E grad U the error of their
mean. On any posterior the factor is 1 and the shift 0 if the law is right. Standard errors are by the jackknife over
stretches of the chains.

On a manifold the same holds for the coordinates u and the score of ``on_manifold`` with another matrix M in place of I;
the covariance that a regression foresees is then M Lambda^-1.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker.run.gradients import likelihood_gradient, prior_gradient, rows, take

if TYPE_CHECKING:
    from fokker.target import Target

DRAWS_AT_ONCE, ROWS_AT_ONCE = 32, 8192
STRETCHES = 8  # of each chain, for the jackknife
PER_COORDINATE = 5  # gradients a coordinate that the regression needs


class Score(NamedTuple):
    """Errors of the draws' law, by coordinate, each with a standard error."""

    sd_ratio: np.ndarray  # (d,) sd of the draws over that of the target; 1 is right
    sd_error: np.ndarray  # (d,)
    shift: np.ndarray  # (d,) error of the mean, in sd
    shift_error: np.ndarray  # (d,)
    precision: np.ndarray | None  # (d, d) the slope Lambda; None where there were too few gradients for it


def full_gradients(target: Target, points: np.ndarray, seconds: float = np.inf) -> np.ndarray:
    """grad U of all rows at the first k of the points, (k, d) float64; k < len(points) when the time is up."""
    started, (count, d) = time.perf_counter(), points.shape
    size = 0 if target.log_likelihood is None else rows(target)
    prior = jax.jit(jax.vmap(lambda theta: prior_gradient(target, theta)))
    likelihood = jax.jit(jax.vmap(lambda theta, batch: likelihood_gradient(target, theta, batch), in_axes=(0, None)))
    data: Any = target.data
    if size and not hasattr(data, "rows"):
        data = jax.tree.map(jnp.asarray, data)
    out = np.zeros((count, d))
    for first in range(0, count, DRAWS_AT_ONCE):
        if first and time.perf_counter() - started > seconds:
            return out[:first]
        some = points[first : first + DRAWS_AT_ONCE]
        x = jnp.asarray(np.resize(some, (DRAWS_AT_ONCE, d)))  # a short last part is filled up: one program
        grad = -np.asarray(prior(x), np.float64)
        for row in range(0, size, ROWS_AT_ONCE):
            grad -= np.asarray(likelihood(x, take(data, row, min(row + ROWS_AT_ONCE, size))), np.float64)
        out[first : first + len(some)] = grad[: len(some)]
    return out


def spread_out(chains: int, draws: int, count: int) -> np.ndarray:
    """About ``count`` (chain, draw) pairs, evenly spaced, in an order whose beginnings are spread out too: (k, 2)."""
    each = min(draws, max(1, count // chains))
    when = np.unique(np.linspace(0, draws - 1, each).round().astype(int))
    golden = np.argsort(np.arange(len(when)) * 0.6180339887498949 % 1.0)
    return np.array([(c, t) for t in when[golden] for c in range(chains)])


def score_identities(
    positions: np.ndarray, where: np.ndarray, gradients: np.ndarray, pairing: np.ndarray | None = None
) -> Score:
    """positions: (chains, draws, d), all of them; gradients (k, d) at positions[where[:, 0], where[:, 1]].

    pairing: M = E (theta - m) grad U^T, (d, d); None for the identity.
    """
    chains, draws, d = positions.shape
    centre = positions.mean((0, 1))
    scale = positions.std((0, 1))
    scale = np.where(scale > 0, scale, 1.0)
    x = (positions - centre) / scale  # in sd, so that nothing below depends on units
    edges = np.linspace(0, draws, STRETCHES + 1).astype(int)
    moments = np.array(
        [[b - a, *x[c, a:b].sum(0), *(x[c, a:b] ** 2).sum(0)] for c in range(chains) for a, b in pairwise(edges)]
    )
    at, g = x[where[:, 0], where[:, 1]], gradients * scale
    stretch = where[:, 0] * STRETCHES + np.searchsorted(edges, where[:, 1], side="right") - 1
    M = np.eye(d) if pairing is None else pairing * scale / scale[:, None]
    regress = len(g) >= PER_COORDINATE * d + 20
    parts = []
    for s in range(chains * STRETCHES):
        xs, gs = at[stretch == s], g[stretch == s]
        parts.append((len(xs), xs.sum(0), gs.sum(0), *_products(xs, gs, regress)))

    def estimate(left_out: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        keep = [s for s in range(len(parts)) if s != left_out]
        n, first, second = (lambda m: (m[0], m[1 : 1 + d], m[1 + d :]))(moments[keep].sum(0))
        variance = second / n - (first / n) ** 2
        k, sx, sg, sxx, sxg = (sum(parts[s][i] for s in keep) for i in range(5))
        mean_x, mean_g = sx / k, sg / k
        if regress:
            cov_xx, cov_xg = sxx / k - np.outer(mean_x, mean_x), sxg / k - np.outer(mean_x, mean_g)
            slope = np.linalg.lstsq(cov_xx, cov_xg, rcond=None)[0]
            slope = (slope + slope.T) / 2
            values, vectors = np.linalg.eigh(slope)
            if values[0] > 0 and (pairing is None or (M @ (vectors / values) * vectors).sum(1).min() > 0):
                covariance = M @ (vectors / values) @ vectors.T
                covariance = (covariance + covariance.T) / 2
                target_variance = np.diag(covariance)
                # the gradients are at some of the draws, the mean is of all: move along the slope
                shift = (vectors / values) @ vectors.T @ (mean_g - slope @ mean_x) + first / n
                return np.sqrt(variance / target_variance), shift / np.sqrt(target_variance), slope
        virial = sxg / k - mean_x * mean_g if not regress else np.diag(sxg) / k - mean_x * mean_g
        return np.sqrt(np.maximum(virial / np.diag(M), 0.0)), mean_g * np.sqrt(variance), None

    ratio, shift, slope = estimate(None)
    leave = [estimate(s) for s in range(len(parts)) if moments[s, 0] and parts[s][0]]
    spread = lambda values: np.sqrt((len(leave) - 1) * np.var(np.array(values), axis=0))
    precision = None if slope is None else slope / np.outer(scale, scale)
    return Score(ratio, spread([r for r, _, _ in leave]), shift, spread([s for _, s, _ in leave]), precision)


def _products(x: np.ndarray, g: np.ndarray, dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sums of x x^T and x g^T, or of the diagonals alone."""
    return (x.T @ x, x.T @ g) if dense else ((x * x).sum(0), (x * g).sum(0))
