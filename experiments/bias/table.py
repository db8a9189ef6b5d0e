"""The bias of every sampler at equal cost, ours and the peers': measures it and keeps it in out/table.json.

    python -m experiments.bias.table [--only WORD]    then    python docs/make_bias.py

Equal cost: each sampler gets the step size at which the slowest coordinate takes COST gradients for one effective
draw, by the longer of the autocorrelation times of x and of (x - E x)^2, gradients being exact (a multiple of COST
where no stable step is so fast); the friction is 1 for all. The same step is then used with noisy gradients. Samplers
that are affine maps have their exact law; others are simulated.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from experiments.bias import ours, peers
from experiments.bias.linear import Law, NoLaw, law
from experiments.bias.problem import MODES, Problem, Sampler, TorchChain
from experiments.bias.simulated import Estimate, Size, simulate

OUT = Path(__file__).resolve().parent / "out" / "table.json"
COST, DIMENSIONS = 40.0, (1, 20)
SAMPLERS = [*ours.SAMPLERS, *peers.SAMPLERS]
TRIAL, FULL, TORCH = Size(1000, 3000, 1000), Size(2000, 6000, 1500), Size(2000, 3000, 1000)
PACKAGES = ("jax", "blackjax", "posteriors", "torch", "SGMCMCJax")


# --- the step size ---------------------------------------------------------------------------------------------------


def step_for_cost(sampler: Sampler, d: int) -> float:
    """The step size at which the cost is COST; twice that, four times, ... where no stable step is so fast."""
    problem = Problem(d)
    if not sampler.linear:
        return search(sampler, problem)
    for cost in COST * 2.0 ** np.arange(6):
        try:
            return solve_exactly(sampler, problem, cost)
        except NoLaw:
            continue
    raise NoLaw


def solve_exactly(sampler: Sampler, problem: Problem, cost: float) -> float:
    excess = lambda log_eps: np.log(law(sampler.make(problem, np.exp(log_eps)), problem).cost / cost)
    low = np.log(0.001)
    while excess(low + 0.25) > 0:  # raises NoLaw beyond the last stable step
        low += 0.25
    return float(np.exp(brentq(excess, low, low + 0.25, xtol=1e-10)))


def search(sampler: Sampler, problem: Problem) -> float:
    """From short runs, to about the 5 % that these can tell."""
    eps = sampler.start
    for attempt in range(8):
        try:
            ratio = simulate(sampler.make(problem, eps), problem, TRIAL, seed=attempt).law.cost / COST
        except NoLaw:
            ratio = 0.3
        if abs(ratio - 1) < 0.05:
            break
        eps *= np.clip(ratio, 0.1, 10) ** 0.7  # costs go like 1 / eps, those of HMC like 1 / eps^2
    return float(eps)


# --- the bias --------------------------------------------------------------------------------------------------------


def bias(found: Law | Estimate, problem: Problem) -> dict[str, Any]:
    """The worst coordinate's relative error of the sd, and of the mean in sds, with standard errors (0: exact)."""
    exact = isinstance(found, Law)
    moments = found if exact else found.law
    ratio = np.sqrt(moments.variance * problem.a)
    sd, mean = ratio - 1, (moments.mean - problem.mean) * problem.a**0.5
    sd_error = np.zeros_like(sd) if exact else found.variance_error * problem.a / (2 * ratio)
    mean_error = np.zeros_like(mean) if exact else found.mean_error * problem.a**0.5
    i, j = np.abs(sd).argmax(), np.abs(mean).argmax()
    return {
        "sd": float(sd[i]),
        "sd_error": float(sd_error[i]),
        "curvature": float(problem.a[i]),
        "mean": float(mean[j]),
        "mean_error": float(mean_error[j]),
        "cost": float(moments.cost),
    }


