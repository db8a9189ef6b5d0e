"""A finite mixture of von Mises-Fisher laws on real directions (Liu, Zhu & Song 2016, Sec. 6), by minibatches.

python -m experiments.geodesic.directional_mixture [--quick]

comets.csv beside this file: inclination and longitude of the ascending node, in degrees, of 3,798 orbits of comets,
facts of NASA's JPL Small-Body Database, which is in the public domain. The direction is the normal of the orbit:
families of comets are clusters of it.

The families, that of Jupiter and the sungrazers of Kreutz, lie on a uniform background, a component of concentration 0.
Their means are on spheres, the weights on a simplex, the concentrations are positive numbers: one product space.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.special import logsumexp

import fokker
from experiments import report
from experiments.geodesic.nuts import effective, standard_error
from fokker import vmf

UNIT = 1000.0  # of concentrations: brings the posterior sds of all parameters nearer to each other
FLAT = float(vmf.log_normaliser(3, 0.0))  # log density of the background
CLOSE, FAR = 0.1, 3.5  # posterior sds, standard errors
METHODS = ("GMC, all rows", "SGGMC", "gSGNHT")
COLOURS = dict(zip(METHODS, (report.COLOURS[m] for m in ("exact", "SGLD", "SGHMC")), strict=True))


@dataclass(frozen=True)
class Data:
    name: str
    train: np.ndarray  # (rows, 2) unit vectors
    test: np.ndarray
    families: int


@dataclass(frozen=True)
class Size:
    """Of a run; gradients of GMC cost all rows, those of the others ``batch``."""

    rows: int
    draws: int
    leapfrog_steps: int
    thin: int
    batch: int


FULL, QUICK = Size(10**6, 500, 9, 30, 200), Size(1000, 150, 9, 25, 200)


def comets(rows: int) -> Data:
    with (Path(__file__).parent / "comets.csv").open(encoding="utf-8") as lines:
        angles = np.radians([[float(r["inclination"]), float(r["node"])] for r in csv.DictReader(lines)])
    i, node = angles.T
    normal = np.stack([np.sin(i) * np.sin(node), -np.sin(i) * np.cos(node), np.cos(i)], axis=1)
    return split("comets", normal, rows, 2)


def split(name: str, x: np.ndarray, rows: int, families: int) -> Data:
    """A fifth held out, at random."""
    x = np.random.default_rng(0).permutation(x)[:rows]
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    test = len(x) // 5
    return Data(name, x[test:], x[:test], families)


def mixture(data: Data) -> fokker.Target:
    def log_prior(p: Any) -> Any:  # flat in means and weights; concentrations: half Cauchy-like, median 10
        return -2 * jnp.sum(jnp.log1p(UNIT * p["concentration"] / 10))

    def log_likelihood(p: Any, x: Any) -> Any:
        kappa = UNIT * p["concentration"]
        log_c = jnp.log(kappa / (2 * jnp.pi)) - kappa - jnp.log(-jnp.expm1(-2 * kappa))  # in three dimensions
        each = jnp.log(p["weight"][1:]) + log_c + kappa * (x @ p["mean"])
        return jnp.logaddexp(jnp.log(p["weight"][0]) + FLAT, logsumexp(each, axis=1))

    k = data.families
    space = {"mean": fokker.Oblique(3, k), "weight": fokker.Simplex(k + 1), "concentration": fokker.Positive(k)}
    return fokker.Target(log_prior, log_likelihood, data.train, space=space, start=by_em(data))


def log_densities(p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Of rows (n, 3) under parameters with leading axes: (..., n)."""
    kappa, weight = UNIT * p["concentration"][..., None], p["weight"][..., None]
    each = np.log(weight[..., 1:, :]) + vmf.log_normaliser(3, kappa) + kappa * (np.moveaxis(p["mean"], -1, -2) @ x.T)
    return np.logaddexp(np.log(weight[..., 0, :]) + FLAT, np.logaddexp.reduce(each, axis=-2))


def by_em(data: Data, starts: int = 4, sweeps: int = 40) -> dict[str, np.ndarray]:
    """The best of several EM fits: where chains begin, and the centre of the control variates."""
    x, k, best, best_value = data.train, data.families, {}, -np.inf
    for seed in range(starts):
        rng = np.random.default_rng(seed)
        p = {"mean": x[rng.choice(len(x), k, replace=False)].T, "weight": np.full(k + 1, 1 / (k + 1))}
        p["concentration"] = np.full(k, 10 / UNIT)
        for _ in range(sweeps):
            kappa = UNIT * p["concentration"]
            each = vmf.log_normaliser(3, kappa) + kappa * (x @ p["mean"])
            each = np.log(p["weight"]) + np.column_stack([np.full(len(x), FLAT), each])
            whole = np.logaddexp.reduce(each, axis=1, keepdims=True)
            share, value = np.exp(each - whole), whole.mean()
            count, total = share.sum(0), x.T @ share[:, 1:]
            length = np.linalg.norm(total, axis=0)
            kappa = vmf.concentration(3, np.clip(length / count[1:], 1e-3, 1 - 1e-4))
            p = {"mean": total / length, "weight": (count + 1) / (count + 1).sum(), "concentration": kappa / UNIT}
        if value > best_value:
            best, best_value = p, value
    return best


