"""How a step size changes with the iteration: a function of the iteration that multiplies ``step_size``.

Any function iteration -> factor will do (an optax schedule divided by its start, for instance).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.errors import InputError
from fokker.sgmcmc.checks import is_whole

Schedule = Callable[[Array], Array]


@dataclass(frozen=True)
class constant:
    """factor = 1."""

    def __call__(self, iteration: Array) -> Array:
        return jnp.ones(())  # of the default precision: a float32 one would round a float64 step


@dataclass(frozen=True)
class polynomial:
    """factor = (1 + t / b)^-c (Welling & Teh 2011). The draws must then be weighted by their step sizes."""

    b: float = 1000.0
    c: float = 0.55

    def __post_init__(self) -> None:
        for name in ("b", "c"):
            if np.ndim(getattr(self, name)) or np.asarray(getattr(self, name)).dtype.kind not in "fiu":
                raise InputError(f"polynomial needs a number as {name}, got {getattr(self, name)!r}.")
        if not (self.b > 0 and 0.5 < self.c <= 1):
            raise InputError(
                f"polynomial needs b > 0 and 0.5 < c <= 1, got b={self.b}, c={self.c}; try b=1000, c=0.55."
            )

    def __call__(self, iteration: Array) -> Array:
        return (1.0 + jnp.asarray(iteration, float) / self.b) ** -self.c


@dataclass(frozen=True)
class cyclical:
    """factor = cos(pi phase / 2)^2 with phase = (t mod period) / period (Zhang et al. 2020, (1 + cos(pi phase)) / 2).

    The first ``exploration`` share of each cycle moves without noise, in search of another mode; its states
    are no draws, and the run does not keep them.
    """

    period: int
    exploration: float = 0.0

    def __post_init__(self) -> None:
        exploration = np.asarray(self.exploration)
        share = not exploration.ndim and exploration.dtype.kind in "fiu" and 0 <= exploration < 1
        if not is_whole(self.period) or self.period < 2 or not share:
            raise InputError(
                "cyclical needs a whole number period >= 2 and 0 <= exploration < 1, "
                f"got {self.period!r} and {self.exploration!r}."
            )

    def phase(self, iteration: Array) -> Array:
        return jnp.asarray(iteration % self.period, float) / self.period

    def __call__(self, iteration: Array) -> Array:
        return jnp.cos(jnp.pi / 2 * self.phase(iteration)) ** 2  # never 0 by rounding, as 1 + cos is

    def temperature(self, iteration: Array) -> Array:
        """0 while exploring, then 1."""
        return jnp.where(self.phase(iteration) < self.exploration, 0.0, 1.0)


def noise_scale(schedule: Schedule, iteration: Array, dtype: Any) -> Any:
    """What multiplies injected noise: 0 while a cyclical schedule explores, else 1."""
    if not isinstance(schedule, cyclical):
        return 1.0
    return schedule.temperature(iteration).astype(dtype)
