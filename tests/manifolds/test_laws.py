"""What every manifold has to satisfy, written once; to put another under the laws, add it to the list."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fokker
from fokker.manifolds.manifold import Manifold, Mapped
from fokker.manifolds.product import carrier_of

pytestmark = pytest.mark.usefixtures("x64")

MANIFOLDS = [
    fokker.Euclidean(),
    fokker.Euclidean(2, 3),
    fokker.Sphere(2),
    fokker.Sphere(6),
    fokker.Oblique(2, 1),
    fokker.Oblique(4, 3),
    fokker.Stiefel(5, 3),
    fokker.Stiefel(4, 1),
    fokker.Stiefel(3, 3),
    fokker.Orthogonal(2),
    fokker.Orthogonal(4),
    fokker.Grassmann(5, 2),
    fokker.Grassmann(2, 1),
    fokker.Hyperboloid(1),
    fokker.Hyperboloid(3),
]
COMPACT = [m for m in MANIFOLDS if not isinstance(m, (fokker.Euclidean, fokker.Hyperboloid))]
every = pytest.mark.parametrize("m", MANIFOLDS, ids=repr)
seeds = given(seed=st.integers(0, 2**32 - 1))
few = settings(max_examples=8, deadline=None)


def point_and_tangent(m, seed, reach=1.0):
    """A random point, where there is no uniform law one at about ``reach`` from the origin, and a tangent vector."""
    at, away, along = jax.random.split(jax.random.key(seed), 3)
    x = m.random_point(at, jnp.float64)
    if m not in COMPACT:
        x = m.retract(*compiled(m)[0](x, reach * m.random_tangent(away, x), 1.0))[0]
    return x, m.random_tangent(along, x)


@cache
def compiled(m):
    """The manifold's flow and its map of normals, compiled: eager operations on tiny arrays are slow."""
    tangent = lambda x: jax.vmap(lambda e: m.tangent_normal(x, e))(jnp.eye(x.size).reshape(-1, *m.shape))
    return jax.jit(m.flow), jax.jit(tangent)


def ambient(m, seed):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((2, *m.shape)))


def inner(m, x, u, w):
    """<u, w> of the metric, of any two vectors, by polarisation."""
    if isinstance(m, fokker.Hyperboloid):
        return jnp.sum(u * w) - 2 * u[0] * w[0]
    return (m.square(x, u + w) - m.square(x, u - w)) / 4


@every
def test_it_speaks_the_vocabulary(m):
    assert isinstance(m, Manifold) and not isinstance(m, Mapped)
    assert m == type(m)(*(m.shape if isinstance(m, fokker.Euclidean) else vars(m).values()))


@every
@seeds
@few
def test_the_projection_is_idempotent_symmetric_and_leaves_tangents_alone(m, seed):
    x, v = point_and_tangent(m, seed)
    u, w = ambient(m, seed)
    scale = 1 + float(jnp.abs(x).max()) ** 2
    assert_allclose(m.project(x, m.project(x, u)), m.project(x, u), atol=1e-13 * scale**2)
    assert_allclose(inner(m, x, m.project(x, u), w), inner(m, x, u, m.project(x, w)), atol=1e-12 * scale)
    assert_allclose(m.project(x, v), v, atol=1e-12 * scale)


@every
def test_the_rank_of_the_projection_is_the_dimension(m):
    x, _ = point_and_tangent(m, 3)
    basis = jnp.eye(x.size).reshape(-1, *m.shape)
    P = jax.vmap(lambda e: m.project(x, e))(basis).reshape(x.size, x.size)
    assert_allclose(jnp.trace(P), m.dim, atol=1e-10)
    assert np.linalg.matrix_rank(np.asarray(P), tol=1e-8) == m.dim


