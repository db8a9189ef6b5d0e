"""Findings from the draws alone: do chains move, agree, forget, and stay where they are?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fokker.run.audit.verdict import DRIFT, ESS, R_HAT, REFUSED, STILL, Finding, excused, grade, missing, significant

if TYPE_CHECKING:
    from fokker.run.plan import Plan
    from fokker.run.result import Run

MOST = 10_000  # draws of each chain that are looked at, evenly thinned
FEWEST = 4  # below, nothing can be said


@dataclass(frozen=True)
class Draws:
    """The draws in one array, and how well chains forget and agree, by coordinate."""

    positions: np.ndarray  # (chains, draws, d) float64, in the order of the ravelled parameters
    names: list[str]
    ess: np.ndarray  # (d,) the smaller of bulk and tail; 0 where it is not defined
    r_hat: np.ndarray  # (d,) nan for one chain
    spacing: int  # iterations between neighbours
    may_reject: bool  # the kernel refuses proposals

    @classmethod
    def of(cls, run: Run, plan: Plan | None) -> Draws:
        data = run.draws
        order = list(map(str, data.data_vars)) if plan is None else [v.name for v in plan.layout.variables]
        every = max(1, -(-data.sizes["draw"] // MOST))
        data = data.isel(draw=slice(None, None, every))
        parts = [np.asarray(data[name], np.float64) for name in order]
        positions = np.concatenate([p.reshape(*p.shape[:2], -1) for p in parts], axis=2)
        names = [label for label, _ in run.entries(order)] if plan is None else plan.layout.entry_names()
        rejects = "acceptance_probability" in run.stats
        return cls.from_array(positions, names, run.settings["thin"] * every, rejects)

    @classmethod
    def from_array(cls, positions: np.ndarray, names: list[str], spacing: int = 1, may_reject: bool = False) -> Draws:
        from arviz_stats.base import array_stats

        chains, draws, d = positions.shape
        if draws < FEWEST:
            return cls(positions, names, np.zeros(d), np.full(d, np.nan), spacing, may_reject)
        axes = {"chain_axis": 0, "draw_axis": 1}
        with np.errstate(invalid="ignore", divide="ignore"):
            bulk = np.atleast_1d(array_stats.ess(positions, method="bulk", **axes))
            tail = np.atleast_1d(array_stats.ess(positions, method="tail", prob=(0.05, 0.95), **axes))
            r_hat = np.atleast_1d(array_stats.rhat(positions, **axes)) if chains > 1 else np.full(d, np.nan)
        ess = np.nan_to_num(np.minimum(bulk, tail), nan=0.0)
        ess[_still(positions)] = 0.0
        return cls(positions, names, ess, r_hat, spacing, may_reject)

    @property
    def flat(self) -> np.ndarray:
        """(chains * draws, d)."""
        return self.positions.reshape(-1, self.positions.shape[2])

    @property
    def covariance(self) -> np.ndarray:
        """(d, d)."""
        return np.cov(self.flat.T).reshape(self.flat.shape[1], -1)

    @property
    def relaxation(self) -> float:
        """Iterations in which the slowest coordinate forgets."""
        count = len(self.flat)
        return self.spacing * count / np.clip(self.ess.min(), 1.0, count) / 2

    def where(self, coordinates: np.ndarray) -> str:
        """Names of some coordinates, the first few."""
        chosen = [self.names[i] for i in coordinates]
        return ", ".join(chosen[:4]) + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")


def of_draws(x: Draws) -> Iterator[Finding]:
    """Everything that needs nothing but the draws."""
    draws = x.positions.shape[1]
    if draws < FEWEST:
        yield Finding("effective draws", draws, ESS[0], "fail", f"{draws} draws a chain are no sample; draw more.")
        return
    yield movement(x)
    yield agreement(x)
    yield effective_draws(x)
    yield trend(x)


def movement(x: Draws) -> Finding:
    """The largest share of draws that equal the one before: 1 for a chain that is stuck."""
    still = (x.positions[:, 1:] == x.positions[:, :-1]).mean(1)  # (chains, d)
    chain, i = np.unravel_index(int(np.argmax(still)), still.shape)
    value, limits = float(still[chain, i]), REFUSED if x.may_reject else STILL
    verdict = grade(value, limits)
    say = f"Largest share of draws equal to the one before, chain {chain}, {x.names[i]}."
    if verdict != "ok" and x.may_reject:
        say += " Proposals are refused: take a smaller step."
        if value == 1:
            say += " This chain never moved: it may have begun where they all are; begin all near one point (init=)."
    elif verdict != "ok":
        say += " The step is lost in rounding: take a larger step or dtype='float64'."
    return Finding("movement", value, limits[0], verdict, say)


def agreement(x: Draws) -> Finding:
    """The largest rank R-hat."""
    if len(x.positions) == 1:
        return missing("agreement of chains", "One chain cannot disagree; run chains=4.")
    i = int(np.argmax(np.nan_to_num(x.r_hat, nan=np.inf)))
    value = float(x.r_hat[i])
    apart = np.ptp(x.positions[..., i].mean(1)) / max(x.positions[..., i].std(1).mean(), 1e-300)
    verdict = grade(value, R_HAT)
    say = f"Largest rank R-hat, at {x.names[i]}; its chain means lie {apart:.2g} sd apart."
    if verdict != "ok":
        say += " The chains have not met: take more draws or warm-up, or start them elsewhere to see which is right."
    return Finding("agreement of chains", value, R_HAT[0], verdict, say)


def effective_draws(x: Draws) -> Finding:
    """The smallest ESS, of bulk or tail."""
    i = int(np.argmin(x.ess))
    value = float(x.ess[i])
    verdict = grade(-value, (-ESS[0], -ESS[1]))
    say = f"Fewest effective draws (bulk and tail), at {x.names[i]}, of {len(x.flat):,}."
    if _still(x.positions).any():
        say += " A chain did not move at all, see movement."
    elif verdict != "ok":
        factor = ESS[0] / max(value, 1.0)
        say += f" Take about {factor:.2g} times as many iterations, or a larger step if the bias allows."
    return Finding("effective draws", value, ESS[0], verdict, say)


def trend(x: Draws) -> Finding:
    """The mean of the first third of the draws against that of the last, in sd.

    Its standard error is by the ESS of all draws less what is common to the chains in each third: a trend does not
    hide itself, and the ESS is known better than that of a third.
    """
    if _still(x.positions).any():
        return missing("trend", "A chain did not move at all, see movement.")
    thirds = np.array_split(x.positions, 3, axis=1)
    means = [part.mean((0, 1)) for part in thirds]
    sd = np.maximum(x.positions.std((0, 1)), 1e-300)
    drift = (means[2] - means[0]) / sd
    rest = np.concatenate([part - mean for part, mean in zip(thirds, means, strict=True)], axis=1)
    error = np.sqrt(6 / np.maximum(_ess_of_mean(rest), 1e-300))
    shown = np.abs(drift) > significant(len(drift)) * error
    i = int(np.argmax(np.abs(drift) * np.where(shown, 1.0, 1e-6)))
    verdict = grade(float(np.abs(drift[i])), DRIFT) if shown.any() else "ok"
    say = f"Shift from the first to the last third of the draws in sd, at {x.names[i]} (s.e. {error[i]:.2g})."
    say += excused(verdict, float(drift[i]), DRIFT)
    if verdict != "ok":
        say += " The chains were still on their way: take a longer warm-up."
    return Finding("trend", float(drift[i]), DRIFT[0], verdict, say)


def _still(positions: np.ndarray) -> np.ndarray:
    """(chains, draws, d) -> (d,): whether some chain has one value only."""
    return (positions == positions[:, :1]).all(1).any(0)


def _ess_of_mean(positions: np.ndarray) -> np.ndarray:
    """(chains, draws, d) -> (d,); 0 where it is not defined."""
    from arviz_stats.base import array_stats

    with np.errstate(invalid="ignore", divide="ignore"):
        ess = array_stats.ess(positions, method="mean", chain_axis=0, draw_axis=1)
    return np.nan_to_num(np.atleast_1d(ess), nan=0.0)