def sample(method: str, data: Data, target: fokker.Target, size: Size) -> dict[str, np.ndarray]:
    """Draws of every parameter, (chains, draws, ...)."""
    step = scale(data, target)
    kernel: Any = {
        "GMC, all rows": fokker.gmc(0.8 * step, leapfrog_steps=size.leapfrog_steps),
        "SGGMC": fokker.sggmc(step / 2, friction=100.0),
        "gSGNHT": fokker.gsgnht(step / 2, friction=100.0),
    }[method]
    more: Any = dict(thin=1, warmup=100)
    if method != METHODS[0]:
        more = dict(gradient=fokker.control_variates(centre=target.start), thin=size.thin, batch_size=size.batch)
        more["warmup"] = 50 * size.thin
    run = fokker.sample(target, kernel, draws=size.draws, seed=1, progress=False, **more)
    return {name: run.draws[name].to_numpy() for name in run.draws.data_vars}


def scale(data: Data, target: fokker.Target) -> float:
    """The smallest sd of a direction: 1 / sqrt(n_k kappa_k A(kappa_k)) of the sharpest component."""
    kappa = UNIT * target.start["concentration"]
    return float((len(data.train) * target.start["weight"][1:] * kappa * vmf.mean_length(3, kappa)).max() ** -0.5)


def label_free(draws: dict[str, np.ndarray], data: Data) -> dict[str, np.ndarray]:
    """Functions of a draw that do not know how components are numbered, (chains, draws) each."""
    k = data.families
    weight, kappa = -np.sort(-draws["weight"], -1), -np.sort(-draws["concentration"], -1) * UNIT
    cosines = np.moveaxis(draws["mean"], -1, -2) @ draws["mean"]
    pairs = -np.sort(-cosines[..., *np.triu_indices(k, 1)], -1)
    found = {f"weight, no. {i + 1}": weight[..., i] for i in range(k + 1)}
    found |= {f"κ, no. {i + 1}": kappa[..., i] for i in range(k)}
    found |= {f"cosine of means, no. {i + 1}": pairs[..., i] for i in range(pairs.shape[-1])}
    return {**found, "log density of held-out rows": log_densities(draws, data.test).mean(-1)}


def predictive(draws: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, float]:
    """Log of the posterior predictive density of every row, (n,), and the error of its mean, by chains."""
    p = np.exp(log_densities(draws, x)).mean(1)  # (chains, n)
    by_chain = np.log(p).mean(1)
    return np.log(p.mean(0)), float(by_chain.std(ddof=1) / np.sqrt(len(by_chain)))


def main(quick: bool = False, out: Any = None) -> dict:
    size = QUICK if quick else FULL
    sets = [comets(size.rows)]
    methods = METHODS[:2] if quick else METHODS
    found, targets = {}, {data.name: mixture(data) for data in sets}
    for data in sets:
        for method in methods:
            found[data.name, method] = sample(method, data, targets[data.name], size)
    free = {key: label_free(draws, by_name(sets, key[0])) for key, draws in found.items()}
    claims = [agreement(sets, methods, free, targets, size), held_out(sets, methods, found, targets)]
    return report.write(__file__, "Mixture of vMF", TITLE, quick, draw(sets[0], methods, found, free), claims, out)


TITLE = "orbits of comets, by minibatches and on all rows"


def by_name(sets: list[Data], name: str) -> Data:
    return next(data for data in sets if data.name == name)


def differences(free: dict, name: str, method: str) -> dict[str, tuple[float, float]]:
    """Of every label-free function: mean less that of GMC, and its standard error, in sds of GMC."""
    ours, theirs = free[name, method], free[name, METHODS[0]]
    return {
        f: ((ours[f].mean() - x.mean()) / x.std(), np.hypot(standard_error(ours[f]), standard_error(x)) / x.std())
        for f, x in theirs.items()
    }


