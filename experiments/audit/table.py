"""Thirty runs with known truth, each audited: does the audit tell right from broken?

    python -m experiments.audit.table [--quick]

The right runs are made again with further seeds, for the rate of false alarms. Writes out/table.json, its picture, and
the table of docs/audit.md between its markers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments import report
from experiments.audit.runs import BROKEN, RIGHT, Case, error_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
BEGIN, END = "<!-- table: written by experiments/audit/table.py -->", "<!-- end of table -->"
QUICK = (RIGHT[4], BROKEN[5], BROKEN[7], BROKEN[18])
FURTHER_SEEDS = (2, 3)
SD_RIGHT, MEAN_RIGHT = 0.10, 0.15  # the largest errors of a right run's draws, Monte Carlo error included
SD_BROKEN, MEAN_BROKEN = 0.15, 0.30  # a broken run has one of these at least
COLOURS = {"green": "#009E73", "amber": "#E69F00", "red": "#D55E00"}


def row(case: Case, seed: int) -> dict[str, Any]:
    """What is true of one run, and what its audit says."""
    run = case.run(seed)
    audit = run.audit()
    sd, mean = error_of(run, case.posterior())
    deciding = [f.name for f in audit.findings if f.verdict == ("fail" if audit.verdict == "red" else "warn")]
    unknown = [f"{f.name} (not measured)" for f in audit.findings if f.verdict == "not measured"]
    found = {
        "case": case.name, "wrong": case.wrong, "seed": seed, "sd_error": round(sd, 4), "mean_error": round(mean, 4),
        "colour": audit.verdict, "findings": deciding + (unknown if audit.verdict == "amber" else []),
        "seconds": round(audit.seconds, 1),
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    return found


def main(quick: bool = False, out: Any = None) -> dict:
    cases = QUICK if quick else RIGHT + BROKEN
    rows = [row(case, 1) for case in cases]
    again = [] if quick else [row(case, seed) for seed in FURTHER_SEEDS for case in RIGHT]
    title = "The audit on thirty runs with known truth"
    found = report.write(__file__, "The audit's table", title, quick, picture(rows), claims(rows, again), out)
    if not quick:
        file = Path(out or Path(__file__).parent / "out") / "table.json"
        file.write_text(json.dumps({**found, "rows": rows, "again": again}, indent=1) + "\n", encoding="utf-8")
        write_page(rows, again)
    return found


def claims(rows: list[dict], again: list[dict]) -> list[dict]:
    right, broken = [r for r in rows if not r["wrong"]], [r for r in rows if r["wrong"]]
    truly = {
        f"the right runs are right: sds within {SD_RIGHT:.0%}, means within {MEAN_RIGHT} sd": all(
            abs(r["sd_error"]) < SD_RIGHT and abs(r["mean_error"]) < MEAN_RIGHT for r in right + again
        ),
        f"the broken runs are broken: an sd off by {SD_BROKEN:.0%} or a mean by {MEAN_BROKEN} sd": all(
            abs(r["sd_error"]) > SD_BROKEN or abs(r["mean_error"]) > MEAN_BROKEN for r in broken
        ),
    }
    green = sum(r["colour"] == "green" for r in broken)
    red = sum(r["colour"] == "red" for r in right)
    found = [
        report.claim("No broken run is green.", f"{green} of {len(broken)} are green.", green == 0, truly),
        report.claim("At most one right run is red.", f"{red} of {len(right)} are red.", red <= 1, truly),
    ]
    if again:
        share = np.mean([r["colour"] == "green" for r in again])
        measured = f"{_counts(again)} of {len(again)} runs with seeds that no limit was chosen by."
        found.append(report.claim("Most right runs are green with other seeds.", measured, share >= 0.8, truly))
    return found


def _counts(rows: list[dict]) -> str:
    return ", ".join(f"{sum(r['colour'] == c for r in rows)} {c}" for c in COLOURS)


def picture(rows: list[dict]) -> Any:
    """The true error of every run beside the colour that it got."""
    figure, axes = plt.subplots(figsize=(7, 0.24 * len(rows) + 1.2), layout="constrained")
    worst = [max(abs(r["sd_error"]), abs(r["mean_error"])) for r in rows]
    axes.barh(range(len(rows)), np.clip(worst, 1e-3, 3), color=[COLOURS[r["colour"]] for r in rows])
    axes.set_yticks(range(len(rows)), [f"{r['wrong'] or 'right'}: {r['case']}" for r in rows], fontsize=7)
    axes.set(xscale="log", xlabel="largest true error of an sd (relative) or a mean (in sd), cut at 3")
    axes.invert_yaxis()
    axes.axvline(0.1, color="black", linewidth=0.8, linestyle=":")
    return figure


def table(rows: list[dict], again: list[dict]) -> str:
    """Markdown: a line for each run."""
    lines = ["| run | wrong | sd off by | mean off by | colour | decided by | s |", "|---|---|--:|--:|---|---|--:|"]
    for r in rows:
        cells = (
            r["case"], r["wrong"] or "nothing", f"{r['sd_error']:+.1%}", f"{r['mean_error']:+.2f} sd", r["colour"],
            ", ".join(r["findings"]), f"{r['seconds']:.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    others = [
        f"{r['case']} (an sd truly off by {r['sd_error']:+.1%}; {', '.join(r['findings'])})"
        for r in again
        if r["colour"] != "green"
    ]
    if not again:
        return "\n".join(lines)
    seeds = " and ".join(map(str, FURTHER_SEEDS))
    lines += ["", f"The right runs again with seeds {seeds}: {_counts(again)}."]
    lines += [f"Not green: {'; '.join(others)}."] if others else []
    return "\n".join(lines)


def write_page(rows: list[dict], again: list[dict], begin: str = BEGIN, end: str = END) -> None:
    """Put the table into docs/audit.md, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    tail = rest.split(end, 1)[1]
    PAGE.write_text(f"{head}{begin}\n\n{table(rows, again)}\n\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    report.command_line(main)
