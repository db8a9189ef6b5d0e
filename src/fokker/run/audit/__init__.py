"""Whether to trust the draws of a run, with the evidence: ``run.audit()``.

    verdict      findings, the limits they are held against, colours, the table
    draws        findings from the draws alone: do chains move, agree, forget?
    posterior    with the target: spread and mean by full-data gradients, Stein discrepancy, modes that no draw has seen
    on_manifold  the coordinates and the score by which the two others see a run on a manifold
    minibatches  for kernels that see a few rows at a step: gradient noise, its scale, step-size bias, temperature

and the mathematics they use: ``score``, ``ksd``, ``other_modes``, ``gradient_noise``, ``linearised``, ``paired``. What
each finding can and cannot see: docs/audit.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fokker.errors import InputError
from fokker.run.audit.draws import FEWEST, Draws, of_draws
from fokker.run.audit.verdict import Audit, Finding, missing, overall
from fokker.sgmcmc.checks import check_count

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.run.result import Run
    from fokker.sgmcmc.kernel import Gradient, Kernel
    from fokker.target import Target

SHARES = {"gradients": 0.35, "noise": 0.1, "paired": 0.4, "modes": 0.15}  # of the time
OF_ALL = (
    "spread by the score",
    "mean by the score",
    "even curvature",
    "KSD, all rows",
    "other modes",
)  # what needs the target
OF_MINIBATCHES = ("gradient scale", "gradient noise", "step-size bias")


def audit(
    run: Run,
    *,
    target: Target | None = None,
    kernel: Kernel | None = None,
    gradient: Gradient | None = None,
    init: Any = None,
    seconds: float = 15.0,
    seed: int = 0,
) -> Audit:
    """Measure whether the draws of ``run`` can be trusted.

    A run of this process knows its target. For one that was opened from a store give ``target``, ``kernel`` and
    ``gradient`` again; without them the audit that the store keeps is shown, or, if it keeps none of these draws, what
    the draws say by themselves. init: needed again only where the parameters are nested in classes of one's own.
    seconds: about how long to measure; compiling comes on top. seed: of what is drawn at random to measure.
    The audit of a stored run is kept in the store.
    """
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InputError(f"seconds must be a number > 0, got {seconds!r}; the default of 15 suits most runs.")
    check_count("seed", seed, 0)
    if target is None and run._plan is None:
        return stored(run) or _finish(run, None, time.perf_counter(), seconds, seed)
    from fokker.run.plan import precision

    started = time.perf_counter()
    with precision(run.settings["dtype"]):
        plan = run._plan
        if target is not None and run.draws.sizes["draw"]:
            plan = _plan_again(run, target, kernel, gradient, init)
        result = _finish(run, plan, started, seconds, seed)
    if run._store is not None:
        run._store.write_audit(result.to_dict())
    return result


def stored(run: Run) -> Audit | None:
    """What was measured of these draws with target and data and is kept in the run's store."""
    kept = None if run._store is None else run._store.audit()
    if kept is None or kept["draws"] != run.draws.sizes["draw"]:
        return None
    return Audit.from_dict(kept)


def _plan_again(run: Run, target: Target, kernel: Kernel | None, gradient: Gradient | None, init: Any = None) -> Plan:
    from fokker.run.plan import plan_again

    if init is None and target.start is None:
        plan = _plan_at_last_draws(run, target, kernel, gradient)
    else:
        plan = plan_again(run.settings, target, kernel, gradient, init)
    given = plan.summary()
    for name in ("kernel", "gradient", "variables", "space"):
        if given[name] != run.settings.get(name, given[name]):  # an older store does not know all of them
            raise InputError(
                f"the run was made with another {name}: {run.settings[name]!r}, given {given[name]!r}; "
                f"pass the {name} of the run to audit()."
            )
    return plan


def _plan_at_last_draws(run: Run, target: Target, kernel: Kernel | None, gradient: Gradient | None) -> Plan:
    """The plan with every chain's last draw for its start, nested as the run's parameters were."""
    from fokker.run.layout import nested
    from fokker.run.plan import plan_again

    names, structure = list(run.settings["variables"]), run.settings.get("structure")
    if structure is None:  # of a custom class, or of a store that does not say it
        raise InputError(
            f"how the parameters {', '.join(names)} were nested is not in the run's settings; pass the init= of the "
            "run to audit()."
        )
    last = run.draws.isel(draw=-1)
    leaves = [np.asarray(last[name]) for name in names]  # each (chains, *shape)
    starts = [nested(structure, iter([leaf[c] for leaf in leaves])) for c in range(run.settings["chains"])]
    return plan_again(run.settings, target, kernel, gradient, starts if len(starts) > 1 else starts[0])


def _finish(run: Run, plan: Plan | None, started: float, seconds: float, seed: int) -> Audit:
    count = run.draws.sizes["draw"]
    x = Draws.of(run, plan) if count else Draws.from_array(np.zeros((run.settings["chains"], 0, 0)), [])
    findings = list(of_draws(x))
    if run.weights is not None:
        say = "The step size decreased: summary() weights the draws by it, what is said here is of them unweighted."
        findings.append(Finding("weights", None, None, "ok", say))
    if count >= FEWEST:
        findings += _without_target(run) if plan is None else _with_target(run, plan, x, seconds, seed)
    verdict, words = overall(findings)
    return Audit(verdict, words, tuple(findings), count, time.perf_counter() - started)


def _without_target(run: Run) -> list[Finding]:
    why = "Needs target and data: run.audit(target=..., kernel=..., gradient=...)."
    names = OF_ALL if "acceptance_probability" in run.stats else OF_ALL + OF_MINIBATCHES
    return [missing(name, why) for name in names]


def _with_target(run: Run, plan: Plan, x: Draws, seconds: float, seed: int) -> Iterator[Finding]:
    from fokker.run.audit import minibatches, posterior
    from fokker.run.audit.on_manifold import view_of

    spread = x.positions.std(1)
    if not (spread > 0).all():
        chain, i = divmod(int(spread.argmin()), spread.shape[1])
        say = f"Chain {chain} has no spread in {x.names[i]}: it is stuck."
        yield Finding("spread by the score", 0.0, None, "fail", say)
        return
    view = view_of(plan, x)
    if plan.source is not None and plan.source.streams is not None:
        why = "Needs passes over all data, which come from an iterator; audit(target=...) with arrays would do."
        yield from (missing(name, why) for name in OF_ALL)
        if view is None:
            yield from minibatches.of_an_iterator(run, plan, x, seconds * SHARES["noise"], seed)
        else:
            yield from (missing(name, why) for name in OF_MINIBATCHES)
        return
    precision = None
    if isinstance(view, str):
        yield from (missing(name, view) for name in OF_ALL)
    else:
        u = x if view is None else view.draws
        at = posterior.at_draws(plan, u, seconds * SHARES["gradients"], view)
        precision = at.precision
        yield from posterior.spread_and_mean(u, at)
        yield posterior.even_curvature(u, at)
        yield posterior.stein_discrepancy(u, at.where, at.gradients, seed, "KSD, all rows", view)
    if getattr(plan.kernel, "full_data", False):
        yield from posterior.rejections(run)
    else:
        times = {name: seconds * SHARES[name] for name in ("noise", "paired")}
        yield from minibatches.of_minibatches(run, plan, x, precision, times, seed, view)
    if not isinstance(view, str):
        yield posterior.unseen_modes(plan, x, seconds * SHARES["modes"], seed, view)


__all__ = ["Audit", "Finding", "audit", "stored"]
