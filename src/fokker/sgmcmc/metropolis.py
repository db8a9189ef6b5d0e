"""What the kernels with a Metropolis test share: the density of all data, and the test.

They need the whole density, so they see all rows at every step (``full_data``), and a gradient estimator has
nothing to estimate for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fokker.errors import InputError
from fokker.numeric.random_jax import uniform

if TYPE_CHECKING:
    from fokker.target import Target

DIVERGENT = 1000.0  # an energy error beyond this comes from an unstable trajectory


class Verdict(NamedTuple):
    """The outcome of a Metropolis test."""

    accepted: Array  # () bool
    probability: Array  # () of acceptance
    diverging: Array  # () bool: not finite, or an energy error beyond 1000


def check_full_data(method: str, gradient: Any) -> None:
    """Only the plain gradient, or none, may be given to a kernel that uses none."""
    from fokker.run.gradients import minibatch

    if gradient is not None and not (isinstance(gradient, minibatch) and gradient.noise == "none"):
        raise InputError(
            f"{method} accepts or rejects by the density of all data and cannot use gradient={gradient!r}; "
            "leave gradient out, or take a kernel for minibatches such as sgld."
        )


def potential_of(target: Target, batch: Any, unravel: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """U(theta) of the rows in ``batch``, which are all rows; None takes those of the target."""
    if batch is None and hasattr(target.data, "rows"):
        raise InputError("the data are a source on disk: pass all rows as the batch, or keep them in memory.")
    return lambda theta: -target.log_density(unravel(theta), batch)


def metropolis(key: Any, energy: Array, proposed_energy: Array, stream: int) -> Verdict:
    """Accept with probability min(1, exp(energy - proposed_energy)); what is not finite is rejected."""
    error = proposed_energy - energy
    sound = jnp.isfinite(proposed_energy) & ~jnp.isnan(error)
    probability = jnp.where(sound, jnp.exp(-jnp.maximum(error, 0.0)), 0.0)
    # uniforms are in (0, 1]: probability 1 always accepts, and probability 0 never
    accepted = uniform(key, (), stream, energy.dtype) <= probability
    return Verdict(accepted, probability, ~sound | (error > DIVERGENT))


def keep(accepted: Array, proposed: Any, current: Any) -> Any:
    """The proposed pytree if accepted, else the current one."""
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, current)
