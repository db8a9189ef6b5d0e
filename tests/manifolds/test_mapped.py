"""Sets that are reached through a map: the map and back, and the factor that it brings into a density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fokker
from fokker.errors import SpaceError
from fokker.manifolds.manifold import Manifold, Mapped

pytestmark = pytest.mark.usefixtures("x64")

BOX = fokker.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]))
HALF = fokker.HalfSpace(np.array([3.0, -4.0, 0.0]), 2.0)
SETS = [
    fokker.Simplex(2),
    fokker.Simplex(5),
    fokker.Positive(),
    fokker.Positive(2, 2),
    fokker.Ball(1),
    fokker.Ball(3),
    BOX,
    HALF,
]
every = pytest.mark.parametrize("s", SETS, ids=repr)


@every
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_every_value_is_inside_and_embeds_to_one_of_its_points(s, seed):
    assert isinstance(s, Mapped) and not isinstance(s, Manifold) and isinstance(s.carrier, Manifold)
    theta = fokker.random_params(s, jax.random.key(seed), "float64")
    assert theta.shape == s.shape and s.off(theta) < 1e-12
    x = s.embed(theta)
    assert x.shape == s.carrier.shape and s.carrier.off(x) < 1e-12
    assert_allclose(s.value(x), theta, atol=1e-12)


@pytest.mark.parametrize("s", [fokker.Positive(), fokker.Positive(2, 2), HALF], ids=repr)
def test_on_flat_carriers_the_volume_is_that_of_the_jacobian(s):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(s.carrier.shape)) + 0.1
    J = jax.jacfwd(lambda y: s.value(y.reshape(s.carrier.shape)).ravel())(x.ravel())
    assert_allclose(s.log_volume(x), jnp.linalg.slogdet(J)[1], rtol=1e-12)


MOMENTS = {  # E theta and E theta^2 of the first entry, of the uniform law on the set
    fokker.Simplex(3): (1 / 3, 2 / 12),
    fokker.Simplex(5): (1 / 5, 2 / 30),
    fokker.Ball(1): (0, 1 / 3),
    fokker.Ball(3): (0, 1 / 5),
    BOX: (0.5, 0.25 + 9 / 12),
}


@pytest.mark.parametrize("s", MOMENTS, ids=repr)
def test_uniform_points_weighted_by_the_volume_are_uniform_values(s):
    x = jax.vmap(lambda k: s.carrier.random_point(k, jnp.float64))(jax.random.split(jax.random.key(1), 100_000))
    weight = np.exp(np.asarray(jax.vmap(s.log_volume)(x)))
    first = np.asarray(jax.vmap(s.value)(x))[:, 0]
    worth = weight.sum() ** 2 / (weight**2).sum()
    for power, exact in zip((1, 2), MOMENTS[s], strict=True):
        f = first**power
        assert abs((weight * f).sum() / weight.sum() - exact) < 4 * f.std() / np.sqrt(worth)
        if power == 2:  # without the weights the law is another one, which these draws can tell
            assert abs(f.mean() - exact) > 4 * f.std() / np.sqrt(len(f)) or (isinstance(s, fokker.Simplex) and s.k == 2)


@every
def test_near_the_boundary_the_force_points_inside(s):
    """-grad log_volume, a tiny step away from the boundary of the first entry, is finite and large."""
    theta = fokker.random_params(s, jax.random.key(0), "float64")
    edge = {fokker.Simplex: lambda t: t.at[0].set(1e-20) / (1 - t[0]), fokker.Positive: lambda t: 0 * t + 1e-20}
    theta = edge.get(type(s), lambda t: t)(theta)
    force = jax.grad(s.log_volume)(s.embed(theta))
    assert jnp.isfinite(force).all()
    if type(s) in edge:
        assert jnp.abs(force).max() > 1e7


@pytest.mark.parametrize(
    "make",
    [
        lambda: fokker.Box(1.0, 0.0),
        lambda: fokker.Box(0.0, np.inf),
        lambda: fokker.HalfSpace(np.zeros(3)),
        lambda: fokker.Ball(0),
    ],
)
def test_impossible_sets_are_refused(make):
    with pytest.raises(SpaceError, match="needs"):
        make()
