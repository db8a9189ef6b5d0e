"""Table 1 of Liu, Zhu & Song (2016), measured: the order of every method, the rates in the chain length, the poles.

python -m experiments.geodesic.table_1 [--quick]

Beside the claims it leaves what docs/make_methods.py shows (out/table_1_rows.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import iv

import fokker
from experiments import report
from experiments.geodesic import poles
from experiments.geodesic.chain_law import Angle, Normal, averages, gauss, product, stationary, transition
from experiments.geodesic.methods import CIRCLE, FLAT, FRICTION, METHODS, Method
from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch

EXACT = iv(1, 2) / iv(0, 2)  # E cos(angle) for U = -2 cos(angle)
NOISE = 1.0  # variance of the gradient, where it is noisy
NOISY = (("SGLD", None), ("SGLD", NOISE), ("SGGMC", None), ("SGGMC", NOISE), ("gSGNHT", None))
RATES = {"SGLD": (1, 0.003, 0.4), "SGGMC": (2, 0.03, 1.2)}  # order, and between which steps the best one is looked for


class Size(NamedTuple):
    """How much to do."""

    steps: tuple[float, ...]
    names: tuple[str, ...]
    noisy: tuple[tuple[str, float | None], ...]
    lengths: tuple[int, ...]
    candidates: int  # step sizes tried for each length
    chains: int
    pole_steps: tuple[float, ...]
    pole_time: float
    dimensions: tuple[int, ...]
    small: tuple[float, ...]  # steps for these


ALL = tuple(m.name for m in METHODS)
FULL = Size(
    (0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625),
    ALL,
    NOISY,
    (300, 1000, 3000, 10_000),
    13,
    1000,
    (0.1, 0.05, 0.025, 0.0125),
    20.0,
    (3, 5, 10, 20, 50),
    (0.1, 0.01, 0.001),
)
QUICK = Size(
    (0.05, 0.025, 0.0125),
    ("GMC", "SGLD", "SGGMC"),
    (("SGGMC", None), ("SGGMC", NOISE)),
    (100, 300, 1000, 2000),
    7,
    500,
    (0.1, 0.05),
    10.0,
    (3, 20),
    (0.1, 0.01),
)


def main(quick: bool = False, out: Any = None) -> dict:
    size = QUICK if quick else FULL
    orders = {m.name: bias_by_step(m, size.steps) for m in METHODS if m.name in size.names}
    noisy = {(n, told): bias_by_step(named(n).noisy(NOISE, told), size.steps[-3:]) for n, told in size.noisy}
    rates = {name: rate(named(name), size) for name in RATES}
    pole = at_the_poles(size)
    rows = table(orders, noisy, rates, pole, size)
    found = report.write(
        __file__,
        "Table 1",
        "Order of the integrators, rates in the chain length, and coordinates at their poles",
        quick,
        draw(orders, rates, pole),
        claims(orders, noisy, rates, pole, refined(orders, size)),
        out,
    )
    folder = Path(out) if out else (report.QUICK / "geodesic" if quick else Path(__file__).parent / "out")
    (folder / "table_1_rows.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def named(name: str) -> Method:
    return next(m for m in METHODS if m.name == name)


# --- the order of the bias --------------------------------------------------------------------------------------------


class Biases(NamedTuple):
    steps: np.ndarray
    bias: np.ndarray  # of E cos(angle), exact to the grid

    @property
    def order(self) -> float:
        """The slope between the two smallest steps."""
        return float(np.log(self.bias[-2] / self.bias[-1]) / np.log(self.steps[-2] / self.steps[-1]))


def bias_by_step(method: Method, steps: tuple[float, ...], more: int = 0) -> Biases:
    """``more``: nodes added to every axis."""
    axes = tuple(Angle(a.n + 2 * more) if isinstance(a, Angle) else Normal(a.n + more, a.mean) for a in method.axes)
    cos = np.cos(product([axis.nodes for axis in axes])[:, 0])
    rule = 8 if method.normals > 1 else 24 if len(axes) == 1 else 14  # a whole trajectory hangs on one normal
    biases = [stationary(transition(method.step, e, axes, method.normals, rule)) @ cos - EXACT for e in steps]
    return Biases(np.array(steps), np.array(biases))


def refined(orders: dict[str, Biases], size: Size) -> float:
    """The largest change of an order by finer grids."""
    return max(abs(bias_by_step(named(n), size.steps[-2:], more=1).order - found.order) for n, found in orders.items())


# --- the rates in the length of the chain -----------------------------------------------------------------------------


class Rate(NamedTuple):
    lengths: np.ndarray
    best: np.ndarray  # (lengths, 2) step sizes
    error: np.ndarray  # (lengths, 2) least |bias| from a start at angle pi, least mean square error from exact draws
    simulated: np.ndarray  # (lengths, 2), at these steps
    simulated_error: np.ndarray  # (lengths, 2)

    def slopes(self, values: np.ndarray) -> np.ndarray:
        """Of logarithms, over all lengths, for both columns."""
        return np.polyfit(np.log(self.lengths), np.log(values), 1)[0]

    def slope_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Slopes of the simulated values, weighted, and their standard errors."""
        x, y = np.log(self.lengths)[:, None], np.log(self.simulated)
        w = (self.simulated / self.simulated_error) ** 2
        centre = (w * x).sum(0) / w.sum(0)
        spread = (w * (x - centre) ** 2).sum(0)
        return (w * (x - centre) * y).sum(0) / spread, spread**-0.5


