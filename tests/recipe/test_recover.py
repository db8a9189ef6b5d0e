"""Theorem 2: from a drift and a density back to a curl; and an honest refusal where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from fokker.errors import InputError
from fokker.recipe import Grid, Recipe, recover_curl

pytestmark = pytest.mark.usefixtures("x64")

SKEW = np.array([[0.0, -1.0], [1.0, 0.0]])
BOX = Grid((-8.0, -8.0), (8.0, 8.0), 256)


def H2(z):
    return z @ z / 2 + 0.3 * z[0] * z[1] + 0.1 * jnp.sin(1.3 * z[0])


def D2(z):
    off = 0.2 * jnp.cos(z[0])
    return jnp.array([[1 + 0.3 * jnp.sin(z[1]), off], [off, 0.8 + 0.1 * z[0] ** 2 / (1 + z[0] ** 2)]])


def Q21(z):
    return 1 + 0.5 * jnp.cos(z[0] - z[1])


TRUE = Recipe(H2, D2, lambda z: SKEW * Q21(z))
log_p2 = lambda z: -H2(z)


@pytest.fixture(scope="module")
def curl():
    with jax.enable_x64(True):
        return recover_curl(TRUE.drift, D2, log_p2, BOX)


def test_two_dimensional_round_trip(curl):
    true = np.asarray(Q21(curl.grid.mesh))
    assert curl.inside.mean() > 0.1  # the comparison is not an empty one
    assert np.abs(curl.Q[1, 0] - true)[curl.inside].max() < 1e-6
    assert np.array_equal(curl.inside, np.isfinite(curl.Q[0, 1]))
    assert_allclose(curl.Qp, -np.swapaxes(curl.Qp, 0, 1))
    assert not curl.Qp[0, 0].any()
    assert curl.residual < 1e-9
    assert not curl.reversible
    assert "divergence residual" in str(curl)


@pytest.mark.slow
def test_the_recovered_recipe_has_the_drift_it_was_recovered_from(curl):
    recipe = Recipe(H2, D2, curl.matrix)
    z = np.random.default_rng(0).normal(size=(6, 2))  # between the points of the grid
    assert_allclose(jax.vmap(recipe.drift)(z), jax.vmap(TRUE.drift)(z), atol=1e-6)


def test_the_integral_agrees_with_the_construction_and_its_error_is_of_order_four(curl):
    by_integral = recover_curl(TRUE.drift, D2, log_p2, BOX, method="integral")
    error = np.nanmax(np.abs(by_integral.Q - curl.Q))
    assert error < 1e-3
    coarse = recover_curl(TRUE.drift, D2, log_p2, Grid((-8.0, -8.0), (8.0, 8.0), 128), method="integral")
    assert 8 < np.nanmax(np.abs(coarse.Q - curl.Q[:, :, ::2, ::2])) / error < 32
    # The second line of (S.11), by the trapezium rule: Q21 = + int F_2 dz_1 / p.
    p, F = curl.density, curl.current
    dz = 16 / 256
    second = (np.cumsum(F[1], axis=0) - F[1] / 2) * dz / np.where(curl.inside, p, np.nan)
    assert np.nanmax(np.abs(second - curl.Q[1, 0])) < 0.01
    assert np.nanmax(np.abs(-second - curl.Q[1, 0])) > 2  # the sign of print


def test_three_dimensions_are_recovered_up_to_what_has_no_divergence():
    H = lambda z: z @ z / 2 + 0.2 * z[0] * z[1]

    def Q(z):
        a, b, c = 1 + 0.3 * jnp.sin(z[2]), 0.5 * jnp.cos(z[1]), 0.7
        return jnp.array([[0, a, b], [-a, 0, c], [-b, -c, 0]])

    D = np.diag([1.0, 0.5, 0.0])
    true = Recipe(H, D, Q)
    curl = recover_curl(true.drift, D, lambda z: -H(z), Grid((-6.6,) * 3, (6.6,) * 3, 48))
    assert curl.residual < 1e-6
    assert_allclose(curl.Qp, -np.swapaxes(curl.Qp, 0, 1), atol=1e-15)
    # Another Q than the one it was made of, with the same drift.
    here = np.array([0.3, -0.4, 0.2])
    assert np.abs(curl.matrix(here) - Q(here)).max() > 0.05
    assert_allclose(Recipe(H, D, curl.matrix).drift(here), true.drift(here), atol=1e-5)


def test_a_reversible_diffusion_has_no_curl():
    for n, points in ((1, 128), (2, 64)):
        H = lambda z: (z**2).sum() / 2 + (z**4).sum() / 20
        D = lambda z: jnp.diag(1 + z**2)
        recipe = Recipe(H, D, np.zeros((n, n)))
        curl = recover_curl(recipe.drift, D, lambda z, H=H: -H(z), Grid((-6.0,) * n, (6.0,) * n, points))
        assert curl.reversible
        assert not np.nan_to_num(curl.Q).any()
        assert curl.residual == 0
        assert "reversible" in str(curl)


def test_a_current_on_the_torus_that_does_not_wind_is_recovered():
    H = lambda z: 0.5 * jnp.cos(z[0]) + 0.3 * jnp.sin(z[0] + z[1])
    q = lambda z: jnp.sin(z[1])
    recipe = Recipe(H, np.eye(2), lambda z: SKEW * q(z))
    grid = Grid((0.0, 0.0), (2 * np.pi, 2 * np.pi), 64, periodic=True)
    curl = recover_curl(recipe.drift, np.eye(2), lambda z: -H(z), grid)
    assert curl.residual < 1e-10
    # One constant stays open on the torus: it is the mean that is set to zero.
    open_constant = curl.Qp[1, 0] - np.asarray(q(grid.mesh)) * curl.density
    assert np.ptp(open_constant) < 1e-10
    assert abs(curl.Qp.mean()) < 1e-15


# Where there is no Q, or none that the grid can hold.


def test_a_drift_that_does_not_keep_the_density_is_refused():
    without_gamma = lambda z: -(D2(z) + SKEW * Q21(z)) @ jax.grad(H2)(z)
    with pytest.raises(InputError, match="does not leave the density invariant"):
        recover_curl(without_gamma, D2, log_p2, BOX)
    slightly = lambda z: TRUE.drift(z) + 1e-5 * jnp.array([z[1] ** 2, z[0]])
    with pytest.raises(InputError, match="has a source"):
        recover_curl(slightly, D2, log_p2, BOX)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid((-8.0, -3.0), (8.0, 8.0), 128), r"too small: at its lower face, z_2 = -3, the density"),
        (Grid((-8.0, -8.0), (4.0, 8.0), 128), r"too small: at its upper face, z_1 = 4, the density"),
        (Grid((-8.0, -8.0), (8.0, 8.0), 16), "too coarse"),
        (Grid((-8.0, -8.0), (8.0, 8.0), 64, periodic=True), "said to be periodic"),
    ],
)
def test_a_grid_that_cannot_hold_the_answer_is_refused(grid, message):
    with pytest.raises(InputError, match=message):
        recover_curl(TRUE.drift, D2, log_p2, grid)


def test_a_current_that_winds_around_the_torus_is_refused():
    flat = lambda z: 0.0 * z[0]
    for n in (1, 2):
        grid = Grid((0.0,) * n, (1.0,) * n, 16, periodic=True)
        with pytest.raises(InputError, match="winds around the"):
            recover_curl(lambda z: jnp.ones_like(z), np.eye(n), flat, grid)


def test_a_drift_that_carries_a_current_to_infinity_is_refused():
    # On the line f = -H' + c / p keeps the density pointwise, yet its current does not decay.
    H = lambda z: z[0] ** 2 / 2
    explosive = lambda z: -z + 0.3 * jnp.exp(H(z))
    with pytest.raises(InputError, match="the current is still"):
        recover_curl(explosive, np.eye(1), lambda z: -H(z), Grid(-7.0, 7.0, 128))


def test_a_current_in_one_dimension_is_refused_however_weak():
    with pytest.raises(InputError, match="the only skew Q is 0"):
        recover_curl(lambda z: -(1 + 1e-10) * z, np.eye(1), lambda z: -(z[0] ** 2) / 2, Grid(-7.0, 7.0, 128))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Grid((0.0,) * 4, (1.0,) * 4, 16), "1, 2 or 3 axes"),
        (lambda: Grid((0.0, 0.0), (1.0,), 16), "1, 2 or 3 axes"),
        (lambda: Grid((0.0, 1.0), (1.0, 1.0), 16), "lower < upper"),
        (lambda: Grid((0.0, 0.0), (1.0, 1.0), 4), "8 points or more"),
        (lambda: Grid((0.0, 0.0), (1.0, 1.0), (16, 16, 16)), "8 points or more"),
        (lambda: recover_curl(TRUE.drift, D2, log_p2, BOX, method="guess"), "'fourier' or 'integral'"),
        (lambda: recover_curl(TRUE.drift, D2, log_p2, Grid(-1.0, 1.0, 16), method="integral"), "two dimensions"),
        (lambda: recover_curl(TRUE.drift, D2, log_p2, BOX, floor=0.0), "the floor"),
        (lambda: recover_curl(TRUE.drift, -np.eye(2), log_p2, BOX), "positive semidefinite"),
        (lambda: recover_curl(TRUE.drift, D2, lambda z: jnp.log(z[0]), BOX), "not finite"),
    ],
)
def test_unusable_arguments_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
