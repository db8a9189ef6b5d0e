"""``fokker.vmf`` as users meet it: one name for NumPy and JAX. What it computes is tested in numeric/test_vmf.py."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import fokker
from fokker import vmf
from fokker.errors import InputError, SpaceError

D = 60  # where the expansion needs no steps and little compilation
FUNCTIONS = {vmf.log_normaliser: 40.0, vmf.mean_length: 40.0, vmf.mean_length_slope: 40.0, vmf.concentration: 0.5}
functions = pytest.mark.parametrize("f, argument", FUNCTIONS.items(), ids=lambda f: getattr(f, "__name__", ""))
E1 = np.array([1.0, 0.0, 0.0])


@functions
def test_numpy_gives_float64_and_jax_gives_jax_and_its_derivative(f, argument, x64):
    one, many = f(D, argument), f(D, np.full(4, argument, np.float32))
    assert type(one) is float
    assert type(many) is np.ndarray and many.dtype == np.float64 and many.shape == (4,)
    assert many == pytest.approx(one, rel=1e-6)
    value, slope = jax.jit(jax.value_and_grad(lambda x: f(D, x)))(argument)
    assert isinstance(value, jax.Array) and value.dtype == jnp.float64
    assert float(value) == pytest.approx(one, rel=1e-13)
    h = 1e-5 * argument
    assert float(slope) == pytest.approx((f(D, argument + h) - f(D, argument - h)) / (2 * h), rel=1e-8)


def test_jax_in_single_precision_stays_there():
    A = vmf.mean_length(D, jnp.float32(40.0))
    assert isinstance(A, jax.Array) and A.dtype == jnp.float32
    assert float(A) == pytest.approx(vmf.mean_length(D, 40.0), rel=1e-6)


def test_dimensions_broadcast_on_the_host():
    assert vmf.mean_length(np.array([[2], [5000]]), np.array([1.0, 2.0, 3.0])).shape == (2, 3)


def test_small_cases_are_those_of_scipy():
    x = vmf.sample(np.random.default_rng(0), E1, 3.0, 50)
    np.testing.assert_allclose(vmf.log_density(x, E1, 3.0), stats.vonmises_fisher(E1, 3.0).logpdf(x), rtol=1e-12)
    assert vmf.mean_length(8, 4.0) == pytest.approx(special.ive(4, 4.0) / special.ive(3, 4.0), rel=1e-13)
    assert special.ive(2499, 1000.0) == 0 < vmf.mean_length(5000, 1000.0)  # why it is not made of these


def test_draws_come_from_a_generator_or_a_key():
    assert vmf.sample(np.random.default_rng(0), E1, 3.0).shape == (3,)
    assert vmf.sample(np.random.default_rng(0), E1, [3.0, 4.0], (5, 2)).dtype == np.float64
    of_key = vmf.sample(jax.random.key(0), E1, 3.0, 5)
    assert isinstance(of_key, jax.Array) and of_key.shape == (5, 3)
    np.testing.assert_array_equal(of_key, vmf.sample(jax.random.key(0), E1, 3.0, (5,)))
    for nothing in (0, None, np.random, np.random.RandomState(0)):
        with pytest.raises(InputError, match="a JAX key, got"):
            vmf.sample(nothing, E1, 3.0)


def test_densities_serve_as_targets_and_are_differentiable(x64):
    A = np.diag([1.0, 2.0, 4.0])
    x = jnp.asarray([0.6, 0.0, 0.8])
    for density, ambient in (
        (lambda x: vmf.log_density(x, E1, 5.0), 5 * E1),
        (lambda x: vmf.bingham_log_density(x, A), 2 * A @ x),
        (lambda x: vmf.fisher_bingham_log_density(x, 5 * E1, A), 5 * E1 + 2 * A @ x),
    ):
        np.testing.assert_allclose(jax.jit(jax.grad(density))(x), ambient, atol=1e-14)


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_what_is_out_of_range_is_refused(of):
    for f in (vmf.log_normaliser, vmf.mean_length, vmf.mean_length_slope):
        with pytest.raises(InputError, match="kappa must be >= 0"):
            f(3, of(-1.0))
        with pytest.raises(InputError, match="d must be a whole number >= 2"):
            f(1, of(1.0))
    for R in (-0.1, 1.0):
        with pytest.raises(InputError, match=r"must be in \[0, 1\)"):
            vmf.concentration(3, of(R))
    with pytest.raises(SpaceError, match="x must have length 1"):
        vmf.log_density(of([1.0, 1.0, 0.0]), E1, 1.0)
    with pytest.raises(InputError, match="same length"):
        vmf.log_density(of([1.0, 0.0]), E1, 1.0)


def test_without_jax_it_does_not_load_jax():
    code = "import fokker, sys; print(fokker.vmf.mean_length(3, 5.0), 'jax' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(said[0]) == pytest.approx(1 / math.tanh(5) - 1 / 5)
    assert said[1] == "False"


def test_it_is_an_attribute_of_the_package():
    assert fokker.vmf is vmf and "vmf" in fokker.__all__
