"""Fourteen runs on manifolds with known truth, each audited: the table of ``table`` for spheres, simplexes and frames.

    python -m experiments.audit.table_on_manifolds [--quick]

Writes out/table_on_manifolds.json, its picture, and the second table of docs/audit.md between its markers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments import report
from experiments.audit.runs_on_manifolds import BROKEN, RIGHT
from experiments.audit.table import FURTHER_SEEDS, claims, picture, row, write_page

BEGIN = "<!-- table on manifolds: written by experiments/audit/table_on_manifolds.py -->"
END = "<!-- end of table on manifolds -->"
QUICK = (RIGHT[5], BROKEN[3], BROKEN[7])


def main(quick: bool = False, out: Any = None) -> dict:
    rows = [row(case, 1) for case in (QUICK if quick else RIGHT + BROKEN)]
    again = [] if quick else [row(case, seed) for seed in FURTHER_SEEDS for case in RIGHT]
    title = "The audit on fourteen runs on manifolds with known truth"
    figure = "The audit's table on manifolds"
    found = report.write(__file__, figure, title, quick, picture(rows), claims(rows, again), out)
    if not quick:
        file = Path(out or Path(__file__).parent / "out") / "table_on_manifolds.json"
        file.write_text(json.dumps({**found, "rows": rows, "again": again}, indent=1) + "\n", encoding="utf-8")
        write_page(rows, again, BEGIN, END)
    return found


if __name__ == "__main__":
    report.command_line(main)
