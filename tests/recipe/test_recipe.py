"""The laws of `Recipe`: Gamma, the two updates, the noise they inject, and what is refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from fokker.errors import InputError
from fokker.recipe import Recipe, catalogue

EYE = jnp.eye(2)
Z4 = np.array([0.3, -0.8, 0.5, 1.1])


pytestmark = pytest.mark.usefixtures("x64")


def quadratic(z):
    return z @ z / 2


def smooth_D(z):
    """Positive definite, every entry depends on the state; (4,) -> (4, 4)."""
    root = jnp.eye(4) + 0.3 * jnp.sin(jnp.outer(jnp.arange(1.0, 5.0), z)) / 2
    return root @ root.T


def smooth_Q(z):
    """Skew, every entry depends on the state; (4,) -> (4, 4)."""
    a = jnp.cos(jnp.outer(z, jnp.arange(4.0)) + 0.2)
    return a - a.T


def central_difference(f, z, j, h=1e-5):
    e = np.zeros(z.size)
    e[j] = h
    return (np.asarray(f(z + e)) - np.asarray(f(z - e))) / (2 * h)


# Gamma and the drift.


def test_gamma_is_the_divergence_over_the_second_index():
    recipe = Recipe(quadratic, smooth_D, smooth_Q)
    want = sum(central_difference(lambda z: smooth_D(z) + smooth_Q(z), Z4, j)[:, j] for j in range(4))
    assert_allclose(recipe.gamma(jnp.array(Z4)), want, atol=1e-8)


def test_gamma_of_a_larger_state_comes_in_pieces():
    # More entries than are differentiated at once: D = diag(sin z) has Gamma = cos z.
    z = jnp.linspace(0.0, 1.0, 37)
    recipe = Recipe(quadratic, lambda z: jnp.diag(2 + jnp.sin(z)), jnp.zeros((37, 37)))
    assert_allclose(recipe.gamma(z), jnp.cos(z), atol=1e-14)


def test_constant_matrices_have_no_gamma():
    assert not np.any(Recipe(quadratic, EYE, jnp.array([[0.0, -1.0], [1.0, 0.0]])).gamma(jnp.ones(2)))


def test_drift_adds_gamma_in_one_dimension():
    # f = -D U' + D', the drift whose stationary density is exp(-U); print subtracts D'.
    recipe = Recipe(lambda z: z[0] ** 4 / 4, lambda z: jnp.array([[1 + z[0] ** 2]]), np.zeros((1, 1)))
    z = 0.7
    assert_allclose(recipe.drift(jnp.array([z])), [-(1 + z**2) * z**3 + 2 * z], rtol=1e-14)


class Named(NamedTuple):
    theta: dict
    r: jax.Array


def test_a_pytree_gives_what_its_vector_gives():
    flat = Recipe(lambda z: (z**4).sum() / 4 + z[0] * z[3], smooth_D, smooth_Q)
    as_vector = lambda z: jnp.concatenate([z.theta["a"], z.theta["b"][None], z.r])
    tree = Recipe(lambda z: flat.H(as_vector(z)), lambda z: smooth_D(as_vector(z)), lambda z: smooth_Q(as_vector(z)))
    z = Named({"b": jnp.array(Z4[2]), "a": jnp.array(Z4[:2])}, jnp.array(Z4[3:]))
    assert_allclose(as_vector(tree.drift(z)), flat.drift(jnp.array(Z4)), rtol=1e-14)
    key = jax.random.key(0)
    moved = tree.step(z, 0.1, key)
    assert jax.tree.structure(moved) == jax.tree.structure(z)
    assert_allclose(as_vector(moved), flat.step(jnp.array(Z4), 0.1, key), rtol=1e-14)


def test_a_right_closed_form_of_gamma_is_used_and_a_wrong_one_refused():
    D = lambda z: jnp.diag(1 + z**2)
    Q = np.zeros((2, 2))
    calls = []

    def closed(z):
        calls.append(1)
        return 2 * z

    recipe = Recipe(quadratic, D, Q, gamma=closed, at=jnp.zeros(2))
    calls.clear()
    assert_allclose(recipe.gamma(jnp.array([1.0, -2.0])), [2.0, -4.0])
    assert calls
    # At the example state itself the wrong one is right: the states around it tell.
    for wrong in (lambda z: -2 * z, lambda z: z, lambda z: 2 * z * (1 + 1e-7)):
        with pytest.raises(InputError, match="closed form of Gamma is"):
            Recipe(quadratic, D, Q, gamma=wrong, at=jnp.zeros(2))
    with pytest.raises(InputError, match="pass at="):
        Recipe(quadratic, D, Q, gamma=closed)


# The updates.

EPS = 0.15
V = np.array([[1.5, 0.4], [0.4, 0.8]])
DRAWS = 60_000


def tolerance(tests):
    """How many standard errors the worst of so many entries may be off, at a risk of 1e-3."""
    return norm.isf(1e-3 / 2 / tests)


def covariance_agrees(samples, want):
    """Entries of the sample covariance against `want`, in standard errors of a Gaussian sample."""
    got = np.cov(samples.T)
    error = np.sqrt((np.outer(np.diag(want), np.diag(want)) + want**2) / len(samples))
    assert np.all(np.abs(got - want)[error > 0] <= tolerance(got.size) * error[error > 0])
    assert_allclose(got[error == 0], 0.0, atol=1e-14)


@pytest.fixture(scope="module")
def many_steps():
    """Minibatch updates from one state, with noise of covariance V in the gradient: (compensated, noise of each)."""
    with jax.enable_x64(True):
        recipe = Recipe(quadratic, smooth_D, smooth_Q)
        z = jnp.array(Z4)
        root = jnp.linalg.cholesky(V)

        def one(key):
            k_gradient, k_step = jax.random.split(key)
            noisy = z.at[:2].add(root @ jax.random.normal(k_gradient, (2,)))
            moved, info = recipe.stochastic_step(z, EPS, k_step, grad_h=noisy, noise=V)
            clean, _ = recipe.stochastic_step(z, EPS, k_step, grad_h=z, noise=V)
            return moved, moved - clean, info.indefinite

        moved, difference, indefinite = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), DRAWS))
        assert not indefinite.any()
        return recipe, z, np.asarray(moved), np.asarray(difference)


def test_gradient_noise_enters_with_covariance_eps_squared_B(many_steps):
    recipe, z, _, difference = many_steps
    a = np.asarray(smooth_D(z) + smooth_Q(z))
    B = a[:, :2] @ V @ a[:, :2].T
    assert_allclose(recipe.gradient_noise(z, V), B, rtol=1e-13)
    covariance_agrees(difference, EPS**2 * B)


def test_injected_and_gradient_noise_make_2_eps_D(many_steps):
    _, z, moved, difference = many_steps
    D = np.asarray(smooth_D(z))
    share = np.linalg.eigvals(np.linalg.solve(2 * D, np.cov(difference.T) / EPS)).real.max()
    assert share > 0.2  # the gradient brings so much of it that leaving out its compensation would show
    covariance_agrees(moved, 2 * EPS * D)
    # All directions together, within 3 standard errors.
    white = np.linalg.solve(np.linalg.cholesky(2 * EPS * D), (moved - moved.mean(0)).T)
    assert abs((white**2).mean() - 1) < 3 * np.sqrt(2 / white.size)


def test_the_mean_of_a_minibatch_step_is_the_drift(many_steps):
    recipe, z, moved, _ = many_steps
    error = np.sqrt(np.diag(2 * EPS * np.asarray(smooth_D(z))) / DRAWS)
    assert np.all(np.abs(moved.mean(0) - z - EPS * recipe.drift(z)) <= tolerance(4) * error)


def test_a_full_data_step_has_the_mean_and_covariance_of_equation_6():
    recipe = Recipe(quadratic, smooth_D, smooth_Q)
    z = jnp.array(Z4)
    keys = jax.random.split(jax.random.key(2), DRAWS)
    moved = np.asarray(jax.jit(jax.vmap(lambda key: recipe.step(z, EPS, key)))(keys))
    covariance = 2 * EPS * np.asarray(smooth_D(z))
    covariance_agrees(moved, covariance)
    off = np.abs(moved.mean(0) - z - EPS * recipe.drift(z))
    assert np.all(off <= tolerance(4) * np.sqrt(np.diag(covariance) / DRAWS))


def test_bhat_is_subtracted_as_it_is_given():
    recipe = Recipe(quadratic, smooth_D, smooth_Q)
    z, key = jnp.array(Z4), jax.random.key(3)
    by_noise, _ = recipe.stochastic_step(z, EPS, key, grad_h=z, noise=V)
    by_bhat, _ = recipe.stochastic_step(z, EPS, key, grad_h=z, bhat=recipe.gradient_noise(z, V))
    assert_allclose(by_noise, by_bhat, rtol=1e-12)
    diagonal = recipe.gradient_noise(z, np.array([1.5, 0.8]))
    assert_allclose(diagonal, recipe.gradient_noise(z, np.diag([1.5, 0.8])), rtol=1e-14)


def phase():
    return catalogue.Phase(jnp.array([0.4, -0.2]), jnp.array([1.0, 0.3]))


@pytest.mark.parametrize("method", ["general", "sghmc"])
def test_the_named_largest_step_works_and_a_little_more_does_not(method):
    if method == "general":
        recipe, z = Recipe(quadratic, smooth_D, smooth_Q), jnp.array(Z4)
    else:  # singular D: friction on the momentum alone, and largest step 2 / lambda_max(C^-1/2 V C^-1/2)
        recipe, z = catalogue.sghmc(lambda q: q @ q / 2, friction=np.array([0.5, 2.0])), phase()
    gradient, key = jax.grad(recipe.H)(z), jax.random.key(0)
    with pytest.raises(InputError, match="largest step that would do is") as caught:
        recipe.stochastic_step(z, 50.0, key, grad_h=gradient, noise=V)
    named = float(str(caught.value).split("would do is ")[1].split(";")[0])
    assert_allclose(named, float(recipe.largest_step(z, V)), rtol=1e-9)
    if method == "sghmc":
        scale = np.array([0.5, 2.0]) ** -0.5
        assert_allclose(named, 2 / np.linalg.eigvalsh(V * np.outer(scale, scale))[-1], rtol=1e-9)
    _, info = recipe.stochastic_step(z, named * (1 - 1e-9), key, grad_h=gradient, noise=V)
    assert not info.indefinite
    with pytest.raises(InputError, match="largest step"):
        recipe.stochastic_step(z, 1.01 * named, key, grad_h=gradient, noise=V)


def test_noise_outside_the_range_of_D_cannot_be_compensated():
    # HMC with gradient noise: D = 0, B_rr = V. The paper says a small step always helps.
    recipe = catalogue.hmc(lambda q: q @ q / 2)
    z = phase()
    with pytest.raises(InputError, match="largest step that would do is 0"):
        recipe.stochastic_step(z, 1e-6, jax.random.key(0), grad_h=jax.grad(recipe.H)(z), noise=V)
    assert recipe.largest_step(z, V) == 0
    assert recipe.largest_step(z, np.zeros((2, 2))) == np.inf


def test_clipping_counts_the_eigenvalues_it_sets_to_zero():
    recipe = catalogue.sghmc(lambda q: q @ q / 2, friction=np.array([0.5, 2.0]))
    z = phase()
    clip = lambda eps: recipe.stochastic_step(
        z, eps, jax.random.key(0), grad_h=jax.grad(recipe.H)(z), noise=np.array([1.0, 1.0]), on_indefinite="clip"
    )
    for eps, clipped in ((0.9, 0), (1.1, 1), (4.1, 2)):  # 2 C - eps V = (1, 4) - eps
        moved, info = clip(eps)
        assert int(info.clipped) == clipped
        assert bool(info.indefinite) == (clipped > 0)
        assert np.isfinite(moved.momentum).all()


def test_inside_a_program_the_outcome_is_data_and_the_state_is_poisoned():
    recipe = catalogue.sghmc(lambda q: q @ q / 2, friction=0.5)
    z = phase()
    step = jax.jit(lambda z, eps, key: recipe.stochastic_step(z, eps, key, grad_h=jax.grad(recipe.H)(z), noise=V))
    moved, info = step(z, 0.1, jax.random.key(0))
    assert np.isfinite(moved.momentum).all()
    info.require(0.1)
    eager, _ = recipe.stochastic_step(z, 0.1, jax.random.key(0), grad_h=jax.grad(recipe.H)(z), noise=V)
    assert_allclose(moved.momentum, eager.momentum, rtol=1e-12)
    moved, info = step(z, 5.0, jax.random.key(0))
    assert np.isnan(moved.momentum).all()
    with pytest.raises(InputError, match="at eps = 5"):
        info.require(5.0)


def test_float32_allows_for_its_own_rounding():
    with jax.enable_x64(False):
        recipe = catalogue.sghmc(lambda q: q @ q / 2, friction=jnp.array([[1.0, 0.3], [0.3, 0.7]]))
        z = phase()
        moved, info = recipe.stochastic_step(z, 0.01, jax.random.key(0), grad_h=jax.grad(recipe.H)(z), noise=V)
        assert moved.momentum.dtype == jnp.float32
        assert not info.indefinite
        assert not info.escapes
        with pytest.raises(InputError, match="largest step"):
            recipe.stochastic_step(z, 10.0, jax.random.key(0), grad_h=jax.grad(recipe.H)(z), noise=V)


# What is refused.

SKEW = np.array([[0.0, -1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("H", "D", "Q", "message"),
    [
        (quadratic, np.array([[1.0, 0.2], [0.1, 1.0]]), SKEW, "D has to be symmetric"),
        (quadratic, lambda z: jnp.diag(jnp.array([1.0, -0.1])), SKEW, "D has to be positive semidefinite"),
        (quadratic, EYE, np.array([[0.0, 1.0], [1.0, 0.0]]), "Q has to be skew"),
        (quadratic, EYE, lambda z: jnp.eye(2) * 0.1, "Q has to be skew"),
        (quadratic, jnp.eye(3), SKEW, "D has to be of shape"),
        (quadratic, lambda z: 1.0 + z @ z, SKEW, "D has to be of shape"),
        (lambda z: z**2, EYE, SKEW, "H has to return one number"),
        (lambda z: jnp.log(z[0] - 10), EYE, SKEW, "H is not finite"),
        (quadratic, lambda z: jnp.diag(jnp.sqrt(z - 5)), SKEW, "D is not finite"),
    ],
)
def test_unusable_pieces_are_refused_at_construction(H, D, Q, message):
    with pytest.raises(InputError, match=message):
        Recipe(H, D, Q, at=jnp.array([0.5, 0.2]))
    with pytest.raises(InputError, match=message):
        Recipe(H, D, Q).validate(points=np.array([[0.5, 0.2], [0.1, 0.3]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, z, k: r.step(z, -0.1, k), "positive number"),
        (lambda r, z, k: r.step(np.array([1, 2]), 0.1, k), "floating-point"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=jnp.ones(3)), "grad_h has to be a pytree like"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=z, noise=V, bhat=V), "not both"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=z, noise=2.0), "noise covariance has to be"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=z, noise=jnp.ones(3)), "with m <= 2"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=z, bhat=jnp.eye(3)), "bhat has to be of shape"),
        (lambda r, z, k: r.stochastic_step(z, 0.1, k, grad_h=z, on_indefinite="ignore"), "'raise' or 'clip'"),
        (lambda r, z, k: r.validate(), "pass an example state"),
        (lambda r, z, k: r.validate(points=jnp.array(1.0)), "stacked along a leading axis"),
        (lambda r, z, k: Recipe(quadratic, 1.0, SKEW), "has to be a square matrix"),
        (lambda r, z, k: Recipe(3.0, EYE, SKEW), "H has to be a function"),
        (lambda r, z, k: Recipe(quadratic, -EYE, SKEW).step(z, 0.1, k), "D itself is not positive"),
    ],
)
def test_unusable_arguments_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(Recipe(quadratic, EYE, SKEW), jnp.ones(2), jax.random.key(0))


def test_nothing_global_is_changed():
    with jax.enable_x64(False):
        Recipe(quadratic, EYE, SKEW, at=jnp.zeros(2))
        assert jnp.ones(1).dtype == jnp.float32
