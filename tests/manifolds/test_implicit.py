"""Manifolds of which only a constraint is known: projector, distance, random points, and what is refused."""

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
from fokker.manifolds.manifold import ByConstraint, Embedded, Manifold, Mapped
from fokker.manifolds.product import product

pytestmark = pytest.mark.usefixtures("x64")


def sphere(x):
    return x @ x - 1


def ellipsoid(x):
    return x @ (jnp.array([1.0, 4.0, 9.0], x.dtype) * x) - 1


def torus(x):
    """Radii 1 and 0.5."""
    return (jnp.sqrt(x[0] ** 2 + x[1] ** 2) - 1) ** 2 + x[2] ** 2 - 0.25


def frame(X):
    rows, columns = np.triu_indices(X.shape[1])
    return (X.T @ X - jnp.eye(X.shape[1], dtype=X.dtype))[rows, columns]


def circle_and_plane(x):
    return jnp.stack([x @ x - 1, jnp.sum(x) - 0.5])


IMPLICIT = [
    fokker.Implicit(sphere, 2),
    fokker.Implicit(sphere, 4),
    fokker.Implicit(ellipsoid, 3),
    fokker.Implicit(torus, 3),
    fokker.Implicit(circle_and_plane, 3),
    fokker.Implicit(frame, 5, 3),
]
every = pytest.mark.parametrize("m", IMPLICIT, ids=repr)
seeds = given(seed=st.integers(0, 2**32 - 1))
few = settings(max_examples=8, deadline=None)


@cache
def compiled(m):
    """A random point and all that is looked at there, in one program."""

    def look(key):
        x = m.random_point(key, jnp.float64)
        P = jax.vmap(lambda e: m.project(x, e).ravel())(jnp.eye(x.size).reshape(-1, *m.shape))
        return x, P, m.jacobian(x), m.residual(x), m.off(x), m.is_regular(x)

    return jax.jit(look)


@every
def test_it_speaks_the_vocabulary_but_for_the_flow(m):
    assert isinstance(m, Embedded) and isinstance(m, ByConstraint)
    assert not isinstance(m, Manifold) and not isinstance(m, Mapped)
    assert m == fokker.Implicit(m.constraint, *m.shape) and repr(m).startswith(f"Implicit({m.constraint.__name__}, ")


@every
@seeds
@few
def test_the_projector_is_idempotent_symmetric_of_the_rank_of_the_dimension_and_kills_the_normals(m, seed):
    x, P, J, residual, off, regular = map(np.asarray, compiled(m)(jax.random.key(seed)))
    assert x.shape == m.shape and regular and np.abs(residual).max() < 1e-13 and off < 1e-13  # it lies on it
    assert_allclose(P @ P, P, atol=1e-13)
    assert_allclose(P, P.T, atol=1e-14)
    assert_allclose(np.trace(P), m.dim, atol=1e-12)
    assert_allclose(P @ J.T, 0, atol=1e-12 * np.abs(J).max())
    assert_allclose(P, np.eye(x.size) - J.T @ np.linalg.solve(J @ J.T, J), atol=1e-11)  # as in print


@pytest.mark.parametrize(
    "m, known",
    [(fokker.Implicit(sphere, 4), fokker.Sphere(4)), (fokker.Implicit(frame, 5, 3), fokker.Stiefel(5, 3))],
    ids=repr,
)
def test_it_agrees_with_the_manifold_that_is_known(m, known):
    assert m.dim == known.dim and m.shape == known.shape
    u = jnp.asarray(np.random.default_rng(0).standard_normal(m.shape))

    def look(m, x):
        tangents = m.project(x, u), m.gradient(x, u), m.tangent_normal(x, u), m.random_tangent(jax.random.key(1), x)
        return *tangents, m.square(x, u), *m.retract(x + 1e-7 * u, u)

    x = known.random_point(jax.random.key(0), jnp.float64)
    for got, want in zip(jax.jit(look, static_argnums=0)(m, x), look(known, x), strict=True):
        assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_distance_from_it_is_measured_in_the_units_of_the_points(scale):
    m = fokker.Implicit(lambda x: scale * sphere(x), 3)
    assert_allclose(m.off(jnp.array([0.0, 0.0, 1.001])), 0.001, rtol=1e-3)


TWICE = fokker.Implicit(lambda X: X.T @ X - jnp.eye(2, dtype=X.dtype), 3, 2)
DOUBLE = fokker.Implicit(lambda x: (x @ x - 1) ** 2, 3)
DEPENDENT = fokker.Implicit(lambda x: jnp.stack([x @ x - 1, 3 * (x @ x) - 3]), 3)
CONE = fokker.Implicit(lambda x: x[0] ** 2 + x[1] ** 2 - x[2] ** 2, 3)
LINES = fokker.Implicit(lambda x: jnp.stack([x[0] + x[1], x[0] + x[1] + 1e-12 * x[2]]), 4)


@pytest.mark.parametrize(
    "m, start, dtype",
    [
        (TWICE, np.eye(3)[:, :2], "float32"),
        (DOUBLE, np.array([1.0, 0.0, 0.0]), "float64"),
        (DOUBLE, np.array([0.48, 0.6, 0.64]), "float32"),
        (DOUBLE, np.array([0.48, 0.6, 0.64]), "float64"),
        (DEPENDENT, np.array([0.48, 0.6, 0.64]), "float64"),
        (CONE, np.zeros(3), "float64"),
        (LINES, np.array([1.0, -1.0, 0.0, 2.0]), "float64"),
    ],
    ids=["twice", "double", "double, near", "double, nearer", "dependent", "cone", "lines"],
)
def test_a_start_where_the_jacobian_has_no_full_rank_is_refused(m, start, dtype):
    space = product({"a": m}, {"a": start})
    with pytest.raises(SpaceError, match=r"params\['a'\].*Jacobian without full rank at the start(?s:.*)Leave out"):
        space.check(start.ravel().astype(dtype))


@pytest.mark.parametrize("dtype, centre", [("float32", 1e3), ("float64", 1e8)])
def test_far_from_the_origin_a_good_constraint_is_not_refused(dtype, centre):
    """Two equations of very different size, a rounding of the coordinates not small beside the set."""
    m = fokker.Implicit(lambda x: jnp.stack([1e-6 * ((x - centre) @ (x - centre) - 1), 1e6 * (x[0] - x[1])]), 3)
    assert bool(jax.jit(m.is_regular)(jnp.asarray(np.array([0.6, 0.6, 0.5291]) + centre, dtype)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: fokker.Implicit(3, 3), "needs a function as constraint, got 3"),
        (lambda: fokker.Implicit(lambda x: x.y, 3), r"could not be evaluated at an array of shape \(3,\): AttributeE"),
        (lambda: fokker.Implicit(lambda x: (x @ x, x[0]), 3), "must return one array of floating numbers"),
        (lambda: fokker.Implicit(lambda x: x > 0, 3), "must return one array of floating numbers"),
        (lambda: fokker.Implicit(lambda x: x, 3), "fewer than the 3 entries of a point, got 3"),
        (lambda: fokker.Implicit(lambda x: x[:0], 3), "at least 1 equation"),
    ],
)
def test_impossible_constraints_are_refused(make, words):
    with pytest.raises(SpaceError, match=words):
        make()


def test_where_no_point_is_found_a_start_is_asked_for():
    with pytest.raises(SpaceError, match=r"no point of Implicit.*give one as the start"):
        fokker.random_params(fokker.Implicit(lambda x: x @ x + 1, 3), jax.random.key(0))
