"""A step size, a friction and a constant diagonal preconditioner, chosen before the run (docs/adr/0007-tuning.md).

The mode is found, and around it the curvature H and the covariance V of the gradient's noise are measured. On the
quadratic with these two the discrete chain's law is known exactly (``linear_chain``), for every step size and friction:
the error of every coordinate's sd from step size and gradient noise together, and autocorrelation times. Chosen is
the setting with the least autocorrelation time among those whose worst coordinate is predicted to be off by at most
``BUDGET``. Pilot chains then check what the quadratic cannot know: by partial integration

    E (theta - m)_c (H^-1 grad U(theta))_c = (H^-1)_cc    for every coordinate c, any m, any U,

so its average over the pilot's draws gives the error of the chain's own variance, without knowing the truth.
Where it is larger than allowed the step is cut and checked again. Everything is a function of the plan and its seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fokker.errors import InputError
from fokker.run.gradients import control_variates, rows, svrg
from fokker.run.linear_chain import law
from fokker.run.local_shape import Directions, Shape, directions, find_shape, remainder, row_noise
from fokker.run.loop import Chains, _Diverged
from fokker.sgmcmc.schedules import constant

if TYPE_CHECKING:
    from fokker.run.plan import Plan

BUDGET = 0.045  # predicted error of the worst coordinate's sd, relative
LOUD = 0.06  # measured error from which on a pilot is not believed to be within what was asked
DIRECTION_BUDGET = 1.0  # of the variance along any one direction, however little it means for coordinates
LARGEST_STEP = {"sgld": 1.0, "sghmc": 1.5, "sgnht": 1.3}  # eps a_max, else eps sqrt(a_max); 2 is where it explodes
LEAST_INJECTED = 0.1  # share A / xi of SGNHT's noise that is injected, at least
LARGEST_SHARE = 0.8  # of injected noise that the compensation of gradient noise may take away
POINTS = 4  # draws of the quadratic at which the noise is measured
NODES = 24  # curvatures at which the laws are computed; in between they are interpolated
PILOT_CHAINS, PILOT_DRAWS, PILOT_STEPS, ROUNDS = 4, 2000, 60_000, 5
PILOT_TIMES = 1500  # autocorrelation times that a pilot chain should see
PILOT_STREAM = 0x70696C6F  # tells the pilots' random numbers from those of the run


def tune(plan: Plan, note: Callable[[str], None]) -> tuple[Plan, dict[str, Any]]:
    """The plan with its kernel's open settings chosen, and what was chosen and why, as JSON.

    ``chosen["kernel"]`` holds the kernel's new fields, ``chosen["starts"]`` the starts if they were moved, both enough
    to rebuild the plan; ``chosen["why"]`` the evidence. Settings of the kernel that differ from its defaults are kept.
    Chains that the user starts at one point are started at draws of the quadratic; different starts are left alone.
    """
    method = type(plan.kernel).__name__
    _check(plan, method)
    note("looking for the mode and the curvature there")
    with jax.enable_x64(True):
        shape = find_shape(plan.target, plan.starts[0], plan.layout)
        note("measuring the noise of the gradient")
        noise = _measure_noise(plan, shape)
    frames = _frames(plan, method, shape)
    epoch = _epoch(plan)
    budget, ceiling = BUDGET, np.inf
    rounds: list[dict[str, Any]] = []
    verified = False
    while True:
        settings = max(
            (_search(method, _integrator(plan), f, noise, epoch, budget, ceiling, _kept(plan, f)) for f in frames),
            key=lambda s: -s.steps,
        )
        if not np.isfinite(settings.steps):
            raise InputError(
                f"no step size is small enough for {method}: gradient noise swamps the posterior at batch_size="
                f"{plan.batch_size}. Try a larger batch_size=, or gradient=fokker.control_variates()."
            )
        fields = _fields(method, plan, settings)
        tuned = dataclasses.replace(plan, kernel=_with(plan.kernel, fields))
        note(f"pilot {len(rounds) + 1}: step size {fields['step_size']:.3g}")
        error, spread, length = _pilot(tuned, shape, settings)
        rounds.append({"step_size": fields["step_size"], "steps": length, "sd_error": error, "standard_error": spread})
        doubt = np.sqrt(2 * np.log(2 * shape.size)) * spread  # the largest of so many errors that are chance
        excess = np.inf if error is None else error - doubt
        verified = bool(error is not None and excess <= LOUD)
        if verified or len(rounds) == ROUNDS:
            break
        cut = 0.25 if error is None else float(np.clip(BUDGET / error, 0.25, 0.8))
        budget, ceiling = max(budget * cut, 1e-3), settings.eps * (0.5 if error is None else 0.9)
    starts = _starts(plan, shape)
    chosen: dict[str, Any] = {
        "kernel": fields,
        "why": {
            **_evidence(plan, shape, settings),
            **_advice(plan, method, shape, noise, settings, epoch),
            "pilots": rounds,
            "verified": verified,
        },
    }
    if starts is not None:
        chosen["starts"] = [[float(v) for v in start] for start in starts]
        tuned = dataclasses.replace(tuned, starts=starts)
    if not verified:
        note(
            "the pilots' sd stayed off by more than "
            f"{LOUD:.0%}: read run.audit() before using the draws, or pass a smaller step_size"
        )
    elif advice := chosen["why"].get("advice"):
        note(advice)
    return tuned, chosen


def _check(plan: Plan, method: str) -> None:
    if method not in ("sgld", "sghmc", "sgnht"):
        more = "; try a tenth of the smallest posterior sd" if method in ("hmc", "rmhmc") else ""
        raise InputError(
            f"{method} needs its step size from you: pass fokker.{method}(step_size=...){more}. "
            "The run can choose it for sgld, sghmc and sgnht."
        )
    if plan.source is not None and plan.source.size is None:
        raise InputError(
            f"{method} was given no step size, and none can be tuned on an iterator of unknown length; pass "
            f"fokker.{method}(step_size=...), or data with a known number of rows."
        )


def _integrator(plan: Plan) -> str:
    return getattr(plan.kernel, "integrator", "")


def _epoch(plan: Plan) -> int | None:
    """Batches of an epoch without replacement; None where successive batches are independent."""
    if plan.batches is None or plan.batches.order != "epochs" or plan.batch_size is None:
        return None
    return max(1, plan.batches.size // plan.batch_size)


# --- the gradient's noise -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Covariance of a batch's gradient, factor^T factor (d, d), and what of it the kernel takes off its own noise."""

    factor: np.ndarray  # (m, d)
    centred: bool  # of control variates
    known: str  # form of the estimate that is compensated: "none", "scalar", "diagonal", "dense", "low_rank"
    rank: int

    def along(self, vectors: np.ndarray) -> np.ndarray:
        """v^T V v for every column of (d, k)."""
        return ((self.factor @ vectors) ** 2).sum(0)

    def compensated_along(self, vectors: np.ndarray) -> np.ndarray:
        """v^T V^ v for every column."""
        if self.known == "scalar":
            return (self.factor**2).sum() / self.factor.shape[1] * (vectors**2).sum(0)
        if self.known == "diagonal":
            return (self.factor**2).sum(0) @ vectors**2
        if self.known == "dense":
            return self.along(vectors)
        if self.known == "low_rank":
            from fokker.run.gradients import _nystrom, _sketch

            d = self.factor.shape[1]
            with jax.enable_x64(True):
                omega = np.asarray(_sketch(d, min(self.rank, d), np.float64))
                F = np.asarray(_nystrom(self.factor.T @ (self.factor @ omega)))
            return ((F.T @ vectors) ** 2).sum(0)
        return np.zeros(vectors.shape[1])


