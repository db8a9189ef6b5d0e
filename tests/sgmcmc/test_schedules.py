"""Schedules: the factors, what they do to the law of SGLD on a Gaussian, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from fokker.errors import InputError
from fokker.run.gradients import minibatch
from fokker.run.result import weighted_row
from fokker.run.sample import sample
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.schedules import constant, cyclical, polynomial
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.target import Target
from tests.oracles import linear_step

A = 1.7
LINE = Target.from_log_density(lambda x: -0.5 * A * (x**2).sum())


def steps_of(kernel, iterations):
    """(map, noise factor, step size) of SGLD in one dimension at each iteration, read off the kernel."""
    bound = kernel.bind(LINE, minibatch())

    @jax.jit
    def one(t):
        state = bound.init(jnp.zeros(1))._replace(iteration=t)
        M, _, F = linear_step(bound.step, state, 1)
        return M[0, 0], jnp.sqrt((F**2).sum()), bound.step(jax.random.key(0), state)[1].step_size

    return [np.asarray(column) for column in jax.vmap(one)(jnp.arange(iterations, dtype=jnp.int32))]


def test_factors(x64):
    t = jnp.arange(6)
    assert_allclose(jax.vmap(constant())(t), 1.0)
    assert_allclose(polynomial(b=2.0, c=0.6)(t), (1 + np.arange(6) / 2) ** -0.6, rtol=1e-14)
    assert_allclose(
        cyclical(4)(t), [1, 0.5 + 0.5 * 0.5**0.5, 0.5, 0.5 - 0.5 * 0.5**0.5, 1, 0.5 + 0.5 * 0.5**0.5], atol=1e-15
    )


def test_a_polynomial_schedule_sums_to_infinity_and_its_squares_do_not():
    """Robbins & Monro, by Cauchy's condensation: over powers of 2 k factor(k) grows, k factor(k)^2 falls."""
    k = 2.0 ** np.arange(20, 40)
    factor = np.asarray(polynomial(b=1000.0, c=0.55)(k))
    assert (np.diff(k * factor) > 0).all()
    assert ((k * factor**2)[1:] < 0.95 * (k * factor**2)[:-1]).all()


def test_weighted_by_their_steps_the_draws_of_a_polynomial_schedule_lose_the_bias(x64):
    """P_{t+1} = M_t^2 P_t + F_t^2 exactly; sum eps_t P_t / sum eps_t nears 1 / a, where a constant step stays off."""
    M, F, eps = steps_of(sgld(0.3, polynomial(b=5.0, c=0.6)), 20_000)
    P, variance = np.empty(len(M)), 1 / A
    for t in range(len(M)):
        P[t], variance = variance, M[t] ** 2 * variance + F[t] ** 2
    lengths = (200, 2000, 20_000)
    weighted = np.array([(eps * P)[:n].sum() / eps[:n].sum() * A - 1 for n in lengths])
    # To first order a step eps adds the bias eps a / 2, so their mean weighted by eps is a / 2 sum eps^2 / sum eps.
    first_order = np.array([A / 2 * (eps[:n] ** 2).sum() / eps[:n].sum() for n in lengths])
    assert_allclose(weighted, first_order, rtol=0.15)
    assert first_order[-1] < 0.02 < 0.3 < 1 / (1 - 0.3 * A / 2) - 1  # the last: the bias of the first step kept


