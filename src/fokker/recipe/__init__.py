"""The recipe of Ma, Chen & Fox (2015), "A Complete Recipe for Stochastic Gradient MCMC".

Samplers from (H, D, Q), the check of a sampler written by hand, the curl behind one, and known methods as
their (H, D, Q). `fokker.Recipe`, `fokker.check` and `fokker.recover_curl` are these.
"""

from fokker.recipe import catalogue
from fokker.recipe.check import CheckResult, check
from fokker.recipe.recipe import Recipe, StepInfo
from fokker.recipe.recover import Curl, Grid, recover_curl

__all__ = ["CheckResult", "Curl", "Grid", "Recipe", "StepInfo", "catalogue", "check", "recover_curl"]
