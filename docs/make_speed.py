"""Makes docs/speed.md from the committed results of benchmarks/*.py.

python docs/make_speed.py writes the page, as `make bench` does; a test compares it with what would be written.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "speed.md"

HEAD = """\
# How fast it is

Every benchmark runs all its sides in one process tree, by turns; `make bench` measures all of them anew and writes this
page from their results. With `--quick` each takes less than a minute and decides nothing.

## Samplers by minibatches

Bayesian logistic regression, 100,000 rows, 50 columns, batches of 100, float32. One core, unless a row says two: on
steps of two microseconds the hand-over between XLA's threads costs a factor of two. All contestants of a table ran in
one process, taking turns; a ratio is the median over five rounds of the ratio within a round; compilation is left out
(`benchmarks/sampler_speed.py`).
"""

HOW = """\
### What is measured

- **Ours** is what `fokker.sample` runs: blocks of compiled steps, batches chosen from seed, chain and iteration, every
  tenth position kept, a look at whether all is finite.
- **BlackJAX** runs in one compiled scan, its gradient from its own `grad_estimator`. "Gather" is how its documentation
  feeds it: rows drawn at random, with replacement. "Contiguous" feeds slices of rows that are in random order already,
  which is as fast as it gets. Its SGHMC uses one batch for ten gradients, ours a fresh batch for each, and the figure
  is per gradient for both. SGNHT is held against BlackJAX's SGLD, which is faster than its SGNHT.
- **The loop without noise** is a scan written by hand: a slice, the gradient, the step. It bounds what any sampler can
  do here, whatever its method, and is the same for all three.
- **The user-written density** is the same posterior given as two plain functions, differentiated automatically; the
  built-in likelihood has its gradient in closed form. BlackJAX's gradient is automatic in every row.
- **Accuracy** is on the Gaussian approximation of the posterior, at the step where the noise of independent batches
  would be 0.4 of the injected noise. The closed-form law of the discrete chain includes bias of the step, gradient
  noise, and its cancellation within an epoch; deviations are in standard errors, the worst of 50 coordinates.
- **ESS/s** is with control variates, four chains. Both sides are searched over a grid of methods, steps, frictions
  and lengths; a setting counts if its worst sd is within 7 % of the truth and its worst mean within 0.05 sd. The truth
  is the Laplace approximation corrected by importance weights, in double precision.
- **The driver** is the loop of a run with its progress line against the compiled blocks alone, SGLD and SGHMC.

### What limits it

A gradient reads 20 kB of rows and does two products with them, about 1.7 microseconds of a step; the normals take
about 0.2, the method's own arithmetic less. Three things keep it there. Rows lie in a random order and a batch is a
window of them, so that nothing is gathered, and a few windows follow each other in memory, which is read ahead
([how rows are mixed](adr/0003-batches.md) says what that does to the law). Numbers are made inside the step, one hash
each ([random numbers](adr/0001-random-numbers.md)). And a whole block is one compiled function where its operations
allow ([blocks](adr/0002-kernels-gradients-and-blocks.md)), instead of a queue of small ones. With a batch shared by
the chains rows are read once for all of them.

What is done between blocks (finding non-finite values, storage, progress) is done while the next block runs, if there
is a core for it.
"""


GEODESIC = """\
## Samplers on manifolds

One thread, one chain, one core, float32 (`benchmarks/geodesic_speed.py`). **On the sphere** the target is a von
Mises-Fisher density on S^999. The step by hand is the same ABOBA step in a `lax.scan` with `jax.random.normal`
inside, that in NumPy works in place with NumPy's float32 normals. **On an Oblique** of 50,000 columns of 1,000
entries points and velocities are 400 MB and a draw is kept every ten steps; the limit is one pass of memory over them
and the gradient plus as many normals, both measured in the same run. **Against NUTS** the posterior is a logistic
regression of 2,000 rows on a unit vector in 50 dimensions; NUTS runs on a normal vector whose direction it is; nine
settings of GMC, six of BlackJAX and two of NumPyro were looked at and the best of each counts, with warm-up, search
and compilation left out. Only settings whose sds are within 7 % and whose means within 0.07 sd of the truth count.
"""

VMF = """\
## Von Mises-Fisher numerics

Beside the ratio of two `scipy.special.ive`, where that works (`benchmarks/vmf_speed.py`).
"""


def page(results: dict[str, dict]) -> str:
    """The text of docs/speed.md from the results of each benchmark."""
    out = [HEAD, *_section(results["sampler_speed"], "gradients/s"), HOW]
    out += [GEODESIC, *_section(results["geodesic_speed"], "steps/s")]
    out += [VMF, *_section(results["vmf_speed"], "us")]
    return "\n".join(out).rstrip("\n") + "\n"


def _section(results: dict, unit: str) -> list[str]:
    """The verdict, the bars, what was read in ``unit``, and the rest."""
    machine, rows = results["machine"], results["rows"]
    bars = [row for row in rows if row["target"] is not None]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    verdict = f"{sum(row['met'] for row in bars)} of {len(bars)} bars are met. " if bars else ""
    out = [f"{verdict}Measured on {machine['date']}: {machine['processor']}, {machine['cores']} cores, "
           f"load {machine['load'][0]} before the start; Python {machine['python']}, {versions}.", ""]  # fmt: skip
    if "parts" in results:
        out += [f"Its parts were measured {results['parts']}.", ""]
    if bars:
        out += ["| what | measured | asked for | met |", "|---|---|---|---|"]
    for row in bars:
        met = "yes" if row["met"] else "**no**"
        out.append(f"| {row['name']} | {_number(row['measured'])} | {row['sense']} {_number(row['target'])} | {met} |")
    rated = [row for row in rows if row.get("unit") == unit and "lowest" in row]
    if rated:
        out += ["", f"| what | {unit} | lowest, highest | seconds to compile |", "|---|---|---|---|"]
    for row in rated:
        out.append(f"| {row['name']} | {row['measured']:,.0f} | {row['lowest']:,} to {row['highest']:,} | "
                   f"{row['compile_seconds']} |")  # fmt: skip
    out += ["", "| further readings | measured | |", "|---|---|---|"]
    for row in rows:
        if row["target"] is None and row not in rated:
            known = ("name", "measured", "target", "met", "unit", "part")
            more = ", ".join(f"{key.replace('_', ' ')} {_number(row[key])}" for key in row if key not in known)
            out.append(f"| {row['name']} | {_number(row['measured'])} {row['unit']} | {more} |")
    return [*out, ""]


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
    return str(value)


def recorded() -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


if __name__ == "__main__":
    PAGE.write_text(page(recorded()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
