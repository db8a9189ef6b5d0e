"""Figure 4 of Liu, Zhu & Song (2016): SGGMC in batches of 10 against GMC on a mixture of two von Mises-Fisher laws.

    python -m experiments.geodesic.figure_4 [--quick]

100 points (``mixture``); L = 20, eps = 0.001 for GMC and L = 10, rho = 0.1, gamma = 5e-4 for SGGMC, 25,000 samples
after 15,000 (suppl. F.2), V the empirical Fisher information. The truth is the posterior of these points by quadrature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import fokker
from experiments import report
from experiments.geodesic.mixture import (
    CIRCLES,
    DRAWN,
    E1,
    GENERATED,
    KAPPA,
    MAIN_TEXT,
    Grid,
    Mode,
    data,
    modes,
    quadrature,
    target,
)

POINTS, MANY = 100, 2000  # to sample from; to see the modes where suppl. D derives them
BATCH = 10
GMC, SGGMC = "GMC", "SGGMC"
RUNS = {  # kernel, gradient and batch, iterations of a draw
    GMC: (fokker.gmc(1e-3, leapfrog_steps=20), {}, 1),
    SGGMC: (
        fokker.sggmc.from_learning_rate(gamma=5e-4, rho=0.1, size=POINTS),
        {"gradient": fokker.minibatch(noise="dense"), "batch_size": BATCH},
        10,
    ),
}
BINS = np.linspace(-1.1, 1.1, 89)  # of the angles, 0.025 wide; grids have nodes on their edges
UNIT = np.pi / 24
PRINTED = GENERATED, (-GENERATED[0], -GENERATED[1])  # the modes of suppl. D
LABELS = {GMC: "GMC", SGGMC: "SGGMC, batches of 10"}
SYMBOLS = {DRAWN: "$v_1$ and $\\mu$", MAIN_TEXT: "$v_1$ and $v_2$"}


class Settings(NamedTuple):
    chains: int
    draws: int  # of each chain
    burn: int  # draws before them
    per_bin: int  # intervals of the grid


FULL, QUICK = Settings(20, 25_000, 15_000, 8), Settings(12, 1_200, 200, 4)


class Found(NamedTuple):
    angles: np.ndarray  # (2, chains, draws)
    up: np.ndarray  # (chains,) share of v_2 > 0
    crossings: np.ndarray  # (chains,) changes of the sign of v_2
    stats: dict[str, float]

    @property
    def mass(self) -> tuple[float, float]:
        """Of {v_2 > 0}, with its standard error between chains."""
        return float(self.up.mean()), float(self.up.std(ddof=1) / len(self.up) ** 0.5)

    def mean(self, f: Any) -> tuple[float, float]:
        """Of f(angle 1, angle 2), with its standard error between chains."""
        each = f(*self.angles).mean(1)
        return float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5)

    @property
    def correlation(self) -> float:
        return float(np.corrcoef(*self.angles.reshape(2, -1))[0, 1])


def from_prior(key: Any) -> dict:
    """Where a chain starts."""
    first, second = jax.random.split(key)
    return {"v1": fokker.vmf.sample(first, E1, KAPPA), "v2": fokker.vmf.sample(second, E1, KAPPA)}


def run(method: str, x: np.ndarray, settings: Settings) -> Found:
    kernel, given, thin = RUNS[method]
    found = fokker.sample(
        target(x),
        kernel,
        init=from_prior,
        draws=settings.draws,
        warmup=settings.burn * thin,
        thin=thin,
        chains=settings.chains,
        seed=1,
        progress=False,
        **given,
    )
    points = (np.asarray(found.draws[name], float) for name in CIRCLES)
    angles = np.stack([np.arctan2(v[..., 1], v[..., 0]) for v in points])
    up = angles[1] > 0
    stats = {name: float(value.mean()) for name, value in found.stats.items()}
    return Found(angles, up.mean(1), (up[:, 1:] != up[:, :-1]).sum(1), stats)


def by_bins(p: np.ndarray, per_bin: int) -> np.ndarray:
    """Probabilities of bins from those of nodes, the last axis: half of an edge's to either side."""
    inner = p[..., :-1].reshape(*p.shape[:-1], -1, per_bin).sum(-1)
    return inner + (p[..., per_bin::per_bin] - p[..., :-1:per_bin]) / 2


