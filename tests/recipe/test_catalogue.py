"""Each known method, as its (H, D, Q), has the drift and the noise of its equation and the marginal exp(-U)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from fokker.errors import InputError
from fokker.recipe import catalogue, check
from fokker.recipe.catalogue import TABLE, Phase, Thermostat, symmetric_root

pytestmark = pytest.mark.usefixtures("x64")

Q3 = np.array([0.4, -0.9, 0.7])
R3 = np.array([1.1, 0.2, -0.5])
MASS = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 1.5]])
FRICTION = np.array([[1.0, 0.2, 0.0], [0.2, 0.7, 0.0], [0.0, 0.0, 1.3]])


def potential(q):
    return (q**4).sum() / 4 + (q**2).sum() / 2 + q[0] * q[-1] / 2


GRAD = Q3**3 + Q3 + np.array([Q3[2], 0.0, Q3[0]]) / 2


def metric_inverse(q):
    a = jnp.eye(3) + 0.3 * jnp.outer(q, jnp.sin(q))
    return a @ a.T


def differences(f, q, h=1e-5):
    """df/dq_k by central differences, stacked along the last axis."""
    return np.stack([(np.asarray(f(q + h * e)) - np.asarray(f(q - h * e))) / (2 * h) for e in np.eye(3)], -1)


def divergence(f, q):
    return np.einsum("ijj->i", differences(f, q))


# name, recipe, state, drift as its equation has it, diagonal blocks of 2 D. Derivatives of metrics by differences.

S = lambda q: np.real(symmetric_root(metric_inverse(q)))
SHEAR = lambda q: jnp.eye(3) + jnp.outer(jnp.sin(q), jnp.array([0.1, 0.5, -0.3]))
G = lambda q: np.linalg.inv(metric_inverse(q))


def rmhmc_force(q, r):
    """-grad U - tr(G^-1 dG)/2 + r^T G^-1 dG G^-1 r / 2."""
    gi, dG = np.asarray(metric_inverse(q)), differences(G, q)
    u = gi @ r
    return -GRAD - np.einsum("ij,jik->k", gi, dG) / 2 + np.einsum("i,ijk,j->k", u, dG, u) / 2


DOME = lambda q: jnp.append(q, jnp.sqrt(4 - q @ q))  # the half sphere of radius 2


def geodesic_force(q, p):
    """-grad U - grad log|G| / 2 - grad(p^T G^-1 p) / 2, G^-1 p, and M."""
    basis = lambda q: np.vstack([np.eye(3), -q / np.sqrt(4 - q @ q)])
    G = lambda q: basis(q).T @ basis(q)
    energy = lambda q: np.linalg.slogdet(G(q))[1] / 2 + p @ np.linalg.solve(G(q), p) / 2
    return -GRAD - differences(energy, q), np.linalg.solve(G(q), p), basis(q)


def equations():
    u = potential
    half, two = np.array([0.8, 1.1, 0.9]), np.array([0.7, 1.2])
    gi = metric_inverse(Q3)
    yield ("sgld", catalogue.sgld(u, MASS), Q3, [-MASS @ GRAD], [MASS])
    yield ("sgrld", catalogue.sgrld(u, metric_inverse), Q3, [-gi @ GRAD + divergence(metric_inverse, Q3)], [gi])
    z = Phase(Q3, R3)
    v = np.linalg.solve(MASS, R3)
    yield ("hmc", catalogue.hmc(u, MASS), z, [v, -GRAD], [0, 0])
    yield ("sghmc", catalogue.sghmc(u, FRICTION, MASS), z, [v, -GRAD - FRICTION @ v], [0, FRICTION])
    A, tau = 0.8, 2.5
    z = Thermostat(Q3, R3, np.array(1.3))
    yield (
        "sgnht",
        catalogue.sgnht(u, A, tau),
        z,
        [R3, -GRAD - 1.3 * R3, [(R3 @ R3 / 3 - 1) / tau]],
        [0, A * np.eye(3), 0],
    )
    z = Thermostat(Q3, R3, half)
    yield (
        "msgnht",
        catalogue.msgnht(u, A),
        z,
        [R3, -GRAD - half * R3, R3**2 - 1],
        [0, A * np.eye(3), 0],
    )
    z = Thermostat(Q3, R3, two)
    yield (
        "grouped sgnht",
        catalogue.grouped_sgnht(u, np.array([0.5, 0.6]), (1, 0, 1), tau),
        z,
        [R3, -GRAD - two[[1, 0, 1]] * R3, np.array([R3[1] ** 2 - 1, (R3[0] ** 2 + R3[2] ** 2) / 2 - 1]) / tau],
        [0, np.diag([0.6, 0.5, 0.6]), 0],
    )
    z = Phase(Q3, R3)
    u_ = gi @ R3
    metric = lambda q: jnp.linalg.inv(metric_inverse(q))
    yield (
        "rmhmc",
        catalogue.rmhmc(u, metric, FRICTION),
        z,
        [u_, rmhmc_force(Q3, R3) - FRICTION @ u_],
        [0, FRICTION],
    )
    s = S(Q3)
    yield (
        "gsgrhmc",
        catalogue.gsgrhmc(u, metric_inverse),
        z,
        [s @ R3, -s @ GRAD + divergence(S, Q3) - gi @ R3],
        [0, gi],
    )
    F = np.asarray(SHEAR(Q3))
    yield (
        "adaptive, A constant",
        catalogue.adaptive(u, SHEAR, FRICTION),
        z,
        [F @ R3, -F.T @ GRAD + divergence(lambda q: SHEAR(q).T, Q3) - FRICTION @ R3],
        [0, FRICTION],
    )
    force, speed, M = geodesic_force(Q3, R3)
    C = np.diag([1.0, 0.6, 0.8, 1.2]) + 0.1
    yield ("sggmc", catalogue.sggmc(u, DOME, C), z, [speed, force - M.T @ C @ M @ speed], [0, M.T @ C @ M])
    z = Thermostat(Q3, R3, np.array(1.3))
    yield (
        "gsgnht",
        catalogue.gsgnht(u, DOME, A, tau),
        z,
        [speed, force - 1.3 * R3, [(R3 @ speed / 3 - 1) / tau]],
        [0, A * M.T @ M, 0],
    )


@pytest.mark.parametrize("index", range(12))
def test_drift_and_noise_are_those_of_the_equation(index):
    _, recipe, z, drift, blocks = list(equations())[index]
    got = recipe.drift(z)
    assert_allclose(np.concatenate([np.ravel(a) for a in jax.tree.leaves(got)]), np.concatenate(drift), atol=1e-8)
    D, Q = recipe.matrices(z)
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(z)]
    want = np.zeros_like(D)
    for block, size, end in zip(blocks, sizes, np.cumsum(sizes), strict=True):
        want[end - size : end, end - size : end] = block
    assert_allclose(D, want, atol=1e-13)
    assert_allclose(Q, -Q.T, atol=1e-15)


def test_gradient_noise_reaches_the_momentum_as_the_table_has_it():
    V = np.diag([1.0, 2.0, 3.0])
    z = Phase(Q3, R3)
    s = S(Q3)
    for recipe, block in (
        (catalogue.sghmc(potential, FRICTION), V),
        (catalogue.gsgrhmc(potential, metric_inverse), s @ V @ s),
        (catalogue.adaptive(potential, SHEAR, 1.0), SHEAR(Q3).T @ V @ SHEAR(Q3)),
    ):
        B = np.array(recipe.gradient_noise(z, V))
        assert_allclose(B[3:, 3:], block, atol=1e-13)
        B[3:, 3:] = 0
        assert not B.any()
    gi = np.asarray(metric_inverse(Q3))
    assert_allclose(catalogue.sgrld(potential, metric_inverse).gradient_noise(Q3, V), gi @ V @ gi, rtol=1e-13)


def test_the_position_keeps_its_density_when_the_rest_is_integrated_out():
    # Eq. (1) asks that exp(U - H) integrates to a constant; the metric of RMHMC must not weigh the positions.
    metric = lambda q: jnp.array([[1 + q[0] ** 2]])
    u = lambda q: q[0] ** 4
    recipe = catalogue.rmhmc(u, metric)
    H = jax.jit(recipe.H)
    mass = [
        quad(lambda r, q=q: float(jnp.exp(u(np.array([q])) - H(Phase(np.array([q]), np.array([r]))))), -30, 30)[0]
        for q in (0.0, 1.7)
    ]
    assert_allclose(mass, np.sqrt(2 * np.pi), rtol=1e-8)


def where(field, states):
    values = [np.asarray(field(z)) for z in states]
    if not any(v.any() for v in values):
        return "zero"
    return "constant" if all(np.array_equal(v, values[0]) for v in values) else "adaptive"


@pytest.mark.parametrize("method", TABLE, ids=lambda m: m.name)
def test_the_table_says_where_D_and_Q_live(method):
    recipe = method.example(potential, 3)
    states = [jax.tree.map(lambda a, k=k: a * (1 + k / 7), method.state(jnp.array(Q3))) for k in range(3)]
    assert where(lambda z: recipe.matrices(z)[0], states) == method.diffusion
    assert where(lambda z: recipe.matrices(z)[1], states) == method.curl
    assert method.build.__doc__


def test_positions_may_be_pytrees():
    u = lambda q: (q["w"] ** 4).sum() + q["b"] ** 2 * q["w"][0] ** 2
    q = {"w": np.array([0.3, -0.5]), "b": np.array(0.2)}
    r = {"w": np.array([0.1, 0.7]), "b": np.array(-0.4)}
    metric_inverse = lambda q: jnp.diag(1 + jnp.concatenate([q["b"][None], q["w"]]) ** 2)
    recipe = catalogue.gsgrhmc(u, metric_inverse)
    assert check(recipe.drift, recipe.D, recipe.H, Phase(q, r), count=4)
    assert_allclose(recipe.drift(Phase(q, r)).position["b"], np.sqrt(1 + 0.2**2) * -0.4)


def test_the_root_of_an_isotropic_metric_has_derivatives():
    # Eigenvalues coincide everywhere: P = c I, S = sqrt(c) I, and S'' through the second derivative too.
    root = lambda c: symmetric_root(c * jnp.eye(3))
    assert_allclose(root(4.0), 2 * np.eye(3), atol=1e-15)
    assert_allclose(jax.jacfwd(root)(4.0), np.eye(3) / 4, atol=1e-15)
    assert_allclose(jax.jacfwd(jax.jacfwd(root))(4.0), -np.eye(3) / 32, atol=1e-15)
    assert_allclose(jax.grad(lambda c: root(c).sum())(4.0), 3 / 4, atol=1e-15)
    level_set = lambda q: 1.5 * jnp.sqrt(potential(q) + 0.5) * jnp.eye(3)
    recipe = catalogue.gsgrhmc(potential, level_set)
    assert check(recipe.drift, recipe.D, recipe.H, Phase(Q3, R3), count=4)


def test_the_root_squares_to_its_matrix_and_so_does_its_derivative():
    P = lambda t: metric_inverse(jnp.array(Q3) * t)
    S_, dS = symmetric_root(P(1.0)), jax.jacfwd(lambda t: symmetric_root(P(t)))(1.0)
    assert_allclose(S_ @ S_, P(1.0), atol=1e-14)
    assert_allclose(S_ @ dS + dS @ S_, jax.jacfwd(P)(1.0), atol=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: catalogue.sgld(potential, np.ones(2)).matrices(Q3), "D has to be a scalar"),
        (lambda: catalogue.sghmc(potential, np.ones((2, 2))).matrices(Phase(Q3, R3)), "friction has to be a scalar"),
        (lambda: catalogue.hmc(potential, np.ones(4)).drift(Phase(Q3, R3)), "mass has to be a scalar"),
        (lambda: catalogue.grouped_sgnht(potential, 1.0, (0, 2, 2)), "without gaps"),
        (
            lambda: catalogue.grouped_sgnht(potential, 1.0, (0, 1)).drift(Thermostat(Q3, R3, np.ones(2))),
            "groups number 2 coordinates",
        ),
        (lambda: catalogue.msgnht(potential, 1.0).drift(Thermostat(Q3, R3, np.array(1.0))), "xi has 1 entries"),
    ],
)
def test_unusable_settings_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_map_shows_each_method_once_where_it_lives():
    pytest.importorskip("matplotlib", reason="the map is drawn by matplotlib (fokker[plot])")
    ax = catalogue.draw_map()
    cells = {text.get_position(): text.get_text().split("\n") for text in ax.texts}
    places = ("zero", "constant", "adaptive")
    for method in TABLE:
        home = (places.index(method.diffusion), places.index(method.curl))
        assert [cell for cell, names in cells.items() if method.name in names] == [home]
    assert ax.get_xlabel().startswith("diffusion")
    assert catalogue.draw_map(ax) is ax
