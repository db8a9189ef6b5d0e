"""Laws of the geodesic samplers that are known in advance: uniform targets, conjugate posteriors, symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import iv

import fokker
from experiments.geodesic.chain_law import product as grid_of
from experiments.geodesic.chain_law import stationary, transition
from experiments.geodesic.methods import METHODS
from fokker.manifolds.product import product
from fokker.numeric import vmf
from fokker.numeric.random_jax import Key, uniform
from fokker.run.gradients import minibatch
from tests.chains import keys
from tests.oracles import noisy


def averages(kernel, target, gradient, see, chains, steps, burn, batch_of=None, seed=0):
    """Averages of see(state) along chains from target.start: their mean and its standard error."""
    bound = kernel.bind(target, gradient)
    start = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), target.start)

    def one(words):
        def step(t, state):
            key = Key(words, t.astype(jnp.uint32))
            return bound.step(key, state, None if batch_of is None else batch_of(key))[0]

        def gather(t, carry):
            state = step(t, carry[0])
            return state, carry[1] + see(state)

        state = bound.init(start, Key(words ^ jnp.uint32(0x5A5A5A5A), jnp.uint32(0)))
        state = jax.lax.fori_loop(0, burn, step, state)
        total = jnp.zeros_like(see(state))
        return jax.lax.fori_loop(burn, burn + steps, gather, (state, total))[1] / steps

    found = np.asarray(jax.jit(jax.vmap(one))(keys(seed, chains)), float)
    return found.mean(0), found.std(0, ddof=1) / np.sqrt(chains)


# --- a uniform target stays uniform, at every step size ---------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel, warmth",  # the splitting's |v|^2 / m at this step, without forces: 2 h c^2 / (1 - c^4), c = exp(-h / 2)
    [
        pytest.param(fokker.sggmc(0.4, 1.5), 2 * 0.6 * np.exp(-0.6) / (1 - np.exp(-1.2)), marks=pytest.mark.slow),
        (fokker.gsgnht(0.2, 1.5), 1.0),
    ],
    ids=["sggmc", "gsgnht"],
)
def test_a_uniform_target_stays_uniform_and_as_warm_as_its_dimension(kernel, warmth):
    """On a sphere E x x^T = I / n, on a Stiefel manifold E X X^T = (p / n) I."""
    space = {"x": fokker.Sphere(4), "y": fokker.Stiefel(3, 2)}
    start = {"x": np.eye(4)[0], "y": np.eye(3, 2)}
    target = fokker.Target(lambda p: 0.0 * p["x"][0], None, space=space, start=start)
    dim = product(space, start).dim
    assert dim == 3 + 3

    def see(state):
        x, y = state.position["x"], state.position["y"]
        second = jnp.outer(x, x)[jnp.triu_indices(4)], (y @ y.T)[jnp.triu_indices(3)]
        return jnp.concatenate([x, y.ravel(), *second, (state.velocity @ state.velocity / dim)[None]])

    mean, error = averages(kernel, target, minibatch(), see, chains=200, steps=400, burn=100)
    second = np.eye(4)[np.triu_indices(4)] / 4, np.eye(3)[np.triu_indices(3)] * 2 / 3
    want = np.concatenate([np.zeros(10), *second, [warmth]])
    assert (np.abs(mean - want) < 4.5 * error + 1e-4).all(), (mean - want) / error
    assert error.max() < 1e-2


# --- a posterior that is known ----------------------------------------------------------------------------------------

MEAN = np.array([0.0, 0.6, 0.8])
ROWS = vmf.sample(np.random.default_rng(1), MEAN, 3.0, 40).astype(np.float32)
NATURAL = 2 * np.array([1.0, 0.0, 0.0]) + 3 * ROWS.sum(0)  # of the posterior, vMF(kappa0 m + kappa sum of rows)
POSTERIOR = fokker.Target(
    lambda mu: 2 * mu[0], lambda mu, rows: 3 * rows @ mu, ROWS, fokker.Sphere(3), NATURAL / np.linalg.norm(NATURAL)
)


@pytest.mark.parametrize("name", [pytest.param("gmc", marks=pytest.mark.slow), "sggmc"])
def test_a_mean_direction_has_its_conjugate_posterior(name):
    kappa = np.linalg.norm(NATURAL)
    along = NATURAL.astype(np.float32) / np.float32(kappa)
    see = lambda s: jnp.append(s.position, (s.position @ along) ** 2)
    if name == "gmc":
        mean, error = averages(fokker.gmc(0.12, 8), POSTERIOR, None, see, 200, 500, 30)
    else:  # ten rows a step: eps V / 2C = .02 of the temperature, of which the estimate takes most
        choose = lambda key: jnp.asarray(ROWS)[jnp.argsort(uniform(key, (40,), 7))[:10]]
        gradient = minibatch(noise="dense")
        mean, error = averages(fokker.sggmc(0.03, 10.0), POSTERIOR, gradient, see, 200, 1500, 200, choose)
    A = vmf.mean_length(3, kappa)
    want = np.append(A * NATURAL / kappa, 1 - 2 * A / kappa)
    assert (np.abs(mean - want) < 4.5 * error + 1e-5 + 2e-4 * (name == "sggmc")).all(), (mean - want, error)
    assert error.max() < 2e-3


# --- noise of the gradient that is not the same in all directions -----------------------------------------------------

MU = np.array([0.0, 0.0, 1.0], np.float32)
VMF = fokker.Target(lambda x: 5 * x[2], None, space=fokker.Sphere(3), start=MU)
ALONG_X1 = jnp.diag(jnp.array([40.0, 0.0, 0.0], jnp.float32))


def test_a_thermostat_does_not_repair_anisotropic_noise():
    """U is symmetric about e3, the noise is not: the thermostat holds |v|^2 at m, and x1 is hot, x2 cold."""
    see = lambda s: jnp.stack([s.point[0] ** 2 - s.point[1] ** 2, s.velocity @ s.velocity / 2])
    run = lambda kernel, known: averages(kernel, VMF, noisy(ALONG_X1, known), see, 200, 3000, 500)
    (gap, warmth), error = run(fokker.gsgnht(0.05), None)
    assert abs(warmth - 1) < 4 * error[1] + 5e-3
    assert gap > 0.02 and gap > 10 * error[0]
    (gap, _), error = run(fokker.sggmc(0.05, 2.0), ALONG_X1)  # told of the noise, without a thermostat
    assert abs(gap) < 4 * error[0] + 1e-3


# --- nothing drifts away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, bound", [("float64", 1e-12), ("float32", 1e-5)])
def test_points_and_velocities_stay_where_they_belong_in_ten_thousand_steps(dtype, bound):
    space = {"x": fokker.Sphere(5), "y": fokker.Oblique(4, 2), "z": fokker.Grassmann(4, 1)}
    with jax.enable_x64(dtype == "float64"):
        start = {"x": jnp.eye(5, dtype=dtype)[0], "y": jnp.eye(4, 2, dtype=dtype), "z": jnp.eye(4, 1, dtype=dtype)}
        log_density = lambda p: 3 * p["x"][1] + jnp.sum((p["y"].T @ p["z"]) ** 2)
        step = fokker.gsgnht(0.1).bind(fokker.Target(log_density, None, space=space), minibatch())
        state = step.init(start, jax.random.key(0))
        words = jnp.zeros(2, jnp.uint32)
        advance = lambda t, s: step.step(Key(words, t.astype(jnp.uint32)), s)[0]
        state = jax.jit(lambda s: jax.lax.fori_loop(0, 10_000, advance, s))(state)
        v = state.velocity
        off = max(float(jnp.max(m.off(state.position[name]))) for name, m in space.items())
        tilt = jnp.linalg.norm(product(space, start).project(state.point, v) - v) / jnp.linalg.norm(v)
        assert v.dtype == dtype and 1 < jnp.linalg.norm(v) < 20
        assert max(off, float(tilt)) < bound


# --- the circle: the law of the discrete chain, without simulation ----------------------------------------------------


def test_on_the_circle_a_half_step_leaves_a_quarter_of_the_bias():
    """U = -2 cos, C = 1. By simulation: E cos - .69777 is -1.98e-2, -4.3e-3, -1.2e-3 (s.e. 2e-4), E v^2 - 1 .128, .030,
    .008 at eps = .8, .4, .2; here exactly."""
    method = next(m for m in METHODS if m.name == "SGGMC")
    angle, v = grid_of([axis.nodes for axis in method.axes]).T
    found = []
    for eps in (0.8, 0.4, 0.2):
        law = stationary(transition(method.step, eps, method.axes))
        found.append([law @ np.cos(angle) - iv(1, 2) / iv(0, 2), law @ v**2 - 1, law @ np.sin(angle), law @ v])
    cos, heat, *odd = np.array(found).T
    np.testing.assert_allclose(cos, [-1.98e-2, -4.3e-3, -1.2e-3], atol=8e-4)
    np.testing.assert_allclose(heat, [0.128, 0.030, 0.008], atol=1e-3)
    for bias in (cos, heat):
        assert np.abs(bias[1:-1] / bias[2:] - 4).max() < 0.2
    assert np.abs(odd).max() < 1e-9  # by symmetry


SPHERE, IMPLICIT = fokker.Sphere(3), fokker.Implicit(lambda x: x @ x - 1, 3)


@pytest.mark.parametrize(
    "kernel, space", [(fokker.gmc(0.45, leapfrog_steps=3), SPHERE), (fokker.chmc(0.4, leapfrog_steps=3), IMPLICIT)]
)
def test_accepted_or_refused_a_state_knows_energy_and_gradient_of_its_point(kernel, space, x64):
    """After proposals that were accepted and such that were not; a trajectory begins with what the last one left."""
    mu = jnp.array([0.0, 3.0, 4.0])
    target = fokker.Target(lambda x: 3 * x @ mu, None, space=space)
    bound = kernel.bind(target, None)
    state, step, seen = bound.init(jnp.array([0.6, 0.0, 0.8])), jax.jit(bound.step), set()
    for t in range(40):
        state, info = step(jax.random.key(t), state)
        seen.add(bool(info.accepted))
        x = state.point
        np.testing.assert_allclose(state.potential, -3 * x @ mu, rtol=1e-12)
        np.testing.assert_allclose(state.grad_u, -3 * (mu - x * (x @ mu)), atol=1e-9)
    assert seen == {True, False}
