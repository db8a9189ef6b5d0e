"""Figure 2, left, of Ma, Chen & Fox (2015): Kullback-Leibler divergence from the exact law on two 1-D targets.

python -m experiments.recipe.figure_2_left [--quick]
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from experiments import report
from experiments.recipe.wells import FULL, KINKED, METHODS, PRINTED, QUICK, STEP, TARGETS, TIME_APART, run, truth


def main(quick: bool = False, out: Any = None) -> dict:
    settings = QUICK if quick else FULL
    draws = settings.chains * round(settings.time / TIME_APART)
    found = {(m, t): run(m, t, STEP, settings) for m in METHODS for t in TARGETS}
    floor = {t: truth(t, draws).floor.mean() for t in TARGETS}
    return report.write(
        __file__,
        "Figure 2, left",
        "KL divergence of four samplers on two one-dimensional targets",
        quick,
        draw(found, floor),
        claims(found, floor, settings),
        out,
    )


def draw(found: dict, floor: dict) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.4), sharey=True, layout="constrained")
    for axis, target in zip(axes, TARGETS, strict=True):
        for i, method in enumerate(METHODS):
            kl = found[method, target].kl
            axis.bar(i, kl.mean(), 0.7, color=report.COLOURS[method])
            axis.errorbar(i, kl.mean(), [[min(kl.std(), kl.mean() / 2)], [kl.std()]], color="black", capsize=3, lw=1)
            axis.text(i, (kl.mean() + kl.std()) * 1.25, f"{kl.mean():.1e}", ha="center", fontsize=8)
        axis.axhline(floor[target], color="black", ls=":", lw=1)
        axis.text(3.45, floor[target] * 1.12, "exact draws", ha="right", va="bottom", fontsize=8)
        axis.set(title=target, yscale="log", xticks=range(4))
        axis.set_xticklabels([m.replace(", ", ",\n") for m in METHODS], fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    low = min(floor.values())
    axes[0].set(ylabel="KL divergence from exp(−U), nats", ylim=(low / 3, max(f.kl.mean() for f in found.values()) * 4))
    return figure


def claims(found: dict, floor: dict, settings: Any) -> list[dict]:
    short = lambda f: f"{f.kl.mean():.1e} ± {f.kl.std(ddof=1):.0e}"
    pair = lambda m, g: " and ".join(g(found[m, t]) for t in TARGETS)
    right = ("SGLD", "SGHMC", "gSGRHMC")
    exact = [truth(t, 1).second for t in TARGETS]

    moments = {m: [found[m, t].second.mean() / e - 1 for t, e in zip(TARGETS, exact, strict=True)] for m in METHODS}
    off = lambda m: " and ".join(f"{100 * v:+.1f} %" for v in moments[m])
    kls = lambda law, m: " and ".join(f"{law[m, t].kl.mean():.1e}" for t in TARGETS)
    law, halved = found, ""
    if len(settings.steps) > 1:  # the law in the limit of small steps is what the claims are about
        law = {(m, t): run(m, t, settings.steps[1], settings) for m in METHODS for t in TARGETS}
        halved = (
            f" With the step halved: naive {kls(law, METHODS[2])}; "
            + "; ".join(f"{m} {kls(law, m)}" for m in right)
            + "."
        )
    kl = lambda law, m, t: law[m, t].kl.mean()
    naive_stays = all(
        kl(law, METHODS[2], t) > max(0.7 * kl(found, METHODS[2], t), *(5 * kl(law, m, t) for m in right))
        for t in TARGETS
    )
    gone = all(kl(law, m, t) < 3e-3 and kl(law, m, t) <= kl(found, m, t) for m in right for t in TARGETS)
    printed = [run(PRINTED, t, STEP, settings).lost for t in TARGETS]
    kinked = run(KINKED, "U = θ⁴ − 2θ²", STEP, settings).lost
    tau = {m: [found[m, t].tau for t in TARGETS] for m in right}
    fastest = all(tau["gSGRHMC"][i] < min(tau["SGLD"][i], tau["SGHMC"][i]) for i in range(2))
    pairs = ", ".join(f"{m} {tau[m][0]:.0f} and {tau[m][1]:.0f}" for m in right)
    return [
        report.claim(
            "The naive state-dependent SGHMC of eq. (16) does not converge to the target distribution.",
            f"KL {pair('naive, eq. (16)', short)}, against {pair('gSGRHMC', short)} for gSGRHMC and "
            f"{' and '.join(f'{f:.0e}' for f in floor.values())} for as many exact draws; E θ² off by "
            f"{off('naive, eq. (16)')} (first and second target, mean ± sd over seeds).{halved}",
            naive_stays,
            True,
            "What is left as the step goes to zero is the missing Γ: its law is not the target's at any step.",
        ),
        report.claim(
            "gSGRHMC has the correct invariant distribution, as have SGLD and SGHMC.",
            "; ".join(f"{m}: KL {pair(m, short)}, E θ² off by {off(m)}" for m in right) + ".",
            gone,
            True,
            "What remains at this step is the bias of Euler's rule, which shrinks with the step, and sampling error. "
            f"The paper gives no step size, noise or chain length: here ε = {STEP}, gradient noise of variance 1, "
            f"{settings.chains} chains of time {settings.time:.0f} per seed. On the second target U + C has zeros, at which "
            "the root of the printed metric has no derivative; it is smoothed there (δ = 0.1). Without that, "
            f"{100 * kinked:.0f} % of the chains overflow.",
        ),
        report.claim(
            "The update rule of gSGRHMC is eq. (17).",
            f"With the signs of eq. (17) as printed, {100 * printed[0]:.0f} % and {100 * printed[1]:.0f} % of the chains "
            "overflow: the term in r feeds energy in where it should take it out.",
            max(printed) < 0.5,
            False,
            "Algorithm 1 of the same paper has the right signs (friction subtracted, Γ added); all results here use it.",
        ),
        report.claim(
            "gSGRHMC efficiently explores the distributions.",
            f"Autocorrelation time of θ in gradients, at ε = {STEP} for all: {pairs}.",
            fastest,
            False,
            "Counted as holding only if gSGRHMC is fastest on both targets. The divergence after a long run, which is all the "
            "paper shows for it, does not measure speed; and equal steps favour a sampler whose metric exceeds one.",
        ),
    ]


if __name__ == "__main__":
    report.command_line(main)
