"""What is tuned on a manifold has the law it is tuned for, on every kind of space, and leaves none of them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

import fokker
from fokker.errors import InputError, SpaceError
from fokker.manifolds.product import product
from fokker.numeric.random_jax import Key
from fokker.run.carrier import least_curvature, mean_curvature, projector, scores
from fokker.run.gradients import minibatch
from fokker.run.linear_chain import law, step_map
from fokker.run.mode import find_mode
from fokker.run.tangent_shape import find_tangent
from fokker.target import Target
from tests.run.test_tune import a_plan, silent

# --- the step of these kernels on a quadratic -------------------------------------------------------------------------


def test_the_law_of_the_splitting_is_the_closed_form():
    a, eps, C = 1.7, 0.5, 1.0
    h = C * eps
    for method in ("sggmc", "gsgnht"):
        got = law(method, "aboba", a, eps, C, None)
        assert_allclose(got.variance, (h / 2) / np.sinh(h / 2), rtol=1e-12)
        c = np.exp(-h / 2)
        assert_allclose(got.kinetic, 4 * h * c**2 / ((1 - c**2) * (2 + 2 * c**2 - a * c * eps**2)), rtol=1e-12)


@pytest.mark.parametrize("integrator", ["aboba", "baoab"])
def test_step_map_is_the_kernels_step(integrator, x64):
    a, eps, C = 1.7, 0.2, 0.8

    def step(z, g):
        target = Target.from_log_density(lambda theta: -0.5 * a * (theta**2).sum() - g * theta.sum())
        bound = fokker.sggmc(eps, C, integrator=integrator).bind(target, minibatch())
        state = bound.init(z[:1], jax.random.key(0))._replace(point=z[:1], velocity=z[1:])
        after = bound.step(jax.random.key(1), state)[0]
        return jnp.concatenate([after.point, after.velocity])

    K, _, push = step_map("sggmc", integrator, np.array(a), np.array(eps), np.array(C))
    assert_allclose(jax.jacfwd(step)(jnp.zeros(2), 0.0), K, atol=1e-12)
    assert_allclose(jax.jacfwd(step, argnums=1)(jnp.zeros(2), 0.0), push, atol=1e-12)


SPACE = {"a": fokker.Sphere(3), "b": fokker.Euclidean(2)}


def some_density(p):
    return 5 * p["a"][2] - jnp.sum(jnp.square(p["b"] - p["a"][0])) * 20


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kernel", [pytest.param(fokker.sggmc, marks=SLOW), fokker.gsgnht, pytest.param(fokker.gmc, marks=SLOW)]
)
def test_a_scale_for_all_leaves_is_another_clock(kernel, x64):
    """scales = s with eps, C is s eps, C / s; bit for bit but for rounding, noise and thermostat included."""
    s, start = 3.0, {"a": np.array([0.0, 0.6, 0.8]), "b": np.array([0.1, -0.2])}
    target = Target(some_density, None, space=SPACE)
    if kernel is fokker.gmc:
        pair = fokker.gmc(0.02, scales=np.full(2, s)), fokker.gmc(0.02 * s)
    else:
        thermostat = {"inertia": 1.0} if kernel is fokker.gsgnht else {}
        slow = {"inertia": s**2} if thermostat else {}
        pair = kernel(0.02, 2.0, scales=np.full(2, s), **thermostat), kernel(0.02 * s, 2.0 / s, **slow)
    ends = []
    for one in pair:
        bound = one.bind(target, None if kernel is fokker.gmc else minibatch())
        state = bound.init(start, jax.random.key(0))
        step = jax.jit(bound.step)
        for t in range(20):
            state = step(Key(jnp.arange(2, dtype=jnp.uint32), jnp.uint32(t)), state)[0]
        ends.append(state.point)
    assert_allclose(*ends, atol=1e-9)


@pytest.mark.slow
def test_scales_by_leaf_are_units_of_the_leaves(x64):
    """On flat leaves: the chain of x = scale y is that of y with scale 1, on the density of y."""
    scales = np.array([0.01, 30.0])
    target = Target(lambda p: -0.5 * jnp.sum((p["u"] / scales[0]) ** 2) - 0.1 * (p["v"] / scales[1]) ** 4, None)
    unit = Target(lambda p: -0.5 * jnp.sum(p["u"] ** 2) - 0.1 * p["v"] ** 4, None)
    start = {"u": jnp.ones(2), "v": jnp.ones(())}
    ends = []
    for kernel, on, factor in (
        (fokker.sggmc(0.3, 0.7, scales=scales), target, scales),
        (fokker.sggmc(0.3, 0.7), unit, (1, 1)),
    ):
        bound = kernel.bind(on, minibatch())
        state = bound.init({"u": start["u"] * factor[0], "v": start["v"] * factor[1]}, jax.random.key(0))
        step = jax.jit(bound.step)
        for t in range(30):
            state = step(Key(jnp.arange(2, dtype=jnp.uint32), jnp.uint32(t)), state)[0]
        ends.append([state.position["u"] / factor[0], state.position["v"] / factor[1]])
    assert_allclose(np.hstack(ends[0]), np.hstack(ends[1]), atol=1e-8)


def test_scales_need_one_number_for_each_leaf():
    target = Target(some_density, None, space=SPACE, start={"a": np.array([0, 0.6, 0.8]), "b": np.zeros(2)})
    with pytest.raises(InputError, match=r"one for each of the 2 leaves"):
        fokker.sample(target, fokker.sggmc(0.1, scales=np.ones(3)), draws=5, progress=False)
    with pytest.raises(InputError, match="scales must be > 0"):
        fokker.sggmc(0.1, scales=[1.0, -1.0])


# --- what tuning rests on ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mean_curvature_and_the_size_of_the_space(x64):
    space = product({"a": fokker.Sphere(4), "b": fokker.Stiefel(5, 2)}, {"a": jnp.zeros(4), "b": jnp.zeros((5, 2))})
    x = jnp.concatenate(
        [
            leaf.ravel()
            for leaf in jax.tree.leaves(
                fokker.random_params({"a": fokker.Sphere(4), "b": fokker.Stiefel(5, 2)}, jax.random.key(0), "float64")
            )
        ]
    )
    h = mean_curvature(space, x)
    assert_allclose(h[:4], -3 * x[:4], atol=1e-12)
    assert_allclose(h[4:], -(2 * 5 - 2 - 1) / 2 * x[4:], atol=1e-12)  # (trace of P) / p = (2n - p - 1) / 2 on a frame
    assert_allclose(np.trace(projector(space, x)), space.dim, rtol=1e-12)
    assert_allclose(least_curvature(space, np.asarray(x)), [4] * 4 + [5] * 10, rtol=1e-12)


def test_the_score_has_mean_zero_and_is_paired_with_the_points():
    """E g = 0 and E (x - c) g^T = E P under Dirichlet draws, which are exact, on the sphere of their roots."""
    alpha, count = np.array([3.0, 1.5, 2.0, 6.0]), 40_000
    rng = np.random.default_rng(0)
    x = np.sqrt(rng.dirichlet(alpha, count)) * rng.choice([-1, 1], (count, 4))
    space = product(fokker.Simplex(4), jnp.zeros(4))
    g = scores(space, x, -(2 * alpha - 1) / x)
    pairs = (x[:, :, None] * g[:, None]) - (np.eye(4) - x[:, :, None] * x[:, None])
    for values in (g, pairs.reshape(count, -1)):
        z = values.mean(0) / (values.std(0) / np.sqrt(count))
        assert np.abs(z).max() < 4.5


def test_the_mode_stays_in_the_space_and_is_that_of_the_carrier():
    alpha = np.array([5.0, 2.0, 9.0], np.float32)
    target = Target(lambda t: jnp.sum((alpha - 1) * jnp.log(t)), None, space=fokker.Simplex(3))
    mode = np.asarray(find_mode(target, np.array([0.8, 0.1, 0.1], np.float32)))
    assert_allclose(mode, (2 * alpha - 1) / (2 * alpha - 1).sum(), atol=2e-4)  # of prod |x|^(2 alpha - 1)
    frame = np.asarray(find_mode(
        Target(lambda X: 40 * X[0, 0] + 30 * X[3, 1], None, space=fokker.Stiefel(5, 2)),
        np.eye(5, 2, dtype=np.float32)[::-1]))  # fmt: skip
    assert_allclose(frame.T @ frame, np.eye(2), atol=1e-5)
    assert frame[0, 0] > 0.999 and frame[3, 1] > 0.999


def test_a_centre_has_to_be_in_its_space():
    target = rows_on_the_sphere(200)
    with pytest.raises(SpaceError, match="the centre is"):
        fokker.sample(target, fokker.sggmc(0.01), gradient=fokker.control_variates(np.array([2.0, 0, 0])), draws=5)


# --- what is chosen ---------------------------------------------------------------------------------------------------

ALPHA = np.array([9.0, 6.0, 14.0], np.float32)
EVERYWHERE = {
    "ball": fokker.Ball(2), "box": fokker.Box(-1.0, [2.0, 3.0]), "far": fokker.Euclidean(2),
    "frame": fokker.Stiefel(4, 2), "many": fokker.Oblique(3, 2), "one": fokker.Sphere(3), "scale": fokker.Positive(),
    "share": fokker.Simplex(3),
}  # fmt: skip


def everywhere(p):
    directions = 12 * p["one"][0] + 3 * p["many"][0, 0] + 30 * p["many"][1, 1]
    flat = -0.5 * jnp.sum((p["far"] - 5) ** 2) / 1e-6 + 2 * p["frame"][0, 0] + 2 * p["frame"][1, 1]
    sets = 5 * jnp.log(p["scale"]) - 3 * p["scale"] + jnp.sum((ALPHA - 1) * jnp.log(p["share"]))
    return directions + flat + sets - 8 * jnp.sum(jnp.square(p["ball"])) - jnp.sum(jnp.square(p["box"] - 0.5))


@pytest.mark.slow
def test_one_run_is_tuned_on_every_kind_of_space():
    """sds by closed forms and quadrature; ESS of 2,000 or more: a standard error below 2 %."""
    start = jax.tree.map(np.asarray, fokker.random_params(EVERYWHERE, jax.random.key(1)))
    target = Target(everywhere, None, space=EVERYWHERE, start=start)
    run = fokker.sample(target, fokker.sggmc(), draws=2500, thin=4, chains=2, progress=False)
    why = run.settings["chosen"]["why"]
    assert why["verified"] and why["preconditioner"] == "by leaf" and why["directions_as_wide_as_the_manifold"] > 0
    x = {name: np.asarray(v, float).reshape(-1, *v.shape[2:]) for name, v in run.draws.data_vars.items()}
    A = lambda k: 1 / np.tanh(k) - 1 / k
    total = ALPHA.sum()
    truth = {
        "one": (x["one"][:, 1], np.sqrt(A(12) / 12)),
        "narrow": (x["many"][:, 2, 1], np.sqrt(A(30) / 30)),
        "wide": (x["many"][:, 1, 0], np.sqrt(A(3) / 3)),
        "far": (x["far"][:, 0], 1e-3),
        "scale": (x["scale"], np.sqrt(6) / 3),
        "share": (x["share"][:, 0], np.sqrt(ALPHA[0] * (total - ALPHA[0]) / total**2 / (total + 1))),
        "ball": (x["ball"][:, 0], sd_by_quadrature(lambda t: np.exp(-8 * t * t) * within(t), -1, 1)),
        "box": (x["box"][:, 1], sd_by_quadrature(lambda t: np.exp(-((t - 0.5) ** 2)), -1, 3)),
    }
    ratios = {name: float(v.std() / sd) for name, (v, sd) in truth.items()}
    assert all(abs(r - 1) < 0.1 for r in ratios.values()), ratios
    frames = x["frame"]
    assert np.abs(np.swapaxes(frames, 1, 2) @ frames - np.eye(2)).max() < 1e-4
    assert (x["scale"] > 0).all() and (x["share"] > 0).all()


def within(t):
    """The integral of exp(-8 u^2) over the chord of the unit disc at t."""
    from scipy.special import erf

    return erf(np.sqrt(8 * max(1 - t * t, 0.0)))


def sd_by_quadrature(density, low, high):
    m = [quad(lambda t, k=k: t**k * density(t), low, high)[0] for k in range(3)]
    return np.sqrt(m[2] / m[0] - (m[1] / m[0]) ** 2)


def rows_on_the_sphere(size, n=3, kappa=4.0, seed=0):
    """vMF observations with a uniform prior on their mean direction: vMF again, closed form."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((size, n))
    z[:, 0] += 2
    z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    start = np.eye(n, dtype=np.float32)[1]
    return Target(lambda x: jnp.zeros(()), lambda x, batch: kappa * batch @ x, z, space=fokker.Sphere(n), start=start)


