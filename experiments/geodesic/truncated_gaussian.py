"""Truncated Gaussians in a box, a half-space and a ball: constraint distributions (Liu, Zhu & Song 2016, Sec. 6).

python -m experiments.geodesic.truncated_gaussian [--quick]

All moments are known: in a box, of a Gaussian whose correlations are all equal, by one integral over the common factor,
given which the entries are independent; in a half-space in closed form; in a ball, of a round Gaussian, by one integral
over the radius, given which the direction is von Mises-Fisher.

With rows: N observations of the vector with a known covariance, scaled and centred such that the posterior under a flat
prior on the box is the same truncated Gaussian, whose moments are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import integrate, stats

import fokker
from experiments import report
from experiments.geodesic.nuts import effective, nuts, standard_error
from fokker import vmf

RHO, LOW, HIGH = 0.5, -0.5, 1.5  # of the box: correlations, sides; means 0, sds 1
FAR = 4.5  # standard errors: 260 functions, none of which is as far off in 998 of 1,000 experiments
CLOSE = 0.05  # of a posterior sd: what a minibatch sampler may be off
ROWS, BATCH = 10_000, 2000
BLUE, ORANGE, GREEN = (report.COLOURS[m] for m in ("SGLD", "SGHMC", "gSGRHMC"))


@dataclass(frozen=True)
class Case:
    """A truncated Gaussian, and functions of a draw whose exact means are known."""

    name: str
    d: int
    space: Any
    log_density: Callable[[Any], Any]
    start: np.ndarray
    step_size: float
    leapfrog_steps: int
    functions: Callable[[np.ndarray], dict[str, np.ndarray]]  # (chains, draws, d) -> {name: (chains, draws)}
    exact: dict[str, float]


def box(d: int, step_size: float, leapfrog_steps: int) -> Case:
    log_density = lambda theta: -0.5 * theta @ precision(d) @ theta
    space, start = fokker.Box(LOW, np.full(d, HIGH)), np.full(d, 0.3)
    return Case("box", d, space, log_density, start, step_size, leapfrog_steps, box_functions, box_moments(d))


def precision(d: int) -> np.ndarray:
    """Inverse of the matrix with 1 on the diagonal and RHO beside it, (d, d)."""
    return ((np.eye(d) - RHO / (1 + (d - 1) * RHO)) / (1 - RHO)).astype(np.float32)


def box_functions(theta: np.ndarray) -> dict[str, np.ndarray]:
    """Of every entry, and of all together."""
    d = theta.shape[-1]
    first = {f"θ[{i}]": theta[..., i] for i in range(d)}
    second = {f"θ[{i}]²": theta[..., i] ** 2 for i in range(d)}
    pairs = (theta.sum(-1) ** 2 - (theta**2).sum(-1)) / (d * (d - 1))
    return {"mean of θ": theta.mean(-1), "mean of θ²": (theta**2).mean(-1), "mean of θᵢθⱼ": pairs, **first, **second}


def box_moments(d: int) -> dict[str, float]:
    """Given the common factor z, theta = sqrt(RHO) z + sqrt(1 - RHO) e: independent entries, truncated."""
    sd = math.sqrt(1 - RHO)

    def given(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log chance that all entries fall into the box, mean and second moment of an entry there."""
        centre = math.sqrt(RHO) * z
        a, b = (LOW - centre) / sd, (HIGH - centre) / sd
        entry = stats.truncnorm(a, b, loc=centre, scale=sd)
        log_chance = stats.norm.logsf(a) + np.log(-np.expm1(stats.norm.logsf(b) - stats.norm.logsf(a)))
        return d * log_chance, entry.mean(), entry.mean() ** 2 + entry.var()

    z = np.linspace(-3, 5, 801)  # all of the mass; the integrand is smooth and 0 at both ends
    log_chance, first, second = given(z)
    weight = np.exp(log_chance - z**2 / 2 - (log_chance - z**2 / 2).max())
    mean = lambda f: float(integrate.simpson(f * weight, z) / integrate.simpson(weight, z))
    m1, m2 = mean(first), mean(second)
    each = {f"θ[{i}]": m1 for i in range(d)} | {f"θ[{i}]²": m2 for i in range(d)}
    return {"mean of θ": m1, "mean of θ²": m2, "mean of θᵢθⱼ": mean(first**2), **each}


