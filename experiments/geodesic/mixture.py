"""The mixture of two von Mises-Fisher laws on the circle of Liu, Zhu & Song (2016, Sec. 5.2), its data and posterior.

    v_1, v_2 ~ vMF(e_1, 20),    x_i ~ vMF(v_1, 20) / 2 + vMF(other, 20) / 2

The paper prints two likelihoods. In the main text ``other`` is v_2; in suppl. D it is mu = (v_1 + v_2) / |v_1 + v_2|,
and its figure is drawn from that one. The main text also has a mean e_2 of the prior of v_2, which it never defines;
the argument of suppl. D needs e_1 for both. Angles are from e_1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import ndimage, optimize

import fokker

KAPPA = 20.0
GENERATED = (-np.pi / 24, np.pi / 8)  # the angles of v_1 and v_2 that the data are drawn with
E1 = np.array([1.0, 0.0], np.float32)
CIRCLES = {"v1": fokker.Sphere(2), "v2": fokker.Sphere(2)}
LIKELIHOODS = {  # the second centre of the data, by the two angles
    "v1 and mu": lambda a, b: (a + b) / 2,
    "v1 and v2": lambda a, b: b,
}
DRAWN, MAIN_TEXT = LIKELIHOODS


def data(likelihood: str, count: int, seed: int = 5) -> np.ndarray:
    """Points of the circle, (count, 2), by GMC from its start on, as the paper draws them."""
    a, b = GENERATED[0], LIKELIHOODS[likelihood](*GENERATED)
    first, second = (np.array([np.cos(t), np.sin(t)]) for t in (a, b))
    target = fokker.Target.from_log_density(
        lambda x: jnp.logaddexp(KAPPA * x @ first, KAPPA * x @ second), start=first, space=fokker.Sphere(2)
    )
    run = fokker.sample(
        target, fokker.gmc(0.05, leapfrog_steps=8), draws=count, warmup=0, chains=1, seed=seed, progress=False
    )
    return np.asarray(run.draws["theta"][0])


def target(x: np.ndarray) -> fokker.Target:
    """The posterior of suppl. D."""

    def log_likelihood(p, x):
        mu = p["v1"] + p["v2"]
        mu = mu / jnp.linalg.norm(mu)
        return jnp.logaddexp(KAPPA * x @ p["v1"], KAPPA * x @ mu)

    return fokker.Target(lambda p: KAPPA * (p["v1"] + p["v2"]) @ E1, log_likelihood, x, space=CIRCLES)


def log_posterior(likelihood: str, x: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Of the two angles, up to a constant; (...), (...) -> (...). By NumPy, apart from the target that is sampled."""
    angles = np.arctan2(x[:, 1], x[:, 0]).astype(float)

    def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        other = LIKELIHOODS[likelihood](a, b)
        total = KAPPA * (np.cos(a) + np.cos(b))
        for angle in angles:
            total = total + np.logaddexp(KAPPA * np.cos(a - angle), KAPPA * np.cos(other - angle))
        return total

    return of


class Grid(NamedTuple):
    """The posterior by quadrature: both angles at the same equidistant nodes, which hold all of it."""

    nodes: np.ndarray  # (n,)
    p: np.ndarray  # (n, n) by v_1, v_2; sums to 1
    log_p: np.ndarray  # (n, n), 0 at its maximum

    @property
    def marginals(self) -> tuple[np.ndarray, np.ndarray]:
        return self.p.sum(1), self.p.sum(0)

    @property
    def lost(self) -> float:
        """The largest density on the edge, against the maximum."""
        edge = np.concatenate([self.log_p[0], self.log_p[-1], self.log_p[:, 0], self.log_p[:, -1]])
        return float(np.exp(edge.max()))

    def mean(self, f: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
        return float((self.p * f(self.nodes[:, None], self.nodes[None])).sum())

    def maxima(self, least: float = -5.0) -> list[tuple[int, int]]:
        """Indices of local maxima at most ``least`` below the highest."""
        top = (self.log_p == ndimage.maximum_filter(self.log_p, 3)) & (self.log_p > least)
        return [(int(i), int(j)) for i, j in np.argwhere(top)]


def quadrature(likelihood: str, x: np.ndarray, count: int, half: float = 1.1) -> Grid:
    """The trapezoidal rule, exponentially accurate for an analytic density that vanishes on the edge."""
    nodes = np.linspace(-half, half, count)
    log_p = log_posterior(likelihood, x)(nodes[:, None], nodes[None])
    log_p -= log_p.max()
    p = np.exp(log_p)
    return Grid(nodes, p / p.sum(), log_p)


class Mode(NamedTuple):
    v1: float  # angle
    v2: float
    height: float  # log posterior, from the highest


def modes(likelihood: str, x: np.ndarray, grid: Grid) -> list[Mode]:
    """The maxima of the grid, polished; in the order of v_1."""
    f = log_posterior(likelihood, x)
    found = []
    for i, j in grid.maxima():
        best = optimize.minimize(lambda z: -f(*z), [grid.nodes[i], grid.nodes[j]], method="Nelder-Mead",
                                 options={"xatol": 1e-6, "fatol": 1e-6})  # fmt: skip
        found.append(Mode(*map(float, best.x), -float(best.fun)))
    top = max(mode.height for mode in found)
    apart = {(round(mode.v1, 3), round(mode.v2, 3)): mode for mode in found}  # two nodes may share a maximum
    return sorted(mode._replace(height=mode.height - top) for mode in apart.values())
