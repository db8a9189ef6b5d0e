"""Figure 3 of Liu, Zhu & Song (2016): SGGMC on the circle, with a gradient that carries noise of a known variance.

    python -m experiments.geodesic.figure_3 [--quick]

U(x) = -log(exp(5 mu_1.x) + 2 exp(5 mu_2.x)), mu_1 at the angle pi/3 and mu_2 opposite (Sec. 5.1); L = 30, eps = 0.01,
C = rho / eps = 10, bins of 0.1 (suppl. F.1). Noise Normal(0, 1000 I) is added to the gradient; GMC sees it without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import i0

import fokker
from experiments import report
from experiments.recipe.synthetic import noisy_gradient

MU_1 = np.array([np.cos(np.pi / 3), np.sin(np.pi / 3)])
STEP, FRICTION, INNER, V = 0.01, 10.0, 30, 1000.0
DRAWS = 10_000  # by each chain, as in the paper
EDGES = np.append(np.arange(-np.pi, np.pi, 0.1), np.pi)  # 63 bins, the last a little narrower
TARGET = fokker.Target.from_log_density(
    lambda x: jnp.logaddexp(5 * x @ MU_1, jnp.log(2.0) - 5 * x @ MU_1), space=fokker.Sphere(2)
)
LIGHT = "#F5C9A9"  # of SGGMC's colour
GMC, SGGMC, UNTOLD, KEPT = "GMC", "SGGMC", "SGGMC, V̂ = 0", "SGGMC, one noise for 30 steps"
RUNS = {  # kernel, gradient, iterations of a draw
    GMC: (fokker.gmc(STEP, leapfrog_steps=INNER), None, 1),
    SGGMC: (fokker.sggmc(STEP, FRICTION), noisy_gradient(V), INNER),
    UNTOLD: (fokker.sggmc(STEP, FRICTION), noisy_gradient(V, told=False), INNER),
    KEPT: (fokker.sggmc(STEP, FRICTION, steps_per_batch=INNER), noisy_gradient(V), 1),
}


CHAINS_FULL, CHAINS_QUICK = 256, 8


class Found(NamedTuple):
    angle: np.ndarray  # (chains, draws)
    kl: np.ndarray  # (chains,) KL of each chain's histogram from the exact law
    pooled: float  # of all chains' histogram
    shape: float  # of all chains' histograms within the half circles, weighted by their exact shares
    share: np.ndarray  # (chains,) of draws on the half circle around mu_1
    crossings: np.ndarray  # (chains,) moves from one half circle to the other
    heat: float  # mean of |v|^2, 1 for the law of the method; not kept by GMC


def density(angle: np.ndarray) -> np.ndarray:
    """By the angle; its integral is in closed form."""
    along = 5 * np.cos(angle - np.pi / 3)
    return (np.exp(along) + 2 * np.exp(-along)) / (6 * np.pi * i0(5))


def integral(low: Any, high: Any, nodes: int = 20) -> np.ndarray:
    """Of the density over intervals, by Gauss's rule; low, high: (...) -> (...)."""
    u, weight = np.polynomial.legendre.leggauss(nodes)
    low, high = np.asarray(low)[..., None], np.asarray(high)[..., None]
    return (density((low + high) / 2 + (high - low) / 2 * u) * weight * (high - low) / 2).sum(-1)


EXACT = integral(EDGES[:-1], EDGES[1:])
HALF = float(integral(np.pi / 3 - np.pi / 2, np.pi / 3 + np.pi / 2, 60))
FIRST = np.cos((EDGES[:-1] + EDGES[1:]) / 2 - np.pi / 3) > 0  # bins around mu_1


def kl(counts: np.ndarray, exact: np.ndarray = EXACT) -> float:
    """KL(histogram | exact) over the bins, nats."""
    share, exact = counts / counts.sum(), exact / exact.sum()
    seen = share > 0
    return float((share[seen] * np.log(share[seen] / exact[seen])).sum())


def kl_of_shape(counts: np.ndarray) -> float:
    """The same within each half circle, so that the shares of the two modes, which mix slowly, do not count."""
    return sum(EXACT[half].sum() * kl(counts[half], EXACT[half]) for half in (FIRST, ~FIRST))


def exact_counts(draws: int, repeats: int = 32) -> np.ndarray:
    """Histograms of as many independent exact draws, (repeats, bins)."""
    return np.random.default_rng(0).multinomial(draws, EXACT / EXACT.sum(), repeats)


