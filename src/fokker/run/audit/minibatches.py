"""Findings about kernels that see a few rows at a step: what gradient noise and a finite step do to the law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker.geodesic.gsgnht import gsgnht
from fokker.geodesic.sggmc import sggmc
from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run.audit.draws import Draws
from fokker.run.audit.gradient_noise import Measured, indices, measure, minibatches, scale_of_mean
from fokker.run.audit.linearised import LINEAR, Laws, gaussian_laws
from fokker.run.audit.on_manifold import View, linear_run
from fokker.run.audit.paired import measure_bias
from fokker.run.audit.posterior import GRADIENTS, stein_discrepancy
from fokker.run.audit.score import full_gradients, spread_out
from fokker.run.audit.verdict import KINETIC, MEAN, SCALE, SD, Finding, Verdict, excused, grade, missing, worst
from fokker.sgmcmc.schedules import constant
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgnht import sgnht
from fokker.sgmcmc.sgrhmc import sgrhmc

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.run.result import Run

POINTS = 4  # at which the noise is measured, near and away from the mode
PAIRED_CHAINS = 4
CURE = " Take a larger batch, a smaller step, control_variates() or noise='dense'."
GONE = "The batches came from an iterator that cannot be started again."


def of_minibatches(
    run: Run,
    plan: Plan,
    x: Draws,
    precision: np.ndarray | None,
    seconds: Mapping[str, float],
    seed: int,
    view: View | str | None = None,
) -> Iterator[Finding]:
    """precision: of the posterior near its mean, where known; else that of the draws. seconds: "noise", "paired".

    view: of a run on a manifold, in whose coordinates ``precision`` is; or why there is none.
    """
    with_rows = plan.target.log_likelihood is not None
    feed = minibatches(plan)
    if isinstance(view, str):
        of_rows = ("gradient scale", "KSD, minibatches", "gradient noise") if with_rows else ()
        yield from (missing(name, view) for name in of_rows)
        yield _step_bias(plan, x, mean_step(run, plan), feed, seconds["paired"])
        return
    near = far = None
    points = np.zeros((0, x.flat.shape[1]))
    if with_rows:
        points, near, far = _noise_near_and_far(plan, x, feed, seconds["noise"], seed, view)
        yield from _gradient_scale(plan, far)
        yield _stein_of_minibatches(plan, x, feed, seed, view)
    if not isinstance(plan.kernel, LINEAR):
        why = f"What a step of {type(plan.kernel).__name__} does on a Gaussian law is not known here."
        yield from (missing(name, why) for name in ("gradient noise", "step-size bias"))
        return
    eps = mean_step(run, plan)
    if precision is None:
        precision = np.linalg.pinv((x if view is None else view.draws).covariance)
    laws, names = None, x.names
    if near is not None or not with_rows:
        H = (precision + precision.T) / 2
        if view is None:
            laws = gaussian_laws(plan, eps, H, x.flat.mean(0), near)
        else:
            flat = linear_run(plan, view, H, near, points)
            names = flat.names
            laws = gaussian_laws(flat.plan, eps, flat.precision, np.zeros(len(names)), flat.measured, flat.groups)
    if with_rows:
        yield from _gradient_noise(plan, names, laws)
    yield _step_bias(plan, x, eps, feed, seconds["paired"])
    yield from _temperature(run, plan, laws)


def of_an_iterator(run: Run, plan: Plan, x: Draws, seconds: float, seed: int) -> Iterator[Finding]:
    """What can be measured with batches that come in one order only, from their beginning on.

    The covariance of the draws stands for that of the posterior, which no full-data gradient has told.
    """
    assert plan.source is not None
    kernel, laws = plan.kernel, None
    needs_all = "Needs the full-data gradient, and the data come from an iterator."
    needs_own = "Needs batches for every pair of chains, and an iterator has one stream of them."
    yield missing("gradient scale", needs_all)
    if not getattr(plan.source, "restartable", False):
        yield from (missing(name, GONE) for name in ("KSD, minibatches", "gradient noise"))
    else:
        feed = minibatches(plan)
        yield _stein_of_minibatches(plan, x, feed, seed, None)
        if isinstance(kernel, LINEAR):
            rng = np.random.default_rng(seed)
            near = measure(plan, x.flat[rng.choice(len(x.flat), POINTS, replace=False)], feed, seconds)
            if near is not None:
                laws = gaussian_laws(plan, mean_step(run, plan), np.linalg.pinv(x.covariance), x.flat.mean(0), near)
            yield from _gradient_noise(plan, x.names, laws)
        else:
            why = f"What a step of {type(kernel).__name__} does on a Gaussian law is not known here."
            yield missing("gradient noise", why)
    yield missing("step-size bias", needs_own)
    if laws is not None:
        yield from _temperature(run, plan, laws)


def mean_step(run: Run, plan: Plan) -> float:
    """The step size, or its mean over the kept iterations where a schedule changes it."""
    kernel: Any = plan.kernel
    eps, schedule = float(kernel.step_size), getattr(kernel, "schedule", constant())
    if isinstance(schedule, constant):
        return eps
    last = max(run.draws.sizes["draw"] * plan.thin - 1, 0)
    when = plan.warmup + np.unique(np.linspace(0, last, 500).astype(int))
    return eps * float(np.mean(jax.vmap(schedule)(jnp.asarray(when))))


# --- the stochastic gradient ------------------------------------------------------------------------------------------


class _Far(NamedTuple):
    """Gradients away from the mode, where the full one is large."""

    full: np.ndarray  # (points, d)
    noisy: Measured
    covariance: np.ndarray  # (d, d) of the draws


def _noise_near_and_far(
    plan: Plan, x: Draws, feed: Any, seconds: float, seed: int, view: View | None
) -> tuple[np.ndarray, Measured | None, _Far | None]:
    """The stochastic gradient at some draws, which come first, and at points two to four times as far out."""
    rng = np.random.default_rng(seed)
    covariance = x.covariance
    near = x.flat[rng.choice(len(x.flat), POINTS, replace=False)]
    if view is None:
        root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(covariance)))
        away = x.flat.mean(0) + 2 * rng.standard_normal((POINTS, len(root))) @ root.T
    else:
        away = view.around(rng, POINTS, 2.0)
    measured = measure(plan, np.concatenate([near, away]), feed, seconds)
    if measured is None:
        return near, None, None
    far = _Far(full_gradients(plan.target, away), measured.at(slice(POINTS, None)), covariance)
    return near, measured.at(slice(POINTS)), far


def _gradient_scale(plan: Plan, far: _Far | None) -> Iterator[Finding]:
    """The factor of the stochastic gradient's mean, which is wrong where N/n is."""
    name = "gradient scale"
    if far is None:
        yield missing(name, "1,000 minibatch gradients took longer than the time given; audit(seconds=...) gives more.")
        return
    slope, error = scale_of_mean(far.full, far.noisy, far.covariance)
    off = abs(slope - 1)
    say = (
        f"Mean of {far.noisy.batches:,} minibatch gradients over the full gradient, at {POINTS} points away from the "
        f"mode (s.e. {error:.2g})."
    )
    verdict: Verdict = grade(off, SCALE) if off > 4 * error else "ok" if error < SCALE[1] / 2 else "not measured"
    say += excused(verdict, off, SCALE)
    if verdict in ("warn", "fail"):
        say += " It has to be 1: check the factor N/n of the gradient estimator."
    yield Finding(name, slope, 1 + SCALE[0], verdict, say)


