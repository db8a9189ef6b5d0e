"""`check` accepts every right sampler and rejects every wrong one that the papers print or warn of."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fokker.errors import InputError
from fokker.recipe import Recipe, check
from fokker.recipe.catalogue import TABLE, Phase, Thermostat, gsgrhmc, sghmc, sgnht
from fokker.recipe.recipe import divergence

pytestmark = pytest.mark.usefixtures("x64")


def potential(q):
    """Not quadratic, not separable; (d,) -> ()."""
    return (q**4).sum() / 4 + (q**2).sum() / 2 + q[0] * q[-1] / 2 + 0.3 * jnp.sin(q[-1])


grad_u = jax.grad(potential)
ACCEPT = 1e-13  # of a right sampler's residual: rounding, a thousand times below the default limit


def position(d):
    return np.linspace(-0.8, 0.9, d)


@pytest.mark.parametrize("method", TABLE, ids=lambda m: m.name)
def test_every_method_of_the_catalogue_is_right(method):
    recipe = method.example(potential, 3)
    result = check(recipe.drift, recipe.D, recipe.H, method.state(position(3)))
    assert result.ok
    assert result.residual < ACCEPT
    assert result.reversible == (method.curl == "zero")


@pytest.mark.parametrize("d", [1, 20])
def test_the_dimension_does_not_matter(d):
    for recipe, z in (
        (sghmc(potential, 0.7), Phase(position(d), position(d))),
        (sgnht(potential, 0.7), Thermostat(position(d), position(d), np.array(0.7))),
    ):
        assert check(recipe.drift, recipe.D, recipe.H, z, count=5).residual < ACCEPT


# What is wrong, a row each: written by hand, as somebody would.


@dataclass(frozen=True)
class Wrong:
    name: str
    d: int
    drift: Any
    D: Any
    H: Any
    state: Any
    hint: str | None = None


def momentum_energy(z):
    return potential(z.position) + z.momentum @ z.momentum / 2


def phase(d):
    return Phase(position(d), np.linspace(0.5, -0.7, d))


def on_momentum(block):
    zero = np.zeros_like(block)
    return np.block([[zero, zero], [zero, block]])


def noise(d):
    """V of the gradient times eps, (d, d)."""
    return 0.3 * (np.diag(np.arange(1.0, d + 1)) + 0.2)


def root(q):
    """G^-1/2 of a metric that is neither diagonal nor separable: I (1 + q_1^2 / 2) + u u^T, (d,) -> (d, d)."""
    return jnp.eye(q.size) * (1 + q[0] ** 2 / 2) + jnp.outer(tilt(q), tilt(q))


tilt = lambda q: 0.7 * jnp.sin(q + jnp.arange(1.0, q.size + 1))
inverse = lambda q: root(q) @ root(q)
# log|G| by the matrix determinant lemma.
log_det = lambda q: -2 * (q.size * jnp.log(1 + q[0] ** 2 / 2) + jnp.log1p(tilt(q) @ tilt(q) / (1 + q[0] ** 2 / 2)))
on_momentum_of = lambda f: lambda z: jax.scipy.linalg.block_diag(jnp.zeros_like(f(z.position)), f(z.position))


def riemann(gamma, friction):
    """dr = -G^-1/2 grad U + gamma div(G^-1/2) + friction G^-1 r; Algorithm 1 has gamma = 1, friction = -1."""
    return lambda z: Phase(
        root(z.position) @ z.momentum,
        -root(z.position) @ grad_u(z.position)
        + gamma * divergence(root, z.position)
        + friction * inverse(z.position) @ z.momentum,
    )


def langevin(gamma):
    return lambda q: -inverse(q) @ grad_u(q) + gamma * divergence(inverse, q)


def girolami_calderhead(factor):
    """factor |G|^-1/2 sum_j d_j(G^-1_ij |G|^1/2), printed with factor 2 as the Gamma of a Riemannian Langevin."""
    scaled = lambda q: inverse(q) * jnp.exp(log_det(q) / 2)
    return lambda q: -inverse(q) @ grad_u(q) + factor * jnp.exp(-log_det(q) / 2) * divergence(scaled, q)


def thermostat_energy(weight):
    return lambda z: momentum_energy(z) + weight * (z.xi - 0.8) ** 2


def thermostat(inertia=1.0):
    def drift(z):
        q, r, xi = z
        return Thermostat(r, -grad_u(q) - xi * r, (r @ r / q.size - 1) / inertia)

    return drift


def on_thermostat(d):
    return np.diag(np.r_[np.zeros(d), 0.8 * np.ones(d), 0.0])


def thermostat_state(d):
    return Thermostat(*phase(d), np.array(0.8))


def momentum_drift(friction):
    return lambda z: Phase(z.momentum, -grad_u(z.position) - friction @ z.momentum)


def general_D(z):
    a = jnp.eye(z.size) + 0.4 * jnp.sin(jnp.outer(z, jnp.arange(1.0, z.size + 1)))
    return a @ a.T


def general_Q(z):
    a = jnp.cos(jnp.outer(z, jnp.arange(z.size)) + 0.2)
    return a - a.T


def general(gamma):
    a = lambda z: general_D(z) + general_Q(z)
    return lambda z: -a(z) @ grad_u(z) + gamma * divergence(a, z)


RIEMANNIAN = lambda q: potential(q) - log_det(q) / 2  # exp(-U) with respect to sqrt|G| dq, as a Lebesgue density
FRICTION = "D grad H were subtracted from the drift"

WRONG = [
    *(
        Wrong(f"naive SGHMC, noise without friction, (11), d={d}", d, momentum_drift(np.zeros((d, d))),
              on_momentum(noise(d) / 2), momentum_energy, phase(d), FRICTION)
        for d in (1, 3)
    ),
    Wrong("friction eps V beside noise sqrt(eps V) dW, that is D = eps V for eps V/2", 3,
          momentum_drift(noise(3)), on_momentum(noise(3) / 2), momentum_energy, phase(3), "D were multiplied by 2"),
    *(
        Wrong(f"naive state-dependent SGHMC, (16), d={d}", d, riemann(0, -1), on_momentum_of(inverse),
              momentum_energy, phase(d))
        for d in (1, 2)
    ),
    Wrong("(17) with its printed signs", 2, riemann(-1, 1), on_momentum_of(inverse), momentum_energy, phase(2)),
    Wrong("gSGRHMC with the sign of Gamma alone wrong", 2, riemann(-1, -1), on_momentum_of(inverse),
          momentum_energy, phase(2)),
    Wrong("gSGRHMC with the sign of friction alone wrong", 2, riemann(1, 1), on_momentum_of(inverse),
          momentum_energy, phase(2), "2 D grad H were subtracted"),
    Wrong("-Gamma as (6) and (9) print it", 3, general(-1), general_D, potential, position(3)),
    Wrong("Gamma missing", 3, general(0), general_D, potential, position(3)),
    Wrong("-Gamma as (14) prints it", 3, langevin(-1), inverse, potential, position(3), "Gamma has the wrong sign"),
    *(
        Wrong(f"SGRLD with Gamma missing, d={d}", d, langevin(0), inverse, potential, position(d),
              "Gamma is missing")
        for d in (1, 3)
    ),
    Wrong("Girolami-Calderhead, factor 2, Lebesgue", 3, girolami_calderhead(2), inverse, potential, position(3)),
    Wrong("Girolami-Calderhead, factor 2, Riemannian", 3, girolami_calderhead(2), inverse, RIEMANNIAN,
          position(3)),
    Wrong("Girolami-Calderhead, factor 1, Lebesgue", 3, girolami_calderhead(1), inverse, potential, position(3)),
    *(
        Wrong(f"SGNHT with the weight 1/(2d) of print, d={d}", d, thermostat(), on_thermostat(d),
              thermostat_energy(1 / (2 * d)), thermostat_state(d))
        for d in (2, 20)
    ),
    Wrong("SGNHT with the factor r of (S.17)", 1,
          lambda z: thermostat()(z)._replace(xi=(z.momentum[0] ** 2 - 1) * z.momentum[0]), on_thermostat(1),
          thermostat_energy(1 / 2), thermostat_state(1)),
    Wrong("SGNHT with inertia 2.5 in the drift alone", 3, thermostat(2.5), on_thermostat(3),
          thermostat_energy(3 / 2), thermostat_state(3)),
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row.name)
def test_every_wrong_sampler_is_rejected(row):
    result = check(row.drift, row.D, row.H, row.state, count=10)
    assert not result.ok
    # In the units of the equation, and relative to its terms: far from rounding.
    assert result.absolute > 0.1
    assert result.residual > 1e-3
    assert "WRONG" in str(result)
    if row.hint:
        assert row.hint in str(result).replace("\n", " ")


# The same functions with the right signs, so that the rows above fail for the reason they name.

RIGHT = [
    ("gSGRHMC, Algorithm 1", riemann(1, -1), on_momentum_of(inverse), momentum_energy, phase(2)),
    ("general D and Q", general(1), general_D, potential, position(3)),
    ("SGRLD", langevin(1), inverse, potential, position(3)),
    ("Girolami-Calderhead, factor 1, Riemannian", girolami_calderhead(1), inverse, RIEMANNIAN, position(3)),
    ("SGNHT, inertia 2.5", thermostat(2.5), on_thermostat(3), thermostat_energy(2.5 * 3 / 2), thermostat_state(3)),
    # Both weights of xi are 1/2 in one dimension: the error of print does not show there.
    ("SGNHT in print, d = 1", thermostat(), on_thermostat(1), thermostat_energy(1 / 2), thermostat_state(1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "drift", "D", "H", "z"), RIGHT, ids=[row[0] for row in RIGHT])
def test_right_samplers_written_by_hand_are_accepted(name, drift, D, H, z):
    result = check(drift, D, H, z, count=10)
    assert result.ok
    assert result.residual < ACCEPT


def test_girolami_calderhead_with_factor_2_coincides_with_gamma_for_a_separable_metric():
    inverse = lambda q: jnp.diag((1 + q**2) ** 1.5)
    log_det = lambda q: -1.5 * jnp.log(1 + q**2).sum()
    scaled = lambda q: inverse(q) * jnp.exp(log_det(q) / 2)
    drift = lambda q: -inverse(q) @ grad_u(q) + 2 * jnp.exp(-log_det(q) / 2) * divergence(scaled, q)
    assert check(drift, inverse, potential, position(3)).ok


# Random samplers.


def random_sampler(seed, n):
    """Smooth H, D, Q and a smooth vector field, of a given seed."""
    rng = np.random.default_rng(seed)
    w, a, b, c, e = (rng.normal(size=s) for s in ((5, n), (5, n, n), (5, n, n), (5,), (5, n)))
    features = lambda z: jnp.sin(w @ z + jnp.arange(5.0))
    H = lambda z: (z**4).sum() / 20 + z @ z / 2 + features(z) @ c
    L = lambda z: jnp.eye(n) + 0.3 * jnp.tensordot(features(z), a, 1)
    S = lambda z: 0.5 * jnp.tensordot(features(z), b, 1)
    return H, lambda z: L(z) @ L(z).T, lambda z: S(z) - S(z).T, lambda z: features(z) @ e


@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 4), size=st.sampled_from([1e-6, 1e-3, 1.0]))
def test_any_smooth_recipe_is_accepted_and_any_perturbation_of_it_rejected(seed, n, size):
    with jax.enable_x64(True):
        H, D, Q, field = random_sampler(seed, n)
        recipe = Recipe(H, D, Q)
        assert check(recipe.drift, D, H, np.zeros(n), count=5).residual < ACCEPT
        perturbed = lambda z: recipe.drift(z) + size * field(z)
        assert not check(perturbed, D, H, np.zeros(n), count=5)


# What the verdict does not depend on.


def test_the_unit_of_time_and_the_number_of_data_do_not_change_the_verdict():
    z = position(2)
    for time, data in ((1e-8, 1.0), (1e-6, 1e6)):
        D = lambda q, c=time: c * jnp.diag(1 + q**2)
        drift = lambda q, gamma, c=time, n=data: -c * n * (1 + q**2) * grad_u(q) + gamma * 2 * c * q
        H = lambda q, n=data: n * potential(q)
        assert check(lambda q, f=drift: f(q, 1), D, H, z, count=5).ok
        assert not check(lambda q, f=drift: f(q, 0), D, H, z, count=5).ok


def test_a_stiff_target_is_no_obstacle():
    scales = np.logspace(-6, 6, 5)
    H = lambda z: (scales * z**2).sum() / 2 + jnp.sin(z[0] * z[1])
    recipe = Recipe(H, general_D, general_Q)
    assert check(recipe.drift, general_D, H, position(5), count=5).residual < ACCEPT


def test_float32_arguments_are_looked_at_in_float64():
    with jax.enable_x64(False):
        friction = jnp.array([[1.0, 0.3], [0.3, 0.7]])
        drift = lambda z: Phase(z.momentum, -grad_u(z.position) - friction @ z.momentum)
        D = jax.scipy.linalg.block_diag(jnp.zeros((2, 2)), friction)
        z = Phase(jnp.array([0.1, 0.2]), jnp.array([0.3, 0.4]))
        assert check(drift, D, momentum_energy, z).residual < ACCEPT
        assert jnp.ones(1).dtype == jnp.float32


# Beyond exact divergences.


def test_random_probes_accept_the_right_and_reject_the_wrong():
    d = 150  # 300 entries, more than are differentiated exactly
    energy = lambda z: (z.position**4).sum() / 4 + z.position @ z.position / 2 + z.momentum @ z.momentum / 2
    drift = lambda friction: lambda z: Phase(z.momentum, -(z.position**3) - z.position - friction * z.momentum)
    D = on_momentum(np.eye(d) / 2)
    z = Phase(np.zeros(d), np.zeros(d))
    right, wrong = (check(drift(c), D, energy, z, count=8) for c in (0.5, 0.0))
    assert right.ok
    assert not right.exact
    assert not wrong.ok
    assert wrong.residual > wrong.resolution > 1e-4
    assert "by random probes" in str(right).replace("\n", " ")


def test_probes_estimate_the_exact_residual():
    # A state-dependent D that is not diagonal: the second derivatives of D are estimated too.
    z = position(4)
    exact = check(general(0), general_D, potential, z, count=1)
    probed = check(general(0), general_D, potential, z, count=1, probes=20_000)
    error = probed.limit * exact.absolute / exact.residual / 5  # one standard error of |R|
    assert abs(probed.absolute - exact.absolute) < 4 * error < 0.3 * exact.absolute
    assert check(general(1), general_D, potential, z, count=3, probes=500).ok


# What it says, and what it refuses.


def test_the_result_says_what_it_means_and_what_not():
    recipe = gsgrhmc(potential, inverse)
    said = str(check(recipe.drift, recipe.D, recipe.H, phase(2), count=3)).replace("\n", " ")
    for words in ("RIGHT", "a curl", "ergodicity", "bias of a finite step", "between the points"):
        assert words in said
    langevin = check(lambda q: -grad_u(q), np.eye(2), potential, position(2), count=3)
    assert langevin
    assert "reversible: no curl" in repr(langevin)


def test_points_inside_the_support_may_be_given():
    # A Gamma(2.3, 1) density on theta > 0, D = theta.
    H = lambda t: t[0] - 1.3 * jnp.log(t[0])
    D = lambda t: jnp.array([[t[0]]])
    drift = lambda t: jnp.array([2.3 - t[0]])
    assert check(drift, D, H, points=np.array([[0.3], [1.0], [4.0]])).ok
    with pytest.raises(InputError, match="support"):
        check(drift, D, H, np.array([0.5]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda z: -z, np.array([[1.0, 0.2], [0.1, 1.0]]), potential, np.zeros(2)), "D has to be symmetric"),
        ((lambda z: -z, lambda z: -jnp.eye(2), potential, np.zeros(2)), "D has to be positive semidefinite"),
        ((lambda z: -z[:1], np.eye(2), potential, np.zeros(2)), "drift has to be a pytree like the state"),
        ((lambda z: -z, np.eye(3), potential, np.zeros(2)), "D has to be of shape"),
        ((lambda z: -z, np.eye(2), lambda z: z, np.zeros(2)), "H has to return one number"),
        ((lambda z: -z, np.eye(2), potential), "pass an example state"),
        ((lambda z: -z, np.eye(2), potential, np.zeros(2, int)), "floating-point"),
        ((np.zeros(2), np.eye(2), potential, np.zeros(2)), "functions of the state"),
    ],
)
def test_unusable_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        check(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tolerance": 2.0}, "between 0 and 1"), ({"probes": 1}, "2 probes"), ({"scale": 0.0}, "scale > 0")],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        check(lambda z: -z, np.eye(2), potential, np.zeros(2), **options)
