"""Sets that are reached through a map: the map and back, and the factor that it brings into a density."""

from functools import cache

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
    fokker.Box(-1.0, 3.0),
    HALF,
    fokker.HalfSpace(np.array([-2.0]), 1.0),
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


EDGES = {  # a point of the boundary, and one a tiny step inside
    fokker.Simplex: lambda s: [jnp.full(s.k, (1 - a) / (s.k - 1)).at[0].set(a) for a in (0.0, 1e-14)],
    fokker.Positive: lambda s: [jnp.full(s.shape, a) for a in (0.0, 1e-14)],
    fokker.Ball: lambda s: [jnp.zeros(s.d).at[0].set(a) for a in (1.0, 1 - 1e-14)],
    fokker.Box: lambda s: [jnp.asarray(s.low) + a for a in (0.0, 1e-14)],
    fokker.HalfSpace: lambda s: [
        (s.offset / (n @ n) + a) * n for n in [jnp.asarray(s.normal)] for a in (0.0, 1e-14)
    ],
}  # fmt: skip


@every
def test_at_the_boundary_the_density_vanishes_and_near_it_the_force_points_inside(s):
    """No start is at the boundary; a tiny step away from it the force is finite, large and up the log_volume."""
    boundary, inside = EDGES[type(s)](s)
    assert s.off(boundary) == np.inf and s.off(inside) < 1e-12

    @jax.jit
    def look(theta):
        x = s.embed(theta)
        force = s.carrier.project(x, jax.grad(s.log_volume)(x))
        ahead = s.carrier.flow(x, 1e-9 * force / jnp.sqrt(jnp.sum(force**2)), 1.0)[0]
        return s.log_volume(x), force, s.log_volume(ahead)

    assert look(boundary)[0] < -14  # -inf, but for rounding to the boundary
    volume, force, ahead = look(inside)
    assert jnp.isfinite(force).all() and jnp.abs(force).max() > 1e6 and ahead > volume


@every
@given(seed=st.integers(0, 2**32 - 1), t=st.floats(0, 1e3))
@settings(max_examples=8, deadline=None)
def test_a_flow_through_the_boundary_comes_back_inside(s, seed, t):
    """On the carrier a boundary is a place like others: whatever the time, the value is one of the set."""
    y, theta = compiled(s)(jax.random.key(seed), t)
    assert jnp.isfinite(theta).all() and s.off(theta) < 1e-11
    assert_allclose(s.carrier.off(y), 0, atol=1e-11)


@cache
def compiled(s):
    def look(key, t):
        at, along = jax.random.split(key)
        x = s.embed(fokker.random_params(s, at, "float64"))
        v = s.carrier.random_tangent(along, x)
        y, _ = s.carrier.retract(*s.carrier.flow(x, v, t))
        return y, s.value(y)

    return jax.jit(look)


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
