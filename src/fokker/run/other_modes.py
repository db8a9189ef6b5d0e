"""Is there a mode that no draw has seen? Descents of U from far apart starts, each compared with the draws.

R-hat cannot see this when all chains are in the same mode. A local minimum of U counts as unseen if no draw lies within
its basin's Gaussian bulk; its weight is Laplace's, exp(-U) |Hess U|^{-1/2} there against the same at the seen minimum. The search
proves the presence of a mode, never its absence. A minimum that is the seen one with entries exchanged (a relabelling
of mixture components) is not counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.stats import chi2

from fokker.run.gradients import likelihood_gradient, prior_gradient, rows, take

if TYPE_CHECKING:
    from fokker.target import Target

SUBSET = 10_000  # rows for the search; what it finds is followed up with all
CHUNK = 10_000
DISTANCES = (3.0, 10.0, 30.0, 100.0)  # of the starts, in sd of the draws
LARGEST = 300  # dimensions for which Hessians are formed


class Search(NamedTuple):
    """What the descents found."""

    starts: int
    converged: int
    unseen: tuple[Mode, ...]
    relabelled: int


class Mode(NamedTuple):
    """A minimum of U that no draw has visited."""

    position: np.ndarray  # (d,)
    weight: float  # Laplace's, against the seen mode
    distance: float  # from the mean of the draws, in sd of the draws along that line


def search_modes(target: Target, draws: np.ndarray, extra: np.ndarray, seconds: float, seed: int) -> Search:
    """draws: (n, d), spread over the run; extra: (k, d) more starts, such as those of the chains."""
    started, d = time.perf_counter(), draws.shape[1]
    size = 0 if target.log_likelihood is None else rows(target)
    mean = draws.mean(0)
    covariance = np.cov(draws.T).reshape(d, d) + 1e-12 * np.diag(np.var(draws, axis=0) + 1e-300)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 1e-10 * values[-1]))
    dtype = np.asarray(jax.tree.leaves(extra)[0]).dtype
    evaluate = jax.jit(lambda t, batch: _likelihood(target, t, batch))
    prior = jax.jit(lambda t: (target.log_prior(t), prior_gradient(target, t)))
    few = take(target.data, 0, min(size, SUBSET)) if size else None
    if few is not None:
        few = jax.tree.map(jnp.asarray, few)

    def potential(theta: np.ndarray, everything: bool) -> tuple[float, np.ndarray]:
        t = jnp.asarray(theta, dtype)
        value, grad = (np.asarray(v, np.float64) for v in prior(t))
        if size and (everything and size > SUBSET):
            for first in range(0, size, CHUNK):
                more, more_grad = evaluate(t, take(target.data, first, min(first + CHUNK, size)))
                value, grad = value + float(more), grad + np.asarray(more_grad, np.float64)
        elif size:
            more, more_grad = evaluate(t, few)
            scale = size / min(size, SUBSET)
            value, grad = value + scale * float(more), grad + scale * np.asarray(more_grad, np.float64)
        return -float(value), -grad

    def descend(z: np.ndarray, everything: bool, iterations: int) -> Any:
        def f(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, grad = potential(mean + root @ z, everything)
            ok = np.isfinite(value) and np.isfinite(grad).all()
            return (value, root.T @ grad) if ok else (1e300, np.zeros(d))

        return minimize(f, z, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})

    rng = np.random.default_rng(seed)
    directions = [np.eye(d)[-1 - i % d] * (-1) ** (i // d) for i in range(min(2, 2 * d))]
    starts = [np.zeros(d)]
    for distance in DISTANCES:
        along = rng.standard_normal(d)
        along /= np.linalg.norm(along)
        for u in (*directions, *(-v for v in directions), along, -along):
            starts.append(distance * u)
    whiten = lambda theta: (vectors.T @ (theta - mean)) / np.sqrt(np.maximum(values, 1e-10 * values[-1]))
    starts[1:1] = [whiten(np.asarray(e, float)) for e in np.unique(np.asarray(extra, float), axis=0)]
    found: list[tuple[np.ndarray, float]] = []
    made = 0
    for z in starts:
        if made and time.perf_counter() - started > seconds:
            break
        if not np.isfinite(potential(mean + root @ z, False)[0]):
            continue
        result = descend(z, False, 200)
        made += 1
        if np.isfinite(result.x).all() and result.fun < 1e299:
            found.append((result.x, result.fun))
    clusters: list[tuple[np.ndarray, float]] = []
    for z, value in sorted(found, key=lambda f: f[1]):
        # flat directions make descents stop early: points that are joined by a path without a barrier are one mode
        if not any(
            _same(z, c, lambda s, z=z, c=c: potential(mean + root @ (z + s * (c - z)), False)[0]) for c, _ in clusters
        ):
            clusters.append((z, value))
    if len(clusters) < 2:
        return Search(made, len(found), (), 0)
    if size > SUBSET:
        clusters = [(r.x, r.fun) for r in (descend(z, True, 30) for z, _ in clusters)]
    hessian = (
        jax.jit(
            jax.hessian(
                lambda t, batch: (
                    -target.log_prior(t)
                    - (target.log_likelihood(t, batch).sum() * size / min(size, SUBSET) if size else 0.0)
                )
            )
        )
        if d <= LARGEST
        else None
    )

    def precision(z: np.ndarray) -> np.ndarray | None:
        """Of the mode, in the coordinates z; None if it is not a strict minimum."""
        if hessian is None:
            return np.eye(d)
        H = root.T @ np.asarray(hessian(jnp.asarray(mean + root @ z, dtype), few), np.float64) @ root
        return H if np.linalg.eigvalsh(H)[0] > 1e-6 else None

    white = np.array([whiten(t) for t in draws])
    seen, unseen = [], []
    for z, value in clusters:
        H = precision(z)
        if H is None:
            continue
        mass = -value - np.linalg.slogdet(H)[1] / 2
        distance = np.einsum("ni,ij,nj->n", white - z, H, white - z)
        inside = (distance < 4 * chi2.isf(0.01, d)).mean()
        (seen if inside > 0 else unseen).append((z, mass))
    reference = max((m for _, m in seen), default=-np.inf)
    modes, relabelled = [], 0
    for z, mass in unseen:
        theta = mean + root @ z
        if any(
            _relabelled(theta, mean + root @ s, np.sqrt(np.diag(covariance))) and abs(mass - m) < 1 for s, m in seen
        ):
            relabelled += 1
            continue
        weight = float(np.exp(min(mass - reference, 700.0))) if np.isfinite(reference) else np.inf
        modes.append(Mode(theta, weight, float(np.linalg.norm(z))))
    return Search(made, len(found), tuple(sorted(modes, key=lambda m: -m.weight)), relabelled)


def _likelihood(target: Target, theta: Any, batch: Any) -> tuple[Any, Any]:
    assert target.log_likelihood is not None
    return target.log_likelihood(theta, batch).sum(), likelihood_gradient(target, theta, batch)


def _same(a: np.ndarray, b: np.ndarray, potential: Any) -> bool:
    """Close together, or no barrier of more than half a nat on the straight way."""
    if np.linalg.norm(a - b) < 0.5:
        return True
    ends = max(potential(0.0), potential(1.0))
    return max(potential(s) for s in np.linspace(0, 1, 12)[1:-1]) < ends + 0.5


def _relabelled(a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> bool:
    """The same numbers in another order, to within half an sd."""
    return len(a) > 1 and bool((np.abs(np.sort(a) - np.sort(b)) < 0.5 * scale.max()).all())