def agreement(sets: list[Data], methods: Any, free: dict, targets: dict, size: Size) -> dict:
    told, beyond, least, same = [], [], {}, []
    for data in sets:
        jax_sum = targets[data.name].log_likelihood(targets[data.name].start, data.train).sum()
        same.append(np.isclose(jax_sum, log_densities(targets[data.name].start, data.train).sum(), rtol=1e-4))
        for method in methods:
            least[data.name, method] = min(effective(x) for x in free[data.name, method].values())
            if method == METHODS[0]:
                continue
            off = differences(free, data.name, method)
            worst = max(off, key=lambda f, off=off: abs(off[f][0]) - FAR * off[f][1])
            beyond += [abs(d) - FAR * e for d, e in off.values()]
            told.append(
                f"{data.name}, {method}: {off[worst][0]:+.2f} ± {off[worst][1]:.2f} sds ({worst}), "
                f"mean over all {np.mean([abs(d) for d, _ in off.values()]):.2f}"
            )
    cost = "; ".join(f"{name}, {method}: {ess:.0f}" for (name, method), ess in least.items())
    rows = len(sets[0].train)
    ratio = size.batch * size.thin / (rows * (size.leapfrog_steps + 1))
    return report.claim(
        "Models that involve von Mises-Fisher laws, such as mixtures, are among the applications.",
        f"Means by minibatches of {size.batch} against GMC on all {rows:,} rows, the worst label-free function: "
        f"{'; '.join(told)}. Rows seen for a draw, of those of GMC: {100 * ratio:.0f} %. Effective draws of the "
        f"slowest function: {cost}.",
        max(beyond) < CLOSE,
        {
            "over 50 effective draws of every function": min(least.values()) > 50,
            "two formulas of the density agree": all(same),
        },
        f"It holds if no function is off by {CLOSE} sd more than {FAR} standard errors explain. Centres of the control "
        "variates are from EM. The unit of the concentrations and a background of concentration 0 keep posterior "
        "sds within a factor of ten of each other: the sharpest direction sets the step for all.",
    )


def held_out(sets: list[Data], methods: Any, found: dict, targets: dict) -> dict:
    told, fine, sharp = [], [], []
    for data in sets:
        rows, error = predictive(found[data.name, METHODS[0]], data.test)
        plug_in = log_densities(targets[data.name].start, data.test)
        gain = rows - plug_in
        better = f"{gain.mean():.4f} ± {gain.std() / len(gain) ** 0.5:.4f}"
        told.append(
            f"{data.name} ({len(rows)} rows): GMC {rows.mean():.4f} ± {error:.4f}, "
            f"EM's estimate {plug_in.mean():.4f} (GMC better by {better})"
        )
        for method in methods[1:]:
            mine, its = predictive(found[data.name, method], data.test)
            told[-1] += f", {method} {mine.mean():.4f} ± {its:.4f}"
            joint = np.hypot(error, its)
            fine.append(abs(mine.mean() - rows.mean()) < FAR * joint + 1e-3)
            sharp.append(joint < 0.01)
    return report.claim(
        "By minibatches, new rows are predicted as well as on all rows.",
        f"Mean log predictive density of held-out rows, error over chains: {'; '.join(told)}.",
        all(fine),
        {"errors below 0.01": all(sharp)},
        "Ours to ask: what a user of the mixture wants. A difference of 0.001 is allowed beyond the errors.",
    )


def draw(data: Data, methods: Any, found: dict, free: dict) -> Any:
    figure = plt.figure(figsize=(10, 7.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    sky = top.add_subplot(projection="mollweide")
    longitude, latitude = np.linspace(-np.pi, np.pi, 181), np.linspace(-np.pi / 2, np.pi / 2, 91)
    a, b = np.meshgrid(longitude, latitude)
    grid = np.stack([np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)], -1).reshape(-1, 3)
    few = {name: x[:, -100::10].reshape(-1, *x.shape[2:]) for name, x in found[data.name, methods[1]].items()}
    height = np.log10(np.exp(log_densities(few, grid)).mean(0)).reshape(a.shape)
    shade = sky.contourf(a, b, height, levels=np.arange(-1.6, 2.01, 0.4), cmap="YlOrBr", extend="both")
    top.colorbar(shade, ax=sky, shrink=0.7, label="log₁₀ of predictive density")
    x = data.train
    sky.plot(np.arctan2(x[:, 1], x[:, 0]), np.arcsin(x[:, 2]), ".", ms=1.6, color=COLOURS["SGGMC"])
    sky.set(xticklabels=[], yticklabels=[])
    sky.grid(alpha=0.3)
    sky.set_title(f"normals of {len(x):,} orbits of comets, and what SGGMC predicts")

    axis = bottom.subplots()
    names = list(free[data.name, METHODS[0]])
    base = free[data.name, METHODS[0]]
    for m, method in enumerate(methods):
        for row, f in enumerate(names):
            z = (free[data.name, method][f] - base[f].mean()) / base[f].std()
            low, middle, high = np.quantile(z, [0.05, 0.5, 0.95])
            place = row + 0.24 * (m - 1)
            axis.plot([place, place], [low, high], color=COLOURS[method], lw=2, label=None if row else method)
            axis.plot(place, middle, "o", ms=4, color=COLOURS[method])
    axis.set_xticks(range(len(names)), [f.replace(", ", "\n").replace(" of ", "\nof ") for f in names])
    axis.set(ylabel="sds of GMC", title="label-free quantities: median and 5 % to 95 %")
    axis.legend(frameon=False, ncols=3, loc="upper center")
    axis.set_ylim(-2.6, 3.4)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    report.command_line(main)
