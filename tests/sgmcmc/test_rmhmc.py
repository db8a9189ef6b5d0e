"""RMHMC leaves exp(-U) invariant for a metric that varies: its map is reversible, keeps volume, or is rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.errors import InputError
from fokker.numeric.random_jax import Key
from fokker.sgmcmc import rmhmc as module
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.rmhmc import System, generalised_leapfrog, rmhmc, solve_fixed_point
from fokker.target import Target
from tests.chains import move
from tests.synthetic import BANANA_MOMENTS, banana, banana_draws, standard_errors_off


def scalar(x):
    return 0.4 / (1 + x @ x / 4)


def diagonal(x):
    return jnp.stack([1 / (1 + x[0] ** 2 / 4), 0.2 / (1 + x[0] ** 2 / 8)])


def dense(x):
    a = jnp.stack([jnp.ones(()), jnp.tanh(x[0])]) / 2
    return jnp.diag(jnp.asarray([0.4, 0.1])) + 0.5 * jnp.outer(a, a)


METRICS = [scalar, diagonal, dense]


def along(z, G_inverse, eps, solver="fixed_point"):
    """A generalised leapfrog as a map of (theta, r), (4,) -> (4,)."""
    solve = lambda f, x: solve_fixed_point(f, x, 1e-14, 100, solver)
    end = generalised_leapfrog(System(banana, G_inverse), z[:2], z[2:], eps, solve)
    return jnp.concatenate([end.theta, end.momentum]), end.converged


FLIP = np.array([1.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize("metric", METRICS)
def test_steps_are_reversible_and_keep_volume(metric, x64):
    z = jnp.array([0.8, -0.9, 0.5, -1.1])
    step = jax.jit(lambda z: along(z, metric, 0.3, "fixed_point"))
    there, converged = step(z)
    assert converged
    assert np.abs(there - z).max() > 0.1
    np.testing.assert_allclose(FLIP * step(FLIP * there)[0], z, atol=1e-12)

    newton = lambda z: (lambda end: (end[0], end))(along(z, metric, 0.3, "newton"))
    jacobian, (same, converged) = jax.jit(jax.jacfwd(newton, has_aux=True))(z)
    assert converged
    np.testing.assert_allclose(same, there, atol=1e-12)
    assert abs(np.linalg.det(jacobian) - 1) < 1e-9


@pytest.mark.parametrize("metric", METRICS)
def test_energy_error_is_of_second_order(metric, x64):
    z = jnp.array([0.8, -0.9, 0.5, -1.1])
    step = jax.jit(lambda z, eps: along(z, metric, eps)[0])
    energy = lambda z: float(System(banana, metric).energy(z[:2], z[2:]))

    def error(eps):
        end = z
        for _ in range(round(0.6 / eps)):
            end = step(end, eps)
        return energy(end) - energy(z)

    assert error(0.02) / error(0.01) == pytest.approx(4.0, abs=0.2)


def test_the_hamiltonian_has_half_the_log_determinant_of_g(x64):
    """H integrated over r is U + a constant: what makes the law of theta exp(-U)."""
    x = jnp.array([0.8, -0.9])
    for metric in METRICS:
        P = np.asarray(metric(x))
        P = P if P.ndim == 2 else np.diag(np.broadcast_to(P, 2))
        r = np.array([0.3, -0.7])
        want = r @ P @ r / 2 - np.linalg.slogdet(P)[1] / 2
        assert float(System(banana, metric).kinetic(x, jnp.asarray(r))) == pytest.approx(want, abs=1e-12)


def test_a_constant_metric_is_hmc(x64):
    mass = np.array([1.0, 2.0])
    ours = rmhmc(0.3, 5, metric=lambda x: jnp.asarray(mass))
    start = banana_draws(2, 100)
    end, info = move(ours, banana, start, 20)
    same, plain = move(hmc(0.3, 5, mass=mass), banana, start, 20)
    assert info.converged.all()
    np.testing.assert_allclose(end, same, atol=1e-9)
    np.testing.assert_allclose(info.energy_error, plain.energy_error, atol=1e-9)
    assert (info.accepted == plain.accepted).all()


@pytest.mark.parametrize("metric", METRICS)
def test_exact_draws_stay_exact(metric):
    """Independent chains that start in the law, with a step at which many proposals are rejected."""
    end, info = move(rmhmc(STEP[metric], 3, metric_inverse=metric), banana, banana_draws(1, 20_000), 6)
    assert 0.5 < info.accepted.mean() < 0.9
    for name, (f, mean) in BANANA_MOMENTS.items():
        assert abs(standard_errors_off(f(end), mean)) < 4, name


STEP = {scalar: 0.65, diagonal: 0.5, dense: 0.65}


def test_the_test_above_sees_a_hamiltonian_without_the_determinant(monkeypatch):
    def kinetic(self, theta, r):
        P = self.G_inverse(theta)
        return r @ (P * r) / 2

    monkeypatch.setattr(module.System, "kinetic", kinetic)
    end, _ = move(rmhmc(0.65, 3, metric_inverse=scalar), banana, banana_draws(1, 20_000), 6)
    assert max(abs(standard_errors_off(f(end), mean)) for f, mean in BANANA_MOMENTS.values()) > 10


def test_an_inner_iteration_that_does_not_converge_is_a_counted_rejection():
    """At a step where a third of the trajectories fails the law is still the law."""
    kernel = rmhmc(1.2, 1, metric_inverse=lambda x: 0.1 + x[0] ** 2 / 4, max_iterations=20)
    start = banana_draws(1, 20_000).astype(np.float32)
    end, info = move(kernel, banana, start, 6)
    assert 0.1 < 1 - info.converged.mean() < 0.9
    assert 0.1 < info.accepted.mean()
    assert not (info.accepted & ~info.converged).any()
    assert (info.acceptance_probability[~info.converged] == 0).all()
    stuck = ~info.converged.any(axis=1)
    assert stuck.any()
    np.testing.assert_array_equal(end[stuck], start[stuck])
    for name, (f, mean) in BANANA_MOMENTS.items():
        assert abs(standard_errors_off(f(end), mean)) < 4, name


def test_one_iteration_is_not_enough():
    _, info = move(rmhmc(0.3, 2, metric_inverse=dense, max_iterations=1), banana, banana_draws(1, 50), 2)
    assert not info.converged.any()
    assert not info.accepted.any()


@pytest.mark.slow  # 14 s, all of it compilation
def test_metric_and_inverse_metric_diagonal_and_matrix_agree(x64):
    target = Target.from_log_density(lambda p: -banana(jnp.stack([p["a"], p["b"]])))
    start = {"a": jnp.asarray(0.3), "b": jnp.asarray(-0.8)}
    vector = lambda p: jnp.stack([p["a"], p["b"]])
    ends = []
    for kernel in (
        rmhmc(0.3, 3, metric_inverse=lambda p: diagonal(vector(p)), solver="newton"),
        rmhmc(0.3, 3, metric=lambda p: jnp.diag(1 / diagonal(vector(p)))),
    ):
        bound = kernel.bind(target)
        state, step = bound.init(start), jax.jit(bound.step)
        for t in range(5):
            state, info = step(Key(jnp.array([1, 2], jnp.uint32), jnp.uint32(t)), state)
        assert info.converged
        ends.append(vector(state.position))
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric_inverse": None}, "neither"),
        ({"metric": scalar}, "both"),
        ({"metric_inverse": np.eye(2)}, "must be a function"),
        ({"solver": "bisect"}, "fixed_point"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_settings_are_checked(wrong, message):
    with pytest.raises(InputError, match=message):
        rmhmc(**{"step_size": 0.1, "metric_inverse": scalar, **wrong})


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda x: jnp.ones(3), "shape"),
        (lambda x: jnp.asarray([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (lambda x: jnp.asarray([1.0, -1.0]), "positive definite"),
        (lambda x: jnp.asarray([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (lambda x: jnp.log(-x), "finite"),
    ],
)
def test_metrics_are_checked_where_a_chain_starts(metric, message):
    bound = rmhmc(0.1, metric_inverse=metric).bind(Target.from_log_density(lambda x: -banana(x)))
    with pytest.raises(InputError, match=message):
        bound.init(jnp.ones(2))