@every
@given(seed=st.integers(0, 2**32 - 1), t=st.floats(-3, 3))
@few
def test_the_flow_stays_on_the_manifold_and_keeps_its_speed(m, seed, t):
    x, v = point_and_tangent(m, seed)
    y, w = compiled(m)[0](x, v, t)
    scale = 1 + float(jnp.abs(y).max()) ** 2
    assert m.off(y) < 1e-12
    assert_allclose(m.project(y, w), w, atol=1e-11 * scale)
    assert_allclose(m.square(y, w), m.square(x, v), rtol=1e-10, atol=1e-10 * scale)


@every
@given(seed=st.integers(0, 2**32 - 1), s=st.floats(-2, 2), t=st.floats(-2, 2))
@few
def test_the_flow_is_a_one_parameter_group_and_reversible(m, seed, s, t):
    x, v = point_and_tangent(m, seed, reach=0.3)
    flow = compiled(m)[0]
    there = flow(x, v, s)
    scale = 1 + float(jnp.abs(there[0]).max()) ** 2
    for got, want in zip(flow(*there, t), flow(x, v, s + t), strict=True):
        assert_allclose(got, want, atol=1e-10 * scale)
    y, w = flow(there[0], -there[1], s)
    # At a distance r on a hyperboloid, with scale e^{2r}, a speed is known to 1e-16 e^{2r}, and on the way back that is
    # multiplied by e^{2r} again.
    lost = 2e-14 * scale**2
    assert_allclose(y, x, atol=1e-10 * scale + lost)
    assert_allclose(w, -v, atol=1e-10 * scale + lost)


SINGLE = [
    fokker.Euclidean(2, 3), fokker.Sphere(2), fokker.Oblique(4, 3), fokker.Stiefel(5, 3), fokker.Orthogonal(4),
    fokker.Grassmann(5, 2),
]  # fmt: skip


@pytest.mark.parametrize(  # the exponential and the decomposition take seconds to compile
    "m", [pytest.param(m, marks=[pytest.mark.slow] * (i > 2), id=repr(m)) for i, m in enumerate(SINGLE)]
)
@given(seed=st.integers(0, 2**32 - 1), t=st.floats(-2, 2, width=32))
@settings(max_examples=4, deadline=None)
def test_in_single_precision_the_flow_has_the_same_laws(m, seed, t):
    x, v = (a.astype("float32") for a in point_and_tangent(m, seed))
    flow = compiled(m)[0]
    y, w = flow(x, v, jnp.float32(t))
    scale = 1 + float(jnp.abs(y).max() + jnp.abs(w).max()) ** 2
    assert y.dtype == w.dtype == jnp.float32 and m.off(y) < 1e-5
    assert_allclose(m.project(y, w), w, atol=1e-5 * scale)
    assert_allclose(m.square(y, w), m.square(x, v), rtol=1e-4, atol=1e-5)
    back, minus = flow(y, -w, jnp.float32(t))
    assert_allclose(back, x, atol=1e-5 * scale)
    assert_allclose(minus, -v, atol=1e-5 * scale)
    for got, want in zip(flow(y, w, jnp.float32(1)), flow(x, v, jnp.float32(t) + 1), strict=True):
        assert_allclose(got, want, atol=1e-5 * scale)


@pytest.mark.parametrize("r", [0.1, 5.0, 10.0])
def test_within_its_radius_the_hyperboloid_keeps_its_digits(r):
    """At a distance r from the origin a step there and back is right to rounding times e^2r, relative to the point."""
    m = fokker.Hyperboloid(3)
    o = m.random_point(jax.random.key(0), jnp.float64)
    flow, rounding = compiled(m)[0], 1e-15 * np.exp(2 * r)
    x, v = m.retract(*flow(o, m.tangent_normal(o, jnp.array([0.0, 1.0, 2.0, -2.0]) / 3), r))
    assert m.off(x) < 1e-15 and abs(float(jnp.arccosh(x[0])) - r) < 1e-12
    assert_allclose(m.square(x, v), 1.0, atol=rounding)
    y, w = m.retract(*flow(x, v, 0.5))
    assert m.off(y) < 1e-15
    assert_allclose(m.square(y, w), 1.0, atol=3 * rounding)
    back, minus = flow(y, -w, 0.5)
    assert_allclose(back / x[0], x / x[0], atol=rounding)
    assert_allclose(minus / x[0], -v / x[0], atol=rounding)