def _measure_noise(plan: Plan, shape: Shape, *, centred: bool = False) -> Noise:
    """V averaged over draws of the quadratic; with ``centred`` that of control variates at the mode."""
    target, gradient = plan.target, plan.gradient
    known, rank = gradient.noise, getattr(gradient, "rank", 1)
    if target.log_likelihood is None or plan.batch_size is None:
        return Noise(np.zeros((1, shape.size)), False, known, rank)
    points = shape.draws(2 * POINTS, plan.seed)
    points, others = points[:POINTS], points[POINTS:]
    centres = None
    if centred:
        centres = np.tile(shape.mode, (POINTS, 1))
    elif isinstance(gradient, control_variates):
        assert gradient.centre is not None
        centres = np.tile(np.asarray(gradient.centre, np.float64), (POINTS, 1))
    elif isinstance(gradient, svrg):
        centres = others  # at worst as far from the position as two draws are from each other
    N, n = rows(target), plan.batch_size
    each = row_noise(target, points, centres, shape.size)
    factor = each * (N * np.sqrt((1 - n / N) / n / len(each)))
    if len(factor) > 4 * shape.size and shape.size <= 2000:  # the same V from fewer rows
        factor = np.linalg.qr(factor, mode="r")
    return Noise(factor, centres is not None, known, rank)


