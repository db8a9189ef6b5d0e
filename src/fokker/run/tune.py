"""A step size, a friction and a constant diagonal preconditioner, chosen before the run (docs/adr/0007-tuning.md).

The mode is found, and around it the curvature H (``local_shape``) and the covariance V of the gradient's noise
(``local_noise``). On the quadratic with these two the chain's law is known exactly for every setting, and the setting
with the least autocorrelation time is taken whose sds are predicted within ``BUDGET`` (``search``). Pilot chains then
measure what the quadratic cannot know (``pilots``); where they refute it, the step is cut and tried again. All of it
is a function of the plan and its seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fokker.errors import InputError
from fokker.run.choose import choose_gradient, choose_thin
from fokker.run.gradients import control_variates, svrg
from fokker.run.local_noise import Noise, measure_noise, noise_at_mode
from fokker.run.local_shape import Shape, find_shape
from fokker.run.pilots import Pilot, run_pilot, starts_near
from fokker.run.plan import default_warmup
from fokker.run.search import Frame, Problem, Settings, given_frame, open_frames, search

if TYPE_CHECKING:
    from fokker.run.plan import Plan

BUDGET = 0.04  # predicted error of the worst coordinate's sd, relative
CAREFUL = 0.01  # where the run takes as many steps as it needs; chance comes on top, and the audit warns at 5 %
LOUD = 0.05  # measured error from which on a pilot is not believed to be within what was asked
BLIND = 0.2  # error of chance from which on a pilot says nothing
ROUNDS = 5
WORTHY = 400  # ESS below which the run's length is remarked on


def tune(
    plan: Plan, note: Callable[..., None], allowed: float | None = None, undecided: Collection[str] = ()
) -> tuple[Plan, dict[str, Any]]:
    """The plan with its kernel's open settings chosen, and what was chosen and why, as JSON.

    allowed: predicted error of the worst coordinate's sd, relative. note(text, keep=False) is told what is being done;
    with ``keep``, what was found. undecided: which of "gradient", "thin" and "warmup" the plan holds only for the time
    being (``choose``). Unless it is given, what is allowed is ``BUDGET``, or ``CAREFUL`` with "thin" undecided.

    ``chosen["kernel"]`` holds the kernel's new fields, ``chosen["starts"]`` the starts if they were moved, both enough
    to rebuild the plan; ``chosen["why"]`` the evidence, ``chosen["why"]["words"]`` in sentences. Settings of the kernel
    that differ from its defaults are kept. Chains that the user starts at one point are started at draws of the
    quadratic; different starts are left alone.
    """
    _check(plan)
    if allowed is None:
        allowed = CAREFUL if "thin" in undecided else BUDGET
    note("looking for the mode and the curvature there")
    with jax.enable_x64(True):
        shape = find_shape(plan.target, plan.starts[0], plan.layout)
        note("measuring the noise of the gradient")
        noise = measure_noise(plan, shape)
    problem, frames = _problem(plan, shape, noise)
    gradient: dict[str, Any] = {}
    if "gradient" in undecided and plan.target.log_likelihood is not None:
        note("comparing gradients")
        plan, problem, gradient = choose_gradient(plan, problem, frames, shape, allowed)
    settings, pilots, tuned = _search_and_verify(plan, problem, frames, shape, allowed, note, undecided)
    fields = _fields(plan, problem, settings)
    chosen: dict[str, Any] = {"kernel": fields, "why": _evidence(shape, settings, pilots)}
    chosen["why"] |= _words(tuned, problem, settings, pilots, shape, allowed)
    if gradient:
        chosen |= {name: gradient[name] for name in ("gradient", "centre") if name in gradient}
        chosen["why"] |= {"gain_of_control_variates": gradient["gain"]}
        chosen["why"]["words"].insert(0, gradient["words"])
    if "thin" in undecided:
        chosen["thin"] = tuned.thin
    for sentence in chosen["why"]["words"]:
        note(sentence, keep=True)
    if all((start == plan.starts[0]).all() for start in plan.starts[1:]):
        tuned = dataclasses.replace(tuned, starts=starts_near(plan, shape, plan.chains, plan.seed))
        chosen["starts"] = [[float(v) for v in start] for start in tuned.starts]
    return tuned, chosen


def _check(plan: Plan) -> None:
    method = type(plan.kernel).__name__
    if method not in ("sgld", "sghmc", "sgnht"):
        more = "; try a tenth of the smallest posterior sd" if method in ("hmc", "rmhmc") else ""
        raise InputError(
            f"{method} needs its step size from you: pass fokker.{method}(step_size=...){more}. "
            "The run can choose it for sgld, sghmc and sgnht."
        )
    if plan.source is not None and plan.source.streams is not None:
        raise InputError(
            f"{method} was given no step size, and tuning needs passes over the data, which an iterator does not "
            f"allow. Pass fokker.{method}(step_size=...), tuned on a part of the rows in memory for example, or give "
            "arrays or the path of a Zarr or Parquet store."
        )


# --- the problem: what is open, what the user fixed -----------------------------------------------------------------


def _problem(plan: Plan, shape: Shape, noise: Noise) -> tuple[Problem, list[Frame]]:
    method, kernel = type(plan.kernel).__name__, plan.kernel
    scale = getattr(kernel, "diffusion" if method == "sgld" else "mass")
    friction = {"sgld": 1.0, "sghmc": getattr(kernel, "friction", 1.0), "sgnht": getattr(kernel, "diffusion", 1.0)}
    given = not _is_default(friction[method])
    if given or not _is_default(scale):  # a friction means something for one mass only
        frames = [given_frame(shape, method, scale)]
    else:
        frames = open_frames(shape, method, plan.batch_size)
    kept = _rate(method, friction[method], frames[0].root) if given else None
    return Problem(method, getattr(kernel, "integrator", ""), noise, _epoch(plan), kept), frames


def _is_default(value: Any) -> bool:
    return np.ndim(value) == 0 and float(value) == 1.0


def _rate(method: str, friction: Any, root: np.ndarray) -> float:
    """The user's friction in units of the mass, averaged over coordinates: tr(M^-1 C) / d; A of SGNHT is a rate."""
    C, d = np.asarray(friction, float), len(root)
    if method == "sgnht":
        return float(C.mean())
    inverse_mass = root @ root.T if root.ndim == 2 else np.diag(root**2)
    return float((inverse_mass * (C if C.ndim == 2 else np.diag(np.broadcast_to(C, (d,))))).sum() / d)


