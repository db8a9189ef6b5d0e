"""RMLD is reversible with respect to exp(-U), for any metric and any step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fokker.errors import InputError
from fokker.numeric.random_jax import Key, normal
from fokker.sgmcmc import rmld as module
from fokker.sgmcmc.rmld import PROPOSAL, rmld
from fokker.target import Target
from tests.chains import move
from tests.synthetic import BANANA_MOMENTS, banana, banana_draws, standard_errors_off


def scalar(x):
    return 0.3 + x[0] ** 2 / 4


def diagonal(x):
    return jnp.stack([1 / (1 + x[1] ** 2), 0.2 + x[0] ** 2 / 4])


def dense(x):
    a = jnp.stack([jnp.ones(()), x[0] / 2])
    return jnp.diag(jnp.asarray([0.2, 0.1])) + jnp.outer(a, a) / (1 + x[1] ** 2 / 2)


METRICS = [scalar, diagonal, dense]
STEP = {scalar: 0.1, diagonal: 0.1, dense: 0.15}


def as_matrix(metric, x):
    D = np.asarray(metric(jnp.asarray(x)))
    return D if D.ndim == 2 else np.diag(np.broadcast_to(D, 2))


def proposal(metric, x, eps):
    """The normal law of the proposal from x, with Gamma by central differences: nothing of the kernel's code."""
    D, h = as_matrix(metric, x), 1e-5
    derivative = lambda f: np.stack([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(2)])
    gradient = derivative(lambda y: float(banana(jnp.asarray(y))))
    gamma = np.einsum("jij->i", derivative(lambda y: as_matrix(metric, y)))
    return multivariate_normal(x + eps * (gamma - D @ gradient), 2 * eps * D)


@pytest.mark.parametrize("metric", METRICS)
def test_detailed_balance(metric, x64):
    """pi(x) q(x -> y) a(x, y) = pi(y) q(y -> x) a(y, x), i.e. a(x, y) / a(y, x) is the ratio and one of them is 1."""
    eps = 0.2
    bound = rmld(eps, metric_inverse=metric).bind(Target.from_log_density(lambda x: -banana(x)))
    step = jax.jit(bound.step)
    lower = 0
    for t, x in enumerate(banana_draws(4, 12)):
        key = Key(jnp.array([7, 8], jnp.uint32), jnp.uint32(t))
        there = proposal(metric, x, eps)
        z = np.asarray(normal(key, (2,), PROPOSAL, jnp.float64))
        y = there.mean + np.linalg.cholesky(there.cov) @ z
        _, info = step(key, bound.init(jnp.asarray(x)))
        back = proposal(metric, y, eps)
        log_ratio = float(banana(x)) - float(banana(y)) + back.logpdf(x) - there.logpdf(y)
        assert float(info.acceptance_probability) == pytest.approx(np.exp(min(0.0, log_ratio)), rel=1e-6, abs=1e-12)
        lower += log_ratio < 0
    assert 2 < lower < 12


@pytest.mark.parametrize("metric", METRICS)
def test_exact_draws_stay_exact(metric):
    end, info = move(rmld(STEP[metric], metric_inverse=metric), banana, banana_draws(1, 40_000), 30)
    assert 0.4 < info.accepted.mean() < 0.9
    for name, (f, mean) in BANANA_MOMENTS.items():
        assert abs(standard_errors_off(f(end), mean)) < 4, name


def test_the_test_above_sees_a_proposal_density_without_its_determinant(monkeypatch):
    right = module.log_density
    no_determinant = lambda proposal, point: right(proposal, point) + jnp.log(proposal.root).sum()
    monkeypatch.setattr(module, "log_density", no_determinant)
    end, _ = move(rmld(0.1, metric_inverse=diagonal), banana, banana_draws(1, 40_000), 30)
    assert max(abs(standard_errors_off(f(end), mean)) for f, mean in BANANA_MOMENTS.values()) > 10


def test_a_wrong_closed_gamma_is_refused_where_a_chain_starts():
    target = Target.from_log_density(lambda x: -banana(x))
    right = lambda x: jnp.stack([x[0] / 2, jnp.zeros(())])
    rmld(0.1, metric_inverse=scalar, gamma=right).bind(target).init(jnp.ones(2))
    with pytest.raises(InputError, match="differentiation gives"):
        rmld(0.1, metric_inverse=scalar, gamma=lambda x: -right(x)).bind(target).init(jnp.ones(2))


def test_what_is_not_finite_is_rejected():
    potential = lambda x: jnp.where(x[0] > 0, x[0] ** 2 / 2, jnp.nan) + x[1] ** 2 / 2
    start = np.abs(np.random.default_rng(5).normal(size=(20_000, 2))).astype(np.float32)
    end, info = move(rmld(0.3, metric_inverse=lambda x: jnp.ones(())), potential, start, 20)
    assert (end[:, 0] > 0).all()
    assert info.diverging.mean() > 0.05
    assert not (info.accepted & info.diverging).any()
    assert abs(standard_errors_off(end[:, 0], np.sqrt(2 / np.pi))) < 4
