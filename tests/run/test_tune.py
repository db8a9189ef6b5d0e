"""The law that tuning rests on is that of the chain, and what it chooses samples the posterior within its budget."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.data.sources import IteratorSource, array_source
from fokker.errors import InputError
from fokker.linear_models import glm
from fokker.run.gradients import control_variates, minibatch
from fokker.run.linear_chain import law, step_map
from fokker.run.local_shape import Shape, directions
from fokker.run.loop import Chains
from fokker.run.mode import find_mode
from fokker.run.plan import Plan, make_plan
from fokker.run.progress import Progress
from fokker.run.sample import resume, sample
from fokker.run.tune import BUDGET, LOUD, tune
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.target import Target

METHODS = [
    ("sgld", ""), ("sghmc", "euler"), ("sghmc", "symplectic"), ("sghmc", "aboba"), ("sghmc", "baoab"),
]  # fmt: skip
KERNELS = {"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}


def silent(text: str, keep: bool = False) -> None:
    pass


# --- the law --------------------------------------------------------------------------------------------------------


def test_law_agrees_with_closed_forms():
    a, eps, C = 1.7, 0.2, 1.0
    nu = 2 * C * eps
    want = {
        ("sgld", ""): 1 / (1 - eps * a / 2),
        ("sghmc", "euler"): nu * (2 - C * eps + a * eps**2) / (eps * (C - a * eps) * (4 - 2 * C * eps + a * eps**2)),
        ("sghmc", "symplectic"): nu * (2 - C * eps) / (C * eps * (4 - 2 * C * eps - a * eps**2)),
        ("sghmc", "aboba"): 1.0,
        ("sghmc", "baoab"): 1.0,
    }
    for (method, integrator), variance in want.items():
        np.testing.assert_allclose(law(method, integrator, a, eps, C, None).variance, variance, rtol=1e-12)
    # SGLD under gradient noise of variance V: eps V / (2 - eps a) more; underdamped: tau = 2 C / (a eps) as eps -> 0
    np.testing.assert_allclose(law("sgld", "", a, eps, C, None).from_gradient, eps / (2 - eps * a), rtol=1e-12)
    slow = law("sghmc", "aboba", a, 1e-3, C, None)
    np.testing.assert_allclose(slow.tau * 1e-3, 2 * C / a, rtol=2e-3)
    np.testing.assert_allclose(slow.tau_square * 1e-3, C / a + 1 / C, rtol=2e-3)


@pytest.mark.parametrize("method, integrator", METHODS)
def test_step_map_is_the_kernels_step(method, integrator, x64):
    """K and b_g by differentiating the kernel's own step, with a potential a theta^2 / 2 + g theta."""
    a, eps, C = 1.7, 0.2, 0.8

    def step(z, g):
        target = Target.from_log_density(lambda theta: -0.5 * a * (theta**2).sum() - g * theta.sum())
        kernel = sgld(eps) if method == "sgld" else sghmc(eps, friction=C, integrator=integrator)
        bound = kernel.bind(target, minibatch())
        state = bound.init(z[:1], jax.random.key(0))
        state = state if method == "sgld" else state._replace(momentum=z[1:])
        after = bound.step(jax.random.key(1), state)[0]
        return after.position if method == "sgld" else jnp.concatenate([after.position, after.momentum])

    z = jnp.zeros(1 if method == "sgld" else 2)
    K, _, push = step_map(method, integrator, np.array(a), np.array(eps), np.array(C))
    np.testing.assert_allclose(jax.jacfwd(step)(z, 0.0), K, atol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(step, argnums=1)(z, 0.0), push, atol=1e-12)