def sd_across(target, kappa=4.0):
    """Of a direction orthogonal to the mean of the posterior vMF."""
    k = kappa * np.linalg.norm(np.asarray(target.data, float).sum(0))
    return np.sqrt((1 / np.tanh(k) - 1 / k) / k)


@pytest.mark.parametrize("kernel, gradient", [
    (fokker.gsgnht(), None),  # the run chooses
    pytest.param(fokker.sggmc(), fokker.minibatch("dense"), marks=SLOW),
])  # fmt: skip
def test_minibatches_on_a_sphere(kernel, gradient):
    target = rows_on_the_sphere(2000)
    run = fokker.sample(target, kernel, gradient=gradient, draws=2000, thin=5, chains=2, progress=False)
    x = np.asarray(run.draws["theta"], float).reshape(-1, 3)
    mean = np.asarray(target.data, float).sum(0)
    across = np.linalg.svd(mean[None])[2][1:]
    ratio = (x @ across.T).std(0) / sd_across(target)
    assert np.abs(ratio - 1).max() < 0.1, (ratio, run.settings["chosen"])


def test_gmc_accepts_four_of_five_or_more():
    target = Target(
        lambda x: 20 * x[0] - 60 * x[1] ** 2, None, space=fokker.Sphere(4), start=np.eye(4, dtype=np.float32)[0]
    )
    run = fokker.sample(target, fokker.gmc(), draws=500, chains=2, progress=False)
    assert 0.7 < float(run.stats["acceptance_probability"].mean()) < 0.97
    assert run.settings["chosen"]["why"]["verified"] and run.settings["chosen"]["kernel"]["leapfrog_steps"] >= 1
    assert run.summary()["ess_bulk"].min() > 300