def rate(method: Method, size: Size) -> Rate:
    """The best step for every length, exactly, and simulations with fokker's kernel at that step."""
    lengths = np.array(size.lengths)
    _, low, high = RATES[method.name]
    steps = np.geomspace(low, high, size.candidates)
    turn = method.axes[0]
    velocity = [gauss(axis.n)[1] for axis in method.axes[1:]]
    law = lambda angle: np.prod(product([angle, *velocity]), -1)
    density = np.exp(2 * np.cos(turn.nodes))
    starts = (
        law((turn.basis(np.array([np.pi])) @ np.linalg.inv(turn.basis(turn.nodes)))[0]),
        law(density / density.sum()),
    )
    excess = np.cos(product([axis.nodes for axis in method.axes])[:, 0]) - EXACT
    found = []
    for eps in steps:
        P = transition(method.step, eps, method.axes)
        bias, square = (averages(P, excess, start, size.lengths) for start in starts)
        found.append(np.stack([np.abs(bias[:, 0]), square[:, 1]], -1))
    found = np.array(found)  # (steps, lengths, 2)
    best, error = steps[found.argmin(0)], found.min(0)
    simulated = [
        [simulate(method.name, b, int(n), size.chains, i) for i, b in enumerate(row)]
        for n, row in zip(lengths, best, strict=True)
    ]
    values, errors = np.moveaxis(np.array(simulated), -1, 0)
    return Rate(lengths, best, error, values, errors)


def simulate(name: str, eps: float, length: int, chains: int, square: int, seed: int = 0) -> tuple[float, float]:
    """|bias| of averages from angle pi, or mean square error of averages from exact draws, with its standard error."""
    rng = np.random.default_rng([seed, length, square])
    angle = rng.vonmises(0.0, 2.0, chains) if square else np.full(chains, np.pi)
    words = rng.integers(0, 2**32, (chains, 2), dtype=np.uint32)
    if name not in _averages:
        _averages[name] = jax.jit(jax.vmap(lambda *a: average_of(name, *a), in_axes=(None, None, 0, 0)))
    average = _averages[name](jnp.float32(eps), length, words, jnp.asarray(angle, jnp.float32))
    e = np.asarray(average, float) - EXACT
    if square:
        return float((e**2).mean()), float((e**2).std(ddof=1) / chains**0.5)
    return float(abs(e.mean())), float(e.std(ddof=1) / chains**0.5)


_averages: dict[str, Any] = {}


