"""Bingham's and the Fisher-Bingham density on the sphere: moments of the samplers' draws against quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest

from fokker import Oblique, gmc, sggmc, vmf
from tests.chains import averages

TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
MATRIX = (TURN * [-2.0, 0.0, 1.5]) @ TURN.T
KENT = 3.0 * TURN[:, 0], (TURN * [0.0, -1.2, 1.2]) @ TURN.T  # v and A of Kent's density: A v = 0, tr A = 0
BINGHAM = lambda x: vmf.bingham_log_density(x, MATRIX)
FISHER_BINGHAM = lambda x: vmf.fisher_bingham_log_density(x, *KENT)
INDEX = np.triu_indices(3)


def quadrature(log_density, nodes=80):
    """E x and E x x^T (upper triangle) on the sphere: Gauss in height, trapezoidal around; exact to rounding."""
    z, weight = np.polynomial.legendre.leggauss(nodes)
    angle = 2 * np.pi * np.arange(2 * nodes) / (2 * nodes)
    ring = np.sqrt(1 - z**2)[:, None]
    x = np.stack(np.broadcast_arrays(ring * np.cos(angle), ring * np.sin(angle), z[:, None]), -1)
    p = np.exp(np.asarray(log_density(x))) * weight[:, None]
    p /= p.sum()
    square = np.einsum("ij,ijk,ijl->kl", p, x, x)
    return np.concatenate([np.einsum("ij,ijk->k", p, x), square[INDEX]])


def exact_draws(rng, log_density, count):
    """By rejection from uniform points; (count, 3)."""
    x = vmf.sample(rng, np.eye(3)[0], 0.0, 200 * count)
    log_p = np.asarray(log_density(x))
    return x[np.log(rng.random(len(x))) < log_p - log_p.max()][:count]


def moments(state):
    return jnp.concatenate([jnp.concatenate([x, jnp.outer(x, x)[INDEX]]) for x in state.position.T])


def test_quadrature_knows_the_mean_of_von_mises_and_fisher():
    got = quadrature(lambda x: vmf.log_density(x, TURN[:, 0], 5.0))[:3]
    np.testing.assert_allclose(got, vmf.mean_length(3, 5.0) * TURN[:, 0], atol=1e-14)


@pytest.mark.parametrize("kernel, steps", [(gmc(0.4, 4), 500), (sggmc(0.05), 4000)], ids=["gmc", "sggmc"])
def test_bingham_and_fisher_bingham_have_their_moments(kernel, steps):
    """One chain walks on two spheres, with a density on each; the bias of sggmc is of order eps^2."""
    potential = lambda p: -BINGHAM(p[:, 0]) - FISHER_BINGHAM(p[:, 1])
    rng = np.random.default_rng(1)
    start = np.stack([exact_draws(rng, density, 200) for density in (BINGHAM, FISHER_BINGHAM)], -1).astype(np.float32)
    got = averages(kernel, potential, start, steps, moments, space=Oblique(3, 2))
    error = got.std(0, ddof=1) / np.sqrt(len(got))
    want = np.concatenate([quadrature(BINGHAM), quadrature(FISHER_BINGHAM)])
    bias = 0 if isinstance(kernel, gmc) else 1e-3
    assert (np.abs(got.mean(0) - want) < 4 * error + bias).all(), (got.mean(0) - want) / error
    squares = np.r_[3:9, 12:18]
    assert error.max() < 1e-2 and error[squares].max() < 3e-3  # the means wait for changes of the mode
