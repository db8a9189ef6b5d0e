"""What an experiment leaves behind: a picture, and a JSON of the paper's claims beside what was measured.

    {"figure", "title", "quick", "image", "claims": [{"claim", "measured", "holds", "sound", "checks", "note"}]}

``holds``: the claim agrees with the measurement; one that does not is a finding. ``sound``: the measurement is able to
tell, that is all its named ``checks`` pass (seeds, references, error bars); one that is not is a defect of ours.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
QUICK = ROOT / "build" / "experiments"  # not kept: quick results never replace those on record

# Okabe & Ito's palette, which the colour-blind tell apart: one colour per method in every figure.
COLOURS = {
    "SGLD": "#0072B2",
    "SGHMC": "#E69F00",
    "naive, eq. (16)": "#D55E00",
    "gSGRHMC": "#009E73",
    "SGRLD": "#CC79A7",
    "GMC": "#0072B2",
    "SGGMC": "#D55E00",
    "exact": "#000000",
}


def claim(claim: str, measured: str, holds: bool, checks: dict[str, bool], note: str = "") -> dict[str, Any]:
    """A sentence of the paper, what was measured, whether they agree, and what the measurement was put to."""
    checks = {name: bool(passed) for name, passed in checks.items()}
    sound = bool(checks) and all(checks.values())
    return {"claim": claim, "measured": measured, "holds": bool(holds), "sound": sound, "checks": checks, "note": note}


def write(
    file: str, figure: str, title: str, quick: bool, picture: Any, claims: list[dict[str, Any]], out: Any = None
) -> dict:
    """Save the matplotlib figure and the JSON under the stem of ``file``; returns what the JSON holds.

    Full results go to out/ beside the experiment, quick ones to build/.
    """
    path = Path(file)
    folder = Path(out) if out else (QUICK / path.parent.name if quick else path.parent / "out")
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / f"{path.stem}.png"
    picture.savefig(image, dpi=130, metadata={"Software": None})
    found = {"figure": figure, "title": title, "quick": quick, "image": image.name, "claims": claims}
    (folder / f"{path.stem}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def show(found: dict) -> None:
    for c in found["claims"]:
        print(f"[holds: {c['holds']}, sound: {c['sound']}] {c['claim']}\n    {c['measured']}\n    {c['note']}")
        for name, passed in c["checks"].items():
            print(f"    {'ok' if passed else 'NOT'}: {name}")


def command_line(main: Any) -> None:
    """--quick and --out of an experiment; prints its claims."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs")
    parser.add_argument("--out", default=None, help="folder for the picture and the JSON")
    options = parser.parse_args()
    show(main(options.quick, options.out))
