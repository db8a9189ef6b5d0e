"""What every method asks of its settings, checked where a user gives them. Traced values pass: a tuner varies them."""

from __future__ import annotations

from typing import Any

from fokker.errors import InputError


def _traced(value: Any) -> bool:
    import jax

    return isinstance(value, jax.core.Tracer)


def check_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """A number or an array of numbers > 0 (>= 0 with ``zero``), or None."""
    import numpy as np

    if value is None or _traced(value):
        return
    array = np.asarray(value)
    numbers = array.dtype.kind in "fiu" and bool(np.isfinite(array).all())
    if not numbers or (array < 0).any() or (not zero and (array == 0).any()):
        raise InputError(f"{name} must be {'>= 0' if zero else '> 0'} and finite, got {value!r}.")


def check_positive_definite(name: str, value: Any) -> None:
    """A positive number, a (d,) array of them, or a symmetric positive definite (d, d) matrix, or None."""
    import numpy as np

    if value is None or _traced(value):
        return
    array = np.asarray(value)
    if array.ndim < 2:
        return check_positive(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(f"{name} must be a number, a (d,) diagonal or a (d, d) matrix, got shape {array.shape}.")
    if not np.allclose(array, array.T, rtol=1e-6, atol=1e-12):
        raise InputError(f"{name} must be symmetric; its largest asymmetry is {np.abs(array - array.T).max():.3g}.")
    least = float(np.linalg.eigvalsh(array.astype(float)).min())
    if not least > 0:
        raise InputError(f"{name} must be positive definite, its least eigenvalue is {least:.3g}.")


def check_step_size(method: str, value: Any) -> None:
    """A kernel that is bound to a target has its step size."""
    if value is None:
        raise InputError(
            f"{method} has no step size; give step_size=..., or let fokker.sample choose one in its warm-up."
        )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """One of the words that a setting knows."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
