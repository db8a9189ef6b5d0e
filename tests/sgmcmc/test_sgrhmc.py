"""gSGRHMC leaves exp(-U - r.r / 2) invariant as the step goes to zero: simulated against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.errors import InputError
from fokker.run.gradients import minibatch
from fokker.sgmcmc.metrics import divergence, level_set
from fokker.sgmcmc.sgrhmc import sgrhmc
from fokker.target import Target
from tests.chains import averages
from tests.oracles import linear_step, stationary_covariance
from tests.sgmcmc.test_sgrld import correlated, noisy, rotating, tilted
from tests.synthetic import double_well, exact_draws, expectation, well

INTEGRATORS = ("symplectic", "euler")


def root_divergence(metric):
    """Gamma of the symmetric root of a scalar metric."""
    return lambda x: divergence(lambda x: jnp.sqrt(jnp.asarray(metric(x))), x)[1]


CASES = {
    "well, level sets": (well, level_set(well), lambda x: x**2, 0.2),
    "two wells, tilted": (double_well, lambda theta: tilted(theta[0]), lambda x: x**2, 0.08),
}


def bias(kernel, potential, f, eps, time, chains=2048):
    """E_eps f(theta) - E f and E_eps r^2 - 1, with standard errors, from independent chains that start in the law."""
    start = exact_draws(potential, 0, chains).astype(np.float32)
    want = np.array([expectation(potential, f), 1.0])
    of = lambda state: jnp.stack([f(state.position[0]), state.momentum[0] ** 2])
    mine = averages(kernel, potential, start, round(time / eps), of)
    return mine.mean(0) - want, mine.std(0, ddof=1) / np.sqrt(chains)


@pytest.mark.parametrize("time", [400.0, pytest.param(6000.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_the_bias_vanishes_with_the_step(name, time):
    potential, metric, f, h = CASES[name]
    runs = [bias(sgrhmc(e, metric), potential, f, e, time) for e in (h, h / 2, h / 4)]
    off, error = (np.stack(x) for x in zip(*runs, strict=True))
    # least squares of b = s h + c h^2 + a, three equations: a is what stays at step zero
    A = np.array([[1, e, e * e] for e in (h, h / 2, h / 4)])
    solve = np.linalg.inv(A)
    intercept, slope, _ = solve @ off
    se_intercept, se_slope, _ = np.sqrt(solve**2 @ error**2)
    for what, i in (("theta", 0), ("r^2", 1)):
        print(
            f"{name}, {what}: bias {off[:, i]} +- {error[:, i]}, slope {slope[i]:.4f} +- {se_slope[i]:.4f}, "
            f"at step zero {intercept[i]:.5f} +- {se_intercept[i]:.5f}"
        )
    assert (np.abs(intercept) < 4 * se_intercept).all()
    assert (se_intercept < 0.03).all()


@pytest.mark.parametrize("sign", [0.0, -1.0], ids=["missing", "minus"])
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_gamma_is_seen(name, sign):
    potential, metric, f, h = CASES[name]
    right, _ = bias(sgrhmc(h / 4, metric), potential, f, h / 4, 100.0)
    wrong = sgrhmc(h / 4, metric, gamma=lambda x: sign * root_divergence(metric)(x))
    off, wrong_error = bias(wrong, potential, f, h / 4, 100.0)
    assert abs(off[0]) > 5 * wrong_error[0]
    assert abs(off[0]) > 4 * abs(right[0])


def test_a_full_matrix_in_two_dimensions():
    """theta_1 is standard normal and theta_2 - theta_1^2 / 3 normal with variance 1/2: exact moments."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=1024)
    start = np.stack([first, first**2 / 3 + rng.normal(size=1024) / np.sqrt(2)], axis=1).astype(np.float32)
    want = np.array([1.0, 1 / 3, 1 / 2 + 3 / 9, 1.0, 1.0, 0.0])
    f = lambda s: jnp.stack([s.position[0] ** 2, s.position[1], s.position[1] ** 2, *s.momentum**2, s.momentum.prod()])
    h = 0.08

    def moments(eps, **settings):
        mine = averages(sgrhmc(eps, rotating, **settings), correlated, start, round(60 / eps), f)
        return mine.mean(0), mine.std(0, ddof=1) / np.sqrt(len(start))

    (one, se_one), (two, se_two) = moments(h), moments(h / 2)
    off, error = 2 * two - one - want, np.hypot(2 * se_two, se_one)
    assert (np.abs(off) < 4 * error + 0.1 * np.abs(one - two)).all(), (off, error)
    wrong, se_wrong = moments(h / 2, gamma=jnp.zeros_like)
    assert np.abs((wrong - two) / np.hypot(se_wrong, se_two)).max() > 10


@pytest.mark.parametrize(
    "settings",
    [lambda eps: {"friction": 0.8}, lambda eps: {"resample_momentum": round(0.48 / eps)}],
    ids=["constant friction", "momentum drawn anew"],
)
def test_constant_friction_and_resampled_momentum_keep_the_law(settings):
    potential, metric, f, h = CASES["two wells, tilted"]
    (one, se_one), (two, se_two) = (
        bias(sgrhmc(e, metric, **settings(e)), potential, f, e, 200.0) for e in (h / 2, h / 4)
    )
    off, error = 2 * two - one, np.hypot(2 * se_two, se_one)
    assert (np.abs(off) < 4 * error + 0.1 * np.abs(one)).all(), (off, error)
    assert (error < 0.05).all()


