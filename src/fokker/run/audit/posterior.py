"""Findings from the target and all its data: do the draws have its law?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fokker.run.audit.draws import Draws
from fokker.run.audit.ksd import discrepancy, stretch_of
from fokker.run.audit.other_modes import search_modes
from fokker.run.audit.score import Score, full_gradients, score_identities, spread_out
from fokker.run.audit.verdict import (
    FALSE_ALARMS,
    KSD,
    MEAN,
    MODE,
    REJECTIONS,
    SD,
    UNEVEN,
    Finding,
    Verdict,
    excused,
    grade,
    missing,
    significant,
    worst,
)

if TYPE_CHECKING:
    from fokker.run.audit.on_manifold import View
    from fokker.run.plan import Plan
    from fokker.run.result import Run

GRADIENTS = 1000  # draws at which full-data gradients are taken
FEWEST_GRADIENTS = 100
TAIL_OF_A_NORMAL = 2.9058  # 95 % quantile of |z| over its median
PAIRED_WORK = 2e9  # multiplications of a KSD on a manifold
PAIRED_ENTRIES = 20_000_000  # numbers in the pairings that a mean is taken of
ACCEPTANCE = (0.3, 0.05)  # of the worst chain


class AtDraws(NamedTuple):
    """Full-data gradients at some of the draws."""

    where: np.ndarray  # (k, 2) chain and draw
    gradients: np.ndarray  # (k, d); on a manifold the score in the coordinates of its view
    score: Score | None  # None if there are too few or not all are finite

    @property
    def precision(self) -> np.ndarray | None:
        """That of the posterior by regression of the gradients on the draws, (d, d)."""
        return None if self.score is None else self.score.precision


def at_draws(plan: Plan, x: Draws, seconds: float, view: View | None = None) -> AtDraws:
    """As many gradients, up to GRADIENTS, as fit in the time. view: of a run on a manifold; x are then its draws."""
    chains, draws, _ = x.positions.shape
    where = spread_out(chains, draws, GRADIENTS)
    if view is not None:
        points = view.points[where[:, 0], where[:, 1]]
        ambient = full_gradients(view.target, points, seconds)
        where, points = where[: len(ambient)], points[: len(ambient)]
        g = view.scores(points, ambient)
        enough = len(g) >= min(FEWEST_GRADIENTS, chains * draws) and bool(np.isfinite(g).all())
        few = points[:: max(1, len(points) * g.shape[1] ** 2 // PAIRED_ENTRIES)]
        pairing = view.pairings(few).mean(0)
        return AtDraws(where, g, score_identities(x.positions, where, g, pairing) if enough else None)
    gradients = full_gradients(plan.target, x.positions[where[:, 0], where[:, 1]], seconds)
    where = where[: len(gradients)]
    enough = len(gradients) >= min(FEWEST_GRADIENTS, chains * draws) and bool(np.isfinite(gradients).all())
    return AtDraws(where, gradients, score_identities(x.positions, where, gradients) if enough else None)


def spread_and_mean(x: Draws, at: AtDraws) -> Iterator[Finding]:
    """The draws' sds and means against what the gradients say they are."""
    names = ("spread by the score", "mean by the score")
    if not np.isfinite(at.gradients).all():
        yield Finding(names[0], None, None, "fail", "The full-data gradient is not finite at some draws.")
    elif at.score is None:
        why = f"{len(at.gradients)} full-data gradients are too few; audit(seconds=...) gives more time."
        yield from (missing(name, why) for name in names)
    else:
        yield _spread(x, at.score, len(at.gradients))
        yield _mean(x, at.score)


def _spread(x: Draws, score: Score, gradients: int) -> Finding:
    errors, ses = score.sd_ratio - 1, score.sd_error
    value, i, verdict = worst(errors, ses, SD)
    say = (
        f"sd of the draws over the target's, at {x.names[i]}, by {gradients:,} full-data gradients (s.e. {ses[i]:.2g})."
    )
    say += excused(verdict, value, SD)
    if verdict == "not measured":
        verdict, say = "warn", say + f" Too few independent draws to tell an error of {SD[1]:.0%}."
    elif verdict != "ok":
        off = np.flatnonzero((np.abs(errors) > SD[0]) & (np.abs(errors) > significant(len(errors)) * ses))
        where = x.where(off[np.argsort(-np.abs(errors[off]))])
        if value > 0:
            say += f" Too wide at {where}: take a smaller step or less gradient noise."
        else:
            say += f" Too narrow at {where}: the chains have not filled the posterior, or are too cold."
    return Finding("spread by the score", 1 + value, 1 + SD[0], verdict, say)


def _mean(x: Draws, score: Score) -> Finding:
    value, i, verdict = worst(score.shift, score.shift_error, MEAN)
    say = f"Mean of the draws against the target's in sd, at {x.names[i]} (s.e. {score.shift_error[i]:.2g})."
    say += excused(verdict, value, MEAN)
    if verdict == "not measured":
        verdict, say = "warn", say + f" Too few independent draws to tell {MEAN[1]:g} sd: take more iterations."
    elif verdict != "ok":
        say += " The chains are not where the target is: take a longer warm-up or a smaller step."
    return Finding("mean by the score", value, MEAN[0], verdict, say)


