"""Which programs are compiled as one function, and that they compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.run.one_kernel import MAX_ENTRIES, compiled, qualifies

A, v = jnp.ones((30, 20)), jnp.ones(20)


def loop(step):
    return lambda x: jax.lax.fori_loop(0, 5, lambda i, x: step(x), x)


SIMPLE = {
    "elementwise": lambda x: jnp.tanh(x) + 0.1 * jnp.exp(-(x**2)),
    "matrix times vector": lambda x: x - 0.01 * A.T @ (A @ x),
    "norm": lambda x: x / jnp.sqrt(1 + x @ x),
    "window of rows": lambda x: x - 0.01 * jax.lax.dynamic_slice(A, (jnp.int32(x[0] > 0), 0), (5, 20)).T @ jnp.ones(5),
}  # fmt: skip
OTHER = {
    "matrix product": lambda x: x + (A @ A.T)[0, 0],
    "cholesky": lambda x: x + jnp.linalg.cholesky(jnp.eye(20) * (2 + x[0]))[0],
    "gather": lambda x: x[jnp.argsort(x)],
    "sum over rows": lambda x: x + (A * x).sum(0),
    "large matrix": lambda x: x + (jnp.ones((MAX_ENTRIES // 20 + 1, 20)) @ x)[0],
}


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_steps_qualify_and_compute_the_same(name):
    program, x = loop(SIMPLE[name]), jnp.linspace(-1, 1, 20)
    assert qualifies(jax.make_jaxpr(program)(x))
    np.testing.assert_allclose(compiled(program)(x), jax.jit(program)(x), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", OTHER)
def test_other_steps_are_compiled_the_ordinary_way(name):
    program, x = loop(OTHER[name]), jnp.linspace(-1, 1, 20)
    assert not qualifies(jax.make_jaxpr(program)(x))
    np.testing.assert_array_equal(compiled(program)(x), jax.jit(program)(x))
