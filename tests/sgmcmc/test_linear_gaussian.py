"""On a Gaussian every linear sampler has a stationary law in closed form, whatever its step: here it is, to 1e-10.

The step's affine map and the factor of its noise are read off by automatic differentiation, with the
gradient's noise among the noises; the discrete Lyapunov equation then gives the covariance of the chain. To
add a sampler, add a row to ``SAMPLERS``: how it is made with a preconditioner P (the diffusion, or the
inverse of the mass), and the variance of a coordinate with curvature a in the whitened coordinates P^-1/2
theta.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import expm, solve_discrete_lyapunov

from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from tests.oracles import gaussian, linear_step, noisy, preconditioner, read_off, slope, spd, stationary_covariance

FRICTION = 1.3


# --- the closed forms, per curvature a, step h and (gradient noise not compensated) dV, in whitened coordinates -----


def sgld_variance(a, h, dV, C):
    return (2 + h * dV) / (a * (2 - h * a))


def euler_variance(a, h, dV, C):
    nu = 2 * C * h + h**2 * dV
    return nu * (2 - C * h + a * h**2) / (h * a * (C - a * h) * (4 - 2 * C * h + a * h**2))


def symplectic_variance(a, h, dV, C):
    nu = 2 * C * h + h**2 * dV
    return nu * (2 - C * h) / (C * h * a * (4 - 2 * C * h - a * h**2))


def aboba_variance(a, h, dV, C):
    return (1 + h**2 * dV / 4 / np.tanh(C * h / 2)) / a


def baoab_variance(a, h, dV, C):
    assert dV == 0  # with noise: `test_baoab_under_gradient_noise`
    return 1 / a


def under_hmc(integrator):
    return lambda h, P, inverse: sghmc(h, FRICTION * inverse, inverse, integrator)


SAMPLERS = {
    "sgld": (lambda h, P, inverse: sgld(h, diffusion=P), sgld_variance, 1),
    "sghmc euler": (under_hmc("euler"), euler_variance, 1),
    "sghmc symplectic": (under_hmc("symplectic"), symplectic_variance, 2),
    "sghmc aboba": (under_hmc("aboba"), aboba_variance, None),  # None: exact
    "sghmc baoab": (under_hmc("baoab"), baoab_variance, None),
}
FORMS = {(1, "scalar"), (5, "diagonal"), (5, "dense"), (20, "dense"), (200, "scalar"), (200, "diagonal")}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("d", "form"), sorted(FORMS))
def test_the_stationary_covariance_is_the_closed_form(x64, name, d, form):
    make, variance, _ = SAMPLERS[name]
    rng = np.random.default_rng(d)
    P, P_inverse, half = preconditioner(rng, d, form)
    half_inverse = np.linalg.inv(half)
    # Curvatures a in whitened coordinates, and gradient noise that is v there in every direction.
    turn, a = np.linalg.qr(rng.normal(size=(d, d)))[0], rng.uniform(0.5, 2.0, d)
    A = jnp.asarray(half_inverse @ (turn * a) @ turn.T @ half_inverse)
    V = half_inverse @ half_inverse

    @jax.jit
    def chain(h, v, known):
        gradient = noisy(v * V, known * (jnp.linalg.inv(P) if form == "dense" else 1 / P))
        return read_off(make(h, P, P_inverse), gaussian(A), gradient, d)

    settings = [(0.2, 0.0, 0.0), (0.1, 1.5, 1.5), (0.1, 1.5, 0.6), (0.3, 0.5, 0.0)]
    for h, v, known in settings[: 4 if d < 100 else 2]:
        if name == "sghmc baoab" and v:
            continue
        M, b, F = chain(h, v, known)
        assert_allclose(b, 0, atol=1e-12)
        covariance = stationary_covariance(M, F)[:d, :d]
        whitened = (turn * variance(a, h, v - known, FRICTION)) @ turn.T
        assert_allclose(covariance, half @ whitened @ half, rtol=0, atol=1e-10)


@pytest.mark.parametrize("integrator", ["euler", "symplectic", "aboba"])
def test_the_momentum_of_sghmc_has_its_closed_form(x64, integrator):
    a, C, h, v = 1.7, FRICTION, 0.1, 0.8
    M, _, F = read_off(sghmc(h, C, 1.0, integrator), gaussian(jnp.array(a)), noisy(jnp.array(v)), 1)
    covariance = stationary_covariance(M, F)
    nu = 2 * C * h + h**2 * v
    closed = {
        "euler": (
            2 * nu / (h * (C - a * h) * (4 - 2 * C * h + a * h**2)),
            -nu / ((C - a * h) * (4 - 2 * C * h + a * h**2)),
        ),
        "symplectic": (2 * nu / (C * h * (4 - 2 * C * h - a * h**2)), nu / (C * (4 - 2 * C * h - a * h**2))),
        "aboba": (a * aboba_variance(a, h, v, C) / (1 - a * h**2 / 4), 0.0),
    }[integrator]
    assert_allclose([covariance[1, 1], covariance[0, 1]], closed, atol=1e-12)


def test_sgld_has_the_published_digits(x64):
    M, _, F = read_off(sgld(0.2), gaussian(jnp.array(1.7)), noisy(), 1)
    assert_allclose(stationary_covariance(M, F), 1 / (1.7 * (1 - 0.17)), rtol=1e-14)
    assert abs(stationary_covariance(M, F)[0, 0] - 0.7087172218) < 1e-10


@pytest.mark.parametrize("known", [0.0, 0.9])
def test_sghmc_with_friction_and_mass_that_do_not_commute(x64, known):
    """Against the same integrators composed by hand from their parts as dense matrices."""
    d, h, rng = 4, 0.15, np.random.default_rng(3)
    A, C, mass, V = spd(rng, d), spd(rng, d), spd(rng, d), spd(rng, d)
    eye, zero, inverse = np.eye(d), np.zeros((d, d)), np.linalg.inv(mass)
    drift = lambda t: np.block([[eye, t * inverse], [zero, eye]])
    kick = lambda t: np.block([[eye, zero], [-t * A, eye]])
    lower = lambda S: np.block([[zero, zero], [zero, S]])
    c = expm(-h * C @ inverse)
    relax, injected = np.block([[eye, zero], [zero, c]]), mass - c @ mass @ c.T
    taken = known * V

    def compose(*parts):
        M, S = np.eye(2 * d), np.zeros((2 * d, 2 * d))
        for map_, noise in parts:
            M, S = map_ @ M, map_ @ S @ map_.T + noise
        return M, S

    none = np.zeros((2 * d, 2 * d))
    half = (eye + c) / 2
    parts = {
        "euler": [
            (
                np.block([[eye, h * inverse], [-h * A, eye - h * C @ inverse]]),
                lower(2 * h * C + h**2 * (V - taken)),
            )
        ],
        "symplectic": [
            (np.block([[eye, zero], [-h * A, eye - h * C @ inverse]]), lower(2 * h * C + h**2 * (V - taken))),
            (drift(h), none),
        ],
        "aboba": [
            (drift(h / 2), none),
            (kick(h / 2), none),
            (relax, lower(injected + h**2 * half @ (V - taken) @ half.T)),
            (kick(h / 2), none),
            (drift(h / 2), none),
        ],
        "baoab": [
            (kick(h), lower(h**2 * V)),
            (drift(h / 2), none),
            (relax, lower(injected - h**2 * c @ taken @ c.T)),
            (drift(h / 2), none),
        ],
    }
    for integrator, sequence in parts.items():
        gradient = noisy(jnp.asarray(V), jnp.asarray(taken) if known else None)
        M, _, F = read_off(sghmc(h, C, mass, integrator), gaussian(jnp.asarray(A)), gradient, d)
        want_M, want_S = compose(*sequence)
        assert_allclose(M, want_M, atol=1e-12, err_msg=integrator)
        assert_allclose(F @ F.T, want_S, atol=1e-12, err_msg=integrator)


# --- the order of the bias -----------------------------------------------------------------------------------------


def bias(kernel, gradient, d=5):
    """Largest relative error of the variance along the eigenvectors of a Gaussian with five curvatures."""
    a = np.array([0.5, 0.8, 1.0, 1.4, 2.0])[:d]
    M, _, F = read_off(kernel, gaussian(jnp.asarray(np.diag(a))), gradient, d)
    return np.abs(np.diag(stationary_covariance(M, F))[:d] * a - 1).max()


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("noise", ["none", "compensated"])
def test_the_order_of_the_bias(x64, name, noise):
    make, _, order = SAMPLERS[name]
    gradient = noisy() if noise == "none" else noisy(jnp.array(1.2), jnp.array(1.2))
    steps = np.array([0.08, 0.04, 0.02, 0.01])
    found = np.array([bias(make(h, jnp.array(1.0), jnp.array(1.0)), gradient) for h in steps])
    if name == "sghmc baoab" and noise == "compensated":
        order = 2
    if order is None:
        assert found.max() < 1e-12
    else:
        assert abs(slope(steps[1:], found[1:]) - order) < 0.1


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_that_is_not_compensated_heats_by_its_share(x64, name):
    """Temperature 1 + h V / 2 D for SGLD, 1 + h V / (2 C) for SGHMC, to first order."""
    make, _, _ = SAMPLERS[name]
    V, h = 0.9, 1e-3
    one = jnp.array(1.0)
    heat = bias(make(h, one, one), noisy(jnp.array(V)), 1) - bias(make(h, one, one), noisy(), 1)
    friction = 1.0 if name == "sgld" else FRICTION
    assert_allclose(heat, h * V / (2 * friction), rtol=5e-3)


def test_the_unadjusted_euler_scheme_needs_friction_above_step_times_curvature(x64):
    for C, stable in ((0.15, False), (0.3, True)):
        M, _, _ = read_off(sghmc(0.1, C, 1.0, "euler"), gaussian(jnp.array(1.7)), noisy(), 1)
        assert (np.abs(np.linalg.eigvals(M)).max() < 1) == stable


@pytest.mark.parametrize("integrator", ["aboba", "baoab"])
def test_splittings_are_stable_up_to_the_limit_of_leapfrog(x64, integrator):
    a = 1.7
    for part, stable in ((0.99, True), (1.01, False)):
        M, _, _ = read_off(sghmc(part * 2 / a**0.5, 0.5, 1.0, integrator), gaussian(jnp.array(a)), noisy(), 1)
        assert (np.abs(np.linalg.eigvals(M)).max() < 1) == stable


@pytest.mark.parametrize(
    ("integrator", "time"),
    [("symplectic", 0.48), ("aboba", 0.48), ("baoab", 0.48), ("aboba", None), ("baoab", None)],
)
def test_fresh_momenta_keep_the_order(x64, integrator, time):
    """With momenta drawn anew after a fixed time (None: at every step) the bias keeps order 2 in theta.

    The chain over one period of resampling is the composition of its steps.
    """
    a = np.array([0.5, 1.0, 2.0])

    def found(h):
        every = 1 if time is None else round(time / h)
        kernel = sghmc(h, FRICTION, 1.0, integrator, resample_momentum=every)
        bound = kernel.bind(gaussian(jnp.asarray(np.diag(a))), noisy())
        state = bound.init(jnp.ones(3), jax.random.key(0))
        M, S = np.eye(6), np.zeros((6, 6))
        for t in range(every):
            if t < 2:  # the first step is another one than the rest
                step, _, F = linear_step(bound.step, state._replace(iteration=jnp.int32(t)), 3)
            M, S = step @ M, step @ S @ step.T + F @ F.T
        assert np.abs(np.asarray(M)[:, 3:]).max() < 1e-14  # nothing of the old momentum is left
        covariance = solve_discrete_lyapunov(M, S)
        return np.abs(np.diag(covariance)[:3] * a - 1).max()

    steps = np.array([0.08, 0.04, 0.02])
    biases = np.array([found(h) for h in steps])
    assert 1e-9 < biases.max() < 0.05
    assert abs(slope(steps, biases) - 2) < 0.15