def measure(sampler: Sampler, d: int, eps: float, mode: str) -> dict[str, Any] | None:
    """None: the sampler cannot be run so. {"diverges": True}: there is no stationary law."""
    if (mode == "told" and not sampler.told) or (mode != "exact" and not sampler.noisy):
        return None
    problem = Problem(d, mode)
    chain = sampler.make(problem, eps)
    size = TORCH if isinstance(chain, TorchChain) else FULL
    try:
        return bias(law(chain, problem) if sampler.linear else simulate(chain, problem, size, seed=100), problem)
    except NoLaw:
        return {"diverges": True}


def entry(sampler: Sampler, d: int) -> dict[str, Any]:
    row: dict[str, Any] = dict(library=sampler.library, sampler=sampler.name, d=d, exact=sampler.linear)
    row["note"] = sampler.note
    eps = step_for_cost(sampler, d)
    return row | {"step": eps, "modes": {mode: measure(sampler, d, eps, mode) for mode in MODES}}


# --- two settings that are known -------------------------------------------------------------------------------------


def at_their_settings() -> list[dict[str, Any]]:
    """Variances where 1 is right, N(0, I), exact gradients, at settings of the libraries' own."""
    flat = lambda d: Problem(d, stiffest=1.0)
    exactly = lambda d, chain: dict(variance=float(law(chain, flat(d)).variance[0]), error=0.0)

    def simulated(d: int, chain: Any) -> dict[str, float]:
        found = simulate(chain, flat(d), FULL, seed=3)
        pooled = lambda v: float(np.mean(v))
        return dict(variance=pooled(found.law.variance), error=pooled(found.variance_error))

    sghmc = lambda h: peers.blackjax_chain("sghmc", flat(1), h, peers.DEFAULT_FRICTION)
    badodab = lambda d: simulated(d, peers.sgmcmcjax_chain("badodab", flat(d), 0.05))
    aboba = lambda d: simulated(d, named("fokker", "sgnht aboba").make(flat(d), 0.05))
    same = named("fokker", "sghmc aboba").make(flat(1), 0.1)
    words = lambda d: f"{d} dimension{'s' * (d > 1)}"
    rows = [
        ("BlackJAX sghmc, friction 0.01, ten steps of 0.1", 1, exactly(1, sghmc(0.1))),
        ("BlackJAX sghmc, friction 0.01, ten steps of 0.05", 1, exactly(1, sghmc(0.05))),
        ("fokker sghmc aboba, steps of 0.1", 1, exactly(1, same)),
        *((f"SGMCMCJax badodab, steps of 0.05, {words(d)}", d, badodab(d)) for d in (1, 5, 20)),
        *((f"fokker sgnht aboba, steps of 0.05, {words(d)}", d, aboba(d)) for d in (1, 5, 20)),
    ]
    return [dict(what=what, d=d, **found) for what, d, found in rows]


def named(library: str, name: str) -> Sampler:
    return next(s for s in SAMPLERS if (s.library, s.name) == (library, name))


# --- the record ------------------------------------------------------------------------------------------------------


def main(only: str = "") -> None:
    for sampler in SAMPLERS:
        if only in f"{sampler.library} {sampler.name}":
            for d in DIMENSIONS:
                row = entry(sampler, d)
                print(json.dumps(row, ensure_ascii=False), flush=True)
                keep(row)
    if only in "known":
        keep(None, at_their_settings())


def keep(row: dict[str, Any] | None, known: list[dict[str, Any]] | None = None) -> None:
    """Put a row, or the known settings, on record; the file is whole after every row."""
    record = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"rows": [], "known": []}
    rows = {key(r): r for r in [*record["rows"], *([row] if row else [])]}
    order = [(s.library, s.name, d) for s in SAMPLERS for d in DIMENSIONS]
    record = {
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "import_error": peers.sgmcmcjax_kernels()[1] or record.get("import_error", ""),
        "rows": [rows[k] for k in order if k in rows],
        "known": known or record["known"],
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["library"], row["sampler"], row["d"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose library and name contain this")
    main(parser.parse_args().only)