@every
@seeds
@few
def test_the_flow_solves_the_geodesic_equation(m, seed):
    """Its velocity is the derivative of its point, and what is left of the acceleration is normal."""
    x, v = point_and_tangent(m, seed, reach=0.5)
    h = 1e-4
    flow = compiled(m)[0]
    (ahead, _), (behind, _) = flow(x, v, h), flow(x, v, -h)
    speed = 1 + float(m.square(x, v))
    assert_allclose((ahead - behind) / (2 * h), v, atol=1e-6 * speed**2)
    assert_allclose(m.project(x, (ahead - 2 * x + behind) / h**2), 0, atol=2e-6 * speed**2)


@every
def test_a_velocity_of_zero_stands_still(m):
    x, v = point_and_tangent(m, 1)
    y, w = m.flow(x, 0 * v, 5.0)
    assert_allclose(y, x, atol=1e-15)
    assert_allclose(w, 0 * v, atol=1e-15)


@pytest.mark.parametrize("m", COMPACT, ids=repr)
def test_a_huge_velocity_stays_on_a_compact_manifold(m):
    x, v = point_and_tangent(m, 1)
    y, w = m.retract(*m.flow(x, 1e4 * v, 1.0))
    assert jnp.isfinite(y).all() and m.off(y) < 1e-10
    assert_allclose(jnp.sqrt(m.square(y, w)), 1e4 * jnp.sqrt(m.square(x, v)), rtol=1e-6)


@every
@seeds
@few
def test_a_tangent_normal_vector_has_as_many_unit_variances_as_dimensions(m, seed):
    """Exactly, without draws: z -> v is linear, v = T z, and T T^T is the inverse metric's projector."""
    x, _ = point_and_tangent(m, seed, reach=2.0)
    T = compiled(m)[1](x).reshape(x.size, x.size)
    squares = sum(inner(m, x, t, t) for t in T.reshape(-1, *m.shape))
    assert_allclose(squares, m.dim, atol=1e-8)
    covariance = np.asarray(T.T @ T)  # of v
    lengths = np.diag([-1.0] + [1.0] * (x.size - 1)) if isinstance(m, fokker.Hyperboloid) else np.eye(x.size)
    assert_allclose(covariance @ lengths @ covariance, covariance, atol=1e-8 * np.abs(covariance).max())


@every
@seeds
@few
def test_the_gradient_is_the_slope_along_every_tangent(m, seed):
    x, v = point_and_tangent(m, seed)
    (a, _) = ambient(m, seed)
    f = lambda y: jnp.sum(jnp.sin(a * y))
    g = m.gradient(x, jax.grad(f)(x))
    h = 1e-5
    flow = compiled(m)[0]
    slope = (f(flow(x, v, h)[0]) - f(flow(x, v, -h)[0])) / (2 * h)
    assert_allclose(inner(m, x, g, v), slope, atol=1e-6 * (1 + float(m.square(x, v)) ** 1.5))
    assert_allclose(m.project(x, g), g, atol=1e-11 * (1 + float(jnp.abs(x).max()) ** 3))


@pytest.mark.parametrize("m", COMPACT, ids=repr)
def test_random_points_are_uniform(m):
    """Second and fourth moments of an entry and of a product of columns, as of Haar measure."""
    x = np.asarray(jax.vmap(lambda k: m.random_point(k, jnp.float64))(jax.random.split(jax.random.key(0), 20_000)))
    n = m.shape[0]
    error = 5 / np.sqrt(len(x))
    assert np.abs(np.asarray(x).mean(0)).max() < error
    assert abs((x**2).mean(0) - 1 / n).max() < error
    assert abs((x**4).mean(0) - 3 / (n * (n + 2))).max() < error
    if isinstance(m, (fokker.Stiefel, fokker.Orthogonal, fokker.Grassmann)) and m.shape[1] > 1:
        # of Haar's orthogonal matrices: E x_11^2 x_12^2 = 1/(n (n + 2)), E x_11^2 x_22^2 = (n + 1)/((n - 1) n (n + 2))
        assert abs((x[:, 0, 0] ** 2 * x[:, 0, 1] ** 2).mean() - 1 / (n * (n + 2))) < error
        assert abs((x[:, 0, 0] ** 2 * x[:, 1, 1] ** 2).mean() - (n + 1) / ((n - 1) * n * (n + 2))) < error


