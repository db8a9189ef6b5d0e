"""docs/experiments.md, from the results on record in experiments/*/out."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.report import ROOT

PAGE = ROOT / "docs" / "experiments.md"
ORDER = ("Figure 1", "Figure 2, left", "Figure S.5", "Figure 2, right", "Figure S.4")  # the rest by name

HEAD = """\
# The papers' figures, run again

Each figure stands beside what the paper says about it. *Holds*: the claim agrees with what was measured. *Sound*: the
measurement is able to tell; the checks that it passed are listed. A claim that does not hold is a finding and shown
like any other; one that is not sound is a defect of the experiment.

`make experiments` runs everything in about seven minutes on one core and rewrites this page; `make experiments QUICK=1`
is a small version that keeps nothing.
"""


def results() -> list[Path]:
    """The JSON files of claims on record, in the order of the page."""
    rank = lambda f: ORDER.index(f) if f in ORDER else len(ORDER)
    keyed = []
    for path in sorted(ROOT.glob("experiments/*/out/*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "claims" in found:
            keyed.append((rank(found["figure"]), found["figure"], path))
    return [path for _, _, path in sorted(keyed)]


def text() -> str:
    """The page."""
    return "\n".join([HEAD, *map(section, results())])


def section(path: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    folder = path.parent.parent.name
    lines = [
        f"## {found['figure']}: {found['title']}",
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
