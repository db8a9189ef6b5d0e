"""Whether to trust the draws of a run, with the evidence: ``run.audit()``.

Looks at the draws (do chains move, agree, forget) and, where target and data are at hand, measures: whether
full-data gradients at the draws have the moments that the target's law prescribes (``score``, ``ksd``), how much of
the injected noise gradient noise takes and what that does to the law (``gradient_noise``, ``linearised``), the bias of
the step size by coupled runs at eps and eps/2 (``paired``), kinetic temperature against its law, and modes that no draw
has seen (``other_modes``). What each can and cannot see: docs/audit.md.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import norm

from fokker.errors import InputError

if TYPE_CHECKING:
    from fokker.run.gradient_noise import Measured
    from fokker.run.linearised import Law
    from fokker.run.plan import Plan
    from fokker.run.result import Run
    from fokker.run.score import Score
    from fokker.sgmcmc.kernel import Gradient, Kernel
    from fokker.target import Target

Verdict = Literal["ok", "warn", "fail", "not measured"]
Colour = Literal["green", "amber", "red"]

# When is a law wrong enough to say so? Relative errors of an sd, errors of a mean in sd.
SD_WARN, SD_FAIL = 0.05, 0.10
MEAN_WARN, MEAN_FAIL = 0.10, 0.25
R_HAT_WARN, R_HAT_FAIL = 1.02, 1.05
ESS_WARN, ESS_FAIL = 400, 100
SCALE_WARN, SCALE_FAIL = 0.03, 0.10  # of the stochastic gradient's mean
KINETIC_WARN, KINETIC_FAIL = 0.03, 0.10
MODE_WARN, MODE_FAIL = 1e-3, 1e-2  # weight of an unseen mode against the seen one
FALSE_ALARMS = 0.01  # chance of one over all coordinates

DRAWS_LOOKED_AT = 10_000  # of each chain, evenly thinned
GRADIENTS = 1000  # draws at which full-data gradients are taken
PAIRED_CHAINS = 4
SHARES = {"score": 0.35, "noise": 0.1, "paired": 0.4, "modes": 0.15}  # of the time


@dataclass(frozen=True)
class Finding:
    """One thing that was measured, or could not be."""

    name: str
    value: float | None
    threshold: float | None  # beyond which there is a warning
    verdict: Verdict
    evidence: str  # a sentence: what was seen, and what to change


@dataclass(frozen=True)
class Audit:
    """All findings and what they come to. ``print(audit)`` shows a table."""

    verdict: Colour
    words: str  # which draws to trust and what to change
    findings: tuple[Finding, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Audit:
        """What ``to_dict`` gave, as an Audit again."""
        findings = tuple(Finding(**f) for f in kept["findings"])
        return cls(kept["verdict"], kept["words"], findings, kept["seconds"])

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise InputError(f"no finding {name!r}; there are {', '.join(f.name for f in self.findings)}.")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=None, show_edge=False, pad_edge=False)
        for column, options in (
            ("", {}),
            ("finding", {}),
            ("value", {"justify": "right"}),
            ("limit", {"justify": "right"}),
            ("evidence", {}),
        ):
            table.add_column(column, **options)  # type: ignore[arg-type]
        mark = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "not measured": "?"}
        number = lambda x: "" if x is None else f"{x:.3g}"
        for f in self.findings:
            table.add_row(mark[f.verdict], f.name, number(f.value), number(f.threshold), f.evidence)
        console = Console(width=118, record=True, file=_Nowhere(), markup=False, highlight=False)  # type: ignore[arg-type]
        console.print(f"{self.verdict.upper()}: {self.words}\n")
        console.print(table)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines())

    __repr__ = __str__


class _Nowhere:
    """A file for a console that only records."""

    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def audit(
    run: Run,
    *,
    target: Target | None = None,
    kernel: Kernel | None = None,
    gradient: Gradient | None = None,
    seconds: float = 15.0,
    seed: int = 0,
) -> Audit:
    """Measure whether the draws of ``run`` can be trusted.

    A run of this process knows its target; for one that was opened from a store give ``target``, ``kernel`` and
    ``gradient`` again, or see what is said without them. seconds: about how long to measure. The audit of a stored
    run is kept in the store.
    """
    if not seconds > 0:
        raise InputError(f"seconds must be > 0, got {seconds}; the default of 15 suits most runs.")
    started = time.perf_counter()
    precision = nullcontext()
    if run.settings.get("dtype") == "float64":
        import jax

        precision = jax.enable_x64(True)
    with precision:
        plan = run._plan if target is None else _plan_again(run, target, kernel, gradient)
        looked = _Draws.of(run, plan)
        findings = list(_of_draws(looked, plan))
        if looked.positions.shape[1] >= 4:
            findings += _with_target(run, plan, looked, seconds, seed)
    verdict, words = _overall(findings, plan is not None)
    result = Audit(verdict, words, tuple(findings), time.perf_counter() - started)
    store = run._store
    if store is not None and (plan is not None or store.audit() is None):
        store.write_audit(result.to_dict())
    return result


def _plan_again(run: Run, target: Target, kernel: Kernel | None, gradient: Gradient | None) -> Plan:
    from fokker.run.plan import plan_again

    s = run.settings
    plan = plan_again(s, target, kernel, gradient)
    given, kept = plan.summary(), {k: s[k] for k in plan.summary()}
    for name in ("kernel", "variables"):
        if given[name] != kept[name]:
            raise InputError(f"the run was made with another {name}: {kept[name]!r}, given {given[name]!r}.")
    return plan


# --- the draws alone --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Draws:
    """The draws in one array, and how well chains forget and agree, by coordinate."""

    positions: np.ndarray  # (chains, draws, d) float64
    names: list[str]
    ess: np.ndarray  # (d,) the smaller of bulk and tail
    r_hat: np.ndarray  # (d,) nan for one chain
    spacing: int  # iterations between neighbours

    @classmethod
    def of(cls, run: Run, plan: Plan | None) -> _Draws:
        from arviz_stats.base import array_stats

        data = run.draws
        order = list(map(str, data.data_vars)) if plan is None else [v.name for v in plan.layout.variables]
        every = max(1, -(-data.sizes["draw"] // DRAWS_LOOKED_AT))
        data = data.isel(draw=slice(None, None, every))
        parts = [np.asarray(data[name], np.float64) for name in order]
        positions = np.concatenate([p.reshape(*p.shape[:2], -1) for p in parts], axis=2)
        names = [label for label, _ in run.entries(order)] if plan is None else plan.layout.entry_names()
        if positions.shape[1] < 4:
            empty = np.full(positions.shape[2], np.nan)
            return cls(positions, names, np.zeros(positions.shape[2]), empty, run.settings["thin"] * every)
        axes = {"chain_axis": 0, "draw_axis": 1}
        with np.errstate(invalid="ignore", divide="ignore"):
            bulk = array_stats.ess(positions, method="bulk", **axes)
            tail = array_stats.ess(positions, method="tail", prob=(0.05, 0.95), **axes)
            r_hat = array_stats.rhat(positions, **axes) if len(positions) > 1 else np.full(positions.shape[2], np.nan)
        ess = np.nan_to_num(np.minimum(np.atleast_1d(bulk), np.atleast_1d(tail)), nan=0.0)
        return cls(positions, names, ess, np.atleast_1d(r_hat), run.settings["thin"] * every)

    def where(self, coordinates: Any) -> str:
        """Names of some coordinates, the first few."""
        chosen = [self.names[i] for i in np.atleast_1d(coordinates)]
        return ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")


def _of_draws(x: _Draws, plan: Plan | None) -> Iterator[Finding]:
    chains, draws, d = x.positions.shape
    if draws < 4:
        yield Finding(
            "effective draws", float(draws), ESS_WARN, "fail", f"{draws} draws a chain are no sample; draw more."
        )
        return
    yield _movement(x, plan)
    if chains == 1:
        yield Finding(
            "agreement of chains", None, R_HAT_WARN, "not measured", "One chain cannot disagree; run chains=4."
        )
    else:
        worst = int(np.nanargmax(np.nan_to_num(x.r_hat, nan=np.inf)))
        value = float(x.r_hat[worst])
        means = x.positions.mean(1)
        apart = np.ptp(means, axis=0)[worst] / max(x.positions[..., worst].std(1).mean(), 1e-300)
        verdict = _grade(value if np.isfinite(value) else np.inf, R_HAT_WARN, R_HAT_FAIL)
        say = f"Largest rank R-hat, at {x.names[worst]}; its chain means lie {apart:.2g} sd apart."
        if verdict != "ok":
            say += (
                " The chains have not met: take more draws or warm-up, or start them elsewhere to see which is right."
            )
        yield Finding("agreement of chains", value, R_HAT_WARN, verdict, say)
    worst = int(np.argmin(x.ess))
    value = float(x.ess[worst])
    verdict = "ok" if value >= ESS_WARN else "warn" if value >= ESS_FAIL else "fail"
    say = f"Fewest effective draws (bulk and tail), at {x.names[worst]}, of {chains * draws:,}."
    if verdict != "ok":
        say += f" Take about {ESS_WARN / max(value, 1.0):.0f} times as many iterations, or a larger step if the bias allows."
    yield Finding("effective draws", value, ESS_WARN, verdict, say)
    yield _trend(x)


def _movement(x: _Draws, plan: Plan | None) -> Finding:
    still = (x.positions[:, 1:] == x.positions[:, :-1]).mean(1)  # (chains, d)
    chain, i = np.unravel_index(int(np.argmax(still)), still.shape)
    value = float(still[chain, i])
    rejects = plan is not None and bool(getattr(plan.kernel, "full_data", False))
    verdict = _grade(value, 0.8, 0.95) if rejects else _grade(value, 0.05, 0.5)
    say = f"Largest share of draws equal to the one before, chain {chain}, {x.names[i]}."
    if verdict != "ok":
        say += (
            " Proposals are refused: take a smaller step."
            if rejects
            else " The step is lost in rounding: take a larger step or dtype='float64'."
        )
    return Finding("movement", value, 0.8 if rejects else 0.05, verdict, say)


def _trend(x: _Draws) -> Finding:
    """The mean of the first third against that of the last, in sd; significant by the chains' own errors."""
    from arviz_stats.base import array_stats

    third = x.positions.shape[1] // 3
    parts = x.positions[:, :third], x.positions[:, -third:]
    sd = np.maximum(x.positions.std((0, 1)), 1e-300)
    drift = (parts[1].mean((0, 1)) - parts[0].mean((0, 1))) / sd
    with np.errstate(invalid="ignore", divide="ignore"):
        mcse = [np.atleast_1d(array_stats.mcse(p, chain_axis=0, draw_axis=1)) if third >= 4 else np.inf for p in parts]
    error = np.nan_to_num(np.hypot(*mcse) / sd, nan=np.inf)
    shown = np.abs(drift) > _crit(len(drift)) * error
    i = int(np.argmax(np.where(shown, np.abs(drift), np.abs(drift) * 1e-6)))
    verdict = _grade(float(np.abs(drift[i])), MEAN_WARN, 2 * MEAN_FAIL) if shown.any() else "ok"
    say = f"Shift from the first to the last third of the draws in sd, at {x.names[i]} (s.e. {error[i]:.2g})."
    if verdict != "ok":
        say += " The chains were still on their way: take a longer warm-up."
    return Finding("trend", float(drift[i]), MEAN_WARN, verdict, say)


