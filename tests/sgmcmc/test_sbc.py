"""Simulation-based calibration (Talts et al. 2018) of the kernels with a Metropolis test, on a conjugate model.

theta ~ Normal(0, I), y_i ~ Normal(theta_1 + theta_2 x_i, 1), 20 rows: draw theta, then data, then sample the posterior.
The rank of theta among nearly independent draws of its own posterior is uniform if and only if the sampler is right.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from fokker.numeric.random_jax import Key
from fokker.sgmcmc import hmc as hmc_module
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.rmhmc import rmhmc
from fokker.sgmcmc.rmld import rmld
from fokker.target import Target
from tests.chains import keys

N, DRAWS, THIN, WARMUP = 20, 15, 10, 60
X = np.linspace(-1.5, 1.5, N)


def model(scale=1.0):
    """The target; a wrong N / n is a wrong scale of the likelihood."""
    log_prior = lambda p: -(p["level"] ** 2 + p["slope"] ** 2) / 2
    row = lambda p, batch: -scale * (batch["y"] - p["level"] - p["slope"] * batch["x"]) ** 2 / 2
    return Target(log_prior, row, {"x": X, "y": np.zeros(N)})


def ranks(kernel, target, replications, seed=0):
    """Ranks of both parameters in every replication, (replications, 2), in 0 .. DRAWS."""
    bound = kernel.bind(target)
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(replications, 2)).astype(np.float32)
    y = (truth[:, :1] + truth[:, 1:] * X + rng.normal(size=(replications, N))).astype(np.float32)

    def one(words, truth, y):
        batch = {"x": jnp.asarray(X, jnp.float32), "y": y}
        state = bound.init({"level": jnp.zeros(()), "slope": jnp.zeros(())}, None)

        def step(t, state):
            return bound.step(Key(words, t.astype(jnp.uint32)), state, batch)[0]

        state = jax.lax.fori_loop(0, WARMUP, step, state)

        def draw(state, k):
            first = WARMUP + k * THIN
            state = jax.lax.fori_loop(first, first + THIN, step, state)
            return state, jnp.stack([state.position["level"], state.position["slope"]])

        _, draws = jax.lax.scan(draw, state, jnp.arange(DRAWS))
        return (draws < truth).sum(0)

    return np.asarray(jax.jit(jax.vmap(one))(keys(seed, replications), truth, y))


def p_values(ranks):
    """Of uniformity, one for each parameter."""
    return [chisquare(np.bincount(ranks[:, i], minlength=DRAWS + 1)).pvalue for i in range(ranks.shape[1])]


curved = lambda p: jnp.stack([1 / (1 + p["level"] ** 2), 1 / (1 + p["slope"] ** 2 / 2)]) / 20
KERNELS = {
    "hmc": hmc(0.3, leapfrog_steps=3),
    "hmc, mass": hmc(0.3, leapfrog_steps=3, mass=np.array([[1.0, 0.3], [0.3, 1.0]])),
    "rmld": rmld(0.5, metric_inverse=curved),
    "rmhmc": rmhmc(0.7, leapfrog_steps=3, metric_inverse=curved),
}


@pytest.mark.parametrize("replications", [2_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_ranks_are_uniform(name, replications):
    values = p_values(ranks(KERNELS[name], model(), replications))
    print(name, replications, values)
    assert min(values) > 1e-3


SLOW = pytest.mark.slow
WRONG = [("hmc", 0.5), ("rmld", 2.0), ("rmhmc", 0.5)]
MORE = [pytest.param(name, 2.5 - scale, marks=SLOW) for name, scale in WRONG]


@pytest.mark.parametrize("name, scale", WRONG + MORE)
def test_a_wrong_scale_of_the_likelihood_is_seen(name, scale):
    assert min(p_values(ranks(KERNELS[name], model(scale), 2_000))) < 1e-9


def test_a_wrong_sign_of_acceptance_is_seen(monkeypatch):
    right = hmc_module.metropolis
    monkeypatch.setattr(hmc_module, "metropolis", lambda key, h, new, stream: right(key, -h, -new, stream))
    assert min(p_values(ranks(KERNELS["hmc"], model(), 2_000))) < 1e-9


def test_steps_are_large_enough_to_need_the_test():
    """Without the Metropolis test HMC at this step fails the calibration, so that passing it says something."""
    with pytest.MonkeyPatch.context() as patch:
        right = hmc_module.metropolis
        patch.setattr(hmc_module, "metropolis", lambda key, h, new, stream: right(key, h, h, stream))
        assert min(p_values(ranks(hmc(0.42, leapfrog_steps=3), model(), 2_000))) < 1e-6
