"""What the audit measures on manifolds is right there: identities, Stein kernel, laws of the chain, known runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fokker
from fokker.manifolds.product import product
from fokker.numeric.vmf import sample
from fokker.run.audit.draws import Draws
from fokker.run.audit.ksd import discrepancy, stein_kernel, tangent_stein_kernel
from fokker.run.audit.linearised import gaussian_law
from fokker.run.audit.on_manifold import linear_run, view_of
from fokker.run.audit.other_modes_on import search_modes_on
from fokker.run.audit.score import score_identities, spread_out
from fokker.run.carrier import on_carrier
from fokker.target import Target
from tests.run.test_tune import a_plan

KAPPA, N = 6.0, 4000
POLE = np.eye(3)[0]


def of_sphere(kappa):
    """Exact draws of vMF(kappa) as four chains, and all that a view of them has."""
    x = np.asarray(sample(np.random.default_rng(0), POLE, kappa, N)) if kappa else uniform(N)
    target = Target(lambda p: KAPPA * p[0], None, space=fokker.Sphere(3), start=POLE)
    plan = a_plan(target, fokker.sggmc(0.1), batch_size=None, chains=4)
    draws = Draws.from_array(x.reshape(4, -1, 3), list("abc"))
    return plan, draws, view_of(plan, draws)


def uniform(count):
    z = np.random.default_rng(1).standard_normal((count, 3))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def identities(view, draws, kappa):
    """The score's ratio, with the gradient of the law with this concentration."""
    where = spread_out(4, N // 4, 1000)
    at = view.points[where[:, 0], where[:, 1]]
    g = view.scores(at, np.tile(-kappa * POLE, (len(at), 1)))
    return where, at, g, score_identities(view.draws.positions, where, g, view.pairings(at).mean(0))


@pytest.mark.parametrize("kappa", [KAPPA, 0.0], ids=["concentrated", "uniform"])
def test_the_score_of_exact_draws_is_right_and_of_others_is_not(kappa):
    _, draws, view = of_sphere(kappa)
    right = identities(view, draws, kappa)[3]
    assert np.abs(right.sd_ratio - 1).max() < 4 * right.sd_error.max() < 0.08
    assert np.abs(right.shift).max() < 4 * right.shift_error.max() + 0.01
    if kappa:  # the target twice as narrow as the draws
        wrong = identities(view, draws, 4 * kappa)[3]
        assert wrong.sd_ratio.max() > 1.5


def test_without_curvature_the_tangent_kernel_is_the_flat_one():
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((2, 40, 3))
    assert_allclose(tangent_stein_kernel(x, s, np.tile(np.eye(3), (40, 1, 1))), stein_kernel(x, s), atol=1e-12)


def test_the_tangent_kernel_has_mean_zero_on_the_sphere_and_the_flat_one_has_not():
    _, draws, view = of_sphere(KAPPA)
    where, at, g, _ = identities(view, draws, KAPPA)
    x = view.draws.positions[where[:, 0], where[:, 1]]
    right = discrepancy(x, g, 1, 0, view.pairings(at))
    assert right.p_value > 0.01
    flat = discrepancy(x, np.tile(-KAPPA * POLE, (len(x), 1)) @ view.basis, 1, 0)
    assert flat.p_value < 0.01
    cold = discrepancy(x, identities(view, draws, 2 * KAPPA)[2], 1, 0, view.pairings(at))
    assert cold.p_value < 0.01 and cold.as_sd_error > 0.15


def test_narrow_draws_are_seen_along_tangent_directions_wide_ones_along_entries():
    _, _, narrow = of_sphere(KAPPA * 20)
    assert narrow.basis.shape == (3, 2) and np.abs(narrow.basis[0]).max() < 0.1
    assert narrow.draws.names == ["theta, direction 1", "theta, direction 2"]
    _, _, wide = of_sphere(0.0)
    assert wide.draws.names == ["theta[0]", "theta[1]", "theta[2]"]


@pytest.mark.slow
def test_a_plane_has_no_such_view():
    plane = Target(lambda X: X[0, 0] ** 2, None, space=fokker.Grassmann(3, 1), start=np.eye(3, 1))
    run = fokker.sample(plane, fokker.sggmc(0.1), draws=200, warmup=10, chains=2, progress=False)
    audit = run.audit(seconds=2.0)
    for name in ("spread by the score", "mean by the score", "KSD, all rows", "other modes"):
        assert audit[name].verdict == "not measured" and "no identity for this" in audit[name].evidence
    assert audit.verdict != "green"


@pytest.mark.parametrize("L", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_the_law_of_the_chain_is_the_closed_form(L):
    """One batch for L steps: temperature 1 + L eps V / 2C, but for the error of the step itself."""
    eps, C, V, a = 0.01, 10.0, 300.0, 1.7
    with jax.enable_x64(True):
        linear = fokker.sggmc(eps, C, steps_per_batch=L)
        hot = gaussian_law(linear, a * np.eye(2), V * np.eye(2))
        calm = gaussian_law(linear, a * np.eye(2), 0 * np.eye(2))
    h = C * eps
    assert_allclose(a * calm.covariance, np.eye(2) * (h / 2) / np.sinh(h / 2), atol=1e-9)
    assert_allclose(hot.covariance[0, 0] / calm.covariance[0, 0], 1 + L * eps * V / (2 * C), rtol=0.02)


@pytest.mark.slow
def test_noise_is_brought_to_the_tangent_space_in_the_units_of_the_leaves(x64):
    """Two leaves, a sphere and a line: V loses its normal part, and scales divide the mass."""
    space = {"u": fokker.Sphere(3), "w": fokker.Euclidean()}
    target = Target(lambda p: 50 * p["u"][0] - p["w"] ** 2, None, space=space, start={"u": POLE, "w": np.zeros(())})
    plan = a_plan(target, fokker.sggmc(0.1, scales=np.array([1.0, 3.0])), batch_size=None, dtype="float64")
    x = np.asarray(sample(np.random.default_rng(0), POLE, 5000.0, 400))
    positions = np.concatenate([x, np.random.default_rng(2).standard_normal((400, 1))], 1).reshape(2, 200, 4)
    view = view_of(plan, Draws.from_array(positions, list("abcd")))
    from fokker.run.audit.gradient_noise import Measured

    V = np.diag([100.0, 2.0, 3.0, 5.0])  # the first entry is normal to the sphere
    measured = Measured(np.zeros((2, 4)), np.stack([V, V]), None, 1000)
    flat = linear_run(plan, view, np.eye(3), measured, positions[0, :2])
    got = flat.measured.covariance
    assert_allclose(np.sort(np.linalg.eigvalsh(got[:2, :2])), [2, 3], rtol=0.05)
    assert_allclose(got[2, 2], 9 * 5.0, rtol=1e-9)
    assert_allclose(flat.precision[2, 2], 9.0, rtol=1e-9)
    assert flat.names == ["u, tangent 1", "u, tangent 2", "w, tangent 1"] and list(flat.groups) == [0, 0, 1]


@pytest.mark.slow
def test_the_other_pole_is_found_and_weighed():
    kappa = 30.0
    target = Target(lambda x: kappa * x[0] ** 2 + 2 * x[0], None, space=fokker.Sphere(3), start=POLE)
    space = product(target.space, jnp.zeros(3))
    draws = np.asarray(sample(np.random.default_rng(0), POLE, 2 * kappa, 500))
    search = search_modes_on(space, on_carrier(target, space), draws, POLE[None].astype(np.float32), 20.0, 0)
    (mode,) = search.unseen
    assert_allclose(mode.position, -POLE, atol=0.02)
    # both poles have the curvature 2 kappa +- 2: the weight is exp(-4) times the ratio of these
    assert_allclose(mode.weight, np.exp(-4) * (2 * kappa + 2) / (2 * kappa - 2), rtol=0.05)
    both = np.concatenate([draws, -draws])
    assert search_modes_on(space, on_carrier(target, space), both, POLE[None].astype(np.float32), 20.0, 0).unseen == ()


@pytest.mark.slow
def test_a_thermostat_at_temperature_1_does_not_make_green():
    """Anisotropic noise of minibatches: |v|^2 / m is right, the law is not, and the audit says so."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((1000, 4)) * [0.3, 1.5, 0.05, 0.05] + [1.5, 0, 0, 0]
    z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    uniform_prior = lambda x: jnp.zeros(())
    target = Target(uniform_prior, lambda x, rows: 4 * rows @ x, z, space=fokker.Sphere(4), start=np.eye(4)[0])
    run = fokker.sample(
        target, fokker.gsgnht(2e-3, friction=20.0, inertia=1e-4), gradient=fokker.minibatch(), batch_size=25,
        batches="independent", draws=1000, warmup=2000, thin=20, chains=4, progress=False,
    )  # fmt: skip
    audit = run.audit(seconds=5.0)
    assert abs(audit["kinetic temperature"].value - 1) < 0.05 and audit["kinetic temperature"].verdict == "ok"
    assert audit.verdict == "red" and audit["gradient noise"].verdict == "fail"
    assert "varies by a factor" in audit["noise share"].evidence


@pytest.mark.slow
def test_fourteen_runs_with_known_truth(tmp_path, monkeypatch):
    from experiments.audit import table_on_manifolds

    monkeypatch.setattr(table_on_manifolds, "write_page", lambda *_: None)
    found = table_on_manifolds.main(out=tmp_path)
    assert all(c["holds"] and c["sound"] for c in found["claims"]), found["claims"]
