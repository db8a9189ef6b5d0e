"""Sums that are laid in pieces are the sums they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.numeric.sums import PIECES, dot


@pytest.mark.parametrize("n", [1, 5, 4 * PIECES - 1, 4 * PIECES, 100, 1000, 1007])
def test_a_dot_product_of_any_length_counts_every_entry_once(n):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-8, 9, n).astype(np.float32) for _ in range(2))  # whole numbers: float32 is exact
    assert float(dot(jnp.asarray(a), jnp.asarray(b))) == a.astype(int) @ b.astype(int)


def test_of_matrices_it_is_taken_column_by_column():
    a = np.arange(600.0, dtype=np.float32).reshape(200, 3) % 7
    np.testing.assert_array_equal(dot(jnp.asarray(a), jnp.asarray(a)), (a * a).sum(0))


def test_it_is_differentiated_as_any_sum():
    a, b = (jnp.asarray(np.random.default_rng(s).normal(size=133).astype(np.float32)) for s in (0, 1))
    np.testing.assert_allclose(jax.grad(dot)(a, b), b, rtol=1e-6)