def even_curvature(x: Draws, at: AtDraws) -> Finding:
    """How much the size of the gradient varies over the draws, against a normal law, at the worst coordinate.

    On a Gaussian posterior each entry of the gradient is normal: in size, its 95 % quantile is 2.9 times its median. In
    a funnel, as hierarchical models have it, it is more: the curvature differs from draw to draw, and a step that suits
    one of them is too large or too small for another.
    """
    name = "even curvature"
    if at.score is None or len(at.gradients) < FEWEST_GRADIENTS:
        return missing(name, f"{len(at.gradients)} full-data gradients are too few.")
    size = np.abs(at.gradients - at.gradients.mean(0))
    ratio = np.quantile(size, 0.95, axis=0) / np.maximum(np.quantile(size, 0.5, axis=0), 1e-300) / TAIL_OF_A_NORMAL
    i = int(np.argmax(ratio))
    verdict = grade(float(ratio[i]), UNEVEN)
    say = f"95 % quantile over median of the gradient's size, against that of a normal law, at {x.names[i]}."
    if verdict != "ok":
        say += (
            " The curvature differs strongly between draws (a funnel?): no one step suits it. Write the hierarchy in "
            "its non-centred form, or use NUTS on all data."
        )
    return Finding(name, float(ratio[i]), UNEVEN[0], verdict, say)


def stein_discrepancy(
    x: Draws, where: np.ndarray, gradients: np.ndarray, seed: int, name: str, view: View | None = None
) -> Finding:
    """KSD with the gradients (k, d) at the draws ``where`` (k, 2), as an error of the sd that would explain it."""
    n, d = gradients.shape
    if view is not None:  # every pair costs d^2
        n = min(n, int(PAIRED_WORK**0.5 / d))
        where, gradients = where[:n], gradients[:n]
    if n < 2 * d + 20 or not np.isfinite(gradients).all():
        return missing(name, f"{n} gradients are too few in {d} dimensions.")
    order = np.lexsort((where[:, 1], where[:, 0]))
    points = x.positions[where[order, 0], where[order, 1]]
    pairings = None if view is None else view.pairings(view.points[where[order, 0], where[order, 1]])
    k = discrepancy(points, gradients[order], stretch_of(n, float(x.ess.min())), seed, pairings)
    verdict: Verdict = grade(k.as_sd_error, KSD) if k.p_value < FALSE_ALARMS else "ok"
    say = (
        f"As far from the target as a Gaussian law whose sds are all off by {k.as_sd_error:.1%} "
        f"(p = {k.p_value:.3f}; {k.detectable:.1%} would be seen), from {n:,} draws."
    )
    if verdict == "ok" and k.detectable > 1.0:
        return missing(name, say + " Too noisy for a verdict.")
    say += excused(verdict, k.as_sd_error, KSD)
    if verdict != "ok":
        say += " The shape of the draws is not the target's: see spread, mean and modes for where."
    return Finding(name, k.as_sd_error, KSD[0], verdict, say)


def rejections(run: Run) -> Iterator[Finding]:
    """What kernels with a Metropolis step count."""
    stats = run.stats
    if "acceptance_probability" in stats:
        value = float(np.asarray(stats["acceptance_probability"], float).mean(1).min())
        verdict = grade(-value, (-ACCEPTANCE[0], -ACCEPTANCE[1]))
        cure = " Take a smaller step." if verdict != "ok" else ""
        yield Finding("acceptance", value, ACCEPTANCE[0], verdict, "Mean acceptance of the worst chain." + cure)
    counted = (
        ("diverging", "divergences", 1, "trajectories that left all bounds"),
        ("converged", "inner iterations", 0, "trajectories whose inner iterations failed, which are refused"),
    )
    for field, name, bad, what in counted:
        if field in stats:
            value = float((np.asarray(stats[field], int) == bad).mean())
            verdict = grade(value, REJECTIONS)
            say = f"Share of {what}."
            if verdict != "ok":
                say += " The chain avoids a region: take a smaller step or another parametrisation."
            yield Finding(name, value, REJECTIONS[0], verdict, say)


def unseen_modes(plan: Plan, x: Draws, seconds: float, seed: int, view: View | None = None) -> Finding:
    """The weight of the largest mode that no draw has visited."""
    name, draws = "other modes", x.positions.shape[1]
    few = np.linspace(0, draws - 1, max(2, min(draws, 2000 // len(x.positions)))).astype(int)
    seen = x.positions[:, few].reshape(-1, x.positions.shape[2])
    if view is None:
        search = search_modes(plan.target, seen, np.stack(plan.starts), seconds, seed)
    else:
        from fokker.run.audit.other_modes_on import search_modes_on

        points = view.points[:, few].reshape(-1, view.space.size)
        search = search_modes_on(view.space, view.target, points, np.stack(plan.starts), seconds, seed)
    if isinstance(search, str):
        return missing(name, search)
    far = "up to 100 sd away" if view is None else "all over the space"
    say = f"{search.converged} descents from {far}"
    if search.left:
        say += f" ({search.left} more would have taken longer than the audit may)"
    if search.relabelled:
        say += f", {search.relabelled} of their ends the same mode relabelled,"
    if not search.unseen:
        return Finding(name, 0.0, MODE[0], "ok", say + " found no mode that the draws have not seen.")
    mode = search.unseen[0]
    verdict = grade(mode.weight, MODE)
    say += (
        f" found {len(search.unseen)} unseen: the largest, {mode.distance:.0f} sd away, has {mode.weight:.2g} times "
        "the weight of the seen one."
    )
    if verdict != "ok":
        say += " The draws are of one mode only: start chains in each, or use a cyclical schedule."
    return Finding(name, mode.weight, MODE[0], verdict, say)
