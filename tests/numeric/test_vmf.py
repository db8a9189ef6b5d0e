"""Directional statistics: c_d, A_d, A_d' against mpmath, the inverse, the twins, and the law of the draws."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import stats

from fokker.errors import InputError, SpaceError
from fokker.numeric import bessel, random, random_jax, vmf, vmf_jax

DIMENSIONS = (2, 3, 5, 10, 42, 100, 1000, 5000, 20_000, 100_000)
KAPPAS = (0.0, 1e-8, 1e-3, 1.0, 20.0, 500.0, 1e4, 1e6)
ULP = 2.0**-52


def by_bessel(d, kappa):
    """(log c, A, A') from mpmath's Bessel functions; its series ends before it converges if kappa and d are large."""
    with mp.workdps(50):
        if kappa == 0:
            return mpmath.loggamma(mpf(d) / 2) - mpmath.log(2) - mpf(d) / 2 * mpmath.log(mp.pi), mpf(0), 1 / mpf(d)
        nu, kappa = mpf(d) / 2 - 1, mpf(kappa)
        I = mpmath.besseli(nu, kappa)
        A = mpmath.besseli(nu + 1, kappa) / I
        log_c = nu * mpmath.log(kappa) - (nu + 1) * mpmath.log(2 * mp.pi) - mpmath.log(I)
        return log_c, A, 1 - A * A - (d - 1) * A / kappa


def by_quadrature(d, kappa, digits=26, nodes_per_sd=7):
    """(log c, A, A') = moments of cos = tanh u under exp(kappa tanh u) sech(u)^(d-1) du, by the trapezoidal rule.

    It converges exponentially, as the integrand is analytic and decays. Nodes are `nodes_per_sd` to the width of the
    peak at tanh u0 = x0; moments are taken about x0, so that nothing cancels.
    """
    with mp.workdps(digits + 10):
        kappa, a = mpf(kappa), mpf(d - 1)
        x0 = 2 * kappa / (a + mpmath.sqrt(a * a + 4 * kappa * kappa))
        u0, log_y = mpmath.atanh(x0), mpmath.log(1 - x0 * x0)
        h = 1 / mpmath.sqrt((1 - x0 * x0) * (2 * kappa * x0 + a)) / nodes_per_sd
        sums = [mpf(0)] * 3
        for sign, i in ((1, 0), (-1, 1)):
            weight = mpf(1)
            while weight > mpf(10) ** (-digits - 5):
                u = u0 + sign * i * h
                off = mpmath.tanh(u) - x0
                weight = mpmath.exp(kappa * off - a * (mpmath.log(mpmath.cosh(u)) + log_y / 2))
                sums = [s + weight * off**k for k, s in enumerate(sums)]
                i += 1
        off = sums[1] / sums[0]
        log_integral = mpmath.log(sums[0] * h) + kappa * x0 + a * log_y / 2
        log_area = mpmath.log(2) + a / 2 * mpmath.log(mp.pi) - mpmath.loggamma(a / 2)  # of the sphere of u
        return -(log_integral + log_area), x0 + off, sums[2] / sums[0] - off * off


def exact(d, kappa):
    return by_bessel(d, kappa) if kappa == 0 or (kappa <= 1e4 and d <= 1000) else by_quadrature(d, kappa)


def assert_close_to_exact(d, kappa, got, log_c=1e-13, A=1e-15, slope=2e-13):
    """Tolerances: what was measured, times two or so; 1e-10 is what is needed. log c crosses 0 by terms of size d."""
    want = exact(d, kappa)
    assert abs(got[0] - want[0]) <= log_c * max(1, d / 200, abs(want[0]))
    assert abs(got[1] - want[1]) <= A * want[1]
    assert abs(got[2] - want[2]) <= slope * want[2]


def all_three(d, kappa, of=vmf):
    return of.log_normaliser(d, kappa), of.mean_length(d, kappa), of.mean_length_slope(d, kappa)


dimensions = st.one_of(st.integers(2, 70), st.floats(0, 1).map(lambda x: int(2 * 50_000**x)))
kappas = st.floats(math.log(1e-6), math.log(1e6)).map(math.exp)


@pytest.mark.parametrize("d, kappa", [(2, 0.5), (3, 1e4), (42, 20.0), (1000, 500.0), (5000, 1e4)])
def test_the_two_oracles_agree(d, kappa):
    for got, want in zip(by_quadrature(d, kappa), by_bessel(d, kappa), strict=True):
        assert abs(got - want) <= mpf(10) ** -24 * abs(want)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_normaliser_ratio_and_slope_are_those_of_mpmath(d):
    for kappa in KAPPAS:
        assert_close_to_exact(d, kappa, all_three(d, kappa))


@settings(max_examples=40, deadline=None)
@given(dimensions, kappas)
def test_normaliser_ratio_and_slope_are_those_of_mpmath_anywhere(d, kappa):
    assert_close_to_exact(d, kappa, all_three(d, kappa))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(dimensions, kappas)
def test_normaliser_ratio_and_slope_are_those_of_mpmath_at_many_points(d, kappa):
    assert_close_to_exact(d, kappa, all_three(d, kappa))


@pytest.mark.parametrize("d, kappa", [(5000, 20357.469074578625), (100_000, 573231.868496063)])
def test_log_normaliser_keeps_its_digits_where_it_crosses_zero(d, kappa):
    near = kappa * (1 + np.linspace(-1e-6, 1e-6, 9))
    want = [float(by_quadrature(d, k, digits=20)[0]) for k in near]
    assert np.abs(want).max() < 1
    assert np.abs(vmf.log_normaliser(d, near) - want).max() < 3e-11  # terms of 6e5 meet there: an ulp of those is 1e-10


@pytest.mark.parametrize("kappa", [1e9, 1e15, 1e100])
def test_beyond_the_promised_range_the_limit_of_large_kappa_holds(kappa):
    for d in (2, 3, 100, 100_000):
        loss = (d - 1) / (2 * kappa) * (1 - (d - 3) / (4 * kappa))
        assert vmf.mean_length(d, kappa) == pytest.approx(1 - loss, rel=1e-15)
        assert vmf.mean_length_slope(d, kappa) * kappa == pytest.approx((d - 1) / 2 / kappa, rel=3e-4)


def test_published_values():
    assert vmf.mean_length(2, 2.0) == pytest.approx(0.6977747, abs=1e-7)
    assert vmf.mean_length(3, 5.0) == pytest.approx(1 / math.tanh(5) - 1 / 5, rel=1e-15)
    assert vmf.mean_length(5000, 3e4) == pytest.approx(0.920146895318, abs=1e-12)
    assert vmf.log_normaliser(5000, 3e4) == pytest.approx(-8722.521538, abs=1e-6)
    assert vmf.log_normaliser(3, 5.0) == pytest.approx(math.log(5 / (4 * math.pi * math.sinh(5))), rel=1e-14)


@given(st.integers(2, 200), kappas)
def test_neighbouring_orders_satisfy_the_recurrence(d, kappa):
    """A_m (2 (m + 1) + kappa A_(m+1)) = kappa, also where the expansion takes over from the steps."""
    assert vmf.mean_length(d, kappa) * (d + kappa * vmf.mean_length(d + 2, kappa)) == pytest.approx(kappa, rel=3e-15)


@given(dimensions, kappas)
def test_slope_satisfies_the_riccati_equation(d, kappa):
    A = vmf.mean_length(d, kappa)
    terms = np.array([1.0, -A * A, -(d - 1) * A / kappa])
    assert abs(terms.sum() - vmf.mean_length_slope(d, kappa)) <= 8 * ULP * np.abs(terms).sum()


def test_the_functions_broadcast():
    d, kappa = np.array([[2], [30], [700]]), np.array([0.0, 0.5, 40.0, 3e5])
    got, inverse = all_three(d, kappa), vmf.concentration(d, vmf.mean_length(d, kappa))
    for i, one in enumerate(d[:, 0]):
        for j, k in enumerate(kappa):
            np.testing.assert_allclose([g[i, j] for g in got], all_three(int(one), k), rtol=1e-13, atol=1e-13)
            assert inverse[i, j] == pytest.approx(k, rel=1e-9)  # 3e5 ulp where d = 2, kappa = 3e5
    many = np.linspace(0, 50, 2 * vmf.CHUNK + 3)
    np.testing.assert_array_equal(vmf.mean_length(7, many)[::1000], vmf.mean_length(7, many[::1000]))


# The inverse


def ulps_off(d, R, of=vmf):
    return np.abs(np.asarray(of.mean_length(d, of.concentration(d, R))) - R) / np.spacing(R)


def lengths(size, least=1e-300):
    """Numbers in (0, 1): in the middle, near 0, near 1, and below powers of two, where an ulp is least."""
    rng = np.random.default_rng(0)
    R = [rng.random(size), np.exp(rng.uniform(np.log(least), 0, size)), 1 - np.exp(rng.uniform(-36.7, 0, size))]
    R += [p - 0.01 * p * rng.random(size) for p in (0.5, 0.25, 0.125)]
    R = np.concatenate(R)
    return R[(0 < R) & (R < 1)]


@pytest.mark.parametrize("d", DIMENSIONS)
def test_concentration_inverts_mean_length_to_4_ulp(d):
    assert ulps_off(d, lengths(3000)).max() <= 4


@given(dimensions, st.floats(0, 1, exclude_max=True))
def test_concentration_inverts_mean_length_anywhere(d, R):
    assert abs(vmf.mean_length(d, vmf.concentration(d, R)) - R) <= 4 * np.spacing(R)


@given(dimensions, kappas)
def test_concentration_returns_kappa_as_well_as_the_ratio_determines_it(d, kappa):
    A, slope = vmf.mean_length(d, kappa), vmf.mean_length_slope(d, kappa)
    assert abs(vmf.concentration(d, A) - kappa) <= 6 * ULP * (kappa + A / slope)


def test_concentration_reaches_both_ends():
    last = 1 - 2.0**-53
    assert vmf.concentration(5, 0.0) == 0
    for d in DIMENSIONS:
        assert vmf.concentration(d, last) == pytest.approx((d - 1) / 2 * 2.0**53, rel=1e-13)


# JAX


slow_too = lambda *ds: [pytest.param(d, marks=pytest.mark.slow) for d in ds]  # compilation takes a second


@pytest.mark.parametrize("d", [2, 5000, *slow_too(42, 100_000)])
def test_jax_gives_what_numpy_gives(d, x64):
    kappa = np.concatenate([KAPPAS, d * np.exp(np.random.default_rng(0).normal(size=2000))])
    got, want = all_three(d, jnp.asarray(kappa), vmf_jax), all_three(d, kappa)
    assert all(g.dtype == jnp.float64 for g in got)
    assert (np.abs(got[0] - want[0]) <= 5e-13 * np.maximum(1, np.abs(want[0]))).all()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-15)
    np.testing.assert_allclose(got[2], want[2], rtol=2e-13)
    assert ulps_off(d, lengths(500), vmf_jax).max() <= 4


@pytest.mark.parametrize("d", [2, 42, 5000, 100_000])
def test_single_precision_is_enough_for_the_ratio_and_its_inverse(d):
    kappa = np.concatenate([KAPPAS, d * np.exp(np.random.default_rng(0).normal(size=2000)), [1e10, 1e20, 3e37]])
    kappa = kappa.astype(np.float32)
    got = vmf_jax.mean_length(d, jnp.asarray(kappa))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, vmf.mean_length(d, kappa), rtol=1e-6)
    if d == 5000:  # the others would cost a second of compilation each
        R = lengths(500, least=1e-30).astype(np.float32)
        assert ulps_off(d, R[R < 1], vmf_jax).max() <= 4


@pytest.mark.parametrize("d", [5000, *slow_too(2, 42)])
def test_derivatives_are_the_functions_themselves(d, x64):
    kappa = jnp.array([0.0, 1e-3, 2.0, 30.0, 1e5])
    first = jax.vmap(jax.grad(vmf_jax.log_normaliser, 1), (None, 0))(d, kappa)
    np.testing.assert_array_equal(first, -vmf_jax.mean_length(d, kappa))
    second = jax.jit(jax.vmap(jax.hessian(partial(vmf_jax.log_normaliser, d))))(kappa)
    np.testing.assert_allclose(second, -vmf.mean_length_slope(d, kappa), rtol=1e-12)
    inverse = jax.vmap(jax.grad(vmf_jax.concentration, 1), (None, 0))(d, vmf_jax.mean_length(d, kappa))
    np.testing.assert_allclose(inverse * vmf_jax.mean_length_slope(d, kappa), 1, rtol=1e-9)


def test_the_slope_has_a_slope(x64):
    """A'' = -2 A A' - (d - 1) (A' - A / kappa) / kappa, from mpmath; JAX differentiates the formula of A'."""
    slope_of_slope = jax.jit(jax.grad(vmf_jax.mean_length_slope, 1), static_argnums=0)
    for d, kappa in ((51, 30.0), (51, 4000.0), (5000, 3e4)):
        _, A, slope = (mpf(x) for x in exact(d, kappa))
        with mp.workdps(40):
            want = -2 * A * slope - (d - 1) * (slope - A / mpf(kappa)) / mpf(kappa)
        got = slope_of_slope(d, kappa)
        assert float(got) == pytest.approx(float(want), rel=1e-11)


# The draws


def unit(d, seed=1):
    mu = np.random.default_rng(seed).normal(size=d)
    return mu / np.linalg.norm(mu)


def draw_numpy(mu, kappa, size):
    return vmf.sample(np.random.default_rng(0), mu, kappa, size)


def draw_jax(mu, kappa, size):
    key = random_jax.Key(jnp.asarray(random.chain_words(0, 3)), jnp.uint32(17))
    return np.asarray(vmf_jax.sample(key, jnp.asarray(mu), kappa, (size,), stream=2))


N = 40_000  # draws; one number, so that few programs are compiled
samplers = pytest.mark.parametrize("draw", [draw_numpy, draw_jax])


def angles_cdf(d, kappa):
    """Distribution function of the angle to mu, whose density is exp(kappa cos) sin^(d-2), on a fine grid."""
    top = min(math.pi, 14 * math.sqrt((d - 1) / max(kappa, 1e-300)) if kappa > 200 * d else math.pi)
    angle = np.linspace(0, top, 200_001)
    density = np.exp(-2 * kappa * np.sin(angle / 2) ** 2) * np.sin(angle) ** (d - 2)
    cdf = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return lambda x: np.interp(x, angle, cdf / cdf[-1])


def angle_to(mu, x):
    """From the chord, which keeps its digits where x is next to mu."""
    return 2 * np.arcsin(np.minimum(1, np.linalg.norm(x - mu, axis=-1) / 2))


@samplers
@pytest.mark.parametrize("d, kappa", [(2, 0.0), (2, 1e-8), (2, 3.0), (2, 1e6), (3, 5.0), (3, 1e10), (8, 20.0)])
def test_the_angle_to_mu_has_its_density(draw, d, kappa, x64):
    mu = unit(d)
    x = draw(mu, kappa, N)
    assert np.abs(np.linalg.norm(x, axis=-1) - 1).max() < 1e-14
    assert stats.kstest(angle_to(mu, x), angles_cdf(d, kappa)).pvalue > 1e-3


@pytest.mark.parametrize("d, kappa", [(2, 0.0), (2, 20.0), (2, 1e6)])
def test_the_angle_to_mu_has_its_density_in_single_precision(d, kappa):
    mu = np.eye(d)[0]  # exact in both precisions
    x = draw_jax(mu.astype(np.float32), kappa, N).astype(np.float64)
    assert np.abs(np.linalg.norm(x, axis=-1) - 1).max() < 1e-6
    angle = np.arctan2(np.linalg.norm(x[:, 1:], axis=-1), x[:, 0])
    assert stats.kstest(angle, angles_cdf(d, kappa)).pvalue > 1e-3


@samplers
@pytest.mark.parametrize("d, kappa, n", [(2, 20.0, N), (3, 1.0, N), (8, 0.0, N), (3000, 2e4, 1500)])
def test_moments_along_mu_are_the_ratio_and_its_slope(draw, d, kappa, n, x64):
    mu = unit(d)
    assert_moments_along_mu(d, kappa, draw(mu, kappa, n) @ mu)


def assert_moments_along_mu(d, kappa, cos):
    n = cos.size
    A, slope = vmf.mean_length(d, kappa), vmf.mean_length_slope(d, kappa)
    assert abs(cos.mean() - A) < 4 * math.sqrt(slope / n)
    square = (cos - A) ** 2
    assert abs(square.mean() - slope) < 4 * square.std() / math.sqrt(n)
    assert abs((cos**2).mean() - (slope + A * A)) < 4 * (cos**2).std() / math.sqrt(n)


@pytest.mark.parametrize("draw", [draw_numpy, pytest.param(draw_jax, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 500.0, 1e4, 1e6])
@pytest.mark.parametrize("d", [2, 3, 10, 5000, *(pytest.param(d, marks=pytest.mark.slow) for d in (300, 100_000))])
def test_draws_are_right_at_every_dimension_and_concentration(draw, d, kappa, x64):
    """1 - cos as half the squared chord, which keeps its digits; across mu, any entry is that of a uniform point."""
    n = 400 if d > 1000 else 4000
    mu = unit(d)
    x = draw(mu, kappa, n)
    assert np.abs(np.linalg.norm(x, axis=-1) - 1).max() < 1e-13
    assert_moments_along_mu(d, kappa, 1 - ((x - mu) ** 2).sum(-1) / 2)
    across = np.linalg.norm(x - (x @ mu)[:, None] * mu, axis=-1)
    for seed in range(3):
        e = unit(d, 10 + seed)
        e = e - (e @ mu) * mu
        side = x @ (e / np.linalg.norm(e)) / across
        if d == 2:  # two points
            assert abs((side > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(n)
        else:
            assert stats.kstest(np.arccos(side.clip(-1, 1)), angles_cdf(d - 1, 0.0)).pvalue > 1e-3


@samplers
def test_directions_across_mu_are_uniform(draw, x64):
    d = 8
    mu = unit(d)
    x = draw(mu, 6.0, N)
    across = x - (x @ mu)[:, None] * mu
    basis = np.linalg.svd(mu[None])[2][1:]  # of the hyperplane across mu
    e = (across / np.linalg.norm(across, axis=-1, keepdims=True)) @ basis.T  # uniform on the sphere of R^7
    assert np.abs(e.mean(0)).max() < 4 / math.sqrt(7 * N)
    assert np.abs(e.T @ e / N - np.eye(7) / 7).max() < 4 * math.sqrt(3 / 63 / N)  # E e_1^4 = 3 / (7 * 9)
    assert stats.kstest(np.arccos(e[:, 0]), angles_cdf(7, 0.0)).pvalue > 1e-3
    assert abs(np.corrcoef(e[:, 0], x @ mu)[0, 1]) < 4 / math.sqrt(N)


@samplers
def test_directions_and_concentrations_broadcast(draw, x64):
    mu = np.stack([unit(3, 1), unit(3, 2)])
    kappa = np.array([[1e8], [1e12], [1e4]])
    if draw is draw_numpy:
        x = vmf.sample(np.random.default_rng(0), mu, kappa)
    else:
        x = np.asarray(vmf_jax.sample(jax.random.key(0), jnp.asarray(mu), kappa))
    assert x.shape == (3, 2, 3)
    assert (np.linalg.norm(x - mu, axis=-1) < 8 / np.sqrt(kappa)).all()


@samplers
def test_every_direction_is_met(draw, x64):
    """The reflection from e1 to mu takes another sign where mu_1 < 0."""
    for mu in (np.array([-1.0, 0, 0]), np.array([0.0, 1, 0]), np.array([-0.6, 0, -0.8]), np.array([0.6, 0.64, 0.48])):
        x = draw(mu, 1e4, N)
        assert np.abs(np.linalg.norm(x, axis=-1) - 1).max() < 1e-14
        assert np.linalg.norm(x - mu, axis=-1).max() < 8e-2


@given(st.integers(2, 300), st.floats(1e-2, 50), st.floats(1e-6, 1), st.floats(1e-6, 1))
def test_the_proposal_is_woods(d, ratio, u, v):
    """Beta variate, envelope and chance as printed (Wood 1994), in the spec's letters."""
    kappa = ratio * d
    cos, sin, log_chance = vmf.proposal(np, d, kappa, np.float64(u), np.float64(v))
    xi = math.sqrt(1 - (u ** (2 / (d - 2)) if d > 2 else 0)) * math.cos(math.pi * v)
    Z, b = (1 + xi) / 2, (d - 1) / (2 * kappa + math.sqrt(4 * kappa**2 + (d - 1) ** 2))
    y, y0 = 2 * b * Z / (1 - (1 - b) * Z), 2 * b / (1 + b)
    printed = -kappa * (y - y0) + (d - 1) * (math.log(y0 + (1 - y0) * y) - math.log(4 * b) + 2 * math.log1p(b))
    assert 1 - cos == pytest.approx(y, rel=1e-7)
    assert sin == pytest.approx(math.sqrt(y * (2 - y)), rel=1e-6, abs=1e-7)
    assert log_chance == pytest.approx(printed, rel=1e-6, abs=1e-8 * kappa)
    assert log_chance <= 1e-14 * d


@pytest.mark.parametrize("d, kappa, want", [(2, 20, 0.666), (5000, 3e4, 0.736), (100_000, 1e6, 0.7245), (5000, 10, 1)])
def test_the_chance_of_acceptance_is_bounded_below(d, kappa, want):
    u, v = 1 - np.random.default_rng(0).random((2, 200_000))
    assert np.exp(vmf.proposal(np, d, float(kappa), u, v)[2]).mean() == pytest.approx(want, abs=2e-3)


def test_a_draw_depends_on_its_place_alone(x64):
    mu, key = jnp.asarray(unit(8)), jax.random.key(3)
    few, many = vmf_jax.sample(key, mu, 4.0, (7,)), vmf_jax.sample(key, mu, 4.0, (N,))
    np.testing.assert_allclose(few, many[:7], rtol=1e-13)
    other = vmf_jax.sample(key, mu, 4.0, (7,), stream=1)
    assert not np.isclose(few, other).any()


def test_sampling_maps_and_compiles(x64):
    keys = jax.random.split(jax.random.key(0), 4)
    mu = jnp.asarray(np.stack([unit(8, s) for s in range(4)]))
    kappa = jnp.array([0.0, 2.0, 1e5, jnp.nan])
    together = jax.jit(jax.vmap(lambda k, m, c: vmf_jax.sample(k, m, c, (7,))))(keys, mu, kappa)
    for i in range(3):
        np.testing.assert_allclose(together[i], vmf_jax.sample(keys[i], mu[i], kappa[i], (7,)), rtol=1e-12, atol=1e-15)
    assert np.isnan(together[3]).all()  # a chain that broke does not hang


# Densities


@pytest.mark.parametrize("of", [vmf, vmf_jax])
def test_the_density_integrates_to_one(of, x64):
    angle = 2 * np.pi * np.arange(400) / 400
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    assert np.exp(of.log_density(circle, unit(2), 7.0)).mean() * 2 * np.pi == pytest.approx(1, rel=1e-12)
    z, weight = np.polynomial.legendre.leggauss(60)  # Archimedes: the area of a band is 2 pi times its height
    ring = np.sqrt(1 - z**2)[:, None]
    sphere = np.stack(
        [ring * circle[None, :, 0], ring * circle[None, :, 1], np.broadcast_to(z[:, None], (60, 400))], -1
    )
    density = np.exp(of.log_density(sphere, unit(3), 7.0)).mean(1)
    assert (weight * density).sum() * 2 * np.pi == pytest.approx(1, rel=1e-12)


def test_bingham_and_fisher_bingham_have_their_symmetries(x64):
    rng = np.random.default_rng(0)
    x = vmf.sample(rng, unit(4), 0.0, 20)
    matrix = rng.normal(size=(4, 4))
    matrix = matrix + matrix.T
    by_axes = sum(
        b * (x @ axis) ** 2 for b, axis in zip(*(lambda w, V: (w, V.T))(*np.linalg.eigh(matrix)), strict=True)
    )
    got = vmf.bingham_log_density(x, matrix)
    np.testing.assert_allclose(got, by_axes, atol=1e-13)
    np.testing.assert_allclose(vmf.bingham_log_density(-x, matrix), got)
    np.testing.assert_allclose(vmf.bingham_log_density(x, matrix + 3 * np.eye(4)), got + 3)
    both = vmf.fisher_bingham_log_density(x, 5 * unit(4), matrix)
    np.testing.assert_allclose(both - got, vmf.log_density(x, unit(4), 5.0) - vmf.log_normaliser(4, 5.0), atol=1e-12)
    gradient = jax.grad(vmf_jax.fisher_bingham_log_density)(jnp.asarray(x[0]), 5 * unit(4), jnp.asarray(matrix))
    np.testing.assert_allclose(gradient, 5 * unit(4) + 2 * matrix @ x[0], atol=1e-13)


# Bad input


@pytest.mark.parametrize("of", [vmf, vmf_jax])
def test_bad_input_is_named(of):
    for d in (1, 0, -3, 2.5, math.nan, math.inf, "three"):
        for function in (of.log_normaliser, of.mean_length, of.mean_length_slope, of.concentration):
            with pytest.raises(InputError, match="d must be a whole number >= 2"):
                function(d, 0.5)
    for kappa in (-1e-9, math.nan, math.inf, [1.0, -2.0], "much"):
        for function in (of.log_normaliser, of.mean_length, of.mean_length_slope):
            with pytest.raises(InputError, match="kappa must be >= 0"):
                function(3, kappa)
    for R in (-0.1, 1.0, 2.0, math.nan, [0.5, 1.0]):
        with pytest.raises(InputError, match=r"must be in \[0, 1\)"):
            of.concentration(3, R)
    who = np.random.default_rng(0) if of is vmf else jax.random.key(0)
    with pytest.raises(SpaceError, match="length 1"):
        of.sample(who, np.array([1.0, 1.0]), 1.0)
    with pytest.raises(InputError, match="2 numbers or more"):
        of.sample(who, np.array([1.0]), 1.0)
    with pytest.raises(InputError, match="kappa must be >= 0"):
        of.sample(who, np.array([1.0, 0.0]), -1.0)
    with pytest.raises(InputError, match="put the axes of the draws first"):
        of.sample(who, np.eye(3), 1.0, (3, 2))


def test_a_traced_dimension_is_named():
    with pytest.raises(InputError, match="known when JAX compiles"):
        jax.jit(vmf_jax.mean_length)(3, 1.0)


def test_the_expansion_is_that_of_the_bessel_function():
    """The first polynomials, as printed (DLMF 10.41.10): U_1 = (3 p - 5 p^3) / 24, U_2 = D_2 + D_1^2 / 2."""
    assert [float(24 * c) for c in bessel._COEFFICIENTS[0]] == [3, -5]
    D_1, D_2 = np.array(bessel._COEFFICIENTS[0]), np.array(bessel._COEFFICIENTS[1])
    assert [int(1152 * c) for c in D_2 + np.convolve(D_1, D_1) / 2] == [81, -462, 385]
