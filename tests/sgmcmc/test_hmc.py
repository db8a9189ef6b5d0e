"""HMC leaves exp(-U) invariant at any step size, because its leapfrog is reversible and keeps volume."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.errors import InputError
from fokker.run.gradients import control_variates, minibatch
from fokker.sgmcmc import hmc as module
from fokker.sgmcmc.hmc import Phase, hmc, leapfrog
from fokker.sgmcmc.matrix import inverse, times
from fokker.target import Target
from tests.chains import move
from tests.synthetic import BANANA_MOMENTS, banana, banana_draws, expectation, standard_errors_off

MASSES = [1.3, np.array([0.7, 2.0]), np.array([[1.5, 0.4], [0.4, 0.8]])]


def along(z, mass, eps, steps):
    """The leapfrog as a map of (theta, r), (4,) -> (4,), and the energy of a point."""
    M_inverse = inverse(jnp.asarray(mass))
    value_and_grad = jax.value_and_grad(banana)
    phase = leapfrog(Phase(z[:2], z[2:], *value_and_grad(z[:2])), value_and_grad, eps, steps, M_inverse)
    return jnp.concatenate([phase.theta, phase.momentum])


def energy(z, mass):
    return banana(z[:2]) + z[2:] @ times(inverse(jnp.asarray(mass)), z[2:]) / 2


FLIP = np.array([1.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize("mass", MASSES, ids=["scalar", "diagonal", "dense"])
def test_leapfrog_is_reversible_and_keeps_volume(mass, x64):
    z = jnp.array([0.8, -0.9, 0.5, -1.1])
    there = along(z, mass, 0.1, 20)
    assert np.abs(there - z).max() > 0.1
    np.testing.assert_allclose(FLIP * along(FLIP * there, mass, 0.1, 20), z, atol=1e-12)
    jacobian = jax.jacfwd(lambda z: along(z, mass, 0.1, 20))(z)
    assert abs(np.linalg.det(jacobian) - 1) < 1e-10


@pytest.mark.parametrize("mass", MASSES, ids=["scalar", "diagonal", "dense"])
def test_energy_error_is_of_second_order(mass, x64):
    z = jnp.array([0.8, -0.9, 0.5, -1.1])
    error = lambda eps: float(energy(along(z, mass, eps, round(0.6 / eps)), mass) - energy(z, mass))
    assert error(0.02) / error(0.01) == pytest.approx(4.0, abs=0.2)


LARGE = hmc(0.4, leapfrog_steps=3, mass=np.array([1.0, 2.0]))


def test_exact_draws_stay_exact():
    """Independent chains that start in the law: at a step of 60 to 80 % acceptance it must still be the law."""
    chains = 40_000
    end, info = move(LARGE, banana, banana_draws(1, chains), 10)
    assert 0.6 < info.accepted.mean() < 0.8
    for name, (f, mean) in BANANA_MOMENTS.items():
        assert abs(standard_errors_off(f(end), mean)) < 4, name


def test_the_test_above_sees_a_wrong_sign_of_acceptance(monkeypatch):
    right = module.metropolis
    monkeypatch.setattr(module, "metropolis", lambda key, h, proposed, stream: right(key, -h, -proposed, stream))
    end, _ = move(LARGE, banana, banana_draws(1, 40_000), 2)
    centre = lambda x: (
        (np.abs(x[:, 0]) < 1) & (np.abs(x[:, 1] + 0.9) < 0.5)
    )  # moments of a law with wide tails say little
    assert standard_errors_off(centre(end), centre(banana_draws(2, 10**6)).mean()) < -10


def test_one_long_chain_has_the_moments_of_a_correlated_gaussian():
    from arviz_stats.base import array_stats

    precision = np.linalg.inv(np.array([[1.0, 0.9, 0.2], [0.9, 1.5, 0.1], [0.2, 0.1, 0.4]]))
    covariance, shift = np.linalg.inv(precision), np.array([1.0, -2.0, 0.5])
    target = Target.from_log_density(lambda theta: -(theta - shift) @ jnp.asarray(precision) @ (theta - shift) / 2)
    bound = hmc(0.35, leapfrog_steps=5, mass=precision.astype(np.float32)).bind(target)
    state = bound.init(jnp.asarray(shift, jnp.float32))
    step = lambda state, key: (lambda new: (new[0], new[0].position))(bound.step(key, state))
    x = np.asarray(jax.jit(lambda k: jax.lax.scan(step, state, k)[1])(jax.random.split(jax.random.key(3), 20_000)))

    def off(values, mean):
        ess = array_stats.ess(values[None, :].astype(float), chain_axis=0, draw_axis=1, method="mean")
        return (values.mean() - mean) / (values.std() / np.sqrt(ess))

    for i in range(3):
        assert abs(off(x[:, i], shift[i])) < 4
        for j in range(i + 1):
            assert abs(off((x[:, i] - shift[i]) * (x[:, j] - shift[j]), covariance[i, j])) < 4


def test_what_is_not_finite_is_rejected():
    """U = x^2 / 2 on x > -0.5, where log of the density is NaN or -inf beyond: the law is the truncated normal."""
    inside = lambda x: x > -0.5
    for outside in (jnp.inf, jnp.nan):
        potential = lambda theta, outside=outside: jnp.where(inside(theta[0]), theta[0] ** 2 / 2, outside)
        rng = np.random.default_rng(5)
        start = np.abs(rng.normal(size=(20_000, 1))).astype(np.float32)
        end, info = move(hmc(0.8, leapfrog_steps=2), potential, start, 30)
        assert np.isfinite(end).all()
        assert (end > -0.5).all()
        assert info.diverging.mean() > 0.05
        assert not (info.accepted & info.diverging).any()
        assert (info.acceptance_probability[info.diverging] == 0).all()
        grid = np.linspace(-0.5, 9, 20_001)
        mean = expectation(lambda theta: theta[0] ** 2 / 2, lambda x: x, grid)
        assert abs(standard_errors_off(end[:, 0], mean)) < 4


def test_gradient_estimators_are_refused():
    target = Target.from_log_density(lambda theta: -theta @ theta)
    hmc(0.1).bind(target, minibatch())
    for gradient in (control_variates(), minibatch(noise="diagonal")):
        with pytest.raises(InputError, match="density of all data"):
            hmc(0.1).bind(target, gradient)


@pytest.mark.parametrize("wrong", [{"step_size": -1.0}, {"leapfrog_steps": 0}, {"mass": -np.ones(2)}])
def test_settings_are_checked(wrong):
    with pytest.raises(InputError):
        hmc(**{"step_size": 0.1, **wrong})
