"""What an experiment leaves behind: a picture, and a JSON of the paper's claims beside what was measured.

    {"figure", "title", "quick", "image", "claims": [{"claim", "measured", "holds", "sound", "note"}]}

``holds``: the claim agrees with the measurement. ``sound``: what the paper shows for it is able to support it (the claim
could have failed, and other explanations are excluded); a claim may hold and yet not be shown soundly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# Okabe & Ito's palette, which the colour-blind tell apart: one colour per method in every figure.
COLOURS = {
    "SGLD": "#0072B2",
    "SGHMC": "#E69F00",
    "naive, eq. (16)": "#D55E00",
    "gSGRHMC": "#009E73",
    "SGRLD": "#CC79A7",
    "exact": "#000000",
}


def claim(claim: str, measured: str, holds: bool, sound: bool, note: str = "") -> dict[str, Any]:
    """A sentence of the paper, what was measured, and the two verdicts."""
    return {"claim": claim, "measured": measured, "holds": bool(holds), "sound": bool(sound), "note": note}


def write(
    file: str, figure: str, title: str, quick: bool, picture: Any, claims: list[dict[str, Any]], out: Any = None
) -> dict:
    """Save the matplotlib figure and the JSON under the stem of ``file``; returns what the JSON holds.

    Full results go to out/ beside the experiment, quick ones to build/, where nothing is kept.
    """
    path = Path(file)
    folder = Path(out) if out else (ROOT / "build" / "experiments" if quick else path.parent / "out")
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / f"{path.stem}.png"
    picture.savefig(image, dpi=130, metadata={"Software": None})
    found = {"figure": figure, "title": title, "quick": quick, "image": image.name, "claims": claims}
    (folder / f"{path.stem}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def command_line(main: Any) -> None:
    """--quick and --out of an experiment; prints its claims."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs")
    parser.add_argument("--out", default=None, help="folder for the picture and the JSON")
    options = parser.parse_args()
    for c in main(options.quick, options.out)["claims"]:
        print(f"[holds: {c['holds']}, sound: {c['sound']}] {c['claim']}\n    {c['measured']}\n    {c['note']}")
