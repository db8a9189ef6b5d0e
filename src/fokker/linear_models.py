"""Generalised linear models as ready targets, with the gradient X^T score(X beta) in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from fokker.errors import InputError
from fokker.target import Linear, Target

if TYPE_CHECKING:
    from jax import Array

Family = Literal["bernoulli", "poisson", "gaussian"]


def glm(
    X: Any,
    y: Any,
    family: Family = "bernoulli",
    *,
    prior_scale: float = 10.0,
    noise_scale: float = 1.0,
    intercept: bool = True,
    names: Sequence[str] | None = None,
) -> Target:
    """Regression of y (N,) on X (N, d) with beta ~ Normal(0, prior_scale^2), canonical link.

    ``bernoulli``: y in {0, 1}, logit. ``poisson``: counts, log. ``gaussian``: y ~ Normal(X beta, noise_scale^2).
    ``intercept`` appends a column of ones, whose coefficient is the last entry of beta. Draws are named ``beta``.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    if family not in ("bernoulli", "poisson", "gaussian"):
        raise InputError(f"family must be 'bernoulli', 'poisson' or 'gaussian', got {family!r}.")
    design, response = np.asarray(X), np.asarray(y)
    if design.ndim != 2 or response.shape != design.shape[:1]:
        raise InputError(
            f"glm needs X of shape (N, d) and y of shape (N,), got {design.shape} and {response.shape}; "
            "reshape y with y.ravel() if it is a column."
        )
    for name, array in (("X", design), ("y", response)):
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name} must hold real numbers, got dtype {array.dtype}; encode words and categories.")
    if family == "bernoulli" and not np.isin(response, (0, 1)).all():
        raise InputError(f"family='bernoulli' needs y in {{0, 1}}, got values {np.unique(response)[:5].tolist()}.")
    counts = (response >= 0) & (response == np.floor(response))
    if family == "poisson" and not counts.all():
        raise InputError(f"family='poisson' needs counts y >= 0, whole numbers, got {response[~counts][0]}.")
    for scale in (prior_scale, noise_scale):
        if np.ndim(scale) or np.asarray(scale).dtype.kind not in "fiu" or not scale > 0:
            raise InputError(f"prior_scale and noise_scale must be > 0, got {prior_scale!r} and {noise_scale!r}.")
    if names is None:  # a data frame knows them
        names = [str(name) for name in getattr(X, "columns", [f"x{i}" for i in range(design.shape[1])])]
    labels = list(names)
    if len(labels) != design.shape[1]:
        raise InputError(f"names has {len(labels)} entries for {design.shape[1]} columns of X.")
    if intercept:
        design = np.concatenate([design, np.ones((len(design), 1), design.dtype)], axis=1)
        labels.append("intercept")
    if not np.issubdtype(design.dtype, np.floating):
        design = design.astype(np.float32)
    data = {"X": design, "y": response.astype(design.dtype)}

    def log_rows(eta: Array, y: Array) -> Array:
        if family == "bernoulli":
            return y * eta - jax.nn.softplus(eta)
        if family == "poisson":
            return y * eta - jnp.exp(eta) - jax.scipy.special.gammaln(y + 1)
        return -0.5 * ((y - eta) / noise_scale) ** 2

    def score(eta: Array, batch: Any) -> Array:
        if family == "bernoulli":
            return batch["y"] - jax.nn.sigmoid(eta)
        if family == "poisson":
            return batch["y"] - jnp.exp(eta)
        return (batch["y"] - eta) / noise_scale**2

    return Target(
        log_prior=lambda params: -0.5 * jnp.sum((params["beta"] / prior_scale) ** 2),
        log_likelihood=lambda params, batch: log_rows(batch["X"] @ params["beta"], batch["y"]),
        data=data,
        start={"beta": np.zeros(design.shape[1], design.dtype)},
        labels={"beta": labels},
        linear=Linear(design=lambda batch: batch["X"], score=score),
    )
