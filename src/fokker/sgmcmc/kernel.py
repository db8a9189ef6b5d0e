"""The seam between a method, the gradient it uses and the loop that runs it (docs/adr/0002)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from jax import Array

    from fokker.target import Target


class BoundGradient(NamedTuple):
    """A gradient estimator that knows its target."""

    init: Callable[[Any], Any]  # position -> aux
    estimate: Callable[[Any, Any, Any, Any], tuple[Array, Any, Any]]  # key, position, batch, aux -> grad_u, noise, aux
    refresh: Callable[[Any, Any], Any] | None = None  # position, aux -> aux, after a pass over all data
    refresh_every: int | None = None


class Gradient(Protocol):
    """How a batch becomes a gradient, and what is known of its noise. Settings only."""

    @property
    def noise(self) -> str: ...  # the form of its noise estimate, "none" if it has none

    def bind(self, target: Target) -> BoundGradient: ...


class Bound(NamedTuple):
    """A method ready to run; the shape of a BlackJAX sampling algorithm, with the batch as a third argument."""

    init: Callable[..., Any]  # position, key -> state
    step: Callable[..., tuple[Any, Any]]  # key, state, batch=None -> state, info
    observe: Callable[[Any], Any] | None = None  # state -> what to keep beside a draw; None: keep the step's info


class Kernel(Protocol):
    """A method's settings: a frozen dataclass. ``state.position`` is the pytree of parameters."""

    def bind(self, target: Target, gradient: Gradient) -> Bound: ...
