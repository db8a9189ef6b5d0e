"""Kernel Stein discrepancy (Gorham & Mackey 2017) between draws and exp(-U), from gradients of U at the draws.

    h(x, y) = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + tr grad_x grad_y k,    s = -grad U

has mean 0 under exp(-U) in either argument; the mean of h over pairs of draws is KSD^2. k is the inverse multiquadric
(1 + |x - y|^2 / d)^{-1/2} in coordinates where the draws have unit covariance. Unbiased gradients with independent
errors (minibatches) leave the mean over distinct pairs unbiased. Significance is by a wild bootstrap whose signs are
kept for as long as the draws are correlated (Chwialkowski et al. 2014).

On a manifold the operator acts on tangent fields P(x) f(x) instead (the extrinsic form of Barp et al. 2018): with the
coordinates and the score of ``on_manifold`` and T(x) the matrix B^T P(x) B in the coordinates of the kernel,

    h(x, y) = s(x).s(y) k + (T(y) s(x)).grad_y k + (T(x) s(y)).grad_x k + tr T(x)^T grad_x grad_y k T(y) ,

which has mean 0 by the divergence theorem on every manifold where the density has no edge that it does not vanish at.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

BOOTSTRAPS = 1000
REFERENCE = 1000  # normal draws that say what a value means
FACTORS = np.array([1.0, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0])


class Discrepancy(NamedTuple):
    """KSD^2 over distinct pairs and what it means."""

    squared: float
    p_value: float
    noise: float  # sd of ``squared`` if the law were right
    as_sd_error: float  # the common relative error of the sd of a Gaussian law that has this KSD
    detectable: float  # the smallest such error that these draws would show


def discrepancy(
    draws: np.ndarray, gradients: np.ndarray, correlated: int, seed: int, pairings: np.ndarray | None = None
) -> Discrepancy:
    """draws, gradients: (n, d) in the order of the chains; correlated: length of a stretch of correlated draws.

    pairings: B^T P(x) B at the draws, (n, d, d); None in flat space.
    """
    n, d = draws.shape
    centred = draws - draws.mean(0)
    root = np.linalg.cholesky(np.cov(centred.T).reshape(d, d))
    x = np.linalg.solve(root, centred.T).T
    if pairings is None:
        h = stein_kernel(x, -gradients @ root)
    else:
        h = tangent_stein_kernel(x, -gradients @ root, np.linalg.solve(root, pairings) @ root)
    np.fill_diagonal(h, 0.0)
    squared = h.mean() * n / (n - 1)
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], (BOOTSTRAPS, -(-n // correlated))).repeat(correlated, axis=1)[:, :n]
    null = np.einsum("bi,bi->b", signs @ h, signs) / (n * (n - 1))
    p_value = (1 + (null >= squared).sum()) / (1 + BOOTSTRAPS)
    curve = _reference(d)
    invert = lambda value: float(np.interp(value, curve, FACTORS) - 1)
    return Discrepancy(
        float(squared), float(p_value), float(null.std()), invert(squared), invert(np.quantile(null, 0.99))
    )


def stretch_of(n: int, ess: float) -> int:
    """Length of stretches that are nearly independent, of n draws that are worth ``ess``; 1 for independent draws."""
    return max(1, min(int(np.ceil(2 * n / max(ess, 2.0) - 1)), n // 10))


def stein_kernel(x: np.ndarray, score: np.ndarray) -> np.ndarray:
    """h(x_i, x_j), (n, n)."""
    d = x.shape[1]
    gram = x @ x.T
    square = np.maximum(np.diag(gram)[:, None] + np.diag(gram) - 2 * gram, 0.0)
    base = 1 + square / d
    cross = score @ x.T  # s_i . x_j
    own = np.diag(cross)
    along = (cross - own[:, None]) + (cross.T - own)  # -(s_i - s_j) . (x_i - x_j)
    return (score @ score.T) * base**-0.5 - along * base**-1.5 / d + base**-1.5 - 3 * base**-2.5 * square / d**2


def tangent_stein_kernel(x: np.ndarray, score: np.ndarray, T: np.ndarray) -> np.ndarray:
    """h(x_i, x_j) with T (n, d, d) at the points, (n, n)."""
    n, d = x.shape
    flat = T.reshape(n, -1)
    traces = flat @ flat.T
    h = np.empty((n, n))
    turned = np.swapaxes(T, 1, 2)  # T^T at every point
    own = np.einsum("jkl,jl->jk", turned, x)  # T_j^T x_j
    for i in range(n):
        r = x[i] - x  # x_i - y_j
        base = 1 + (r * r).sum(1) / d
        here = r @ T[i]  # T_i^T r
        there = turned @ x[i] - own  # T_j^T r
        by_y = there @ score[i]  # (T_j s_i) . r
        by_x = (here * score).sum(1)  # (T_i s_j) . r
        h[i] = (
            (score @ score[i]) * base**-0.5
            + (by_y - by_x) * base**-1.5 / d
            + traces[i] * base**-1.5 / d
            - 3 * (here * there).sum(1) * base**-2.5 / d**2
        )
    return h


@cache
def _reference(d: int) -> np.ndarray:
    """KSD^2 of a standard normal against normals whose sd is smaller by FACTORS, increasing from 0."""
    x = np.random.default_rng(0).standard_normal((REFERENCE, d))
    x = np.concatenate([x, -x])  # so that sums of odd functions vanish
    values = []
    for factor in FACTORS:
        h = stein_kernel(x, -(factor**2) * x)
        np.fill_diagonal(h, 0.0)
        values.append(h.mean() * len(x) / (len(x) - 1))
    return np.maximum.accumulate(np.array(values) - values[0])
