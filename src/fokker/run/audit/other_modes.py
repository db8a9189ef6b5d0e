"""Is there a mode that no draw has seen? Descents of U from far apart starts, each compared with the draws.

R-hat cannot see this when all chains are in the same mode. A local minimum of U counts as unseen if no draw lies in the
Gaussian bulk of its basin; its weight is Laplace's, exp(-U) |Hess U|^{-1/2} there against the same at the seen minimum.
The search proves the presence of a mode, never its absence. A minimum that is the seen one with entries exchanged (a
relabelling of mixture components) is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
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
AXES = 8  # coordinates, at random, that are gone along
LARGEST, LARGEST_HESSIAN = 2000, 300  # dimensions; between them the draws' precision stands for the Hessian
NO_VALUE = 1e300  # stands for U where it is not finite
BARRIER = 0.5  # nats that part two modes


class Mode(NamedTuple):
    """A minimum of U that no draw has visited."""

    position: np.ndarray  # (d,)
    weight: float  # Laplace's, against the seen mode
    distance: float  # from the mean of the draws, in sd of the draws along that line


class Search(NamedTuple):
    """What the descents found."""

    converged: int
    left: int  # starts that the time did not suffice for
    unseen: tuple[Mode, ...]  # by weight, the largest first
    relabelled: int


class Minimum(NamedTuple):
    z: np.ndarray  # (d,) whitened
    value: float  # of U
    log_mass: float  # Laplace's
    seen: bool


def search_modes(target: Target, draws: np.ndarray, extra: np.ndarray, seconds: float, seed: int) -> Search | str:
    """draws: (n, d), spread over the run; extra: (k, d) more starts, such as those of the chains."""
    if draws.shape[1] > LARGEST:
        return f"{draws.shape[1]:,} parameters are too many to look for modes (at most {LARGEST:,})."
    frame = Frame.of(draws)
    U = Potential(target, frame, np.asarray(extra).dtype)
    U(np.zeros(draws.shape[1]))  # compiles, which does not count
    started = time.perf_counter()
    ends: list[tuple[np.ndarray, float]] = []
    starts = _starts(frame, extra, seed)
    tried = 0
    for z in starts:
        if ends and time.perf_counter() - started > seconds:
            break
        tried += 1
        if U(z)[0] < NO_VALUE:
            end, value = U.descend(z, 200)
            if np.isfinite(end).all() and value < NO_VALUE:
                ends.append((end, value))
    if not ends:
        return "No descent converged."
    clusters, left = _clusters(ends, U), len(starts) - tried
    if len(clusters) < 2:
        return Search(len(ends), left, (), 0)
    minima = _weighed([U.descend(z, 30, everything=True) for z, _ in clusters], U, frame.to_z(draws))
    return _compared(minima, frame, len(ends), left)


@dataclass(frozen=True)
class Frame:
    """Coordinates z in which the draws have mean 0 and unit covariance: theta = mean + root z."""

    mean: np.ndarray  # (d,)
    root: np.ndarray  # (d, d)
    inverse: np.ndarray  # (d, d)
    sd: np.ndarray  # (d,)

    @classmethod
    def of(cls, draws: np.ndarray) -> Frame:
        sd = draws.std(0)
        values, vectors = np.linalg.eigh(np.corrcoef(draws.T).reshape(len(sd), len(sd)))
        lengths = np.sqrt(np.maximum(values, 1e-10))
        return cls(draws.mean(0), sd[:, None] * vectors * lengths, (vectors / lengths).T / sd, sd)

    def to_theta(self, z: np.ndarray) -> np.ndarray:
        return self.mean + self.root @ z

    def to_z(self, theta: np.ndarray) -> np.ndarray:
        """(..., d) -> (..., d)."""
        return (theta - self.mean) @ self.inverse.T


class Potential:
    """U in whitened coordinates, from at most SUBSET rows (scaled up) or from all."""

    def __init__(self, target: Target, frame: Frame, dtype: Any) -> None:
        self._target, self._frame, self._dtype = target, frame, dtype
        self._size = 0 if target.log_likelihood is None else rows(target)
        self._part = min(self._size, SUBSET)
        self._some = jax.tree.map(jnp.asarray, take(target.data, 0, self._part)) if self._size else None
        self._prior = jax.jit(lambda theta: (target.log_prior(theta), prior_gradient(target, theta)))
        self._likelihood = jax.jit(lambda theta, batch: _likelihood(target, theta, batch))
        self._hessian = jax.jit(jax.hessian(self._of_part))

    def _of_part(self, theta: Any, some: Any) -> Any:
        value = -self._target.log_prior(theta)
        if self._target.log_likelihood is not None:
            value = value - self._size / self._part * self._target.log_likelihood(theta, some).sum()
        return value

    def _pieces(self, everything: bool) -> Iterator[tuple[float, Any]]:
        """(factor, rows) that make the likelihood."""
        if everything and self._size > SUBSET:
            for first in range(0, self._size, CHUNK):
                yield 1.0, take(self._target.data, first, min(first + CHUNK, self._size))
        elif self._size:
            yield self._size / self._part, self._some

    def __call__(self, z: np.ndarray, everything: bool = False) -> tuple[float, np.ndarray]:
        """U and its gradient by z; NO_VALUE and zeros where they are not finite."""
        theta = jnp.asarray(self._frame.to_theta(z), self._dtype)
        value, gradient = (np.asarray(v, np.float64) for v in self._prior(theta))
        for factor, batch in self._pieces(everything):
            more, more_gradient = self._likelihood(theta, batch)
            value = value + factor * np.asarray(more, np.float64)
            gradient = gradient + factor * np.asarray(more_gradient, np.float64)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return NO_VALUE, np.zeros_like(z)
        return -float(value), -self._frame.root.T @ gradient

    def descend(self, z: np.ndarray, iterations: int, everything: bool = False) -> tuple[np.ndarray, float]:
        """The end of a descent, and U there."""
        options = {"maxiter": iterations, "maxcor": 20}
        end = minimize(lambda z: self(z, everything), z, jac=True, method="L-BFGS-B", options=options)
        return end.x, float(end.fun)

    def precision(self, z: np.ndarray) -> np.ndarray:
        """The Hessian by z, from the part of the rows, (d, d)."""
        if len(z) > LARGEST_HESSIAN:
            return np.eye(len(z))
        theta = jnp.asarray(self._frame.to_theta(z), self._dtype)
        return self._frame.root.T @ np.asarray(self._hessian(theta, self._some), np.float64) @ self._frame.root

    def joined(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Close together, or without a barrier on the straight way: descents stop early where U is flat."""
        if np.linalg.norm(a - b) < 0.5:
            return True
        along = [self((1 - s) * a + s * b)[0] for s in np.linspace(0, 1, 12)]
        return max(along[1:-1]) < max(along[0], along[-1]) + BARRIER


