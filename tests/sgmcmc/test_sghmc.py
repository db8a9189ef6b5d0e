"""SGHMC where the forces are not linear: the order of its bias against quadrature, by simulation.

Twenty independent coordinates with U = x^2 / 2 + 0.4 cos(2 x), two wells whose force is Lipschitz (no scheme without a
Metropolis test survives x^4 at large steps), start at draws of the target; the bias of E x^2 is measured at several
steps, and the term of first order that is fitted to it has a standard error.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgnht import sgnht
from tests.chains import averages
from tests.oracles import moments_1d, noisy

D = 20
EXACT = moments_1d(lambda x: -(x**2) / 2 - 0.4 * np.cos(2 * x))[1]


def wells(x):
    return (x**2 / 2 + 0.4 * jnp.cos(2 * x)).sum()


def exact_draws(shape, seed=0):
    """Draws of exp(-U), by inverting its distribution function on a grid."""
    grid = np.linspace(-8, 8, 20_001)
    total = np.cumsum(np.exp(-(grid**2) / 2 - 0.4 * np.cos(2 * grid)))
    return np.interp(np.random.default_rng(seed).uniform(size=shape), total / total[-1], grid).astype(np.float32)


def biases(make, steps, chains, time, gradient):
    """E x^2 of the chain less that of the target at each step size, and standard errors."""
    start, found = exact_draws((chains, D)), []
    for h in steps:
        kept = averages(make(h), wells, start, int(time / h), lambda s: (s.position**2).mean(), gradient=gradient)
        found.append((kept.mean() - EXACT, kept.std(ddof=1) / chains**0.5))
    return np.array(found).T


STEPS = np.array([0.15, 0.25, 0.4, 0.55])
SECOND_ORDER = {
    "symplectic": lambda h: sghmc(h, 1.0),
    "aboba": lambda h: sghmc(h, 1.0, integrator="aboba"),
    "baoab": lambda h: sghmc(h, 1.0, integrator="baoab"),
    "sgnht aboba": lambda h: sgnht(h),
}


def linear_term(make, chains, time, gradient, steps=STEPS):
    """c1 and its standard error in bias = c1 h + c2 h^2 + c4 h^4, by weighted least squares."""
    bias, error = biases(make, steps, chains, time, gradient)
    powers = np.stack([steps, steps**2, steps**4], axis=1) / error[:, None]
    covariance = np.linalg.inv(powers.T @ powers)
    return (covariance @ powers.T @ (bias / error))[0], covariance[0, 0] ** 0.5


@pytest.mark.parametrize("name", ["aboba", "sgnht aboba"])
def test_the_bias_in_two_wells_has_no_term_of_first_order(name):
    c1, error = linear_term(SECOND_ORDER[name], 300, 200.0, noisy())
    assert abs(c1) < 4 * error
    assert error < 0.03


def test_the_printed_euler_scheme_has_one():
    """The control: at the same cost the first order of Euler is seen."""
    c1, error = linear_term(lambda h: sghmc(h, 1.0, integrator="euler"), 300, 200.0, noisy(), STEPS / 4)
    assert c1 > 0.5 and c1 > 5 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND_ORDER)
def test_nor_has_it_with_gradient_noise_that_is_compensated(name):
    V = jnp.float32(0.8)
    c1, error = linear_term(SECOND_ORDER[name], 600, 300.0, noisy(V, V))
    assert abs(c1) < 4 * error
    assert error < 0.015
