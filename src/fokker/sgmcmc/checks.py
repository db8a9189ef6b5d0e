"""What every method asks of its settings, checked where a user gives them. Traced values pass: a tuner varies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fokker.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def _traced(value: Any) -> bool:
    import jax

    return isinstance(value, jax.core.Tracer)


def _as_numbers(name: str, value: Any, needed: str) -> np.ndarray:
    """The value as an array of finite numbers."""
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise InputError(f"{name} must be {needed} and finite, got {value!r}.")
    return array


def check_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """A number or an array of numbers > 0 (>= 0 with ``zero``), or None."""
    if value is None or _traced(value):
        return
    needed = ">= 0" if zero else "> 0"
    array = _as_numbers(name, value, needed)
    if (array < 0).any() or (not zero and (array == 0).any()):
        raise InputError(f"{name} must be {needed} and finite, got {value!r}.")


def check_number(name: str, value: Any, *, below: float | None = None, optional: bool = False) -> None:
    """One number > 0 (and less than ``below``), or None where that is optional."""
    import numpy as np

    check_given(name, value, optional=optional)
    check_positive(name, value)
    if value is None or _traced(value):
        return
    if np.ndim(value):
        raise InputError(
            f"{name} must be a single number, got an array of shape {np.shape(value)}; what differs by coordinate is "
            "given as mass, friction or diffusion."
        )
    if below is not None and not value < below:
        raise InputError(f"{name} must be below {below}, got {value!r}; try {0.99 * below}.")


def check_given(name: str, value: Any, *, optional: bool = False) -> None:
    """Not None, unless that is optional."""
    if value is None and not optional:
        raise InputError(f"{name} must be > 0, got None; leave it out for its default.")


def check_count(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """A whole number >= least, or None where that is optional."""
    if _traced(value) or (optional and value is None):
        return
    if not is_whole(value) or value < least:
        raise InputError(f"{name} must be >= {least}, a whole number{' or None' if optional else ''}; got {value!r}.")


def is_whole(value: Any) -> bool:
    """An integer of Python or NumPy; True and False are none."""
    import numpy as np

    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_schedule(value: Any) -> None:
    """A function of the iteration."""
    if isinstance(value, type):
        raise InputError(f"schedule is the class {value.__name__}; give one of its own: fokker.{value.__name__}(...).")
    if not callable(value):
        raise InputError(
            f"schedule must be a function iteration -> factor of the step, got {value!r}; try "
            "fokker.cyclical(period=1000), and for a smaller step step_size."
        )


def check_shape(name: str, value: Any, d: int, of: str = "the parameters") -> None:
    """A number, a (d,) diagonal or a (d, d) matrix, for the d entries of something."""
    import numpy as np

    shape = np.shape(value)
    if shape not in ((), (d,), (d, d)):
        raise InputError(
            f"{name} must be a number, a ({d},) diagonal or a ({d}, {d}) matrix for the entries of {of}, in their "
            f"ravelled order; got shape {shape}."
        )


def check_positive_definite(name: str, value: Any, *, optional: bool = False) -> None:
    """A positive number, a (d,) array of them or a symmetric positive definite (d, d) matrix; None where optional."""
    import numpy as np

    check_given(name, value, optional=optional)
    if value is None or _traced(value):
        return
    array = _as_numbers(name, value, "> 0")
    if array.ndim < 2:
        return check_positive(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(f"{name} must be a number, a (d,) diagonal or a (d, d) matrix, got shape {array.shape}.")
    if not np.allclose(array, array.T, rtol=1e-6, atol=1e-12):
        raise InputError(f"{name} must be symmetric; its largest asymmetry is {np.abs(array - array.T).max():.3g}.")
    least = float(np.linalg.eigvalsh(array.astype(float)).min())
    if not least > 0:
        raise InputError(f"{name} must be positive definite, its least eigenvalue is {least:.3g}.")


def check_scales(value: Any) -> None:
    """A number > 0, or a vector of them."""
    import numpy as np

    check_given("scales", value)
    check_positive("scales", value)
    if np.ndim(value) > 1:
        raise InputError(f"scales must be a number or one for each leaf of the parameters; got shape {np.shape(value)}")


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