def _epoch(plan: Plan) -> int | None:
    """Batches of an epoch without replacement; None where successive batches are independent."""
    if plan.batches is None or plan.batches.order != "epochs" or plan.batch_size is None:
        return None
    return plan.batches.per_epoch


# --- search, pilot, cut ---------------------------------------------------------------------------------------------


def _search_and_verify(
    plan: Plan,
    problem: Problem,
    frames: list[Frame],
    shape: Shape,
    allowed: float,
    note: Callable[[str], None],
    undecided: Collection[str],
) -> tuple[Settings, list[Pilot], Plan]:
    """The best setting that a pilot does not refute, and the plan with it; after ``ROUNDS`` the last one tried."""
    budget, ceiling = allowed, np.inf
    pilots: list[Pilot] = []
    for _ in range(ROUNDS):
        settings = min((search(problem, f, budget, ceiling) for f in frames), key=lambda s: s.price)
        if not np.isfinite(settings.steps):
            raise InputError(_nothing_found(plan, problem, allowed))
        fields = _fields(plan, problem, settings)
        note(f"pilot {len(pilots) + 1}: step size {fields['step_size']:.3g}")
        tuned = dataclasses.replace(plan, kernel=_with(plan.kernel, fields))
        if "thin" in undecided:
            tuned = choose_thin(tuned, settings.steps)
        if "warmup" in undecided:
            tuned = dataclasses.replace(tuned, warmup=default_warmup(tuned.draws, tuned.thin))
        pilot = run_pilot(tuned, shape, settings)
        pilots.append(pilot)
        if not pilot.refutes(LOUD):
            return settings, pilots, tuned
        cut = 0.25 if pilot.sd_error is None else float(np.clip(allowed / pilot.sd_error, 0.25, 0.8))
        budget, ceiling = max(budget * cut, 1e-3), settings.eps * (0.5 if pilot.sd_error is None else 0.9)
    if pilots[-1].sd_error is None:
        raise InputError(
            f"no step size could be tuned: pilot chains left the region where the log density is finite, with step "
            f"sizes down to {pilots[-1].step_size:.3g}. Put parameters with a bound on an unbounded scale (log, "
            "logit), give proper priors, or pass step_size=... to the kernel."
        )
    return settings, pilots, tuned


def _nothing_found(plan: Plan, problem: Problem, allowed: float) -> str:
    fixed = "" if problem.kept is None else " and the friction that you gave"
    if plan.target.log_likelihood is None or plan.batch_size is None:
        return (
            f"no step size keeps the sds within {allowed:.1%} for {problem.method}{fixed}; leave friction and mass "
            "open, or pass step_size=... to the kernel."
        )
    return (
        f"no step size is small enough for {problem.method}{fixed}: gradient noise swamps the posterior at batch_size="
        f"{plan.batch_size}. Try a larger batch_size=, or gradient=fokker.control_variates()."
    )


# --- from a point of the search to a kernel -------------------------------------------------------------------------