def half_space(d: int, step_size: float, leapfrog_steps: int) -> Case:
    """Normal(0, I) with normal . theta >= 1."""
    normal = np.arange(1, d + 1) / d
    unit = normal / np.linalg.norm(normal)
    edge = 1 / np.linalg.norm(normal)
    along = stats.truncnorm(edge, np.inf)

    def functions(theta: np.ndarray) -> dict[str, np.ndarray]:
        w = theta @ unit
        across = theta - w[..., None] * unit
        each = {f"θ[{i}]": theta[..., i] for i in range(d)}
        return {"u·θ": w, "(u·θ)²": w**2, "|θ − u u·θ|²": (across**2).sum(-1), **each}

    exact = {"u·θ": along.mean(), "(u·θ)²": along.mean() ** 2 + along.var(), "|θ − u u·θ|²": d - 1.0}
    exact |= {f"θ[{i}]": along.mean() * unit[i] for i in range(d)}
    start = (edge + 1) * unit
    space = fokker.HalfSpace(normal, 1.0)
    return Case(
        "half-space", d, space, lambda theta: -0.5 * theta @ theta, start, step_size, leapfrog_steps, functions, exact
    )


def ball(d: int, step_size: float, leapfrog_steps: int) -> Case:
    """Normal(m, s^2 I) in the unit ball, s^2 = 1 / d, |m| = 1."""
    s2, centre = 1 / d, np.zeros(d, np.float32)
    centre[0] = 1.0

    def functions(theta: np.ndarray) -> dict[str, np.ndarray]:
        square = (theta**2).sum(-1)
        return {"|θ|²": square, "|θ|⁴": square**2, **{f"θ[{i}]": theta[..., i] for i in range(d)}}

    r = np.linspace(1e-6, 1, 8001)  # given |theta| = r, the direction is vMF with concentration r |m| / s^2
    kappa = r / s2
    log_weight = (d - 1) * np.log(r) - r**2 / (2 * s2) - vmf.log_normaliser(d, kappa)
    weight = np.exp(log_weight - log_weight.max())
    mean = lambda f: float(integrate.simpson(f * weight, r) / integrate.simpson(weight, r))
    exact = {"|θ|²": mean(r**2), "|θ|⁴": mean(r**4), "θ[0]": mean(r * vmf.mean_length(d, kappa))}
    exact |= {f"θ[{i}]": 0.0 for i in range(1, d)}
    log_density = lambda theta: -0.5 * jnp.sum((theta - centre) ** 2) / s2
    space, start = fokker.Ball(d), centre / 2
    return Case("ball", d, space, log_density, start, step_size, leapfrog_steps, functions, exact)


def gmc_cases(quick: bool) -> list[Case]:
    """Steps and their number: the best of a few by effective draws per gradient."""
    boxes = [box(2, 0.6, 2), box(50, 0.2, 4)]
    return (
        boxes if quick else [*boxes, half_space(2, 0.4, 4), half_space(50, 0.4, 4), ball(2, 0.4, 3), ball(50, 0.12, 5)]
    )


def by_gmc(case: Case, draws: int) -> tuple[np.ndarray, float]:
    """Draws (chains, draws, d) and the number of gradients."""
    target = fokker.Target.from_log_density(case.log_density, start=case.start, space=case.space)
    kernel = fokker.gmc(case.step_size, leapfrog_steps=case.leapfrog_steps)
    run = fokker.sample(target, kernel, draws=draws, warmup=500, seed=1, progress=False)
    x = run.draws["theta"].to_numpy().astype(float)
    return x, x.shape[0] * draws * (case.leapfrog_steps + 1)


