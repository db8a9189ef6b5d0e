"""The coordinate-space recipe of Liu, Zhu & Song (2016), Sec. 3.2, specifies the samplers that move in the embedding.

Chart: the upper half sphere of S^2, q -> (q, sqrt(1 - q.q)). It covers a part of the sphere, but laws and steps are
local. The velocity v of a point x is the momentum p = M^T v, M = dx / dq.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fokker
from fokker.recipe import catalogue
from fokker.recipe.catalogue import Phase, Thermostat
from fokker.run.gradients import minibatch
from tests.laws import LAWS
from tests.oracles import STREAMS, normals_given

pytestmark = pytest.mark.usefixtures("x64")

DOME = lambda q: jnp.append(q, jnp.sqrt(1 - q @ q))
FRICTION = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 0.6]])
C, TAU = 0.8, 1.7
basis = jax.jacfwd(DOME)  # (3, 2)
metric = lambda q: basis(q).T @ basis(q)
half_log_det = lambda q: jnp.linalg.slogdet(metric(q))[1] / 2


def log_density(x):
    """By the Hausdorff measure; no symmetry, so that every wrong index shows."""
    return x @ jnp.array([1.5, -0.7, 2.0]) + x[0] * x[1] - x[2] ** 2 * x[0] / 2


def potential(q):
    """By dq: the surface of a patch is sqrt|G| dq."""
    return -log_density(DOME(q)) - half_log_det(q)


SGGMC = catalogue.sggmc(potential, DOME, FRICTION)
GSGNHT = catalogue.gsgnht(potential, DOME, C, TAU)


def states(count=20):
    """Points of the chart with momenta and thermostats, stacked."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(count, 2))
    q *= (0.9 * np.sqrt(rng.uniform(size=(count, 1)))) / np.linalg.norm(q, axis=1, keepdims=True)
    return Thermostat(q, rng.normal(size=(count, 2)), C + rng.normal(size=count))


PHASES = Phase(*states()[:2])


def no_volume_force(z):
    """The drift of SGGMC without its force -grad log|G| / 2."""
    f = SGGMC.drift(z)
    return f._replace(momentum=f.momentum + jax.grad(half_log_det)(z.position))


def counts_the_entries(z):
    """The drift of gSGNHT that compares |v|^2 with n = 3 instead of m = 2."""
    p, f = z.momentum, GSGNHT.drift(z)
    return f._replace(xi=(p @ jnp.linalg.solve(metric(z.position), p) / 3 - 1) / TAU)


@pytest.mark.parametrize(
    "recipe, drift, points, residual",
    [
        (SGGMC, SGGMC.drift, PHASES, 0),
        (GSGNHT, GSGNHT.drift, states(), 0),
        pytest.param(SGGMC, no_volume_force, PHASES, 0.3, marks=pytest.mark.slow),
        pytest.param(GSGNHT, counts_the_entries, states(), 0.3, marks=pytest.mark.slow),
    ],
    ids=["sggmc", "gsgnht", "no volume force", "n for m"],
)
def test_the_recipe_of_the_paper_is_right_and_its_neighbours_are_not(recipe, drift, points, residual):
    found = fokker.check(drift, recipe.D, recipe.H, points=points)
    assert found.ok == (not residual)
    assert found.absolute >= residual
    if found.ok:
        assert found.residual < 1e-13 and not found.reversible


# --- one step in the embedding, seen in the chart ---------------------------------------------------------------------

Q0, P0, XI0 = np.array([0.3, -0.5]), np.array([0.9, -0.4]), 1.3
ROOT3 = np.sqrt(3.0)
KERNELS = {
    "sggmc": (lambda eps: fokker.sggmc(eps, FRICTION), SGGMC),
    "sggmc, baoab": (lambda eps: fokker.sggmc(eps, C, "baoab"), catalogue.sggmc(potential, DOME, C)),
    "gsgnht": (lambda eps: fokker.gsgnht(eps, C, inertia=TAU), GSGNHT),
}


@pytest.mark.parametrize("name", ["sggmc", "gsgnht", pytest.param("sggmc, baoab", marks=pytest.mark.slow)])
def test_one_step_in_the_embedding_has_the_drift_and_the_diffusion_of_the_recipe(name):
    """Mean and covariance over the step's normals, by the rule of Gauss that is exact for cubic polynomials."""
    kernel, recipe = KERNELS[name]
    target = fokker.Target(log_density, None, space=fokker.Sphere(3))
    x, v = DOME(Q0), basis(Q0) @ np.linalg.solve(metric(Q0), P0)
    z = (Q0, P0) + ((XI0,) if "gsgnht" in name else ())

    @jax.jit
    def mean_and_covariance(eps):
        bound = kernel(eps).bind(target, minibatch())
        state = bound.init(x, jax.random.key(0))._replace(velocity=v)
        state = state._replace(xi=jnp.asarray(XI0)) if "gsgnht" in name else state

        def seen(normals):
            with normals_given(jnp.zeros((STREAMS, 3)).at[0].set(normals)):
                after = bound.step(jax.random.key(0), state)[0]
            q = after.point[:2]
            parts = [q, basis(q).T @ after.velocity] + ([after.xi[None]] if "gsgnht" in name else [])
            return jnp.concatenate(parts)

        at = jax.vmap(seen)(ROOT3 * jnp.concatenate([jnp.zeros((1, 3)), jnp.eye(3), -jnp.eye(3)]))
        weights = jnp.array([0.0] + [1 / 6] * 6)  # 1 - n / 3 in the middle, n = 3
        mean = weights @ at
        return (mean - jnp.hstack(z)) / eps, ((at - mean).T * weights) @ (at - mean) / eps

    whole, half = mean_and_covariance(2e-4), mean_and_covariance(1e-4)
    drift, diffusion = (2 * b - a for a, b in zip(whole, half, strict=True))  # in the limit, error of order eps^2
    z = (Phase if len(z) == 2 else Thermostat)(*(jnp.asarray(a) for a in z))
    assert_allclose(drift, np.hstack(jax.tree.leaves(recipe.drift(z))), atol=2e-6)
    assert_allclose(diffusion, 2 * recipe.matrices(z)[0], atol=2e-6)


def test_every_sampler_by_minibatches_is_here():
    named = {law.kernel for law in LAWS if law.folder == "geodesic" and law.recipe}
    assert named == {"sggmc", "gsgnht"} == {name.split(",")[0] for name in KERNELS}