@pytest.mark.parametrize("method, integrator", METHODS)
def test_variance_under_epochs_is_that_of_summed_responses(method, integrator):
    """The geometric sum against the covariance of the noise and the response to it, summed by brute force."""
    a, eps, C, epoch = np.array(1.3), np.array(0.15), np.array(0.9), 7
    K, _, push = step_map(method, integrator, a, eps, C)
    response = np.stack([np.linalg.matrix_power(K, j) @ push for j in range(600)])[:, 0]
    lag = np.abs(np.subtract.outer(np.arange(600), np.arange(600)))
    covariance = np.where(lag == 0, 1.0, -np.maximum(1 - lag / epoch, 0) / (epoch - 1))
    got = law(method, integrator, a, eps, C, epoch).from_gradient
    np.testing.assert_allclose(got, a * response @ covariance @ response, rtol=1e-9)


def test_noise_without_replacement_vanishes_for_a_slow_chain():
    fast = law("sgld", "", 1.0, 1e-4, 1.0, 100)
    white = law("sgld", "", 1.0, 1e-4, 1.0, None)
    np.testing.assert_allclose(fast.from_gradient / white.from_gradient, 100 * 1e-4 / 3, rtol=0.1)


# --- what is chosen -------------------------------------------------------------------------------------------------


def gaussian_rows(scales: tuple[float, ...] = (0.1, 1.0, 20.0), size: int = 2000) -> tuple[Target, np.ndarray]:
    """Correlated regression with scales far apart, and its posterior's exact sds."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((size, len(scales))) @ (np.eye(len(scales)) + 0.4) * np.array(scales)
    y = X @ np.ones(len(scales)) + rng.standard_normal(size)
    target = glm(X.astype(np.float32), y.astype(np.float32), "gaussian", intercept=False)
    return target, np.sqrt(np.diag(np.linalg.inv(X.T @ X + np.eye(len(scales)) / 100)))


def a_plan(target: Target, kernel, gradient=None, **options) -> Plan:
    settings = {
        "init": None, "draws": 20_000, "warmup": 1000, "thin": 1, "chains": 2, "batch_size": 100, "batches": None,
        "share_batches": False, "seed": 0, "dtype": "float32",
    }  # fmt: skip
    plan = make_plan(target, kernel, gradient or minibatch(), **{**settings, **options})
    if not isinstance(plan.gradient, control_variates):
        return plan
    centre = np.asarray(find_mode(plan.target, plan.starts[0]))
    return dataclasses.replace(plan, gradient=dataclasses.replace(plan.gradient, centre=centre))


def sds(plan: Plan, steps: int) -> np.ndarray:
    chains = Chains(dataclasses.replace(plan, thin=max(1, steps // 5000)))
    chains.skip(steps // 10)
    kept = []
    while sum(k.shape[1] for k in kept) * chains.plan.thin < steps:
        kept.append(chains.draw(5000).positions)
    chains.close()
    return np.concatenate(kept, axis=1).astype(float).std(axis=(0, 1))


@pytest.mark.parametrize("method", KERNELS)
def test_tuned_chain_has_the_right_sds(method):
    target, truth = gaussian_rows()
    plan, chosen = tune(a_plan(target, KERNELS[method](), control_variates()), silent)
    why = chosen["why"]
    assert why["verified"] and why["predicted_sd_error"] <= BUDGET
    # an ESS of about 4000: the sd's standard error is 1.1 %
    steps = int(2000 * why["predicted_autocorrelation_time"])
    ratio = sds(plan, steps) / truth
    assert np.abs(ratio - 1).max() < BUDGET + 0.04, ratio
    # far below what could be had: the chain must not be slow either
    assert why["predicted_autocorrelation_time"] < 60


def test_gradient_noise_is_predicted():
    """With plain minibatches the step is limited by noise, and the sds come out as foreseen, not merely small."""
    target, truth = gaussian_rows((1.0, 1.0))
    plan, chosen = tune(a_plan(target, sgld(), batches="independent"), silent)
    why = chosen["why"]
    assert why["share_of_error_from_gradient_noise"] > 0.5
    assert why["gain_of_control_variates"] > 1.5
    assert "control_variates" in why["advice"]
    ratio = sds(plan, int(2000 * why["predicted_autocorrelation_time"])) / truth
    assert ratio.max() - 1 == pytest.approx(why["predicted_sd_error"], abs=0.035)


def test_a_tuned_run_is_resumed_with_what_it_chose(tmp_path):
    """The choice is a function of the run alone, and nothing of it is lost in the store's JSON."""
    target, _ = gaussian_rows((1.0, 3.0))
    options = {"gradient": control_variates(), "progress": False}
    settings = {"warmup": 100, "thin": 1, "batch_size": 100, "chains": 2, **options}
    whole = sample(target, sghmc(), draws=300, **settings)
    json.dumps(whole.settings["chosen"], allow_nan=False)
    sample(target, sghmc(), draws=200, store=tmp_path / "run", **settings)
    longer = resume(tmp_path / "run", target, sghmc(), draws=300, **options)
    # the length of a run bounds that of its pilots, from 2000 iterations on: these two are tuned alike
    for run in (longer, whole):
        assert run.settings["chosen"]["why"].pop("words")  # which speak of the run's length
    assert longer.settings["chosen"] == whole.settings["chosen"]
    np.testing.assert_array_equal(longer.draws["beta"], whole.draws["beta"])


