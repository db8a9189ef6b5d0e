"""Automatic tuning on manifolds against a grid: ESS/s of what the run chooses, over that of the best admissible point.

Admissible: the sd of every functional that is looked at lies within [0.9, 1.1] of the true one, for every seed. The
grid spans step size and friction (GMC: step size and number of leapfrog steps) in factors of 2 around what the tuner
chose for the first seed. Grid and tuned settings run in one compiled program,
whose settings are arguments, with batches drawn independently. Truth: closed forms, or long chains of GMC, which is
exact. Prints one line of JSON per posterior and kernel, and a last line for all.

    python benchmarks/tuning_manifolds.py [--quick] [--only NAME] [--kernel sggmc] [--seeds 3]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _harness import machine, say
from arviz_stats.base import array_stats

from fokker.geodesic.gmc import gmc
from fokker.geodesic.gsgnht import gsgnht
from fokker.geodesic.sggmc import sggmc
from fokker.manifolds.constrained import Positive
from fokker.manifolds.euclidean import Euclidean
from fokker.manifolds.simplex import Simplex
from fokker.manifolds.sphere import Sphere
from fokker.manifolds.stiefel import Stiefel
from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run.gradients import control_variates, minibatch
from fokker.run.mode import find_mode
from fokker.run.plan import Plan, make_plan
from fokker.run.tune import tune
from fokker.sgmcmc.kernel import BoundGradient
from fokker.target import Target

TARGET = 0.5
LOW, HIGH = 0.9, 1.1
RESULTS = Path(__file__).parent / "results" / "tuning_manifolds.json"
KERNELS = {"sggmc": sggmc, "gsgnht": gsgnht, "gmc": gmc}
CHAINS = 4


@dataclass
class Posterior:
    name: str
    target: Target
    gradient: Any
    batch_size: int | None
    see: Callable[[np.ndarray], np.ndarray]  # parameters (..., d) -> functionals (..., k)
    truth: np.ndarray | None = None  # (k,) their sds, None: from a long run of GMC


# --- posteriors -----------------------------------------------------------------------------------------------------


def logistic_on_sphere(size: int = 10_000, d: int = 50) -> Posterior:
    """A unit vector of coefficients with a vMF prior; coefficients across the mode are looked at."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((size, d)).astype(np.float32)
    beta = rng.standard_normal(d)
    beta /= np.linalg.norm(beta)
    y = (rng.random(size) < 1 / (1 + np.exp(-4 * X @ beta))).astype(np.float32)
    mu = jnp.eye(d)[0]

    def rows(b: Any, batch: Any) -> Any:
        eta = 4 * batch["X"] @ b
        return batch["y"] * eta - jnp.logaddexp(0.0, eta)

    target = Target(
        lambda b: 50 * b @ mu, rows, {"X": X, "y": y}, space=Sphere(d), start=np.eye(d, dtype=np.float32)[0]
    )
    name = f"logistic regression on the sphere, {size:,} x {d}"
    return Posterior(name, target, control_variates(), 100, lambda x: x)


def multinomial_on_simplex() -> Posterior:
    """Counts of ten kinds, the least 5, with a flat prior: Dirichlet."""
    counts = np.array([5, 8, 12, 6, 30, 9, 15, 7, 22, 11], np.float32)
    alpha = counts + 1
    share = alpha / alpha.sum()
    return Posterior(
        "Dirichlet-multinomial, simplex of 10",
        Target(lambda t: jnp.sum(counts * jnp.log(t)), None, space=Simplex(10), start=np.full(10, 0.1, np.float32)),
        minibatch(), None, lambda x: x, np.sqrt(share * (1 - share) / (alpha.sum() + 1)),
    )  # fmt: skip


def langevin_on_stiefel() -> Posterior:
    """Matrix Langevin with concentrations 30, 12, 5 along the axes, on orthonormal frames."""
    F = np.zeros((10, 3), np.float32)
    F[0, 0], F[1, 1], F[2, 2] = 30, 12, 5
    start = np.eye(10, 3, dtype=np.float32)
    return Posterior(
        "matrix Langevin, Stiefel(10, 3)", Target(lambda X: jnp.sum(F * X), None, space=Stiefel(10, 3), start=start),
        minibatch(), None, lambda x: x,
    )  # fmt: skip


