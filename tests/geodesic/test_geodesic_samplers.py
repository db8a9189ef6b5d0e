"""The geodesic samplers against closed forms, quadrature and numbers known in advance."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fokker
from fokker.geodesic.gmc import geodesic_leapfrog, phase_at
from fokker.geodesic.tangent import damped, noise_at
from fokker.manifolds.product import product
from fokker.numeric.random_jax import Key
from fokker.run.gradients import minibatch
from fokker.sgmcmc.matrix import LowRank
from fokker.target import Target
from tests.oracles import linear_step, noisy, stationary_covariance, weighted_slope

MOVING = ("point", "velocity")
A = 1.7


def gaussian(d=1, a=A):
    return Target(lambda x: -0.5 * a * (x**2).sum(), None, space=fokker.Euclidean(d), start=np.zeros(d))


# --- flat space: exact laws of the discrete chain ---------------------------------------------------------------------


def covariance_of(kernel, V=0.0, known=None):
    bound = kernel.bind(gaussian(), noisy(V, known))
    M, _, F = linear_step(bound.step, bound.init(jnp.zeros(1), jax.random.key(0)), kernel.steps_per_batch, MOVING)
    return stationary_covariance(M, F)


@pytest.mark.parametrize("eps, C", [(0.2, 5.0), (0.5, 1.0), (0.1, 0.3)])
@pytest.mark.parametrize("V, known", [(0.0, None), (3.0, None), (3.0, 3.0), (3.0, 1.0)])
def test_aboba_on_a_gaussian_has_the_closed_form(x64, eps, C, V, known):
    nu = 2 * C * eps + eps**2 * (V - (known or 0.0))
    c = np.exp(-C * eps / 2)
    got = covariance_of(fokker.sggmc(eps, C), V, None if known is None else jnp.asarray(known))
    assert_allclose(got[0, 0], nu * c / (2 * A * (1 - c**2)), rtol=1e-10)
    assert_allclose(got[0, 1], 0, atol=1e-12)
    assert_allclose(got[1, 1], 2 * c**2 * nu / ((1 - c**2) * (2 + 2 * c**2 - A * c * eps**2)), rtol=1e-10)


@pytest.mark.parametrize("eps, C", [(0.2, 5.0), (0.9, 1.0)])
def test_baoab_on_a_gaussian_is_exact(x64, eps, C):
    assert_allclose(covariance_of(fokker.sggmc(eps, C, integrator="baoab"))[0, 0], 1 / A, rtol=1e-10)


@pytest.mark.parametrize("L, C, eps, V", [(30, 10.0, 0.01, 1000.0), (10, 44.7, 2.236e-3, 2e4)])
def test_one_batch_for_many_steps_heats_as_the_closed_form_says(x64, L, C, eps, V):
    """The literal reading of Algorithm 1: a variance of 15.39 and 5.50 where 1 is right; with fresh batches .9996."""
    hot = covariance_of(fokker.sggmc(eps, C, steps_per_batch=L), V, jnp.asarray(V))[0, 0] * A
    assert_allclose(hot, {30: 15.39, 10: 5.50}[L], rtol=2e-3)
    assert_allclose(covariance_of(fokker.sggmc(eps, C), V, jnp.asarray(V))[0, 0] * A, 0.9996, atol=1e-4)


def test_on_flat_space_gsgnht_is_the_splitting_of_sgnht(x64):
    """The same map but for the place of the friction: here in two halves around the kick, there in one."""
    both = [k.bind(gaussian(5), minibatch()) for k in (fokker.gsgnht(1e-3, 2.0), fokker.sgnht(1e-3, 2.0))]
    states = [b.init(jnp.ones(5), jax.random.key(0)) for b in both]
    states[1] = states[1]._replace(momentum=states[0].velocity)
    for t in range(20):
        states = [b.step(jax.random.key(t), s)[0] for b, s in zip(both, states, strict=True)]
    assert_allclose(states[0].position, states[1].position, atol=1e-4)
    assert_allclose(states[0].xi, states[1].xi, atol=1e-4)


# --- curved space: moments by simulation, against quadrature ----------------------------------------------------------


def simulate(kernel, target, gradient, chains, steps, burn, see, dtype="float32", every=1):
    """The mean of see(state) over chains and steps, and its standard error between chains."""
    bound = kernel.bind(target, gradient)
    start = jnp.asarray(target.start, dtype)

    @jax.jit
    def run(key):
        state = bound.init(start, jax.random.fold_in(key, 0))
        step = lambda t, s: bound.step(jax.random.fold_in(key, t + 1), s)[0]
        state = jax.lax.fori_loop(0, burn, step, state)

        def one(t, carry):
            state, total = carry
            state = step(burn + t, state)
            return state, total + see(state)

        return jax.lax.fori_loop(0, steps, one, (state, jnp.zeros_like(see(state))))[1] / steps

    means = np.asarray(jax.vmap(run)(jax.random.split(jax.random.key(0), chains)), float)
    return means.mean(0), means.std(0, ddof=1) / np.sqrt(chains)


MU = np.array([0.0, 0.0, 1.0], np.float32)
VMF = Target(lambda x: 5 * x @ MU, None, space=fokker.Sphere(3), start=MU)
EXACT = 0.80009  # coth 5 - 1/5
along = lambda s: s.point @ MU


@pytest.mark.parametrize(
    "kernel",
    [
        fokker.sggmc(0.05),
        fokker.sggmc(0.05, friction=np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.5]])),
        fokker.sggmc(0.05, friction=np.array([2.0, 1.0, 0.5])),
        fokker.sggmc(0.05, integrator="baoab"),
        fokker.gsgnht(0.05),
        fokker.gmc(0.5, leapfrog_steps=4),
        fokker.chmc(0.3, leapfrog_steps=3),
    ],
    ids=["sggmc", "matrix", "diagonal", "baoab", "gsgnht", "gmc", "chmc"],
)
def test_von_mises_fisher_on_the_sphere(kernel):
    full = getattr(kernel, "full_data", False)
    implicit = fokker.Implicit(lambda x: x @ x - 1, 3)
    target = replace(VMF, space=implicit) if isinstance(kernel, fokker.chmc) else VMF
    matrix = np.ndim(getattr(kernel, "friction", 1.0)) > 0
    steps = 500 if full else 2000 if matrix else 4000
    mean, error = simulate(kernel, target, None if full else minibatch(), 200, steps, 200, along)
    assert error < 2e-3
    assert abs(mean - EXACT) < 4 * error + 1e-3  # bias at eps = .05: below 1e-3


def test_noise_that_is_known_is_compensated():
    mean, error = simulate(fokker.sggmc(0.05), VMF, noisy(20.0, jnp.float32(20.0), "scalar"), 200, 4000, 500, along)
    assert abs(mean - EXACT) < 4 * error + 2e-3
    hot, error = simulate(fokker.sggmc(0.05), VMF, noisy(20.0, None), 200, 4000, 500, along)
    assert abs(hot - 0.7015) < 4 * error + 2e-3  # temperature 1.5


def test_the_thermostat_takes_up_isotropic_noise_of_unknown_size():
    see = lambda s: jnp.stack([along(s), s.xi, s.velocity @ s.velocity / 2])
    mean, error = simulate(fokker.gsgnht(0.05), VMF, noisy(20.0, None), 200, 5000, 1000, see)
    assert_allclose(mean, [EXACT, 1.5, 1.0], atol=float((4 * error).max()) + 8e-3)


@dataclass(frozen=True)
class Miscounted(fokker.Sphere):
    """A sphere that counts its entries as its dimension."""

    @property
    def dim(self):
        return self.n


def test_the_thermostat_counts_the_intrinsic_dimension():
    """With n in place of n - 1 the law is pi^(m/n): E x.mu = .7026, and |v|^2 has the mean 3."""
    target = Target(VMF.log_prior, None, space=Miscounted(3), start=MU)
    see = lambda s: jnp.stack([along(s), s.velocity @ s.velocity])
    mean, error = simulate(fokker.gsgnht(0.05), target, minibatch(), 200, 5000, 1000, see)
    assert_allclose(mean, [0.70255, 3.0], atol=float((4 * error).max()) + 5e-3)


def test_a_thermostat_for_every_factor():
    """Noise of another size on each of two spheres: each thermostat settles at its own C + eps V / 2."""
    space = {"a": fokker.Sphere(3), "b": fokker.Sphere(3)}
    target = Target(lambda p: 5 * (p["a"] + p["b"]) @ MU, None, space=space, start={"a": MU, "b": MU})
    flat = target.ravelled(lambda v: {"a": v[:3], "b": v[3:]})
    flat = Target(flat.log_prior, None, space=space, start=np.tile(MU, 2), unravel=flat.unravel)
    V = jnp.diag(jnp.repeat(jnp.array([20.0, 5.0], jnp.float32), 3))
    see = lambda s: jnp.concatenate([s.xi, jnp.stack([s.point[:3] @ MU, s.point[3:] @ MU])])
    kernel = fokker.gsgnht(0.05, thermostat="each")
    mean, error = simulate(kernel, flat, noisy(V, None), 200, 5000, 1000, see)
    assert_allclose(mean, [1.5, 1.125, EXACT, EXACT], atol=float((4 * error).max()) + 8e-3)


def test_the_bias_on_the_circle_is_of_second_order():
    """U = -2 cos: E cos - .69777 is -1.98e-2, -4.3e-3, -1.2e-3 at eps = .8, .4, .2 (aboba), a tenth of it for baoab."""
    e = np.array([1.0, 0.0], np.float32)
    target = Target(lambda x: 2 * x[0], None, space=fokker.Sphere(2), start=e)
    bias = {}
    for integrator in ("aboba", "baoab"):
        for eps in (0.8, 0.4):
            kernel = fokker.sggmc(eps, 1.0, integrator)
            mean, error = simulate(kernel, target, minibatch(), 2000, int(2000 / eps), 50, lambda s: s.point[0])
            bias[integrator, eps] = mean - 0.6977747, error
    for eps, want in ((0.8, -1.98e-2), (0.4, -4.3e-3)):
        got, error = bias["aboba", eps]
        assert abs(got - want) < 4 * error + 2e-4
        assert abs(bias["baoab", eps][0]) < 0.15 * abs(want) + 4 * bias["baoab", eps][1]
    values, errors = np.array([bias["aboba", eps] for eps in (0.8, 0.4)]).T
    order, error = weighted_slope(np.array([0.8, 0.4]), values, errors)
    assert abs(order - 2) < 4 * error + 0.3


# --- sets behind a map ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alpha", [np.array([2.0, 0.7, 3.0], np.float32), np.array([0.5, 0.5, 0.5, 0.5], np.float32)], ids=repr
)
def test_gmc_on_the_simplex_draws_the_dirichlet(alpha):
    target = Target(
        lambda p: jnp.sum((alpha - 1) * jnp.log(p)), None, space=fokker.Simplex(len(alpha)), start=alpha / alpha.sum()
    )
    theta = lambda s: jnp.concatenate([s.position, s.position**2])
    mean, error = simulate(fokker.gmc(0.25, 6), target, None, 400, 1500, 100, theta)
    a0 = alpha.sum()
    want = np.concatenate([alpha / a0, alpha * (alpha + 1) / (a0 * (a0 + 1))])
    assert (np.abs(mean - want) < 4 * error + 1e-5).all(), (mean, want, error)
    assert error.max() < 2e-3


@pytest.mark.parametrize(
    "space, start, mean, square",
    [
        (fokker.Positive(), np.array(1.0), 2 / np.sqrt(2 * np.pi), 1.0),  # half normal
        (fokker.Box(-1.0, 1.0), np.array([0.5]), 0.0, 0.291125),  # normal cut at -1 and 1
        (fokker.HalfSpace(np.ones(1), 1.0), np.array([1.5]), 1.525135, 2.525135),  # normal beyond 1
        (fokker.Ball(1), np.array([0.5]), 0.0, 0.291125),
    ],
    ids=repr,
)
def test_gmc_draws_truncated_normals(space, start, mean, square):
    target = Target(lambda p: -0.5 * jnp.sum(p**2), None, space=space, start=start.astype(np.float32))
    see = lambda s: jnp.stack([jnp.sum(s.position), jnp.sum(s.position**2)])
    got, error = simulate(fokker.gmc(0.3, 6), target, None, 400, 1500, 100, see)
    assert (np.abs(got - [mean, square]) < 4 * error + 1e-5).all(), (got, error)


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_geodesic_leapfrog_is_reversible_and_its_energy_error_is_of_second_order(x64):
    target = Target(lambda X: jnp.sum(jnp.sin(X * jnp.arange(6.0).reshape(3, 2))), None, space=fokker.Stiefel(3, 2))
    space = product(target.space, np.zeros((3, 2)))
    U = jax.jit(jax.value_and_grad(lambda x: -target.log_prior(x.reshape(3, 2))))
    x = fokker.Stiefel(3, 2).random_point(jax.random.key(0), jnp.float64).ravel()
    v = space.tangent_normal(x, jnp.asarray(np.random.default_rng(0).standard_normal(6)))
    start = phase_at(space, U, x, v)
    energy = lambda p: float(p.potential + space.square(p.x, p.v) / 2)
    errors = {}
    for eps in (0.02, 0.01):
        end = geodesic_leapfrog(space, U, start, eps, round(1 / eps))
        errors[eps] = abs(energy(end) - energy(start))
        back = geodesic_leapfrog(space, U, end._replace(v=-end.v), eps, round(1 / eps))
        assert_allclose(back.x, x, atol=1e-12)
        assert_allclose(back.v, -v, atol=1e-12)
    assert abs(errors[0.02] / errors[0.01] - 4) < 0.2


@pytest.mark.parametrize("kernel", [fokker.gmc, fokker.chmc])
def test_energy_and_gradient_that_are_kept_are_those_of_the_point(kernel):
    """Also where eps^2 |grad U| is above 1, which multiplies what rounding moves off the manifold."""
    target = Target(lambda x: 2000 * x[2], None, space=fokker.Sphere(3))
    bound = kernel(1.1 / 2000**0.5, 1).bind(target)
    step = lambda state, t: bound.step(Key(jnp.arange(2, dtype=jnp.uint32), t), state)
    start = bound.init(jnp.array([0.0, 0.0, 1.0], jnp.float32))
    end, info = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(500, dtype=jnp.uint32)))(start)
    assert 0.7 < info.acceptance_probability.mean() < 0.95
    x = np.asarray(end.point, float)
    assert_allclose(end.potential, -2000 * x[2], atol=2e-3)  # a few roundings of 2000
    assert_allclose(end.grad_u, 2000 * (x[2] * x - np.eye(3)[2]), atol=2e-3)


@pytest.mark.parametrize("kernel", [fokker.gmc(0.1, 2), fokker.chmc(0.1, 2)], ids=["gmc", "chmc"])
def test_where_jax_computes_in_double_precision_a_run_may_be_in_single(kernel, x64):
    """A constant of the user's density is then float64, and with it the density of a point in float32."""
    bound = kernel.bind(Target(lambda x: jnp.sum(x * jnp.array([0.0, 0.0, 5.0])), None, space=fokker.Sphere(3)))
    state = bound.init(jnp.array([0.0, 0.6, 0.8], jnp.float32))
    after, _ = jax.jit(bound.step)(jax.random.key(0), state)
    assert [leaf.dtype for leaf in jax.tree.leaves(after)] == [leaf.dtype for leaf in jax.tree.leaves(state)]