def run(method: str, chains: int) -> Found:
    kernel, gradient, thin = RUNS[method]
    given = {} if gradient is None else {"gradient": gradient}
    found = fokker.sample(
        TARGET,
        kernel,
        init=lambda key: fokker.random_params(TARGET.space, key),
        draws=DRAWS,
        warmup=200 * thin,
        thin=thin,
        chains=chains,
        seed=3,
        progress=False,
        **given,
    )
    x = np.asarray(found.draws["theta"], float)
    angle = np.arctan2(x[..., 1], x[..., 0])
    counts = np.array([np.histogram(chain, EDGES)[0] for chain in angle])
    first = x @ MU_1 > 0
    kinetic = found.stats.get("kinetic")
    return Found(
        angle,
        np.array([kl(c) for c in counts]),
        kl(counts.sum(0)),
        kl_of_shape(counts.sum(0)),
        first.mean(1),
        (first[:, 1:] != first[:, :-1]).sum(1),
        np.nan if kinetic is None else float(kinetic.mean()),
    )


def main(quick: bool = False, out: Any = None) -> dict:
    found = {method: run(method, CHAINS_QUICK if quick else CHAINS_FULL) for method in RUNS}
    return report.write(
        __file__,
        "Figure 3",
        "SGGMC on the circle, with gradient noise of a known variance",
        quick,
        draw(found),
        claims(found),
        out,
    )


