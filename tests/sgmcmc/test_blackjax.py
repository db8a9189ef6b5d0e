"""Our kernels run in a BlackJAX loop, BlackJAX's kernels run in ours, and its NUTS is the reference for our HMC."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from blackjax.util import run_inference_algorithm

import fokker
from fokker.run.gradients import minibatch
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.kernel import Bound
from fokker.sgmcmc.rmld import rmld
from fokker.sgmcmc.sgld import sgld
from fokker.target import Target


@pytest.fixture(scope="module")
def regression():
    """Logistic regression, 200 rows, an intercept and two slopes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)).astype(np.float32) @ np.array([[1.0, 0.6], [0.0, 0.8]], np.float32)
    y = (rng.uniform(size=200) < 1 / (1 + np.exp(-(0.5 + X @ np.array([1.0, -0.7]))))).astype(np.float32)

    def log_likelihood(p, batch):
        eta = p["intercept"] + batch["X"] @ p["beta"]
        return batch["y"] * eta - jax.nn.softplus(eta)

    log_prior = lambda p: -(p["intercept"] ** 2 + p["beta"] @ p["beta"]) / 2
    start = {"intercept": np.float32(0.0), "beta": np.zeros(2, np.float32)}
    return Target(log_prior, log_likelihood, {"X": X, "y": y}, start=start)


def vectors(position):
    """Draws as (draws, 3)."""
    return np.concatenate([np.asarray(position["intercept"])[:, None], np.asarray(position["beta"])], axis=1)


def mean_and_mcse(x):
    ess = [array_stats.ess(c[None, :].astype(float), chain_axis=0, draw_axis=1, method="mean") for c in x.T]
    return x.mean(0), x.std(0) / np.sqrt(np.array(ess))


@pytest.fixture(scope="module")
def nuts(regression):
    """Mean, Monte Carlo error and standard deviation by BlackJAX's NUTS."""
    algorithm = blackjax.nuts(regression.log_density, step_size=0.25, inverse_mass_matrix=np.ones(3) / 20)
    _, (states, _) = run_inference_algorithm(jax.random.key(1), algorithm, 6_000, initial_position=regression.start)
    x = vectors(states.position)[500:]
    return *mean_and_mcse(x), x.std(0)


def test_our_hmc_in_a_blackjax_loop_agrees_with_nuts(regression, nuts):
    """`run_inference_algorithm` takes what `bind` returns as it is."""
    algorithm = hmc(0.3, leapfrog_steps=6, mass=20.0).bind(regression)
    final, (states, info) = run_inference_algorithm(
        jax.random.key(2), algorithm, 6_000, initial_position=regression.start
    )
    assert int(final.iteration) == 6_000
    assert info.accepted.mean() > 0.6
    x = vectors(states.position)[500:]
    mean, mcse = mean_and_mcse(x)
    want, reference_mcse, sd = nuts
    assert (mcse < 0.03 * sd).all()
    assert (np.abs(mean - want) < 4 * np.hypot(mcse, reference_mcse)).all()
    np.testing.assert_allclose(x.std(0), sd, rtol=0.06)


def test_our_sgld_in_a_blackjax_loop_with_batches(regression, nuts):
    """A stochastic-gradient kernel's step has the batch as a third argument, as theirs has."""
    algorithm = sgld(1e-3).bind(regression, minibatch())
    data = jax.tree.map(jnp.asarray, regression.data)

    def with_batch(key, state):
        k_rows, k_step = jax.random.split(key)
        rows = jax.random.choice(k_rows, 200, (50,))
        return algorithm.step(k_step, state, jax.tree.map(lambda leaf: leaf[rows], data))

    _, (states, _) = run_inference_algorithm(
        jax.random.key(3), algorithm._replace(step=with_batch), 30_000, initial_position=regression.start
    )
    mean, mcse = mean_and_mcse(vectors(states.position)[1000:])
    want, _, sd = nuts
    assert (np.abs(mean - want) < 4 * mcse + 0.1 * sd).all()


@dataclass(frozen=True)
class theirs_nuts:
    """BlackJAX's NUTS as a kernel of ours: `bind` is all there is to write."""

    step_size: float

    full_data = True

    def bind(self, target: Any, gradient: Any = None) -> Bound:
        algorithm = blackjax.nuts(target.log_density, self.step_size, np.ones(3, np.float32) / 20)

        def step(key, state, batch=None):
            jax_key = jax.random.fold_in(jax.random.wrap_key_data(key.words), key.iteration)
            return algorithm.step(jax_key, state)

        return Bound(lambda position, key=None: algorithm.init(position), step)


class Bare(NamedTuple):
    """A state around a bare position."""

    position: Any


@dataclass(frozen=True)
class theirs_sgld:
    """BlackJAX's SGLD, whose state is the bare position and whose step returns no info."""

    step_size: float

    def bind(self, target: Any, gradient: Any) -> Bound:
        grad = gradient.bind(target)
        estimate = lambda position, batch: -grad.estimate(None, position, batch, None)[0]
        algorithm = blackjax.sgld(estimate)

        def step(key, state, batch=None):
            jax_key = jax.random.fold_in(jax.random.wrap_key_data(key.words), key.iteration)
            return Bare(algorithm.step(jax_key, state.position, batch, self.step_size)), {}

        return Bound(lambda position, key=None: Bare(position), step)


# A metric sees the parameters as the user wrote them, whatever the run makes of them.
curved = lambda p: 0.05 + 0.02 * jnp.tanh(jnp.concatenate([p["beta"], p["intercept"][None]]))


@pytest.mark.parametrize(
    "kernel",
    [theirs_nuts(0.25), theirs_sgld(1e-3), hmc(0.3, leapfrog_steps=6, mass=20.0), rmld(0.6, metric_inverse=curved)],
    ids=["their nuts", "their sgld", "our hmc", "our rmld"],
)
def test_our_loop_runs_their_kernels_and_ours(regression, nuts, kernel):
    few = getattr(kernel, "full_data", False)
    run = fokker.sample(
        regression,
        kernel,
        draws=2_000 if few else 10_000,
        warmup=500,
        chains=2,
        seed=4,
        progress=False,
        batch_size=None if few else 50,
    )
    x = np.concatenate([np.asarray(run.draws["beta"]), np.asarray(run.draws["intercept"])[..., None]], axis=-1)
    want, reference_mcse, sd = (np.roll(a, -1) for a in nuts)
    for i in range(3):
        ess = array_stats.ess(x[..., i].astype(float), chain_axis=0, draw_axis=1, method="mean")
        mcse = x[..., i].std() / np.sqrt(ess)
        bias = 0.0 if few else 0.1 * sd[i]
        assert mcse < 0.1 * sd[i]
        assert abs(x[..., i].mean() - want[i]) < 4 * np.hypot(mcse, reference_mcse[i]) + bias