def test_the_mean_of_exp_minus_the_energy_error_is_one():
    kernel, steps = fokker.gmc(0.6, 3), 1000
    bound = kernel.bind(VMF, None)

    @jax.jit
    def run(key):
        z = jax.random.normal(jax.random.fold_in(key, 0), (3,))
        # exact draws of the start: by rejection-free inversion of the height on S^2
        u = jax.random.uniform(jax.random.fold_in(key, 1))
        w = 1 + jnp.log(u + (1 - u) * jnp.exp(-10.0)) / 5
        side = z[:2] / jnp.linalg.norm(z[:2])
        state = bound.init(jnp.append(jnp.sqrt(1 - w**2) * side, w))
        return jnp.exp(-bound.step(jax.random.fold_in(key, 2), state)[1].energy_error)

    values = np.asarray(jax.vmap(run)(jax.random.split(jax.random.key(3), 50 * steps)))
    assert abs(values.mean() - 1) < 4 * values.std() / np.sqrt(len(values)) and values.std() > 0.05


def test_friction_by_a_matrix_stays_tangent_and_is_that_of_the_ambient_exponential(x64):
    """exp(-P C t) v = exp(-P C P t) v for tangent v; P exp(-C t) v is another thing."""
    space = product(fokker.Sphere(4), np.zeros(4))
    x = fokker.Sphere(4).random_point(jax.random.key(0), jnp.float64)
    v = space.tangent_normal(x, jnp.arange(4.0))
    C = jnp.asarray(np.diag([1.0, 2.0, 3.0, 4.0]) + 0.5)
    P = jnp.eye(4) - jnp.outer(x, x)
    got = damped(space, C, x, v, 0.1)
    assert_allclose(got, jax.scipy.linalg.expm(-0.1 * P @ C) @ v, atol=1e-13)
    assert_allclose(space.project(x, got), got, atol=1e-13)
    assert np.abs(got - P @ jax.scipy.linalg.expm(-0.1 * C) @ v).max() > 1e-3


