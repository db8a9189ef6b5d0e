"""Automatic tuning against a grid: ESS/s of what the run chooses, over that of the best admissible point of a grid.

Admissible: the worst coordinate's sd over the true sd lies in [0.9, 1.1]. The grid spans step size and friction (for
SGNHT the injected noise A and the scale of time), preconditioned by the true marginal sds, which the tuner has to find
itself. It is searched in factors of 2, then of sqrt 2 around the best; the best points are run with all seeds. The grid
is of diagonal preconditioners; the tuner may take the covariance. Grid and tuned settings run in the same compiled
program, whose settings are arguments, interleaved. ESS is that of the worst coordinate; two are reported:
rank-normalised ("bulk", for means) and the lesser of it and the ESS of squares ("spread", for sds). Prints one line of
JSON per posterior and kernel, and a last line for all.

    python benchmarks/tuning.py [--quick] [--only NAME] [--kernel sgld]
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _harness import machine, say
from arviz_stats.base import array_stats

from fokker.linear_models import glm
from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run import blocks
from fokker.run.gradients import control_variates, minibatch
from fokker.run.local_shape import find_shape
from fokker.run.mode import find_mode
from fokker.run.plan import Plan, make_plan
from fokker.run.tune import tune
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.target import Target

TARGET = 0.5
LOW, HIGH = 0.9, 1.1
KINDS = ("bulk", "spread")
RESULTS = Path(__file__).parent / "results" / "tuning.json"
CHAINS = 4
WORTH = 20_000  # draws that the true sds rest on: a standard error of 0.5 %
KERNELS = {"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}


@dataclass
class Posterior:
    name: str
    target: Target
    gradient: Any
    batch_size: int
    truth: np.ndarray = field(init=False)  # (d,) sds


# --- posteriors -----------------------------------------------------------------------------------------------------


def logistic_tall() -> Posterior:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((100_000, 50)).astype(np.float32)
    beta = 0.3 * rng.standard_normal(50)
    y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ beta))
    return Posterior("logistic, 100,000 x 50", glm(X, y, intercept=False), control_variates(), 100)


def logistic_scales() -> Posterior:
    rng = np.random.default_rng(2)
    d = 20
    L = np.linalg.cholesky(0.9 * np.ones((d, d)) + 0.1 * np.eye(d))
    X = rng.standard_normal((20_000, d)) @ L.T
    y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ (0.3 * rng.standard_normal(d))))
    target = glm((X * np.geomspace(1e-3, 1e3, d)).astype(np.float32), y, intercept=False, prior_scale=1e4)
    return Posterior("logistic, columns from 1e-3 to 1e3, correlation 0.9", target, control_variates(), 100)


def poisson_small() -> Posterior:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((500, 5)).astype(np.float32)
    y = rng.poisson(np.exp(0.4 * X @ rng.standard_normal(5) - 0.5)).astype(np.float32)
    return Posterior("Poisson, 500 x 5", glm(X, y, "poisson"), minibatch(), 100)


def sparse_binary() -> Posterior:
    """The adult data (a9a) where FOKKER_DATA has it, columns seen 100 times or more; else a design like it."""
    folder = os.environ.get("FOKKER_DATA")
    if folder:
        with gzip.open(Path(folder) / "tall" / "a9a.gz", "rt") as lines:
            rows = [line.split() for line in lines]
        y = np.array([float(r[0]) > 0 for r in rows])
        X = np.zeros((len(rows), 123), np.float32)
        for i, r in enumerate(rows):
            X[i, [int(cell.split(":")[0]) - 1 for cell in r[1:]]] = 1.0
        X, name = X[:, X.sum(0) >= 100], "logistic, a9a"
    else:
        rng = np.random.default_rng(4)
        latent = rng.standard_normal((30_000, 5)) @ rng.standard_normal((5, 60)) + rng.standard_normal((30_000, 60))
        X = (latent > np.quantile(latent, np.linspace(0.5, 0.99, 60), axis=0).diagonal()).astype(np.float32)
        y = rng.random(len(X)) < 1 / (1 + np.exp(-(X @ (0.5 * rng.standard_normal(60)) - 0.5)))
        name = "logistic, 30,000 x 60 sparse and binary"
    return Posterior(name, glm(X, y, prior_scale=1.0), control_variates(), 300)


def robust_regression() -> Posterior:
    """Student-t errors with 4 degrees of freedom; parameters are a tree with the log of the scale."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((2000, 8)).astype(np.float32)
    y = (X @ rng.standard_normal(8) + 0.7 * rng.standard_t(4, 2000)).astype(np.float32)

    def log_prior(p: Any) -> Any:
        return -0.5 * jnp.sum((p["beta"] / 10) ** 2) - 0.5 * (p["log_scale"] / 2) ** 2

    def log_likelihood(p: Any, batch: Any) -> Any:
        z = (batch["y"] - batch["X"] @ p["beta"]) * jnp.exp(-p["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4) - p["log_scale"]

    start = {"beta": np.zeros(8, np.float32), "log_scale": np.float32(0)}
    return Posterior(
        "Student-t regression, 2,000 x 8, log scale", Target(log_prior, log_likelihood, {"X": X, "y": y}, start=start),
        minibatch(), 100,
    )  # fmt: skip


def quick_gaussian() -> Posterior:
    rng = np.random.default_rng(6)
    X = (rng.standard_normal((1000, 4)) * [0.1, 1, 3, 10]).astype(np.float32)
    y = (X @ rng.standard_normal(4) + rng.standard_normal(1000)).astype(np.float32)
    return Posterior(
        "Gaussian, 1,000 x 4, scales 0.1 to 10", glm(X, y, "gaussian", intercept=False), control_variates(), 100
    )


FULL = (logistic_tall, logistic_scales, poisson_small, robust_regression)
LONG = (
    sparse_binary,
)  # by --only: groups of dummies are all but collinear, and an effective draw of SGLD is 30,000 steps
QUICK = (quick_gaussian,)


# --- truth ----------------------------------------------------------------------------------------------------------


def true_sds(plan: Plan) -> np.ndarray:
    """Draws of the quadratic at the mode, weighted by the exact density over its own, worth ``WORTH`` or more; (d,)."""
    with jax.enable_x64(True):
        shape = find_shape(plan.target, plan.starts[0], plan.layout)
        data = plan.target.data
        log_density = jax.jit(
            lambda thetas: jax.lax.map(lambda t: plan.target.log_density(t, data), thetas, batch_size=50)
        )
        mode = float(log_density(shape.mode[None])[0])
        drawn, log_weights = np.zeros((0, shape.size)), np.zeros(0)
        for seed in range(20):
            theta = shape.draws(WORTH, seed)
            away = theta - shape.mode
            quadratic = -0.5 * np.einsum("id,de,ie->i", away, shape.hessian, away, optimize=True)
            drawn = np.concatenate([drawn, away])
            log_weights = np.concatenate([log_weights, np.asarray(log_density(theta)) - mode - quadratic])
            weights = np.exp(log_weights - log_weights.max())
            weights /= weights.sum()
            if 1 / (weights**2).sum() >= WORTH:
                mean = weights @ drawn
                return np.sqrt(weights @ (drawn - mean) ** 2)
    raise RuntimeError(f"weighted draws are worth only {1 / (weights**2).sum():.0f} of {len(weights)}")


# --- one program per posterior and kernel ---------------------------------------------------------------------------


class Runner:
    """Chains of one kernel with settings as arguments of the compiled program."""

    def __init__(self, plan: Plan) -> None:
        self.plan, kind = plan, type(plan.kernel)
        estimator = plan.gradient.bind(plan.target)
        self.aux = estimator.init(jnp.asarray(plan.starts[0]))
        feed = blocks.Feed("windows", plan.batch_size)
        self.resident: dict[int, Any] = {}

        class Given:
            noise = plan.gradient.noise

            def __init__(self, aux: Any) -> None:
                self.aux = aux

            def bind(self, target: Target) -> BoundGradient:
                return BoundGradient(lambda position: self.aux, estimator.estimate)

        self.capacity = 4096

        def bound(fields: Any, aux: Any) -> Any:
            return kind(**fields).bind(plan.target, Given(aux))

        self.init = jax.jit(lambda fields, aux, start, words: bound(fields, aux).init(start, Key(words, jnp.uint32(0))))
        self.advance = jax.jit(
            lambda fields, aux, *rest: blocks.program(bound(fields, aux), feed, self.capacity)(*rest)
        )

    def __call__(self, fields: dict[str, Any], starts: Any, seed: int, warmup: int, thin: int, draws: int) -> Any:
        """(chains, draws, d) or None where a chain left every bound; and seconds of the steps that drew."""
        plan = self.plan
        windows = dataclasses.replace(plan.batches, seed=seed)
        if seed not in self.resident:
            self.resident = {seed: blocks.resident(plan.target.data, windows.resident_rows())}
        data, aux = self.resident[seed], self.aux
        d = plan.layout.size
        number = lambda k: k in ("step_size", "inertia") or (k == "diffusion" and isinstance(plan.kernel, sgnht))
        shape = lambda k, v: () if number(k) else (d, d) if np.ndim(v) == 2 else (d,)
        fields = {k: jnp.broadcast_to(jnp.asarray(v, jnp.float32), shape(k, v)) for k, v in fields.items()}
        out, seconds = [], 0.0
        for chain, start in enumerate(starts):
            words = jnp.asarray(random.chain_words(seed, chain))
            state = self.init(
                fields, aux, jnp.asarray(start), jnp.asarray(random.chain_words(seed, chain, random.INIT))
            )
            first, kept = 0, []
            for rounds, each, keep in ((1, warmup, False), (draws, thin, True)):
                while rounds > 0:
                    now = min(rounds, max(1, blocks.MAX_STEPS // each), self.capacity)
                    steps = each if now == 1 else each * now
                    now_each = min(each, blocks.MAX_STEPS)
                    index = np.zeros(blocks.MAX_STEPS, np.int32)
                    made = now * now_each
                    index[:made] = windows.starts(chain, first, made)
                    index = jnp.asarray(index)
                    begun = time.perf_counter()
                    block = self.advance(
                        fields, aux, state, words, jnp.uint32(first), jnp.int32(now), jnp.int32(now_each), data, index
                    )
                    positions = np.asarray(block.positions)[:now]
                    if keep:
                        seconds += time.perf_counter() - begun
                        kept.append(positions)
                    state, first = block.state, first + made
                    if not np.isfinite(positions).all():
                        return None, seconds
                    rounds, each = (rounds - now, each) if steps == made else (rounds, each - now_each)
            out.append(np.concatenate(kept))
        return np.stack(out).astype(np.float64), seconds


@dataclass
class Score:
    ratio: float  # sd over truth of the coordinate where it is worst
    bulk: float  # ESS of the worst coordinate
    spread: float
    gradients: int
    seconds: float

    @property
    def admissible(self) -> bool:
        return LOW <= self.ratio <= HIGH

    def rate(self, kind: str, per: str) -> float:
        return getattr(self, kind) / getattr(self, per)


FAILED = Score(np.inf, 1e-9, 1e-9, 1, 1.0)


def score(x: Any, seconds: float, thin: int, truth: np.ndarray) -> Score:
    if x is None:
        return FAILED
    ratios = x.std(axis=(0, 1)) / truth
    ess = lambda v: float(array_stats.ess(v, chain_axis=0, draw_axis=1, method="bulk"))
    mean_ess = lambda v: float(array_stats.ess(v, chain_axis=0, draw_axis=1, method="mean"))
    centred = (x - x.mean(axis=(0, 1))) ** 2
    each = [(ess(x[..., c]), mean_ess(centred[..., c])) for c in range(x.shape[-1])]
    bulk, square = np.nan_to_num(np.array(each), nan=1e-9).T
    worst = ratios[np.argmax(np.abs(np.log(np.maximum(ratios, 1e-9))))]
    return Score(
        float(worst), float(bulk.min()), float(np.minimum(bulk, square).min()), x.shape[0] * x.shape[1] * thin, seconds
    )


def grid_fields(method: str, truth: np.ndarray, eps: float, friction: float) -> dict[str, Any]:
    """A point of the grid in units of the true marginal sds; friction is a rate (SGNHT: A, where xi is near 1)."""
    if method == "sgld":
        return {"step_size": eps, "diffusion": truth**2}
    if method == "sghmc":
        return {"step_size": eps, "friction": friction / truth**2, "mass": 1 / truth**2}
    return {"step_size": eps * friction, "diffusion": 1.0, "mass": (friction / truth) ** 2}


# --- the comparison -------------------------------------------------------------------------------------------------


def plan_of(posterior: Posterior, method: str, seed: int, draws: int, thin: int) -> Plan:
    """As fokker.sample makes it, with the centre of control variates in place."""
    plan = make_plan(
        posterior.target, KERNELS[method](), posterior.gradient, init=None, draws=draws, warmup=draws * thin,
        thin=thin, chains=CHAINS, batch_size=posterior.batch_size, batches=None, share_batches=False, seed=seed,
        dtype="float32",
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
    plan, chosen = tune(plan_of(posterior, method, seed, 20_000, 10), lambda text, keep=False: None)
    return Tuned(chosen["kernel"], plan.starts, chosen["why"], time.perf_counter() - begun)


class Grid:
    """Points (log2 step, log2 friction), in quarters of an octave, looked at with one seed."""

    def __init__(self, method: str, truth: np.ndarray, trial: Any) -> None:
        self.method, self.truth, self.trial = method, truth, trial
        self.seen: dict[tuple[float, float], Score] = {}

    def fields(self, point: tuple[float, float]) -> dict[str, Any]:
        return grid_fields(self.method, self.truth, 2.0 ** point[0], 2.0 ** point[1])

    def look(self, step: float, friction: float) -> None:
        point = (round(step * 4) / 4, round(friction * 4) / 4)
        if point not in self.seen:
            self.seen[point] = self.trial(self.fields(point))

    def ranked(self) -> list[tuple[float, float]]:
        """The points admissible with one seed, the better of either kind of ESS first."""
        admissible = [p for p, s in self.seen.items() if s.admissible]
        places = [sorted(admissible, key=lambda p: -self.seen[p].rate(k, "gradients")) for k in KINDS]
        return sorted(admissible, key=lambda p: min(order.index(p) for order in places))

    def search(self, centre: float, quick: bool) -> None:
        """In factors of 2 around the step ``centre``, far to both sides, then of sqrt 2 around the best."""
        open_friction = self.method != "sgld"
        frictions = [0.0] if not open_friction else [-2.0, 0.0, 2.0] if quick else np.arange(-3.0, 4.0).tolist()
        for k in range(-5, 5) if quick else range(-8, 6):
            for friction in frictions:
                self.look(np.log2(centre) + k, friction)
        for step, friction in self.ranked()[:4]:
            for de in (-0.5, 0, 0.5):
                for df in (-0.5, 0, 0.5) if open_friction else (0,):
                    self.look(step + de, friction + df)


def compare(posterior: Posterior, method: str, quick: bool) -> dict[str, Any]:
    seeds = range(2 if quick else 5)
    ours = [tuned(posterior, method, seed) for seed in seeds]
    slow = float(np.median([t.why["predicted_autocorrelation_time"] for t in ours]))
    runner = Runner(plan_of(posterior, method, 0, 20_000, 10))
    centre = ours[0].fields["step_size"]
    if method == "sgnht":  # from its own time to that of marginal sds
        mass = np.asarray(ours[0].fields["mass"])
        centre /= float(np.median(np.sqrt(np.diag(mass) if mass.ndim == 2 else mass) * posterior.truth))
    for longer in (
        1,
        4,
        16,
        64,
    ):  # until the grid, too, has a point that is sound: a diagonal may be slow where we are not
        thin = max(1, int(slow / 4)) * longer
        enough = int(1000 * slow * longer / thin)  # for ours an ESS of about 4,000 from the chains together, or more
        mine, theirs, looked = race(posterior, method, ours, runner, centre, thin, enough, quick)
        if any(map(admissible_throughout, theirs.values())):
            break
    row = {"name": f"{posterior.name}, {type(posterior.gradient).__name__}, {method}"} | verdict(mine, theirs)
    chosen = {"step_sizes": [t.fields["step_size"] for t in ours], "first": ours[0].why}
    return row | {
        "tuned": chosen, "tuning_seconds": round(float(np.median([t.seconds for t in ours])), 1), "thin": thin,
        "points_of_grid": looked,
    }  # fmt: skip


def race(
    posterior: Posterior,
    method: str,
    ours: list[Tuned],
    runner: Runner,
    centre: float,
    thin: int,
    enough: int,
    quick: bool,
) -> tuple[list[Score], dict[Any, list[Score]], int]:
    """Scores of ours and of the grid's best points, for every seed, and how many points were looked at."""

    def trial(fields: Any, starts: Any, seed: int, draws: int) -> Score:
        return score(*runner(fields, starts, 1000 + seed, draws * thin // 5, thin, draws), thin, posterior.truth)

    for fields in (ours[0].fields, grid_fields(method, posterior.truth, 1e-3, 1.0)):
        trial(fields, ours[0].starts, 0, 100)  # compiles; a matrix and a diagonal are two programs
    grid = Grid(method, posterior.truth, lambda fields: trial(fields, ours[0].starts, 0, enough // 2))
    grid.search(centre, quick)
    ranked, at_once = grid.ranked(), 3 if quick else 8
    mine: list[Score] = []
    theirs: dict[Any, list[Score]] = {}
    while ranked and not any(map(admissible_throughout, theirs.values())):
        finalists, ranked = ranked[:at_once], ranked[at_once:]
        mine, theirs = [], theirs | {point: [] for point in finalists}
        for seed, t in enumerate(ours):
            mine.append(trial(t.fields, t.starts, seed, enough))
            for point in finalists:
                theirs[point].append(trial(grid.fields(point), t.starts, seed, enough))
    return mine, theirs, len(grid.seen)


def admissible_throughout(scores: list[Score]) -> bool:
    return all(s.admissible for s in scores)


def verdict(mine: list[Score], theirs: dict[Any, list[Score]]) -> dict[str, Any]:
    """Each seed of the tuner against the best point of the grid, whose rate is its median over seeds.

    A point counts if its sds are admissible for every seed, as ours have to be. ``measured`` is the least
    of the ratios of ESS/s, over seeds and both kinds of ESS. Seconds per gradient of a setting are the median over
    seeds, so that a slow spell of the machine is not taken for a slow setting.
    """
    for scores in (mine, *theirs.values()):
        pace = float(np.median([s.seconds / s.gradients for s in scores]))
        for s in scores:
            s.seconds = pace * s.gradients
    sound = {p: scores for p, scores in theirs.items() if admissible_throughout(scores)}
    row: dict[str, Any] = {}
    least = []
    for kind in KINDS:
        for per in ("seconds", "gradients"):
            best = max(sound, key=lambda p: float(np.median([s.rate(kind, per) for s in sound[p]])))
            rate = float(np.median([s.rate(kind, per) for s in sound[best]]))
            ratios = [s.rate(kind, per) / rate for s in mine]
            row[f"{kind}_ess_per_{per[:-1]}_ratios"] = [round(r, 3) for r in ratios]
            if per == "seconds":
                least.append(min(ratios))
                row[f"best_{kind}"] = {
                    "step": round(2.0 ** best[0], 5), "friction": round(2.0 ** best[1], 4),
                    "sd_ratios": [round(s.ratio, 3) for s in sound[best]], "ess_per_second": round(rate, 1),
                }  # fmt: skip
    return {
        "measured": round(min(least), 3),
        "target": TARGET,
        "met": bool(min(least) >= TARGET and all(s.admissible for s in mine)),
        "tuned_sd_ratios": [round(s.ratio, 3) for s in mine],
        "tuned_ess": [round(s.spread) for s in mine],
        **row,
    }


# --- rows and results -----------------------------------------------------------------------------------------------


def keep(row: dict[str, Any]) -> None:
    """The row in the file of results, in place of an earlier one of its name."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    rows = [r for r in rows if r["name"] != row["name"]] + [row]
    head = json.dumps({"benchmark": "tuning", "quick": False, "met": all_met(rows)})[:-1]
    lines = ",\n  ".join(json.dumps(r) for r in rows)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f'{head},\n "rows": [\n  {lines}\n ]}}\n', encoding="utf-8")


def all_met(rows: list[dict[str, Any]]) -> bool:
    return len(rows) == len(FULL) * len(KERNELS) and all(r["met"] for r in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small posterior, two seeds, a coarser grid")
    parser.add_argument("--only", default="", help="posteriors whose function's name contains this")
    parser.add_argument("--kernel", choices=list(KERNELS), help="this kernel alone")
    options = parser.parse_args()
    rows = []
    wanted = QUICK if options.quick else (*FULL, *LONG) if options.only else FULL
    for make in [m for m in wanted if options.only in m.__name__]:
        posterior = make()
        posterior.truth = true_sds(plan_of(posterior, "sgld", 0, 100, 1))
        for method in KERNELS if options.kernel is None else [options.kernel]:
            row = compare(posterior, method, options.quick)
            say(row)
            rows.append(row)
            if not options.quick:
                keep(row | {"machine": machine()})
    met = bool(rows) and all(r["met"] for r in rows) if options.quick else all_met(rows)
    say({"benchmark": "tuning", "quick": options.quick, "met": met})


if __name__ == "__main__":
    main()
