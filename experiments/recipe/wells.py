"""Four samplers on two one-dimensional targets: Figures 2 (left) and S.5 of Ma, Chen & Fox (2015) are drawn from this.

Eight seeds of many chains each; the gradient has noise of variance 1, which every sampler compensates. SGHMC and
gSGRHMC move theta with the old momentum, as eq. (12) and Algorithm 1 print it, so that the naive rule differs from the
right one in Gamma alone. |theta^4 - 2 theta^2 + 1/2| has kinks, at which the root of the metric has no derivative: the
metric is smoothed there, with delta = 0.1, which changes no law.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from experiments.recipe.synthetic import density, metric, one_peak, positions, two_peaks, wrong_sgrhmc
from fokker import sghmc, sgld, sgrhmc

TARGETS = {"U = θ²/2": one_peak, "U = θ⁴ − 2θ²": two_peaks}
METHODS = ("SGLD", "SGHMC", "naive, eq. (16)", "gSGRHMC")
PRINTED, KINKED = "eq. (17) as printed", "gSGRHMC, metric not smoothed"
STEP, SMOOTHING, BURN_TIME, SEEDS = 0.005, 0.1, 20.0, 8
EDGES = np.linspace(-4.0, 4.0, 81)
TIME_APART = 0.1  # between kept draws


class Settings(NamedTuple):
    chains: int  # per seed
    time: float  # of each chain, in units of eps
    steps: tuple[float, ...]


FULL, QUICK = Settings(100, 1000.0, (STEP, STEP / 2)), Settings(50, 160.0, (STEP,))


class Found(NamedTuple):
    """A method on a target at one step size; one entry per seed."""

    kl: np.ndarray  # (seeds,) of the histogram from the exact law, nats
    second: np.ndarray  # (seeds,) E theta^2
    probability: np.ndarray  # (bins,) the histogram, all seeds together
    tau: float  # autocorrelation time of theta, in gradients
    lost: float  # share of chains that left the real numbers


class Truth(NamedTuple):
    probability: np.ndarray  # (bins,)
    second: float  # E theta^2
    floor: np.ndarray  # (seeds,) KL of as many exact draws as a sampler's


def kernel(method: str, potential, eps: float):
    G_inverse = metric(potential, SMOOTHING)
    return {
        "SGLD": lambda: sgld(eps),
        "SGHMC": lambda: sghmc(eps, friction=1.0, integrator="euler"),
        "naive, eq. (16)": lambda: wrong_sgrhmc(eps, G_inverse, correction=0.0, damping=-1.0),
        "gSGRHMC": lambda: sgrhmc(eps, metric_inverse=G_inverse, integrator="euler"),
        KINKED: lambda: sgrhmc(eps, metric_inverse=metric(potential, 0.0), integrator="euler"),
        PRINTED: lambda: wrong_sgrhmc(eps, G_inverse, correction=-1.0, damping=1.0),
    }[method]()


@cache
def truth(target: str, draws: int) -> Truth:
    """Bin probabilities by Simpson's rule within each bin, and the KL of exact draws."""
    potential = TARGETS[target]
    fine = np.linspace(EDGES[0], EDGES[-1], (len(EDGES) - 1) * 20 + 1)
    p = density(potential, fine)
    weight = np.tile([1.0] + [4.0, 2.0] * 9 + [4.0, 1.0], (len(EDGES) - 1, 1)) * (fine[1] - fine[0]) / 3
    index = np.arange(len(EDGES) - 1)[:, None] * 20 + np.arange(21)
    probability = (p[index] * weight).sum(1)
    rng = np.random.default_rng(0)
    floor = np.array([kl(rng.multinomial(draws, probability / probability.sum()), probability) for _ in range(SEEDS)])
    wide = np.linspace(-8, 8, 16_001)
    return Truth(probability, float(np.trapezoid(wide**2 * density(potential, wide), wide)), floor)


def kl(counts: np.ndarray, probability: np.ndarray) -> float:
    """KL(histogram | exact) over the bins; draws outside of [-4, 4] (less than 1e-4) count in the total only."""
    share = counts / counts.sum()
    seen = share > 0
    return float((share[seen] * np.log(share[seen] / (probability / probability.sum())[seen])).sum())


@cache
def run(method: str, target: str, eps: float, settings: Settings) -> Found:
    """All seeds of one method, all chains from theta = 0.5."""
    thin = round(TIME_APART / eps)
    draws = round(settings.time / TIME_APART)
    start = np.full((SEEDS * settings.chains, 1), 0.5, np.float32)
    x = positions(
        kernel(method, TARGETS[target], eps),
        TARGETS[target],
        start,
        draws,
        thin=thin,
        burn=round(BURN_TIME / eps),
        seed=11,
    )[..., 0]
    x = x.reshape(draws, SEEDS, settings.chains)
    lost = float(1 - np.isfinite(x[-1]).mean())
    if lost == 1:
        nothing = np.full(SEEDS, np.nan)
        return Found(nothing, nothing, np.full(len(EDGES) - 1, np.nan), np.nan, lost)
    counts = np.array([np.histogram(x[:, s], EDGES)[0] for s in range(SEEDS)])
    exact = truth(target, draws * settings.chains)
    means = x.astype(float).mean(0).ravel()  # both laws have mean 0
    tau = (means**2).mean() * draws * thin / exact.second
    second = (x.astype(float) ** 2).mean((0, 2))
    pooled = counts.sum(0) / counts.sum()
    return Found(np.array([kl(c, exact.probability) for c in counts]), second, pooled, float(tau), lost)


# E theta^2, known apart from the quadrature here.
SECOND = {"U = θ²/2": 1.0, "U = θ⁴ − 2θ²": 0.832745}


def soundness(found: dict[tuple[str, str], Found], settings: Settings) -> dict[str, bool]:
    """What a comparison of these laws rests on; KL of exact draws is the floor that sampling sets."""
    draws = settings.chains * round(settings.time / TIME_APART)
    references = [truth(t, draws) for t in TARGETS]
    naive = [found[METHODS[2], t] for t in TARGETS]
    tau = max(f.tau for f in found.values())
    return {
        f"{SEEDS} seeds, no chain lost": all(f.kl.size == SEEDS and f.lost == 0 for f in found.values()),
        "each chain longer than 20 autocorrelation times": settings.time / STEP > 20 * tau,
        "the exact law sums to 1 and has its known E θ²": all(
            abs(r.probability.sum() - 1) < 1e-3 and abs(r.second - s) < 1e-5
            for r, s in zip(references, SECOND.values(), strict=True)
        ),
        "exact draws have a KL far below that of the naive rule": all(
            r.floor.mean() < f.kl.mean() / 3 for r, f in zip(references, naive, strict=True)
        ),
    }