# --- with the target ----------------------------------------------------------------------------------------------------

NEEDS_TARGET = ("spread by the score", "mean by the score", "KSD, all rows", "step-size bias", "other modes")


def _with_target(run: Run, plan: Plan | None, x: _Draws, seconds: float, seed: int) -> list[Finding]:
    if plan is None:
        why = "Needs target and data: run.audit(target=..., kernel=..., gradient=...)."
        if str(run.settings.get("kernel", {}).get("name")) in ("hmc", "rmld", "rmhmc"):
            return [Finding(n, None, None, "not measured", why) for n in NEEDS_TARGET if n != "step-size bias"]
        return [
            Finding(n, None, None, "not measured", why) for n in (*NEEDS_TARGET, "gradient noise", "gradient scale")
        ]
    spread = x.positions.std(1)
    if not (spread > 0).all():
        chain, i = np.unravel_index(int(np.argmin(spread)), spread.shape)
        return [
            Finding(
                "spread by the score", 0.0, None, "fail", f"Chain {chain} has no spread in {x.names[i]}: it is stuck."
            )
        ]
    exact = bool(getattr(plan.kernel, "full_data", False))
    findings, score, gradients, where = _by_score(plan, x, seconds * SHARES["score"])
    findings += _by_ksd(x, gradients, where, seed)
    if exact:
        findings += _metropolis(run)
    else:
        findings += _of_minibatches(run, plan, x, score, seconds, seed)
    findings.append(_unseen_modes(plan, x, seconds * SHARES["modes"], seed))
    return findings


