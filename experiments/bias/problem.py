"""The targets of the bias page, and what a sampler has to offer to be measured on them.

A Gaussian with mean 1 and curvatures from 1 to 10 (one coordinate: curvature 1), whose gradient has noise of covariance
V = 2 A: in a regression the noise of minibatches is in proportion to the curvature, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FRICTION = 1.0  # of every sampler with a momentum: critical damping is at 2 in the slowest direction
NOISE_TO_CURVATURE = 2.0
MODES = ("exact", "noise", "told")  # the gradient: exact, noisy, noisy with its covariance made known


@dataclass(frozen=True)
class Problem:
    """U = sum a (x - mean)^2 / 2; gradients have noise of variances V. mode: one of MODES."""

    d: int
    mode: str = "exact"
    stiffest: float = 10.0

    @property
    def a(self) -> np.ndarray:  # (d,) curvatures, the slowest first
        return np.geomspace(1.0, self.stiffest, self.d)

    @property
    def mean(self) -> np.ndarray:  # (d,)
        return np.ones(self.d)

    @property
    def V(self) -> np.ndarray:  # (d,)
        return NOISE_TO_CURVATURE * self.a * (self.mode != "exact")

    @property
    def known(self) -> np.ndarray | None:
        """The variances as the sampler is told them, (d,)."""
        return self.V if self.mode == "told" else None

    @property
    def known_number(self) -> float:
        """The same for a sampler that takes one number: their mean."""
        return float(self.V.mean()) if self.mode == "told" else 0.0


@dataclass(frozen=True)
class Chain:
    """A sampler ready to run. JAX: ``init(key, x) -> state``, ``step(key, state) -> state``, pure, for one chain."""

    init: Callable[[Any, Any], Any]
    step: Callable[[Any, Any], Any]
    position: Callable[[Any], Any]
    gradients: int = 1  # per step
    ours: bool = False  # takes fokker's keys


@dataclass(frozen=True)
class TorchChain:
    """The same in PyTorch, many chains at once: ``init(x) -> state``, ``step(state) -> state``, a tuple, x first."""

    init: Callable[[Any], tuple]
    step: Callable[[tuple], tuple]
    gradients: int = 1


@dataclass(frozen=True)
class Sampler:
    """A row of the table: ``make(problem, step size)``, and how its law is found."""

    library: str
    name: str
    make: Callable[[Problem, float], Chain | TorchChain]
    linear: bool  # an affine map with Gaussian noise on these targets: its law is then exact
    told: bool = True  # can it be told the noise of its gradient?
    noisy: bool = True  # does it run with a noisy gradient at all?
    start: float = 0.05  # a step size to begin the search with
    note: str = ""