def test_a_tree_of_parameters_with_a_log_scale():
    """Student-t errors; the quadratic is only near. The truth by the same chain at a quarter of the step."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((600, 2)).astype(np.float32)
    y = (X @ [1.0, -2.0] + 0.5 * rng.standard_t(4, 600)).astype(np.float32)

    def log_likelihood(p, batch):
        z = (batch["y"] - batch["X"] @ p["beta"]) * jnp.exp(-p["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4) - p["log_scale"]

    target = Target(
        lambda p: -0.5 * jnp.sum(p["beta"] ** 2) / 100 - 0.5 * p["log_scale"] ** 2,
        log_likelihood,
        {"X": X, "y": y},
        start={"beta": np.zeros(2, np.float32), "log_scale": np.float32(2)},
    )
    plan, chosen = tune(a_plan(target, sghmc(), control_variates()), silent)
    assert chosen["why"]["verified"]
    assert len(chosen["kernel"]["mass"]) == 3
    assert np.abs(plan.starts[0] - [1.0, -2.0, np.log(0.5)]).max() < 0.5


def test_a_density_without_rows():
    """Curvatures 1 and 10^4, no rows: the step comes from the curvature alone."""
    target = Target.from_log_density(lambda x: -0.5 * (x[0] ** 2 + 1e4 * x[1] ** 2), start=np.ones(2, np.float32))
    plan, chosen = tune(a_plan(target, sgld(), batch_size=None), silent)
    assert chosen["why"]["share_of_error_from_gradient_noise"] == 0
    np.testing.assert_allclose(plan.kernel.diffusion, [1, 1e-4], rtol=1e-3)
    # 1 / sqrt(1 - eps / 2) = 1 + BUDGET
    np.testing.assert_allclose(plan.kernel.step_size, 2 * (1 - 1 / (1 + BUDGET) ** 2), rtol=0.05)


def test_settings_that_the_user_gave_are_kept():
    target, truth = gaussian_rows((1.0, 3.0))
    given = sghmc(friction=50.0, mass=np.array([100.0, 900.0]))
    plan, chosen = tune(a_plan(target, given), silent)
    assert list(chosen["kernel"]) == ["step_size"]
    assert plan.kernel.friction == 50.0
    starts = [{"beta": np.float32([1, 1])}, {"beta": np.float32([1.1, 1])}]
    plan, chosen = tune(a_plan(target, given, init=starts), silent)
    assert "starts" not in chosen
    np.testing.assert_array_equal(plan.starts[1], np.float32([1.1, 1]))
    for kernel in (sgnht(diffusion=20.0), sgld(diffusion=np.diag(truth**2))):
        assert list(tune(a_plan(target, kernel, control_variates()), silent)[1]["kernel"]) == ["step_size"]


@pytest.mark.parametrize("kernel", [sghmc(mass=np.array([[2e3, 1e3], [1e3, 2e4]])), sgnht(mass=np.array([2e3, 2e4]))])
def test_friction_is_found_for_a_mass_that_the_user_gave(kernel):
    """A dense mass too; the chain then moves as fast as with the mass that would have been found."""
    target, truth = gaussian_rows((1.0, 3.0))
    plan, chosen = tune(a_plan(target, kernel, control_variates()), silent)
    assert "mass" not in chosen["kernel"] and len(chosen["kernel"]) > 1
    json.dumps(chosen, allow_nan=False)
    np.testing.assert_array_equal(plan.kernel.mass, kernel.mass)
    time = chosen["why"]["predicted_autocorrelation_time"]
    assert time < 10
    assert np.abs(sds(plan, int(2000 * time)) / truth - 1).max() < BUDGET + 0.04


def test_directions_through_a_dense_root_have_the_right_variances():
    """Columns and curvatures give back the covariance: H^-1 = sum over k of column_k column_k^T / curvature_k."""
    rng = np.random.default_rng(0)
    H, root = (lambda A, B: (A @ A.T, B))(*rng.standard_normal((2, 4, 4)))
    shape = Shape(np.zeros(4), H, np.diag(H).copy(), H.__matmul__, 0.0)
    for through in (root, np.abs(root[0])):
        view = directions(shape, through)
        np.testing.assert_allclose((view.columns / view.curvature) @ view.columns.T, np.linalg.inv(H), rtol=1e-8)
        shares = view.columns**2 / view.curvature / np.diag(np.linalg.inv(H))[:, None]
        np.testing.assert_allclose(view.weights, shares, rtol=1e-8)


def test_compensated_noise_is_not_trusted_beyond_its_windows():
    """V^ knows rows, the chain sees 20 windows of them: the sds stay near the truth, as the pilots see."""
    target, truth = gaussian_rows((1.0, 3.0))
    plan, chosen = tune(a_plan(target, sghmc(), minibatch(noise="dense")), silent)
    assert chosen["why"]["verified"]
    assert len(chosen["why"]["pilots"]) == 1
    ratio = sds(plan, int(2000 * chosen["why"]["predicted_autocorrelation_time"])) / truth
    assert np.abs(ratio - 1).max() < LOUD + 0.04


def test_five_thousand_parameters():
    """Without a matrix: the scales of the diagonal are found, in memory and time that are a few passes' worth."""
    scales = np.geomspace(0.1, 10, 5000).astype(np.float32)
    target = Target.from_log_density(lambda x: -0.5 * ((x / scales) ** 2).sum(), start=np.ones(5000, np.float32))
    plan, chosen = tune(a_plan(target, sghmc(), batch_size=None, draws=1000), silent)
    assert chosen["why"]["verified"]
    np.testing.assert_allclose(np.asarray(plan.kernel.mass) * scales**2, 1.0, rtol=1e-3)
    assert chosen["why"]["predicted_autocorrelation_time"] < 5


