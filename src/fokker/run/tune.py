"""A step size, a friction and a constant preconditioner, chosen before the run (docs/adr/0007-tuning.md).

The mode is found, and around it the curvature H (``local_shape``) and the covariance V of the gradient's noise
(``local_noise``). On the quadratic with these two the chain's law is known exactly for every setting, and the setting
with the least autocorrelation time is taken whose sds are predicted within ``BUDGET`` (``search``). Pilot chains then
measure what the quadratic cannot know (``pilots``); where they refute it, the step is cut and tried again. All of it
is a function of the plan and its seed.

On manifolds (``sggmc``, ``gsgnht``) the same is done in the tangent space at the mode (``tangent_shape``), where these
are splittings of SGHMC and SGNHT; a constant preconditioner is there a scale for each leaf. ``gmc``: ``tune_gmc``.
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
from fokker.run.pilots import EDGES, Pilot, run_pilot, starts_near
from fokker.run.plan import default_warmup, with_settings
from fokker.run.search import Frame, Problem, Settings, given_frame, leaf_frames, open_frames, search
from fokker.run.tangent_shape import Tangent, find_tangent, starts_on, tangent_noise

if TYPE_CHECKING:
    from fokker.run.plan import Plan

BUDGET = 0.04  # predicted error of the worst coordinate's sd, relative
CAREFUL = 0.01  # where the run takes as many steps as it needs; chance comes on top, and the audit warns at 5 %
LOUD = 0.05  # measured error from which on a pilot is not believed to be within what was asked
BLIND = 0.2  # error of chance from which on a pilot says nothing
ROUNDS = 5
WORTHY = 400  # ESS below which the run's length is remarked on
GEODESIC = ("sggmc", "gsgnht")
WILD = 0.3  # measured error from which on the step is halved at once
EDGE = 0.8  # first ceiling of eps sqrt(a_max) where a map has a boundary
FAR_APART = 20.0  # ratio of sds within a leaf from which on it is remarked


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
    if type(plan.kernel).__name__ == "gmc":
        from fokker.run.tune_gmc import tune_gmc

        return tune_gmc(plan, note)
    if allowed is None:
        allowed = CAREFUL if "thin" in undecided else BUDGET
    note("looking for the mode and the curvature there")
    near: Tangent | None = None
    with jax.enable_x64(True):
        if type(plan.kernel).__name__ in GEODESIC:
            near = find_tangent(plan)
            shape = near.shape
        else:
            shape = find_shape(plan.target, plan.starts[0], plan.layout)
        note("measuring the noise of the gradient")
        noise = measure_noise(plan, shape) if near is None else tangent_noise(plan, near)
    problem, frames = _problem(plan, shape, noise, near)
    gradient: dict[str, Any] = {}
    if "gradient" in undecided and plan.target.log_likelihood is not None:
        note("comparing gradients")
        plan, problem, gradient = choose_gradient(plan, problem, frames, shape, near, allowed)
    settings, pilots, tuned = _search_and_verify(plan, problem, frames, shape, near, allowed, note, undecided)
    fields = _fields(plan, problem, settings)
    chosen: dict[str, Any] = {"kernel": fields, "why": _evidence(shape, near, settings, pilots)}
    chosen["why"] |= _words(tuned, problem, settings, pilots, shape, near, allowed, compared=bool(gradient))
    if gradient:
        chosen |= {name: gradient[name] for name in ("gradient", "centre") if name in gradient}
        chosen["why"] |= {"gain_of_control_variates": gradient["gain"]}
        chosen["why"]["words"].insert(0, gradient["words"])
    if "thin" in undecided:
        chosen["thin"] = tuned.thin
    for sentence in chosen["why"]["words"]:
        note(sentence, keep=True)
    if all((start == plan.starts[0]).all() for start in plan.starts[1:]):
        starts = (
            starts_near(plan, shape, plan.chains, plan.seed)
            if near is None
            else starts_on(plan, near, plan.chains, plan.seed)
        )
        tuned = dataclasses.replace(tuned, starts=starts)
        chosen["starts"] = [[float(v) for v in start] for start in tuned.starts]
    return tuned, chosen


def _check(plan: Plan) -> None:
    method = type(plan.kernel).__name__
    if method not in ("sgld", "sghmc", "sgnht", "gmc", *GEODESIC):
        more = "; try a tenth of the smallest posterior sd" if method in ("hmc", "rmhmc") else ""
        raise InputError(
            f"{method} needs its step size from you: pass fokker.{method}(step_size=...){more}. "
            "The run can choose it for sgld, sghmc and sgnht, and on manifolds for sggmc, gsgnht and gmc."
        )
    if plan.source is not None and plan.source.streams is not None:
        raise InputError(
            f"{method} was given no step size, and tuning needs passes over the data, which an iterator does not "
            f"allow. Pass fokker.{method}(step_size=...), tuned on a part of the rows in memory for example, or give "
            "arrays or the path of a Zarr or Parquet store."
        )


# --- the problem: what is open, what the user fixed -----------------------------------------------------------------


def _problem(plan: Plan, shape: Shape, noise: Noise, near: Tangent | None) -> tuple[Problem, list[Frame]]:
    method, kernel = type(plan.kernel).__name__, plan.kernel
    if near is not None:
        own: Any = kernel
        kept = None if _is_default(own.friction) else float(np.mean(_diagonal(own.friction)))
        frames = leaf_frames(shape, near.factors, None if kept is None and _is_default(own.scales) else own.scales)
        if getattr(own, "steps_per_batch", 1) > 1:
            raise InputError(
                "with steps_per_batch > 1 the noise of a batch stands still and heats the chain, so that no step size "
                "can be tuned; leave it at 1, thin= keeps one of several steps, or pass step_size=... to sggmc."
            )
        return Problem(method, getattr(kernel, "integrator", "aboba"), noise, _epoch(plan), kept), frames
    scale = getattr(kernel, "diffusion" if method == "sgld" else "mass")
    friction = {"sgld": 1.0, "sghmc": getattr(kernel, "friction", 1.0), "sgnht": getattr(kernel, "diffusion", 1.0)}
    given = not _is_default(friction[method])
    if given or not _is_default(scale):  # a friction means something for one mass only
        frames = [given_frame(shape, method, scale)]
    else:
        frames = open_frames(shape, method, plan.batch_size)
    kept = _rate(method, friction[method], frames[0].root) if given else None
    return Problem(method, getattr(kernel, "integrator", ""), noise, _epoch(plan), kept), frames


def _diagonal(friction: Any) -> np.ndarray:
    return np.diag(friction) if np.ndim(friction) == 2 else np.asarray(friction, float)


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
    near: Tangent | None,
    allowed: float,
    note: Callable[[str], None],
    undecided: Collection[str],
) -> tuple[Settings, list[Pilot], Plan]:
    """The best setting that a pilot does not refute, and the plan with it; after ``ROUNDS`` the last one tried."""
    budget, ceiling = allowed, np.inf
    if near is not None:  # by leaf steps have other units: there the ceiling is one of eps sqrt(a_max)
        ceiling = EDGE if near.space.mapped else np.inf  # towards a boundary curvature grows: the mode's is no guide
    pilots: list[Pilot] = []
    for _ in range(ROUNDS):
        unit = lambda f: 1.0 if near is None else float(f.view.curvature[-1]) ** -0.5
        settings = min((search(problem, f, budget, ceiling * unit(f)) for f in frames), key=lambda s: s.price)
        step = settings.eps / unit(settings.frame)
        if not np.isfinite(settings.steps):
            raise InputError(_nothing_found(plan, problem, allowed))
        fields = _fields(plan, problem, settings)
        note(f"pilot {len(pilots) + 1}: step size {fields['step_size']:.3g}")
        tuned = dataclasses.replace(plan, kernel=with_settings(plan.kernel, fields))
        if "thin" in undecided:
            tuned = choose_thin(tuned, settings.steps)
        if "warmup" in undecided:
            tuned = dataclasses.replace(tuned, warmup=default_warmup(tuned.draws, tuned.thin))
        pilot = run_pilot(tuned, shape, settings, near)
        pilots.append(pilot)
        if not pilot.refutes(LOUD):
            return settings, pilots, tuned
        if pilot.erratic or (near is not None and (pilot.sd_error or 0.0) > WILD):
            ceiling = step * min(0.5, pilot.edge)
            continue
        if pilot.edge < EDGES and not pilot.off(LOUD):
            ceiling = step * pilot.edge
            continue
        cut = 0.25 if pilot.sd_error is None else float(np.clip(allowed / pilot.sd_error, 0.25, 0.8))
        budget, ceiling = max(budget * cut, 1e-3), step * (0.5 if pilot.sd_error is None else 0.9)
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
    if problem.method in GEODESIC:
        return step | _of_geodesic(kernel, problem, settings)
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


def _of_geodesic(kernel: Any, problem: Problem, settings: Settings) -> dict[str, Any]:
    """Friction and scales of sggmc and gsgnht, in units of the scaled time; see the case of a mass above."""
    rate, name = settings.friction, settings.frame.name
    scales = {"scales": _short(settings.frame.scales)} if name == "by leaf" else {}
    if problem.kept is not None:
        return scales
    if problem.method == "sggmc":
        return scales | {"friction": _short(rate)}
    inertia = {"inertia": _short(1 / rate**2)} if _is_default(kernel.inertia) else {}
    return scales | {"friction": _short(settings.injected * rate)} | inertia


def _short(value: Any) -> Any:
    """Six digits: a float, or a list of them; matrices in full, which have to stay positive definite."""
    if np.ndim(value) == 2:
        return ((np.asarray(value) + np.asarray(value).T) / 2).tolist()
    return [_short(v) for v in value] if np.ndim(value) else float(f"{value:.6g}")


# --- what is said about it ------------------------------------------------------------------------------------------


def _evidence(shape: Shape, near: Tangent | None, settings: Settings, pilots: list[Pilot]) -> dict[str, Any]:
    a, last = settings.frame.view.curvature, pilots[-1]
    return {
        "preconditioner": settings.frame.name,
        "condition_number": _short(a[-1] / a[0]),
        "predicted_sd_error": _short(abs(settings.sd_error)),
        "predicted_autocorrelation_time": _short(settings.steps),
        "share_of_error_from_gradient_noise": _short(settings.noise_part),
        "newton_distance_of_mode": None if np.isnan(shape.distance) else _short(shape.distance),
        **({} if near is None else {"directions_as_wide_as_the_manifold": _short(near.bounded)}),
        "pilots": [dataclasses.asdict(p) for p in pilots],
        "verified": not last.refutes(LOUD) and last.doubt <= BLIND,
    }


def _words(
    tuned: Plan,
    problem: Problem,
    settings: Settings,
    pilots: list[Pilot],
    shape: Shape,
    near: Tangent | None,
    allowed: float,
    compared: bool,
) -> dict[str, Any]:
    """The choice and its evidence in sentences, with advice where there is any. compared: gradients were, already."""
    last = pilots[-1]
    words = [
        f"{problem.method}: step size {last.step_size:.3g}, preconditioned by {PRECONDITIONERS[settings.frame.name]}; "
        f"predicted: sds off by {abs(settings.sd_error):.1%} at worst, an autocorrelation time of {settings.steps:.3g} "
        "iterations"
    ]
    if near is not None:
        words += manifold_words(near, settings.frame)
    if last.erratic:
        words.append(
            f"after {len(pilots)} pilots a few draws with huge gradients still decide what they measure: the "
            "density is too steep at an edge of its space; read run.audit() before using the draws"
        )
    elif last.off(LOUD):
        words.append(
            f"after {len(pilots)} pilots the sds are still off by {last.sd_error:.0%}: the posterior is far from "
            "normal; read run.audit() before using the draws, or pass a smaller step_size="
        )
    elif last.edge < EDGES:
        words.append(
            "near the boundary of a map the density is so shallow that now and then a step may throw the chain far "
            "away; a prior that vanishes faster there, or the logarithm as the parameter, would help"
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
    advice = _advice(tuned, problem, settings, shape, near, allowed, compared)
    return {**advice, "words": words + [advice["advice"]] if advice else words}


PRECONDITIONERS = {
    "conditional": "conditional sds",
    "marginal": "marginal sds",
    "none": "no more than a common scale",
    "whitened": "the covariance",
    "given": "what was given",
    "one scale": "nothing",
    "by leaf": "a scale for each leaf",
}


def manifold_words(near: Tangent, frame: Frame) -> list[str]:
    """What is particular to a space: directions that the manifold bounds, scales that no leaf has of its own."""
    words = []
    if near.bounded > 0:
        words.append(
            f"in {near.bounded:.0%} of the directions the posterior is as wide as the manifold, whose own size bounds "
            "the step there"
        )
    ratio = float(np.sqrt(frame.view.curvature[-1] / frame.view.curvature[0]))
    if ratio > FAR_APART:
        words.append(
            f"widths within a leaf differ by a factor of {ratio:.3g}, which its scale leaves as it is: "
            "the narrowest sets the step, the widest the time to forget; a leaf of its own for what is wider would help"
        )
    return words


def _advice(
    plan: Plan,
    problem: Problem,
    settings: Settings,
    shape: Shape,
    near: Tangent | None,
    allowed: float,
    compared: bool,
) -> dict[str, Any]:
    """What would help where it is gradient noise that limits the step."""
    if settings.noise_part < 0.5 or plan.target.log_likelihood is None or plan.batch_size is None:
        return {}
    if not compared and not isinstance(plan.gradient, (control_variates, svrg)):
        with jax.enable_x64(True):
            noise = noise_at_mode(plan, shape) if near is None else tangent_noise(plan, near, at_mode=True)
        centred = dataclasses.replace(problem, noise=noise)
        gain = settings.steps / search(centred, settings.frame, allowed, np.inf).steps
        if gain >= 1.5:
            words = "gradient noise limits the step: gradient=fokker.control_variates() would give about"
            return {"gain_of_control_variates": _short(gain), "advice": f"{words} {gain:.2g} times the ESS per step"}
    return {"advice": "gradient noise limits the step; a larger batch_size= would raise ESS per step"}