@pytest.mark.parametrize(
    "m, dtype, bound",
    [(m, "float64", 1e-12) for m in MANIFOLDS if not isinstance(m, fokker.Euclidean)]
    + [(m, "float32", 1e-5) for m in COMPACT],
    ids=repr,
)
def test_with_retraction_there_is_no_drift(m, dtype, bound):
    assert drift(m, dtype, 2_000) < bound


@pytest.mark.slow
@pytest.mark.parametrize(
    "m, dtype, bound",
    [(m, dtype, bound) for m in COMPACT for dtype, bound in (("float64", 1e-6), ("float32", 1e-4))]
    + [(m, "float64", 1e-6) for m in MANIFOLDS if isinstance(m, fokker.Hyperboloid)],
    ids=repr,
)
def test_with_retraction_there_is_no_drift_in_a_million_steps(m, dtype, bound):
    assert drift(m, dtype, 1_000_000) < bound


def drift(m, dtype, steps):
    """How far the point is from the manifold, or the velocity from tangent, after steps in a potential."""
    x, v = (a.astype(dtype) for a in point_and_tangent(m, 5, reach=0.1))
    pull = jnp.zeros(m.shape, dtype).at[(0,) * len(m.shape)].set(1)  # on a hyperboloid towards its origin

    @jax.jit
    def run(x, v):
        def step(_, state):
            x, v = m.flow(*state, jnp.asarray(0.1, dtype))
            return m.retract(x, v - jnp.asarray(0.1, dtype) * m.gradient(x, pull))

        return jax.lax.fori_loop(0, steps, step, (x, v))

    x, v = run(x, v)
    tangent = jnp.abs(m.project(x, v) - v).max() / jnp.maximum(jnp.abs(v).max(), 1e-3)
    assert jnp.isfinite(x).all() and x.dtype == dtype and jnp.abs(v).max() < 100
    return float(jnp.maximum(m.off(x), tangent))


def rotated(x, q):
    """x turned by Cayley's map of the skew part of q (n, n): along every tangent of spheres and frames."""
    half, one = (q - q.T) / 2, jnp.eye(len(q))
    return jnp.linalg.solve(one - half, (one + half) @ x)


CHARTS = {  # a map from numbers to the manifold with x at 0, and vectors that span the normal space at x
    fokker.Sphere(5): (rotated, (5, 5), lambda x: x[None]),
    fokker.Oblique(4, 3): (
        lambda x, q: jnp.stack([rotated(x[:, j], q[j]) for j in range(3)], axis=1), (3, 4, 4),
        lambda x: jnp.stack([x * (jnp.arange(3) == j) for j in range(3)]),
    ),
    fokker.Stiefel(5, 3): (rotated, (5, 5), lambda x: x @ symmetric_basis(3)),
    fokker.Orthogonal(4): (rotated, (4, 4), lambda x: x @ symmetric_basis(4)),
    fokker.Grassmann(5, 2): (
        lambda x, q: rotated(x, (jnp.eye(5) - x @ x.T) @ q @ x.T), (5, 2),
        lambda x: x @ jnp.eye(4).reshape(4, 2, 2),
    ),
    fokker.Hyperboloid(3): (
        lambda x, q: jnp.append(jnp.sqrt(1 + (x[1:] + q) @ (x[1:] + q)), x[1:] + q), (3,), lambda x: x[None]
    ),
}  # fmt: skip