def test_gradient_noise_is_that_of_the_tangent_gradient_by_the_point(x64):
    """Drawn gradients by the parameters, moved to the point one by one, have the covariance that is told."""
    space = product(fokker.Simplex(3), np.ones(3))
    x = space.embed(jnp.array([0.2, 0.5, 0.3]))
    F = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2)))
    move = lambda g: space.potential_gradient(x, g) - space.potential_gradient(x, jnp.zeros(3))
    moved = jax.vmap(move, in_axes=1, out_axes=1)(F)
    assert_allclose(noise_at(space, x, LowRank(F)).factor, moved, atol=1e-12)
    assert_allclose(noise_at(space, x, F @ F.T), moved @ moved.T, atol=1e-12)
    basis = jax.vmap(move, in_axes=1, out_axes=1)(jnp.diag(jnp.array([1.0, 2.0, 3.0])))
    assert_allclose(noise_at(space, x, jnp.array([1.0, 4.0, 9.0])), basis @ basis.T, atol=1e-12)


def test_the_learning_rate_per_batch_and_the_momentum():
    for kernel in (fokker.sggmc, fokker.gsgnht):
        made = kernel.from_learning_rate(5e-4, 0.1, 100)
        assert_allclose([made.step_size, made.friction], [2.236e-3, 44.72], rtol=1e-3)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: fokker.sggmc(0.1, friction=np.array([[1.0, 2.0], [2.0, 1.0]])), "friction must be positive definite"),
        (lambda: fokker.sggmc(0.1, friction=np.ones(2), integrator="baoab"), "'baoab' takes a number"),
        (lambda: fokker.sggmc(0.1, steps_per_batch=0), "steps_per_batch"),
        (lambda: fokker.gsgnht(0.1, friction=np.ones(2)), "number"),
        (lambda: fokker.gsgnht(0.1, thermostat="some"), "thermostat must be one of"),
        (lambda: fokker.gmc(0.1, leapfrog_steps=0), "leapfrog_steps"),
    ],
)
def test_settings_that_make_no_sampler_are_refused(make, words):
    with pytest.raises(fokker.errors.InputError, match=words):
        make()


