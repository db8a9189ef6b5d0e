"""SGNHT: at a thermostat that cannot move it is SGHMC; the thermostat's own step; then the law, by simulation.

Simulated chains are independent, so that every standard error is the spread of their means; the bounds are
multiples of it. The kinetic energy has mean 1 at any step size, and xi finds the noise of the gradient that
nobody told it of.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from fokker.errors import InputError
from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgnht import INTEGRATORS, sgnht
from fokker.target import Target
from tests.oracles import gaussian, linear_step, moments_1d, noisy, spd, weighted_slope

LABELS = np.array([0, 1, 1, 0, 2])
LABELS_OF_LEAVES = np.array([0, 0, 1, 1, 1])


# --- exact ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("noise", ["none", "compensated"])
def test_with_a_thermostat_that_cannot_move_it_is_sghmc(x64, integrator, noise):
    """Inertia without bound: the affine map and the noise are those of SGHMC with friction xi M."""
    d, rng, xi = 4, np.random.default_rng(0), 1.4
    A, mass = jnp.asarray(spd(rng, d)), jnp.asarray(rng.uniform(0.5, 2, d))
    gradient = noisy() if noise == "none" else noisy(jnp.array(0.9), jnp.array(0.6))
    nose = sgnht(0.15, xi, inertia=1e300, mass=mass, integrator=integrator).bind(gaussian(A), gradient)
    hmc = sghmc(0.15, xi * mass, mass, integrator).bind(gaussian(A), gradient)
    x, key = jnp.ones(d), jax.random.key(0)
    for got, want in zip(
        linear_step(nose.step, nose.init(x, key), d), linear_step(hmc.step, hmc.init(x, key), d), strict=True
    ):
        assert_allclose(got, want, atol=1e-13)


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("thermostat", ["all", "each", "labels"])
def test_each_thermostat_gains_the_mean_square_of_its_group_less_one(x64, integrator, thermostat):
    h, tau, mass = 0.1, 2.5, jnp.array([0.5, 1.0, 1.5, 2.0, 2.5])
    groups = {"all": np.zeros(5, int), "each": np.arange(5), "labels": LABELS}[thermostat]
    kernel = sgnht(
        h, thermostat=LABELS if thermostat == "labels" else thermostat, inertia=tau, mass=mass, integrator=integrator
    )
    bound = kernel.bind(gaussian(jnp.eye(5)), noisy(jnp.array(2.0)))
    state = bound.init(jnp.arange(5.0), jax.random.key(3))
    after, info = bound.step(jax.random.key(4), state)

    def gain(momentum):
        square = np.asarray(momentum**2 / mass)
        return np.array([square[groups == g].mean() for g in range(groups.max() + 1)]) - 1

    # The symmetric splitting gives xi half of its step with the old momentum and half with the new one.
    old = {"euler": 1.0, "symplectic": 0.0, "aboba": 0.5}[integrator]
    expected = h / tau * (old * gain(state.momentum) + (1 - old) * gain(after.momentum))
    assert_allclose(np.ravel(after.xi - state.xi), expected, atol=1e-14)
    assert_allclose(info.kinetic, (after.momentum**2 / mass).mean(), rtol=1e-14)


def test_groups_can_be_named_by_leaves_by_labels_or_be_single(x64):
    target = Target.from_log_density(lambda p: -0.5 * (p["a"] @ p["a"] + 2 * p["b"] @ p["b"]))
    position = {"a": jnp.ones(2), "b": jnp.arange(3.0)}

    def moved(thermostat):
        bound = sgnht(0.1, thermostat=thermostat).bind(target, minibatch())
        state = bound.init(position, jax.random.key(0))
        for t in range(3):
            state, _ = bound.step(jax.random.key(t), state)
        return state

    same = [("leaves", LABELS_OF_LEAVES), ("each", np.arange(5)), ("all", np.zeros(5, int))]
    for name, labels in same:
        one, other = moved(name), moved(labels)
        assert_allclose(np.ravel(one.xi), other.xi, rtol=1e-13)
        for leaf in ("a", "b"):
            assert_allclose(one.position[leaf], other.position[leaf], rtol=1e-13)
    assert np.abs(moved("all").position["b"] - moved("each").position["b"]).max() > 1e-4


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_mass_is_a_change_of_coordinates(x64, integrator):
    """With mass M on U(x) the chain is M^-1/2 times the chain of unit mass on U(M^-1/2 y), gradient noise and all."""
    mass, quartic = jnp.array([0.3, 1.0, 4.0]), lambda x: -(x**4).sum() + x[0] * x[2]
    scaled = lambda y: quartic(y / jnp.sqrt(mass))
    V = jnp.array([0.5, 1.0, 2.0])
    one = sgnht(0.05, mass=mass, integrator=integrator).bind(Target.from_log_density(quartic), noisy(V, V))
    other = sgnht(0.05, integrator=integrator).bind(Target.from_log_density(scaled), noisy(V / mass, V / mass))
    x = jnp.array([0.4, -0.2, 0.1])
    a, b = one.init(x, jax.random.key(0)), other.init(x * jnp.sqrt(mass), jax.random.key(0))
    for t in range(5):
        a, b = one.step(jax.random.key(t), a)[0], other.step(jax.random.key(t), b)[0]
    assert_allclose(a.position * jnp.sqrt(mass), b.position, rtol=1e-12)
    assert_allclose(a.momentum / jnp.sqrt(mass), b.momentum, rtol=1e-12)
    assert_allclose(a.xi, b.xi, rtol=1e-12)


@pytest.mark.parametrize("integrator", ["euler", "symplectic", "aboba"])
def test_a_dense_mass_is_a_change_of_coordinates(x64, integrator):
    """With M = L L^T on U(x) the chain is L^-T times the chain of unit mass on U(L^-T y), gradient noise and all."""
    M, quartic = jnp.asarray(spd(np.random.default_rng(0), 3)), lambda x: -(x**4).sum() + x[0] * x[2]
    L = jnp.linalg.cholesky(M)
    into, V = jnp.linalg.inv(L), jnp.asarray(spd(np.random.default_rng(1), 3))
    one = sgnht(0.05, mass=M, integrator=integrator).bind(Target.from_log_density(quartic), noisy(None, V))
    scaled = Target.from_log_density(lambda y: quartic(into.T @ y))
    other = sgnht(0.05, integrator=integrator).bind(scaled, noisy(None, into @ V @ into.T))
    x = jnp.array([0.4, -0.2, 0.1])
    a, b = one.init(x, jax.random.key(0)), other.init(L.T @ x, jax.random.key(0))
    for t in range(5):
        a, b = one.step(jax.random.key(t), a)[0], other.step(jax.random.key(t), b)[0]
    assert_allclose(L.T @ a.position, b.position, rtol=1e-11)
    assert_allclose(into @ a.momentum, b.momentum, rtol=1e-11)
    assert_allclose(a.xi, b.xi, rtol=1e-11)


@pytest.mark.parametrize("xi", [-0.7, 0.0, 1e-9, 3.0])
def test_the_friction_of_the_splitting_is_exact_for_either_sign_of_xi(x64, xi):
    """Ornstein-Uhlenbeck with rate xi over h: factor exp(-h xi), variance A (1 - exp(-2 h xi)) / xi, or 2 A h."""
    h, A = 0.3, 1.7
    bound = sgnht(h, A, inertia=1e300).bind(Target.from_log_density(lambda x: 0.0 * x.sum()), noisy())
    state = bound.init(jnp.zeros(1), jax.random.key(0))._replace(xi=jnp.array(xi))
    M, _, F = linear_step(bound.step, state, 1)
    assert_allclose(M[1, 1], np.exp(-h * xi), rtol=1e-14)
    variance = 2 * A * h if xi == 0 else -A * np.expm1(-2 * h * xi) / xi
    assert_allclose((F @ F.T)[1, 1], variance, rtol=1e-12)


# --- simulated ------------------------------------------------------------------------------------------------------


def simulate(target, gradient, d, chains, time, steps, burn=60.0, **settings):
    """Means over each chain of x^2 and x^4 (d,), kinetic energy, xi and xi^2; one row per step size and chain."""

    def one(h, count, skip, chain):
        bound = sgnht(h, **settings).bind(target, gradient)
        start = jax.random.normal(jax.random.fold_in(jax.random.key(1), chain), (d,))
        state = bound.init(start, jax.random.fold_in(jax.random.key(2), chain))
        words = jnp.stack([jnp.uint32(11), chain])
        zero = jax.tree.map(jnp.zeros_like, (start, start, jnp.float32(0), state.xi, state.xi))

        def body(t, carry):
            state, total = carry
            state, info = bound.step(Key(words, t.astype(jnp.uint32)), state)
            now = (state.position**2, state.position**4, info.kinetic, state.xi, state.xi**2)
            return state, jax.tree.map(lambda sum_, new: sum_ + jnp.where(t >= skip, new, 0.0), total, now)

        _, total = jax.lax.fori_loop(0, count, body, (state, zero))
        return jax.tree.map(lambda sum_: sum_ / (count - skip), total)

    run = jax.jit(jax.vmap(one, in_axes=(None, None, None, 0)))
    names = ("x2", "x4", "kinetic", "xi", "xi2")
    runs = [run(h, int(time / h), int(burn / h), jnp.arange(chains, dtype=jnp.uint32)) for h in steps]
    return [dict(zip(names, jax.tree.map(np.asarray, r), strict=True)) for r in runs]


def mean(values):
    """Mean over chains (and coordinates) and its standard error."""
    per_chain = values.reshape(len(values), -1).mean(1).astype(float)
    return per_chain.mean(), per_chain.std(ddof=1) / len(per_chain) ** 0.5


STANDARD = Target.from_log_density(lambda x: -0.5 * (x**2).sum())


@pytest.mark.parametrize(("d", "chains"), [(1, 1000), (5, 200), (20, 50)])
def test_unknown_gradient_noise_goes_to_the_thermostat_and_nowhere_else(d, chains):
    """E |r|^2 / d = 1, E xi = A + h V / 2, Var xi = 1 / (tau d), E x^2 = 1, up to the bias of order h^2."""
    A, V, h, tau = 1.5, 12.0, 0.08, 2.0
    (told,), (untold,) = (
        simulate(STANDARD, noisy(jnp.float32(V), known), d, chains, 600.0, [h], diffusion=A, inertia=tau)
        for known in (jnp.float32(V), None)
    )
    for run, xi in ((told, A), (untold, A + h * V / 2)):
        kinetic, error = mean(run["kinetic"])
        assert abs(kinetic - 1) < 4 * error + 1e-4 and error < 1e-3
        got, error = mean(run["xi"])
        assert abs(got - xi) < 4 * error + 2 * h**2 and error < 0.01
        spread, error = mean(run["xi2"] - run["xi"].mean() ** 2)
        assert abs(spread - 1 / (tau * d)) < 4 * error + 0.1 / (tau * d)
        variance, error = mean(run["x2"])
        assert abs(variance - 1) < 4 * error + h**2 and error < 0.005


@pytest.mark.parametrize(
    ("integrator", "order", "steps"), [("aboba", 2, (0.4, 0.28, 0.2)), ("symplectic", 1, (0.2, 0.1, 0.05))]
)
def test_the_order_of_the_bias(integrator, order, steps):
    runs = simulate(STANDARD, noisy(), 20, 300, 500.0, steps, integrator=integrator)
    bias, error = np.array([mean(run["x2"]) for run in runs]).T
    got, spread = weighted_slope(np.array(steps), bias - 1, error)
    assert spread < 0.1
    assert abs(got - order) < 3 * spread + 0.1  # 0.1: the next order of h at the largest step


def test_in_many_dimensions_the_bias_is_the_mean_curvature_times_a_quarter_of_the_squared_step():
    """xi then hardly moves; momenta at the end of an "aboba" step are kept at 1, at its middle at 1 - h^2 a / 4."""
    h = 0.4
    (run,) = simulate(STANDARD, noisy(), 200, 40, 300.0, [h])
    variance, error = mean(run["x2"])
    assert abs(variance - (1 - h**2 / 4)) < 4 * error and error < 2e-3


def test_groups_find_their_own_noise():
    """Noise that differs by group: with a thermostat each every variance is right, with one for all none is."""
    V, h, labels = jnp.array([2.0, 2.0, 20.0, 20.0]), 0.08, np.array([0, 0, 1, 1])
    (groups,) = simulate(STANDARD, noisy(V), 4, 200, 600.0, [h], thermostat=labels)
    (one,) = simulate(STANDARD, noisy(V), 4, 200, 600.0, [h])
    for g, v in ((0, 2.0), (1, 20.0)):
        got, error = mean(groups["xi"][:, g])
        assert abs(got - (1 + h * v / 2)) < 4 * error + 2 * h**2
        variance, error = mean(groups["x2"][:, labels == g])
        assert abs(variance - 1) < 4 * error + h**2
        assert abs(mean(one["x2"][:, labels == g])[0] - 1) > 0.1


def test_a_double_well_and_a_quartic_have_their_moments():
    """Coordinates with U = x^4 - 2 x^2 and x^4 / 4, whose moments are known by quadrature; one thermostat each."""
    target = Target.from_log_density(lambda x: -(x[0] ** 4) + 2 * x[0] ** 2 - x[1] ** 4 / 4)
    truth = np.array([moments_1d(lambda x: -(x**4) + 2 * x**2)[1:], moments_1d(lambda x: -(x**4) / 4)[1:]]).T
    assert abs(truth[0, 0] - 0.832745) < 1e-6
    runs = simulate(target, noisy(jnp.float32(3.0)), 2, 1000, 600.0, [0.1, 0.05], thermostat="each")
    for run, h in zip(runs, (0.1, 0.05), strict=True):
        for name, exact in zip(("x2", "x4"), truth, strict=True):
            for i in range(2):
                got, error = mean(run[name][:, i])
                assert abs(got - exact[i]) < 4 * error + 4 * h**2 * exact[i]
                assert error < 0.02 * exact[i]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"integrator": "badodab"}, "integrator must be one of"),
        ({"thermostat": "some"}, "thermostat must be one of"),
        ({"thermostat": np.array([0.5, 1.0])}, "group numbers"),
        ({"thermostat": np.array([0, 2])}, "without gaps"),
        ({"mass": np.eye(2), "thermostat": "each"}, "mass must be a number or a"),
        ({"mass": -np.eye(2)}, "mass must be positive definite"),
        ({"diffusion": 0.0}, "diffusion must be > 0"),
        ({"inertia": -1.0}, "inertia must be > 0"),
    ],
)
def test_settings_that_make_no_sampler_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        sgnht(0.1, **settings)


def test_shapes_that_do_not_fit_the_position_are_refused():
    with pytest.raises(InputError, match="one group number per coordinate"):
        sgnht(0.1, thermostat=np.array([0, 1])).bind(STANDARD, minibatch()).init(jnp.zeros(3), jax.random.key(0))
    with pytest.raises(InputError, match="diffusion must be a number or one per thermostat"):
        sgnht(0.1, diffusion=np.ones(2)).bind(STANDARD, minibatch()).init(jnp.zeros(3), jax.random.key(0))


def test_a_run_has_a_thermostat_for_every_leaf():
    """The loop moves one vector; the leaves are those of the parameters that the user wrote."""
    target = Target.from_log_density(lambda p: -(p["a"] ** 2).sum() - p["b"] ** 2)
    kernel = sgnht(0.1, diffusion=np.array([1.0, 2.0]), thermostat="leaves")
    flat = target.ravelled(lambda v: {"a": v[:2], "b": v[2]})
    bound = kernel.bind(flat, minibatch())
    state = bound.init(jnp.ones(3), jax.random.key(0))
    assert state.xi.tolist() == [1.0, 2.0]
    assert bound.step(jax.random.key(1), state)[0].xi.shape == (2,)