def symmetric_basis(p):
    rows, columns = np.triu_indices(p)
    e = np.zeros((len(rows), p, p))
    e[np.arange(len(rows)), rows, columns] = e[np.arange(len(rows)), columns, rows] = 1
    return jnp.asarray(e)


@pytest.mark.parametrize("m", CHARTS, ids=repr)
def test_projectors_by_the_tangent_and_by_the_normal_basis_agree(m):
    """M (M^T L M)^+ M^T L of a chart's Jacobian M, and I - N (N^T L N)^-1 N^T L; L the metric (supplement, A)."""
    chart, shape, normals = CHARTS[m]
    x, _ = point_and_tangent(m, 0)
    P = lambda x: jax.vmap(lambda e: m.project(x, e).ravel(), out_axes=1)(jnp.eye(x.size).reshape(-1, *m.shape))
    look = jax.jit(lambda x: (jax.jacfwd(lambda q: chart(x, q))(jnp.zeros(shape)), normals(x), P(x)))
    M, N, own = map(np.asarray, look(x))
    M, N = M.reshape(x.size, -1), N.reshape(-1, x.size).T
    L = np.diag([-1.0 if isinstance(m, fokker.Hyperboloid) and i == 0 else 1.0 for i in range(x.size)])
    assert_allclose(M @ np.linalg.pinv(M.T @ L @ M, rcond=1e-10) @ M.T @ L, own, atol=1e-11)
    assert_allclose(np.eye(x.size) - N @ np.linalg.solve(N.T @ L @ N, N.T @ L), own, atol=1e-11)


LARGE = [
    fokker.Sphere(100_000), fokker.Oblique(1000, 100), fokker.Simplex(100_000), fokker.Hyperboloid(99_999),
    fokker.Euclidean(100_000), fokker.Stiefel(50_000, 2), fokker.Grassmann(50_000, 2), fokker.Positive(100_000),
    fokker.Ball(99_999), fokker.Box(np.zeros(50_000), 1.0), fokker.HalfSpace(np.ones(100_000)),
]  # fmt: skip


@pytest.mark.parametrize(
    "m", [pytest.param(m, marks=[pytest.mark.slow] * (i > 3), id=type(m).__name__) for i, m in enumerate(LARGE)]
)
def test_in_a_hundred_thousand_dimensions(m):
    """Point, velocity, flow and value, in single precision where that is allowed."""
    # the ends of a box are so near to some of 50,000 uniform angles that their values round to them in float32
    dtype = jnp.float64 if isinstance(m, (fokker.Hyperboloid, fokker.Box)) else jnp.float32
    carrier = carrier_of(m)

    @jax.jit
    def look():
        x = carrier.random_point(jax.random.key(0), dtype)
        x = x + 1 if isinstance(m, (fokker.Positive, fokker.HalfSpace)) else x
        v = carrier.random_tangent(jax.random.key(1), x)
        return (x, v), carrier.retract(*carrier.flow(x, v, jnp.asarray(0.01, dtype)))

    (x, v), (y, w) = look()
    assert x.dtype == y.dtype == dtype and 1e5 - 1 <= x.size <= 1e5 + 1
    assert carrier.off(y) < 1e-5
    assert_allclose(carrier.square(y, w), carrier.square(x, v), rtol=1e-4)
    if isinstance(m, Mapped):
        theta = m.value(y)
        assert theta.shape == m.shape and m.off(theta) < 1e-5 and jnp.isfinite(m.log_volume(y))
        assert_allclose(m.value(m.embed(theta)), theta, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("n", [1, 0, -3])
def test_impossible_manifolds_are_refused(n):
    for make in (
        lambda: fokker.Sphere(n), lambda: fokker.Oblique(n, 2), lambda: fokker.Simplex(n), lambda: fokker.Orthogonal(n),
        lambda: fokker.Stiefel(2, n + 2 if n == 1 else n), lambda: fokker.Grassmann(2, 2 if n == 1 else n),
    ):  # fmt: skip
        with pytest.raises(fokker.errors.SpaceError, match="needs"):
            make()