def average_of(name: str, eps: Any, length: Any, words: Any, angle: Any) -> Any:
    if name == "SGLD":
        bound, start, cos = fokker.sgld(eps).bind(FLAT, minibatch()), angle[None], lambda s: jnp.cos(s.position[0])
    else:
        bound = fokker.sggmc(eps, FRICTION).bind(CIRCLE, minibatch())
        start, cos = jnp.stack([jnp.cos(angle), jnp.sin(angle)]), lambda s: s.point[0]
    state = bound.init(start, Key(words ^ jnp.uint32(1), jnp.uint32(0)))

    def one(t: Any, carry: Any) -> Any:
        state = bound.step(Key(words, t.astype(jnp.uint32)), carry[0])[0]
        return state, carry[1] + cos(state)

    return jax.lax.fori_loop(0, length, one, (state, jnp.zeros((), angle.dtype)))[1] / length


# --- spherical coordinates --------------------------------------------------------------------------------------------

PLACES = {"pole": np.array([5.0, 0.0, 0.0]), "equator": np.array([0.0, 0.0, 5.0])}
ALONG = 1 / np.tanh(5) - 1 / 5  # E mu.x of vMF(5) on S^2
TIMES = 4.0  # of chains in more dimensions


def at_the_poles(size: Size) -> dict[str, Any]:
    """Biases of E mu.x with errors and the share of chains lost, by step; that share in more dimensions, by step."""
    runs = [(k, poles.coordinates, PLACES[k], size.pole_time) for k in PLACES]
    runs.append(("SGGMC", poles.embedded, PLACES["pole"], 3 * size.pole_time))
    bias: dict[str, list] = {}
    for name, method, direction, time in runs:
        found = [poles.run(method, direction, eps, 500, time) for eps in size.pole_steps]
        bias[name] = [[f.mean - ALONG, f.error, f.lost] for f in found]
    lost = {
        str(n): [[eps, poles.run(poles.coordinates, np.zeros(n), eps, 200, TIMES).lost] for eps in size.small]
        for n in size.dimensions
    }
    n, eps = max(size.dimensions), max(size.small)
    ours = poles.run(poles.embedded, np.zeros(n), eps, 200, TIMES).lost
    return {"steps": list(size.pole_steps), "bias": bias, "lost": lost, "embedded": [n, eps, ours]}


# --- what is left on record -------------------------------------------------------------------------------------------


def table(orders: dict, noisy: dict, rates: dict, pole: dict, size: Size) -> dict[str, Any]:
    def row(m: Method) -> dict[str, Any]:
        fields = m.kernel.__dataclass_fields__
        return {
            "name": m.name,
            "row": m.row,
            "kernel": m.kernel.__name__,
            "note": m.note,
            "claimed": m.claimed,
            "order": round(orders[m.name].order, 5),
            "stochastic": not getattr(m.kernel, "full_data", False),
            "direct": "max_iterations" not in fields,
            "anywhere": getattr(m.kernel, "on_manifolds", False),
            "metric": "metric" in fields,
            "bias": orders[m.name].bias.tolist(),
        }

    return {
        "steps": list(size.steps),
        "rows": [row(m) for m in METHODS if m.name in orders],
        "noisy": [{"name": n, "told": told is not None, "order": round(b.order, 5)} for (n, told), b in noisy.items()],
        "rates": {
            name: {
                "lengths": r.lengths.tolist(),
                "best": r.best.tolist(),
                "error": r.error.tolist(),
                "simulated": r.simulated.tolist(),
                "simulated_error": r.simulated_error.tolist(),
            }
            for name, r in rates.items()
        },
        "poles": pole,
    }


