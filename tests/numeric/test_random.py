"""The generator: known answers, the same bits in Numba and JAX, and the law of its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fokker.numeric import random, random_jax

KNOWN_ANSWERS = [  # rounds, key, counter, output: published test vectors of threefry2x32
    (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    (20, (0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
]


@pytest.mark.parametrize("rounds, key, counter, want", KNOWN_ANSWERS)
def test_known_answers_of_threefry(rounds, key, counter, want):
    assert random.threefry2x32(*key, *counter, rounds) == want
    got = random_jax.threefry2x32(*(jnp.uint32(w) for w in (*key, *counter)), rounds)
    assert tuple(int(w) for w in got) == want


def test_twenty_rounds_are_those_of_jax():
    key = jax.random.key(7)
    words = jax.random.key_data(key)
    counter = jnp.arange(8, dtype=jnp.uint32)
    from jax.extend.random import threefry_2x32

    want = threefry_2x32(words, counter)
    got = jnp.concatenate(random_jax.threefry2x32(words[0], words[1], counter[:4], counter[4:], 20))
    assert (got == want).all()


def test_numba_and_jax_give_the_same_bits():
    words = random.chain_words(seed=2**40 + 5, chain=3)
    key = random_jax.Key(jnp.asarray(words), jnp.uint32(123456))
    got = np.asarray(random_jax.uniform(key, (10_001,), stream=5))
    assert (got == random.uniforms(words, 123456, 5, 10_001)).all()


def test_a_number_does_not_depend_on_the_shape_it_is_drawn_in():
    key = random_jax.Key(jnp.array([1, 2], jnp.uint32), jnp.uint32(9))
    short, long = random_jax.bits(key, (10,))[0], random_jax.bits(key, (5, 20))[0].ravel()[:10]
    assert (short == long).all()


N = 1_000_000
FAMILIES = {  # how one million numbers are spread over the counters
    "one step": lambda f: f(random_jax.Key(jnp.array([1, 2], jnp.uint32), jnp.uint32(0)), (N,)),
    "across iterations": lambda f: jax.vmap(lambda t: f(random_jax.Key(jnp.array([1, 2], jnp.uint32), t), (10,)))(
        jnp.arange(N // 10, dtype=jnp.uint32)
    ).ravel(),
    "across chains": lambda f: jax.vmap(lambda w: f(random_jax.Key(w, jnp.uint32(5)), (1000,)))(
        jnp.stack([jnp.asarray(random.chain_words(0, c)) for c in range(N // 1000)])
    ).ravel(),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_normals_are_standard_and_uncorrelated(family):
    z = np.asarray(jax.jit(lambda: FAMILIES[family](random_jax.normal))(), dtype=np.float64)
    moments = [(z.mean(), 0, 1), ((z**2).mean(), 1, 2), ((z**3).mean(), 0, 15), ((z**4).mean(), 3, 96)]
    for got, want, variance in moments:
        assert abs(got - want) < 4 * np.sqrt(variance / z.size)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    for lag in (1, 2, 10, 1000):
        assert abs((z[:-lag] * z[lag:]).mean()) < 4 / np.sqrt(z.size)


@pytest.mark.parametrize("family", FAMILIES)
def test_uniforms_fill_cells_evenly(family):
    u = np.asarray(jax.jit(lambda: FAMILIES[family](random_jax.uniform))(), dtype=np.float64)
    assert 0 < u.min() and u.max() <= 1
    counts = np.histogram2d(u[::2], u[1::2], bins=32, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_double_precision_normals():
    with jax.enable_x64(True):
        z = random_jax.normal(jax.random.key(0), (200_000,), dtype=jnp.float64)
        assert z.dtype == jnp.float64
        assert stats.kstest(np.asarray(z), "norm").pvalue > 1e-4


def test_integers_are_uniform_below_the_bound():
    index = np.arange(300_000)
    got = random.integers(random.chain_words(1, 0), index, np.zeros_like(index), 7)
    assert got.min() == 0 and got.max() == 6
    assert stats.chisquare(np.bincount(got, minlength=7)).pvalue > 1e-4
    large = random.integers(random.chain_words(1, 1), index, np.zeros_like(index), 2**32)
    assert stats.kstest(large / 2**32, "uniform").pvalue > 1e-4


def test_permutations_are_permutations_and_differ():
    orders = [random.permutation(random.chain_words(s, 0), 1000) for s in range(2)]
    assert all((np.sort(o) == np.arange(1000)).all() for o in orders)
    assert (orders[0] != orders[1]).mean() > 0.98