def mixed_regression(size: int = 4000) -> Posterior:
    """y ~ Normal(intercept + 3 x . direction, sigma): a direction, an intercept and a scale."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((size, 5)).astype(np.float32)
    direction = np.array([3, 0, 4, 0, 0]) / 5
    y = (100 + 3 * X @ direction + 0.7 * rng.standard_normal(size)).astype(np.float32)

    def rows(p: Any, batch: Any) -> Any:
        z = (batch["y"] - p["intercept"] - 3 * batch["X"] @ p["direction"]) / p["sigma"]
        return -0.5 * z**2 - jnp.log(p["sigma"])

    target = Target(
        lambda p: -p["sigma"] - 0.5 * (p["intercept"] / 1000) ** 2, rows, {"X": X, "y": y},
        space={"direction": Sphere(5), "sigma": Positive(), "intercept": Euclidean()},
        start={"direction": np.eye(5, dtype=np.float32)[0], "sigma": np.float32(2), "intercept": np.float32(99)},
    )  # fmt: skip
    return Posterior(f"sphere, intercept and scale, {size:,} rows", target, control_variates(), 100, lambda x: x)


FULL = (logistic_on_sphere, multinomial_on_simplex, langevin_on_stiefel, mixed_regression)
QUICK = (multinomial_on_simplex,)


# --- one program per posterior and kernel ---------------------------------------------------------------------------


class Runner:
    """Chains of one kernel, vectorised, with settings as arguments of the compiled program."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kind = plan, type(plan.kernel)
        estimator = plan.gradient.bind(plan.target)
        self.aux = None if self.kind is gmc else estimator.init(jnp.asarray(plan.starts[0]))
        self.data = jax.tree.map(jnp.asarray, plan.target.data)
        size = 0 if plan.target.log_likelihood is None else len(jax.tree.leaves(self.data)[0])

        class Given:
            noise = "none"

            def __init__(self, aux: Any) -> None:
                self.aux = aux

            def bind(self, target: Target) -> BoundGradient:
                return BoundGradient(lambda position: self.aux, estimator.estimate)

        def chain(fields: Any, aux: Any, data: Any, start: Any, words: Any, warmup: Any, thin: Any, draws: int) -> Any:
            full = self.kind is gmc
            bound = self.kind(**fields).bind(plan.target, None if full else Given(aux))

            def one(t: Any, state: Any) -> Any:
                batch = data if full or not size else None
                if size and not full:
                    assert plan.batch_size is not None
                    at = jax.random.randint(
                        jax.random.fold_in(jax.random.key(words[0]), t), (plan.batch_size,), 0, size
                    )
                    batch = jax.tree.map(lambda leaf: leaf[at], data)
                return bound.step(Key(words, t.astype(jnp.uint32)), state, batch)[0]

            state = bound.init(start, Key(words ^ jnp.uint32(0x5A5A5A5A), jnp.uint32(0)))
            state = jax.lax.fori_loop(0, warmup, one, state)

            def keep(state: Any, i: Any) -> Any:
                state = jax.lax.fori_loop(warmup + i * thin, warmup + (i + 1) * thin, one, state)
                return state, state.position

            return jax.lax.scan(keep, state, jnp.arange(draws))[1]

        def all_chains(
            fields: Any, aux: Any, data: Any, starts: Any, words: Any, warmup: Any, thin: Any, draws: int
        ) -> Any:
            one = lambda start, w: chain(fields, aux, data, start, w, warmup, thin, draws)
            return jax.lax.map(lambda p: one(*p), (starts, words))

        self.steps = "leapfrog_steps"
        self.program = jax.jit(all_chains, static_argnums=7)

    def __call__(self, fields: dict[str, Any], starts: Any, seed: int, warmup: int, thin: int, draws: int) -> Any:
        """(chains, draws, d), and seconds."""
        leaves = len(self.plan.layout.variables)
        shape = lambda k: (leaves,) if k == "scales" else ()
        fields = {"scales": 1.0} | fields
        fields = {
            k: jnp.broadcast_to(jnp.asarray(v, int if k == self.steps else jnp.float32), shape(k))
            for k, v in fields.items()
        }
        words = jnp.asarray(np.stack([random.chain_words(seed, c) for c in range(CHAINS)]))
        rest = self.aux, self.data, jnp.asarray(np.stack(starts)), words, warmup, thin
        begun = time.perf_counter()
        x = np.asarray(self.program(fields, *rest, draws), np.float64)
        return x, time.perf_counter() - begun


