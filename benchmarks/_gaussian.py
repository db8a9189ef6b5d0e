"""The Gaussian approximation of the logistic posterior as a target with rows, and the exact law of a chain on it.

Row i has the log likelihood s_i u_i - h_i u_i^2 / 2 with u_i = x_i^T phi, phi = beta - mode, s_i and h_i the score and
the weight at the mode. So U is quadratic with curvature A = sum_i h_i x_i x_i^T + 1 / prior variance and minimum 0, and
a minibatch gradient has noise of covariance V = N^2 / n Cov(s_i x_i) there; what the curvature of a batch adds to it
is smaller by the factor d / N and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _logistic import BATCH, PRIOR_SD, Problem
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq

from fokker.data.batches import Batches
from fokker.run.linear_chain import _fading_sum, step_map


@dataclass(frozen=True)
class Quadratic:
    X: np.ndarray  # (N, d)
    score: np.ndarray  # (N,)
    weight: np.ndarray  # (N,)
    mode: np.ndarray  # (d,)
    A: np.ndarray  # (d, d)

    @property
    def data(self) -> Any:
        return tuple(a.astype(np.float32) for a in (self.X, self.score, self.weight))

    def log_row(self, phi: Any, row: Any) -> Any:
        """Also of a batch: x (d,) or (n, d)."""
        x, s, h = row
        u = x @ phi
        return s * u - h * u**2 / 2

    def log_prior(self, phi: Any) -> Any:
        """The prior's Gaussian, up to a constant; its slope at the mode is balanced by the scores."""
        return -0.5 * (((phi + self.mode.astype(np.float32)) / PRIOR_SD) ** 2).sum()

    def noise(self, order: np.ndarray | None = None, later: int = 0) -> np.ndarray:
        """V of batches of rows drawn with replacement; or, given the order of the rows, of a window at any start.

        later: the covariance of the window so many batches on with the first, (d, d).
        """
        rows = self.score[:, None] * self.X
        rows = rows - rows.mean(0)
        N = len(rows)
        if order is None:
            return N**2 / BATCH * (rows.T @ rows) / N
        cyclic = rows[np.concatenate([order, order[: BATCH - 1]])]
        sums = np.cumsum(np.concatenate([np.zeros_like(cyclic[:1]), cyclic]), axis=0)
        means = (sums[BATCH:] - sums[:-BATCH]) / BATCH
        return N**2 * (np.roll(means, -later * BATCH, axis=0).T @ means) / N


def at_mode(p: Problem) -> Quadratic:
    """Newton's method in float64."""
    X, beta = p.X.astype(np.float64), np.zeros(p.X.shape[1])
    for _ in range(20):
        mean = 1 / (1 + np.exp(-X @ beta))
        score, weight = p.y - mean, mean * (1 - mean)
        A = (X * weight[:, None]).T @ X + np.eye(len(beta)) / PRIOR_SD**2
        move = np.linalg.solve(A, score @ X - beta / PRIOR_SD**2)
        beta = beta + move
        if np.abs(move).max() < 1e-12:
            break
    return Quadratic(X, score, weight, beta, A)


def covariance(
    method: str, integrator: str, A: np.ndarray, V: np.ndarray, eps: float, friction: float, epoch: int | None,
    injected: float = 1.0, lags: Sequence[np.ndarray] = (),
) -> np.ndarray:  # fmt: skip
    """Stationary covariance of (phi, r) in the eigenbasis of A, directions coupled by V: (m d, m d).

    epoch: batches of an epoch without replacement, None when batches are independent. injected: the share of the
    noise that the friction asks for. lags: the covariance of the gradient's noise k batches on with that of now, for
    k = 1, 2, ..., beyond what all batches of an epoch have in common.
    """
    a, U = np.linalg.eigh(A)
    K, inject, push = step_map(method, integrator, a, np.full_like(a, eps), np.full_like(a, friction))
    parts = range(K.shape[-1])
    join = lambda block: np.block([[block(i, j) for j in parts] for i in parts])
    K_all = join(lambda i, j: np.diag(K[:, i, j]))
    noise = injected * join(lambda i, j: np.diag(inject[:, i] * inject[:, j]))
    pushed = lambda V: join(lambda i, j: push[:, i, None] * (U.T @ V @ U) * push[None, :, j])
    gradient = pushed(V)
    total = solve_discrete_lyapunov(K_all, noise + gradient)
    if epoch is not None:  # linear_chain: within an epoch batches cancel, and so does what neighbours have in common
        all_lags = gradient + sum((pushed(lag + lag.T) for lag in lags), start=np.zeros_like(gradient))
        past = _fading_sum(K_all, epoch) @ solve_discrete_lyapunov(K_all, all_lags)
        total = total - (past + past.T) / (epoch - 1)
    for k, lag in enumerate(lags, 1):
        past = np.linalg.matrix_power(K_all, k) @ solve_discrete_lyapunov(K_all, pushed(lag.T))
        total = total + past + past.T
    return total


def marginal_sds(A: np.ndarray, total: np.ndarray) -> np.ndarray:
    """(d,) of phi, in its own coordinates."""
    U, d = np.linalg.eigh(A)[1], len(A)
    return np.sqrt(np.einsum("ci,ij,cj->c", U, total[:d, :d], U))


def noise_of(q: Quadratic, batches: Batches) -> tuple[np.ndarray, list[np.ndarray], int | None]:
    """V of the batches that a chain gets, its ``lags`` within a run, and the batches of an epoch."""
    order, R = batches.row_orders()[0], batches.run
    V, epoch = q.noise(order), batches.per_epoch if batches.order == "epochs" else None
    common = 0 if epoch is None else -V / (epoch - 1)
    return V, [(R - k) / R * (q.noise(order, k) - common) for k in range(1, R)], epoch


def thermostat(
    A: np.ndarray, V: np.ndarray, eps: float, diffusion: float, epoch: int | None, lags: Sequence[np.ndarray] = ()
) -> float:
    """The friction xi at which SGNHT ("aboba") has kinetic energy 1, with diffusion / xi of the noise it asks for."""
    d = len(A)

    def excess(log_xi: float) -> float:
        xi = float(np.exp(log_xi))
        total = covariance("sgnht", "aboba", A, V, eps, xi, epoch, diffusion / xi, lags)
        return float(np.trace(total[d:, d:])) / d - 1

    return float(np.exp(brentq(excess, np.log(diffusion) - 0.5, np.log(diffusion) + 3.0, xtol=1e-8)))
