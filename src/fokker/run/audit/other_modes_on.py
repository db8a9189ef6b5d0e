"""Unseen modes on a manifold: descents of U_H along geodesics, from all over the space (see ``other_modes``).

Starts are uniform on compact factors, at the antipodes of the draws' mean, and ever farther out on flat ones. Ends of
descents are compared on the way between them, which is the chord brought back to the manifold. A draw is in the bulk of
a minimum if its chord, taken as a tangent vector there, is so in Laplace's approximation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from fokker.manifolds.euclidean import Euclidean
from fokker.run.audit.other_modes import BARRIER, CHUNK, LARGEST, LARGEST_HESSIAN, NO_VALUE, SUBSET, Mode, Search
from fokker.run.carrier import bend, embedded, projector, tangent_basis
from fokker.run.gradients import likelihood_gradient, prior_gradient, rows, take
from fokker.run.mode import Moves, by_factor, descend

if TYPE_CHECKING:
    from fokker.manifolds.product import Product
    from fokker.target import Target

UNIFORM = 24  # random starts
DETOURS = 6  # ways between ends whose chord is none
DISTANCES = (3.0, 10.0, 30.0)  # of flat factors, in sd of the draws
STEPS, LAST_STEPS = 200, 30  # of a descent on part of the rows, on all


class Potential:
    """U_H on points, from at most SUBSET rows (scaled up) or from all, in the precision of the run."""

    def __init__(self, space: Product, target: Target, dtype: Any) -> None:
        self.space, self._target, self._dtype = space, target, dtype
        self._size = 0 if target.log_likelihood is None else rows(target)
        self._part = min(self._size, SUBSET)
        self._some = jax.tree.map(jnp.asarray, take(target.data, 0, self._part)) if self._size else None
        self._prior = jax.jit(lambda x: (target.log_prior(x), prior_gradient(target, x)))
        self._likelihood = jax.jit(lambda x, batch: _likelihood(target, x, batch))
        self._hessian = jax.jit(jax.hessian(self._of_part))
        self._bend = jax.jit(lambda x, g, B: bend(space, x, g, B))
        self._projector = jax.jit(lambda x: projector(space, x))
        self._back = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda _, y: space.retract(y, y)[0], x))
        self.moves = Moves.of(space, dtype)

    def _of_part(self, x: Any, some: Any) -> Any:
        value = -self._target.log_prior(x)
        if self._target.log_likelihood is not None:
            value = value - self._size / self._part * self._target.log_likelihood(x, some).sum()
        return value

    def __call__(self, x: np.ndarray, everything: bool = False) -> tuple[float, np.ndarray]:
        """U_H and its gradient in R^n; NO_VALUE and zeros where they are not finite."""
        at = jnp.asarray(x, self._dtype)
        value, gradient = (np.asarray(v, np.float64) for v in self._prior(at))
        pieces: list[tuple[float, Any]] = [(self._size / self._part, self._some)] if self._size else []
        if everything and self._size > SUBSET:
            firsts = range(0, self._size, CHUNK)
            pieces = [(1.0, take(self._target.data, f, min(f + CHUNK, self._size))) for f in firsts]
        for factor, batch in pieces:
            more, more_gradient = self._likelihood(at, batch)
            value = value + factor * np.asarray(more, np.float64)
            gradient = gradient + factor * np.asarray(more_gradient, np.float64)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return NO_VALUE, np.zeros_like(x)
        return -float(value), -gradient

    def descend(self, x: np.ndarray, scale: np.ndarray, iterations: int, everything: bool) -> tuple[np.ndarray, float]:
        """The end of a descent, as the point that its parameters have."""
        end, value = descend(self.space, lambda x: self(x, everything), x, iterations, scale, self.moves)
        return self.canonical(end), value

    def canonical(self, x: np.ndarray) -> np.ndarray:
        """The one of the points with the same parameters that ``embed`` gives."""
        if not self.space.mapped:
            return x
        return embedded(self.space, np.asarray(self.space.value(jnp.asarray(x)))[None])[0]

    def on_the_way(self, a: np.ndarray, b: np.ndarray, s: float) -> np.ndarray:
        return np.asarray(self._back(jnp.asarray((1 - s) * a + s * b, self._dtype)), np.float64)

    def shape(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A basis of the tangent space and the Riemannian Hessian in it, from the part of the rows."""
        at = jnp.asarray(x, self._dtype)
        B = tangent_basis(self.space, np.asarray(self._projector(at), np.float64))
        H = np.asarray(self._hessian(at, self._some), np.float64)
        g = self(x)[1]
        curvature = B.T @ H @ B + np.asarray(self._bend(at, jnp.asarray(g, self._dtype), jnp.asarray(B, self._dtype)))
        return B, (curvature + curvature.T) / 2

    def joined(self, a: np.ndarray, b: np.ndarray, near: float) -> bool:
        """Close together, or without a barrier between them."""
        if np.linalg.norm(a - b) < near:
            return True
        bound = max(self(a)[0], self(b)[0]) + BARRIER
        way = self.way(a, b)
        if way is not None:
            return max(self(x)[0] for x in way) < bound
        rng = np.random.default_rng(0)  # the chord leaves the manifold, as between antipodes: by way of other points
        for _ in range(DETOURS):
            aside = (a + b) / 2 + np.linalg.norm(a - b) / 2 * rng.standard_normal(len(a)) / np.sqrt(len(a))
            middle = self.on_the_way(aside, aside, 0.0)
            ways = self.way(a, middle), self.way(middle, b)
            if all(w is not None and max(self(x)[0] for x in w) < bound for w in ways):
                return True
        return False

    def way(self, a: np.ndarray, b: np.ndarray) -> list[np.ndarray] | None:
        """Points between a and b, the chord brought back to the manifold; None where that jumps."""
        points = [self.on_the_way(a, b, s) for s in np.linspace(0, 1, 12)]
        steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
        return points if steps.max() < 4 * np.linalg.norm(a - b) / 11 else None