def test_twenty_dimensions_with_a_diagonal():
    """Independent wells, each with a metric of its own coordinate: E theta_i^2 = 1 and E r_i^2 = 1 in all of them."""
    scales = jnp.linspace(0.5, 2.0, 20)
    metric = lambda x: scales * (1 + 0.5 * jnp.tanh(x))
    start = np.random.default_rng(0).normal(size=(512, 20)).astype(np.float32)
    f = lambda s: jnp.concatenate([s.position**2, s.position, s.momentum**2])
    want = np.concatenate([np.ones(20), np.zeros(20), np.ones(20)])

    def off(eps, **settings):
        mine = averages(sgrhmc(eps, metric, **settings), well, start, round(40 / eps), f)
        return mine.mean(0) - want, mine.std(0, ddof=1) / np.sqrt(len(start))

    (one, se_one), (two, se_two) = off(0.1), off(0.05)
    z = (2 * two - one) / np.hypot(2 * se_two, se_one)
    assert np.abs(z).max() < 4.5, z  # the largest of 60
    naive, error = off(0.05, gamma=jnp.zeros_like)
    assert np.abs(naive[20:40] / error[20:40]).min() > 5  # every mean is off without Gamma


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("s", [1.0, 0.6])
def test_with_a_constant_metric_the_linear_chain_has_the_closed_form(integrator, s, x64):
    """U = a x^2 / 2, G^-1 = s^2: SGHMC with a s^2 for a and friction s^2."""
    a, eps, C = 1.7, 0.2, s * s
    potential = lambda x: a * (x**2).sum() / 2
    bound = sgrhmc(eps, lambda x: jnp.asarray(s * s), integrator=integrator).bind(
        Target.from_log_density(lambda x: -potential(x)), minibatch()
    )
    M, _, F = linear_step(bound.step, bound.init(jnp.zeros(1), jax.random.key(0)), 1)
    covariance = stationary_covariance(M, F)
    b, nu = a * s * s, 2 * C * eps
    if integrator == "euler":
        var_x = nu * (2 - C * eps + b * eps**2) / (eps * b * (C - b * eps) * (4 - 2 * C * eps + b * eps**2))
        var_r = 2 * nu / (eps * (C - b * eps) * (4 - 2 * C * eps + b * eps**2))
    else:
        var_x = nu * (2 - C * eps) / (C * eps * b * (4 - 2 * C * eps - b * eps**2))
        var_r = 2 * nu / (C * eps * (4 - 2 * C * eps - b * eps**2))
    np.testing.assert_allclose(covariance[0, 0] / s**2, var_x, rtol=1e-10)
    np.testing.assert_allclose(covariance[1, 1], var_r, rtol=1e-10)


@pytest.mark.parametrize("friction", [None, 0.7], ids=["G^-1", "constant"])
@pytest.mark.parametrize("V", [3.0, np.array([1.0, 4.0]), np.array([[2.0, 0.5], [0.5, 1.0]])], ids=np.ndim)
@pytest.mark.parametrize(
    "metric",
    [rotating, lambda x: jnp.diagonal(rotating(x)), lambda x: 0.5 + x @ x],
    ids=["dense", "diagonal", "scalar"],
)
def test_gradient_noise_and_injected_noise_add_up_to_2_eps_a(V, metric, friction, x64, monkeypatch):
    """The momentum's noise from all normals of a step is exactly 2 eps A, with B-hat = S V S subtracted."""
    eps, x = 0.05, jnp.array([0.4, -0.3])
    target = Target.from_log_density(lambda x: -correlated(x))
    bound = sgrhmc(eps, metric, friction=friction).bind(target, noisy(V))
    start = bound.init(x, jax.random.key(0))

    def step(numbers):
        given = lambda key, shape, stream=0, dtype=None: numbers[2:] if stream == 9 else numbers[:2]
        monkeypatch.setattr("fokker.sgmcmc.matrix.normal", given)
        monkeypatch.setattr("tests.sgmcmc.test_sgrld.normal", given)
        return bound.step(jax.random.key(0), start)[0].momentum

    F = np.asarray(jax.jacfwd(step)(jnp.zeros(4)))
    A = np.asarray(metric(x) if friction is None else friction)
    A = A if A.ndim == 2 else np.diag(np.broadcast_to(A, 2))
    assert np.abs(F[:, 2:]).max() > 0
    np.testing.assert_allclose(F @ F.T, 2 * eps * A, atol=1e-14)


def test_momentum_is_drawn_anew_when_asked():
    bound = sgrhmc(1e-6, lambda x: jnp.ones(()), resample_momentum=3).bind(
        Target.from_log_density(lambda x: -well(x)), minibatch()
    )
    state = bound.init(jnp.zeros(4), jax.random.key(0))
    moved = []
    for t in range(7):
        before = state.momentum
        state, info = bound.step(jax.random.key(t + 1), state)
        moved.append(float(jnp.abs(state.momentum - before).max()) > 0.1)
        assert float(info.kinetic) == pytest.approx(float(state.momentum @ state.momentum) / 4)
    assert moved == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    "wrong",
    [{"integrator": "rk4"}, {"resample_momentum": 0}, {"friction": -1.0}, {"step_size": 0.0}, {"metric_inverse": None}],
)
def test_settings_are_checked(wrong):
    with pytest.raises(InputError):
        sgrhmc(**{"step_size": 0.1, "metric_inverse": rotating, **wrong})
