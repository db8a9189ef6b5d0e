"""Spaces as one vector: side by side, mirrored, checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose

import fokker
from fokker.errors import SpaceError
from fokker.manifolds.product import product

pytestmark = pytest.mark.usefixtures("x64")

SPACE = {"beta": fokker.Oblique(3, 2), "w": fokker.Simplex(4), "box": fokker.Box(0.0, np.ones(2))}
PARAMS = {"beta": np.zeros((3, 2)), "w": np.zeros(4), "box": np.zeros(2), "free": np.zeros((2, 2))}


def test_everything_is_done_factor_by_factor():
    space = product(SPACE, PARAMS)
    theta = {**fokker.random_params(SPACE, jax.random.key(0), "float64"), "free": jnp.arange(4.0).reshape(2, 2)}
    vector, _ = ravel_pytree(theta)
    x = space.embed(vector)
    assert (space.size, space.dim, len(vector)) == (6 + 4 + 4 + 4, 4 + 3 + 2 + 4, 16)
    assert_allclose(space.value(x), vector, atol=1e-12)
    z = jnp.asarray(np.random.default_rng(0).standard_normal(space.size))
    v = space.tangent_normal(x, z)
    y, w = space.flow(x, v, 0.3)
    points, tangents = ({"beta": a[:6], "box": a[6:10], "free": a[10:14], "w": a[14:]} for a in (x, v))
    box, simplex = SPACE["box"], SPACE["w"]
    carriers = {"beta": SPACE["beta"], "box": box.carrier, "free": fokker.Euclidean(2, 2), "w": simplex.carrier}
    got = [m.flow(points[k].reshape(m.shape), tangents[k].reshape(m.shape), 0.3) for k, m in carriers.items()]
    assert_allclose(y, np.concatenate([p.ravel() for p, _ in got]), atol=1e-13)
    assert_allclose(w, np.concatenate([u.ravel() for _, u in got]), atol=1e-13)
    assert_allclose(space.squares(x, v).sum(), space.square(x, v))
    volumes = simplex.log_volume(points["w"]) + box.log_volume(points["box"].reshape(2, 2))
    assert_allclose(space.log_volume(x), volumes)
    assert space.dims == (4, 2, 4, 3)
    assert_allclose(space.spread(jnp.arange(4.0)), np.repeat(np.arange(4.0), [6, 4, 4, 4]))


def test_the_gradient_by_the_point_is_that_of_the_density_on_the_carrier():
    space = product(SPACE, PARAMS)
    theta = {**fokker.random_params(SPACE, jax.random.key(3), "float64"), "free": jnp.ones((2, 2))}
    vector, _ = ravel_pytree(theta)
    U = lambda t: jnp.sum(jnp.sin(3 * t) * jnp.arange(16))
    x = space.embed(vector)
    want = space.gradient(x, jax.grad(lambda x: U(space.value(x)) - space.log_volume(x))(x))
    assert_allclose(space.potential_gradient(x, jax.grad(U)(space.value(x))), want, atol=1e-10)


@pytest.mark.parametrize(
    "space, params, words",
    [
        ({"a": fokker.Sphere(3)}, {"b": np.ones(3)}, r"mirror.*space\['a'\].*there are params\['b'\]"),
        ({"a": fokker.Sphere(3)}, {"a": np.ones(4)}, r"space\['a'\] is Sphere\(n=3\).*shape \(3,\).*has \(4,\)"),
        ({"a": 3}, {"a": np.ones(3)}, r"space\['a'\] must be a manifold such as fokker.Sphere\(3\), got 3"),
        ({"a": fokker.Sphere}, {"a": np.ones(3)}, r"space\['a'\] is the class Sphere.*fokker.Sphere\(...\)"),
        (fokker.Sphere(3), {"a": np.ones(3)}, "mirror"),
    ],
)
def test_a_space_that_does_not_mirror_the_parameters_is_refused(space, params, words):
    with pytest.raises(SpaceError, match=words):
        product(space, params)


@pytest.mark.parametrize(
    "space, start, words",
    [
        (fokker.Sphere(3), np.array([1.0, 1.0, 0.0]), "0.5 away"),
        (fokker.Simplex(3), np.array([0.5, 0.5, 0.0]), "on its boundary"),
        (fokker.Positive(), np.array(-1.0), "on its boundary or outside"),
        (fokker.Stiefel(3, 2), np.eye(3)[:, :2] * 1.1, "0.21 away"),
        (fokker.Ball(2), np.array([1.0, 0.0]), "boundary"),
        (fokker.Box(0.0, 1.0), np.array([1.0]), "boundary"),
        (fokker.Hyperboloid(2), np.array([1.0, 1.0, 0.0]), "1 away"),
    ],
)
def test_a_start_off_its_manifold_is_refused(space, start, words):
    target = fokker.Target(lambda p: 0.0 * p.sum(), None, space=space, start=start)
    with pytest.raises(SpaceError, match=f"(?s)is to lie in .*{words}.*Start inside"):
        fokker.sample(target, fokker.sggmc(step_size=0.1), draws=5, dtype="float64", progress=False)


def test_a_hyperboloid_needs_double_precision():
    target = fokker.Target(lambda p: -p[0], None, space=fokker.Hyperboloid(2), start=np.array([1.0, 0.0, 0.0]))
    with pytest.raises(SpaceError, match=r"Hyperboloid\(m=2\), where params lies.*float32 has; pass dtype='float64'"):
        fokker.sample(target, fokker.sggmc(step_size=0.1), draws=5, progress=False)


def test_a_space_that_does_not_mirror_the_parameters_stops_a_run():
    target = fokker.Target(lambda p: p["a"][0], None, space={"b": fokker.Sphere(3)}, start={"a": np.eye(3)[0]})
    with pytest.raises(SpaceError, match=r"mirror.*space\['b'\].*there are params\['a'\]"):
        fokker.sample(target, fokker.gmc(step_size=0.1), draws=5, progress=False)


def test_samplers_of_flat_space_are_refused_on_a_manifold():
    target = fokker.Target(lambda p: p[0], None, space=fokker.Sphere(3), start=np.eye(3)[0])
    with pytest.raises(SpaceError, match=r"sghmc moves in flat space and would leave Sphere\(n=3\).*fokker.sggmc"):
        fokker.sample(target, fokker.sghmc(step_size=0.1), draws=5, progress=False)
    flat = fokker.Target(lambda p: -p @ p, None, space=fokker.Euclidean(3), start=np.zeros(3))
    assert fokker.sample(flat, fokker.sghmc(step_size=0.1), draws=5, progress=False).draws["theta"].shape == (4, 5, 3)