def test_a_tuned_gmc_moves_from_wherever_its_chains_are_told_to_begin():
    """From random points of a concentrated posterior its step is refused for ever: three of four chains never moved."""
    counts, space = jnp.array([500.0, 1000.0, 300.0, 200.0]), fokker.Simplex(4)
    target = Target.from_log_density(lambda t: counts @ jnp.log(t), space=space)
    somewhere = lambda key: fokker.random_params(space, key)
    run = fokker.sample(target, fokker.gmc(), init=somewhere, draws=400, chains=4, progress=False)
    assert float(run.stats["accepted"].mean("draw").min()) > 0.6 and run.summary()["r_hat"].max() < 1.03
    exact = (np.asarray(counts) + 1) / (counts.sum() + 4)
    sd = np.sqrt(exact * (1 - exact) / (counts.sum() + 5))
    assert_allclose(run.summary()["sd"], sd, rtol=0.15)
    assert any("downhill" in words for words in run.settings["chosen"]["why"]["words"])


@pytest.mark.slow
def test_the_choice_is_a_function_of_the_seed_and_survives_a_resume(tmp_path):
    target = rows_on_the_sphere(300)
    plan = a_plan(target, fokker.sggmc())
    first, again = tune_again(plan), tune_again(plan)
    assert json.dumps(first, sort_keys=True) == json.dumps(again, sort_keys=True)
    options = {"draws": 60, "warmup": 10, "chains": 2, "progress": False}
    whole = fokker.sample(target, fokker.sggmc(), **options)
    short = fokker.sample(target, fokker.sggmc(), store=tmp_path / "r", **options)
    longer = fokker.resume(tmp_path / "r", target, fokker.sggmc(), draws=90, progress=False)
    assert (np.asarray(whole.draws["theta"]) == np.asarray(short.draws["theta"])).all()
    assert (np.asarray(longer.draws["theta"])[:, :60] == np.asarray(whole.draws["theta"])).all()