@dataclass
class Score:
    ratios: np.ndarray  # sd over truth of every functional
    ess: float  # of the worst, the lesser of that for means and that of squares
    gradients: float
    seconds: float

    @property
    def worst(self) -> float:
        return float(self.ratios[np.argmax(np.abs(np.log(np.maximum(self.ratios, 1e-9))))])

    @property
    def admissible(self) -> bool:
        return bool(LOW <= self.worst <= HIGH)


def score(x: np.ndarray, seconds: float, gradients: float, posterior: Posterior) -> Score:
    assert posterior.truth is not None
    f = posterior.see(x)
    if not np.isfinite(f).all():
        return Score(np.full(f.shape[-1], np.inf), 1e-9, gradients, seconds)
    f = (f - f.mean((0, 1))) / posterior.truth
    ess = lambda v, kind: float(array_stats.ess(v, chain_axis=0, draw_axis=1, method=kind))
    each = [min(ess(f[..., c], "bulk"), ess(f[..., c] ** 2, "mean")) for c in range(f.shape[-1])]
    return Score(f.std((0, 1)), float(np.nan_to_num(min(each), nan=1e-9)), gradients, seconds)


# --- the comparison -------------------------------------------------------------------------------------------------


def plan_of(posterior: Posterior, method: str, seed: int) -> Plan:
    """As fokker.sample makes it, with the centre of control variates in place."""
    full = method == "gmc"
    rows = posterior.target.log_likelihood is not None and not full
    plan = make_plan(
        posterior.target, KERNELS[method](), minibatch() if full else posterior.gradient, init=None, draws=5000,
        warmup=2000, thin=1 if full else 4, chains=CHAINS, batch_size=posterior.batch_size if rows else None,
        batches="independent" if rows else None, share_batches=False, seed=seed, dtype="float32",
    )  # fmt: skip
    if not isinstance(plan.gradient, control_variates):
        return plan
    centre = np.asarray(find_mode(plan.target, plan.starts[0]))
    return dataclasses.replace(plan, gradient=dataclasses.replace(plan.gradient, centre=centre))


@dataclass
class Tuned:
    fields: dict[str, Any]
    starts: Any
    why: dict[str, Any]
    seconds: float


def tuned(posterior: Posterior, method: str, seed: int) -> Tuned:
    begun = time.perf_counter()
    plan, chosen = tune(plan_of(posterior, method, seed), lambda text, keep=False: None)
    return Tuned(chosen["kernel"], plan.starts, chosen["why"], time.perf_counter() - begun)


def cost(fields: dict[str, Any]) -> int:
    return int(fields["leapfrog_steps"]) + 1 if "leapfrog_steps" in fields else 1


def settings(method: str, unit: dict[str, Any], step: float, second: float) -> dict[str, Any]:
    """A point of the grid: powers of 2 of step and friction, or of step and leapfrog steps."""
    eps = unit["step_size"] * 2.0**step
    scales = {"scales": unit.get("scales", 1.0)}
    if method == "gmc":
        return scales | {"step_size": eps, "leapfrog_steps": max(1, round(unit["leapfrog_steps"] * 2.0**second))}
    friction = unit["friction"] * 2.0**second
    more = {"inertia": unit["inertia"] / 4.0**second} if method == "gsgnht" else {}
    return scales | {"step_size": eps, "friction": friction} | more


