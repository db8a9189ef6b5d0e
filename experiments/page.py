"""docs/experiments.md, from the results on record in experiments/*/out."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from experiments.report import ROOT

PAGE = ROOT / "docs" / "experiments.md"
HEADINGS = {  # of folders; those that are not named come last
    "recipe": "A complete recipe for stochastic gradient MCMC (Ma, Chen and Fox 2015)",
    "geodesic": "Stochastic gradient geodesic MCMC methods (Liu, Zhu and Song 2016)",
    "audit": "The audit of a run",
}
ORDER = ("Figure 1", "Figure 2, left", "Figure S.5", "Figure 2, right", "Figure S.4")  # of each; the rest by name

HEAD = """\
# The papers' figures, run again

Each figure stands beside what the paper says about it. *Holds*: the claim agrees with what was measured. *Sound*: the
measurement is able to tell; the checks that it passed are listed. A claim that does not hold is a finding and shown
like any other; one that is not sound is a defect of the experiment.

`make experiments` runs everything, which takes well over half an hour on one core, and rewrites this page;
`make experiments QUICK=1` is a small version that keeps nothing.
"""


def results() -> list[Path]:
    """The JSON files of claims on record, in the order of the page."""
    rank = lambda name, order: order.index(name) if name in order else len(order)
    keyed = []
    for path in ROOT.glob("experiments/*/out/*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "claims" in found:
            folder, figure = folder_of(path), found["figure"]
            keyed.append((rank(folder, [*HEADINGS]), folder, rank(figure, ORDER), figure, path))
    return [path for *_, path in sorted(keyed)]


def folder_of(path: Path) -> str:
    return path.parent.parent.name


def text() -> str:
    """The page."""
    parts = [HEAD]
    for folder, paths in groupby(results(), folder_of):
        parts += [f"## {HEADINGS.get(folder, folder)}\n", *map(section, paths)]
    return "\n".join(parts)


def section(path: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    folder = folder_of(path)
    lines = [
        f"### {found['figure']}: {found['title']}",
        "",
        f"![{found['title']}](../experiments/{folder}/out/{found['image']})",
        "",
        f"`python -m experiments.{folder}.{path.stem}`",
        "",
        "| the paper's claim | measured | holds | sound |",
        "|---|---|---|---|",
    ]
    for c in found["claims"]:
        cells = [c["claim"], c["measured"], "yes" if c["holds"] else "**no**", "yes" if c["sound"] else "**no**"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    for i, c in enumerate(found["claims"], 1):
        told = "; ".join(name + ("" if passed else " (FAILED)") for name, passed in c["checks"].items())
        lines += [f"{i}. {c['note']} *Checked: {told}.*"]
    return "\n".join(lines) + "\n"


def write() -> None:
    PAGE.write_text(text(), encoding="utf-8")
