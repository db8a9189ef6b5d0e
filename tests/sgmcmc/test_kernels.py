"""What every kernel promises whoever runs it: any pytree, either precision, either kind of key, vmap and scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.rmhmc import rmhmc
from fokker.sgmcmc.rmld import rmld
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.sgmcmc.sgrhmc import sgrhmc
from fokker.sgmcmc.sgrld import sgrld
from fokker.target import Target
from tests.laws import LAWS

ROWS = np.random.default_rng(0).normal(size=(40, 3))


def log_likelihood(p, batch):
    return -((batch - jnp.concatenate([p["a"], p["b"][None]])) ** 2).sum(1) / 2


def log_prior(p):
    return -((p["a"] ** 2).sum() + p["b"] ** 4) / 2


def metric_inverse(p):
    x = jnp.concatenate([p["a"], p["b"][None]])
    return jnp.eye(3, dtype=x.dtype) / 8 + jnp.outer(jnp.cos(x), jnp.cos(x)) / 20


KERNELS = [
    (sgld(0.01), minibatch()),
    (psgld(0.001, adapt_steps=3), minibatch()),
    (sgfs(0.1), minibatch(noise="dense")),
    (sghmc(0.05), minibatch(noise="diagonal")),
    (sgnht(0.05), minibatch()),
    (sgrld(0.02, metric_inverse), minibatch(noise="low_rank", rank=2)),
    (sgrhmc(0.1, metric_inverse), minibatch(noise="dense")),
    (hmc(0.2, leapfrog_steps=3), minibatch()),
    (rmld(0.2, metric_inverse), minibatch()),
    (rmhmc(0.3, 2, metric_inverse=metric_inverse), minibatch()),
]
STEPS = 6


def chain(kernel, gradient, target, position, words, keys=None):
    """Positions of a few steps, (STEPS, ...), and the infos; with our keys, or with the JAX keys given."""
    bound = kernel.bind(target, gradient)
    rows = target.data if getattr(kernel, "full_data", False) else target.data[:10]
    first = Key(words, jnp.uint32(1000)) if keys is None else keys[0]
    key_of = (lambda t: Key(words, t)) if keys is None else (lambda t: keys[t])

    def one(state, t):
        state, info = bound.step(key_of(t), state, rows)
        return state, (state.position, info)

    return jax.lax.scan(one, bound.init(position, first), jnp.arange(STEPS, dtype=jnp.uint32))[1]


def start(dtype):
    return {"a": jnp.array([0.3, -0.2], dtype), "b": jnp.array(0.1, dtype)}


def target_in(dtype):
    return Target(log_prior, log_likelihood, jnp.asarray(ROWS, dtype))


@pytest.mark.parametrize(("kernel", "gradient"), KERNELS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pytree_moves_as_its_vector_does_in_its_precision(kernel, gradient, dtype):
    with jax.enable_x64(dtype == "float64"):
        target, words = target_in(dtype), jnp.array([3, 4], jnp.uint32)
        run = lambda target, p: jax.jit(lambda p: chain(kernel, gradient, target, p, words))(p)
        tree, info = run(target, start(dtype))
        joined = np.concatenate([tree["a"], tree["b"][:, None]], axis=1)
        assert tree["a"].dtype == tree["b"].dtype == dtype
        assert joined.shape == (STEPS, 3)
        assert np.ptp(joined, axis=0).min() > 0  # it moves
        for leaf in jax.tree.leaves(info):
            assert leaf.shape == (STEPS,)
            assert np.isfinite(leaf).all()
        if dtype == "float32":
            return  # the comparison below needs its own program, and 1e-11 says more than 1e-4
        vector = jnp.array([0.3, -0.2, 0.1], dtype)
        flat, _ = run(target.ravelled(lambda x: {"a": x[:2], "b": x[2]}), vector)
        np.testing.assert_allclose(joined, flat, rtol=1e-11)


@pytest.mark.parametrize(("kernel", "gradient"), KERNELS, ids=lambda x: type(x).__name__)
def test_chains_side_by_side_are_the_chains_one_by_one(kernel, gradient):
    target, position = target_in("float32"), start("float32")
    typed = jax.random.split(jax.random.key(5), 2 * STEPS).reshape(2, STEPS)
    run = jax.jit(lambda keys: chain(kernel, gradient, target, position, None, keys)[0])
    together = jax.jit(jax.vmap(lambda keys: chain(kernel, gradient, target, position, None, keys)[0]))(typed)
    for i in range(2):
        alone = run(typed[i])
        jax.tree.map(lambda one, all_, i=i: np.testing.assert_allclose(all_[i], one, rtol=2e-4), alone, together)


def test_raw_jax_keys_do_as_typed_ones():
    typed = jax.random.split(jax.random.key(5), STEPS)
    run = lambda keys: chain(sgld(0.01), minibatch(), target_in("float32"), start("float32"), None, keys)[0]
    jax.tree.map(np.testing.assert_array_equal, run(typed), run(jax.random.key_data(typed)))


def test_every_sampler_is_here():
    assert {type(kernel).__name__ for kernel, _ in KERNELS} == {law.kernel for law in LAWS if law.folder == "sgmcmc"}