def test_a_saddle_is_left():
    """Two modes, and a start at the very point between them, where every derivative of odd order is 0."""
    two = lambda x: jnp.logaddexp(-0.5 * ((x - 1.5) ** 2).sum(), -0.5 * ((x + 1.5) ** 2).sum())
    target = Target.from_log_density(two, start=np.zeros(2, np.float32))
    plan, chosen = tune(a_plan(target, sghmc(), batch_size=None, chains=3), silent)
    assert chosen["why"]["verified"]
    drawn = sds(plan, 40_000)  # both modes: each coordinate has variance 1 + 1.5^2
    np.testing.assert_allclose(drawn, np.sqrt(3.25), rtol=0.1)


def test_the_choice_is_told_in_words(capsys):
    target, _ = gaussian_rows((1.0, 3.0))
    run = sample(target, sghmc(), gradient=minibatch(), thin=1, draws=300, batch_size=100, progress=False)
    words = run.settings["chosen"]["why"]["words"]
    assert all(w in str(run) for w in words)
    assert words[0].startswith("sghmc: step size 0.")
    assert any("chance alone" in w for w in words)
    assert any("expect an ESS of about" in w and "thin=" in w for w in words)
    assert any("control_variates()" in w for w in words)
    assert not capsys.readouterr().out
    with Progress() as bar:
        bar.note("looking")
        bar.note(words[0], keep=True)
    assert words[0][:40] in capsys.readouterr().out


