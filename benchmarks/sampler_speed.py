"""How fast the samplers are, and that they are right while fast: against BlackJAX, and against the loop without noise.

Bayesian logistic regression, N = 100,000, d = 50, batch 100, float32, one core unless a row says two. Every ratio is
the median over five rounds (nine for the driver) of the ratio within a round, contestants taking turns; compile time is
left out and printed.
``--quick`` takes a tenth of the rows, shorter turns, and the targets that its bars say.

    python benchmarks/sampler_speed.py [--quick] [--only PART]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _harness import Bar, Part, Row, rates, ratio, reading, run

GATHER, CONTIGUOUS = "BlackJAX, gather", "BlackJAX, contiguous"

WORST_OF_50 = 4.0  # standard errors: 50 coordinates of a right chain go beyond once in 300 runs

BARS = (
    # name, part, target, quick target
    *(
        bar
        for method in ("SGLD", "SGNHT")
        for bar in (
            Bar(f"{method}, 1 chain / SGLD of {GATHER}", "rates", 4.0, 2.0),
            Bar(f"{method}, 1 chain / SGLD of {CONTIGUOUS}", "rates", 1.9, 1.2),
            Bar(f"{method}, 4 chains / SGLD of {GATHER}", "rates", 4.0),
            Bar(f"{method}, 4 chains / SGLD of {CONTIGUOUS}", "rates", 1.3),
            Bar(f"{method}, 4 chains, shared batch / SGLD of {CONTIGUOUS}", "rates", 1.6),
        )
    ),
    Bar(f"SGLD, user-written density, 1 chain / SGLD of {GATHER}", "rates", 4.0),
    Bar(f"SGLD, user-written density, 1 chain / SGLD of {CONTIGUOUS}", "rates", 1.9),
    Bar(f"SGHMC, per gradient / SGHMC of {GATHER}", "rates", 1.6, 1.1),
    Bar(f"SGHMC, per gradient / SGHMC of {CONTIGUOUS}", "rates", 1.3, 0.9),
    Bar("SGLD / the loop without noise", "rates", 0.7, 0.5),
    Bar("SGHMC / the loop without noise", "rates", 0.7, 0.5),
    Bar("SGNHT / the loop without noise", "rates", 0.7, 0.5),
    Bar("SGLD of BlackJAX: ESS", "accuracy", 4000),
    *(
        bar
        for method in ("SGLD", "SGHMC", "SGNHT")
        for bar in (
            Bar(f"{method}: ESS", "accuracy", 4000, 4000),
            Bar(
                f"{method}: means against the law, standard errors", "accuracy", WORST_OF_50, WORST_OF_50, at_most=True
            ),
            Bar(f"{method}: sds against the law, standard errors", "accuracy", WORST_OF_50, WORST_OF_50, at_most=True),
            Bar(f"{method}: error of the mean beyond BlackJAX's, sds", "accuracy", 0.05, at_most=True),
            Bar(f"{method}: error of the sd beyond BlackJAX's, ratio", "accuracy", 0.03, at_most=True),
        )
    ),
    Bar(f"ESS/s with control variates, 4 chains / {GATHER}", "ess", 3.0),
    Bar("the driver's time over the compiled step's: thin = 10, one core", "driver", 1.05, 1.25, at_most=True),
    Bar("the driver's time over the compiled step's: every draw stored, two cores", "stored", 1.05, at_most=True),
    Bar("peak memory beyond the data, MB", "memory", 600, 600, at_most=True),
    Bar("growth of peak memory from 100,000 to 1,000,000 stored draws, MB", "memory", 20, 20, at_most=True),
)


# --- gradients a second ---------------------------------------------------------------------------------------------


def gradient_rates(quick: bool) -> Iterator[Row]:
    import _logistic as logistic
    from _peers import BlackJAX, posteriors_sgld

    p = logistic.problem(10_000 if quick else 100_000)
    steps = 4_000 if quick else 60_000
    target, peer, kernel = logistic.built_in(p), BlackJAX(p), logistic.kernels(p.size)

    def ours(method: str, target: Any = target, **more: Any) -> Any:
        return partial(logistic.ours, logistic.plan(target, kernel[method], **more), steps)

    def theirs(method: str, feed: str, **more: Any) -> Any:
        return partial(peer.work, method, feed, steps, **more)

    makers: dict[str, Any] = {
        "the loop without noise": partial(logistic.without_noise, p, steps),
        "SGLD": ours("sgld"),
        f"SGLD of {CONTIGUOUS}": theirs("sgld", "contiguous"),
        f"SGLD of {GATHER}": theirs("sgld", "gather"),
        "SGNHT": ours("sgnht"),
        "SGHMC": ours("sghmc"),
        f"SGHMC of {GATHER}": theirs("sghmc", "gather"),
        f"SGHMC of {CONTIGUOUS}": theirs("sghmc", "contiguous"),
    }
    if not quick:
        makers |= {
            "SGLD, user-written density": ours("sgld", logistic.user_written(p)),
            "SGLD, 4 chains": ours("sgld", chains=4),
            "SGNHT, 4 chains": ours("sgnht", chains=4),
            f"SGLD of {GATHER}, 4 chains": theirs("sgld", "gather", chains=4),
            f"SGLD of {CONTIGUOUS}, 4 chains": theirs("sgld", "contiguous", chains=4),
            "SGLD, 4 chains, shared batch": ours("sgld", chains=4, share_batches=True),
            "SGNHT, 4 chains, shared batch": ours("sgnht", chains=4, share_batches=True),
            f"SGLD of {CONTIGUOUS}, 4 chains, shared batch": theirs("sgld", "contiguous", chains=4, shared=True),
            f"SGLD of {GATHER}, 4 chains, shared batch": theirs("sgld", "gather", chains=4, shared=True),
            f"SGLD of {GATHER}, keys of kind rbg": theirs("sgld", "gather", impl="rbg"),
            f"SGNHT of {GATHER}": theirs("sgnht", "gather"),
            f"SGNHT of {CONTIGUOUS}": theirs("sgnht", "contiguous"),
            "SGLD in NumPy, contiguous": partial(logistic.numpy_sgld, p, 1_000),
            "SGLD of posteriors, contiguous": partial(posteriors_sgld, p, 200),
        }
    works, compiled = logistic.compile_each(makers)
    rate = rates(works, 0.1 if quick else 0.3, 3 if quick else 5)
    for name, values in rate.items():
        yield reading(name, "rates", float(np.median(values)), "gradients/s", lowest=round(min(values)),
                      highest=round(max(values)), compile_seconds=compiled[name])  # fmt: skip
    for bar in BARS:
        if bar.part == "rates" and (not quick or bar.quick is not None):
            yield bar.row(ratio(*(rate[side] for side in _sides(bar.name))), quick)


def _sides(name: str) -> tuple[str, str]:
    """The two contestants of a bar's name."""
    mine, theirs = name.split(" / ")
    shape = "".join(word for word in (", 4 chains", ", shared batch") if word in mine)
    return mine.removesuffix(", 1 chain").removesuffix(", per gradient"), theirs + shape