def by_nuts(case: Case, draws: int) -> tuple[np.ndarray, float]:
    """The box as users write it today: theta = low + (high - low) / (1 + exp(-y))."""

    def log_density(y: Any) -> Any:
        u = jax.nn.sigmoid(y)
        return case.log_density(LOW + (HIGH - LOW) * u) + jnp.sum(jnp.log(u) + jnp.log1p(-u))

    starts = np.random.default_rng(1).normal(size=(4, case.d)).astype(np.float32)
    found = nuts(log_density, starts, 500, draws, seed=1)
    return LOW + (HIGH - LOW) / (1 + np.exp(-found.values.astype(float))), found.gradients


def observations(d: int) -> np.ndarray:
    """Rows whose likelihood, over all of them, is that of Normal(0, Sigma) in theta, (ROWS, d)."""
    rng = np.random.default_rng(1)
    factor = np.linalg.cholesky(np.linalg.inv(precision(d).astype(float)))
    y = math.sqrt(ROWS) * rng.normal(size=(ROWS, d)) @ factor.T
    return (y - y.mean(0)).astype(np.float32)


SETTINGS = dict(step_size=0.05, friction=10.0)
METHODS: dict[str, tuple[Any, Any]] = {
    "SGGMC": (fokker.sggmc(**SETTINGS), fokker.minibatch()),
    "SGGMC, V estimated": (fokker.sggmc(**SETTINGS), fokker.minibatch(noise="dense")),
    "gSGNHT": (fokker.gsgnht(**SETTINGS), fokker.minibatch()),
}
# In 50 dimensions V is a matrix of 100 x 100, and its root at every step costs ten times the rest.
PAIRS = [("SGGMC", 2), ("SGGMC, V estimated", 2), ("gSGNHT", 2), ("SGGMC", 50), ("gSGNHT", 50)]


def by_minibatches(case: Case, method: str, draws: int) -> tuple[np.ndarray, float]:
    """Draws and the mean of |v|^2 / m."""
    kernel, gradient = METHODS[method]
    of_row = precision(case.d) / ROWS

    def log_likelihood(theta: Any, y: Any) -> Any:
        return -0.5 * jnp.sum(((y - theta) @ of_row) * (y - theta), axis=1)

    target = fokker.Target(lambda theta: 0.0, log_likelihood, observations(case.d), space=case.space, start=case.start)
    run = fokker.sample(
        target, kernel, gradient=gradient, draws=draws, thin=40, warmup=2000, batch_size=BATCH, seed=1, progress=False
    )
    return run.draws["theta"].to_numpy().astype(float), float(run.stats["kinetic"].mean())


@dataclass(frozen=True)
class Error:
    """Of the mean and the sd of an entry, in posterior sds, with standard errors; averages over all entries."""

    mean: float
    mean_error: float
    sd: float
    sd_error: float

    @property
    def largest(self) -> float:
        return max(abs(self.mean), abs(self.sd))

    @property
    def told(self) -> str:
        percent = lambda value, error: f"{100 * value:+.1f} ± {100 * error:.1f}"
        return f"{percent(self.mean, self.mean_error)} and {percent(self.sd, self.sd_error)} %"


def error_of(case: Case, theta: np.ndarray) -> Error:
    m1, m2 = case.exact["mean of θ"], case.exact["mean of θ²"]
    sd = math.sqrt(m2 - m1**2)
    first, second = theta.mean(-1), ((theta - m1) ** 2).mean(-1)
    spread = second.mean() - (first.mean() - m1) ** 2
    return Error(
        (first.mean() - m1) / sd,
        standard_error(first) / sd,
        math.sqrt(spread) / sd - 1,
        standard_error(second) / (2 * sd**2),
    )


def least_effective(case: Case, theta: np.ndarray) -> float:
    return min(effective(x) for x in case.functions(theta).values())