# --- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_on_a_product_shows_values_and_is_resumed_to_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3)).astype(np.float32)
    y = (X @ [0.6, 0.0, 0.8] + 0.5 * rng.standard_normal(2000)).astype(np.float32)
    space = {"beta": fokker.Sphere(3), "sigma": fokker.Positive(), "w": fokker.Simplex(2)}
    target = Target(
        lambda p: 0.0 * p["sigma"],
        lambda p, rows: -0.5 * ((rows["y"] - rows["X"] @ p["beta"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"]),
        {"X": X, "y": y},
        space=space,
        start={"beta": np.array([1.0, 0.0, 0.0]), "sigma": np.array(1.0), "w": np.array([0.4, 0.6])},
    )
    kernel = fokker.sggmc(2e-3, 50.0)
    settings = dict(draws=200, warmup=4000, thin=20, chains=2, batch_size=200, progress=False)
    noise = fokker.control_variates(centre={"beta": np.array([0.6, 0.0, 0.8]), "sigma": 0.5, "w": np.array([0.4, 0.6])})
    run = fokker.sample(target, kernel, gradient=noise, **settings)
    beta, sigma, w = (np.asarray(run.draws[name]) for name in ("beta", "sigma", "w"))
    assert np.abs(np.linalg.norm(beta, axis=-1) - 1).max() < 1e-5 and (sigma > 0).all()
    assert np.abs(w.sum(-1) - 1).max() < 1e-5 and (w > 0).all()
    assert np.abs(beta.mean((0, 1)) - [0.6, 0.0, 0.8]).max() < 0.05 and abs(sigma.mean() - 0.5) < 0.05
    fokker.sample(target, kernel, gradient=noise, store=tmp_path / "run.zarr", **settings | dict(draws=100))
    more = fokker.resume(tmp_path / "run.zarr", target, kernel, gradient=noise, draws=200, progress=False)
    for name in ("beta", "sigma", "w"):
        np.testing.assert_array_equal(more.draws[name], run.draws[name])