def _by_score(plan: Plan, x: _Draws, seconds: float) -> tuple[list[Finding], Score | None, np.ndarray, np.ndarray]:
    from fokker.run.score import full_gradients, score_identities, spread_out

    chains, draws, d = x.positions.shape
    where = spread_out(chains, draws, GRADIENTS)
    gradients = full_gradients(plan.target, x.positions[where[:, 0], where[:, 1]], seconds)
    where = where[: len(gradients)]
    if len(gradients) < min(100, chains * draws):
        why = (
            f"{len(gradients)} full-data gradients in {seconds:.0f} s are too few; audit(seconds=...) gives more time."
        )
        return [Finding(n, None, None, "not measured", why) for n in NEEDS_TARGET[:2]], None, gradients, where
    if not np.isfinite(gradients).all():
        why = "The full-data gradient is not finite at some draws."
        return [Finding("spread by the score", None, None, "fail", why)], None, gradients, where
    s = score_identities(x.positions, where, gradients)
    ratio, i, verdict = _worst(s.sd_ratio - 1, s.sd_error, SD_WARN, SD_FAIL)
    say = f"sd of the draws over the target's, at {x.names[i]}, by {len(gradients):,} full-data gradients (s.e. {s.sd_error[i]:.2g})."
    off = np.flatnonzero((np.abs(s.sd_ratio - 1) > SD_WARN) & (np.abs(s.sd_ratio - 1) > _crit(d) * s.sd_error))
    if verdict in ("warn", "fail") and len(off):
        wide = s.sd_ratio[i] > 1
        say += f" Too {'wide' if wide else 'narrow'} at {x.where(off[np.argsort(-np.abs(s.sd_ratio[off] - 1))])}: "
        say += (
            "take a smaller step or less gradient noise."
            if wide
            else "the chains have not filled the posterior, or their temperature is too low."
        )
    elif verdict == "warn":
        say += " Too few independent draws to tell an error of 10 %."
    findings = [Finding("spread by the score", 1 + ratio, 1 + SD_WARN, verdict, say)]
    shift, i, verdict = _worst(s.shift, s.shift_error, MEAN_WARN, MEAN_FAIL)
    say = f"Mean of the draws against the target's in sd, at {x.names[i]} (s.e. {s.shift_error[i]:.2g})."
    if verdict != "ok":
        say += " The chains are not where the target is, or too few draws are independent: take more iterations."
    findings.append(Finding("mean by the score", shift, MEAN_WARN, verdict, say))
    return findings, s, gradients, where