def _stein_of_minibatches(plan: Plan, x: Draws, feed: Any, seed: int, view: View | None) -> Finding:
    """KSD with one minibatch gradient at each draw: the noise averages out over pairs."""
    chains, draws, _ = x.positions.shape
    where = spread_out(chains, draws, GRADIENTS)
    points = jnp.asarray(x.positions[where[:, 0], where[:, 1]], plan.dtype)
    gradient, (kind, data) = plan.gradient.bind(plan.target), feed
    words = jnp.asarray(random.chain_words(plan.seed, 0, random.AUDIT))
    in_order = plan.source is not None and plan.source.streams is not None
    first = 0 if in_order else int(np.random.default_rng(seed).integers(1 << 20))
    index, batches = indices(plan, chains, first, len(points), data)

    @jax.jit
    def at_draws(points: Any, data: Any, index: Any) -> Any:
        def one(aux: Any, i: Any) -> Any:
            key, batch = Key(words, i.astype(jnp.uint32)), kind.batch(data, index, i)
            grad_u, _, aux = gradient.estimate(key, points[i], batch, aux)
            return aux, grad_u

        aux = gradient.init(jnp.asarray(x.flat.mean(0) if view is None else x.flat[-1], plan.dtype))
        return jax.lax.scan(one, aux, jnp.arange(len(points)))[1]

    gradients = np.asarray(at_draws(points, batches, index), np.float64)
    if view is None:
        return stein_discrepancy(x, where, gradients, seed, "KSD, minibatches")
    at = view.points[where[:, 0], where[:, 1]]
    g = view.scores(at, view.pulled(at, gradients))
    return stein_discrepancy(view.draws, where, g, seed, "KSD, minibatches", view)


# --- the law of the chain ---------------------------------------------------------------------------------------------


def _gradient_noise(plan: Plan, names: list[str], laws: Laws | None) -> Iterator[Finding]:
    """The share of the injected noise that gradient noise has, and what it does to the law."""
    name = "gradient noise"
    if laws is None:
        yield missing(name, "1,000 minibatch gradients took longer than the time given; audit(seconds=...) gives more.")
        return
    largest = float(laws.shares[-1])
    yield Finding("noise share", largest, None, "ok", _shares_in_words(plan, laws))
    if laws.chain is None or laws.noiseless is None:
        value = float(np.sqrt(1 + largest) - 1)
        verdict: Verdict = "ok" if value <= SD[0] else "warn"
        say = f"Bound of what it does to an sd; {len(names)} parameters are too many for the law itself."
        yield Finding(name, value, SD[0], verdict, say + (CURE if verdict != "ok" else ""))
    elif max(laws.chain.radius, laws.noiseless.radius) >= 1:
        say = f"On the Gaussian approximation this step is not stable (spectral radius {laws.chain.radius:.3f})."
        yield Finding(name, None, SD[0], "fail", say + " Take a smaller one.")
    else:
        errors = np.sqrt(np.diag(laws.chain.covariance) / np.diag(laws.noiseless.covariance)) - 1
        i = int(np.argmax(np.abs(errors)))
        verdict = grade(abs(errors[i]), SD)
        order = "independent batches" if laws.epochs is None else f"epochs of {laws.epochs.batches} batches"
        say = f"What it does to the sd by the law of the linearised chain ({order}), at {names[i]}."
        yield Finding(name, float(errors[i]), SD[0], verdict, say + (CURE if verdict != "ok" else ""))


