"""The demonstration: a Bayesian logistic regression by minibatches, on simulated loans.

The rows are made here from a seed, so that nothing has to be downloaded and the truth is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fokker.target import Target

ROWS = 100_000
EFFECTS = {  # log odds of default, per standard deviation
    "debt_to_income": 0.80,
    "late_payments": 0.55,
    "credit_lines": 0.10,
    "income": -0.45,
    "age": -0.20,
    "years_employed": -0.30,
    "loan_amount": 0.35,
    "interest_rate": 0.60,
    "has_mortgage": -0.15,
    "region_north": 0.00,
}
INTERCEPT = -1.5


def loans(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Simulated loans: features (rows, 10) float32, standardised and correlated, and defaults (rows,) in {0, 1}."""
    rng = np.random.default_rng(seed)
    d = len(EFFECTS)
    shared = rng.standard_normal((rows, 2)) @ rng.standard_normal((2, d)) * 0.4  # two hidden traits of a borrower
    features = shared + rng.standard_normal((rows, d))
    features = ((features - features.mean(0)) / features.std(0)).astype(np.float32)
    odds = features @ np.array(list(EFFECTS.values())) + INTERCEPT
    return features, (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.float32)


def target(rows: int = ROWS, seed: int = 0) -> Target:
    """The posterior of the ten effects and the intercept."""
    from fokker.linear_models import glm

    features, default = loans(rows, seed)
    return glm(features, default, "bernoulli", prior_scale=2.5, names=list(EFFECTS))
