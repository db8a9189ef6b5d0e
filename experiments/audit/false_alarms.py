"""How often the audit warns of draws that have the right law: exact autoregressive chains with a normal law.

    python -m experiments.audit.false_alarms [REPETITIONS]

Only what needs draws and gradients is looked at (no kernel made these chains). Prints a line for each setting; the
numbers are in docs/audit.md.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from fokker.run.audit.draws import Draws, of_draws
from fokker.run.audit.posterior import GRADIENTS, AtDraws, spread_and_mean, stein_discrepancy
from fokker.run.audit.score import score_identities, spread_out

CHAINS, DRAWS = 4, 1000


def autoregressive(d: int, correlation: float, seed: int) -> np.ndarray:
    """Chains with law Normal(0, I) from the first draw on, (CHAINS, DRAWS, d)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((DRAWS, CHAINS, d))
    for t in range(1, DRAWS):
        x[t] = correlation * x[t - 1] + np.sqrt(1 - correlation**2) * x[t]
    return x.transpose(1, 0, 2)


def verdicts(positions: np.ndarray, seed: int) -> dict[str, str]:
    """Finding -> verdict."""
    x = Draws.from_array(positions, [f"x{i}" for i in range(positions.shape[2])])
    where = spread_out(CHAINS, DRAWS, GRADIENTS)
    gradients = positions[where[:, 0], where[:, 1]]  # of |x|^2 / 2
    at = AtDraws(where, gradients, score_identities(positions, where, gradients))
    found = [*of_draws(x), *spread_and_mean(x, at), stein_discrepancy(x, where, gradients, seed, "KSD, all rows")]
    return {f.name: f.verdict for f in found}


def main(repetitions: int) -> None:
    for d in (2, 5, 20):
        for correlation in (0.3, 0.6):
            alarms: Counter[str] = Counter()
            for seed in range(repetitions):
                found = verdicts(autoregressive(d, correlation, seed), seed)
                alarms.update(f"{name}: {verdict}" for name, verdict in found.items() if verdict != "ok")
                alarms["green"] += set(found.values()) == {"ok"}
            ess = CHAINS * DRAWS * (1 - correlation) / (1 + correlation)
            print(f"d = {d}, ESS {ess:.0f}: " + ", ".join(f"{k} {v / repetitions:.1%}" for k, v in alarms.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
