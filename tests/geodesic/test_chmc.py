"""CHMC: RATTLE stays on the manifold, turns around, keeps the energy to second order and goes where mici's goes; with
the Metropolis test the law is exact, also at steps where many projections fail."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mici.integrators import ConstrainedLeapfrogIntegrator
from mici.states import ChainState
from mici.systems import DenseConstrainedEuclideanMetricSystem
from numpy.testing import assert_allclose

import fokker
from fokker.errors import InputError, SpaceError
from fokker.geodesic.gmc import phase_at
from fokker.manifolds.product import product
from fokker.run import loop
from fokker.run.watch import ess
from fokker.target import Target
from tests.chains import move


def sphere(x):
    return x @ x - 1


def ellipsoid(x):
    return x @ (jnp.array([1.0, 4.0, 9.0], x.dtype) * x) - 1


def torus(x):
    """Radii 1 and 0.5."""
    return (jnp.sqrt(x[0] ** 2 + x[1] ** 2) - 1) ** 2 + x[2] ** 2 - 0.25


def frame(x):
    X = x.reshape(4, 2)
    return jnp.stack([X[:, 0] @ X[:, 0] - 1, X[:, 0] @ X[:, 1], X[:, 1] @ X[:, 1] - 1])


def potential(x):
    return 2 * jnp.sum(jnp.sin(x * jnp.arange(1, x.size + 1)))


# --- the trajectory ---------------------------------------------------------------------------------------------------

SPACES = {c: fokker.Implicit(c, 8 if c is frame else 3) for c in (sphere, ellipsoid, torus, frame)}
every = pytest.mark.parametrize("c", SPACES, ids=lambda c: c.__name__)


@cache
def begin(c):
    """A point and a tangent velocity of length about 1."""
    m = SPACES[c]
    x = m.random_point(jax.random.key(1), jnp.float64)
    v = m.random_tangent(jax.random.key(2), x)
    return x, v / jnp.sqrt(v @ v)


@cache
def path(c):
    """(x, v), eps, steps -> the end of a trajectory, its energy, whether it converged, Newton's iterations."""
    space = product(SPACES[c], np.zeros(SPACES[c].shape))
    U = jax.value_and_grad(potential)

    @jax.jit
    def run(x, v, eps, steps):
        end, converged, iterations = fokker.chmc(eps, steps).trajectory(space, U, phase_at(space, U, x, v), eps)
        return end.x, end.v, end.potential + end.v @ end.v / 2, converged, iterations

    return lambda x, v, eps, steps: run(x, v, jnp.float64(eps), jnp.int32(steps))


@every
def test_a_trajectory_stays_on_the_manifold_and_is_reversible(x64, c):
    x, v = begin(c)
    y, w, _, converged, iterations = path(c)(x, v, 0.03, 50)
    assert converged and 2 * 50 * 2 <= iterations <= 2 * 50 * 5  # there and back
    m = SPACES[c]
    assert np.abs(m.residual(y)).max() < 1e-12
    assert np.abs(m.jacobian(y) @ w).max() < 1e-12
    assert np.abs(y - x).max() > 0.1
    back, minus, *_ = path(c)(y, -w, 0.03, 50)
    assert_allclose(back, x, atol=1e-11)
    assert_allclose(minus, -v, atol=1e-11)


@every
def test_the_energy_error_is_of_second_order(x64, c):
    x, v = begin(c)
    energy = potential(x) + v @ v / 2

    def most(eps, stride):
        found, at = [], (x, v)
        for _ in range(12):
            *at, H, converged, _ = path(c)(*at, eps, stride)
            assert converged
            found.append(abs(float(H - energy)))
        return max(found)

    assert abs(most(0.01, 4) / most(0.005, 8) - 4.0) < 0.2


def test_on_the_sphere_a_step_is_the_closed_form(x64):
    """x+ = b + l x, b = x + eps (v - eps/2 grad U), l = -x.b + sqrt((x.b)^2 - |b|^2 + 1); nothing is projected."""
    x, v = begin(sphere)
    eps = 0.1
    b = x + eps * (v - eps / 2 * jax.grad(potential)(x))
    y = b + (-x @ b + jnp.sqrt((x @ b) ** 2 - b @ b + 1)) * x
    w = (y - x) / eps - eps / 2 * jax.grad(potential)(y)
    got = path(sphere)(x, v, eps, 1)
    assert_allclose(got[0], y, atol=1e-14)
    assert_allclose(got[1], w - y * (y @ w), atol=1e-13)


def in_numpy(f):
    compiled = jax.jit(f)
    return lambda x: np.asarray(compiled(jnp.asarray(x)))