def _by_ksd(
    x: _Draws, gradients: np.ndarray, where: np.ndarray, seed: int, name: str = "KSD, all rows"
) -> list[Finding]:
    from fokker.run.ksd import discrepancy

    chains, draws, d = x.positions.shape
    n = len(gradients)
    if n < 2 * d + 20 or not np.isfinite(gradients).all():
        return [Finding(name, None, SD_FAIL, "not measured", f"{n} gradients are too few in {d} dimensions.")]
    order = np.lexsort((where[:, 1], where[:, 0]))
    correlated = max(1, int(np.ceil(n / max(float(x.ess.min()), 2.0))))
    k = discrepancy(x.positions[where[order, 0], where[order, 1]], gradients[order], min(correlated, n // 10), seed)
    verdict: Verdict = "ok"
    if k.p_value < 0.01:
        verdict = "fail" if k.as_sd_error > 1.5 * SD_FAIL else "warn" if k.as_sd_error > SD_FAIL else "ok"
    say = (
        f"As far from the target as a Gaussian law whose sds are all off by {k.as_sd_error:.1%} "
        f"(p = {k.p_value:.3f}; {k.detectable:.1%} would be seen), from {n:,} draws."
    )
    if verdict == "ok" and k.detectable > 1.0:
        verdict, say = "not measured", say + " The gradients are too noisy for a verdict."
    if verdict in ("warn", "fail"):
        say += " The shape of the draws is not the target's: see spread, mean and modes for where."
    return [Finding(name, k.as_sd_error, SD_FAIL, verdict, say)]


def _of_minibatches(run: Run, plan: Plan, x: _Draws, score: Score | None, seconds: float, seed: int) -> list[Finding]:
    """Gradient noise and scale, KSD of minibatches, step-size bias, kinetic temperature."""
    from fokker.run.gradient_noise import measure, minibatches, scale_of_mean
    from fokker.run.score import full_gradients

    chains, draws, d = x.positions.shape
    eps = _mean_step(run, plan)
    feed = minibatches(plan)
    findings: list[Finding] = []
    covariance = np.cov(x.positions.reshape(-1, d).T).reshape(d, d)
    precision = score.precision if score is not None and score.precision is not None else np.linalg.pinv(covariance)
    law_at = x.positions.mean((0, 1))
    noise: Measured | None = None
    replayed = plan.source is None or plan.source.resumable
    if plan.target.log_likelihood is not None and not replayed:
        for name in ("gradient noise", "gradient scale"):
            findings.append(
                Finding(name, None, None, "not measured", "The batches came from an iterator that cannot be rewound.")
            )
    elif plan.target.log_likelihood is not None:
        rng = np.random.default_rng(seed)
        pick = rng.choice(chains * draws, 4, replace=False)
        points = x.positions.reshape(-1, d)[pick]
        noise = measure(plan, points, feed, seconds * SHARES["noise"] / 2)
        away = (
            law_at
            + 2 * rng.standard_normal((4, d)) @ np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(covariance))).T
        )
        far = measure(plan, away, feed, seconds * SHARES["noise"] / 2)
        if noise is None or far is None:
            why = "1,000 minibatch gradients took longer than the time given; audit(seconds=...) gives more."
            findings += [Finding(n, None, None, "not measured", why) for n in ("gradient noise", "gradient scale")]
        else:
            findings.append(_gradient_scale(full_gradients(plan.target, away), far, covariance, scale_of_mean))
            findings += _by_ksd_of_minibatches(plan, x, feed, seed)
    law, found = _by_law(plan, x, eps, precision, noise, law_at)
    findings += found
    findings.append(_step_bias(plan, x, eps, feed, seconds * SHARES["paired"]) if replayed else Finding(
        "step-size bias", None, SD_WARN, "not measured", "The batches came from an iterator that cannot be rewound."))  # fmt: skip
    findings += _kinetic(run, plan, law)
    return findings