def tune_again(plan):
    from fokker.run.tune import tune

    return tune(plan, silent)[1]


@pytest.mark.slow
def test_what_cannot_be_tuned_says_so():
    from fokker.run.tune import tune

    target = rows_on_the_sphere(100)
    with pytest.raises(InputError, match="steps_per_batch > 1 the noise of a batch stands still"):
        tune(a_plan(target, fokker.sggmc(steps_per_batch=3)), silent)
    plane = Target(lambda X: X[0, 0] ** 2, None, space=fokker.Grassmann(3, 1), start=np.eye(3, 1))
    with pytest.raises(InputError, match="no step size can be tuned"):
        fokker.sample(plane, fokker.sggmc(), draws=5, progress=False)
    slope = Target(lambda p: p["t"] + 3 * p["x"][0], None, space={"x": fokker.Sphere(2)},
                   start={"x": np.array([1.0, 0]), "t": np.zeros(())})  # fmt: skip
    with pytest.raises(InputError, match="no proper mode near init"):
        fokker.sample(slope, fokker.sggmc(), draws=5, progress=False)


@pytest.mark.slow
def test_beyond_a_matrix_the_trace_stands_for_all_directions():
    """S^499: no Hessian matrix, a pilot by E (x - mode) . g = m."""
    mu = np.eye(500, dtype=np.float32)[0]
    target = Target(lambda x: 2000 * x[0], None, space=fokker.Sphere(500), start=mu)
    plan = dataclasses.replace(a_plan(target, fokker.sggmc(), batch_size=None), draws=2000)
    with jax.enable_x64(True):
        near = find_tangent(plan)
    assert near.basis is None
    assert_allclose(near.shape.product(np.eye(500)[3]), 2500 * np.eye(500)[3], rtol=2e-3, atol=1.0)
    why = tune_again(plan)["why"]
    assert why["verified"] and why["pilots"][-1]["sd_error"] < 0.05
