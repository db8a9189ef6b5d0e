"""Figure S.5 of Ma, Chen & Fox (2015): the laws themselves, for the two targets and four samplers of Figure 2, left.

python -m experiments.recipe.figure_s5 [--quick]
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments import report
from experiments.recipe.synthetic import density
from experiments.recipe.wells import EDGES, FULL, METHODS, QUICK, STEP, TARGETS, run, soundness, truth

MIDDLES, WIDTH = (EDGES[1:] + EDGES[:-1]) / 2, EDGES[1] - EDGES[0]
MARKS = {"SGLD": "o", "SGHMC": "s", "naive, eq. (16)": "X", "gSGRHMC": "^"}


def main(quick: bool = False, out: Any = None) -> dict:
    settings = QUICK if quick else FULL
    found = {(m, t): run(m, t, STEP, settings) for m in METHODS for t in TARGETS}
    worst = {key: np.abs(f.probability - truth(key[1], 1).probability).sum() / 2 for key, f in found.items()}
    right = [m for m in METHODS if "naive" not in m]
    say = lambda m: f"{m} " + " and ".join(f"{100 * worst[m, t]:.1f} %" for t in TARGETS)
    claim = report.claim(
        "Figure S.5 indicates the incorrectness of the naive state-dependent SGHMC.",
        "Total variation between histogram and exact law, first and second target: "
        + "; ".join(map(say, METHODS))
        + ".",
        all(worst[METHODS[2], t] > 2 * max(worst[m, t] for m in right) for t in TARGETS),
        soundness(found, settings),
        "The naive rule piles draws up where the metric is small, near the modes, and thins out the tails.",
    )
    title = "Histograms of four samplers against the exact density"
    return report.write(__file__, "Figure S.5", title, quick, draw(found), [claim], out)


def draw(found: dict) -> Any:
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 5.2), layout="constrained", sharex="col", height_ratios=(2, 1))
    x = np.linspace(-4, 4, 801)
    for column, (target, potential) in enumerate(TARGETS.items()):
        above, below = axes[:, column]
        exact = truth(target, 1).probability / WIDTH
        above.plot(x, density(potential, x), color=report.COLOURS["exact"], lw=1.2, label="exact")
        for method in METHODS:
            p = found[method, target].probability / WIDTH
            look = dict(color=report.COLOURS[method], marker=MARKS[method], ms=3.5)
            above.plot(MIDDLES, p, ls="", label=method, **look)
            below.plot(MIDDLES, p - exact, lw=0.8, **look)
        below.axhline(0, color="black", lw=0.8)
        reach = 3.2 if column == 0 else 2.2
        above.set(title=target, xlim=(-reach, reach), ylim=(0, None))
        below.set(xlabel="θ")
        for axis in (above, below):
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("density")
    axes[1, 0].set_ylabel("density − exact")
    axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


if __name__ == "__main__":
    report.command_line(main)
