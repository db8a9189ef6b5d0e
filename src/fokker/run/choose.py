"""What a run that tunes its step chooses besides, where it is left open (docs/adr/0009-first-call.md).

The gradient: control variates at the mode where they are predicted to save more steps than their second gradient costs.
The thinning: as many iterations a draw as the chain takes to forget, so that draws are nearly independent.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fokker.run.gradients import control_variates
from fokker.run.local_noise import measure_noise
from fokker.run.search import Frame, Problem, search
from fokker.run.tangent_shape import tangent_noise
from fokker.sgmcmc.schedules import constant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fokker.run.local_shape import Shape
    from fokker.run.plan import Plan
    from fokker.run.tangent_shape import Tangent

WORTH_IT = 2.0  # times the ESS per step: a step of control variates takes the gradient of its rows twice
MOST_THIN = 5_000
MOST_NUMBERS = 4e11  # that the run may multiply, rows of its batches times parameters: minutes on one core
NUMBERS_OF_A_STEP = 5_000.0  # that a step costs the time of, however few it has


def choose_gradient(
    plan: Plan, problem: Problem, frames: Sequence[Frame], shape: Shape, near: Tangent | None, allowed: float
) -> tuple[Plan, Problem, dict[str, Any]]:
    """The plan and the problem with the better gradient, and what was chosen, as JSON with a sentence.

    near: where the posterior is on a manifold; ``shape`` is then that of its tangent space.
    """
    centre = np.asarray(shape.mode if near is None else near.positions(near.point[None])[0], plan.dtype)
    centred = dataclasses.replace(plan, gradient=control_variates(centre=centre))
    with jax.enable_x64(True):
        calm = dataclasses.replace(
            problem, noise=measure_noise(centred, shape) if near is None else tangent_noise(centred, near)
        )
    plain, better = (min(search(p, f, allowed, np.inf).steps for f in frames) for p in (problem, calm))
    gain = float(f"{plain / better:.3g}") if np.isfinite(better) else 0.0
    times = "without them no step is small enough" if np.isinf(gain) else f"{gain:.3g} times the ESS per step"
    if gain < WORTH_IT:
        words = f"gradient: plain minibatches; control variates would give {times}, at twice the work"
        return plan, problem, {"gradient": "minibatch", "gain": gain, "words": words}
    words = f"gradient: control variates at the mode; predicted over plain minibatches: {times}"
    kept = {"gradient": "control_variates", "centre": [float(v) for v in centre]}
    return centred, calm, {**kept, "gain": gain if np.isfinite(gain) else None, "words": words}


def choose_thin(plan: Plan, steps: float) -> Plan:
    """The plan with one draw every ``steps`` iterations, the predicted autocorrelation time, as far as costs allow.

    A schedule that changes the step has no one time; it keeps every iteration.
    """
    if not isinstance(getattr(plan.kernel, "schedule", constant()), constant):
        return plan
    cost = max(NUMBERS_OF_A_STEP, float(plan.layout.size * (plan.batch_size or 1)))
    affordable = MOST_NUMBERS / (cost * plan.draws * plan.chains)
    return dataclasses.replace(plan, thin=max(1, int(min(np.ceil(steps), affordable, MOST_THIN))))