# --- the law, and the search on it ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A preconditioner and what curvature looks like through it: theta = root x."""

    name: str
    root: np.ndarray  # (d,) or (d, d): its square is D of SGLD, M^-1 of the others
    view: Directions

    def columns(self) -> np.ndarray:
        """The directions in the coordinates of theta, (d, k)."""
        return _times(self.root, self.view.vectors)


@dataclass(frozen=True)
class Settings:
    """A point of the search with its prediction."""

    frame: Frame
    eps: float
    friction: float  # rate; for SGNHT the mean of xi
    injected: float  # alpha = A / xi of SGNHT, else 1
    sd_error: np.ndarray  # (coordinates,) predicted sd / true sd - 1
    steps: float  # autocorrelation time of the worst coordinate, the mean of tau and tau of the square
    steps_square: float  # tau of the square alone, of the worst coordinate
    slowest: float  # tau of the slowest direction
    noise_part: float  # of the predicted error of variance of the worst coordinate, what gradient noise brings


def _times(root: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return root @ columns if root.ndim == 2 else root[:, None] * columns


def _frames(plan: Plan, method: str, shape: Shape) -> list[Frame]:
    """The preconditioners that are compared: the user's own, or marginal sds, conditional sds and none."""
    kernel = plan.kernel
    own = getattr(kernel, "diffusion" if method == "sgld" else "mass")
    kept = not _is_default(own) or (method != "sgld" and not _is_default(_friction_of(kernel)))
    if kept:
        value = np.broadcast_to(np.asarray(own, float), (shape.size,)) if np.ndim(own) < 2 else np.asarray(own, float)
        if method == "sgld":
            root = np.linalg.cholesky(value) if value.ndim == 2 else np.sqrt(value)
        else:
            root = np.linalg.inv(np.linalg.cholesky(value)).T if value.ndim == 2 else 1 / np.sqrt(value)
        return [Frame("given", root, directions(shape, root))]
    roots = {"conditional": 1 / np.sqrt(shape.diagonal)}
    if shape.hessian is not None:
        roots["marginal"] = np.sqrt(np.diag(shape.covariance()))
        roots["none"] = np.full(shape.size, np.exp(np.log(roots["marginal"]).mean()))
    rounded = {name: _rounded(root**2) ** 0.5 for name, root in roots.items()}
    return [Frame(name, root, directions(shape, root)) for name, root in rounded.items()]


def _friction_of(kernel: Any) -> Any:
    return kernel.friction if hasattr(kernel, "friction") else kernel.diffusion


def _is_default(value: Any) -> bool:
    return np.ndim(value) == 0 and float(value) == 1.0


def _kept(plan: Plan, frame: Frame) -> float | None:
    """The friction rate that the user's own settings fix, averaged over coordinates; None where it is open."""
    if frame.name != "given" or not hasattr(plan.kernel, "mass"):
        return None
    friction = np.asarray(_friction_of(plan.kernel), float)
    if not hasattr(plan.kernel, "friction"):
        return float(friction.mean())  # A of SGNHT is a rate
    d = len(frame.root)
    dense = friction if friction.ndim == 2 else np.diag(np.broadcast_to(friction, (d,)))
    whole = frame.root if frame.root.ndim == 2 else np.diag(frame.root)
    return float(np.trace(whole.T @ dense @ whole) / d)


def _search(
    method: str,
    integrator: str,
    frame: Frame,
    noise: Noise,
    epoch: int | None,
    budget: float,
    ceiling: float,
    kept: float | None,
) -> Settings:
    """The setting of least autocorrelation time within the budget, on a coarse grid and then on a fine one."""
    a = frame.view.curvature
    top = LARGEST_STEP[method] / (a[-1] if method == "sgld" else np.sqrt(a[-1]))
    top = min(top, ceiling)
    columns = frame.columns()
    V, known = noise.along(columns), noise.compensated_along(columns)
    judge = _Judge(method, integrator, frame, V - known, float(known.max(initial=0.0)), epoch, noise.centred, budget)
    eps = top * np.geomspace(1e-7, 1.0, 71)
    if method == "sgld":
        friction = np.ones(1)
    elif kept is not None and method == "sghmc":
        friction = np.array([kept])
    else:
        friction = np.geomspace(0.05 * np.sqrt(a[0]), 30 * np.sqrt(a[-1]), 24)
    given = kept if method == "sgnht" else None
    best = judge(eps, friction, given)
    fine_eps = np.minimum(best.eps * np.geomspace(0.75, 1.33, 13), top)
    fine_friction = friction if len(friction) == 1 else best.friction * np.geomspace(0.75, 1.33, 9)
    return min((best, judge(fine_eps, fine_friction, given)), key=lambda s: s.steps)


@dataclass(frozen=True)
class _Judge:
    """Predicts errors and autocorrelation times of all coordinates for a grid of settings, and takes the best."""

    method: str
    integrator: str
    frame: Frame
    excess: np.ndarray  # (k,) V - V^ along the directions
    largest_known: float  # of V^
    epoch: int | None
    centred: bool
    budget: float

    def __call__(self, eps: np.ndarray, friction: np.ndarray, given: float | None) -> Settings:
        a = self.frame.view.curvature
        nodes, mix = _nodes(a)
        shape = (len(eps), len(friction), 1)
        e, c = np.broadcast_to(eps[:, None, None], shape), np.broadcast_to(friction[None, :, None], shape)
        laws = law(self.method, self.integrator, nodes, e, c, self.epoch, self.centred)
        weights = self.frame.view.weights
        along, plain = (weights * self.excess) @ mix, weights @ mix
        alpha = np.ones(shape[:2])
        if self.method == "sgnht":  # the thermostat makes the kinetic energy right in the mean over coordinates
            share = np.ones(len(a)) / len(a)
            warm = laws.kinetic @ (share @ mix)
            alpha = (1 - laws.kinetic_from_gradient @ ((share * self.excess) @ mix)) / warm
        injected, brought = laws.variance @ plain.T, laws.from_gradient @ along.T  # (eps, friction, coordinates)
        variance = alpha[..., None] * injected + brought
        by_direction = alpha[..., None] * (laws.variance @ mix.T) + (laws.from_gradient @ mix.T) * self.excess
        sd_error = np.sqrt(np.maximum(variance, 0.0)) - 1
        tau, tau_square = laws.tau @ plain.T, laws.tau_square @ plain.T
        steps = ((tau + tau_square) / 2).max(-1)
        taken = e[..., 0] * self.largest_known / (2 * c[..., 0] * alpha if self.method != "sgld" else 2.0)
        ok = laws.stable.all(-1) & (np.abs(sd_error).max(-1) <= self.budget) & (taken <= LARGEST_SHARE)
        ok &= np.abs(by_direction - 1).max(-1) <= DIRECTION_BUDGET
        if self.method == "sgnht":
            ok &= (alpha >= LEAST_INJECTED) & (alpha <= 2)
            if given is not None:
                miss = np.abs(np.log(np.maximum(alpha * c[..., 0], 1e-300) / given))
                ok &= miss <= miss.min(axis=1, keepdims=True) + 1e-12
        if not ok.any():
            i, j = 0, len(friction) // 2  # the smallest step there is
        else:
            i, j = divmod(int(np.argmin(np.where(ok, steps, np.inf))), len(friction))
        worst = int(np.argmax(np.abs(sd_error[i, j])))
        total = abs(variance[i, j, worst] - 1)
        return Settings(
            self.frame, float(e[i, j, 0]), float(c[i, j, 0]), float(alpha[i, j]), sd_error[i, j],
            float(steps[i, j]) if ok.any() else float("inf"), float(tau_square[i, j].max()),
            float(laws.tau[i, j].max()), float(np.clip(abs(brought[i, j, worst]) / max(total, 1e-12), 0, 1)),
        )  # fmt: skip


def _nodes(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures at which laws are computed, and the (k, nodes) matrix that interpolates linearly in log a."""
    if len(a) <= NODES:
        return a, np.eye(len(a))
    nodes = np.geomspace(a[0], a[-1], NODES) if a[-1] > a[0] * (1 + 1e-9) else a[:1]
    if len(nodes) == 1:
        return nodes, np.ones((len(a), 1))
    nodes[0], nodes[-1] = a[0], a[-1]
    place = np.interp(np.log(a), np.log(nodes), np.arange(NODES))
    left = np.minimum(place.astype(int), NODES - 2)
    mix = np.zeros((len(a), NODES))
    mix[np.arange(len(a)), left] = 1 - (place - left)
    mix[np.arange(len(a)), left + 1] += place - left
    return nodes, mix


# --- from a point of the search to a kernel -------------------------------------------------------------------------


def _fields(method: str, plan: Plan, settings: Settings) -> dict[str, Any]:
    """The kernel's settings, as numbers and lists."""
    if settings.frame.name == "given":
        return {"step_size": _short(settings.eps)}
    square = settings.frame.root**2
    if method == "sgld":
        return {"step_size": _short(settings.eps), "diffusion": _listed(square)}
    if method == "sghmc":
        mass = 1 / square
        return {
            "step_size": _short(settings.eps),
            "friction": _listed(settings.friction * mass),
            "mass": _listed(mass),
        }
    # Time is counted so that the thermostat settles near 1, where its inertia of 1 means that it varies slowly.
    rate = settings.friction
    return {
        "step_size": _short(settings.eps * rate),
        "diffusion": _short(settings.injected),
        "mass": _listed(rate**2 / square),
    }


def _with(kernel: Any, fields: dict[str, Any]) -> Any:
    """The kernel with these settings, as a run that is resumed rebuilds it."""
    return dataclasses.replace(kernel, **{k: np.asarray(v) if isinstance(v, list) else v for k, v in fields.items()})


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.array([_short(v) for v in values])


def _listed(values: np.ndarray) -> list[float]:
    return [_short(v) for v in values]


def _starts(plan: Plan, shape: Shape) -> tuple[np.ndarray, ...] | None:
    """Draws of the quadratic for chains that were all to begin at one point; None leaves the user's own."""
    if any((start != plan.starts[0]).any() for start in plan.starts[1:]):
        return None
    return _quadratic_starts(plan, shape, plan.chains, plan.seed)


def _quadratic_starts(plan: Plan, shape: Shape, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draws of the quadratic in the run's precision, nearer to the mode where the density does not reach."""
    drawn = shape.draws(count, seed)
    potential = jax.jit(plan.target.log_prior)
    starts = []
    for draw in drawn:
        part = 1.0
        while True:
            start = (shape.mode + part * (draw - shape.mode)).astype(plan.dtype)
            if part < 1e-3 or np.isfinite(potential(start)):
                break
            part /= 2
        starts.append(start)
    return tuple(starts)


# --- pilots ---------------------------------------------------------------------------------------------------------


def _pilot(tuned: Plan, shape: Shape, settings: Settings) -> tuple[float | None, float, int]:
    """Measured error of the sd where it is worst beyond its own uncertainty, its standard error, steps of a chain.

    The error is None where a chain left every bound.
    """
    most = max(1000, (tuned.warmup + tuned.draws * tuned.thin) // 2)
    length = int(np.clip(PILOT_TIMES * settings.steps, 1000, min(PILOT_STEPS, most)))
    thin = max(1, length // PILOT_DRAWS)
    count = length // thin
    seed = (tuned.seed ^ PILOT_STREAM) & 0x7FFFFFFF
    kernel: Any = dataclasses.replace(tuned.kernel, schedule=constant())  # type: ignore[type-var]
    batches = None if tuned.batches is None else dataclasses.replace(tuned.batches, seed=seed)
    pilot = dataclasses.replace(
        tuned, kernel=kernel, starts=_quadratic_starts(tuned, shape, PILOT_CHAINS, seed), draws=count, warmup=0,
        thin=thin, seed=seed, batches=batches, share_batches=False,
    )  # fmt: skip
    chains = Chains(pilot)
    try:
        chains.skip(int(min(5 * settings.slowest, length)))
        got = []
        while count > 0:
            got.append(chains.draw(count).positions)
            count -= got[-1].shape[1]
    except _Diverged:
        return None, 0.0, length
    finally:
        chains.close()
    positions = np.concatenate(got, axis=1).astype(np.float64)
    effective = PILOT_CHAINS * length / max(settings.steps_square, thin)
    return *_sd_error(tuned, shape, positions, effective), length


def _sd_error(plan: Plan, shape: Shape, positions: np.ndarray, effective: float) -> tuple[float | None, float]:
    """From E (theta - m)_c (H^-1 grad U)_c = (H^-1)_cc; over all coordinates at once where H is no matrix."""
    x = (positions - shape.mode).reshape(-1, shape.size)
    few = x[:: max(1, len(x) // PILOT_CHAINS // 100)]
    with jax.enable_x64(True):
        beyond = remainder(plan.target, shape.mode, shape.mode + few, 5000)
    if not np.isfinite(beyond).all():
        return None, 0.0
    if shape.hessian is None:
        linear = np.mean([v @ shape.product(v) for v in few[:50]])
        ratio = np.array([(linear + np.mean(np.sum(few * beyond, axis=1))) / shape.size])
        spread = np.array([1 / np.sqrt(2 * min(effective, 50) * shape.size)])
    else:
        covariance = shape.covariance()
        own = np.diag(covariance)
        ratio = ((x**2).mean(0) + (few * (beyond @ covariance)).mean(0)) / own
        spread = np.full(shape.size, 1 / np.sqrt(2 * effective))
    error = np.sqrt(np.maximum(ratio, 0.0)) - 1
    worst = int(np.argmax(np.abs(error)))
    return float(abs(error[worst])), float(spread[worst])


# --- what is said about it ------------------------------------------------------------------------------------------


def _evidence(plan: Plan, shape: Shape, settings: Settings) -> dict[str, Any]:
    a = settings.frame.view.curvature
    return {
        "preconditioner": settings.frame.name,
        "condition_number": _short(float(a[-1] / a[0])),
        "predicted_sd_error": _short(float(np.abs(settings.sd_error).max())),
        "predicted_autocorrelation_time": _short(settings.steps),
        "share_of_error_from_gradient_noise": _short(settings.noise_part),
        "newton_distance_of_mode": None if np.isnan(shape.distance) else _short(shape.distance),
    }


def _advice(
    plan: Plan, method: str, shape: Shape, noise: Noise, settings: Settings, epoch: int | None
) -> dict[str, Any]:
    """What control variates would gain, where it is gradient noise that limits the step."""
    if settings.noise_part < 0.5 or plan.target.log_likelihood is None or plan.batch_size is None:
        return {}
    if isinstance(plan.gradient, (control_variates, svrg)):
        return {"advice": "gradient noise limits the step; a larger batch_size= would raise ESS per step"}
    with jax.enable_x64(True):
        centred = dataclasses.replace(_measure_noise(plan, shape, centred=True), known="none")
    kept = _kept(plan, settings.frame)
    other = _search(method, _integrator(plan), settings.frame, centred, epoch, BUDGET, np.inf, kept)
    gain = settings.steps / other.steps
    if gain < 1.5:
        return {"advice": "gradient noise limits the step; a larger batch_size= would raise ESS per step"}
    return {
        "gain_of_control_variates": _short(gain),
        "advice": f"gradient noise limits the step: gradient=fokker.control_variates() would give about {gain:.2g} "
        "times the ESS per step",
    }
