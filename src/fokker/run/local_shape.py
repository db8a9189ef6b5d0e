"""What a posterior looks like near its mode: curvature, and its directions.

In float64 whatever the precision of the run, up to ``DENSE`` parameters: there the Hessian is a matrix. Beyond, its
diagonal is estimated from random probes (Bekas, Kokiopoulou & Saad 2007) and its spectrum by Lanczos iterations, from
products with vectors in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.errors import InputError
from fokker.run.gradients import likelihood_gradient, prior_gradient, rows, take
from fokker.run.mode import find_mode

if TYPE_CHECKING:
    from fokker.run.layout import Layout
    from fokker.target import Target

DENSE = 400  # parameters up to which the Hessian is a matrix
CHUNK = 10_000  # rows of one call
WORK = 4e9  # rows times parameters squared that a Hessian may cost; above, it is that of a part of the rows
NEWTON_STEPS = 30
ENTRIES = 2e7  # of a design matrix that is looked at with many points
PIECES = 64  # contiguous pieces, spread evenly, that make a part of the rows
SADDLES = 3  # that are left on the way to a mode
PROBES, LANCZOS = 100, 40


@dataclass(frozen=True)
class Shape:
    """The quadratic that touches the potential at its mode."""

    mode: np.ndarray  # (d,)
    hessian: np.ndarray | None  # (d, d)
    diagonal: np.ndarray  # (d,) of the Hessian, or its estimate
    product: Callable[[np.ndarray], np.ndarray]  # v -> H v
    distance: float  # of the mode from where the quadratic has its minimum, in posterior sds; NaN if not known

    @property
    def size(self) -> int:
        return len(self.mode)

    def covariance(self) -> np.ndarray:
        """H^-1 of a dense Hessian, (d, d), through unit diagonal: rows may differ in scale by many powers of ten."""
        assert self.hessian is not None
        scale = 1 / np.sqrt(self.diagonal)
        inside = np.linalg.inv(scale[:, None] * self.hessian * scale)
        return scale[:, None] * (inside + inside.T) / 2 * scale

    def draws(self, count: int, seed: int) -> np.ndarray:
        """Normal(mode, H^-1), (count, d); of the diagonal alone where the Hessian is no matrix."""
        z = np.random.default_rng([seed, 0x5EED]).standard_normal((count, self.size))
        if self.hessian is None:
            return self.mode + z / np.sqrt(self.diagonal)
        scale = 1 / np.sqrt(self.diagonal)
        L = np.linalg.cholesky(scale[:, None] * self.hessian * scale)
        return self.mode + scale * np.linalg.solve(L.T, z.T).T


@dataclass(frozen=True)
class Directions:
    """Eigenvectors of the curvature in coordinates x with theta = root x, and their part in those of theta."""

    curvature: np.ndarray  # (k,) ascending
    columns: np.ndarray  # (d, k) root times the eigenvectors
    weights: np.ndarray  # (coordinates, k): shares of a coordinate's variance, rows sum to 1


def find_shape(target: Target, start: np.ndarray, layout: Layout) -> Shape:
    """The mode near ``start`` and the curvature there; InputError where there is no proper mode."""
    theta = np.asarray(find_mode(target, np.asarray(start, np.float64)), np.float64)
    d = theta.size
    if d > DENSE:
        return _matrix_free(target, theta, layout)
    potential, gradient, hessian = potential_of(target), gradient_of(target), hessian_of(target, d)
    for _ in range(SADDLES + 1):
        theta, distance = _newton(potential, gradient, hessian, theta, layout)
        H = hessian(theta)
        values, vectors, scale = unit_diagonal(H)
        if values[0] > 1e-10 * values[-1]:
            return Shape(theta, H, np.diag(H).copy(), H.__matmul__, distance)
        lower = _downhill(potential, theta, scale * vectors[:, 0])
        if lower is None:
            break
        theta = lower
    worst = layout.entry_names()[int(np.argmax(np.abs(vectors[:, 0])))]
    raise InputError(
        "no step size could be tuned: the log density has no proper mode near init; it is not curved downwards along a "
        f"direction that is mostly {worst}. Give that parameter a proper and smooth prior, start nearer to the bulk "
        "(init=...), or pass step_size=... to the kernel."
    )


def _newton(
    potential: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    layout: Layout,
) -> tuple[np.ndarray, float]:
    """Damped steps, downhill whatever the signs of the curvature; and the last one's length in posterior sds."""
    value, distance = potential(theta), np.inf
    for _ in range(NEWTON_STEPS):
        H, g = hessian(theta), gradient(theta)
        _refuse_not_finite(H, layout)
        values, vectors, scale = unit_diagonal(H)
        if not values.any():
            break
        values = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
        move = -scale * (vectors @ ((vectors.T @ (scale * g)) / values))
        distance = float(np.sqrt(max(-(g @ move), 0.0)))
        if distance < 0.02:
            break
        for halving in range(30):
            trial = theta + move * 0.5**halving
            lower = potential(trial)
            if np.isfinite(lower) and lower < value + 1e-9 * abs(value):
                break
        else:
            break
        theta, value = trial, lower
    return theta, distance