def _fields(plan: Plan, problem: Problem, settings: Settings) -> dict[str, Any]:
    """The kernel's open settings, as numbers and lists."""
    kernel: Any = plan.kernel
    root, rate, given = settings.frame.root, settings.friction, settings.frame.name == "given"
    spread = root @ root.T if root.ndim == 2 else root**2  # D of SGLD, M^-1 of the others
    stiffness = np.linalg.inv(spread) if root.ndim == 2 else 1 / spread
    step = {"step_size": _short(settings.eps)}
    if problem.kept is not None or (given and problem.method == "sgld"):
        return step
    if problem.method == "sgld":
        return step | {"diffusion": _short(spread)}
    if problem.method == "sghmc":
        mass = np.asarray(kernel.mass, float) if given else stiffness
        return step | {"friction": _short(rate * mass)} | ({} if given else {"mass": _short(mass)})
    if given:  # the thermostat settles near ``rate``; with this inertia it varies slowly against the momenta
        inertia = {"inertia": _short(1 / rate**2)} if _is_default(kernel.inertia) else {}
        return step | {"diffusion": _short(settings.injected * rate)} | inertia
    # time is counted so that the thermostat settles near 1, where its inertia of 1 does the same
    return {
        "step_size": _short(settings.eps * rate),
        "diffusion": _short(settings.injected),
        "mass": _short(rate**2 * stiffness),
    }


def _with(kernel: Any, fields: dict[str, Any]) -> Any:
    """The kernel with these settings, as a run that is resumed rebuilds it."""
    return dataclasses.replace(kernel, **{k: np.asarray(v) if isinstance(v, list) else v for k, v in fields.items()})


def _short(value: Any) -> Any:
    """Six digits: a float, or a list of them; matrices in full, which have to stay positive definite."""
    if np.ndim(value) == 2:
        return ((np.asarray(value) + np.asarray(value).T) / 2).tolist()
    return [_short(v) for v in value] if np.ndim(value) else float(f"{value:.6g}")


# --- what is said about it ------------------------------------------------------------------------------------------


def _evidence(shape: Shape, settings: Settings, pilots: list[Pilot]) -> dict[str, Any]:
    a, last = settings.frame.view.curvature, pilots[-1]
    return {
        "preconditioner": settings.frame.name,
        "condition_number": _short(a[-1] / a[0]),
        "predicted_sd_error": _short(abs(settings.sd_error)),
        "predicted_autocorrelation_time": _short(settings.steps),
        "share_of_error_from_gradient_noise": _short(settings.noise_part),
        "newton_distance_of_mode": None if np.isnan(shape.distance) else _short(shape.distance),
        "pilots": [dataclasses.asdict(p) for p in pilots],
        "verified": not last.refutes(LOUD) and last.doubt <= BLIND,
    }


def _words(
    tuned: Plan, problem: Problem, settings: Settings, pilots: list[Pilot], shape: Shape, allowed: float
) -> dict[str, Any]:
    """The choice and its evidence in sentences, with advice where there is any."""
    last = pilots[-1]
    words = [
        f"{problem.method}: step size {last.step_size:.3g}, preconditioned by {PRECONDITIONERS[settings.frame.name]}; "
        f"predicted: sds off by {abs(settings.sd_error):.1%} at worst, an autocorrelation time of {settings.steps:.3g} "
        "iterations"
    ]
    if last.refutes(LOUD):
        words.append(
            f"after {len(pilots)} pilots the sds are still off by {last.sd_error:.0%}: the posterior is far from "
            "normal; read run.audit() before using the draws, or pass a smaller step_size="
        )
    elif last.doubt > BLIND:
        words.append("the run is too short for a pilot of half its length to check that")
    else:
        words.append(f"a pilot measured {last.sd_error:.1%}, of which chance alone makes up to {last.doubt:.1%}")
    if settings.off > 0.5:
        off = (1 + settings.off) ** 0.5 - 1
        words.append(f"the sd of some linear combination of the parameters is predicted to be off by {off:.0%}")
    worth = tuned.chains * tuned.draws * min(1.0, tuned.thin / settings.steps)
    if worth < WORTHY:
        enough = int(np.ceil(settings.steps))
        words.append(
            f"expect an ESS of about {worth:.0f} from this run: thin={enough:,} (now {tuned.thin}) would make it about "
            f"{tuned.chains * tuned.draws:,}, in that many times the steps"
        )
    advice = _advice(tuned, problem, settings, shape, allowed)
    return {**advice, "words": words + [advice["advice"]] if advice else words}


PRECONDITIONERS = {
    "conditional": "conditional sds",
    "marginal": "marginal sds",
    "none": "no more than a common scale",
    "whitened": "the covariance",
    "given": "what was given",
}


def _advice(plan: Plan, problem: Problem, settings: Settings, shape: Shape, allowed: float) -> dict[str, Any]:
    """What would help where it is gradient noise that limits the step."""
    if settings.noise_part < 0.5 or plan.target.log_likelihood is None or plan.batch_size is None:
        return {}
    if not isinstance(plan.gradient, (control_variates, svrg)):
        with jax.enable_x64(True):
            centred = dataclasses.replace(problem, noise=noise_at_mode(plan, shape))
        gain = settings.steps / search(centred, settings.frame, allowed, np.inf).steps
        if gain >= 1.5:
            words = "gradient noise limits the step: gradient=fokker.control_variates() would give about"
            return {"gain_of_control_variates": _short(gain), "advice": f"{words} {gain:.2g} times the ESS per step"}
    return {"advice": "gradient noise limits the step; a larger batch_size= would raise ESS per step"}