def _shares_in_words(plan: Plan, laws: Laws) -> str:
    smallest, mean, largest = laws.shares[0], laws.shares.mean(), laws.shares[-1]
    say = f"Gradient noise is {mean:.1%} of the injected noise on average, {largest:.1%} in the worst direction;"
    kernel = type(plan.kernel).__name__
    if kernel == "sgfs":
        return say + " sgfs uses it as noise."
    if laws.left is not None:
        say += f" compensated ({plan.gradient.noise}), {laws.left:.0%} of it left."
    else:
        say += " not compensated."
    if kernel in ("sgnht", "gsgnht"):
        even = largest / max(smallest, 1e-300)
        say += f" Thermostats take it up where it is even; it varies by a factor {even:.2g} over directions."
    return say


def _step_bias(plan: Plan, x: Draws, eps: float, feed: Any, seconds: float) -> Finding:
    """What the step size does to the law, by coupled chains at eps and eps/2."""
    name = "step-size bias"
    chains, draws, d = x.positions.shape
    last = np.linspace(draws // 2, draws - 1, -(-PAIRED_CHAINS // chains)).astype(int)
    starts = x.positions[:, last].reshape(-1, d)[:PAIRED_CHAINS]
    bias = measure_bias(plan, eps, starts, x.flat.std(0), x.relaxation, feed, seconds, SD[0] / 4)
    if isinstance(bias, str):
        say = f"{bias[0].upper()}{bias[1:]}; audit(seconds=...) gives more."
        return Finding(name, None, SD[0], "fail", say) if "non-finite" in bias else missing(name, say)
    spread, mean = worst(bias.sd, bias.sd_error, SD), worst(bias.mean, bias.mean_error, MEAN)
    verdict = max(spread.verdict, mean.verdict, key=("ok", "not measured", "warn", "fail").index)
    say = (
        f"Relative bias of the sd by coupled chains at eps and eps/2 (order {bias.order}), at "
        f"{x.names[spread.coordinate]} (s.e. {bias.sd_error[spread.coordinate]:.2g}); of the mean {mean.value:+.2g} sd "
        f"(s.e. {bias.mean_error[mean.coordinate]:.2g}); {bias.steps:,} paired steps."
    )
    say += excused(spread.verdict, spread.value, SD)
    if verdict in ("warn", "fail"):
        too_large = max(abs(spread.value), abs(mean.value) / 2) / (0.5 * SD[0])
        say += f" Take a smaller step, about {eps * too_large ** (-1 / bias.order):.2g}."
    return Finding(name, spread.value, SD[0], verdict, say)


def _temperature(run: Run, plan: Plan, laws: Laws | None) -> Iterator[Finding]:
    """E r^T M^-1 r / d against what the discrete chain should have."""
    name = "kinetic temperature"
    if not isinstance(plan.kernel, (sghmc, sgnht, sgrhmc, sggmc, gsgnht)):
        return
    if "kinetic" not in run.stats:
        yield missing(name, "The run kept no kinetic energies.")
        return
    from arviz_stats.base import array_stats

    values = np.asarray(run.stats["kinetic"], np.float64)
    value, error = float(values.mean()), float(array_stats.mcse(values, chain_axis=0, draw_axis=1))
    law = None if laws is None or laws.chain is None or isinstance(plan.kernel, (sgnht, gsgnht)) else laws.chain.kinetic
    expected = law if law is not None and np.isfinite(law) else 1.0  # thermostats settle at 1 at any step
    off = abs(value / expected - 1)
    verdict: Verdict = grade(off, KINETIC) if off > 3 * error / expected else "ok"
    if not np.isfinite(error):
        verdict = "not measured"
    on_manifold = isinstance(plan.kernel, (sggmc, gsgnht))
    what = "|v|^2 / m, m the dimension of the space," if on_manifold else "r M^-1 r / d"
    say = f"Mean of {what} (s.e. {error:.2g}); the law of this step and noise has {expected:.3f}."
    if isinstance(plan.kernel, gsgnht):
        say = f"Mean of {what} (s.e. {error:.2g}). The thermostat holds it at 1, whatever noise does to the law."
    say += excused(verdict, off, KINETIC)
    if verdict in ("warn", "fail"):
        say += " Momenta are too hot or too cold: gradient noise or step are not what they seem; take a smaller step."
    yield Finding(name, value, expected * (1 + KINETIC[0]), verdict, say)
