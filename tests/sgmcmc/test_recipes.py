"""As the step goes to zero, a step of every fast kernel has the drift and the diffusion of its recipe.

Mean and noise are read off exactly: the standard normals of a step are replaced, at zero for the mean and by their
derivative for the noise. (z+ - z) / eps and F F^T / eps are taken at eps and eps / 2 and extrapolated, which leaves an
error of order eps^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fokker.recipe import catalogue
from fokker.recipe.catalogue import Phase, Thermostat
from fokker.recipe.recipe import Recipe
from fokker.run.gradients import minibatch
from fokker.sgmcmc.hmc import Phase as Point
from fokker.sgmcmc.hmc import leapfrog
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.rmhmc import System, generalised_leapfrog, solve_fixed_point
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.sgmcmc.sgrhmc import sgrhmc
from fokker.sgmcmc.sgrld import sgrld
from fokker.target import Target
from tests.laws import LAWS
from tests.oracles import STREAMS, normals_given

vector = lambda p: jnp.concatenate([p["a"], p["b"][None]])
MATRIX = np.array([[1.5, 0.4, 0.1], [0.4, 0.8, -0.2], [0.1, -0.2, 1.2]])
DIAGONAL = np.array([0.7, 1.9, 1.1])


def potential(p):
    """No product, no symmetry: every wrong index shows."""
    x = vector(p)
    return x @ MATRIX @ x / 2 + x[0] ** 4 / 8 + x[0] * x[1] * x[2] / 3 + jnp.cos(x[1] - x[2])


def scalar(p):
    return 0.4 + 0.3 * jnp.sin(vector(p) @ jnp.array([1.0, 2.0, -1.0])) ** 2


def diagonal(p):
    x = vector(p)
    return 1.2 + jnp.sin(x + jnp.roll(x, 1))


def full(p):
    x = vector(p)
    return jnp.diag(1.2 + jnp.sin(x)) + jnp.outer(jnp.cos(x), jnp.cos(x)) / 3


def as_matrix(metric):
    """The metric as the (3, 3) matrix that recipes want."""
    return lambda p: metric(p) if metric(p).ndim == 2 else jnp.diag(jnp.broadcast_to(metric(p), (3,)))


POSITION = {"a": np.array([0.4, -0.7]), "b": np.array(0.3)}
MOMENTUM = np.array([0.9, -0.5, 0.6])


@dataclass(frozen=True)
class Row:
    """A kernel at a step size, and what it should become."""

    name: str
    kernel: Callable[[float], Any]
    recipe: Recipe
    state: dict[str, Any]  # fields of the kernel's state that are not its position or what init gives

    @property
    def method(self) -> str:
        return type(self.kernel(0.1)).__name__


def rows():
    for name, D in (("scalar", 0.7), ("diagonal", DIAGONAL), ("full", MATRIX)):
        yield Row(f"sgld {name}", lambda e, D=D: sgld(e, diffusion=D), catalogue.sgld(potential, D), {})
    # v = square / (1 - decay^2) after two iterations of learning, then frozen
    square = np.array([0.5, 1.0, 2.0])
    frozen = 1 / (0.1 + np.sqrt(square / (1 - 0.9**2)))
    yield Row(
        "psgld",
        lambda e: psgld(e, adapt_steps=2, decay=0.9, damping=0.1),
        catalogue.sgld(potential, frozen),
        {"square": square, "iteration": np.int32(5)},
    )
    for name, B in (("scalar", 0.8), ("full", MATRIX)):
        D = np.linalg.inv(B) / 2 if np.ndim(B) else 1 / B / 2
        kernel = lambda e, B=B: sgfs(e, injected=B, precision=MATRIX)
        yield Row(f"sgfs {name}", kernel, catalogue.sgld(potential, D), {})
    for integrator in ("euler", "symplectic", "aboba", "baoab"):
        for name, C, M in (("scalar", 0.8, 1.4), ("full", MATRIX, MATRIX + np.eye(3))):
            yield Row(
                f"sghmc {integrator} {name}",
                lambda e, i=integrator, C=C, M=M: sghmc(e, friction=C, mass=M, integrator=i),
                catalogue.sghmc(potential, C, M),
                {"momentum": MOMENTUM},
            )
    groups = np.array([0, 1, 0])
    for integrator in ("euler", "symplectic", "aboba"):
        for thermostat, recipe, xi in (
            ("all", catalogue.sgnht(potential, 0.8, inertia=1.7), np.array(1.1)),
            ("each", catalogue.msgnht(potential, 0.8, inertia=1.7), np.array([1.1, 0.4, -0.3])),
            (groups, catalogue.grouped_sgnht(potential, 0.8, tuple(groups), inertia=1.7), np.array([1.1, -0.3])),
        ):
            yield Row(
                f"sgnht {integrator} {thermostat}",
                lambda e, i=integrator, t=thermostat: sgnht(e, 0.8, t, inertia=1.7, integrator=i),
                recipe,
                {"momentum": MOMENTUM, "xi": xi},
            )
    for metric in (scalar, diagonal, full):
        of = as_matrix(metric)
        yield Row(f"sgrld {metric.__name__}", lambda e, m=metric: sgrld(e, m), catalogue.sgrld(potential, of), {})
        for integrator in ("euler", "symplectic"):
            yield Row(
                f"sgrhmc {integrator} {metric.__name__}",
                lambda e, m=metric, i=integrator: sgrhmc(e, m, integrator=i),
                catalogue.gsgrhmc(potential, of),
                {"momentum": MOMENTUM},
            )
    yield Row(
        "sgrhmc constant friction",
        lambda e: sgrhmc(e, full, friction=MATRIX),
        catalogue.adaptive(potential, lambda p: catalogue.symmetric_root(full(p)), MATRIX),
        {"momentum": MOMENTUM},
    )


ROWS = list(rows())
MOVING = ("position", "momentum", "xi")


def extrapolated(f: Callable[[float], Any], eps: float = 2e-4) -> Any:
    """f at step zero from eps and eps / 2."""
    return jax.tree.map(lambda one, two: 2 * np.asarray(two) - np.asarray(one), f(eps), f(eps / 2))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_one_step_has_the_drift_and_the_diffusion_of_the_recipe(row, x64):
    target = Target.from_log_density(lambda p: -potential(p))
    position = jax.tree.map(jnp.asarray, POSITION)
    unravel = ravel_pytree(position)[1]
    key = jax.random.key(0)

    def moving(state):
        return ravel_pytree([getattr(state, name) for name in MOVING if hasattr(state, name)])[0]

    @jax.jit  # a step size may be a traced value
    def drift_and_diffusion(eps):
        bound = row.kernel(eps).bind(target, minibatch())
        state = bound.init(position, key)._replace(**{k: jnp.asarray(v) for k, v in row.state.items()})

        def step(normals):
            with normals_given(normals):
                return moving(bound.step(key, state)[0])

        still = jnp.zeros((STREAMS, 3))
        after, noise = step(still), jax.jacfwd(step)(still).reshape(moving(state).size, -1)
        return (after - moving(state)) / eps, noise @ noise.T / eps

    drift, diffusion = extrapolated(drift_and_diffusion)
    z = position
    if "momentum" in row.state:
        z = Phase(position, unravel(jnp.asarray(MOMENTUM)))
    if "xi" in row.state:
        z = Thermostat(*z, jnp.asarray(row.state["xi"]))
    f, D = jax.jit(lambda z: (ravel_pytree(row.recipe.drift(z))[0], row.recipe.matrices(z)[0]))(z)
    np.testing.assert_allclose(drift, f, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(diffusion, 2 * D, rtol=1e-6, atol=1e-6)


def test_the_leapfrogs_have_the_drift_of_their_recipes(x64):
    """One step of the maps of HMC and RMHMC, which have no noise."""
    position = jax.tree.map(jnp.asarray, POSITION)
    theta, unravel = ravel_pytree(position)
    r = jnp.asarray(MOMENTUM)
    U = lambda x: potential(unravel(x))
    value_and_grad = jax.value_and_grad(U)
    solve = lambda f, x: solve_fixed_point(f, x, 1e-15, 50, "fixed_point")

    @jax.jit
    def plain(eps):
        start = Point(theta, r, *value_and_grad(theta))
        end = leapfrog(start, value_and_grad, eps, 1, jnp.linalg.inv(jnp.asarray(MATRIX)))
        return jnp.concatenate([end.theta - theta, end.momentum - r]) / eps

    @jax.jit
    def riemannian(eps):
        end = generalised_leapfrog(System(U, lambda x: full(unravel(x))), theta, r, eps, solve)
        return jnp.concatenate([end.theta - theta, end.momentum - r]) / eps

    z = Phase(position, unravel(r))
    metric = lambda p: jnp.linalg.inv(full(p))
    for name, step, recipe in (
        ("hmc", plain, catalogue.hmc(potential, MATRIX)),
        ("rmhmc", riemannian, catalogue.rmhmc(potential, metric)),
    ):
        want = ravel_pytree(jax.jit(recipe.drift)(z))[0]
        np.testing.assert_allclose(extrapolated(step), want, rtol=1e-6, atol=1e-6, err_msg=name)


def test_every_method_of_the_table_of_laws_is_here():
    checked = {row.method for row in ROWS} | {"hmc", "rmhmc"}
    of_recipes = {law.kernel for law in LAWS if law.folder == "sgmcmc"}
    assert checked == of_recipes - {"rmld"}  # rmld proposes with sgrld's step, see its own test