def _mean_step(run: Run, plan: Plan) -> float:
    """The step size, or its mean over the kept iterations where a schedule changes it."""
    from fokker.sgmcmc.schedules import constant

    kernel: Any = plan.kernel
    eps = float(kernel.step_size)
    schedule = getattr(kernel, "schedule", constant())
    if isinstance(schedule, constant):
        return eps
    import jax.numpy as jnp

    when = plan.warmup + np.unique(np.linspace(0, max(run.draws.sizes["draw"] * plan.thin - 1, 0), 2000).astype(int))
    return eps * float(np.mean([float(schedule(jnp.asarray(t))) for t in when[:: max(1, len(when) // 500)]]))


def _gradient_scale(full: np.ndarray, far: Measured, covariance: np.ndarray, scale_of_mean: Any) -> Finding:
    slope, error = scale_of_mean(full, far, covariance)
    off = abs(slope - 1)
    verdict = _grade(off, SCALE_WARN, SCALE_FAIL) if off > 4 * error else "ok" if error < SCALE_FAIL else "not measured"
    say = f"Mean of {far.batches:,} minibatch gradients over the full gradient, at 4 points away from the mode (s.e. {error:.2g})."
    if verdict in ("warn", "fail"):
        say += " It has to be 1: check the factor N/n of the gradient estimator."
    return Finding("gradient scale", slope, 1 + SCALE_WARN, verdict, say)


def _by_ksd_of_minibatches(plan: Plan, x: _Draws, feed: Any, seed: int) -> list[Finding]:
    """KSD with one minibatch gradient at each draw: the noise averages out over pairs."""
    import jax
    import jax.numpy as jnp

    from fokker.numeric import random
    from fokker.numeric.random_jax import Key
    from fokker.run.gradient_noise import indices
    from fokker.run.score import spread_out

    chains, draws, d = x.positions.shape
    where = spread_out(chains, draws, GRADIENTS)
    points = jnp.asarray(x.positions[where[:, 0], where[:, 1]], plan.dtype)
    gradient = plan.gradient.bind(plan.target)
    kind, data = feed
    aux = gradient.init(jnp.asarray(x.positions.mean((0, 1)), plan.dtype))
    words = jnp.asarray(random.chain_words(plan.seed, 0, random.AUDIT))
    first = int(np.random.default_rng(seed).integers(1 << 20))
    index, batches = indices(plan, chains, first, len(points), data)

    @jax.jit
    def at_draws(points: Any, data: Any, index: Any) -> Any:
        def one(aux: Any, i: Any) -> Any:
            grad_u, _, aux = gradient.estimate(
                Key(words, i.astype(jnp.uint32)), points[i], kind.batch(data, index, i), aux
            )
            return aux, grad_u

        return jax.lax.scan(one, aux, jnp.arange(len(points)))[1]

    gradients = np.asarray(at_draws(points, batches, index), np.float64)
    return _by_ksd(x, gradients, where, seed, "KSD, minibatches")


def _by_law(
    plan: Plan, x: _Draws, eps: float, precision: np.ndarray, noise: Measured | None, at: np.ndarray
) -> tuple[Law | None, list[Finding]]:
    """What gradient noise does to the law, on the Gaussian approximation; and that law."""
    from fokker.run.gradients import rows
    from fokker.run.linearised import LARGEST, Noise, friction_of, gaussian_law, linear_kernel
    from fokker.sgmcmc.matrix import as_dense
    from fokker.sgmcmc.sgfs import sgfs

    d = len(at)
    size = rows(plan.target) if plan.target.log_likelihood is not None else 1
    V = np.zeros((d, d)) if noise is None else noise.covariance
    known = None if noise is None else noise.known
    square = (np.diag(V) + np.diag(precision)) / size**2
    linear, taken = linear_kernel(plan, eps, at, Noise(V, known, square))
    still, nothing = (
        linear_kernel(plan, eps, at, Noise(np.zeros((d, d)), None, square))
        if not isinstance(linear, sgfs)
        else (linear, taken)
    )
    precision = (precision + precision.T) / 2
    epoch = size // plan.batches.batch_size if plan.batches is not None and plan.batches.order == "epochs" else None
    law = gaussian_law(linear, precision, V, taken, epoch) if d <= LARGEST else None
    if noise is None:
        return law, []
    friction = friction_of(still, d)
    root = np.linalg.inv(np.linalg.cholesky(friction))
    shares = np.linalg.eigvalsh(root @ (eps / 2 * V) @ root.T)
    mean_share, largest = float(shares.mean()), float(shares[-1])
    left = V if known is None else V - np.asarray(as_dense(known, d), float)
    how = (
        "not compensated"
        if known is None
        else f"compensated ({plan.gradient.noise}), {np.trace(left) / np.trace(V):.0%} of it left"
    )
    if isinstance(linear, sgfs):
        how = "used as noise by sgfs"
    name = type(plan.kernel).__name__
    if name == "sgnht":
        how += f", taken up by the thermostat where it is even; it varies by a factor {largest / max(shares[0], 1e-300):.2g} over directions"
    say = f"Gradient noise is {mean_share:.1%} of the injected noise on average, {largest:.1%} in the worst direction; {how}."
    cure = " Take a larger batch, a smaller step, control_variates() or noise='dense'."
    if law is None:
        value = float(np.sqrt(1 + largest) - 1)
        verdict: Verdict = "ok" if value < SD_WARN else "warn"
        return law, [
            Finding(
                "gradient noise",
                value,
                SD_WARN,
                verdict,
                say + " Bound of the sd's error." + (cure if verdict != "ok" else ""),
            )
        ]
    if law.radius >= 1:
        say += f" On the Gaussian approximation this step is not stable (spectral radius {law.radius:.3f}): take a smaller one."
        return law, [Finding("gradient noise", None, SD_WARN, "fail", say)]
    base = law if isinstance(linear, sgfs) else gaussian_law(still, precision, np.zeros((d, d)), None)
    if base.radius >= 1:
        say += " Without gradient noise this step is not stable on the Gaussian approximation: take a smaller one."
        return law, [Finding("gradient noise", None, SD_WARN, "fail", say)]
    error = np.sqrt(np.diag(law.covariance) / np.diag(base.covariance)) - 1
    if isinstance(linear, sgfs):
        error = np.sqrt(np.diag(law.covariance) * 1 / np.diag(np.linalg.inv(precision))) - 1
    i = int(np.argmax(np.abs(error)))
    verdict = _grade(abs(error[i]), SD_WARN, SD_FAIL)
    order = "without replacement" if epoch else "independent batches"
    say += f" By the law of the linearised chain ({order}) it changes sds by up to {error[i]:+.1%}, at {x.names[i]}."
    return law, [Finding("gradient noise", float(error[i]), SD_WARN, verdict, say + (cure if verdict != "ok" else ""))]


def _step_bias(plan: Plan, x: _Draws, eps: float, feed: Any, seconds: float) -> Finding:
    from fokker.run.paired import measure_bias

    chains, draws, d = x.positions.shape
    last = np.linspace(draws // 2, draws - 1, -(-PAIRED_CHAINS // chains)).astype(int)
    starts = x.positions[:, last].reshape(-1, d)[: max(PAIRED_CHAINS, chains)][:PAIRED_CHAINS]
    relaxation = x.spacing * chains * draws / np.clip(x.ess.min(), 1.0, chains * draws) / 2
    scale = x.positions.std((0, 1))
    bias = measure_bias(plan, eps, starts, scale, relaxation, feed, seconds, SD_WARN / 4)
    if isinstance(bias, str):
        verdict: Verdict = "fail" if "non-finite" in bias else "not measured"
        return Finding(
            "step-size bias", None, SD_WARN, verdict, f"{bias[0].upper()}{bias[1:]}; audit(seconds=...) gives more."
        )
    value, i, verdict = _worst(bias.sd, bias.sd_error, SD_WARN, SD_FAIL)
    shift, j, of_mean = _worst(bias.mean, bias.mean_error, MEAN_WARN, MEAN_FAIL)
    if (verdict == "warn" and np.abs(bias.sd).max() < SD_WARN) or (
        of_mean == "warn" and np.abs(bias.mean).max() < MEAN_WARN
    ):
        verdict = "not measured"
    elif "fail" in (verdict, of_mean):
        verdict = "fail"
    elif "warn" in (verdict, of_mean):
        verdict = "warn"
    say = (
        f"Relative bias of the sd by coupled chains at eps and eps/2 (order {bias.order}), at {x.names[i]} "
        f"(s.e. {bias.sd_error[i]:.2g}); of the mean {shift:+.2g} sd (s.e. {bias.mean_error[j]:.2g}); {bias.steps:,} paired steps."
    )
    if verdict in ("warn", "fail"):
        say += f" Take a smaller step, about {eps * (0.5 * SD_WARN / max(abs(value), abs(shift) / 2, 1e-9)) ** (1 / bias.order):.2g}."
    return Finding("step-size bias", value, SD_WARN, verdict, say)


def _kinetic(run: Run, plan: Plan, law: Law | None) -> list[Finding]:
    """E r^T M^-1 r / d against what the discrete chain should have."""
    from fokker.sgmcmc.sghmc import sghmc
    from fokker.sgmcmc.sgnht import sgnht
    from fokker.sgmcmc.sgrhmc import sgrhmc

    if not isinstance(plan.kernel, (sghmc, sgnht, sgrhmc)):
        return []
    if "kinetic" not in run.stats:
        return [Finding("kinetic temperature", None, None, "not measured", "The run kept no kinetic energies.")]
    from arviz_stats.base import array_stats

    values = np.asarray(run.stats["kinetic"], np.float64)
    mean, error = float(values.mean()), float(array_stats.mcse(values, chain_axis=0, draw_axis=1))
    if isinstance(plan.kernel, sgnht) or law is None or law.kinetic is None or not np.isfinite(law.kinetic):
        expected = 1.0
    else:
        expected = law.kinetic
    off = abs(mean / expected - 1)
    verdict: Verdict = (
        "not measured"
        if not np.isfinite(error)
        else _grade(off, KINETIC_WARN, KINETIC_FAIL)
        if off > 3 * error
        else "ok"
    )
    say = f"Mean of r M^-1 r / d (s.e. {error:.2g}); the law of this step and noise has {expected:.3f}."
    if verdict in ("warn", "fail"):
        say += " Momenta are too hot or too cold: gradient noise or step are not what they seem; take a smaller step."
    return [Finding("kinetic temperature", mean, expected * (1 + KINETIC_WARN), verdict, say)]


def _metropolis(run: Run) -> Iterator[Finding]:
    stats = run.stats
    if "acceptance_probability" in stats:
        by_chain = np.asarray(stats["acceptance_probability"], float).mean(1)
        value = float(by_chain.min())
        verdict: Verdict = "fail" if value < 0.05 else "warn" if value < 0.3 else "ok"
        say = "Mean acceptance of the worst chain."
        yield Finding("acceptance", value, 0.3, verdict, say + (" Take a smaller step." if verdict != "ok" else ""))
    for field, name, bad in (("diverging", "divergences", 1), ("converged", "inner iterations", 0)):
        if field in stats:
            share = float((np.asarray(stats[field], int) == bad).mean())
            verdict = _grade(share, 1e-3, 0.05)
            what = "trajectories that left all bounds" if bad else "trajectories whose inner iterations failed, refused"
            say = f"Share of {what}."
            if verdict != "ok":
                say += " The chain avoids a region: take a smaller step or another parametrisation."
            yield Finding(name, share, 1e-3, verdict, say)


def _unseen_modes(plan: Plan, x: _Draws, seconds: float, seed: int) -> Finding:
    from fokker.run.other_modes import search_modes

    chains, draws, d = x.positions.shape
    few = np.linspace(0, draws - 1, max(2, min(draws, 2000 // chains))).astype(int)
    search = search_modes(plan.target, x.positions[:, few].reshape(-1, d), np.stack(plan.starts), seconds, seed)
    if not search.converged:
        return Finding("other modes", None, MODE_WARN, "not measured", "No descent converged.")
    say = f"{search.converged} descents from up to 100 sd away"
    if search.relabelled:
        say += f", {search.relabelled} of their ends the same mode relabelled"
    if not search.unseen:
        return Finding("other modes", 0.0, MODE_WARN, "ok", say + " found no mode that the draws have not seen.")
    mode = search.unseen[0]
    verdict = _grade(mode.weight, MODE_WARN, MODE_FAIL)
    say += f" found {len(search.unseen)} unseen: the largest, {mode.distance:.0f} sd away, has {mode.weight:.2g} times the weight of the seen one."
    if verdict != "ok":
        say += " The draws are of one mode only: start chains in each, or use a cyclical schedule."
    return Finding("other modes", mode.weight, MODE_WARN, verdict, say)


# --- verdicts -----------------------------------------------------------------------------------------------------------


def _grade(value: float, warn: float, fail: float) -> Verdict:
    return "fail" if value > fail else "warn" if value > warn else "ok"


def _crit(d: int) -> float:
    """Standard errors beyond which one of d coordinates is off, with a chance of FALSE_ALARMS for any."""
    return float(norm.isf(FALSE_ALARMS / (2 * d)))


def _worst(error: np.ndarray, se: np.ndarray, warn: float, fail: float) -> tuple[float, int, Verdict]:
    """The error that counts most, its coordinate, and the verdict: "warn" too where the error is not known well."""
    shown = np.abs(error) > _crit(len(error)) * se
    i = int(np.argmax(np.abs(error) * np.where(shown, 1.0, 1e-6)))
    verdict = _grade(float(np.abs(error[i])), warn, fail) if shown.any() else "ok"
    if verdict == "ok" and not float(np.max(se)) < fail / 2:
        i = int(np.argmax(se))
        verdict = "warn"
    return float(error[i]), i, verdict


def _overall(findings: Sequence[Finding], with_target: bool) -> tuple[Colour, str]:
    by = lambda verdict: [f.name for f in findings if f.verdict == verdict]
    failed, warned, missing = by("fail"), by("warn"), by("not measured")
    if "KSD, all rows" not in missing:  # says more than the one of minibatches, which may be missing then
        missing = [name for name in missing if name != "KSD, minibatches"]
    if failed:
        also = f" Also look at: {', '.join(warned)}." if warned else ""
        return "red", f"Do not use these draws: {', '.join(failed)} failed.{also} The table says what to change."
    if warned or missing:
        words = []
        if warned:
            words.append(
                f"Use means and sds with care ({', '.join(warned)}); tails and small probabilities not at all."
            )
        if missing:
            words.append(
                f"Not measured: {', '.join(missing)}" + ("." if with_target else "; without them nothing is certified.")
            )
        return "amber", " ".join(words)
    return "green", (
        f"All quantities can be used: nothing measured is off by more than {SD_WARN:.0%} of an sd in spread or "
        f"{MEAN_WARN:.1f} sd in mean."
    )
