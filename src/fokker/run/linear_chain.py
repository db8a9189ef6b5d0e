"""Exact laws of one step of SGLD, SGHMC, SGNHT and the geodesic two on a quadratic U, with gradient noise.

In coordinates of unit mass (SGLD: unit D) along an eigenvector of the curvature, a kernel's step is

    z+ = K z + b_w w + b_g g,    w ~ Normal(0, alpha),  g ~ (0, V) the noise of the gradient

with z = theta for SGLD and z = (theta, r) otherwise. ``w`` has variance 1 but for SGNHT, whose thermostat injects
only alpha = A / xi of what the friction xi asks for. The covariance solves Sigma = K Sigma K^T + N, and the lag-k
autocovariance of theta is (K^k Sigma)_11. So everything is a small linear system:

    autocorrelation time of theta:      tau_1 = sum over all k of rho_k
    of its square (what the sd needs):  tau_2 = sum over all k of rho_k^2

Without replacement in epochs of K batches the noise of step j and that of step j + k in the same epoch have covariance
-V / (K - 1), whence at a random phase an autocovariance of -V / (K - 1) (1 - k / K) for 0 < k < K; its sum over all k
is 0. With the autocovariance c_k of the chain under white noise of variance V the variance becomes
c_0 - 2 / (K - 1) sum_{k < K} (1 - k / K) c_k, a geometric sum in K. With control variates the noise is proportional to
the distance from the centre, which the chain forgets: each term then has the factor lambda^k besides, lambda =
(tau - 1) / (tau + 1), the decay of an autoregression with the direction's own autocorrelation time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Law(NamedTuple):
    """What the stationary chain does in a direction of curvature a; all of the broadcast shape of the settings."""

    stable: np.ndarray  # bool
    variance: np.ndarray  # a Var(theta) under the injected noise alone, at alpha = 1; right is 1
    from_gradient: np.ndarray  # what gradient noise of variance 1 adds to a Var(theta)
    kinetic: np.ndarray  # Var(r) under the injected noise at alpha = 1, at the end of the step
    kinetic_from_gradient: np.ndarray  # what gradient noise of variance 1 adds to Var(r)
    tau: np.ndarray  # autocorrelation time of theta, in steps
    tau_square: np.ndarray  # of its square


def law(method: str, integrator: str, a: Any, eps: Any, friction: Any, epoch: int | None, centred: bool = False) -> Law:
    """The law at curvature a, step eps and friction rate C (sgnht: the mean of xi), by broadcasting.

    ``method`` is "sgld", "sghmc", "sgnht", "sggmc" or "gsgnht"; epoch: batches of an epoch without replacement,
    None when batches are independent; centred: the noise is that of control variates.
    """
    a, eps, friction = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (a, eps, friction)))
    K, inject, push = step_map(method, integrator, a, eps, friction)
    stable = _stable(K)
    K = np.where(stable[..., None, None], K, 0.0)  # any stable chain: its numbers are not looked at
    injected = _stationary(K, _outer(inject))
    gradient = _stationary(K, _outer(push))
    start = injected[..., :, :1] / np.maximum(injected[..., :1, :1], 1e-300)  # rho_k = (K^k start)_1
    tau = 2 * np.linalg.solve(np.eye(K.shape[-1]) - K, start)[..., 0, 0] - 1
    tau_square = 2 * _stationary(K, start @ np.swapaxes(start, -1, -2))[..., 0, 0] - 1
    from_gradient = gradient
    if epoch is not None and epoch > 1:
        keep = np.clip((tau - 1) / (tau + 1), 0.0, 1.0)[..., None, None] if centred else 1.0
        total = _fading_sum(keep * K, epoch) @ gradient
        from_gradient = gradient - (total + np.swapaxes(total, -1, -2)) / (epoch - 1)
    last = K.shape[-1] - 1
    return Law(
        stable,
        a * injected[..., 0, 0],
        a * from_gradient[..., 0, 0],
        injected[..., last, last],
        from_gradient[..., last, last],
        tau,
        tau_square,
    )


def step_map(
    method: str, integrator: str, a: np.ndarray, eps: np.ndarray, C: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K (..., m, m), b_w (..., m) and b_g (..., m) of a step; m = 1 for SGLD, else 2."""
    one, zero = np.ones_like(a), np.zeros_like(a)
    if method == "sgld":
        return _rows([[1 - eps * a]]), _rows([np.sqrt(2 * eps)]), _rows([-eps])
    if integrator in ("euler", "symplectic"):
        late = zero if integrator == "euler" else eps  # theta moves with the new r, or with the old
        K = _rows([[one - late * eps * a, eps + late * (-eps * C)], [-eps * a, 1 - eps * C]])
        return K, np.sqrt(2 * eps * C)[..., None] * _rows([late, one]), -eps[..., None] * _rows([late, one])
    if method in ("sggmc", "gsgnht") and integrator != "baoab":  # friction in halves around kick and noise
        half = np.exp(-eps * C / 2)
        r = [-half * eps * a, half * half - half * eps * a * eps / 2]
        K = _rows([[1 + eps / 2 * r[0], eps / 2 * (1 + r[1])], r])
        return (
            K,
            (half * np.sqrt(2 * eps * C))[..., None] * _rows([eps / 2, one]),
            (-(half * eps)[..., None] * _rows([eps / 2, one])),
        )
    c = np.exp(-eps * C)
    heat = np.sqrt(-np.expm1(-2 * eps * C))[..., None] * _rows([eps / 2, one])
    if integrator == "aboba":
        kick = eps * (1 + c) / 2
        r = [-kick * a, c - kick * a * eps / 2]
        return _rows([[1 + eps / 2 * r[0], eps / 2 * (1 + r[1])], r]), heat, -kick[..., None] * _rows([eps / 2, one])
    if integrator == "baoab":
        K = _rows([[1 - eps**2 / 2 * a * (1 + c), eps / 2 * (1 + c)], [-c * eps * a, c]])
        return K, heat, -eps[..., None] * _rows([eps / 2 * (1 + c), c])
    raise ValueError(f"no linear law is written for {method} with integrator {integrator!r}")