def _downhill(potential: Callable[[np.ndarray], float], theta: np.ndarray, along: np.ndarray) -> np.ndarray | None:
    """Away from a saddle: the lowest of some points along a direction, None where none is lower."""
    points = [theta + part * along for size in (0.1, 0.3, 1.0, 3.0) for part in (size, -size)]
    values = np.nan_to_num([potential(p) for p in points], nan=np.inf)
    here, best = potential(theta), int(np.argmin(values))
    return points[best] if values[best] < here - 1e-9 * abs(here) else None


def directions(shape: Shape, root: np.ndarray) -> Directions:
    """The eigendirections of root^T H root, root (d,) or (d, d): all, or Ritz pairs where H is no matrix."""
    times = (lambda v: root @ v) if root.ndim == 2 else (lambda v: (root * v.T).T)
    back = (lambda v: root.T @ v) if root.ndim == 2 else times
    if shape.hessian is None:
        values, vectors = _lanczos(lambda v: back(shape.product(times(v))), shape.size)
        return Directions(values, times(vectors), np.eye(len(values)))
    values, vectors = np.linalg.eigh(back(back(shape.hessian).T))
    values, columns = np.maximum(values, 1e-14 * values[-1]), times(vectors)
    weights = columns**2 / values
    return Directions(values, columns, weights / weights.sum(1, keepdims=True))


def remainder(target: Target, mode: np.ndarray, points: np.ndarray, count: int) -> np.ndarray:
    """grad U(theta) - grad U(mode) - H (theta - mode) at points (k, d), from ``count`` rows or fewer: (k, d).

    Only what is not quadratic is left to a part of the rows, so that its sampling error is of third order.
    """

    def beyond(grad: Callable[[Any], Any], thetas: Any) -> Any:
        centre = jnp.asarray(mode)
        at_centre = grad(centre)

        def one(theta: Any) -> Any:
            return grad(theta) - at_centre - jax.jvp(grad, (centre,), (theta - centre,))[1]

        return jax.lax.map(one, thetas, batch_size=32)

    thetas = jnp.asarray(points)
    total = -np.asarray(jax.jit(lambda t: beyond(lambda x: prior_gradient(target, x), t))(thetas))
    if target.log_likelihood is None:
        return total
    run = jax.jit(lambda t, batch: beyond(lambda x: likelihood_gradient(target, x, batch), t))
    used = 0
    likelihood = np.zeros_like(total)
    for batch in spread(target, int(min(count, max(500, ENTRIES / mode.size)))):
        likelihood += np.asarray(run(thetas, batch))
        used += jax.tree.leaves(batch)[0].shape[0]
    return total - rows(target) / used * likelihood


def spread(target: Target, count: int, chunk: int = CHUNK) -> Iterator[Any]:
    """About ``count`` rows in chunks: all rows, or contiguous pieces spread evenly (data may be sorted)."""
    size = rows(target)
    if count >= size:
        for first in range(0, size, chunk):
            yield take(target.data, first, min(first + chunk, size))
        return
    pieces = min(PIECES, count)
    length = count // pieces
    firsts = np.linspace(0, size - length, pieces).astype(int)
    per_chunk = max(1, chunk // length)
    for i in range(0, pieces, per_chunk):
        parts = [take(target.data, int(f), int(f) + length) for f in firsts[i : i + per_chunk]]
        yield jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)


# --- derivatives of the potential -----------------------------------------------------------------------------------


def potential_of(target: Target) -> Callable[[np.ndarray], float]:
    prior = jax.jit(target.log_prior)
    f = target.log_likelihood
    likelihood = None if f is None else jax.jit(lambda t, batch: f(t, batch).sum())

    def potential(theta: np.ndarray) -> float:
        t = jnp.asarray(theta)
        value = float(prior(t))
        if likelihood is not None:
            value += sum(float(likelihood(t, batch)) for batch in spread(target, rows(target)))
        return -value

    return potential


def gradient_of(target: Target) -> Callable[[np.ndarray], np.ndarray]:
    prior = jax.jit(lambda t: prior_gradient(target, t))
    likelihood = jax.jit(lambda t, batch: likelihood_gradient(target, t, batch))

    def gradient(theta: np.ndarray) -> np.ndarray:
        t = jnp.asarray(theta)
        total = np.asarray(prior(t))
        if target.log_likelihood is not None:
            for batch in spread(target, rows(target)):
                total = total + np.asarray(likelihood(t, batch))
        return -total

    return gradient


