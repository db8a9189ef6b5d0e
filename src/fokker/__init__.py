"""Posterior sampling at minibatch cost, on the space the parameters live on.

The names below are imported at their first use, so that `import fokker` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fokker import errors

__version__ = "0.1.0"

_MODULES = ("vmf",)  # modules that are public under their own name, beside errors

# Public name -> module that defines it. The imports at the end tell the same to type checkers and editors
# (tests/test_package.py holds the two together).
_EXPORTS = {
    "array_source": "fokker.data.sources",
    "arrow_source": "fokker.data.sources",
    "IteratorSource": "fokker.data.sources",
    "parquet_source": "fokker.data.sources",
    "zarr_source": "fokker.data.sources",
    "chmc": "fokker.geodesic.chmc",
    "gmc": "fokker.geodesic.gmc",
    "gsgnht": "fokker.geodesic.gsgnht",
    "sggmc": "fokker.geodesic.sggmc",
    "glm": "fokker.linear_models",
    "Ball": "fokker.manifolds.constrained",
    "Box": "fokker.manifolds.constrained",
    "HalfSpace": "fokker.manifolds.constrained",
    "Positive": "fokker.manifolds.constrained",
    "Euclidean": "fokker.manifolds.euclidean",
    "Grassmann": "fokker.manifolds.grassmann",
    "Hyperboloid": "fokker.manifolds.hyperboloid",
    "Implicit": "fokker.manifolds.implicit",
    "Oblique": "fokker.manifolds.oblique",
    "random_params": "fokker.manifolds.product",
    "Simplex": "fokker.manifolds.simplex",
    "Sphere": "fokker.manifolds.sphere",
    "Orthogonal": "fokker.manifolds.stiefel",
    "Stiefel": "fokker.manifolds.stiefel",
    "check": "fokker.recipe.check",
    "Recipe": "fokker.recipe.recipe",
    "Grid": "fokker.recipe.recover",
    "recover_curl": "fokker.recipe.recover",
    "control_variates": "fokker.run.gradients",
    "minibatch": "fokker.run.gradients",
    "svrg": "fokker.run.gradients",
    "find_mode": "fokker.run.mode",
    "Run": "fokker.run.result",
    "open": "fokker.run.sample",
    "resume": "fokker.run.sample",
    "sample": "fokker.run.sample",
    "hmc": "fokker.sgmcmc.hmc",
    "level_set": "fokker.sgmcmc.metrics",
    "psgld": "fokker.sgmcmc.psgld",
    "rmhmc": "fokker.sgmcmc.rmhmc",
    "rmld": "fokker.sgmcmc.rmld",
    "cyclical": "fokker.sgmcmc.schedules",
    "polynomial": "fokker.sgmcmc.schedules",
    "sgfs": "fokker.sgmcmc.sgfs",
    "sghmc": "fokker.sgmcmc.sghmc",
    "sgld": "fokker.sgmcmc.sgld",
    "sgnht": "fokker.sgmcmc.sgnht",
    "sgrhmc": "fokker.sgmcmc.sgrhmc",
    "sgrld": "fokker.sgmcmc.sgrld",
    "per_row": "fokker.target",
    "Target": "fokker.target",
}

__all__ = ["errors", *_MODULES, *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fokker.{name}")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fokker' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if TYPE_CHECKING:
    from fokker import vmf as vmf
    from fokker.data.sources import IteratorSource as IteratorSource
    from fokker.data.sources import array_source as array_source
    from fokker.data.sources import arrow_source as arrow_source
    from fokker.data.sources import parquet_source as parquet_source
    from fokker.data.sources import zarr_source as zarr_source
    from fokker.geodesic.chmc import chmc as chmc
    from fokker.geodesic.gmc import gmc as gmc
    from fokker.geodesic.gsgnht import gsgnht as gsgnht
    from fokker.geodesic.sggmc import sggmc as sggmc
    from fokker.linear_models import glm as glm
    from fokker.manifolds.constrained import Ball as Ball
    from fokker.manifolds.constrained import Box as Box
    from fokker.manifolds.constrained import HalfSpace as HalfSpace
    from fokker.manifolds.constrained import Positive as Positive
    from fokker.manifolds.euclidean import Euclidean as Euclidean
    from fokker.manifolds.grassmann import Grassmann as Grassmann
    from fokker.manifolds.hyperboloid import Hyperboloid as Hyperboloid
    from fokker.manifolds.implicit import Implicit as Implicit
    from fokker.manifolds.oblique import Oblique as Oblique
    from fokker.manifolds.product import random_params as random_params
    from fokker.manifolds.simplex import Simplex as Simplex
    from fokker.manifolds.sphere import Sphere as Sphere
    from fokker.manifolds.stiefel import Orthogonal as Orthogonal
    from fokker.manifolds.stiefel import Stiefel as Stiefel
    from fokker.recipe.check import check as check
    from fokker.recipe.recipe import Recipe as Recipe
    from fokker.recipe.recover import Grid as Grid
    from fokker.recipe.recover import recover_curl as recover_curl
    from fokker.run.gradients import control_variates as control_variates
    from fokker.run.gradients import minibatch as minibatch
    from fokker.run.gradients import svrg as svrg
    from fokker.run.mode import find_mode as find_mode
    from fokker.run.result import Run as Run
    from fokker.run.sample import open as open
    from fokker.run.sample import resume as resume
    from fokker.run.sample import sample as sample
    from fokker.sgmcmc.hmc import hmc as hmc
    from fokker.sgmcmc.metrics import level_set as level_set
    from fokker.sgmcmc.psgld import psgld as psgld
    from fokker.sgmcmc.rmhmc import rmhmc as rmhmc
    from fokker.sgmcmc.rmld import rmld as rmld
    from fokker.sgmcmc.schedules import cyclical as cyclical
    from fokker.sgmcmc.schedules import polynomial as polynomial
    from fokker.sgmcmc.sgfs import sgfs as sgfs
    from fokker.sgmcmc.sghmc import sghmc as sghmc
    from fokker.sgmcmc.sgld import sgld as sgld
    from fokker.sgmcmc.sgnht import sgnht as sgnht
    from fokker.sgmcmc.sgrhmc import sgrhmc as sgrhmc
    from fokker.sgmcmc.sgrld import sgrld as sgrld
    from fokker.target import Target as Target
    from fokker.target import per_row as per_row
