"""SGRLD leaves exp(-U) invariant as the step goes to zero: simulated against quadrature, with its bias at a step."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import dblquad

from fokker.errors import InputError
from fokker.numeric.random_jax import normal
from fokker.run.gradients import minibatch
from fokker.sgmcmc import sgrld as module
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.metrics import divergence, level_set
from fokker.sgmcmc.sgrld import sgrld
from fokker.target import Target
from tests.chains import averages
from tests.synthetic import double_well, euler_bias_slope, exact_draws, expectation, well

tilted = lambda x: 1.0 + 0.7 * jnp.tanh(x)  # of a scalar: an asymmetric metric, so that a wrong Gamma shows in the mean
CASES = {
    "well, level sets": (well, level_set(well), lambda x: x**2, 0.1),
    "two wells, tilted": (double_well, lambda theta: tilted(theta[0]), lambda x: x**2, 0.04),
}


def naive(step_size, metric, sign=0.0):
    """A state-dependent D without its Gamma, or with it subtracted. Chains that start in a compiled program, as these
    do, are not held against differentiation."""
    return sgrld(step_size, metric, gamma=lambda x: sign * divergence(lambda x: jnp.asarray(metric(x)), x)[1])


def bias(kernel, potential, f, eps, time, chains=2048):
    """E_eps f - E f and its standard error, from independent chains that start in the law."""
    start = exact_draws(potential, 0, chains).astype(np.float32)
    mean = expectation(potential, f)
    mine = averages(kernel, potential, start, round(time / eps), lambda state: f(state.position[0]))
    return mine.mean() - mean, mine.std(ddof=1) / np.sqrt(chains)


@pytest.mark.parametrize("time", [400.0, pytest.param(6000.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_the_bias_is_of_first_order_with_the_slope_of_the_theory(name, time):
    """Slope from h and h/2 without intercept, b = s h + c h^2, against the quadrature of the expansion of the law."""
    potential, metric, f, h = CASES[name]
    (one, se_one), (two, se_two) = (bias(sgrld(e, metric), potential, f, e, time) for e in (h, h / 2))
    slope, error = (4 * two - one) / h, np.hypot(4 * se_two, se_one) / h
    scalar = lambda g: lambda x: jnp.asarray(g(jnp.reshape(x, (1,))))
    want = euler_bias_slope(scalar(potential), scalar(metric), f)
    print(f"{name}: slope {slope:.4f} +- {error:.4f}, theory {want:.4f}; bias {one:.5f} {two:.5f} +- {se_two:.5f}")
    curvature = abs(one - 2 * two) / h  # what is left of the next order after the extrapolation is smaller than this
    assert abs(slope - want) < 4 * error + 0.5 * curvature
    assert abs(slope) > 5 * error  # the slope is seen at all


@pytest.mark.parametrize("sign", [0.0, -1.0], ids=["missing", "minus"])
def test_a_wrong_gamma_is_seen(sign):
    """Without Gamma the law is exp(-U) / D, with the printed sign exp(-U) / D^2."""
    potential, metric, _, _ = CASES["two wells, tilted"]
    f, h = lambda x: x, 0.02
    off, error = bias(naive(h, metric, sign), potential, f, h, 60.0)
    power = 1 if sign == 0 else 2
    wrong = lambda theta: potential(theta) + power * jnp.log(tilted(theta[0]))
    want = expectation(wrong, f) - expectation(potential, f)
    assert abs(off) > 5 * error
    assert off == pytest.approx(want, abs=0.1 * abs(want) + 4 * error)


def correlated(x):
    """A potential whose law is no product, in two dimensions."""
    return x[0] ** 2 / 2 + (x[1] - x[0] ** 2 / 3) ** 2


def rotating(x):
    """A full matrix that depends on both coordinates."""
    a = jnp.stack([jnp.ones(()), jnp.tanh(x[0])])
    return jnp.eye(2) / 4 + jnp.outer(a, a) / (1 + x[1] ** 2)


def test_a_full_matrix_in_two_dimensions():
    """Extrapolated to step zero, moments are those of quadrature; without Gamma they are far off."""
    weight = lambda y, x: np.exp(-(x**2 / 2 + (y - x**2 / 3) ** 2))
    box = (-7, 7, lambda x: x**2 / 3 - 6, lambda x: x**2 / 3 + 6)
    Z = dblquad(weight, *box)[0]
    want = np.array(
        [
            dblquad(lambda y, x, f=f: f(x, y) * weight(y, x), *box)[0] / Z
            for f in (lambda x, y: x**2, lambda x, y: y, lambda x, y: y**2)
        ]
    )
    rng = np.random.default_rng(0)
    first = rng.normal(size=1024)
    start = np.stack([first, first**2 / 3 + rng.normal(size=1024) / np.sqrt(2)], axis=1).astype(np.float32)
    f = lambda s: jnp.stack([s.position[0] ** 2, s.position[1], s.position[1] ** 2])
    h = 0.05

    def moments(kernel, eps):
        mine = averages(kernel, correlated, start, round(60 / eps), f)
        return mine.mean(0), mine.std(0, ddof=1) / np.sqrt(len(start))

    (one, se_one), (two, se_two) = (moments(sgrld(e, rotating), e) for e in (h, h / 2))
    off, error = 2 * two - one - want, np.hypot(2 * se_two, se_one)
    assert (np.abs(off) < 4 * error + 0.1 * np.abs(one - two)).all(), (off, error)
    wrong, se_wrong = moments(naive(h / 2, rotating), h / 2)
    assert np.abs((wrong - two) / np.hypot(se_wrong, se_two)).max() > 10


@dataclass(frozen=True)
class noisy:
    """The exact gradient with noise of covariance V added, and known."""

    V: Any
    tell: bool = True
    noise: str = "known"

    def bind(self, target: Any) -> BoundGradient:
        V = jnp.asarray(self.V)

        def estimate(key, position, batch, aux):
            exact = -jax.grad(target.log_prior)(position)
            root = jnp.linalg.cholesky(V) if V.ndim == 2 else jnp.sqrt(V)
            z = normal(key, exact.shape, 9, exact.dtype)
            return exact + (root @ z if V.ndim == 2 else root * z), V if self.tell else None, aux

        return BoundGradient(lambda position: None, estimate)


@pytest.mark.parametrize("V", [3.0, np.array([1.0, 4.0]), np.array([[2.0, 0.5], [0.5, 1.0]])], ids=np.ndim)
@pytest.mark.parametrize(
    "metric", [lambda x: rotating(x), lambda x: jnp.diagonal(rotating(x))], ids=["full", "diagonal"]
)
def test_gradient_noise_and_injected_noise_add_up_to_2_eps_d(V, metric, x64, monkeypatch):
    """The map from all normals of a step to theta+ is linear: its square is exactly 2 eps D, whatever V."""
    eps, x = 0.05, jnp.array([0.4, -0.3])
    bound = sgrld(eps, metric).bind(Target.from_log_density(lambda x: -correlated(x)), noisy(V))

    def step(numbers):
        given = lambda key, shape, stream=0, dtype=None: numbers[2:] if stream == 9 else numbers[:2]
        monkeypatch.setattr("fokker.sgmcmc.matrix.normal", given)
        monkeypatch.setattr(f"{__name__}.normal", given)
        return bound.step(jax.random.key(0), bound.init(x))[0].position

    F = np.asarray(jax.jacfwd(step)(jnp.zeros(4)))
    D = np.asarray(metric(x))
    D = D if D.ndim == 2 else np.diag(D)
    assert np.abs(F[:, 2:]).max() > 0
    np.testing.assert_allclose(F @ F.T, 2 * eps * D, atol=1e-14)


def test_too_much_gradient_noise_is_reported():
    bound = sgrld(0.05, rotating).bind(Target.from_log_density(lambda x: -correlated(x)), noisy(1000.0))
    _, info = bound.step(jax.random.key(0), bound.init(jnp.zeros(2)))
    assert float(info.noise_share) > 1


def test_a_closed_gamma_is_checked_and_used(monkeypatch):
    target = Target.from_log_density(lambda p: -(p["a"] ** 2).sum())
    start = {"a": jnp.array([0.5, 1.5]), "b": jnp.ones(())}
    metric = lambda p: jnp.concatenate([p["a"] ** 2 + 1, p["b"][None]])
    gamma = lambda p: jnp.concatenate([2 * p["a"], jnp.ones(1)])
    kernel = sgrld(0.01, metric, gamma=gamma)
    closed, automatic = (k.bind(target, minibatch()) for k in (kernel, sgrld(0.01, metric)))
    ends = [b.step(jax.random.key(0), b.init(start))[0].position for b in (closed, automatic)]
    for name in start:
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-6)
    wrong = sgrld(0.01, metric, gamma=lambda p: -gamma(p)).bind(target, minibatch())
    with pytest.raises(InputError, match="added to the drift"):
        wrong.init(start)
    monkeypatch.setattr(module, "divergence", None)
    closed.step(jax.random.key(0), closed.init(start))  # no derivative is taken at a step


@pytest.mark.parametrize("wrong", [{"scale": -1.0}, {"smoothing": -0.1}, {"potential": 3.0}])
def test_level_sets_are_checked(wrong):
    with pytest.raises(InputError):
        level_set(**{"potential": well, **wrong})


def test_level_sets_follow_the_supplement(x64):
    """Without smoothing G^-1 = 1.5 sqrt|U + 0.5|; with it Gamma of the root is its derivative by hand."""
    x = jnp.array([0.9])
    assert float(level_set(double_well, smoothing=0.0)(x)) == pytest.approx(1.5 * np.sqrt(abs(0.9**4 - 2 * 0.81 + 0.5)))
    u, du, delta = 0.9**4 - 2 * 0.81 + 0.5, 4 * 0.9**3 - 4 * 0.9, 0.2
    root = lambda x: jnp.sqrt(level_set(double_well, smoothing=delta)(x))
    want = np.sqrt(1.5) / 4 * u * du * (u**2 + delta**2) ** (-7 / 8)
    assert float(divergence(root, x)[1][0]) == pytest.approx(want, rel=1e-12)