@every
def test_every_step_is_that_of_mici(x64, c):
    m, eps = SPACES[c], 0.05
    U, grad, residual, jacobian = map(in_numpy, (potential, jax.grad(potential), m.residual, m.jacobian))
    system = DenseConstrainedEuclideanMetricSystem(
        U, residual, grad_neg_log_dens=grad, jacob_constr=jacobian, dens_wrt_hausdorff=True
    )
    theirs = ConstrainedLeapfrogIntegrator(system, step_size=eps)
    x, v = begin(c)
    state = ChainState(pos=np.asarray(x), mom=np.asarray(v), dir=1)
    for _ in range(20):
        x, v, *_ = path(c)(x, v, eps, 1)
        state = theirs.step(state)
        assert_allclose(x, state.pos, atol=1e-9)
        assert_allclose(v, state.mom, atol=1e-9)


# --- the law ----------------------------------------------------------------------------------------------------------


def von_mises_fisher(chains, rng):
    """Draws of exp(5 x.mu) on the sphere: the height by inversion."""
    u, turn = rng.random(chains), 2 * np.pi * rng.random(chains)
    w = 1 + np.log(u + (1 - u) * np.exp(-10.0)) / 5
    side = np.sqrt(1 - w**2)
    return np.stack([side * np.cos(turn), side * np.sin(turn), w], 1)


def on_the_torus(chains, rng):
    """Draws of exp(3 x_0) on the torus, whose surface is (1 + cos(b) / 2) / 2 da db: by rejection."""
    (a, b), u = 2 * np.pi * rng.random((2, 40 * chains)), rng.random(40 * chains)
    radius = 1 + np.cos(b) / 2
    x = np.stack([radius * np.cos(a), radius * np.sin(a), np.sin(b) / 2], 1)
    kept = x[u < radius / 1.5 * np.exp(3 * (x[:, 0] - 1.5))]
    assert len(kept) >= chains
    return kept[:chains]


def torus_moments(see):
    """The same law by quadrature, exact to rounding since all is periodic."""
    a, b = np.meshgrid(*2 * (2 * np.pi * np.arange(200) / 200,))
    radius = 1 + np.cos(b) / 2
    x = np.stack([radius * np.cos(a), radius * np.sin(a), np.sin(b) / 2], -1).reshape(-1, 3)
    weight = radius.ravel() * np.exp(3 * x[:, 0])
    return weight @ see(x) / weight.sum()


CHAINS = 40_000
LAWS = {
    "sphere": (sphere, lambda x: -5 * x[2], von_mises_fisher, 0.5),
    "torus": (torus, lambda x: -3 * x[0], on_the_torus, 0.35),
}
seen = lambda x: np.concatenate([x, x**2], axis=-1)


@cache
def moved(name, kernel=None):
    """Draws of the law after five steps of a size at which a part of the projections fails, and all infos."""
    c, U, draw, eps = LAWS[name]
    start = draw(CHAINS, np.random.default_rng(0)).astype(np.float32)
    return start, *move(kernel or fokker.chmc(eps, 2), U, start, 5, space=fokker.Implicit(c, 3))


@pytest.mark.parametrize("name", LAWS)
def test_exact_draws_stay_exact_though_many_projections_fail(name):
    _, end, info = moved(name)
    assert 0.2 < 1 - info.converged.mean() < 0.5 and 0.5 < info.accepted.mean() < 0.8
    exact = torus_moments(seen) if name == "torus" else np.array([0, 0, 0.80009, 0.16002, 0.16002, 0.67996])
    error = seen(end).std(0) / np.sqrt(CHAINS)
    assert (np.abs(seen(end).mean(0) - exact) < 4 * error).all(), (seen(end).mean(0), exact, error)


def test_the_mean_of_exp_minus_the_energy_error_is_one():
    """Over exact draws whose projections succeed or, as the energy error then is infinite, count as 0: at most one, and
    one where none fails."""
    start = von_mises_fisher(CHAINS, np.random.default_rng(1)).astype(np.float32)
    space = fokker.Implicit(sphere, 3)
    _, info = move(fokker.chmc(0.25, 3), LAWS["sphere"][1], start, 1, space=space)
    values = np.where(info.converged, np.exp(-info.energy_error), 0.0)
    error = values.std() / np.sqrt(CHAINS)
    assert info.converged.mean() > 0.999 and values.std() > 0.03
    assert abs(values.mean() - info.converged.mean()) < 4 * error


@pytest.mark.parametrize("name", LAWS)
def test_a_failed_projection_is_a_counted_rejection(name):
    start, end, info = moved(name)
    assert not (info.accepted & ~info.converged).any() and not (info.diverging & ~info.converged).any()
    assert (info.acceptance_probability[~info.converged] == 0).all()
    stuck = ~info.accepted.any(axis=1)
    assert (stuck & ~info.converged.all(axis=1)).any()
    np.testing.assert_array_equal(end[stuck], start[stuck])


# --- the run ----------------------------------------------------------------------------------------------------------

QUIET = dict(progress=False, chains=2, seed=1)