def draw(orders: dict[str, Biases], rates: dict[str, Rate], pole: dict[str, Any]) -> Any:
    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(9.6, 8.0), layout="constrained")
    first, second = "#D55E00", "#0072B2"  # orders, not methods
    marks = dict(zip(ALL, "osDv^<>pPXh*d", strict=True))
    for name, found in orders.items():
        colour = first if found.order < 1.5 else second
        a.loglog(found.steps, np.abs(found.bias), marks[name] + "-", color=colour, lw=0.9, ms=5, mfc="none", label=name)
    a.legend(fontsize=7, ncols=2, frameon=False)
    a.set(xlabel="step size ε", ylabel="|bias| of E cos", title="Orange: order 1. Blue: order 2")
    a.grid(color="0.92")

    for (name, found), colour in zip(rates.items(), (first, second), strict=True):
        for i, (mark, what) in enumerate((("o", "bias"), ("s", "mean square error"))):
            slope = found.slopes(found.error)[i]
            b.loglog(found.lengths, found.error[:, i], "-", color=colour, lw=1)
            b.errorbar(
                found.lengths,
                found.simulated[:, i],
                yerr=2 * found.simulated_error[:, i],
                fmt=mark,
                color=colour,
                mfc="none",
                ms=5,
                label=f"{name}, {what}: L^{slope:.2f}",
            )
    b.legend(fontsize=8, frameon=False)
    b.set(
        xlabel="length of the chain L",
        ylabel="at the best step for L",
        title="Lines: exact. Marks: simulated, ± 2 s.e.",
    )
    b.grid(color="0.92")

    labels = {"pole": "SGRLD, mode at a pole", "equator": "SGRLD, mode on the equator", "SGGMC": "SGGMC"}
    for (what, found), colour, mark in zip(pole["bias"].items(), (first, "#CC79A7", second), "osD", strict=True):
        bias, error, _ = np.array(found).T
        c.errorbar(
            pole["steps"], np.abs(bias), yerr=2 * error, fmt=mark + "-", color=colour, mfc="none", label=labels[what]
        )
    c.set(xscale="log", yscale="symlog", xlabel="step size ε", ylabel="|bias| of E μ·x, ± 2 s.e.")
    c.set_yscale("symlog", linthresh=3e-3)
    c.set_ylim(0, None)
    c.set_xticks(pole["steps"], [f"{e:g}" for e in pole["steps"]])
    c.minorticks_off()
    c.set_title("vMF(5) on S², spherical coordinates")
    c.legend(fontsize=8, frameon=False)
    c.grid(color="0.92")

    lost = np.array(list(pole["lost"].values()))  # (dimensions, steps, 2)
    for i, colour in enumerate(plt.get_cmap("viridis")(np.linspace(0, 0.85, lost.shape[1]))):
        label = f"SGRLD, ε = {lost[0, i, 0]}"
        d.plot([int(n) for n in pole["lost"]], 100 * lost[:, i, 1], "o-", color=colour, mfc="none", label=label)
    n, eps, lost = pole["embedded"]
    d.plot([n], [100 * lost], "D", color=second, mfc="none", label=f"SGGMC, ε = {eps}", clip_on=False)
    d.set(xscale="log", xlabel="n of Sphere(n)", ylabel="% of chains thrown away", ylim=(-4, 104))
    ticks = [int(n) for n in pole["lost"]]
    d.set_xticks(ticks, ticks)
    d.minorticks_off()
    d.set_title(f"Uniform law on the sphere, after time {TIMES:.0f}")
    d.legend(fontsize=8, frameon=False)
    d.grid(color="0.92")
    for axis in (a, b, c, d):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def claims(orders: dict, noisy: dict, rates: dict, pole: dict, change: float) -> list[dict]:
    claimed = {name: named(name).claimed for name in orders}
    holds = {name: abs(found.order - claimed[name]) < 0.1 for name, found in orders.items()}
    words = lambda k: ", ".join(f"{n} {b.order:.2f}" for n, b in orders.items() if claimed[n] == k)
    grid = {"finer grids change no order by more than 0.03": change < 0.03}
    off = {n: np.abs(r.simulated - r.error) / r.simulated_error for n, r in rates.items()}
    sound = {
        "simulations with the samplers agree with the exact laws within 4 standard errors": max(
            o.max() for o in off.values()
        )
        < 4
    }
    told = {True: "the sampler told of it", False: "V taken as zero"}
    noise = "; ".join(f"{n}, {told[t is not None]}: {b.order:.2f}" for (n, t), b in noisy.items())
    spherical = [bool(noisy[k].order > 1.9) for k in noisy if k[0] in ("SGGMC", "gSGNHT")]

    exact = {n: r.slopes(r.error) for n, r in rates.items()}
    drawn = {n: r.slope_errors() for n, r in rates.items()}
    theory = {n: (-k / (k + 1), -2 * k / (2 * k + 1)) for n, (k, _, _) in RATES.items()}

    def told_rates(i: int) -> str:
        return "; ".join(
            f"{n}: L^{exact[n][i]:.2f}, simulated {drawn[n][0][i]:.2f} ± {drawn[n][1][i]:.2f} "
            f"(K = {RATES[n][0]}: {theory[n][i]:.2f})"
            for n in rates
        )

    near = lambda i: all(abs(exact[n][i] - theory[n][i]) < 0.1 for n in rates)
    at_pole, at_equator, ours = (np.array(pole["bias"][k]) for k in ("pole", "equator", "SGGMC"))
    steps = np.array(pole["steps"])
    slope = lambda found: np.polyfit(np.log(steps), np.log(np.abs(found[:, 0])), 1)[0]
    n_most = max(pole["lost"], key=int)
    gone = dict(map(tuple, pole["lost"][n_most]))
    percent = lambda v: f"{100 * v:.0f} %"
    return [
        report.claim(
            "The integrators of GMC, RMHMC, CHMC, SGGMC and gSGNHT are of second order, those of RMLD, SGLD, SGHMC, "
            "SGNHT, SGRLD and SGRHMC of first.",
            f"Claimed second: {words(2)}. Claimed first: {words(1)}.",
            all(holds.values()),
            grid,
            "Slope of the bias of E cos on the circle between the two smallest steps, from the exact law of the chain: "
            "there is no sampling error. Methods with a Metropolis test run without it. The paper leaves open whether "
            "the second order of RMHMC and CHMC is that of its own integrators: it is the same.",
        ),
        report.claim(
            "The integrators of SGGMC and gSGNHT stay of second order when gradients are stochastic.",
            f"Order with a gradient noise of variance {NOISE:g}: {noise}.",
            all(spherical),
            grid,
            "V taken as zero, which the paper allows as a higher order infinitesimal, raises the temperature by the "
            "factor 1 + εV/2C, which is of first order. The order is 2 if V is subtracted or, for isotropic noise "
            "only, by the thermostat.",
        ),
        report.claim(
            "At the best step the bias falls like L^(−K/(K+1)) with the length L of the chain, K the order.",
            told_rates(0) + ".",
            near(0),
            sound,
            "All chains start at the angle π, the least likely one.",
        ),
        report.claim(
            "The mean square error falls like L^(−2K/(2K+1)).",
            told_rates(1) + ".",
            near(1),
            sound,
            "From exact draws of the target, which leaves the error of the average itself.",
        ),
        report.claim(
            "SGRLD, which needs global coordinates, basically cannot draw samples from hyperspheres.",
            f"vMF(5) on S², mode at a pole of spherical coordinates: bias of E μ·x from {at_pole[0, 0]:+.3f} at ε = "
            f"{steps[0]} to {at_pole[-1, 0]:+.3f} at {steps[-1]}, of order {slope(at_pole):.1f}; "
            f"{percent(at_pole[:, 2].min())} to {percent(at_pole[:, 2].max())} of the chains are thrown away, at every "
            f"step. Mode on the equator: {at_equator[0, 0]:+.3f} to {at_equator[-1, 0]:+.3f}. SGGMC: "
            f"{ours[0, 0]:+.4f} ± {ours[0, 1]:.4f} at {steps[0]}. Uniform law on Sphere({n_most}): "
            + ", ".join(f"{percent(v)} thrown away at ε = {e}" for e, v in gone.items())
            + f"; SGGMC {percent(pole['embedded'][2])}.",
            bool(abs(at_pole[-1, 0]) > 10 * at_pole[-1, 1] and gone[0.01] > 0.5),
            {
                "SGGMC on the same targets is right within 4 standard errors and 0.003": bool(
                    (np.abs(ours[:, 0]) < 4 * ours[:, 1] + 3e-3).all() and not ours[:, 2].any()
                ),
                "the biases are more than 10 standard errors": bool((np.abs(at_pole[:, 0]) > 10 * at_pole[:, 1]).all()),
            },
            "G⁻¹ has no bound where a coordinate has a pole. A chain counts as thrown away once an angle exceeds "
            f"{poles.LOST:.0f} radians or is not finite. With the mode at a pole even those that stay have a bias that "
            "falls like the root of ε.",
        ),
    ]


if __name__ == "__main__":
    report.command_line(main)