def _rows(entries: Any) -> np.ndarray:
    """A vector or matrix of arrays as one array, entries last."""
    if isinstance(entries[0], list):
        return np.stack([np.stack(row, axis=-1) for row in entries], axis=-2)
    return np.stack(entries, axis=-1)


def _outer(b: np.ndarray) -> np.ndarray:
    return b[..., :, None] * b[..., None, :]


def _stable(K: np.ndarray) -> np.ndarray:
    """Whether every eigenvalue lies well enough inside the unit circle."""
    if K.shape[-1] == 1:
        return np.abs(K[..., 0, 0]) < 1 - 1e-12
    trace = K[..., 0, 0] + K[..., 1, 1]
    det = K[..., 0, 0] * K[..., 1, 1] - K[..., 0, 1] * K[..., 1, 0]
    return (det < 1 - 1e-12) & (np.abs(trace) < 1 + det - 1e-12)


def _stationary(K: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Sigma = K Sigma K^T + N for 1 x 1 or 2 x 2 matrices."""
    m = K.shape[-1]
    kron = np.einsum("...ij,...kl->...ikjl", K, K).reshape(*K.shape[:-2], m * m, m * m)
    flat = np.linalg.solve(np.eye(m * m) - kron, N.reshape(*N.shape[:-2], m * m, 1))
    return flat.reshape(N.shape)


def _fading_sum(K: np.ndarray, length: int) -> np.ndarray:
    """sum over 0 < k < length of (1 - k / length) K^k."""
    one = np.eye(K.shape[-1])
    inverse = np.linalg.inv(one - K)
    whole = inverse - K @ (one - np.linalg.matrix_power(K, length)) @ inverse @ inverse / length
    return whole - one
