"""Gradient estimates: exactly unbiased over all batches, and noise estimates that are what they claim to be.

The data are so few that every batch can be enumerated: expectations are sums, not simulations.
"""

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose

from fokker.errors import InputError
from fokker.linear_models import glm
from fokker.run.gradients import NOISE_FORMS, control_variates, full_gradient, minibatch, row_gradients, svrg
from fokker.sgmcmc.matrix import as_dense
from fokker.target import Target, per_row

N, n = 7, 3
RNG = np.random.default_rng(0)
X, COUNTS = RNG.normal(size=(N, 2)), np.array([0.0, 1, 2, 0, 3, 1, 4])
CHANCE = (COUNTS > 1).astype(float)


def tree_target():
    """Parameters in a tree, data in a tree, a likelihood that is no linear model."""

    def log_likelihood(p, rows):
        centre = rows["x"] @ p["w"] + p["b"][0] ** 2
        return -0.5 * (rows["y"] - centre) ** 2 - 0.1 * (p["b"][1] * rows["y"]) ** 2

    prior = lambda p: -0.5 * (p["w"] ** 2).sum() - 0.1 * (p["b"] ** 4).sum()
    return Target(prior, log_likelihood, {"x": X, "y": COUNTS})


TARGETS = {
    "logistic": lambda: glm(X, CHANCE, "bernoulli"),
    "poisson": lambda: glm(X, COUNTS, "poisson", prior_scale=2.0),
    "gaussian": lambda: glm(X, COUNTS, "gaussian", noise_scale=0.7),
    "logistic by autodiff": lambda: replace(glm(X, CHANCE, "bernoulli"), linear=None),
    "tree": tree_target,
}
POSITIONS = {"tree": {"w": np.array([0.3, -0.5]), "b": np.array([0.8, -0.2])}}
CENTRES = {"tree": {"w": np.array([0.1, 0.2]), "b": np.array([0.5, 0.3])}}


def setting(name):
    position = POSITIONS.get(name, {"beta": np.array([0.3, -0.5, 0.8])})
    centre = CENTRES.get(name, {"beta": np.array([0.1, 0.2, 0.5])})
    return TARGETS[name](), jax.tree.map(jnp.asarray, position), jax.tree.map(jnp.asarray, centre)


