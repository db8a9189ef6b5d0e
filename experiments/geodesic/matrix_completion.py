"""Bayesian matrix completion with orthonormal factors (Liu, Zhu & Song 2016, Sec. 6), by minibatches of entries.

python -m experiments.geodesic.matrix_completion [--quick]

A matrix (n, m) is sqrt(n m) U diag(s) V^T + noise of sd sigma, with U and V on Stiefel manifolds, s and sigma positive,
and some of its entries are seen. Beside it the model as it is written without manifolds, A B^T + noise with normal
factors, by NUTS. What both say of the entries that were not seen is comparable; their parameters are not.
Where FOKKER_DATA has them, spectra of Landsat pixels are completed too.
"""

from __future__ import annotations

import gzip
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import fokker
from experiments import report
from experiments.geodesic.nuts import nuts

METHODS = ("GMC, all entries", "SGGMC", "normal factors, NUTS")
COLOURS = dict(zip(METHODS, (report.COLOURS[m] for m in ("exact", "SGLD", "gSGRHMC")), strict=True))
STEP = 0.006
LEVELS = np.arange(0.1, 1.0, 0.1)


@dataclass(frozen=True)
class Matrix:
    """Entries that were seen and others, each {"i", "j", "y"}."""

    name: str
    shape: tuple[int, int]
    rank: int
    seen: dict[str, np.ndarray]
    unseen: dict[str, np.ndarray]
    noise: float | None  # where it is known


@dataclass(frozen=True)
class Predicted:
    """Of entries that were not seen, by draws: means (draws, entries) and noise sds (draws,)."""

    mean: np.ndarray
    sigma: np.ndarray
    seconds: float

    def log_score(self, y: np.ndarray) -> np.ndarray:
        """Log of the predictive density of every entry."""
        z = (y - self.mean) / self.sigma[:, None]
        each = -(z**2) / 2 - np.log(self.sigma[:, None] * np.sqrt(2 * np.pi))
        return np.logaddexp.reduce(each, axis=0) - np.log(len(each))

    def rank(self, y: np.ndarray) -> np.ndarray:
        """Predictive distribution function at every entry; uniform where the model is right."""
        return stats.norm.cdf((y - self.mean) / self.sigma[:, None]).mean(0)


def divided(name: str, M: np.ndarray, rank: int, share: float, noise: float | None = None) -> Matrix:
    """A share of the entries is seen, at random."""
    seen = np.random.default_rng(1).random(M.shape) < share

    def entries(mask: np.ndarray) -> dict[str, np.ndarray]:
        i, j = np.nonzero(mask)
        return {"i": i.astype(np.int32), "j": j.astype(np.int32), "y": M[mask].astype(np.float32)}

    return Matrix(name, (M.shape[0], M.shape[1]), rank, entries(seen), entries(~seen), noise)


def simulated(n: int, m: int) -> Matrix:
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.normal(size=(k, 3)))[0] for k in (n, m))
    M = np.sqrt(n * m) * U @ np.diag([1.0, 0.7, 0.5]) @ V.T + 0.3 * rng.normal(size=(n, m))
    return divided("simulated", M, 3, 0.5, 0.3)


def landsat(n: int) -> Matrix | None:
    """Pixels and their neighbours in four bands, each band standardised; None without FOKKER_DATA."""
    path = Path(os.environ.get("FOKKER_DATA", "")) / "tall" / "Satellite.csv.gz"
    if not os.environ.get("FOKKER_DATA") or not path.is_file():
        return None
    with gzip.open(path, "rt") as lines:
        next(lines)
        rows = [line.split(",")[:36] for line in lines]
    M = np.array([[float(cell.strip('"')) for cell in row] for row in rows])
    M = np.random.default_rng(0).permutation(M)[:n]
    return divided("Landsat", (M - M.mean(0)) / M.std(0), 3, 0.5)


def orthonormal(data: Matrix) -> fokker.Target:
    (n, m), p = data.shape, data.rank
    size = np.sqrt(n * m)

    def log_prior(q: Any) -> Any:  # uniform on U and V
        return -jnp.sum(q["s"] ** 2) / 8 - q["sigma"] ** 2 / 2

    def log_likelihood(q: Any, rows: Any) -> Any:
        mean = size * jnp.sum(q["U"][rows["i"]] * q["s"] * q["V"][rows["j"]], axis=1)
        return -(((rows["y"] - mean) / q["sigma"]) ** 2) / 2 - jnp.log(q["sigma"])

    space = {
        "U": fokker.Stiefel(n, p),
        "V": fokker.Stiefel(m, p),
        "s": fokker.Positive(p),
        "sigma": fokker.Positive(),
    }
    filled = np.zeros((n, m))
    filled[data.seen["i"], data.seen["j"]] = data.seen["y"] * n * m / len(data.seen["y"])
    U, s, Vt = np.linalg.svd(filled, full_matrices=False)
    start = {"U": U[:, :p], "V": Vt[:p].T, "s": s[:p] / size, "sigma": np.array(0.5)}
    return fokker.Target(log_prior, log_likelihood, data.seen, space=space, start=start)