def compare(posterior: Posterior, method: str, seeds: int, quick: bool) -> dict[str, Any]:
    """The grid's middle is the tuner's first choice, from which it goes far to all sides: what matters is the best."""
    ours = [tuned(posterior, method, seed) for seed in range(seeds)]
    runner, draws = Runner(plan_of(posterior, method, 0)), 1500

    def trial(fields: dict[str, Any], starts: Any, seed: int, count: int) -> Score:
        thin = 1 if method == "gmc" else 3
        x, seconds = runner(fields, starts, 1000 + seed, 300, thin, count)
        return score(x, seconds * count * thin / (count * thin + 300), CHAINS * count * thin * cost(fields), posterior)

    unit = ours[0].fields
    trial(unit, ours[0].starts, 0, draws)  # compiles
    steps = (-1, 0, 1) if quick else (-2, -1, -0.5, 0, 0.5, 1, 2)
    seconds_of = (-1, 0, 1) if quick else (-2, -1, 0, 1, 2)
    seen = {(a, b): trial(settings(method, unit, a, b), ours[0].starts, 0, draws) for a in steps for b in seconds_of}
    sound = sorted((p for p in seen if seen[p].admissible), key=lambda p: -seen[p].ess / seen[p].gradients)
    mine: list[Score] = [trial(t.fields, t.starts, seed, draws) for seed, t in enumerate(ours)]
    theirs = {p: [trial(settings(method, unit, *p), t.starts, s, draws) for s, t in enumerate(ours)] for p in sound[:4]}
    throughout = {p: s for p, s in theirs.items() if all(one.admissible for one in s)}
    rate = lambda scores: [s.ess / s.gradients for s in scores]
    best = max(throughout, key=lambda p: float(np.median(rate(throughout[p])))) if throughout else None
    top = float(np.median(rate(throughout[best]))) if best is not None else float("nan")
    ratios = [r / top for r in rate(mine)] if best is not None else []
    pace = [float(np.median([s.seconds / s.gradients for s in scores])) for scores in (mine, theirs.get(best, mine))]
    by_time = [r * pace[1] / pace[0] for r in ratios]
    return {
        "name": f"{posterior.name}, {type(posterior.gradient).__name__ if method != 'gmc' else 'all rows'}, {method}",
        "measured": round(min(by_time), 3) if by_time else None,
        "target": TARGET,
        "met": bool(all(s.admissible for s in mine) and (not by_time or min(by_time) >= TARGET)),
        "tuned_sd_ratios": [round(s.worst, 3) for s in mine],
        "tuned_ess": [round(s.ess) for s in mine],
        "ess_per_gradient_ratios": [round(r, 3) for r in ratios],
        "ess_per_second_ratios": [round(r, 3) for r in by_time],
        "best_of_grid": best,
        "best_sd_ratios": [] if best is None else [round(s.worst, 3) for s in throughout[best]],
        "points_of_grid": len(seen),
        "tuned": {"step_sizes": [t.fields["step_size"] for t in ours], "first": ours[0].fields, "why": ours[0].why},
        "tuning_seconds": round(float(np.median([t.seconds for t in ours])), 1),
    }


def true_sds(posterior: Posterior, draws: int) -> np.ndarray:
    """From chains of GMC, which is exact."""
    t = tuned(posterior, "gmc", 0)
    x, _ = Runner(plan_of(posterior, "gmc", 0))(t.fields, t.starts, 77, 200, 1, draws)
    return np.asarray(posterior.see(x).std((0, 1)))


# --- rows and results -----------------------------------------------------------------------------------------------


def keep(row: dict[str, Any]) -> None:
    """The row in the file of results, in place of an earlier one of its name."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    rows = [r for r in rows if r["name"] != row["name"]] + [row]
    head = json.dumps({"benchmark": "tuning_manifolds", "quick": False, "met": all(r["met"] for r in rows)})[:-1]
    lines = ",\n  ".join(json.dumps(r) for r in rows)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f'{head},\n "rows": [\n  {lines}\n ]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one posterior, two seeds, a coarser grid")
    parser.add_argument("--only", default="", help="posteriors whose function's name contains this")
    parser.add_argument("--kernel", choices=list(KERNELS), help="this kernel alone")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for make in [m for m in (QUICK if options.quick else FULL) if options.only in m.__name__]:
        posterior = make()
        if posterior.truth is None:
            posterior.truth = true_sds(posterior, 4000)
        for method in list(KERNELS)[:2] if options.kernel is None else [options.kernel]:
            row = compare(posterior, method, 2 if options.quick else options.seeds, options.quick)
            say(row)
            rows.append(row)
            if not options.quick:
                keep(row | {"machine": machine()})
    say({"benchmark": "tuning_manifolds", "quick": options.quick, "met": bool(rows) and all(r["met"] for r in rows)})


if __name__ == "__main__":
    main()