def draw(found: dict[str, Found]) -> Any:
    """The first chain of each method, as it came."""
    figure = plt.figure(figsize=(11.0, 4.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
    colour = report.COLOURS["SGGMC"]
    width = np.diff(EDGES)
    heights = {m: np.histogram(f.angle[0], EDGES)[0] / DRAWS / width for m, f in found.items()}

    scale = 0.9  # of the density, outwards from the unit circle
    turn = np.linspace(-np.pi, np.pi, 721)
    at = lambda angle, radius: (radius * np.cos(angle), radius * np.sin(angle))
    for low, high, height in zip(EDGES[:-1], EDGES[1:], heights[SGGMC], strict=True):
        arc = np.linspace(low, high, 5)
        inner, outer = at(arc, 1.0), at(arc[::-1], 1 + scale * height)
        left.fill(*np.hstack([inner, outer]), color=LIGHT, lw=0.5)
    left.fill([], [], color=LIGHT, label="10,000 samples of SGGMC, bins of 0.1")
    left.plot(*at(turn, 1 + scale * density(turn)), color="black", lw=1.3, label="true density, outwards")
    left.plot(*at(turn, 1.0), color="grey", lw=0.8)
    few = at(found[SGGMC].angle[0, :: DRAWS // 100], 1.0)
    left.plot(*few, "o", color=colour, mec="white", mew=0.4, ms=4, alpha=0.8, label="100 of them")
    for i, angle in ((1, np.pi / 3), (2, np.pi / 3 - np.pi)):
        left.annotate("", at(angle, 0.95), (0, 0), arrowprops={"arrowstyle": "->", "lw": 1})
        left.annotate(f"$\\mu_{i}$", at(angle, 0.5), (6, -4), textcoords="offset points")
    left.set(title="(a) in the plane that holds the circle", aspect="equal", xlim=(-1.5, 1.5), ylim=(-2.05, 1.35),
             xlabel="$x_1$", ylabel="$x_2$", xticks=(-1, 0, 1), yticks=(-1, 0, 1))  # fmt: skip
    left.legend(frameon=False, loc="lower center", fontsize=8)

    right.plot(turn, density(turn), color="black", lw=1.8, label="true density")
    styles = {
        GMC: {"color": report.COLOURS["GMC"], "lw": 1.4, "ls": "-"},
        SGGMC: {"color": colour, "lw": 1.4, "ls": "-"},
        KEPT: {"color": "#CC79A7", "lw": 1.4, "ls": "--"},
    }
    names = {GMC: "GMC, exact gradient", SGGMC: "SGGMC, fresh noise at each step", KEPT: KEPT}
    for method, style in styles.items():
        label = f"{names[method]}: KL {kl(np.histogram(found[method].angle[0], EDGES)[0]):.2g}"
        right.stairs(heights[method], EDGES, baseline=None, label=label, **style)
    right.plot([], [], " ", label=f"as many exact draws: KL {kl_floor():.2g}")
    right.set(title="(b) in angle space, 10,000 samples each", xlabel="angle from $+x_1$", ylabel="density")
    right.set(xlim=(-np.pi, np.pi), xticks=np.linspace(-np.pi, np.pi, 7))
    right.set_xticklabels(["−π", "−2π/3", "−π/3", "0", "π/3", "2π/3", "π"])
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, loc="upper right", fontsize=9)
    right.set_ylim(0, 1.35 * max(heights[m].max() for m in styles))
    return figure


def kl_floor() -> float:
    return float(np.mean([kl(counts) for counts in exact_counts(DRAWS)]))


def claims(found: dict[str, Found]) -> list[dict]:
    chains = len(found[SGGMC].kl)
    all_exact = exact_counts(chains * DRAWS)
    floor, pooled_floor = kl_floor(), np.mean([kl(c) for c in all_exact])
    shape_floor = np.mean([kl_of_shape(c) for c in all_exact])
    error = {m: f.share.std(ddof=1) / chains**0.5 for m, f in found.items()}
    short = lambda m: f"{found[m].kl.mean():.2g} ± {found[m].kl.std(ddof=1):.1g}"
    share = lambda m: f"{found[m].share.mean():.3f} ± {error[m]:.3f}"
    told, untold, kept = found[SGGMC], found[UNTOLD], found[KEPT]
    distinct = len(np.unique(told.angle[:, -9:], axis=0)) == chains >= 8
    right_share = abs(told.share.mean() - HALF) < 4 * error[SGGMC]
    checks = {
        f"{chains} chains, each with a seed and a random start of its own": distinct,
        "the density integrates to 1 by quadrature against its closed form": abs(EXACT.sum() - 1) < 1e-12,
        "exact draws have the KL that theory gives, 62 / 2n": abs(floor / (62 / 2 / DRAWS) - 1) < 0.15,
        "chains go from mode to mode, ten times and more": all(np.median(f.crossings) >= 10 for f in found.values()),
        "the share of a mode is known to 0.05": max(error.values()) < 0.05,
    }
    return [
        report.claim(
            "We see no obvious corruption of the result when using stochastic gradient.",
            f"KL from the true density, 10,000 samples and 63 bins: SGGMC {short(SGGMC)}, GMC with the exact gradient "
            f"{short(GMC)}, as many exact draws {floor:.2g} (mean ± sd over {chains} chains). All chains together: "
            f"SGGMC {told.pooled:.1e}, GMC {found[GMC].pooled:.1e}, exact draws {pooled_floor:.1e}; within the half "
            f"circles around the modes {told.shape:.1e}, {found[GMC].shape:.1e} and {shape_floor:.1e}. Share of the "
            f"half circle around μ₁: {share(SGGMC)}, {share(GMC)}, exact {HALF:.4f}. E|v|² {told.heat:.3f}.",
            right_share and told.shape < shape_floor + 2e-3 and abs(told.heat - 1) < 0.02,
            checks,
            "Counted as holding if the shape of both modes is right to 0.002 nats and the share of each within four "
            "standard errors. Most of the KL of one chain of either method is the share of the modes: SGGMC goes "
            f"between them {np.median(told.crossings):.0f} times in 10,000 samples, GMC "
            f"{np.median(found[GMC].crossings):.0f} times.",
        ),
        report.claim(
            "The variance of the noise is used as V(x) in eq. (8).",
            f"It has to be: with V̂ = 0 KL {short(UNTOLD)}, {untold.shape:.2g} within the half circles, and E|v|² "
            f"{untold.heat:.3f} where theory says 1 + εV/2C = 1.5.",
            untold.shape > 10 * told.shape and abs(untold.heat - 1.5) < 0.03,
            checks,
            "εV = 10 against 2C = 20: half of the noise that the method needs comes with the gradient.",
        ),
        report.claim(
            "Algorithm 1 draws one subset, thus one noise of the gradient, for the L = 30 inner steps.",
            f"KL {short(KEPT)} and E|v|² {kept.heat:.1f}, against {short(SGGMC)} and {told.heat:.3f} with fresh noise "
            "at every inner step.",
            kept.shape < shape_floor + 2e-3,
            checks,
            "A noise that stands still for L steps is a force: the temperature of what moves slowly becomes "
            "1 + (L − 1)εV/2C = 15.5. The paper's Figure 3 can only come from fresh noise, which is what "
            "`fokker.sggmc` takes; `steps_per_batch=30` is the printed algorithm.",
        ),
    ]


if __name__ == "__main__":
    report.command_line(main)