def main(quick: bool = False, out: Any = None) -> dict:
    draws = 500 if quick else 2000
    cases = gmc_cases(quick)
    found = {(c.name, c.d): by_gmc(c, draws) for c in cases}
    z = {}
    for c in cases:
        values = c.functions(found[c.name, c.d][0])
        z[c.name, c.d] = {f: (x.mean() - c.exact[f]) / standard_error(x) for f, x in values.items()}
    pairs = PAIRS[:1] if quick else PAIRS
    whole = {d: box(d, 1.0, 1) for d in (2, 50)}
    batches = {pair: by_minibatches(whole[pair[1]], pair[0], draws) for pair in pairs}
    errors = {(method, d): error_of(whole[d], x) for (method, d), (x, _) in batches.items()}
    rates = {}
    for c in cases[1:2] if quick else cases[:2]:
        ours, theirs = found["box", c.d], by_nuts(c, draws)
        rates[c.d] = [least_effective(c, x) / gradients for x, gradients in (ours, theirs)]
        errors["NUTS", c.d] = error_of(c, theirs[0])
    claims = [exact_claim(cases, found, z), batch_claim(batches, errors), rate_claim(rates, errors)]
    picture = draw(cases, found, z, errors, rates)
    return report.write(__file__, "Truncated Gaussians", TITLE, quick, picture, claims, out)


TITLE = "a box, a half-space and a ball, by GMC, by minibatches and by NUTS"


def exact_claim(cases: list[Case], found: dict, z: dict) -> dict:
    worst = {f"{name}, d = {d}": max(values.values(), key=abs) for (name, d), values in z.items()}
    least = min(least_effective(c, found[c.name, c.d][0]) for c in cases)
    return report.claim(
        "Constraint distributions, such as a truncated Gaussian, are among the applications.",
        "GMC, error of a moment in standard errors, the largest of all: "
        + "; ".join(
            f"{name}: {value:+.1f} of {len(z[key])}" for (name, value), key in zip(worst.items(), z, strict=True)
        )
        + ".",
        all(abs(v) < FAR for v in worst.values()),
        {
            "every function has over 100 effective draws": least > 100,
            "the closed forms agree with rejection": checked(),
        },
        "No reflection at the boundary: the volume of the map keeps the chain off it.",
    )


def checked() -> bool:
    """Moments of the cases in two dimensions against rejection sampling."""
    rng, n, far = np.random.default_rng(2), 100_000, []
    for case in (box(2, 1.0, 1), half_space(2, 1.0, 1), ball(2, 1.0, 1)):
        covariance = np.linalg.inv(precision(2).astype(float)) if case.name == "box" else np.eye(2)
        theta = rng.normal(size=(n, 2)) @ np.linalg.cholesky(covariance).T
        if case.name == "ball":
            theta = theta * math.sqrt(0.5) + [1.0, 0.0]
        inside = {
            "box": ((theta > LOW) & (theta < HIGH)).all(1),
            "half-space": theta @ [0.5, 1.0] > 1,
            "ball": (theta**2).sum(1) < 1,
        }[case.name]
        values = case.functions(theta[None, inside])
        far += [abs(x.mean() - case.exact[f]) * math.sqrt(x.size) / x.std() for f, x in values.items()]
    return max(far) < FAR


def batch_claim(batches: dict, errors: dict) -> dict:
    told = "; ".join(f"{method}, d = {d}: {errors[method, d].told}" for method, d in batches)
    warm = "; ".join(f"{method}, d = {d}: {kinetic:.2f}" for (method, d), (_, kinetic) in batches.items())
    ours = [errors[pair] for pair in batches if pair[0] != "gSGNHT"]
    return report.claim(
        "On these, the ability of SGGMC to scale up will be appealing.",
        f"{BATCH:,} of {ROWS:,} rows a step. Error of mean and of sd of an entry, in posterior sds: {told}. "
        f"Mean of |v|²/m: {warm}.",
        all(abs(e.mean) < CLOSE + 2 * e.mean_error and abs(e.sd) < CLOSE + 2 * e.sd_error for e in ours),
        {"standard errors below 4 % of a posterior sd": all(max(e.mean_error, e.sd_error) < 0.04 for e in ours)},
        f"It holds if SGGMC is off by less than {100 * CLOSE:.0f} % of a sd. gSGNHT is the wrong tool here: near a "
        "face of the box the force is 1/x, and the mean of its square is infinite. Kicks there are rare and huge, the "
        "thermostat counts them as heat and cools the rest; without one, friction takes them up. For the same reason "
        "|v|²/m is no thermometer in a box.",
    )


