"""SGGMC on an Oblique sphere by sphere: the same chain as array by array, in a run too."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import fokker
from fokker.geodesic import columns
from fokker.numeric.random_jax import Key
from fokker.run import blocks
from fokker.run.gradients import minibatch
from fokker.run.one_kernel import qualifies
from fokker.sgmcmc.schedules import polynomial

N, K = 256, 520  # more than the threshold in single precision; the last block of columns is not whole
PUSH = np.random.default_rng(0).standard_normal((N, K))
START = np.full((N, K), N**-0.5)
WORDS = jnp.array([3, 4], jnp.uint32)


def coupled(x):
    """A density in which the spheres pull each other."""
    return jnp.sum(PUSH.astype(x.dtype) * x) - 20 * jnp.sum((x * jnp.roll(x, 1, axis=1)) ** 2)


def target(log_density=coupled, start=START):
    return fokker.Target.from_log_density(log_density, start, space=fokker.Oblique(*start.shape))


def steps(bound, state, count):
    def one(state, t):
        return bound.step(Key(WORDS, t), state)

    return jax.jit(lambda s: jax.lax.scan(one, s, jnp.arange(count, dtype=jnp.uint32)))(state)


@pytest.mark.parametrize("integrator", ["aboba", "baoab"])
def test_sphere_by_sphere_is_the_chain_of_array_by_array(x64, integrator):
    kernel = fokker.sggmc(0.1, 2.0, integrator, schedule=polynomial(5.0, 0.6), scales=0.7)
    whole, key = target(), Key(WORDS, jnp.uint32(0))
    in_run = whole.ravelled(lambda theta: theta.reshape(N, K))
    by_array, by_sphere = (kernel.bind(t, minibatch()) for t in (whole, in_run))
    want, wanted = steps(by_array, by_array.init(jnp.asarray(START), key), 5)
    got, given = steps(by_sphere, by_sphere.init(jnp.asarray(START.ravel()), key), 5)
    assert isinstance(got, columns.State) and not isinstance(want, columns.State)
    assert np.abs(want.position - START).max() > 0.1
    assert_allclose(got.position, want.position.ravel(), atol=1e-12)
    assert_allclose(got.pairs[:, N:].T.ravel(), want.velocity, atol=1e-12)
    assert got.iteration == want.iteration == 5
    for name, values in wanted._asdict().items():
        assert_allclose(getattr(given, name), values, rtol=1e-12)


@pytest.mark.parametrize("integrator", ["aboba", pytest.param("baoab", marks=pytest.mark.slow)])
def test_a_run_is_one_function_and_resumes_to_the_same_bits(tmp_path, monkeypatch, integrator):
    kernel = fokker.sggmc(0.05, 2.0, integrator)
    rows = np.random.default_rng(1).standard_normal((50, N))
    of_rows = fokker.Target(lambda x: jnp.sum(PUSH.astype(x.dtype) * x), lambda x, a: a @ x[:, 0], rows,
                            space=fokker.Oblique(N, K), start=START)  # fmt: skip
    sample = partial(fokker.sample, of_rows, kernel, warmup=0, thin=3, batch_size=10, dtype="float32", progress=False)
    whole = sample(draws=4, chains=2).draws["theta"]
    monkeypatch.setattr("fokker.run.loop.os.sched_getaffinity", lambda pid: {0})  # one thread
    sample(draws=2, chains=2, store=tmp_path / "run")
    resumed = fokker.resume(tmp_path / "run", of_rows, kernel, draws=4, progress=False).draws["theta"]
    assert_array_equal(resumed, whole)
    assert_allclose(np.linalg.norm(whole, axis=2), 1, atol=1e-6)
    together = sample(draws=4, chains=2, share_batches=True).draws["theta"]
    assert_allclose(together[0], whole[0], atol=1e-5)  # the first chain's batches are those that are shared


@pytest.mark.parametrize("integrator", ["aboba", "baoab"])
def test_its_program_is_compiled_as_one_function(integrator):
    linear = target(lambda x: jnp.sum(PUSH.astype(x.dtype) * x)).ravelled(lambda theta: theta.reshape(N, K))
    bound = fokker.sggmc(0.05, integrator=integrator).bind(linear, minibatch())
    state = jax.eval_shape(lambda: bound.init(jnp.asarray(START.ravel(), jnp.float32), Key(WORDS, jnp.uint32(0))))
    advance = blocks._advance(bound, blocks.Feed("none"), 1, lambda one, *of_chains: one(*of_chains), False)
    one = jnp.int32(1)
    assert qualifies(jax.make_jaxpr(advance)(state, WORDS, jnp.uint32(0), one, one, None, jnp.zeros(1, jnp.int32)))


@pytest.mark.parametrize(
    "kernel, gradient, space",
    [
        (fokker.sggmc(0.1), minibatch(), fokker.Oblique(N, 100)),  # stays in the cache
        (fokker.sggmc(0.1), minibatch(), fokker.Oblique(4, N * K)),  # short columns
        (fokker.sggmc(0.1, steps_per_batch=2), minibatch(), fokker.Oblique(N, K)),
        (fokker.sggmc(0.1), minibatch(noise="scalar"), fokker.Oblique(N, K)),
        (fokker.sggmc(0.1), minibatch(), fokker.Euclidean(N, K)),
    ],
    ids=["small", "short", "one batch", "noise", "flat"],
)
def test_where_it_does_not_apply_steps_are_as_ever(kernel, gradient, space):
    shape = space.shape
    flat = fokker.Target.from_log_density(jnp.sum, space=space).ravelled(lambda theta: theta.reshape(shape))
    state = jax.eval_shape(
        lambda: kernel.bind(flat, gradient).init(jnp.full(shape, shape[0] ** -0.5).ravel(), Key(WORDS, jnp.uint32(0)))
    )
    assert not isinstance(state, columns.State)