def _likelihood(target: Target, theta: Any, batch: Any) -> tuple[Any, Any]:
    assert target.log_likelihood is not None
    return target.log_likelihood(theta, batch).sum(), likelihood_gradient(target, theta, batch)


def _starts(frame: Frame, extra: np.ndarray, seed: int) -> list[np.ndarray]:
    """The mean of the draws, the extra ones, then ever farther out: the widest directions, random ones, coordinates."""
    rng, d = np.random.default_rng(seed), len(frame.mean)
    widest = [np.eye(d)[-1 - i] for i in range(min(2, d))]
    axes = [frame.inverse[:, i] * frame.sd[i] for i in rng.permutation(d)[:AXES]]
    starts = [np.zeros(d), *(frame.to_z(e) for e in np.unique(np.asarray(extra, float), axis=0))]
    for distance in DISTANCES:
        along = rng.standard_normal(d)
        for u in (*widest, along / np.linalg.norm(along), *axes):
            starts += [distance * u, -distance * u]
    return starts


def _clusters(ends: list[tuple[np.ndarray, float]], U: Potential) -> list[tuple[np.ndarray, float]]:
    """One end for each mode, the lowest."""
    clusters: list[tuple[np.ndarray, float]] = []
    for z, value in sorted(ends, key=lambda end: end[1]):
        if not any(U.joined(z, other) for other, _ in clusters):
            clusters.append((z, value))
    return clusters


def _weighed(ends: list[tuple[np.ndarray, float]], U: Potential, draws: np.ndarray) -> list[Minimum]:
    """Those ends that are strict minima, with Laplace's weight; draws: (n, d) whitened."""
    minima = []
    radius = 4 * chi2.isf(0.01, draws.shape[1])
    for z, value in ends:
        H = U.precision(z)
        if np.linalg.eigvalsh(H)[0] > 1e-6:
            distances = np.einsum("ni,ij,nj->n", draws - z, H, draws - z)
            log_mass = -value - np.linalg.slogdet(H)[1] / 2
            minima.append(Minimum(z, value, float(log_mass), bool((distances < radius).any())))
    return minima


def _compared(minima: list[Minimum], frame: Frame, converged: int, left: int) -> Search:
    """What was not seen against what was."""
    seen = [m for m in minima if m.seen]
    reference = max((m.log_mass for m in seen), default=-np.inf)
    modes, relabelled = [], 0
    for m in minima:
        if m.seen:
            continue
        if any(_relabelled(frame.to_theta(m.z), frame.to_theta(s.z), frame.sd) and _alike(m, s) for s in seen):
            relabelled += 1
            continue
        weight = float(np.exp(min(m.log_mass - reference, 700.0)))
        modes.append(Mode(frame.to_theta(m.z), weight, float(np.linalg.norm(m.z))))
    return Search(converged, left, tuple(sorted(modes, key=lambda mode: -mode.weight)), relabelled)


def _alike(a: Minimum, b: Minimum) -> bool:
    return abs(a.log_mass - b.log_mass) < 1


def _relabelled(a: np.ndarray, b: np.ndarray, sd: np.ndarray) -> bool:
    """The same numbers in another order, to within half an sd."""
    return len(a) > 1 and bool((np.abs(np.sort(a) - np.sort(b)) < 0.5 * sd.max()).all())
