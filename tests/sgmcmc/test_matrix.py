"""The noise that compensates gradient noise has covariance 2 eps D - eps^2 B-hat in every form, and tells its share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fokker.sgmcmc import matrix
from fokker.sgmcmc.matrix import LowRank
from tests.oracles import STREAMS, normals_given, spd

D = 4
RNG = np.random.default_rng(0)
MATRICES = {"scalar": np.array(1.7), "diagonal": RNG.uniform(0.5, 2, D), "dense": spd(RNG, D)}
TAKEN = {
    "none": None,
    "scalar": np.array(0.3),
    "diagonal": RNG.uniform(0.1, 0.3, D),
    "dense": spd(RNG, D, 0.05, 0.3),
    "low rank 1": LowRank(0.2 * RNG.normal(size=(D, 1))),
    "low rank 2": LowRank(0.2 * RNG.normal(size=(D, 2))),
    "low rank with a zero": LowRank(np.c_[0.2 * RNG.normal(size=(D, 2)), np.zeros(D)]),
}


def dense(value):
    if value is None:
        return np.zeros((D, D))
    return np.asarray(matrix.as_dense(jax.tree.map(jnp.asarray, value), D))


def draw_factor(injected, taken, **settings):
    """F with draw = F z, by differentiation, and the share."""

    def draw(z):
        with normals_given(jnp.zeros((STREAMS, D), z.dtype).at[0].set(z)):
            return matrix.compensated_normal(None, injected, taken, D, z.dtype, **settings)

    F, share = jax.jacfwd(lambda z: draw(z)[0])(jnp.ones(D)), draw(jnp.ones(D))[1]
    return np.asarray(F), float(share)


@pytest.mark.parametrize("injected", MATRICES)
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("root_known", [False, True])
def test_the_draw_has_the_compensated_covariance_and_share(x64, injected, taken, root_known):
    give, take = jnp.asarray(MATRICES[injected]), jax.tree.map(jnp.asarray, TAKEN[taken])
    F, share = draw_factor(give, take, injected_root=matrix.root(give) if root_known else None)
    assert_allclose(F @ F.T, dense(give) - dense(take), atol=1e-14)
    shares = np.linalg.eigvals(np.linalg.solve(dense(give), dense(take))).real
    assert_allclose(share, shares.max(), atol=1e-14)


@pytest.mark.parametrize("injected", MATRICES)
@pytest.mark.parametrize("taken", [name for name in TAKEN if name != "none"])
def test_eps_over_share_is_the_largest_step_that_compensates(x64, injected, taken):
    """2 eps D - eps^2 V is PSD up to that step and not beyond."""
    diffusion, V = dense(MATRICES[injected]), dense(TAKEN[taken])
    eps = 0.01
    take = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) * (eps if isinstance(TAKEN[taken], LowRank) else eps**2), TAKEN[taken]
    )
    _, share = draw_factor(2 * eps * jnp.asarray(MATRICES[injected]), take)
    limit = eps / share
    least = lambda h: np.linalg.eigvalsh(2 * h * diffusion - h**2 * V).min()
    assert least(limit * (1 - 1e-9)) > -1e-15 > least(limit * (1 + 1e-6))


@pytest.mark.parametrize("injected", MATRICES)
@pytest.mark.parametrize("taken", [name for name in TAKEN if name != "none"])
def test_beyond_the_limit_only_the_directions_beyond_lose_their_noise(x64, injected, taken):
    """The whitened covariance is max(0, 1 - share) in each direction, never negative, never more than was injected."""
    give = jnp.asarray(MATRICES[injected])
    take = jax.tree.map(lambda leaf: 10.0 * jnp.asarray(leaf), TAKEN[taken])
    F, share = draw_factor(give, take)
    assert share > 1
    L = np.linalg.cholesky(dense(give))
    whiten = lambda S: np.linalg.solve(L, np.linalg.solve(L, S).T)
    values, axes = np.linalg.eigh(whiten(dense(take)))
    assert_allclose(whiten(F @ F.T), axes * np.maximum(1 - values, 0) @ axes.T, atol=1e-13)


@pytest.mark.parametrize("form", MATRICES)
def test_products_roots_and_inverses_agree_with_the_dense_matrix(x64, form):
    given, full = jnp.asarray(MATRICES[form]), dense(MATRICES[form])
    v = jnp.asarray(RNG.normal(size=D))
    assert_allclose(matrix.times(given, v), full @ v, atol=1e-14)
    assert_allclose(matrix.times(matrix.inverse(given), full @ v), v, atol=1e-13)
    L = dense(matrix.root(given))
    assert_allclose(L @ L.T, full, atol=1e-14)
    assert_allclose(matrix.root_times(given, v), L @ v, atol=1e-14)


@pytest.mark.parametrize("outer", MATRICES)
@pytest.mark.parametrize("inner", [name for name in TAKEN if name != "none"])
def test_a_sandwich_is_outer_inner_outer_transposed(x64, outer, inner):
    given = jnp.asarray(MATRICES[outer])
    if outer == "dense":
        given = given.at[0, 1].add(0.7)  # the order matters for one that is not symmetric
    full = np.asarray(given) if outer == "dense" else dense(MATRICES[outer])
    got = matrix.sandwich(given, jax.tree.map(jnp.asarray, TAKEN[inner]))
    assert isinstance(got, LowRank) == isinstance(TAKEN[inner], LowRank)
    assert_allclose(dense(got), full @ dense(TAKEN[inner]) @ full.T, atol=1e-14)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_low_rank_and_dense_compensation_agree(d, rank, seed):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        factor, give = jnp.asarray(rng.normal(size=(d, rank))), jnp.asarray(rng.uniform(0.5, 2, d))
        draws = []
        for taken in (LowRank(0.3 * factor), 0.09 * factor @ factor.T):

            def draw(z, taken=taken):
                with normals_given(jnp.zeros((STREAMS, d), z.dtype).at[0].set(z)):
                    return matrix.compensated_normal(None, give, taken, d, z.dtype)[0]

            F = jax.jacfwd(draw)(jnp.zeros(d))
            draws.append(F @ F.T)
        assert_allclose(draws[0], draws[1], atol=1e-12)


def test_scalar_and_diagonal_noise_builds_no_matrix():
    """Nothing in the program of the fast paths has d^2 entries or a factorisation."""
    d, key = 300, jax.random.key(0)
    for give in (jnp.float32(1.0), jnp.ones(d)):
        for taken in (None, jnp.float32(0.1), jnp.full(d, 0.1)):
            program = jax.make_jaxpr(lambda g, t: matrix.compensated_normal(key, g, t, d, jnp.float32))(give, taken)
            assert not any(len(v.aval.shape) == 2 for e in program.jaxpr.eqns for v in e.outvars)
