"""out/table.png: the errors of the standard deviation in twenty dimensions, a line per sampler."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

RECORD = Path(__file__).resolve().parent / "out" / "table.json"
LOOK = {
    "exact": ("o", "#000000", "exact gradient"),
    "noise": ("s", "#D55E00", "noisy gradient"),
    "told": ("^", "#0072B2", "noisy, noise told"),
}
LINEAR = 0.01  # of the axis: linear within 1 %, logarithmic beyond


def draw(rows: list[dict]) -> plt.Figure:
    figure, axis = plt.subplots(figsize=(8.2, 0.24 * len(rows) + 1.4), layout="constrained")
    for i, row in enumerate(rows):
        for mode, (marker, colour, _) in LOOK.items():
            found = row["modes"][mode]
            if found is None:
                continue
            if found.get("diverges"):
                axis.text(
                    0.995,
                    i,
                    "diverges",
                    color=colour,
                    fontsize=7,
                    ha="right",
                    va="center",
                    transform=axis.get_yaxis_transform(),
                )
                continue
            axis.errorbar(
                found["sd"], i, xerr=2 * found["sd_error"], fmt=marker, color=colour, ms=4.5, lw=1, mfc="none"
            )
    for i in range(1, len(rows)):
        if rows[i]["library"] != rows[i - 1]["library"]:
            axis.axhline(i - 0.5, color="0.6", lw=0.8)
    axis.axvline(0, color="0.6", lw=0.8)
    axis.set_xscale("symlog", linthresh=LINEAR)
    ticks = [-0.1, -0.01, 0, 0.01, 0.1, 1]
    axis.set_xticks(ticks, [f"{100 * t:+g} %" if t else "0" for t in ticks])
    axis.set_yticks(range(len(rows)), [f"{row['library']}  {row['sampler']}" for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
    axis.set_xlabel("relative error of the standard deviation, worst of 20 coordinates")
    for marker, colour, label in LOOK.values():
        axis.plot([], [], marker, color=colour, mfc="none", label=label)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    rows = [row for row in json.loads(RECORD.read_text(encoding="utf-8"))["rows"] if row["d"] == 20]
    draw(rows).savefig(RECORD.with_suffix(".png"), dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