def test_in_a_product_every_factor_moves_in_its_own_way_and_a_run_is_resumed_to_the_same_bits(tmp_path):
    """A constraint, a simplex and a number without a constraint, each with a law that is known."""
    space = {"a": fokker.Implicit(sphere, 3), "w": fokker.Simplex(2)}
    start = {"a": np.array([0.0, 0.6, 0.8]), "w": np.array([0.4, 0.6]), "x": np.array(0.0)}
    log = lambda p: 5 * p["a"][2] + jnp.log(p["w"]).sum() - p["x"] ** 2 / 2
    target, kernel = (
        Target(log, None, space=space, start=start),
        fokker.chmc(0.3, 3),
    )  # away from pi / sqrt(5), half a period of a
    run = fokker.sample(target, kernel, draws=1500, warmup=50, **QUIET)
    a, w, x = (np.asarray(run.draws[name], float) for name in start)
    assert np.abs(np.linalg.norm(a, axis=-1) - 1).max() < 1e-6 and np.abs(w.sum(-1) - 1).max() < 1e-6
    for f, exact in ((a[..., 2], 0.80009), (a[..., 0], 0.0), (w[..., 0] ** 2, 0.3), (x, 0.0), (x**2, 1.0)):
        assert ess(f) > 200 and abs(f.mean() - exact) < 4 * f.std() / np.sqrt(ess(f))
    assert 0.005 < 1 - run.stats["converged"].mean() < 0.5  # a part of the law
    fokker.sample(target, kernel, draws=500, warmup=50, store=tmp_path / "run.zarr", **QUIET)
    more = fokker.resume(tmp_path / "run.zarr", target, kernel, draws=1500, progress=False)
    for name in start:
        np.testing.assert_array_equal(more.draws[name], run.draws[name])
    np.testing.assert_array_equal(more.stats["inner_iterations"], run.stats["inner_iterations"])


def test_where_every_geodesic_is_known_it_is_gmc():
    target = Target(lambda x: 5 * x[2], None, space=fokker.Sphere(3), start=np.array([0.0, 0.6, 0.8]))
    runs = [fokker.sample(target, k(0.3, 3), draws=100, warmup=0, **QUIET) for k in (fokker.chmc, fokker.gmc)]
    assert_allclose(*(run.draws["theta"] for run in runs), atol=1e-3)
    assert (runs[0].stats["inner_iterations"] == 0).all() and runs[0].stats["converged"].all()


STUCK = Target(lambda x: 5 * x[2], None, space=fokker.Implicit(sphere, 3), start=np.array([0.0, 0.6, 0.8]))


def test_where_over_half_of_the_proposals_fail_the_run_says_what_to_try(tmp_path, monkeypatch):
    """It is an error as soon as no other outcome is left; proposals before an interruption count."""
    monkeypatch.setattr(loop, "BLOCK_SECONDS", 1e-3)
    path, stuck = tmp_path / "run.zarr", fokker.chmc(5.0)
    words = r"over half of this run's proposals fail: \d+ of \d+ .*chmc.*step size is 5.0: try a smaller"
    with pytest.raises(InputError, match=words) as caught:
        fokker.sample(STUCK, stuck, draws=5000, warmup=5, store=path, **QUIET)
    kept = caught.value.run
    assert kept.state == "failed" and not kept.stats["converged"].any()
    assert 2500 < kept.draws.sizes["draw"] < 5000
    with pytest.raises(InputError, match="over half"):
        fokker.resume(path, STUCK, stuck, progress=False)
    assert fokker.open(path).draws.sizes["draw"] < 5000


@pytest.mark.parametrize(
    "kernel, words",
    [
        (fokker.gmc(0.1), r"gmc follows geodesics, and of Implicit\(sphere, 3\), where params lies, only a constraint"),
        (fokker.sggmc(0.1), r"sggmc follows geodesics.*fokker.chmc\(\)"),
        (fokker.hmc(0.1), r"hmc moves in flat space, and of Implicit.*fokker.chmc\(\)"),
    ],
)
def test_samplers_that_need_a_geodesic_are_refused(kernel, words):
    with pytest.raises(SpaceError, match=words):
        fokker.sample(STUCK, kernel, draws=5, progress=False)


def test_a_start_off_the_constraint_or_without_a_normal_is_refused():
    with pytest.raises(SpaceError, match=r"params is to lie in Implicit\(sphere, 3\), but the start is 0.33 away"):
        fokker.sample(STUCK, fokker.chmc(0.1), init=np.full(3, 0.8), draws=5, progress=False)
    double = Target(STUCK.log_prior, None, space=fokker.Implicit(lambda x: sphere(x) ** 2, 3), start=STUCK.start)
    with pytest.raises(SpaceError, match="Jacobian without full rank at the start"):
        fokker.sample(double, fokker.chmc(0.1), draws=5, progress=False)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"leapfrog_steps": 0}, "leapfrog_steps"),
        ({"max_iterations": 2.5}, "max_iterations"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"step_size": -1.0}, "step_size"),
    ],
)
def test_settings_are_checked(wrong, words):
    with pytest.raises(InputError, match=words):
        fokker.chmc(**{"step_size": 0.1, **wrong})