def test_the_summary_of_a_run_with_decreasing_steps_is_weighted_by_them(x64):
    """From far off, where weighted and unweighted means differ: E of both, and the error of the first, are known."""
    kernel, count, start = sgld(0.3, polynomial(b=5.0, c=0.6)), 400, 30.0
    M, F, eps = steps_of(kernel, count)
    m, spread = start * np.cumprod(M), np.zeros((count, count))  # of the draw after each step
    for t in range(count):
        before = spread[t - 1] if t else np.zeros(count)
        spread[t, :t] = spread[:t, t] = M[t] * before[:t]
        spread[t, t] = M[t] ** 2 * before[t - 1] + F[t] ** 2 if t else F[t] ** 2
    w, chains = eps / eps.sum(), 20
    run = sample(
        LINE, kernel, init=np.full(1, start), draws=count, warmup=0, thin=1, chains=chains, dtype="float64",
        progress=False,
    )  # fmt: skip
    row = run.summary().loc["theta[0]"]
    x = run.draws["theta"].values[..., 0]
    assert_allclose(run.weights, eps / eps.mean(), rtol=1e-12)
    assert_allclose(row["mean"], (w * x).sum(1).mean(), rtol=1e-10)
    assert_allclose(row["sd"] ** 2, (w * (x - row["mean"]) ** 2).sum(1).mean(), rtol=1e-10)
    error = np.sqrt(w @ spread @ w / chains)
    assert abs(row["mean"] - w @ m) < 4 * error < abs(w @ m - m.mean()) / 2
    fewer = run.draws["theta"].values[:, 100:, 0]  # past the way in: what the standard error is of
    late = eps[100:] / eps[100:].sum()
    assert_allclose(
        weighted_row(fewer, late * late.size)["mcse"], np.sqrt(late @ spread[100:, 100:] @ late / chains), rtol=0.3
    )


def test_draws_of_steps_that_do_not_decrease_count_alike():
    settings = dict(draws=8, warmup=0, thin=1, chains=1, progress=False, init=np.zeros(1))
    for schedule in (constant(), cyclical(8)):
        assert sample(LINE, sgld(0.1, schedule), **settings).weights is None


def test_a_cyclical_schedule_explores_without_noise_then_samples(x64):
    schedule = cyclical(10, exploration=0.3)
    M, F, eps = steps_of(sgld(0.1, schedule), 25)
    expected = 0.1 * (1 + np.cos(np.pi * (np.arange(25) % 10) / 10)) / 2
    assert_allclose(eps, expected, rtol=1e-13)
    assert_allclose(M, 1 - expected * A, rtol=1e-13)
    exploring = np.arange(25) % 10 < 3
    assert_allclose(F, np.where(exploring, 0, np.sqrt(2 * expected)), atol=1e-14)


@pytest.mark.parametrize(
    "kernel",
    [
        sghmc(0.1, schedule=cyclical(10, 0.3)),
        sghmc(0.1, integrator="aboba", schedule=cyclical(10, 0.3)),
        sghmc(0.1, integrator="baoab", schedule=cyclical(10, 0.3)),
        sgnht(0.1, schedule=cyclical(10, 0.3)),
        sgnht(0.1, integrator="symplectic", schedule=cyclical(10, 0.3)),
        psgld(0.1, adapt_steps=1, schedule=cyclical(10, 0.3)),
        sgfs(0.1, precision=A, schedule=cyclical(10, 0.3)),
    ],
    ids=lambda k: f"{type(k).__name__}-{getattr(k, 'integrator', '')}",
)
def test_every_method_follows_the_schedule(kernel):
    """The key matters while sampling, not while exploring, and the step follows the factor."""
    bound = kernel.bind(LINE, minibatch())
    state = bound.init(jnp.ones(2), jax.random.key(0))
    for t, random in ((1, False), (2, False), (3, True), (9, True), (12, False)):
        ends, infos = zip(
            *[bound.step(jax.random.key(k), state._replace(iteration=jnp.int32(t))) for k in (1, 2)], strict=True
        )
        assert bool((ends[0].position != ends[1].position).any()) == random
        assert_allclose(infos[0].step_size, 0.1 * (1 + np.cos(np.pi * (t % 10) / 10)) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: polynomial(b=0.0),
        lambda: polynomial(c=0.5),
        lambda: polynomial(c=1.1),
        lambda: cyclical(1),
        lambda: cyclical(9, 1.0),
    ],
)
def test_settings_that_make_no_schedule_are_refused(make):
    with pytest.raises(InputError, match="needs"):
        make()


def test_a_long_cycle_never_comes_to_a_step_of_zero():
    """In float32, (1 + cos) / 2 does: and a noise of variance 0 has no Cholesky factor."""
    factor = cyclical(30_000)(jnp.arange(30_000, dtype=jnp.int32))
    assert factor.dtype == jnp.float32 and (factor > 0).all() and factor[0] == 1
    exact = (1 + np.cos(np.pi * np.arange(30_000) / 30_000)) / 2
    assert_allclose(factor, exact, atol=1e-6)