def predicted(run: fokker.Run, data: Matrix, seconds: float) -> Predicted:
    draw = {name: x.to_numpy().astype(float).reshape(-1, *x.shape[2:]) for name, x in run.draws.items()}
    left, right = draw["U"][:, data.unseen["i"]], draw["V"][:, data.unseen["j"]]
    mean = np.sqrt(np.prod(data.shape)) * np.einsum("dep,dp,dep->de", left, draw["s"], right)
    return Predicted(mean, draw["sigma"], seconds)


def by_manifolds(data: Matrix, draws: int, warmup: int, methods: Any) -> dict[str, Predicted]:
    """GMC on all entries, SGGMC by a quarter of them with control variates whose centre follows the chain."""
    target, found = orthonormal(data), {}
    settings: Any = dict(draws=draws, seed=1, progress=False)
    for method in methods:
        begin = time.perf_counter()
        if method == METHODS[0]:
            run = fokker.sample(target, fokker.gmc(STEP, leapfrog_steps=10), warmup=100, **settings)
        else:
            gradient, batch = fokker.svrg(refresh_every=100), len(data.seen["y"]) // 4
            kernel = fokker.sggmc(STEP, friction=400.0)
            run = fokker.sample(target, kernel, gradient=gradient, thin=10, warmup=warmup, batch_size=batch, **settings)
        found[method] = predicted(run, data, time.perf_counter() - begin)
    return found


def by_factors(data: Matrix, draws: int) -> Predicted:
    """A B^T + noise: entries of A are Normal(0, 1), of B Normal(0, tau^2)."""
    (n, m), p = data.shape, data.rank
    i, j, y = (jnp.asarray(data.seen[name]) for name in "ijy")

    def log_density(q: Any) -> Any:
        tau, sigma = jnp.exp(q["log_tau"]), jnp.exp(q["log_sigma"])
        mean = jnp.sum(q["A"][i] * q["B"][j], axis=1)
        fit = -jnp.sum((y - mean) ** 2) / (2 * sigma**2) - y.size * q["log_sigma"]
        factors = -jnp.sum(q["A"] ** 2) / 2 - jnp.sum(q["B"] ** 2) / (2 * tau**2) - m * p * q["log_tau"]
        return fit + factors - q["log_tau"] ** 2 / 2 - sigma**2 / 2 + q["log_sigma"]  # sigma: as in the other model

    rng = np.random.default_rng(1)
    starts = {
        "A": rng.normal(size=(4, n, p)).astype(np.float32),
        "B": rng.normal(size=(4, m, p)).astype(np.float32),
        "log_tau": np.zeros(4, np.float32),
        "log_sigma": np.full(4, -0.7, np.float32),
    }
    begin = time.perf_counter()
    found = nuts(log_density, starts, 300, draws, seed=1)
    seconds = time.perf_counter() - begin
    A, B = (found.values[name].astype(float).reshape(4 * draws, -1, p) for name in "AB")
    mean = np.einsum("dep,dep->de", A[:, data.unseen["i"]], B[:, data.unseen["j"]])
    return Predicted(mean, np.exp(found.values["log_sigma"].astype(float)).ravel(), seconds)


def main(quick: bool = False, out: Any = None) -> dict:
    draws, warmup, methods = (100, 6000, METHODS[1:2]) if quick else (250, 1000, METHODS[:2])
    sets = [simulated(30, 24)] if quick else [d for d in (simulated(40, 30), landsat(100)) if d]
    found = {}
    for data in sets:
        found[data.name] = {**by_manifolds(data, draws, warmup, methods), METHODS[2]: by_factors(data, draws)}
    claims = [prediction(sets, found), calibration(sets, found)]
    return report.write(__file__, "Matrix completion", TITLE, quick, draw(sets, found), claims, out)


