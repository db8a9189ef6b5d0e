"""Makes docs/methods.md from what `python -m experiments.geodesic.table_1` has measured (table_1_rows.json).

python docs/make_methods.py writes the page; a test compares it with what would be written.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "methods.md"
RECORD = ROOT / "experiments" / "geodesic" / "out" / "table_1_rows.json"

HEAD = """\
# What each method needs, and its order

Table 1 of Liu, Zhu & Song (2016), measured. A method with a *stochastic gradient* needs a batch of the data per step,
the others all data for their Metropolis test. *No inner iteration*: a step solves no equation. *No global coordinates*:
it runs on a sphere or on orthonormal frames, which no single chart covers; – stands for methods of flat space. These
three are read off fokker's samplers. The *order* is measured: halve the step, and the bias is divided by two to that
power.
"""

ORDER = """\
Each method runs on the circle, $U = -2 \\cos a$, and the bias is that of $\\mathrm{{E}} \\cos a$. Those for manifolds
see points of the plane, the others the angle $a$, the Riemannian ones with $G^{{-1}} = 1 + \\sin(a) / 2$. The law of a
chain is not simulated but solved for: a step of fokker's own code, integrated over its normal numbers by quadrature, is
a matrix, and its left eigenvector the stationary law. So the order, the slope between the steps {fine[0]} and
{fine[1]}, has no sampling error. Methods with a Metropolis test run without it here; with it they have no bias.
"""

NOISE = """\
## With the noise of a batch

Gradient noise of variance $V = 1$ that the sampler knows nothing of raises its temperature by the factor
$1 + \\epsilon V / 2 C$: a bias of first order, whatever the integrator. Told of $V$ (`noise=` of the gradient
estimators) a method of second order is one again. The thermostat does the same without being told, for noise that is
the same in all directions; noise that is not keeps its first order
(`test_a_thermostat_does_not_repair_anisotropic_noise`).
"""

RATES = """\
## What the order is good for

With the best step for a chain of length $L$ the bias of an average falls like $L^{{-K/(K+1)}}$, its mean square error
like $L^{{-2K/(2K+1)}}$, $K$ the order. Exact values, and simulations with standard errors at the same step:
"""

POLES = """\
## Coordinates and their poles

SGRLD moves in coordinates. On a sphere these have poles, where the metric is zero and the steps have no bound. Below, a
von Mises-Fisher law ($\\kappa = 5$) on the sphere in space, in spherical coordinates turned so that its mode lies at a
pole or on the equator: the bias of $\\mathrm{{E}} \\mu \\cdot x$, in chains that start from exact draws and last a time
of {time:.0f}. *Lost*: the share of chains that the metric has thrown beyond 1000 radians. With the mode at a pole the
bias falls like the root of the step only, and none of these steps keeps all chains.
"""

DIMENSIONS = """\
In more dimensions there are more poles, and every point is near one of them. Uniform law on the sphere in
$\\mathbf{{R}}^n$, chains lost within a time of 4:
"""

TAIL = """\
`python -m experiments.geodesic.table_1` measures all this again, in a few minutes on one core; its claims are on the
[page of experiments](experiments.md). `python docs/make_methods.py` writes this page.
"""

PICTURE = (
    "![Order of the integrators, rates in the chain length, coordinates at their poles]"
    "(../experiments/geodesic/out/table_1.png)\n"
)
TIME = 20.0


def page(record: dict) -> str:
    """The text of docs/methods.md."""
    parts = [HEAD, properties(record["rows"]), ORDER.format(fine=record["steps"][-2:]), PICTURE]
    parts += [biases(record), NOISE, noise(record["noisy"]), RATES.format(), rates(record["rates"])]
    parts += [POLES.format(time=TIME), poles(record["poles"]), DIMENSIONS.format(), dimensions(record["poles"]), TAIL]
    return "\n".join(parts)


def grid(head: list[str], rows: list[list[str]], numbers: int) -> str:
    """A Markdown table; the last ``numbers`` columns are numbers."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join([f"| {' | '.join(cells)} |" for cells in [head, rule, *rows]]) + "\n"


def properties(rows: list[dict]) -> str:
    sign = lambda yes: "✓" if yes else "×"
    anywhere = lambda r: "–" if not (r["anywhere"] or r["metric"]) else sign(r["anywhere"])
    title = lambda r: r["name"] + (f" ({r['note']})" if r["note"] else "")
    table = [
        [
            title(r),
            f"`{r['kernel']}`",
            sign(r["stochastic"]),
            sign(r["direct"]),
            anywhere(r),
            str(r["claimed"]),
            f"{r['order']:.2f}",
        ]
        for r in rows
    ]
    head = ["method", "sampler", "stochastic gradient", "no inner iteration", "no global coordinates"]
    return grid([*head, "order, paper", "order, measured"], table, 2)


def biases(record: dict) -> str:
    steps = record["steps"]
    rows = [[r["name"], *(f"{b:+.1e}" for b in r["bias"])] for r in record["rows"]]
    return grid(["bias at the step", *(f"{e:g}" for e in steps)], rows, len(steps))


def noise(found: list[dict]) -> str:
    rows = [[r["name"], "told" if r["told"] else "not told", f"{r['order']:.2f}"] for r in found]
    return grid(["method", "of the noise", "order"], rows, 1)


def rates(found: dict) -> str:
    rows = []
    for name, r in found.items():
        for i, what in enumerate(("bias", "mean square error")):
            for k, length in enumerate(r["lengths"]):
                drawn = f"{r['simulated'][k][i]:.2e} ± {r['simulated_error'][k][i]:.0e}"
                rows.append([name, what, f"{length:,}", f"{r['best'][k][i]:.3f}", f"{r['error'][k][i]:.2e}", drawn])
    return grid(["method", "", "length", "best step", "exact", "simulated"], rows, 4)


def poles(found: dict) -> str:
    names = {"pole": "SGRLD, mode at a pole", "equator": "SGRLD, mode on the equator", "SGGMC": "SGGMC"}
    cell = lambda bias, error, lost: f"{bias:+.4f} ± {error:.4f}, {100 * lost:.0f} % lost"
    rows = [[names[k], *(cell(*at) for at in v)] for k, v in found["bias"].items()]
    return grid(["step", *(f"{e:g}" for e in found["steps"])], rows, len(found["steps"]))


def dimensions(found: dict) -> str:
    steps = [e for e, _ in next(iter(found["lost"].values()))]
    rows = [[f"SGRLD, n = {n}", *(f"{100 * lost:.0f} %" for _, lost in at)] for n, at in found["lost"].items()]
    n, eps, lost = found["embedded"]
    rows.append([f"SGGMC, n = {n}", *(f"{100 * lost:.0f} %" if e == eps else "" for e in steps)])
    return grid(["step", *(f"{e:g}" for e in steps)], rows, len(steps))


def load() -> dict:
    return json.loads(RECORD.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
