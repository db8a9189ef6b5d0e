"""R-hat and ESS for the progress line, a few lines of NumPy: to import arviz-stats in the middle of a run costs it a
second and 140 MB. What a user reads after the run, summary and audit, is by arviz-stats, which the tests hold these to.
"""

from __future__ import annotations

import numpy as np


def split_rhat(x: np.ndarray) -> float:
    """Split R-hat (Gelman et al. 2013, sec. 11.4) of draws (chains, draws)."""
    halves = _halves(x)
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean()
    between = halves.mean(axis=1).var(ddof=1)
    return float(np.sqrt((n - 1) / n + between / within)) if within > 0 else np.nan


def ess(x: np.ndarray) -> float:
    """Effective draws for the mean, of (chains, draws): Geyer's initial monotone sequence over split chains."""
    halves = _halves(x)
    m, n = halves.shape
    away = halves - halves.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(away, 2 * n, axis=1)) ** 2
    autocovariance = np.fft.irfft(spectrum, axis=1)[:, :n].mean(0) / n
    within = autocovariance[0] * n / (n - 1)
    total = autocovariance[0] + halves.mean(axis=1).var(ddof=1)
    if not total > 0:
        return np.nan
    rho = 1 - (within - autocovariance) / total
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(1)
    positive = pairs[: np.argmax(pairs < 0)] if (pairs < 0).any() else pairs
    tau = -1 + 2 * np.minimum.accumulate(positive).sum()
    return float(m * n / max(tau, 1 / np.log10(m * n)))


def _halves(x: np.ndarray) -> np.ndarray:
    """The two halves of every chain, as chains."""
    n = x.shape[1] // 2
    return np.concatenate([x[:, :n], x[:, -n:]])