TITLE = "orthonormal factors by minibatches of entries, normal factors by NUTS"


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def prediction(sets: list[Matrix], found: dict) -> dict:
    told, fine, sharp, agree = [], [], [], {}
    for data in sets:
        y, by = data.unseen["y"], found[data.name]
        score = {method: p.log_score(y) for method, p in by.items()}
        gain = score[METHODS[1]] - score[METHODS[2]]
        error = gain.std() / len(gain) ** 0.5
        fine.append(gain.mean() > -2 * error - 0.05)
        sharp.append(error < 0.05)
        if METHODS[0] in by:
            off = by[METHODS[1]].mean.mean(0) - by[METHODS[0]].mean.mean(0)
            agree[data.name] = rms(off) / rms(by[METHODS[0]].mean.std(0))
        told.append(
            f"{data.name}, {len(data.seen['y'])} entries of {data.shape[0]} × {data.shape[1]} seen: "
            + "; ".join(
                f"{method} {rms(y - p.mean.mean(0)):.3f}, {score[method].mean():.3f}, {p.seconds:.0f} s"
                for method, p in by.items()
            )
            + f"; SGGMC's score less that of NUTS: {gain.mean():+.3f} ± {error:.3f}"
            + ("" if data.noise is None else f"; sd of the noise: {data.noise}")
        )
    apart = ", ".join(f"{value:.2f}" for value in agree.values()) or "(not run)"
    return report.claim(
        "Distributions on a Stiefel manifold, such as Bayesian matrix completion, are among the applications.",
        f"Unseen entries, error (root mean square), mean log score, time with compilation. {'. '.join(told)}.",
        all(fine),
        {
            "gains known to 0.05": all(sharp),
            **{f"{name}: SGGMC predicts as GMC within half a sd": value < 0.5 for name, value in agree.items()},
        },
        f"It holds if SGGMC scores 0.05 less than normal factors at most. Predictions of SGGMC and GMC differ by "
        f"{apart} posterior sds (root mean square), the error of finitely many draws included. Times include "
        "compilation and are those of a busy machine: they order nothing. The cost of a step of SGGMC grows with the "
        "batch and with n + m, not with the entries seen.",
    )


def calibration(sets: list[Matrix], found: dict) -> dict:
    told, fine = [], []
    for data in sets:
        y = data.unseen["y"]
        for method, p in found[data.name].items():
            inside = np.abs(p.rank(y) - 0.5) < 0.45
            told.append(f"{data.name}, {method}: {100 * inside.mean():.1f} %")
            if method == METHODS[1] and data.noise is not None:
                fine.append(abs(inside.mean() - 0.9) < 4 * np.sqrt(0.09 / len(y)))
    return report.claim(
        "What it says of unseen entries is calibrated.",
        f"Unseen entries within their 90 % predictive intervals. {'; '.join(told)}.",
        all(fine),
        {"a matrix from the model": bool(fine)},
        "Ours to ask. Decided by the simulated matrix, for which the model is right, with four binomial standard "
        "errors; real data have noise of another shape.",
    )


def draw(sets: list[Matrix], found: dict) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4.4), layout="constrained", width_ratios=(1, 1, 0.9))
    entries, coverage, scores = axes
    data = sets[0]
    y, p = data.unseen["y"][:150], found[data.name][METHODS[1]]
    middle = p.mean[:, :150].mean(0)
    spread = np.sqrt(p.mean[:, :150].var(0) + (p.sigma**2).mean())
    entries.errorbar(y, middle, yerr=1.645 * spread, fmt="o", ms=3, lw=0.6, color=COLOURS[METHODS[1]])
    edge = [min(y.min(), middle.min()), max(y.max(), middle.max())]
    entries.plot(edge, edge, color="black", lw=0.8)
    entries.set(title="unseen entries and their 90 % intervals", xlabel="entry", ylabel="predicted by SGGMC")

    for data, style in zip(sets, ("-", "--"), strict=False):
        for method, p in found[data.name].items():
            off = np.abs(p.rank(data.unseen["y"]) - 0.5)
            inside = [(off < level / 2).mean() - level for level in LEVELS]
            look = dict(color=COLOURS[method], ls=style, marker=".")
            coverage.plot(LEVELS, inside, label=f"{data.name}, {method}", **look)
    coverage.axhline(0, color="black", lw=0.8)
    coverage.set(title="share of unseen entries within intervals", xlabel="nominal", ylabel="share − nominal")
    coverage.set_ylim(top=coverage.get_ylim()[1] + 0.1)
    coverage.legend(frameon=False, fontsize=6, loc="upper center", ncols=2)

    rows = [(data, method) for data in sets for method in found[data.name]]
    for row, (data, method) in enumerate(rows):
        best = found[data.name][METHODS[2]].log_score(data.unseen["y"])
        gain = found[data.name][method].log_score(data.unseen["y"]) - best
        error = gain.std() / len(gain) ** 0.5
        scores.errorbar(gain.mean(), -row, xerr=2 * error, fmt="o", ms=5, capsize=2, color=COLOURS[method])
    scores.axvline(0, color="black", lw=0.8)
    scores.set_yticks(
        [-row for row in range(len(rows))], [f"{data.name}\n{method}" for data, method in rows], fontsize=8
    )
    scores.set(title="log score less that of NUTS", xlabel="per entry, ± 2 standard errors")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    report.command_line(main)