def kl(counts: np.ndarray, exact: np.ndarray) -> float:
    """KL(histogram | exact) over the bins, nats."""
    share = counts / counts.sum()
    seen = share > 0
    return float((share[seen] * np.log(share[seen] / exact[seen])).sum())


def divergence(angles: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """KL of all chains' histogram, and what the spread between chains alone would make of it."""
    counts = np.array([np.histogram(chain, BINS)[0] for chain in angles])
    share = counts / counts.sum(1, keepdims=True)
    seen = counts.sum(0) > 0
    spread = share.var(0, ddof=1)[seen] / len(angles) / share.mean(0)[seen]
    return kl(counts.sum(0), exact), float(spread.sum() / 2)


def main(quick: bool = False, out: Any = None) -> dict:
    settings = QUICK if quick else FULL
    x = data(DRAWN, MANY)
    grid = quadrature(DRAWN, x[:POINTS], settings.per_bin * (len(BINS) - 1) + 1)
    found = {method: run(method, x[:POINTS], settings) for method in RUNS}
    many = {}
    for likelihood, y in ((DRAWN, x), (MAIN_TEXT, data(MAIN_TEXT, MANY))):
        of = quadrature(likelihood, y, 61 if quick else 241, half=0.75)
        many[likelihood] = of, modes(likelihood, y, of)
    return report.write(
        __file__,
        "Figure 4",
        "SGGMC in batches of 10 on a mixture of two von Mises-Fisher laws",
        quick,
        draw(found, grid, many),
        claims(found, grid, many, x[:POINTS]),
        out,
    )


def joint(grid: Grid, per_bin: int) -> np.ndarray:
    """Probabilities of the bins, (bins, bins)."""
    return by_bins(by_bins(grid.p, per_bin).T, per_bin).T


def draw(found: dict[str, Found], grid: Grid, many: dict[str, tuple[Grid, list[Mode]]]) -> Any:
    figure, axes = plt.subplots(2, 3, figsize=(12.4, 7.6), layout="constrained")
    ticks = np.arange(-6, 7, 3) * UNIT
    words = ["−π/4", "−π/8", "0", "π/8", "π/4"]
    limits = (-0.42, 0.42), (-0.85, 0.85)
    width, spacing = BINS[1] - BINS[0], grid.nodes[1] - grid.nodes[0]

    for i, axis in enumerate(axes[0, :2]):
        axis.plot(grid.nodes, grid.marginals[i] / spacing, color="black", lw=1.8, label="true, by quadrature")
        for method, f in found.items():
            share = np.histogram(f.angles[i], BINS)[0] / f.angles[i].size
            axis.stairs(share / width, BINS, color=report.COLOURS[method], lw=1.4, label=LABELS[method])
        axis.set(title=f"({'ab'[i]}) marginal of $v_{i + 1}$, 100 points", xlabel=f"angle of $v_{i + 1}$",
                 ylabel="density", xlim=limits[i])  # fmt: skip
        axis.set_ylim(0, 1.35 * axis.get_ylim()[1])
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="upper center", fontsize=9)

    true = joint(grid, (len(grid.nodes) - 1) // (len(BINS) - 1)) / width**2
    sampled = np.histogram2d(*(angle.ravel() for angle in found[SGGMC].angles), bins=(BINS, BINS), density=True)[0]
    centres = (BINS[:-1] + BINS[1:]) / 2
    for axis, density, title in zip(
        axes[1, :2], (true, sampled), ("(c) joint density, true", "(c) joint density, SGGMC (lines: true)"), strict=True
    ):
        image = axis.pcolormesh(BINS, BINS, density.T, cmap="viridis", vmin=0, vmax=true.max(), rasterized=True)
        axis.contour(centres, centres, true.T, true.max() * np.array([0.1, 0.5]), colors="white", linewidths=0.7)
        axis.set_title(title)
    figure.colorbar(image, ax=axes[1, 1], label="density")

    for axis, (likelihood, (of, found_modes)) in zip(axes[:, 2], many.items(), strict=True):
        axis.contourf(of.nodes, of.nodes, of.log_p.T, np.arange(-30.0, 0.1, 3.0), cmap="Greys", extend="neither")
        axis.plot(*np.transpose([m[:2] for m in found_modes]), "o", mfc="none", mec=report.COLOURS["SGGMC"], mew=1.6,
                  ms=10, label="its modes")  # fmt: skip
        axis.plot(*np.transpose(PRINTED), "+", color=report.COLOURS["GMC"], mew=2, ms=10, label="modes of suppl. D")
        axis.set_title(f"({'de'[likelihood == MAIN_TEXT]}) 2000 points around {SYMBOLS[likelihood]}")
        axis.legend(frameon=False, loc="upper right", fontsize=9)
    for axis in (*axes[1], axes[0, 2]):
        axis.set(xlabel="angle of $v_1$", ylabel="angle of $v_2$", ylim=limits[1])
        axis.set_xlim(limits[1 if axis in axes[:, 2] else 0])
        axis.set_yticks(ticks, words)
    for axis in axes.flat:
        low, high = axis.get_xlim()
        shown = [(t, w) for t, w in zip(ticks, words, strict=True) if low <= t <= high]
        axis.set_xticks(*zip(*shown, strict=True))
    return figure


def mass_above(grid: Grid) -> float:
    """Of {v_2 > 0}; a node on its edge counts half."""
    return grid.mean(lambda a, b: np.heaviside(b, 0.5))


def correlation(grid: Grid) -> float:
    """Of the two angles."""
    first, second = grid.mean(lambda a, b: a), grid.mean(lambda a, b: b)
    moment = lambda f: grid.mean(lambda a, b: f(a - first, b - second))
    return moment(lambda a, b: a * b) / (moment(lambda a, b: a**2) * moment(lambda a, b: b**2)) ** 0.5


def claims(found: dict[str, Found], grid: Grid, many: dict[str, tuple[Grid, list[Mode]]], x: np.ndarray) -> list[dict]:
    true_mass = mass_above(grid)
    true_correlation = correlation(grid)
    rng = np.random.default_rng(0)
    exact = [by_bins(p, (len(grid.nodes) - 1) // (len(BINS) - 1)) for p in grid.marginals]
    of_marginals = {m: [divergence(f.angles[i], exact[i]) for i in range(2)] for m, f in found.items()}
    total = found[SGGMC].angles[0].size
    floor = [np.mean([kl(rng.multinomial(total, p / p.sum()), p) for _ in range(16)]) for p in exact]
    pair = lambda values: " and ".join(f"{v:.1e}" for v in values)
    kls = lambda m: (
        f"{pair(v for v, _ in of_marginals[m])} (the spread between chains explains "
        + (f"{pair(v for _, v in of_marginals[m])})")
    )
    mass = {m: found[m].mass for m in found}
    both = lambda m: f"{mass[m][0]:.3f} ± {mass[m][1]:.3f}"
    gap, error = mass[SGGMC][0] - true_mass, mass[SGGMC][1]
    half = quadrature(DRAWN, x, (len(grid.nodes) + 1) // 2)
    same = abs(mass_above(half) - true_mass) < 1e-3 and abs(correlation(half) - true_correlation) < 1e-9
    chains = len(found[SGGMC].up)
    checks = {
        f"{chains} chains, each with a seed and a start of its own from the prior": chains >= 8,
        "the posterior by quadrature vanishes on the edge": grid.lost < 1e-12,
        "half as many nodes give the same mass and correlation": same,
        "the standard error tells the mass from a mode that was missed": 4 * error < true_mass,
    }
    of = lambda f: ", ".join(f"({m.v1 / UNIT:.2f}, {m.v2 / UNIT:.2f})" for m in many[f][1])
    heights = [m.height for m in many[DRAWN][1]]
    near = lambda f: (
        len(many[f][1]) == 2
        and all(np.hypot(m.v1 - p[0], m.v2 - p[1]) < UNIT / 2 for m, p in zip(many[f][1], PRINTED, strict=True))
    )
    on_grid = {"the posterior of the 2000 points vanishes on the edge": all(g.lost < 1e-12 for g, _ in many.values())}
    return [
        report.claim(
            "Samples from SGGMC exhibit no observable corruption when a mini-batch is used.",
            f"KL of the marginals of v₁ and v₂ from the posterior by quadrature, {chains} chains together, bins of "
            f"{BINS[1] - BINS[0]:.3f}: SGGMC {kls(SGGMC)}, GMC {kls(GMC)}; as many exact draws {pair(floor)}.",
            all(value < 2e-3 + 3 * spread for value, spread in of_marginals[SGGMC]),
            checks,
            "Counted as holding if both are below 0.002 nats and three times what the spread between chains explains. "
            f"The gradient brings {found[SGGMC].stats['noise_share']:.0%} of the noise that is needed, at most over "
            f"directions; E|v|²/2 is {found[SGGMC].stats['kinetic']:.3f} where the law of the method has 1. Batches "
            "are drawn afresh at each of the ten inner steps: see Figure 3.",
        ),
        report.claim(
            "SGGMC fully explores the two modes.",
            f"Mass of {{v₂ > 0}}: SGGMC {both(SGGMC)}, GMC {both(GMC)}, exact {true_mass:.4f}. "
            f"The median chain goes from one to the other {np.median(found[SGGMC].crossings):.0f} times in "
            f"{found[SGGMC].angles.shape[2]:,} samples, GMC's {np.median(found[GMC].crossings):.0f} times.",
            abs(gap) < 4 * error and bool((found[SGGMC].crossings > 0).all()),
            checks,
            "± is the standard error between chains.",
        ),
        report.claim(
            "It fully explores the strong correlation of v₁ and v₂.",
            f"Correlation of the angles: SGGMC {found[SGGMC].correlation:.3f}, GMC {found[GMC].correlation:.3f}, exact "
            f"{true_correlation:.3f}.",
            abs(found[SGGMC].correlation - true_correlation) < 0.02,
            checks,
            "The ridge from mode to mode passes where v₁, v₂ and μ are one point.",
        ),
        report.claim(
            "The posterior has two equal-weighted modes around (−π/24, π/8) and (π/24, −π/8) (supplement D).",
            f"2000 points from vMF(v₁) + vMF(μ), the likelihood of the supplement: modes at {of(DRAWN)} in units of "
            f"π/24, heights {abs(heights[0] - heights[-1]):.3f} nats apart.",
            near(DRAWN) and abs(heights[0] - heights[-1]) < 0.5,
            on_grid,
            "The argument of supplement D is for many points. Those of the 100 points that are sampled here are at "
            + ", ".join(f"({m.v1 / UNIT:.2f}, {m.v2 / UNIT:.2f})" for m in modes(DRAWN, x, grid))
            + ".",
        ),
        report.claim(
            "The likelihood is vMF(v₁) + vMF(v₂) (main text).",
            f"2000 points from it: modes at {of(MAIN_TEXT)} in units of π/24, which are each other with the labels "
            "exchanged.",
            near(MAIN_TEXT),
            on_grid,
            "So the paper's figure is of the supplement's likelihood, with which everything else here is done. The "
            "main text defines μ too, and never uses it; nor does it define the mean e₂ of its prior, which has to be "
            "e₁ for the two modes to weigh the same.",
        ),
    ]


if __name__ == "__main__":
    report.command_line(main)
