"""What the audit measures with: Stein discrepancy, score identities, the law of the chain, paired runs, modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fokker
from fokker.run.audit import gradient_noise, linearised, paired
from fokker.run.audit.ksd import discrepancy, stein_kernel, stretch_of
from fokker.run.audit.other_modes import search_modes
from fokker.run.audit.score import score_identities, spread_out


def gaussian_rows(size, precision, mean, seed=0, prior=1e-6):
    """A target exp(-N a (theta - m)^2 / 2) by coordinate: rows y ~ N(theta, 1 / a), so V = N^2 a^2 Var(y) / n."""
    y = np.random.default_rng(seed).standard_normal((size, len(precision)))
    y = (y - y.mean(0)) / y.std(0) / np.sqrt(precision) + mean
    likelihood = lambda theta, rows: -0.5 * ((rows["y"] - theta) ** 2 * jnp.asarray(precision)).sum(-1)
    return fokker.Target(lambda theta: -0.5 * prior * (theta**2).sum(), likelihood, {"y": y}, start=np.asarray(mean))


# --- Stein discrepancy ------------------------------------------------------------------------------------------------


def test_the_stein_kernel_is_its_definition(x64):
    """s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + tr grad_x grad_y k, by automatic differentiation."""
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((2, 6, 3))
    k = lambda a, b: (1 + ((a - b) ** 2).sum() / 3) ** -0.5
    for i in range(6):
        for j in range(6):
            a, b = jnp.asarray(x[i]), jnp.asarray(x[j])
            mixed = jnp.trace(jax.jacfwd(jax.grad(k, 0), 1)(a, b))
            want = s[i] @ s[j] * k(a, b) + s[i] @ jax.grad(k, 1)(a, b) + s[j] @ jax.grad(k, 0)(a, b) + mixed
            assert_allclose(stein_kernel(x, s)[i, j], want, atol=1e-12)


def test_the_square_is_the_mean_over_distinct_pairs():
    """In coordinates where the draws have unit covariance, by a double loop."""
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((40, 2)) @ [[2.0, 0.0], [1.0, 0.5]]
    gradients = rng.standard_normal((40, 2))
    L = np.linalg.cholesky(np.cov(draws.T))
    x, s = np.linalg.solve(L, (draws - draws.mean(0)).T).T, -gradients @ L
    pairs = [stein_kernel(x[[i, j]], s[[i, j]])[0, 1] for i in range(40) for j in range(40) if i != j]
    assert_allclose(discrepancy(draws, gradients, 1, 0).squared, np.mean(pairs), rtol=1e-10)


def test_the_square_of_a_narrow_normal_is_the_integral():
    """d = 1, law N(0, 1), score -b x: KSD^2 = E h, by quadrature over the normal difference and sum."""
    b = 1.3
    u, weights = np.polynomial.hermite_e.hermegauss(200)
    p = weights / weights.sum()
    h = stein_kernel(u[:, None], -b * u[:, None])
    exact = p @ h @ p
    x = np.random.default_rng(2).standard_normal((30_000, 1))
    values = [discrepancy(part, b * part, 1, 0).squared for part in x.reshape(60, 500, 1)]
    assert abs(np.mean(values) - exact) < 4 * np.std(values) / np.sqrt(60)
    # Stein's identity: the same with the right score vanishes
    assert abs(p @ stein_kernel(u[:, None], -u[:, None]) @ p) < 1e-3 * exact


def test_p_values_of_right_draws_are_level():
    """Independent draws and chains that remember: p < 0.05 in about 5 % of 100 samples."""
    for correlation, stretch in ((0.0, stretch_of(300, 300)), (0.6, stretch_of(300, 300 / 4))):
        p_values = []
        for seed in range(100):
            rng = np.random.default_rng(seed)
            x = rng.standard_normal((300, 2))
            for t in range(1, 300):
                x[t] = correlation * x[t - 1] + np.sqrt(1 - correlation**2) * x[t]
            p_values.append(discrepancy(x, x, stretch, seed).p_value)
        assert (np.array(p_values) < 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_wrong_draws_are_found_and_their_error_is_named():
    """sds too large by 20 %: found at 1,000 draws in 5 dimensions, with minibatch noise too, and called about 20 %."""
    rng = np.random.default_rng(3)
    x = 1.2 * rng.standard_normal((1000, 5))
    full = discrepancy(x, x, 1, 0)
    noisy = discrepancy(x, x + 0.5 * rng.standard_normal(x.shape), 1, 0)
    for k in (full, noisy):
        assert k.p_value < 0.01
        assert 0.1 < k.as_sd_error < 0.3
    assert full.detectable < noisy.detectable


def test_gradient_noise_leaves_the_square_unbiased():
    rng = np.random.default_rng(4)
    x = 1.3 * rng.standard_normal((200, 2))
    exact = discrepancy(x, x, 1, 0).squared
    noisy = [discrepancy(x, x + rng.standard_normal(x.shape), 1, 0).squared for _ in range(200)]
    assert abs(np.mean(noisy) - exact) < 4 * np.std(noisy) / np.sqrt(200)


# --- score identities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [400, 30])
def test_the_score_gives_the_errors_of_spread_and_mean(draws):
    """Draws of N(m + 0.4, (1.15 sd)^2): from few gradients (no regression) and from many."""
    sd = np.array([1.0, 0.1, 5.0, 1.0, 1.0, 1.0])
    factor, shift = np.array([1.15, 1.0, 1.0, 0.8, 1.0, 1.0]), np.array([0.0, 0.4, 0.0, 0.0, 0.0, 0.0])
    x = np.random.default_rng(5).standard_normal((4, 5000, 6)) * factor * sd + shift * sd
    where = spread_out(4, 5000, 4 * draws if draws == 400 else 40)
    s = score_identities(x, where, x[where[:, 0], where[:, 1]] / sd**2)
    assert (s.precision is not None) == (draws == 400)
    if draws == 400:
        assert_allclose(s.precision, np.diag(1 / sd**2), atol=1e-8 / sd.min() ** 2)
    assert (np.abs(s.sd_ratio - factor) < 4.5 * s.sd_error + 1e-9).all()
    assert (np.abs(s.shift - shift) < 4.5 * s.shift_error).all()
    assert s.sd_error.max() < (0.02 if draws == 400 else 0.5)


# --- the law of the chain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("V", [0.0, 3.0])
def test_the_linear_law_of_sgld_is_its_closed_form(V):
    """(2 + eps V) / (a (2 - eps a)); compensated: 2 / (a (2 - eps a))."""
    a, eps = np.array([1.0, 4.0]), 0.2
    law = linearised.gaussian_law(fokker.sgld(eps), np.diag(a), V * np.eye(2))
    assert_allclose(np.diag(law.covariance), (2 + eps * V) / (a * (2 - eps * a)), rtol=1e-10)
    assert law.kinetic is None
    compensated = linearised.gaussian_law(fokker.sgld(eps), np.diag(a), V * np.eye(2), jnp.full(2, V))
    assert_allclose(np.diag(compensated.covariance), 2 / (a * (2 - eps * a)), rtol=1e-10)


def test_a_step_that_is_not_stable_has_no_law():
    assert linearised.gaussian_law(fokker.sgld(0.6), np.diag([1.0, 4.0]), np.zeros((2, 2))).radius > 1


@pytest.mark.parametrize("integrator", ["euler", "symplectic", "aboba", "baoab"])
@pytest.mark.parametrize("phases", [None, (0,), (1, 3)])
def test_the_law_is_that_of_a_simulation(integrator, phases):
    """20,000 chains of SGHMC in one dimension, batches independent or without replacement: variance and kinetic energy
    at the phases of an epoch at which draws are kept."""
    kernel, a, V, E, count = fokker.sghmc(0.4, friction=0.8, integrator=integrator), 1.5, 2.0, 4, 20_000
    epochs = None if phases is None else linearised.Epochs(E, np.array(phases))
    law = linearised.gaussian_law(kernel, np.array([[a]]), np.array([[V]]), None, epochs)
    rng = np.random.default_rng(6)

    class given:
        """a theta + what the batch says."""

        noise = "none"

        def bind(self, target):
            estimate = lambda key, theta, batch, aux: (a * theta + batch, None, aux)
            return linearised.BoundGradient(lambda theta: None, estimate)

    bound = kernel.bind(fokker.Target.from_log_density(lambda theta: 0.0 * theta.sum()), given())
    one = lambda state, z, batch: bound.step(linearised.Given(z), state, batch)
    step = jax.jit(jax.vmap(one))
    state = jax.vmap(lambda z: bound.init(jnp.zeros(1), linearised.Given(z)))(jnp.zeros((count, 3, 1)))
    squares, kinetic = [], []
    for epoch in range(12):
        errors = np.sqrt(V) * rng.standard_normal((count, E, 1))
        if phases is not None:  # sums to zero over the epoch, each with variance V
            errors = (errors - errors.mean(1, keepdims=True)) * np.sqrt(E / (E - 1))
        for i in range(E):
            state, info = step(state, jnp.asarray(rng.standard_normal((count, 3, 1)), jnp.float32), errors[:, i])
            if epoch == 11 and (phases is None or (i + 1) % E in phases):
                squares.append(np.asarray(state.position[:, 0]) ** 2)
                kinetic.append(np.asarray(info.kinetic))
    for measured, exact in ((squares, law.covariance[0, 0]), (kinetic, law.kinetic)):
        per_chain = np.mean(measured, axis=0)
        assert abs(per_chain.mean() - exact) < 4 * per_chain.std() / np.sqrt(count)


# --- gradient noise and paired runs -----------------------------------------------------------------------------------


def plan_of(target, kernel, **settings):
    return fokker.sample(target, kernel, draws=4, warmup=0, progress=False, **settings)._plan


def test_the_noise_is_that_of_the_batches():
    """V = N^2 a^2 Var(y) / n (1 - n/N) up to the order of rows, and the slope of the mean is 1."""
    precision = np.array([1.0, 9.0])
    target = gaussian_rows(2000, precision, np.zeros(2))
    plan = plan_of(target, fokker.sgld(1e-5), batch_size=20, batches="independent")
    points = np.array([[0.0, 0.0], [0.05, 0.01]])
    measured = gradient_noise.measure(plan, points, gradient_noise.minibatches(plan), 60.0)
    want = 2000**2 * precision / 20 * (1 - 20 / 2000)
    # contiguous windows of one order of the rows: about N / n = 100 independent ones
    assert (np.abs(np.diag(measured.covariance) / want - 1) < 4 * np.sqrt(2 / 100)).all()
    far = np.array([[3.0, 1.0], [-3.0, 1.0]])
    there = gradient_noise.measure(plan, far, gradient_noise.minibatches(plan), 60.0)
    slope, error = gradient_noise.scale_of_mean(2000 * precision * far, there, np.eye(2))
    assert abs(slope - 1) < 4 * error + 1e-4


@pytest.mark.parametrize("kernel", [fokker.sgld(4e-4), fokker.sghmc(0.02, friction=20.0, integrator="euler")])
def test_paired_runs_measure_the_bias_of_the_step(kernel):
    """On a Gaussian posterior, against the closed form of SGLD, and against the law of the linear chain for SGHMC."""
    precision, size = np.array([0.2, 1.0]), 500  # eps N a = 0.04 and 0.2 for SGLD
    target = gaussian_rows(size, precision, np.array([1.0, -1.0]))
    plan = plan_of(target, kernel, batch_size=50, gradient=fokker.control_variates())  # exact: gradients are linear
    sd = 1 / np.sqrt(size * precision)
    starts = np.array([1.0, -1.0]) + sd * np.random.default_rng(7).standard_normal((4, 2))
    feed = gradient_noise.minibatches(plan)
    bias = paired.measure_bias(plan, kernel.step_size, starts, sd, 25.0, feed, 6.0, 0.007)
    law = lambda eps: linearised.gaussian_law(
        type(kernel)(**{**vars(kernel), "step_size": eps}), np.diag(size * precision), np.zeros((2, 2))
    )
    coarse, fine = (np.sqrt(np.diag(law(kernel.step_size * f).covariance)) for f in (1, 0.5))
    if isinstance(kernel, fokker.sgld):
        assert_allclose(coarse / sd, np.sqrt(2 / (2 - kernel.step_size * size * precision)), rtol=1e-9)
    want = 2 * (coarse / fine - 1)  # what two steps can tell, of order eps
    assert (want > 0).all() and want.max() > 0.03
    assert (np.abs(bias.sd - want) < 4.5 * bias.sd_error).all()
    assert (np.abs(bias.mean) < 4.5 * bias.mean_error).all()
    assert bias.sd_error.max() < 0.01


# --- modes ------------------------------------------------------------------------------------------------------------


def two_wells(theta):
    """Two normals in two dimensions, of weights 1 and 0.4 and sds 1 and 0.5, 12 apart."""
    first = -0.5 * (theta**2).sum()
    second = -0.5 * ((theta - jnp.array([12.0, 0.0])) ** 2).sum() / 0.25 + jnp.log(0.4 / 0.25)
    return jnp.logaddexp(first, second)


def test_an_unseen_mode_is_found_and_weighed():
    draws = np.random.default_rng(8).standard_normal((500, 2))
    target = fokker.Target.from_log_density(two_wells, start=np.zeros(2))
    search = search_modes(target, draws, np.zeros((1, 2), np.float32), 20.0, 0)
    assert len(search.unseen) == 1
    assert_allclose(search.unseen[0].position, [12.0, 0.0], atol=0.01)
    assert_allclose(search.unseen[0].weight, 0.4, rtol=0.05)


def test_a_mode_that_was_visited_is_not_unseen():
    rng = np.random.default_rng(9)
    draws = np.concatenate([rng.standard_normal((350, 2)), [12.0, 0.0] + 0.5 * rng.standard_normal((150, 2))])
    target = fokker.Target.from_log_density(two_wells, start=np.zeros(2))
    assert search_modes(target, draws, np.zeros((1, 2), np.float32), 20.0, 0).unseen == ()