# --- accuracy -------------------------------------------------------------------------------------------------------


def accuracy(quick: bool) -> Iterator[Row]:
    """One chain each on the Gaussian approximation, at the step where gradient noise is 0.4 of the injected noise."""
    import jax
    import jax.numpy as jnp
    from _gaussian import at_mode, covariance, marginal_sds, noise_of, thermostat
    from _logistic import BATCH, D, ours_draws, plan, problem
    from _peers import BlackJAX
    from blackjax.sgmcmc.gradients import grad_estimator

    import fokker

    p = problem(10_000 if quick else 100_000)
    q = at_mode(p)
    target = fokker.Target(q.log_prior, q.log_row, q.data, start=np.zeros(D, np.float32))
    truth = np.sqrt(np.diag(np.linalg.inv(q.A)))
    curvature = float(np.trace(q.A)) / D
    eps = 0.8 * BATCH / p.size / curvature  # eps V / 2 = 0.4, as V is about N / n times the curvature
    slow = 2 / (eps * curvature)  # autocorrelation time, steps
    steps, burn, thin = int(5_500 * slow), int(5 * slow), max(1, int(slow / 20))
    # Of the second-order methods: move / friction = eps, as slow as SGLD, with a memory of three steps.
    move, friction = (0.3 * eps) ** 0.5, (0.3 / eps) ** 0.5

    def of_ours(kernel: Any, longer: float) -> tuple[np.ndarray, Any]:
        made = plan(target, kernel, thin=thin, draws=int(longer * steps / thin), warmup=burn)
        return ours_draws(made), made

    def law(method: str, integrator: str, batches: Any) -> np.ndarray:
        V, lags, epoch = noise_of(q, batches)
        if method == "sgld":
            return marginal_sds(q.A, covariance(method, integrator, q.A, V, eps, 0.0, epoch, lags=lags))
        if method == "sghmc":
            return marginal_sds(q.A, covariance(method, integrator, q.A, V, move, friction, epoch, lags=lags))
        xi = thermostat(q.A, V, move, friction, epoch, lags)
        return marginal_sds(q.A, covariance(method, integrator, q.A, V, move, xi, epoch, friction / xi, lags))

    errors = {}
    if not quick:
        peer = BlackJAX(p)
        peer.data, peer.grad = tuple(jnp.asarray(a) for a in q.data), grad_estimator(q.log_prior, q.log_row, p.size)
        run = peer.scan("sgld", "contiguous", 50_000, 1, False)
        state, kept, key = jnp.zeros(D), [], jax.random.key(0)
        for block in range((steps + burn) // 50_000 + 1):
            state, draws = run(state, jax.random.fold_in(key, block), eps, 0.0, block * 50_000)
            kept.append(np.asarray(draws[thin - 1 :: thin]))
        score = _score(np.concatenate(kept)[None, burn // thin :])
        errors["BlackJAX"] = score
        yield BARS_BY_NAME["SGLD of BlackJAX: ESS"].row(score.ess.min())
        yield _errors("SGLD of BlackJAX", score, truth)
    settings = {
        "SGLD": ("sgld", "", fokker.sgld(step_size=eps), {"step_size": eps}),
        "SGHMC": ("sghmc", "symplectic", fokker.sghmc(step_size=move, friction=friction),
                  {"step_size": move, "friction": friction}),
        "SGNHT": ("sgnht", "aboba", fokker.sgnht(step_size=move, diffusion=friction, inertia=25 * move**2),
                  {"step_size": move, "diffusion": friction, "inertia": 25 * move**2}),
    }  # fmt: skip
    for name, (method, integrator, kernel, said) in settings.items():
        draws, made = of_ours(kernel, 1.6 if method == "sgnht" else 1.0)  # more friction, by the gradient noise
        score = _score(draws)
        expected = law(method, integrator, made.batches)
        of_mean = np.abs(score.mean) / (expected / np.sqrt(score.ess))
        of_sd = np.abs(score.sd / expected - 1) * np.sqrt(2 * score.ess_of_squares)
        yield BARS_BY_NAME[f"{name}: ESS"].row(
            score.ess.min(), quick, batches=made.batches.order, steps=len(draws[0]) * thin, **said
        )
        yield BARS_BY_NAME[f"{name}: means against the law, standard errors"].row(of_mean.max(), quick)
        yield BARS_BY_NAME[f"{name}: sds against the law, standard errors"].row(
            of_sd.max(), quick, law=round(float(np.mean(expected / truth)), 4)
        )
        yield _errors(name, score, truth)
        if not quick:
            theirs = errors["BlackJAX"]
            for what, mine, other in (
                ("mean beyond BlackJAX's, sds", score.mean / truth, theirs.mean / truth),
                ("sd beyond BlackJAX's, ratio", score.sd / truth - 1, theirs.sd / truth - 1),
            ):
                beyond = np.abs(mine).max() - np.abs(other).max()
                yield BARS_BY_NAME[f"{name}: error of the {what}"].row(beyond)


def _errors(name: str, score: Any, truth: np.ndarray) -> Row:
    return reading(f"{name}: worst error of the sd", "accuracy", np.abs(score.sd / truth - 1).max(), "ratio",
                   mean_sd_ratio=round(float(np.mean(score.sd / truth)), 4),
                   worst_error_of_the_mean_in_sds=round(float(np.abs(score.mean / truth).max()), 4))  # fmt: skip


class Score(NamedTuple):
    """Of draws, by coordinate, (d,) each."""

    mean: np.ndarray
    sd: np.ndarray
    ess: np.ndarray  # for the mean
    ess_of_squares: np.ndarray  # for the sd


def _moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (chains, draws, d), (d,) each."""
    x = draws.astype(np.float64)
    return x.mean((0, 1)), x.std((0, 1))


def _ess(draws: np.ndarray) -> np.ndarray:
    """For the means, (d,)."""
    from arviz_stats.base import array_stats

    each = range(draws.shape[-1])
    return np.array([float(array_stats.ess(draws[..., c], chain_axis=0, draw_axis=1, method="mean")) for c in each])


def _score(draws: np.ndarray) -> Score:
    """draws: (chains, draws, d)."""
    mean, sd = _moments(draws)
    return Score(mean, sd, _ess(draws), _ess((draws - mean) ** 2))


# --- effective draws a second ---------------------------------------------------------------------------------------


def ess_rates(quick: bool) -> Iterator[Row]:
    """Four chains with control variates around the mode, a batch of its own each, over a grid of settings.

    All settings are looked at once; the four fastest of those that pass, or might, by three standard errors, are run in
    five interleaved rounds, where they have to pass with all draws together.
    """
    from _gaussian import at_mode
    from _logistic import Ours, built_in, plan, problem, weighted_laplace
    from _peers import BlackJAX

    import fokker

    p, steps = problem(100_000), 15_000
    q = at_mode(p)
    mean, sd = weighted_laplace(p, q.mode, q.A)
    unit = (float(np.trace(q.A)) / len(q.A)) ** -0.5  # one over the frequency of the posterior
    centred = fokker.control_variates(centre={"beta": q.mode.astype(np.float32)})
    target, peer = built_in(p), BlackJAX(p, q.mode.astype(np.float32))
    start = q.mode.astype(np.float32)
    mine = {f"SGLD, step {e}": fokker.sgld(step_size=e * unit**2) for e in (0.1, 0.15, 0.2)} | {
        f"SGHMC (baoab), step {e}, friction {c}":
            fokker.sghmc(step_size=e * unit, friction=c / (e * unit), integrator="baoab")
        for e in (0.3, 0.4, 0.5, 0.6) for c in (0.5, 1.0, 2.0)
    }  # fmt: skip
    theirs = [("sgld", e, 0.0, 1) for e in (0.05, 0.1, 0.15, 0.2)]
    theirs += [("sghmc", e, 0.01, length) for length in (3, 5, 10) for e in (0.05, 0.1, 0.2)]
    theirs += [("sghmc", e, 1.0, 10) for e in (0.05, 0.1, 0.2)]
    theirs += [("sgnht", e, c, 1) for e in (0.05, 0.1, 0.2) for c in (0.5, 2.0)]
    runs: dict[str, dict[str, Any]] = {"fokker": {}, GATHER: {}, CONTIGUOUS: {}}
    for name, kernel in mine.items():
        made = plan(target, kernel, gradient=centred, chains=4, thin=1, init={"beta": start})
        runs["fokker"][name] = Ours(made, steps)
    for method, e, c, length in theirs:
        step_size = e * unit**2 if method == "sgld" else e * unit
        name = f"{method.upper()}, step {e}" + (f", friction {c}" if method != "sgld" else "")
        name += f", {length} steps" if method == "sghmc" else ""
        for side, feed in ((GATHER, "gather"), (CONTIGUOUS, "contiguous")):
            runs[side][name] = peer.drawing(method, feed, step_size, c / unit, length, steps, 4, start)
    finalists = {}
    for side, contestants in runs.items():
        seen = {}
        for name, contestant in contestants.items():
            contestant.prepare()
            begun = time.perf_counter()
            draws = contestant()
            seconds = time.perf_counter() - begun
            draws = draws[:, draws.shape[1] // 10 :]
            if not np.isfinite(draws).all():
                continue
            ess = _ess(draws)
            if _passes(*_moments(draws), mean, sd, slack=3 / float(np.sqrt(ess.min()))):
                seen[name] = float(np.median(ess)) / seconds
        best = sorted(seen, key=lambda name: -seen[name])[:4]
        finalists[side] = {name: contestants[name] for name in best}
        yield reading(f"settings that may pass, {side}", "ess", len(seen), "settings", looked_at=len(contestants))
    kept: dict[tuple[str, str], list[tuple[np.ndarray, float]]] = {}
    for _ in range(5):
        for side, contestants in finalists.items():
            for name, contestant in contestants.items():
                begun = time.perf_counter()
                draws = contestant()
                kept.setdefault((side, name), []).append((draws, time.perf_counter() - begun))
    best_rate: dict[str, list[float]] = {}
    for (side, name), rounds in kept.items():
        pooled = _moments(np.concatenate([draws for draws, _ in rounds], axis=1))
        effective = [float(np.median(_ess(draws))) for draws, _ in rounds]
        by_round = [count / seconds for count, (_, seconds) in zip(effective, rounds, strict=True)]
        passing = _passes(*pooled, mean, sd)
        yield reading(f"ESS/s with control variates: {side}, {name}", "ess", float(np.median(by_round)), "ESS/s",
                      passes=passing, worst_sd_ratio=round(_worst_ratio(pooled[1], sd), 4),
                      worst_error_of_the_mean_in_sds=round(float(np.abs((pooled[0] - mean) / sd).max()), 4),
                      ess=round(sum(effective)), gradients=5 * 4 * steps)  # fmt: skip
        if passing and np.median(by_round) > np.median(best_rate.get(side, [0.0])):
            best_rate[side] = by_round
    never = [float("nan")] * 5
    against = lambda side: ratio(best_rate.get("fokker", never), best_rate.get(side, never))
    yield BARS_BY_NAME[f"ESS/s with control variates, 4 chains / {GATHER}"].row(against(GATHER))
    yield reading(f"ESS/s with control variates, 4 chains / {CONTIGUOUS}", "ess", against(CONTIGUOUS), "ratio")


def _worst_ratio(found: np.ndarray, sd: np.ndarray) -> float:
    ratios = found / sd
    return float(ratios[np.argmax(np.abs(np.log(ratios)))])


def _passes(found_mean: np.ndarray, found_sd: np.ndarray, mean: np.ndarray, sd: np.ndarray, slack: float = 0.0) -> bool:
    """Whether means and sds are near enough to the truth, or might be, given so many standard errors of slack."""
    error = float(np.abs((found_mean - mean) / sd).max())
    return 0.93 - slack <= _worst_ratio(found_sd, sd) <= 1.07 + slack and error < 0.05 + slack


# --- the driver -----------------------------------------------------------------------------------------------------


def driver(quick: bool, stored: bool = False) -> Iterator[Row]:
    """The whole loop of a run against its compiled blocks called one after the other, for as many steps."""
    from _logistic import built_in, kernels, plan, problem
    from _runs import alone, driven

    from fokker.run.loop import Chains

    p = problem(10_000 if quick else 100_000)
    draws = 30_000 if quick else 1_500_000 if stored else 120_000  # seconds: a run has a beginning and an end
    name = "every draw stored, two cores" if stored else "thin = 10, one core"
    os.environ["FORCE_COLOR"] = "1"  # the progress line is drawn as on a terminal
    worst, part = [], "stored" if stored else "driver"
    for method in ("sgld", "sghmc"):
        made = plan(built_in(p), kernels(p.size)[method], thin=1 if stored else 10, draws=draws)
        chains = Chains(made)
        alone(chains)
        ratios = []
        for _ in range(3 if quick else 9):  # disk and neighbours make single rounds differ by ten per cent
            bare = alone(chains)
            with tempfile.TemporaryDirectory() as folder:
                whole, shown = driven(chains, Path(folder) / "run.zarr" if stored else None)
            ratios.append(whole / bare)
        worst.append(float(np.median(ratios)))
        yield reading(f"the driver's time over the compiled step's: {method.upper()}, {name}", part, worst[-1], "ratio",
                      steps_a_second=round(draws * made.thin / whole), characters_of_progress=shown)  # fmt: skip
    yield BARS_BY_NAME[f"the driver's time over the compiled step's: {name}"].row(max(worst), quick)


def stored(quick: bool) -> Iterator[Row]:
    yield from driver(quick, stored=True)


# --- memory ---------------------------------------------------------------------------------------------------------


def memory(quick: bool) -> Iterator[Row]:
    """Two processes that differ in the number of draws they store."""
    size = 10_000 if quick else 100_000
    peak, data = {}, size * 51 * 4
    for draws in (100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__).with_name("_runs.py")), str(size), str(draws), folder]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        peak[draws], later = map(float, child.stdout.split())
        yield reading(f"peak memory, {draws:,} draws stored", "memory", peak[draws] / 1e6, "MB", data=data / 1e6,
                      when_draws_were_read=round(later / 1e6))  # fmt: skip
    yield BARS_BY_NAME["peak memory beyond the data, MB"].row((max(peak.values()) - data) / 1e6, quick)
    growth = (peak[1_000_000] - peak[100_000]) / 1e6
    yield BARS_BY_NAME["growth of peak memory from 100,000 to 1,000,000 stored draws, MB"].row(growth, quick)


BARS_BY_NAME = {bar.name: bar for bar in BARS}
PARTS = {
    "rates": Part(gradient_rates),
    "accuracy": Part(accuracy),
    "ess": Part(ess_rates, in_quick=False),
    "driver": Part(driver),
    "stored": Part(stored, cores=2, in_quick=False),
    "memory": Part(memory),
}

if __name__ == "__main__":
    run("sampler_speed", __doc__.splitlines()[0], BARS, PARTS)
