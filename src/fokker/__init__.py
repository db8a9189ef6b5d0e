"""Posterior sampling at minibatch cost, on the space the parameters live on.

The names below are imported at their first use, so that `import fokker` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fokker import errors

__version__ = "0.1.0"

# Public name -> module that defines it. The imports at the end tell the same to type checkers and editors
# (tests/test_package.py holds the two together).
_EXPORTS = {
    "Recipe": "fokker.recipe.recipe",
    "check": "fokker.recipe.check",
    "recover_curl": "fokker.recipe.recover",
}

__all__ = ["errors", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fokker' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if TYPE_CHECKING:
    from fokker.recipe.check import check as check
    from fokker.recipe.recipe import Recipe as Recipe
    from fokker.recipe.recover import recover_curl as recover_curl