def batches(target, choices):
    """The batches of the given rows, stacked for vmap."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.array(choices)], target.data)


WINDOWS = [[(start + i) % N for i in range(n)] for start in range(N)]
SUBSETS = list(combinations(range(N), n))


def estimates(gradients, target, position, choices, starts=None):
    """[(gradients, noises) of every batch] for each estimator, from a fresh start, as one compiled program."""
    bound = [gradient.bind(target) for gradient in gradients]
    aux = [b.init(position if starts is None else start) for b, start in zip(bound, starts or bound, strict=True)]
    each = lambda batch: [b.estimate(None, position, batch, a)[:2] for b, a in zip(bound, aux, strict=True)]
    return jax.jit(jax.vmap(each))(batches(target, choices))


def exact_gradient(target, position):
    return ravel_pytree(jax.grad(lambda p: -target.log_density(p))(position))[0]


@pytest.mark.parametrize("name", TARGETS)
def test_the_mean_over_all_cyclic_windows_is_the_full_gradient(x64, name):
    target, position, centre = setting(name)
    estimators = [
        make(noise)
        for noise in ("none", "dense")
        for make in (minibatch, lambda noise: control_variates(centre, noise), lambda noise: svrg(9, noise))
    ]
    starts = [position, position, centre] * 2
    for grad_u, _ in estimates(estimators, target, position, WINDOWS, starts):
        assert_allclose(grad_u.mean(0), exact_gradient(target, position), atol=1e-12)
        assert grad_u.std(0).max() > 1e-2  # the batches do differ


@pytest.mark.parametrize("name", TARGETS)
def test_the_noise_estimate_is_unbiased_for_the_covariance_of_the_gradient(x64, name):
    """Over all batches without replacement the mean of V^ is V exactly: N^2 / n (1 - n / N) S with n - 1 in S."""
    target, position, centre = setting(name)
    forms = ("scalar", "diagonal", "dense")
    estimators = [minibatch(form) for form in forms] + [control_variates(centre, form) for form in forms]
    found = estimates(estimators, target, position, SUBSETS)
    for form, (grad_u, estimate) in zip(forms * 2, found, strict=True):
        V = np.cov(np.asarray(grad_u).T, bias=True)
        wanted = {"scalar": np.trace(V) / len(V), "diagonal": np.diag(V), "dense": V}[form]
        assert_allclose(estimate.mean(0), wanted, atol=1e-11)


@pytest.mark.parametrize("name", TARGETS)
def test_row_gradients_are_those_of_one_row_at_a_time(x64, name):
    target, position, _ = setting(name)
    rows = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf)[i : i + 1], target.data) for i in range(N)]
    alone = [ravel_pytree(jax.grad(lambda p, row=row: target.log_likelihood(p, row)[0])(position))[0] for row in rows]
    assert_allclose(row_gradients(target, position, jax.tree.map(jnp.asarray, target.data)), alone, atol=1e-12)


def test_the_running_estimate_is_the_mean_of_the_batches_so_far(x64):
    target, position, _ = setting("poisson")
    for noise in ("scalar", "diagonal", "dense"):
        bound = minibatch(noise).bind(target)
        ((_, alone),) = estimates([minibatch(noise)], target, position, WINDOWS)
        alone, aux = np.asarray(alone), bound.init(position)
        for t, rows in enumerate(WINDOWS):
            batch = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf)[jnp.array(rows)], target.data)
            _, V, aux = bound.estimate(None, position, batch, aux)
            assert_allclose(V, alone[: t + 1].mean(0), atol=1e-11)


@pytest.mark.parametrize("rank", [1, 2, 3, 10])
def test_a_low_rank_estimate_is_never_above_the_dense_one_and_equals_it_when_the_rank_suffices(x64, rank):
    rng = np.random.default_rng(1)
    y = jnp.asarray(rng.normal(size=(40, 6)))
    target = Target(lambda x: 0.0 * x.sum(), lambda x, rows: -0.5 * ((rows - x) ** 2).sum(-1), y)
    for size, sufficient in ((4, 3), (30, 6)):  # rows in a batch, and the rank of the covariance of their gradients
        position, batch = jnp.zeros(6), y[:size]
        dense, low = (g.bind(target) for g in (minibatch("dense"), minibatch("low_rank", rank)))
        V = np.asarray(dense.estimate(None, position, batch, dense.init(position))[1])
        F = low.estimate(None, position, batch, low.init(position))[1]
        assert F.factor.shape == (6, min(rank, 6))
        difference = np.linalg.eigvalsh(V - as_dense(F, 6))
        assert difference.min() > -1e-10
        assert (difference.max() < 1e-8 * V.max()) == (rank >= sufficient)


@pytest.mark.parametrize("name", ["poisson", "tree"])
def test_control_variates_have_no_noise_at_their_centre(x64, name):
    target, _, centre = setting(name)
    for grad_u, V in estimates([control_variates(centre, form) for form in NOISE_FORMS], target, centre, WINDOWS):
        assert_allclose(grad_u, np.tile(exact_gradient(target, centre), (N, 1)), atol=1e-12)
        assert all(np.abs(leaf).max() < 1e-12 for leaf in jax.tree.leaves(V))


def test_control_variates_shrink_noise_with_the_square_of_the_distance(x64):
    target, _, centre = setting("poisson")
    plain = estimates([minibatch("scalar")], target, centre, SUBSETS)[0][1].mean()
    noise = []
    for distance in (0.02, 0.01):
        near = {"beta": centre["beta"] + distance}
        noise.append(float(estimates([control_variates(centre, "scalar")], target, near, SUBSETS)[0][1].mean()))
    assert abs(noise[0] / noise[1] - 4) < 0.2
    assert noise[0] < 1e-2 * plain


def test_the_same_gradient_with_closed_form_and_by_differentiation(x64):
    for family, y in (("bernoulli", CHANCE), ("poisson", COUNTS), ("gaussian", COUNTS)):
        linear = glm(X, y, family, noise_scale=1.3)
        twin, (_, position, centre) = replace(linear, linear=None), setting("logistic")
        estimators = [minibatch(), minibatch("dense"), control_variates(centre), control_variates(centre, "dense")]
        found = [jax.tree.leaves(estimates(estimators, t, position, WINDOWS)) for t in (linear, twin)]
        for got, want in zip(*found, strict=True):
            assert_allclose(got, want, atol=1e-11)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("chunk", [1, 2, N, 100])
def test_the_full_gradient_in_chunks_is_that_of_one_pass(x64, name, chunk):
    target, position, _ = setting(name)
    assert_allclose(full_gradient(target, chunk)(position), exact_gradient(target, position), atol=1e-12)


def test_svrg_moves_its_centre_when_it_is_refreshed(x64):
    target, position, centre = setting("tree")
    bound = svrg(5, "dense").bind(target)
    assert bound.refresh_every == 5
    aux = bound.init(centre)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:n], target.data)
    before, V, aux = bound.estimate(None, position, batch, aux)
    assert jnp.abs(V).max() > 1e-3 and int(aux.fisher.seen) == 1
    aux = bound.refresh(position, aux)
    after, V, aux = bound.estimate(None, position, batch, aux)
    assert_allclose(after, exact_gradient(target, position), atol=1e-12)
    assert_allclose(V, 0, atol=1e-12)
    assert int(aux.fisher.seen) == 1  # the noise of the old centre is forgotten
    assert jnp.abs(before - after).max() > 1e-3


def test_a_target_without_rows_gives_its_whole_gradient():
    target = Target.from_log_density(lambda x: -0.5 * (x**2).sum())
    bound = minibatch("dense").bind(target)
    grad_u, noise, _ = bound.estimate(None, jnp.arange(3.0), None, bound.init(jnp.arange(3.0)))
    assert_allclose(grad_u, [0, 1, 2])
    assert noise is None


def test_a_function_of_one_row_becomes_one_of_a_batch(x64):
    target, position, _ = setting("tree")
    one = lambda p, row: target.log_likelihood(p, jax.tree.map(lambda leaf: leaf[None], row))[0]
    rows = jax.tree.map(jnp.asarray, target.data)
    assert_allclose(per_row(one)(position, rows), target.log_likelihood(position, rows), rtol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_estimates_keep_the_precision_of_the_position(x64, dtype):
    """float32 parameters and data stay float32 also where 64 bits are on."""
    target = glm(X.astype(np.float32 if dtype == jnp.float32 else np.float64), CHANCE)
    position = {"beta": jnp.ones(3, dtype)}
    for noise in NOISE_FORMS:
        for gradient in (minibatch(noise), control_variates(position, noise)):
            bound = gradient.bind(target)
            aux = bound.init(position)
            grad_u, V, after = bound.estimate(None, position, jax.tree.map(lambda v: v[:n], target.data), aux)
            assert all(leaf.dtype == dtype for leaf in jax.tree.leaves((grad_u, V)))
            same = jax.tree.map(lambda a, b: a.dtype == b.dtype and a.shape == b.shape, aux, after)
            assert all(jax.tree.leaves(same))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: minibatch("full"), "noise must be one of none, scalar"),
        (lambda: minibatch("low_rank", rank=0), "rank must be >= 1"),
        (lambda: svrg(0), "refresh_every must be >= 1"),
        (lambda: control_variates().bind(Target.from_log_density(jnp.sum)), "need a target with rows"),
        (lambda: svrg().bind(Target.from_log_density(jnp.sum)), "need a target with rows"),
        (lambda: estimates([minibatch("scalar")], *setting("tree")[:2], [[0]]), "batch_size >= 2"),
    ],
)
def test_what_cannot_be_estimated_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