def rate_claim(rates: dict, errors: dict) -> dict:
    told = "; ".join(f"d = {d}: {ours:.3f} and {theirs:.3f}" for d, (ours, theirs) in rates.items())
    nuts_errors = [e for (method, _), e in errors.items() if method == "NUTS"]
    return report.claim(
        "In a box, GMC has more effective draws per gradient than NUTS on logits.",
        f"Effective draws per gradient of the slowest function, GMC and NUTS: {told}.",
        all(ours > theirs for ours, theirs in rates.values()),
        {
            "NUTS agrees with the exact moments": all(
                e.largest < 0.05 + 4 * max(e.mean_error, e.sd_error) for e in nuts_errors
            )
        },
        "Ours to ask. Adaptation of NUTS is not counted. Faces are what limits the step of GMC, and their number grows "
        "with d; in few dimensions its short trajectories win.",
    )


def draw(cases: list[Case], found: dict, z: dict, errors: dict, rates: dict) -> Any:
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.6), layout="constrained")
    plane, scores, off, rate = axes.ravel()

    x = np.linspace(LOW, HIGH, 200)
    grid = np.stack(np.meshgrid(x, x), -1)
    height = np.exp(-0.5 * np.einsum("abi,ij,abj->ab", grid, precision(2), grid))
    plane.contourf(x, x, height, levels=8, cmap="Greys", alpha=0.5)
    theta = found["box", 2][0].reshape(-1, 2)[::4][:800]
    plane.plot(*theta.T, ".", ms=3, color=BLUE)
    plane.set(
        title="a Gaussian in a box: density, draws of GMC",
        xlabel="θ[0]",
        ylabel="θ[1]",
        aspect="equal",
        xlim=(LOW - 0.2, HIGH + 0.2),
        ylim=(LOW - 0.2, HIGH + 0.2),
    )

    jitter = np.random.default_rng(0)
    for row, c in enumerate(cases):
        values = np.array(list(z[c.name, c.d].values()))
        scores.plot(values, row + jitter.uniform(-0.25, 0.25, len(values)), ".", ms=4, color=BLUE)
    scores.axvspan(-2, 2, color="#dddddd", zorder=0)
    scores.set(title="moments by GMC: error in standard errors", xlim=(-FAR, FAR), xlabel="(grey: ± 2)")
    scores.set_yticks(range(len(cases)), [f"{c.name}\nd = {c.d}" for c in cases])

    for row, e in enumerate(errors.values()):
        for shift, colour, value, error, what in (
            (0.12, BLUE, e.mean, e.mean_error, "mean"), (-0.12, ORANGE, e.sd, e.sd_error, "sd"),
        ):  # fmt: skip
            look = dict(color=colour, capsize=2, label=what if not row else None)
            off.errorbar(100 * value, row + shift, xerr=200 * error, fmt="o", ms=4, **look)
    off.axvline(0, color="black", lw=0.8)
    off.axvspan(-100 * CLOSE, 100 * CLOSE, color="#dddddd", zorder=0)
    off.set(
        title="box: error of an entry's mean and sd", xlabel="% of a posterior sd, ± 2 standard errors (grey: ± 5 %)"
    )
    off.set_yticks(range(len(errors)), [f"{method}\nd = {d}" for method, d in errors])
    off.legend(frameon=False)

    for place, pair in enumerate(rates.values()):
        for shift, value, name, colour in zip((-0.2, 0.2), pair, ("GMC", "NUTS on logits"), (BLUE, GREEN), strict=True):
            bar = rate.bar(place + shift, value, 0.36, color=colour, label=None if place else name)
            rate.bar_label(bar, fmt="%.3f", fontsize=9)
    rate.set_xticks(range(len(rates)), [f"d = {d}" for d in rates])
    rate.set(title="box: effective draws per gradient", xlim=(-0.6, len(rates) - 0.4))
    rate.legend(frameon=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    report.command_line(main)
