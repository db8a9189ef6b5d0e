"""What a posterior looks like near its mode: curvature, its directions, and the noise of a gradient there.

All in float64 whatever the precision of the run. Up to ``DENSE`` parameters the Hessian is a matrix; beyond, its
diagonal is estimated from random probes (Bekas, Kokiopoulou & Saad 2007) and its spectrum by Lanczos iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fokker.errors import InputError
from fokker.run.gradients import likelihood_gradient, prior_gradient, row_gradients, rows, take
from fokker.run.mode import find_mode

if TYPE_CHECKING:
    from fokker.run.layout import Layout
    from fokker.target import Target

DENSE = 400  # parameters up to which the Hessian is a matrix
CHUNK = 10_000  # rows of one call
WORK = 4e9  # rows times parameters squared that a Hessian may cost; above, it is that of a part of the rows
NEWTON_STEPS = 30
PIECES = 64  # contiguous pieces, spread evenly, that make a part of the rows
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
    """Eigenvectors of the curvature in coordinates x = theta / scale, and what the gradient's noise does along them."""

    scale: np.ndarray  # (d,)
    curvature: np.ndarray  # (k,)
    vectors: np.ndarray  # (d, k), orthonormal
    weights: np.ndarray  # (coordinates, k): shares of a coordinate's variance, rows sum to 1


def find_shape(target: Target, start: np.ndarray, layout: Layout) -> Shape:
    """The mode near ``start`` and the curvature there; InputError where there is no proper mode."""
    theta = np.asarray(find_mode(target, np.asarray(start, np.float64)), np.float64)
    d = theta.size
    if d > DENSE:
        return _matrix_free(target, theta, layout)
    hessian_at, grad_at = _hessian(target, d), _gradient(target)
    potential = _potential(target)
    value = potential(theta)
    distance = np.inf
    for _ in range(NEWTON_STEPS):
        H, g = hessian_at(theta), grad_at(theta)
        _refuse_not_finite(H, layout)
        values, vectors, scale = _unit_diagonal(H)
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
    H = hessian_at(theta)
    values, vectors, scale = _unit_diagonal(H)
    if values[0] <= 1e-10 * values[-1]:
        worst = int(np.argmax(np.abs(vectors[:, 0])))
        raise InputError(
            f"no step size could be tuned: the log density has no proper mode near init; it does not fall off in a "
            f"direction that is mostly {layout.entry_names()[worst]}. Give that parameter a proper prior, start "
            f"nearer to the bulk (init=...), or pass step_size=... to the kernel."
        )
    return Shape(theta, H, np.diag(H).copy(), lambda v: H @ v, distance)


def directions(shape: Shape, scale: np.ndarray) -> Directions:
    """The eigendirections of diag(scale) H diag(scale): all of them, or Ritz pairs where H is no matrix."""
    if shape.hessian is None:
        values, vectors = _lanczos(lambda v: scale * shape.product(scale * v), shape.size)
        return Directions(scale, values, vectors, np.eye(len(values)))
    values, vectors = np.linalg.eigh(scale[:, None] * shape.hessian * scale)
    values = np.maximum(values, 1e-14 * values[-1])
    weights = vectors**2 / values
    return Directions(scale, values, vectors, weights / weights.sum(1, keepdims=True))


def row_noise(target: Target, points: np.ndarray, centres: np.ndarray | None, size: int) -> np.ndarray:
    """Per-row gradients, less those at the centres where given, and less their mean: (points * rows, d).

    Their covariance times N^2 / n (1 - n / N) is that of a batch's gradient.
    """

    def one(theta: Any, centre: Any, batch: Any) -> Any:
        g = row_gradients(target, theta, batch)
        return g if centre is None else g - row_gradients(target, centre, batch)

    run = jax.jit(one)
    few = max(500, int(min(CHUNK, 4e7 / (len(points) * size))))
    out = []
    for i, theta in enumerate(points):
        centre = None if centres is None else jnp.asarray(centres[i])
        got = [np.asarray(run(jnp.asarray(theta), centre, batch)) for batch in spread(target, few)]
        each = np.concatenate(got)
        out.append(each - each.mean(0))
    return np.concatenate(out)


def remainder(target: Target, mode: np.ndarray, points: np.ndarray, count: int) -> np.ndarray:
    """grad U(theta) - grad U(mode) - H (theta - mode) at points (k, d), from about ``count`` rows: (k, d).

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
    for batch in spread(target, count):
        likelihood += np.asarray(run(thetas, batch))
        used += jax.tree.leaves(batch)[0].shape[0]
    return total - rows(target) / used * likelihood


def spread(target: Target, count: int) -> Iterator[Any]:
    """About ``count`` rows in equal chunks: all rows, or contiguous pieces spread evenly (data may be sorted)."""
    size = rows(target)
    if count >= size:
        for first in range(0, size, CHUNK):
            yield take(target.data, first, min(first + CHUNK, size))
        return
    pieces = min(PIECES, count)
    length = count // pieces
    firsts = np.linspace(0, size - length, pieces).astype(int)
    per_chunk = max(1, CHUNK // length)
    for i in range(0, pieces, per_chunk):
        parts = [take(target.data, int(f), int(f) + length) for f in firsts[i : i + per_chunk]]
        yield jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)


# --- derivatives of the potential -----------------------------------------------------------------------------------


def _potential(target: Target) -> Callable[[np.ndarray], float]:
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


def _gradient(target: Target) -> Callable[[np.ndarray], np.ndarray]:
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


def _hessian(target: Target, d: int) -> Callable[[np.ndarray], np.ndarray]:
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


def _unit_diagonal(H: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues, eigenvectors of diag(s) H diag(s) with s = |diag H|^-1/2, and s."""
    diagonal = np.abs(np.diag(H))
    scale = 1 / np.sqrt(np.maximum(diagonal, 1e-30 * max(diagonal.max(), 1e-300)))
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
    d = theta.size

    def of_batch(v: Any, batch: Any) -> Any:
        return jax.jvp(lambda t: likelihood_gradient(target, t, batch), (jnp.asarray(theta),), (v,))[1]

    prior = jax.jit(lambda v: jax.jvp(lambda t: prior_gradient(target, t), (jnp.asarray(theta),), (v,))[1])
    likelihood = jax.jit(of_batch)

    def product(v: np.ndarray) -> np.ndarray:
        total = np.asarray(prior(jnp.asarray(v)))
        if target.log_likelihood is not None:
            used, part = 0, np.zeros(d)
            for batch in spread(target, min(rows(target), 2 * CHUNK)):
                part = part + np.asarray(likelihood(jnp.asarray(v), batch))
                used += jax.tree.leaves(batch)[0].shape[0]
            total = total + rows(target) / used * part
        return -total

    signs = np.random.default_rng(d).choice([-1.0, 1.0], (PROBES, d))
    diagonal = np.mean([z * product(z) for z in signs], axis=0)
    if not np.isfinite(diagonal).all() or np.median(diagonal) <= 0:
        bad = int(np.argmin(np.where(np.isfinite(diagonal), diagonal, -np.inf)))
        raise InputError(
            f"no step size could be tuned: the log density has no proper mode near init (curvature "
            f"{diagonal[bad]:.3g} along {layout.entry_names()[bad]}). Give proper priors, start nearer to the bulk "
            "(init=...), or pass step_size=... to the kernel."
        )
    floor = 1e-3 * np.median(diagonal)
    return Shape(theta, None, np.maximum(diagonal, floor), product, float("nan"))


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
