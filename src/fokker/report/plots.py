"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fokker.errors import InputError
from fokker.sgmcmc.checks import check_count

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#444444")  # Okabe & Ito
PATH_POINTS = 2000  # of a chain's path; more cannot be seen


def plot_trace(run: Any, names: Sequence[str] | None = None, entries: int = 6) -> Any:
    """A matplotlib Figure: density and path of the first ``entries`` entries, a row each, a colour a chain."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "pictures need matplotlib, which is not installed; try: pip install 'fokker[plot]'."
        ) from error
    check_count("entries", entries, 1)
    shown = run.entries(names)[:entries]
    figure = Figure(figsize=(10, 1.1 + 1.5 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 2))
    for (density, path), (label, values) in zip(axes, shown, strict=True):
        for chain, x in enumerate(values):
            colour = COLOURS[chain % len(COLOURS)]
            grid, height = smooth_density(x)
            density.plot(grid, height, color=colour, lw=1.2, label=f"chain {chain}")
            step = max(1, len(x) // PATH_POINTS)
            path.plot(np.arange(len(x))[::step], x[::step], color=colour, lw=0.5, alpha=0.8)
        density.set(yticks=[], title=label)
        density.set_ylim(bottom=0)
        path.set_xlim(0, max(1, values.shape[1] - 1))
        for axis in (density, path):
            axis.spines[["top", "right"]].set_visible(False)
    axes[-1][1].set_xlabel("draw")
    axes[0][0].legend(fontsize=7, frameon=False)
    return figure


def smooth_density(x: np.ndarray, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian kernel density of draws by binning and convolution: grid and heights, (points,) each."""
    spread = min(x.std(), (np.quantile(x, 0.75) - np.quantile(x, 0.25)) / 1.34) or x.std() or max(abs(x[0]), 1.0) * 1e-3
    width = 0.9 * spread * len(x) ** -0.2
    grid = np.linspace(x.min() - 3 * width, x.max() + 3 * width, points)
    spacing = grid[1] - grid[0]
    counts = np.histogram(x, bins=points, range=(grid[0] - spacing / 2, grid[-1] + spacing / 2))[0]
    reach = np.arange(-points + 1, points) * spacing / width
    kernel = np.exp(-0.5 * reach**2)
    height = np.convolve(counts, kernel, mode="same" if len(kernel) < points else "full")[points - 1 : 2 * points - 1]
    return grid, height / (height.sum() * spacing)