def search_modes_on(
    space: Product, target: Target, draws: np.ndarray, extra: np.ndarray, seconds: float, seed: int
) -> Search | str:
    """draws: points (k, n), spread over the run; extra: parameters (j, d) of more starts."""
    if (fixed := next((f for f in space.factors if not hasattr(f.carrier, "flow")), None)) is not None:
        return f"On {fixed.space}, where {fixed.name} lies, no geodesics are known to look for modes along."
    if space.size > LARGEST_HESSIAN:
        most = min(LARGEST, LARGEST_HESSIAN)
        return f"{space.size:,} entries of a point are too many to look for modes on a manifold (at most {most:,})."
    U = Potential(space, target, np.asarray(extra).dtype)
    scale = by_factor(space, np.maximum(draws.std(0), 1e-12))
    starts = _starts(U, draws, embedded(space, np.unique(np.asarray(extra, float), axis=0)), seed)
    U.descend(starts[0], scale, 2, False)  # compiles, which does not count
    started = time.perf_counter()
    ends: list[tuple[np.ndarray, float]] = []
    tried = 0
    for x in starts:
        if ends and time.perf_counter() - started > seconds:
            break
        tried += 1
        if U(x)[0] < NO_VALUE:
            end, value = U.descend(x, scale, STEPS, False)
            if np.isfinite(end).all() and value < NO_VALUE:
                ends.append((end, value))
    if not ends:
        return "No descent converged."
    near = 0.5 * float(np.sqrt((draws.std(0) ** 2).sum() / space.dim))
    clusters: list[tuple[np.ndarray, float]] = []
    for x, value in sorted(ends, key=lambda end: end[1]):
        if not any(U.joined(x, other, near) for other, _ in clusters):
            clusters.append((x, value))
    left = len(starts) - tried
    if len(clusters) < 2 and _in_bulk(U, clusters[0][0], draws):
        return Search(len(ends), left, (), 0)
    return _weighed(U, [U.descend(x, scale, LAST_STEPS, True) for x, _ in clusters], draws, len(ends), left)


def _starts(U: Potential, draws: np.ndarray, extra: np.ndarray, seed: int) -> list[np.ndarray]:
    """The mean of the draws, its antipodes, the extra ones, uniform ones with flat factors ever farther out."""
    rng, space = np.random.default_rng(seed), U.space
    middle = U.on_the_way(draws[len(draws) // 2], draws.mean(0), 0.9)
    middle = middle if np.isfinite(middle).all() else draws[-1]
    starts = [draws[-1], *extra, middle]
    curved = [f for f in space.factors if not isinstance(f.carrier, Euclidean)]
    for f in curved:
        there = middle.copy()
        there[f.first_point : f.last_point] *= -1
        starts.append(there)
    keys = jax.random.split(jax.random.key(seed), UNIFORM)
    mean, sd = draws.mean(0), draws.std(0)
    for i, key in enumerate(keys):
        x = mean + DISTANCES[i % len(DISTANCES)] * sd * rng.standard_normal(space.size)
        for f, own in zip(space.factors, jax.random.split(key, len(space.factors)), strict=True):
            if f in curved:
                x[f.first_point : f.last_point] = np.asarray(f.carrier.random_point(own)).ravel()
        starts.append(U.on_the_way(x, x, 0.0))
    return starts


def _in_bulk(U: Potential, x: np.ndarray, draws: np.ndarray) -> bool:
    B, H = U.shape(x)
    return bool((_distances(x, B, H, draws) < _radius(len(H))).any())


def _radius(m: int) -> float:
    return float(4 * chi2.isf(0.01, m))


def _distances(x: np.ndarray, B: np.ndarray, H: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """w^T H w with w the chords from x as tangent vectors: their length, in the direction of their tangent part."""
    away = draws - x
    w = away @ B
    length, chord = np.linalg.norm(w, axis=1), np.linalg.norm(away, axis=1)
    stretched = w * (chord / np.maximum(length, 1e-300))[:, None]
    least = np.maximum(np.linalg.eigvalsh(H)[0], 0.0) * chord**2  # where no direction is known
    return np.where(length > 1e-6 * chord, np.einsum("ki,ij,kj->k", stretched, H, stretched), least)


def _weighed(
    U: Potential, ends: list[tuple[np.ndarray, float]], draws: np.ndarray, converged: int, left: int
) -> Search:
    """Strict minima that no draw has seen, with Laplace's weight against those that were."""
    seen, unseen = [], []
    for x, value in ends:
        B, H = U.shape(x)
        values = np.linalg.eigvalsh(H)
        if not values[0] > 1e-6 * max(1.0, values[-1]):
            continue
        log_mass = -value - np.log(values).sum() / 2
        if (_distances(x, B, H, draws) < _radius(len(H))).any():
            seen.append(log_mass)
        else:
            unseen.append((x, log_mass))
    reference = max(seen, default=-np.inf)
    width = float(np.sqrt((draws.std(0) ** 2).sum()))
    modes = [
        Mode(x, float(np.exp(min(mass - reference, 700.0))), float(np.linalg.norm(x - draws.mean(0)) / width))
        for x, mass in unseen
    ]
    return Search(converged, left, tuple(sorted(modes, key=lambda mode: -mode.weight)), 0)


def _likelihood(target: Target, x: Any, batch: Any) -> tuple[Any, Any]:
    assert target.log_likelihood is not None
    return target.log_likelihood(x, batch).sum(), likelihood_gradient(target, x, batch)