def hessian_of(target: Target, d: int) -> Callable[[np.ndarray], np.ndarray]:
    """theta -> Hessian of U, from all rows or from as many as ``WORK`` allows, scaled up."""
    prior = jax.jit(jax.hessian(target.log_prior))

    def of_batch(theta: Any, batch: Any) -> Any:
        if target.linear is not None:
            X = target.linear.design(batch)
            score = target.linear.score
            eta = X @ theta
            slope = jax.jvp(lambda e: score(e, batch), (eta,), (jnp.ones_like(eta),))[1]
            return (X * slope[:, None]).T @ X
        grad = lambda t: likelihood_gradient(target, t, batch)
        column = lambda v: jax.jvp(grad, (theta,), (v,))[1]
        return jax.lax.map(column, jnp.eye(d, dtype=theta.dtype), batch_size=16)

    likelihood = jax.jit(of_batch)

    def hessian(theta: np.ndarray) -> np.ndarray:
        t = jnp.asarray(theta)
        total = np.asarray(prior(t))
        if target.log_likelihood is not None:
            allowed = max(int(WORK / d**2), 10 * d)
            used, part = 0, np.zeros((d, d))
            for batch in spread(target, min(rows(target), allowed)):
                part = part + np.asarray(likelihood(t, batch))
                used += jax.tree.leaves(batch)[0].shape[0]
            total = total + rows(target) / used * part
        return -(total + total.T) / 2

    return hessian


def unit_diagonal(H: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues, eigenvectors of diag(s) H diag(s) with s = |diag H|^-1/2, and s."""
    diagonal = np.abs(np.diag(H))
    scale = 1 / np.sqrt(np.maximum(diagonal, 1e-30 * (diagonal.max() or 1.0)))
    values, vectors = np.linalg.eigh(scale[:, None] * H * scale)
    return values, vectors, scale


def _refuse_not_finite(H: np.ndarray, layout: Layout) -> None:
    if not np.isfinite(H).all():
        bad = int(np.argmin(np.isfinite(H).all(axis=1)))
        raise InputError(
            f"no step size could be tuned: the second derivative of the log density by {layout.entry_names()[bad]} is "
            "not finite at the mode. Start elsewhere (init=...), or pass step_size=... to the kernel."
        )


# --- without a matrix -----------------------------------------------------------------------------------------------


def _matrix_free(target: Target, theta: np.ndarray, layout: Layout) -> Shape:
    product = hessian_product(target, theta)
    signs = np.random.default_rng(theta.size).choice([-1.0, 1.0], (PROBES, theta.size))
    diagonal = np.mean([z * product(z) for z in signs], axis=0)
    if not np.isfinite(diagonal).all() or np.median(diagonal) <= 0:
        bad = int(np.argmin(np.where(np.isfinite(diagonal), diagonal, -np.inf)))
        raise InputError(
            f"no step size could be tuned: the log density has no proper mode near init (curvature "
            f"{diagonal[bad]:.3g} along {layout.entry_names()[bad]}). Give proper and smooth priors, start nearer to "
            "the bulk (init=...), or pass step_size=... to the kernel."
        )
    floor = 1e-3 * np.median(diagonal)
    return Shape(theta, None, np.maximum(diagonal, floor), product, float("nan"))


def hessian_product(target: Target, theta: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """v -> H v in float32, from at least ten rows a parameter, for curvature that only few rows know of."""
    count, chunk = max(2 * CHUNK, 10 * theta.size), max(500, int(ENTRIES / theta.size))
    prior = jax.jit(lambda t, v: jax.jvp(lambda t: prior_gradient(target, t), (t,), (v,))[1])
    likelihood = jax.jit(lambda t, v, batch: jax.jvp(lambda t: likelihood_gradient(target, t, batch), (t,), (v,))[1])

    def product(v: np.ndarray) -> np.ndarray:
        with jax.enable_x64(False):
            t, tangent = jnp.asarray(theta, jnp.float32), jnp.asarray(v, jnp.float32)
            total = np.asarray(prior(t, tangent), np.float64)
            if target.log_likelihood is not None:
                used, part = 0, np.zeros(theta.size)
                for batch in spread(target, min(rows(target), count), chunk):
                    part = part + np.asarray(likelihood(t, tangent, batch))
                    used += jax.tree.leaves(batch)[0].shape[0]
                total = total + rows(target) / used * part
        return -total

    return product


def _lanczos(product: Callable[[np.ndarray], np.ndarray], d: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values (ascending) and vectors after LANCZOS steps with full reorthogonalisation; positive ones only."""
    basis = [np.random.default_rng(d).standard_normal(d)]
    basis[0] /= np.linalg.norm(basis[0])
    alphas: list[float] = []
    betas: list[float] = []
    for _ in range(min(LANCZOS, d)):
        w = product(basis[-1])
        alphas.append(float(w @ basis[-1]))
        for _ in range(2):
            w = w - np.stack(basis, 1) @ (np.stack(basis) @ w)
        beta = float(np.linalg.norm(w))
        if beta < 1e-10 * abs(alphas[0]):
            break
        betas.append(beta)
        basis.append(w / beta)
    k = len(alphas)
    values, turn = np.linalg.eigh(np.diag(alphas) + np.diag(betas[: k - 1], 1) + np.diag(betas[: k - 1], -1))
    positive = values > 1e-10 * values[-1]
    return values[positive], (np.stack(basis[:k], 1) @ turn)[:, positive]
