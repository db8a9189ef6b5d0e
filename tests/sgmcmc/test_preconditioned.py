"""SGFS is exact on a Gaussian at every step; pSGLD is SGLD with the diagonal that it learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from fokker.errors import InputError
from fokker.run.gradients import minibatch
from fokker.sgmcmc.matrix import as_dense
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.target import Target
from tests.oracles import (
    STREAMS,
    gaussian,
    linear_step,
    noisy,
    normals_given,
    preconditioner,
    read_off,
    slope,
    spd,
    stationary_covariance,
)


@pytest.mark.parametrize("form", ["scalar", "diagonal", "dense"])
@pytest.mark.parametrize("eps", [0.01, 1.0, 1e6])
def test_sgfs_is_exact_on_a_gaussian_at_every_step(x64, form, eps):
    d, rng = 5, np.random.default_rng(7)
    L, _, _ = preconditioner(rng, d, form)
    B, _, _ = preconditioner(rng, d, form)
    V = 20.0 * (L if form != "dense" else jnp.asarray(spd(rng, d)))
    M, _, F = read_off(sgfs(eps, B, L), gaussian(L), noisy(V, V), d)
    dense = np.asarray(as_dense(L, d))
    assert_allclose(stationary_covariance(M, F) @ dense, np.eye(d), atol=1e-12)


def test_sgfs_without_gradient_noise_is_exact_too(x64):
    L = jnp.asarray(spd(np.random.default_rng(1), 5))
    M, _, F = read_off(sgfs(3.0, 0.5, L), gaussian(L), noisy(), 5)
    assert_allclose(stationary_covariance(M, F) @ L, np.eye(5), atol=1e-12)


@pytest.mark.parametrize("wrong", ["precision", "noise"])
def test_sgfs_with_a_wrong_estimate_is_right_as_the_step_goes_to_zero(x64, wrong):
    """Order 1 in eps, and only then: a factor 2 on an estimate shows at a large step."""
    L, V, steps, biases = jnp.array(1.5), jnp.array(0.8), np.array([4e-2, 2e-2, 1e-2]), []
    for eps in steps:
        kernel = sgfs(eps, 1.0, 2 * L if wrong == "precision" else L)
        M, _, F = read_off(kernel, gaussian(L), noisy(V, 2 * V if wrong == "noise" else V), 1)
        biases.append(stationary_covariance(M, F)[0, 0] * 1.5 - 1)
    assert abs(slope(steps, np.array(biases)) - 1) < 0.05


@pytest.mark.parametrize("noise", ["scalar", "diagonal", "dense"])
def test_sgfs_learns_the_precision_from_the_rows(x64, noise):
    """P = 2 (N S + N^2/n (1 - n/N) S + 4 B / eps)^-1 with S the covariance of the row gradients in the batch."""
    rng, N, n, d, eps = np.random.default_rng(5), 40, 10, 3, 2.0
    y = rng.normal(size=(N, d)) * [1.0, 2.0, 0.5]
    target = Target(lambda x: 0.0 * x.sum(), lambda x, rows: -0.5 * ((rows - x) ** 2).sum(-1), y)
    bound = sgfs(eps, 0.3).bind(target, minibatch(noise=noise))
    state = bound.init(jnp.zeros(d), None)

    def move(x):
        with normals_given(jnp.zeros((STREAMS, d))):
            return bound.step(jax.random.key(0), state._replace(position=x), y[:n])[0].position

    S = np.cov(y[:n].T)
    S = {"scalar": np.trace(S) / d * np.eye(d), "diagonal": np.diag(np.diag(S)), "dense": S}[noise]
    P = 2 * np.linalg.inv(N * S + N**2 / n * (1 - n / N) * S + 4 * 0.3 / eps * np.eye(d))
    assert_allclose(jax.jacfwd(move)(jnp.zeros(d)), np.eye(d) - N * P, atol=1e-12)
    assert_allclose(move(jnp.zeros(d)), P @ (N * y[:n].mean(0)), atol=1e-12)


def test_psgld_is_sgld_with_its_frozen_preconditioner(x64):
    d, rng, h, decay, damping, steps = 4, np.random.default_rng(2), 0.1, 0.9, 0.05, 7
    A, V, gradients = jnp.asarray(spd(rng, d)), jnp.asarray(0.5 * spd(rng, d)), rng.normal(size=(steps, d))
    kernel = psgld(h, adapt_steps=steps, decay=decay, damping=damping)

    learning = kernel.bind(gaussian(jnp.eye(d)), noisy())
    state, learn = learning.init(jnp.zeros(d)), jax.jit(learning.step)
    for g in gradients:  # the gradient of |x|^2 / 2 at x = g
        state, _ = learn(jax.random.key(0), state._replace(position=jnp.asarray(g)))
    weights = decay ** np.arange(steps)[::-1]
    v = (weights[:, None] * gradients**2).sum(0) / weights.sum()
    D = 1 / (damping + np.sqrt(v))

    frozen = kernel.bind(gaussian(A), noisy(V, V))
    after, _ = frozen.step(jax.random.key(0), state)
    assert (after.square == state.square).all()
    M, _, F = linear_step(frozen.step, state, d)
    assert_allclose(M, np.eye(d) - h * D[:, None] * A, atol=1e-13)
    assert_allclose(F @ F.T, np.diag(2 * h * D), atol=1e-13)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc(0.1, integrator="leapfrog"), "integrator must be one of euler"),
        (lambda: sghmc(0.1, friction=-1.0), "friction must be > 0"),
        (lambda: sghmc(0.1, mass=np.array([[1.0, 2.0], [2.0, 1.0]])), "mass must be positive definite"),
        (lambda: sghmc(0.1, resample_momentum=0), "resample_momentum must be >= 1"),
        (lambda: psgld(0.1, adapt_steps=0), "adapt_steps must be >= 1"),
        (lambda: psgld(0.1, decay=1.0), "decay must be below 1"),
        (lambda: psgld(0.1).bind(gaussian(jnp.eye(2)), minibatch()), "needs adapt_steps"),
        (lambda: sgld().bind(gaussian(jnp.eye(2)), minibatch()), "no step size"),
        (lambda: sghmc().bind(gaussian(jnp.eye(2)), minibatch()), "no step size"),
        (lambda: sgfs(1.0).bind(gaussian(jnp.eye(2)), minibatch()), "give precision"),
        (lambda: sgfs(1.0, injected=[[1.0, 0.5], [0.0, 1.0]]), "injected must be symmetric"),
    ],
)
def test_settings_that_make_no_sampler_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
