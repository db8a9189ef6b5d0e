"""Makes docs/bias.md from what `python -m experiments.bias.table` has measured (experiments/bias/out/table.json).

python docs/make_bias.py writes the page; a test compares it with what would be written.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bias.md"
RECORD = ROOT / "experiments" / "bias" / "out" / "table.json"
MODES = {"exact": "exact gradient", "noise": "noisy gradient", "told": "noisy, noise told"}
ROUNDING = 5e-7  # of single precision: what is below is zero
LIBRARIES = ("fokker", "BlackJAX", "posteriors", "SGMCMCJax")

HEAD = """\
# The bias of every sampler at equal cost

A sampler that moves by finite steps has a law of its own, near the posterior. This page says how near, for fokker's
samplers and for those of BlackJAX, posteriors and SGMCMCJax, each run by its own code.

- **Target.** A Gaussian in 1 and in 20 dimensions, curvatures from 1 to 10, mean 1. Noisy gradients have the covariance
  $V = 2 A$, with $A$ the curvature. *Told*: the sampler knows $V$; ours take its diagonal, the peers' one number, for
  which they get the mean of that diagonal.
- **Equal cost.** Every sampler has the step size at which the slowest coordinate takes 40 gradients for one effective
  draw, by the longer of the autocorrelation times of $x$ and of $(x - \\mathrm{E}x)^2$, gradients being exact; a
  sampler that becomes unstable before is shown at the least multiple 80, 160, ... that it reaches. Simulated rows come
  within a tenth of 40. The friction is 1 unless the row says otherwise. The same step is used with noisy gradients.
- **Error.** Of the standard deviation, relative, in the worst coordinate; of the mean, in standard deviations, in the
  worst coordinate and the worst of the three columns. Where a step is an affine map with Gaussian noise, the map is
  read off the library's own step and its stationary law solved for, so that there is no sampling error. The other rows
  are simulated, with one standard error behind ±; the worst of 20 coordinates is by chance alone about two of these.

A Gaussian flatters the splittings `aboba` and `baoab` (`baoa` in posteriors), which have no bias on it without gradient
noise. On other targets their bias is of second order in the step.
"""

PICTURE = "![Errors of the standard deviation in twenty dimensions](../experiments/bias/out/table.png)\n"

TAIL = """\
`python -m experiments.bias.table` measures all this again, in about twenty minutes on one core,
`python -m experiments.bias.picture` draws it, and `python docs/make_bias.py` writes this page.
"""


def page(record: dict) -> str:
    """The text of docs/bias.md."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    parts = [HEAD, f"Versions: {versions}. {import_note(record)}\n"]
    parts += [PICTURE, "## The least biased of each library\n", best_table(record["rows"])]
    for d, words in ((20, "Twenty dimensions"), (1, "One dimension")):
        rows = [row for row in record["rows"] if row["d"] == d]
        parts += [f"## {words}\n", table(rows)]
    parts += ["## At the libraries' own settings\n", known_table(record["known"]), TAIL]
    return "\n".join(parts)


def import_note(record: dict) -> str:
    error = record["import_error"]
    if not error:
        return ""
    return (
        f"`import sgmcmcjax.kernels` fails on this JAX (`{error}`). Only its progress bar needs what is missing; it "
        "was run with an empty module in that place."
    )


def table(rows: list[dict]) -> str:
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    mark = lambda note: f" [{notes.index(note) + 1}]" if note else ""
    lines = ["| library | sampler | step | gradients per draw | " + " | ".join(f"sd, {m}" for m in MODES.values())]
    lines[0] += " | mean |"
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = [row["library"], f"{row['sampler']}{mark(row['note'])}"]
        found = [row["modes"][mode] for mode in MODES]
        cells += [f"{row['step']:.3g}", cost(row), *(sd(f, row["exact"]) for f in found), mean(found, row["exact"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"[{i}] {note}.  " for i, note in enumerate(notes, 1)), ""])


def cost(row: dict) -> str:
    found = row["modes"]["exact"]
    return "" if diverges(found) else f"{found['cost']:.0f}"


def diverges(found: dict | None) -> bool:
    return found is not None and found.get("diverges", False)


def percent(value: float, error: float, exact: bool) -> str:
    if exact:
        return "0" if abs(value) < ROUNDING else f"{100 * value:+.2f} %"
    return f"{100 * value:+.2f} ± {100 * error:.2f} %"


def sd(found: dict | None, exact: bool) -> str:
    if found is None:
        return "–"
    return "diverges" if diverges(found) else percent(found["sd"], found["sd_error"], exact)


def mean(found: list[dict | None], exact: bool) -> str:
    there = [f for f in found if f is not None and not diverges(f)]
    if not there:
        return ""
    worst = max(there, key=lambda f: abs(f["mean"]))
    return percent(worst["mean"], worst["mean_error"], exact)


def best_table(rows: list[dict]) -> str:
    """Per library, dimension and gradient, the sampler with the smallest error of the sd."""
    lines = ["| | gradient | " + " | ".join(LIBRARIES) + " |", "|---|---|" + "---|" * len(LIBRARIES)]
    for d in (20, 1):
        for mode, words in MODES.items():
            cells = [best(rows, library, d, mode) for library in LIBRARIES]
            lines.append(f"| d = {d} | {words} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Samplers with a Metropolis test, which see all data, are left out here.", ""])


def best(rows: list[dict], library: str, d: int, mode: str) -> str:
    able = [
        row
        for row in rows
        if (row["library"], row["d"]) == (library, d)
        and row["modes"]["noise"] is not None  # else it is a Metropolis method
        and row["modes"][mode] is not None
        and not diverges(row["modes"][mode])
    ]
    if not able:
        return "none can be told"
    least = min(abs(row["modes"][mode]["sd"]) for row in able)
    rows = [row for row in able if abs(row["modes"][mode]["sd"]) <= max(least, ROUNDING)]
    return f"{', '.join(row['sampler'] for row in rows)}: {sd(rows[0]['modes'][mode], rows[0]['exact'])}"


def known_table(known: list[dict]) -> str:
    lines = [
        "Variance of a coordinate of N(0, I), where 1 is right; the gradient is exact.\n",
        "| | variance |",
        "|---|--:|",
    ]
    for row in known:
        error = f" ± {row['error']:.3f}" if row["error"] else ""
        lines.append(f"| {row['what']} | {row['variance']:.3f}{error} |")
    return "\n".join([*lines, ""])


def load() -> dict:
    return json.loads(RECORD.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