def test_a_step_too_large_for_the_posterior_is_cut(monkeypatch):
    """U = theta^4 is far from its quadratic; the pilots see it. Without rows and with a mode of some curvature."""
    target = Target.from_log_density(lambda x: -0.05 * (x**2).sum() - (x**4).sum(), start=np.float32([0.1, 0.1]))
    _, chosen = tune(a_plan(target, sgld(), batch_size=None, draws=120_000), silent)
    pilots = chosen["why"]["pilots"]
    assert len(pilots) > 1 and chosen["why"]["verified"]
    assert pilots[-1]["step_size"] < pilots[0]["step_size"] / 3


def density(f, start=(0.5, 0.5)):
    return Target.from_log_density(f, start=np.float32(start))


@pytest.mark.parametrize(
    "target, kernel, message",
    [
        (density(lambda x: -0.5 * (x**2).sum()), hmc(), r"hmc\(step_size="),
        (
            density(lambda x: -0.5 * x[0] ** 2 + 0 * x[1]),
            sgld(),
            r"no proper mode.*theta\[1\].*proper and smooth prior",
        ),
        (density(lambda x: -jnp.abs(x).sum()), sgld(), r"no proper mode.*proper and smooth prior"),
        (density(lambda x: x.sum()), sghmc(), r"no proper mode"),
        (density(lambda x: (x**2).sum()), sghmc(), r"no mode was found.*init="),
        (density(lambda x: jnp.where((x > 0).all(), jnp.log(x) - x, -jnp.inf).sum(), (1, 1)), sghmc(), r"log, logit"),
        (density(lambda x: -0.5 * (x**2).sum()), sghmc(friction=1e9), r"the friction that you gave"),
    ],
    ids=["method", "flat", "corner", "slope", "unbounded", "boundary", "friction"],
)
def test_errors_say_what_to_do(target, kernel, message):
    with pytest.raises(InputError, match=message):
        tune(a_plan(target, kernel, batch_size=None), silent)


def test_an_iterator_needs_a_step_size():
    rows = [{"X": np.ones((10, 1), np.float32), "y": np.ones(10, np.float32)}]
    target = Target(
        lambda b: -0.5 * (b**2).sum(), lambda b, batch: -0.5 * (batch["y"] - batch["X"] @ b) ** 2,
        IteratorSource(rows, size=10), start=np.zeros(1, np.float32),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"sghmc\(step_size=.*iterator|iterator.*sghmc\(step_size="):
        tune(a_plan(target, sghmc(), batch_size=5, share_batches=True), silent)


@pytest.mark.slow
def test_rows_on_disk_are_tuned_like_rows_in_memory(tmp_path):
    target, _ = gaussian_rows((1.0, 3.0))
    for name, leaf in target.data.items():
        np.save(tmp_path / f"{name}.npy", leaf)
    kept = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in target.data}
    on_disk = dataclasses.replace(target, data=array_source(kept))
    got = [tune(a_plan(t, sghmc(), control_variates()), silent)[1] for t in (target, on_disk)]
    np.testing.assert_allclose(got[0]["kernel"]["mass"], got[1]["kernel"]["mass"], rtol=1e-4)
    assert got[1]["why"]["verified"]
