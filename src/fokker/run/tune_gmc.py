"""Step size, trajectory and scales of GMC, chosen before the run (docs/adr/0007-tuning.md).

On the quadratic at the mode (``tangent_shape``) L leapfrog steps of eps turn a direction of curvature a by the angle
L arccos(1 - a eps^2 / 2); with s^2 = 1 - a eps^2 / 4 and phi the angle, its energy error has the mean

    sin^2(phi) (1/s - s)^2 / 2 ,

the sum m of these makes an acceptance of about 2 Phi(-sqrt(m / 2)), and the draws' autocorrelation is cos(phi). So the
number of gradients for an effective draw of the worst direction is known for every pair; the best with an acceptance of
``WANTED`` or more is taken, and pilots set its step right where they find another acceptance than was foreseen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.stats import norm

from fokker.errors import InputError
from fokker.run.loop import Chains, _Diverged
from fokker.run.mode import find_mode
from fokker.run.plan import with_settings
from fokker.run.search import Frame, leaf_frames
from fokker.run.tangent_shape import Tangent, find_tangent, starts_on
from fokker.run.tune import PRECONDITIONERS, manifold_words

if TYPE_CHECKING:
    from fokker.run.plan import Plan

WANTED = 0.8  # acceptance, at least
NEAR = 0.07  # difference from it that a pilot lets pass
MOST_STEPS = 100  # of a trajectory
PILOTS, CHAINS, DRAWS, SETTLE = 5, 4, 100, 20
STREAM = 0x676D63
DEFAULT_STEPS = 10


@dataclass(frozen=True)
class Choice:
    """A point of the search."""

    frame: Frame
    eps: float
    steps: int
    acceptance: float  # predicted
    cost: float  # gradients of all data for an effective draw of the worst direction

    @property
    def price(self) -> float:
        """The cost, and about a gradient for what a draw costs besides: its normals, its test, its place."""
        return self.cost * (1 + 1 / self.steps)


def tune_gmc(plan: Plan, note: Callable[..., None]) -> tuple[Plan, dict[str, Any]]:
    """The plan with its kernel's open settings chosen, and what was chosen and why, as in ``tune``.

    A number of leapfrog steps other than the default, and scales, are kept.
    """
    kernel: Any = plan.kernel
    note("looking for the mode and the curvature there")
    with jax.enable_x64(True):
        near = find_tangent(plan)
    own = None if np.ndim(kernel.scales) == 0 and float(kernel.scales) == 1.0 else kernel.scales
    kept = None if kernel.leapfrog_steps == DEFAULT_STEPS else int(kernel.leapfrog_steps)
    choice = min((_search(f, kept) for f in leaf_frames(near.shape, near.factors, own)), key=lambda c: c.price)
    fields: dict[str, Any] = {"step_size": float(f"{choice.eps:.6g}")}
    if kept is None:
        fields["leapfrog_steps"] = choice.steps
    if choice.frame.name == "by leaf":
        fields["scales"] = [float(s) for s in choice.frame.scales]
    pilots: list[dict[str, float]] = []
    for _ in range(PILOTS):
        note(f"pilot {len(pilots) + 1}: step size {fields['step_size']:.3g}")
        got = _acceptance(dataclasses.replace(plan, kernel=with_settings(kernel, fields)), near)
        pilots.append({"step_size": fields["step_size"], "acceptance": round(got, 4)})
        if abs(got - choice.acceptance) <= NEAR:
            break
        fields["step_size"] = float(f"{fields['step_size'] * _factor(got, choice.acceptance):.6g}")
    verified = abs(pilots[-1]["acceptance"] - choice.acceptance) <= NEAR
    if not verified:  # the last one that was seen, not the next guess
        best = min(pilots, key=lambda p: abs(p["acceptance"] - choice.acceptance))
        fields["step_size"] = best["step_size"]
        if best["acceptance"] < 0.2:
            raise InputError(
                f"no step size could be tuned for gmc: with steps down to {best['step_size']:.3g} pilots accept "
                f"{best['acceptance']:.0%} of their proposals. Start nearer to the bulk (init=...), or pass "
                "fokker.gmc(step_size=...)."
            )
    tuned = dataclasses.replace(plan, kernel=with_settings(kernel, fields))
    why = {
        "preconditioner": choice.frame.name,
        "predicted_acceptance": round(choice.acceptance, 4),
        "predicted_gradients_for_an_effective_draw": float(f"{choice.cost:.6g}"),
        "directions_as_wide_as_the_manifold": float(f"{near.bounded:.6g}"),
        "newton_distance_of_mode": None if np.isnan(near.shape.distance) else float(f"{near.shape.distance:.6g}"),
        "pilots": pilots,
        "verified": verified,
    }
    words = _words(near, choice, tuned.kernel, pilots, verified)
    together = all((start == plan.starts[0]).all() for start in plan.starts[1:])
    if not together:
        words.append(
            "starts that differ were moved downhill, each to a mode of its own: far from it this step is refused"
        )
    for sentence in words:
        note(sentence, keep=True)
    chosen: dict[str, Any] = {"kernel": fields, "why": why | {"words": words}}
    if together:
        starts = starts_on(plan, near, plan.chains, plan.seed)
    else:
        starts = tuple(np.asarray(find_mode(plan.target, start), plan.dtype) for start in plan.starts)
    chosen["starts"] = [[float(v) for v in start] for start in starts]
    return dataclasses.replace(tuned, starts=starts), chosen


def _search(frame: Frame, kept: int | None) -> Choice:
    """The best pair of step and number of steps with the wanted acceptance."""
    a = frame.view.curvature
    eps = (2 / np.sqrt(a[-1]) * np.geomspace(0.02, 0.95, 60))[:, None, None]
    L = np.arange(1, MOST_STEPS + 1)[:, None] if kept is None else np.array([[kept]])
    s2 = 1 - a * eps**2 / 4
    phi = L * np.arccos(1 - a * eps**2 / 2)
    error = (np.sin(phi) ** 2 * (1 / s2 + s2 - 2) / 2).sum(-1)
    acceptance = 2 * norm.cdf(-np.sqrt(error / 2))
    # a proposal that is refused repeats: what is left of the correlation is 1 - acceptance of it
    rho = np.maximum(np.abs(np.cos(phi)), 0.05) * acceptance[..., None] + 1 - acceptance[..., None]
    times = ((1 + rho) / (1 - rho) + (1 + rho**2) / (1 - rho**2)) / 2
    cost = np.where(acceptance >= WANTED, times.max(-1) * L[:, 0], np.inf)
    i, j = np.unravel_index(np.argmin(cost * (1 + 1 / L[:, 0])), cost.shape)  # the least price
    return Choice(frame, float(eps[i, 0, 0]), int(L[j, 0]), float(acceptance[i, j]), float(cost[i, j]))


def _factor(acceptance: float, wanted: float) -> float:
    """Of the step, towards the wanted acceptance: -Phi^-1(acceptance / 2) grows as eps^2."""
    at = lambda p: -norm.ppf(np.clip(p, 1e-3, 0.995) / 2)
    return float(np.clip(np.sqrt(at(wanted) / at(acceptance)), 0.25, 1.5))


def _acceptance(plan: Plan, near: Tangent) -> float:
    """The mean acceptance of short chains with seeds of their own; 0 where one leaves all bounds."""
    seed = (plan.seed ^ STREAM) & 0x7FFFFFFF
    starts = starts_on(plan, near, CHAINS, seed)
    chains = Chains(dataclasses.replace(plan, starts=starts, draws=DRAWS, warmup=0, thin=1, seed=seed))
    try:
        chains.skip(SETTLE)
        got, left = [], DRAWS
        while left > 0:
            some = chains.draw(left).info["acceptance_probability"]
            got.append(some)
            left -= some.shape[1]
    except _Diverged:
        return 0.0
    finally:
        chains.close()
    return float(np.concatenate(got, axis=1).mean())


def _words(near: Tangent, choice: Choice, kernel: Any, pilots: list[dict[str, float]], verified: bool) -> list[str]:
    words = [
        f"gmc: {kernel.leapfrog_steps} leapfrog steps of {kernel.step_size:.3g}, preconditioned by "
        f"{PRECONDITIONERS[choice.frame.name]}; a pilot accepted {pilots[-1]['acceptance']:.0%} "
        f"(predicted: {choice.acceptance:.0%})"
    ]
    if not verified:
        words.append(f"after {len(pilots)} pilots the acceptance is another than predicted; the nearest step was taken")
    return words + manifold_words(near, choice.frame)
