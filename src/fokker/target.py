"""What is sampled: a log density, as a prior and one log-likelihood term per row of data, or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fokker.errors import InputError

if TYPE_CHECKING:
    from jax import Array

Params = Any  # a pytree of arrays
Batch = Any  # a pytree of arrays with one leading axis of rows


class Linear(NamedTuple):
    """A likelihood that sees the parameters through eta = X theta only: its gradient is X^T score(eta)."""

    design: Callable[[Batch], Array]  # batch -> (n, d)
    score: Callable[[Array, Batch], Array]  # eta (n,), batch -> d log p(row) / d eta, (n,)


@dataclass(frozen=True)
class Target:
    """A posterior with exchangeable rows: exp(log_prior(params) + sum over rows of log_likelihood(params, rows)).

    log_prior(params) -> scalar. log_likelihood(params, batch) -> (n,), one number per row of the batch; scaling by
    N / n, control variates and noise estimates need nothing else. ``data`` is a pytree of arrays that share a leading
    axis of N rows (NumPy, JAX, ``numpy.memmap``), or a source from ``fokker.data``. ``space`` says where the parameters
    live, a manifold or a pytree of them: {"w": fokker.Simplex(3)}; what it leaves out is Euclidean. ``start`` is a
    point to begin from, when the target knows one. ``labels`` names coordinates: {"beta": ["age", "income"]}.

    Use ``Target.from_log_density(f)`` for a density without rows, and ``per_row(f)`` for a one-datum function.
    """

    log_prior: Callable[[Params], Array]
    log_likelihood: Callable[[Params, Batch], Array] | None
    data: Any = None
    space: Any = None
    start: Params | None = None
    labels: Mapping[str, Sequence[str]] | None = None
    linear: Linear | None = None
    unravel: Callable[[Array], Params] | None = None  # set by ``ravelled``: vector -> the params the user knows

    def __post_init__(self) -> None:
        for name in ("log_prior", "log_likelihood"):
            f = getattr(self, name)
            if not callable(f) and not (name == "log_likelihood" and f is None):
                raise InputError(f"{name} must be a function, got {type(f).__name__}.")
        if self.log_likelihood is not None and self.data is None:
            raise InputError(
                "log_likelihood was given without data; pass data=..., or use "
                "Target.from_log_density(f) for a density that has no rows."
            )

    @classmethod
    def from_log_density(
        cls,
        log_density: Callable[[Params], Array],
        start: Params | None = None,
        space: Any = None,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> Target:
        """A target without rows: kernels see its full gradient every step."""
        return cls(log_density, None, space=space, start=start, labels=labels)

    def log_density(self, params: Params, data: Batch | None = None) -> Array:
        """The log density up to a constant, with the likelihood of all rows of ``data``; a scalar."""
        value = self.log_prior(params)
        if self.log_likelihood is None:
            return value
        return value + self.log_likelihood(params, self.data if data is None else data).sum()

    def ravelled(self, unravel: Callable[[Array], Params]) -> Target:
        """The same target on the vectors that ``unravel`` maps to params."""
        prior, likelihood = self.log_prior, self.log_likelihood
        return replace(
            self,
            log_prior=lambda theta: _floating(prior(unravel(theta)), theta.dtype),
            log_likelihood=None if likelihood is None else lambda theta, batch: likelihood(unravel(theta), batch),
            start=None,
            labels=None,
            unravel=unravel,
        )

    def params(self, position: Params) -> Params:
        """The parameters as the user wrote them, from a position as kernels see it: what a user's metric is given."""
        return position if self.unravel is None else self.unravel(position)


def _floating(value: Any, dtype: Any) -> Any:
    """Integers as floating numbers: a flat prior is written as ``lambda params: 0``, and its gradient is 0."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype if jnp.result_type(leaf).kind in "iu" else None), value)


def per_row(log_likelihood: Callable[[Params, Any], Array]) -> Callable[[Params, Batch], Array]:
    """One-datum function f(params, row) -> scalar made into f(params, batch) -> (n,)."""

    def rows(params: Params, batch: Batch) -> Array:
        import jax

        return jax.vmap(log_likelihood, in_axes=(None, 0))(params, batch)

    return rows
