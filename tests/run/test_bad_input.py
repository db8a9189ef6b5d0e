"""Input that cannot be used is refused with one error of ``fokker.errors``, before anything runs; what newcomers write
works."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3)).astype(np.float32)
Y = (RNG.random(60) < 0.5).astype(np.float32)
GLM = fokker.glm(X, Y)  # 4 parameters
SCALAR = fokker.Target.from_log_density(lambda p: -jnp.sum(jnp.square(p)))
SGLD, HMC = fokker.sgld(step_size=1e-3), fokker.hmc(step_size=0.1)
QUIET = dict(progress=False, chains=2, warmup=2, draws=3)
THREE = np.ones(3)


def normal(prior=lambda p: 0.0, data=Y):
    """Rows y ~ Normal(p, 1)."""
    return fokker.Target(prior, lambda p, y: -0.5 * (y - p) ** 2, data, start=np.zeros(()))


def density(names):
    """A density over scalars with these names."""
    return fokker.Target.from_log_density(lambda p: -sum(jnp.sum(p[n] ** 2) for n in names))


def metric(params):
    return 1.0


SETTINGS = [
    ("leapfrog steps", lambda: fokker.hmc(0.1, leapfrog_steps=2.5),
     "leapfrog_steps must be >= 1, a whole number; got 2.5"),
    ("geodesic steps", lambda: fokker.gmc(0.1, leapfrog_steps="3"), "leapfrog_steps must be >= 1, a whole"),
    ("implicit steps", lambda: fokker.rmhmc(0.1, True, metric=metric),
     "leapfrog_steps must be >= 1, a whole number; got T"),
    ("iterations", lambda: fokker.rmhmc(0.1, metric=metric, max_iterations=9.5),
     "max_iterations must be >= 1, a whole"),
    ("resampling", lambda: fokker.sghmc(resample_momentum=2.5),
     "resample_momentum must be >= 1, a whole number or None"),
    ("resampling on a metric", lambda: fokker.sgrhmc(0.1, metric, resample_momentum=2.5),
     "resample_momentum must be"),
    ("adaptation", lambda: fokker.psgld(0.1, adapt_steps=10.5), "adapt_steps must be >= 1, a whole number or None"),
    ("steps of a batch", lambda: fokker.sggmc(0.1, steps_per_batch=1.5), "steps_per_batch must be >= 1, a whole"),
    ("refreshing", lambda: fokker.svrg(refresh_every=2.5), "refresh_every must be >= 1, a whole number; got 2.5"),
    ("chunk", lambda: fokker.control_variates(chunk=0), "chunk must be >= 1, a whole number; got 0"),
    ("chunk of svrg", lambda: fokker.svrg(chunk=0), "chunk must be >= 1"),
    ("rank", lambda: fokker.minibatch("low_rank", "a"), "rank must be >= 1, a whole number; got 'a'"),
    ("period", lambda: fokker.cyclical(10.5), "cyclical needs a whole number period >= 2 .* got 10.5"),
    ("exploration", lambda: fokker.cyclical(10, "a"), "0 <= exploration < 1, got 10 and 'a'"),
    ("polynomial", lambda: fokker.polynomial(b="a"), "polynomial needs a number as b, got 'a'"),
    ("decay of 1", lambda: fokker.psgld(0.1, decay=1), "decay must be below 1, got 1; try 0.99"),
    ("decays", lambda: fokker.psgld(0.1, decay=THREE / 2), "decay must be a single number, got an array of shape"),
    ("steps by coordinate", lambda: fokker.sgld(THREE), "step_size must be a single number.*diffusion"),
    ("inertia", lambda: fokker.sgnht(0.1, inertia=THREE), "inertia must be a single number"),
    ("no mass", lambda: fokker.hmc(0.1, mass=None), "mass must be > 0, got None; leave it out"),
    ("no friction", lambda: fokker.sghmc(0.1, friction=None), "friction must be > 0, got None"),
    ("no damping", lambda: fokker.psgld(0.1, damping=None), "damping must be > 0, got None"),
    ("no diffusion", lambda: fokker.sgnht(0.1, diffusion=None), "diffusion must be > 0, got None"),
    ("words as mass", lambda: fokker.hmc(0.1, mass=[["a"]]), "mass must be > 0 and finite"),
    ("ragged friction", lambda: fokker.sghmc(0.1, friction=[[1.0], [1.0, 2.0]]), "friction must be > 0 and finite"),
    ("NaN in a matrix", lambda: fokker.sgld(0.1, diffusion=np.full((2, 2), np.nan)),
     "diffusion must be > 0 and finite"),
    ("poisson of halves", lambda: fokker.glm(X, Y + 0.5, "poisson"), r"counts y >= 0, whole numbers, got \d.5"),
    ("poisson below 0", lambda: fokker.glm(X, -Y, "poisson"), "counts y >= 0, whole numbers, got -1"),
    ("words as X", lambda: fokker.glm(X.astype(str), Y), "X must hold real numbers, got dtype <U"),
    ("words as y", lambda: fokker.glm(X, Y.astype(str), "gaussian"), "y must hold real numbers"),
    ("scale", lambda: fokker.glm(X, Y, prior_scale="wide"), "must be > 0, got 'wide' and 1.0"),
]  # fmt: skip
SCHEDULED = [
    fokker.sgld, fokker.sghmc, fokker.sgnht, fokker.psgld, fokker.sgfs, fokker.sggmc, fokker.gsgnht,
    lambda **given: fokker.sgrld(metric=metric, **given), lambda **given: fokker.sgrhmc(metric=metric, **given),
]  # fmt: skip


@pytest.mark.parametrize("make, message", [s[1:] for s in SETTINGS], ids=[s[0] for s in SETTINGS])
def test_settings_are_checked_where_they_are_given(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("kernel", SCHEDULED)
def test_a_schedule_is_a_function(kernel):
    with pytest.raises(InputError, match=r"schedule must be a function iteration -> factor of the step, got 0\.5"):
        kernel(step_size=0.1, schedule=0.5)
    with pytest.raises(InputError, match=r"schedule is the class cyclical; .*fokker.cyclical\("):
        kernel(step_size=0.1, schedule=fokker.cyclical)
    assert kernel(step_size=0.1, schedule=lambda t: 0.5).schedule(0) == 0.5


NOISY = fokker.minibatch("diagonal")
SHAPES = [
    ("sgld", fokker.sgld(1e-3, diffusion=THREE), {}),
    ("sgld, one for all", fokker.sgld(1e-3, diffusion=np.ones(1)), {}),
    ("sgld, matrix", fokker.sgld(1e-3, diffusion=np.eye(3)), {}),
    ("sghmc, friction", fokker.sghmc(1e-3, friction=THREE), {}),
    ("sghmc, mass", fokker.sghmc(1e-3, mass=np.eye(3)), {}),
    ("sgnht, mass", fokker.sgnht(1e-3, mass=THREE), {}),
    ("hmc, mass", fokker.hmc(1e-3, mass=THREE), {}),
    ("sgfs, injected", fokker.sgfs(1e-3, injected=np.eye(3)), {"gradient": NOISY}),
    ("sgfs, precision", fokker.sgfs(1e-3, precision=THREE), {"gradient": NOISY}),
    ("sgrhmc, friction", fokker.sgrhmc(1e-3, metric, friction=THREE), {}),
    ("sggmc, friction", fokker.sggmc(1e-3, friction=THREE), {}),
]


@pytest.mark.parametrize("kernel, more", [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_settings_by_coordinate_fit_the_parameters(kernel, more):
    with pytest.raises(InputError, match=r"a \(4,\) diagonal or a \(4, 4\) matrix for .* got shape \((1|3)"):
        fokker.sample(GLM, kernel, **QUIET, **more)


def test_a_friction_on_a_manifold_fits_its_points():
    """Which are more than the parameters on a ball, the shadow of a sphere."""
    target = fokker.Target(lambda p: -jnp.sum(p**2), None, space=fokker.Ball(3), start=THREE / 3)
    fokker.sample(target, fokker.sggmc(1e-3, friction=np.ones(4)), **QUIET)
    with pytest.raises(InputError, match=r"a \(4, 4\) matrix for the entries of a point of the space"):
        fokker.sample(target, fokker.sggmc(1e-3, friction=THREE), **QUIET)


@dataclasses.dataclass(frozen=True)
class Unbound:
    step_size: float = 0.1


class Foreign:
    """As a sampler of another library: functions, not settings."""

    init = step = bind = staticmethod(lambda *given: None)


SPARSE = {"a": np.zeros(2), "b": np.zeros((0, 2))}
BIG = np.full(60, 2**40 + 5)
WIDE = np.where(np.arange(60) == 50, 1e39, 1.0)
REFUSED = [
    # how long, how many
    ("half a row", dict(batch_size=10.5), "batch_size must be >= 1, a whole number or None; got 10.5"),
    ("rows in words", dict(batch_size="10"), "batch_size must be >= 1, a whole number or None; got '10'"),
    ("no rows a step", dict(batch_size=0), "batch_size must be >= 1"),
    ("chains as a switch", dict(chains=True), "chains must be a whole number >= 1, got True"),
    ("draws in words", dict(draws="5"), "draws must be a whole number >= 1, got '5'"),
    ("draws in words, no warm-up given", dict(draws="5", warmup=None), "draws must be a whole number >= 1, got '5'"),
    ("warm-up in words", dict(warmup="5"), "warmup must be a whole number >= 0, got '5'"),
    ("half a warm-up", dict(warmup=0.5), "warmup must be a whole number >= 0, got 0.5"),
    ("thin in words", dict(thin="2"), "thin must be a whole number >= 1, got '2'"),
    ("half a thinning", dict(thin=2.0), "thin must be a whole number >= 1, got 2.0"),
    ("chains in words", dict(chains="2"), "chains must be a whole number >= 1, got '2'"),
    ("seed in words", dict(seed="1"), "seed must be a whole number, got str"),
    ("half a seed", dict(seed=1.0), "seed must be a whole number, got float"),
    ("exactness in words", dict(sd_error="2 %"), "sd_error must be > 0 and finite, got '2 %'"),
    ("exactness of 4", dict(sd_error=4), "sd_error must be below 1, got 4"),
    ("exactness of a given step", dict(sd_error=0.02), "sd_error was given, .* but sgld has its step size; leave sd_"),
    ("exactness of what is exact", dict(kernel=fokker.gmc(), sd_error=0.02), "but gmc leaves the density as it is"),
    ("overwriting in words", dict(overwrite="no"), "overwrite must be True or False, got 'no'"),
    ("progress in words", dict(progress="no"), "progress must be True or False, got 'no'"),
    ("half a draw", dict(draws=2.5), "draws must be a whole number >= 1, got 2.5"),
    ("seed below 0", dict(seed=-1), r"seed must lie between 0 and 2\*\*64 - 1, got -1"),
    ("seed too large", dict(seed=2**64), "got 18446744073709551616; others would be taken modulo"),
    ("seed as a switch", dict(seed=True), "seed must be a whole number, got bool"),
    ("seed as a key", dict(seed=jax.random.key(0)), "a JAX key is not needed"),
    ("dtype that is none", dict(dtype=np.dtype("float64")), "dtype must be 'float32' or 'float64'"),
    # methods
    ("class of kernel", dict(kernel=fokker.sgld), r"kernel is the class sgld; call it: fokker.sgld\(\)"),
    ("class of gradient", dict(gradient=fokker.minibatch),
     r"gradient is the class minibatch; call it: fokker.minibatch\(\)"),
    ("another library", dict(kernel=Foreign()),
     "kernel must be settings such as fokker.sgld.*got Foreign; .*other libraries"),
    ("a name", dict(kernel="sgld"), r"kernel must be settings such as fokker.sgld\(\).*got str"),
    ("settings of nothing", dict(kernel=Unbound()), "a dataclass with a method bind, got Unbound"),
    ("gradient as kernel", dict(kernel=fokker.svrg()),
     "kernel is an estimator of gradients, svrg; pass it as gradient="),
    ("kernel as gradient", dict(gradient=SGLD), r"it is sgld; try fokker.minibatch\(\)"),
    ("schedule of nothing", dict(kernel=fokker.sgld(0.1, schedule=lambda: 1.0)),
     "schedule could not be evaluated at an iter"),
    ("schedule of arrays", dict(kernel=fokker.sgld(0.1, schedule=lambda t: THREE)),
     "schedule must return one number"),
    ("centre", dict(gradient=fokker.control_variates(np.full(4, np.nan))), "the centre is not finite; leave it out"),
    # functions of the target
    ("tuple of a prior", dict(target=normal(lambda p: (0.0, 1.0))), "log_prior must return one array, got a tuple"),
    ("prior of nothing", dict(target=normal(lambda p: None)), "log_prior must return one array, got a NoneType"),
    ("prior that asks", dict(target=normal(lambda p: p > 0)), "log_prior must return floating numbers, got bool"),
    ("tuple of a likelihood", dict(target=fokker.Target(lambda p: 0.0, lambda p, y: (y * p, 1), Y, start=0.0)),
     "log_likelihood must return one array, got a tuple"),
    ("likelihood of counts", dict(target=fokker.Target(lambda p: 0.0, lambda p, y: jnp.int32(y), Y, start=0.0)),
     "log_likelihood must return floating numbers, got int32, which has no gradient"),
    ("tuple of a density", dict(target=fokker.Target.from_log_density(lambda p: (p, p), start=0.0)),
     "the log density must return one array, got a tuple"),
    # names and shapes
    ("a parameter draw", dict(target=density(["draw"]), init={"draw": 0.0}),
     "cannot be called 'draw', .* an axis of the dr"),
    ("a parameter chain", dict(target=density(["chain"]), init={"chain": 0.0}), "cannot be called 'chain'"),
    ("a parameter like an axis", dict(target=density(["a", "a_dim_0"]), init={"a": np.zeros(2), "a_dim_0": 0.0}),
     "cannot be called 'a_dim_0'"),
    ("one name twice", dict(target=density(["a.b"]), init={"a.b": 0.0, "a": {"b": 0.0}}),
     "2 parameters would be called 'a.b'"),
    ("a leaf of nothing", dict(target=density(["a", "b"]), init=SPARSE),
     r"b has shape \(0, 2\), which has no entries"),
    # starts
    ("three of four", dict(init=[{"beta": np.zeros(4)}] * 3, chains=4), "a list of 3 starts for 4 chains"),
    ("three scalars of four", dict(target=SCALAR, kernel=HMC, init=[1.0, 2.0, 3.0], chains=4),
     "a list of 3 starts for 4"),
    ("one of two", dict(init=[{"beta": np.zeros(4)}]), "a list of 1 starts for 2 chains"),
    ("an empty list", dict(init=[]), "the parameters have no entries"),
    ("a start too large", dict(init={"beta": np.full(4, 1e39)}),
     "start of chain 0 has values that are not finite in float32"),
    # data
    ("large integers", dict(target=normal(data={"id": BIG})),
     r"data\['id'\] has values .* which int32 does not hold; .*float64"),
    ("large naturals", dict(target=normal(data=BIG.astype(np.uint64))),
     "data has values .* which uint32 does not hold"),
    ("large numbers", dict(target=normal(data={"x": WIDE})),
     r"data\['x'\] has values from 1 to 1e\+39, which float32 .*scale"),
    # batches
    ("order", dict(batches="nonsense"), "batches must be 'epochs' or 'independent', got 'nonsense'"),
    ("order without batches", dict(kernel=HMC, batches="epochs"),
     "batches was given, but hmc uses all rows in every step"),
    ("epochs compensated", dict(gradient=fokker.minibatch("diagonal"), batches="epochs"),
     r"batches='epochs' was given with noise='diagonal'.*Leave batches out, or take minibatch\(noise='none'\)"),
    ("no batches to share", dict(kernel=HMC, share_batches=True), "share_batches was given, but hmc uses all rows"),
    ("order without rows", dict(target=SCALAR, init=0.0, batches="epochs"),
     "batches was given, but the target has no rows"),
    ("no rows to share", dict(target=SCALAR, init=0.0, share_batches=True),
     "share_batches was given, but the target has no"),
    ("sharing in words", dict(share_batches="no"), "share_batches must be True or False, got 'no'"),
    ("order of an iterator", dict(target=normal(data=fokker.IteratorSource([Y], 60)), batches="epochs"),
     "batches of an iterator come in its own order; leave batches out"),
]  # fmt: skip


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("given, message", [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_run_is_refused_before_it_begins(tmp_path, given, message, stored):
    arguments = {"target": GLM, "kernel": SGLD, **QUIET, **given}
    target, kernel = arguments.pop("target"), arguments.pop("kernel")
    store = tmp_path / "run.zarr" if stored else None
    with pytest.raises(InputError, match=message):
        fokker.sample(target, kernel, **arguments, store=store)
    assert not any(tmp_path.iterdir())


ON_DISK = [
    ("order", np.float32, {}, dict(batches="nonsense"), "'epochs' or 'independent', got 'nonsense'"),
    ("independent", np.float32, {}, dict(batches="independent"),
     "needs rows in memory, those on disk are read in epochs"),
    ("large integers", np.int64, {0: 2**40}, {}, "data has values .* which int32 does not hold"),
    ("large integers, seen late", np.int64, {50: 2**40}, {}, "data has values .* which int32 does not hold"),
    ("large numbers, seen late", np.float64, {50: -1e39}, {},
     r"data has values from -1e\+39 to 0, which float32 does not"),
]  # fmt: skip


@pytest.mark.parametrize("dtype, values, given, message", [o[1:] for o in ON_DISK], ids=[o[0] for o in ON_DISK])
def test_rows_on_disk_are_refused_too(tmp_path, dtype, values, given, message):
    rows = np.zeros(60, dtype)
    for at, value in values.items():
        rows[at] = value
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(InputError, match=message):
        fokker.sample(normal(data=tmp_path / "rows.npy"), SGLD, **QUIET | given)


# --- what is not refused --------------------------------------------------------------------------------------------


def finite(*given, **more):
    values = np.asarray(fokker.sample(*given, **{**QUIET, **more}).draws["theta"])
    assert np.isfinite(values).all()
    return values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_flat_prior_is_a_zero_of_any_kind(dtype):
    kernel = fokker.sgld(0.01)
    want = finite(normal(lambda p: jnp.zeros((), dtype)), kernel, dtype=dtype)
    for zero in (0, 0.0, np.float64(0), np.zeros((), int)):
        flat = normal(lambda p, zero=zero: zero)
        assert (finite(flat, kernel, dtype=dtype) == want).all()
    finite(normal(lambda p: 0), HMC, dtype=dtype)


def test_a_flat_prior_does_where_a_run_chooses_for_itself():
    finite(normal(lambda p: 0), fokker.sgld(), gradient=fokker.control_variates())


STARTS = [
    ("one", SCALAR, [np.ones(3)], 1, [np.ones(3)]),
    ("scalars", SCALAR, [1.0, -1.0], 2, [1.0, -1.0]),
    ("one scalar", SCALAR, [1.0], 1, [1.0]),
    ("scalars under a flat prior", normal(), [1.0, -1.0], 2, [1.0, -1.0]),
    ("arrays", SCALAR, [np.ones(3), -np.ones(3)], 2, [np.ones(3), -np.ones(3)]),
]


@pytest.mark.parametrize("target, init, chains, want", [s[1:] for s in STARTS], ids=[s[0] for s in STARTS])
def test_a_list_of_starts_has_one_for_each_chain(target, init, chains, want):
    draws = finite(target, fokker.sgld(1e-12), init=init, chains=chains, warmup=0)
    np.testing.assert_allclose(draws[:, 0], want, atol=1e-3)


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_a_list_may_be_the_parameters(chains):
    """Also with as many entries as there are chains, and all of one shape: the target tells."""
    scalars = fokker.Target.from_log_density(lambda p: -(p[0] ** 2) - p[1] ** 2)
    layers = fokker.Target.from_log_density(lambda p: -sum(jnp.sum(layer["w"] ** 2) for layer in p))
    for target, init, names in (
        (scalars, [1.0, -1.0], ["0", "1"]),
        (layers, [{"w": np.ones(2)}, {"w": -np.ones(2)}], ["0.w", "1.w"]),
    ):
        run = fokker.sample(target, fokker.sgld(1e-12), init=init, **{**QUIET, "chains": chains, "warmup": 0})
        assert list(run.draws) == names
        np.testing.assert_allclose(run.draws[names[1]], -1, atol=1e-3)


def test_every_other_door_refuses_what_it_cannot_count(tmp_path):
    run = fokker.sample(GLM, SGLD, **QUIET, store=tmp_path / "run.zarr")
    for call, message in (
        (lambda: fokker.resume(tmp_path / "run.zarr", GLM, SGLD, draws="5"), "draws must be >= 1, a whole .* got '5'"),
        (lambda: fokker.resume(5, GLM, SGLD), "opened by the path of its folder, got int"),
        (lambda: fokker.open(None), "opened by the path of its folder, got NoneType"),
        (lambda: fokker.sample(GLM, SGLD, **QUIET, store=5), "store must be the path of a folder, got int"),
        (lambda: run.audit(seed="1"), "seed must be >= 0, a whole number; got '1'"),
        (lambda: run.audit(seconds="5"), "seconds must be a number > 0, got '5'"),
        (lambda: run.plot_trace(entries="6"), "entries must be >= 1, a whole number; got '6'"),
        (lambda: fokker.IteratorSource([Y], "60"), "size must be >= 1, a whole number or None; got '60'"),
        (lambda: fokker.array_source({"y": Y}, pool_bytes="64"), "pool_bytes must be >= 1, a whole number; got '64'"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert run.summary("beta").equals(run.summary(["beta"]))


def test_whole_numbers_may_be_those_of_numpy(tmp_path):
    arguments = {**QUIET, "chains": np.int64(2), "draws": np.int32(3), "warmup": np.int16(2), "thin": np.uint8(1)}
    whole = dict(seed=np.uint64(2**64 - 1), batch_size=np.int64(10), share_batches=np.bool_(True))
    kernel = fokker.sghmc(1e-3, resample_momentum=np.int64(2), schedule=fokker.cyclical(np.int64(10)))
    gradient = fokker.svrg(refresh_every=np.int32(2), chunk=np.int64(50))
    run = fokker.sample(GLM, kernel, gradient=gradient, **arguments, **whole, store=tmp_path / "run.zarr")
    again = fokker.sample(
        GLM, fokker.sghmc(1e-3, resample_momentum=2, schedule=fokker.cyclical(10)),
        gradient=fokker.svrg(refresh_every=2, chunk=50), **QUIET, seed=2**64 - 1, batch_size=10, share_batches=True,
    )  # fmt: skip
    assert (np.asarray(run.draws["beta"]) == np.asarray(again.draws["beta"])).all()
    fokker.sample(GLM, fokker.hmc(1e-2, leapfrog_steps=np.int64(2)), **QUIET)


def test_random_starts_take_the_largest_seed():
    finite(SCALAR, HMC, init=lambda key: jax.random.normal(key, (2,)), seed=2**64 - 1)


def test_what_float32_does_not_hold_float64_does():
    likelihood = lambda p, n: -1.0 * (n == 2**40 + 5) * (p - 1) ** 2
    offset = fokker.Target(lambda p: -(p**2), likelihood, BIG, start=np.zeros(()))
    draws = fokker.sample(offset, HMC, **{**QUIET, "draws": 50}, dtype="float64").draws["theta"]
    assert float(draws[:, 10:].mean()) > 0.5  # the rows count only where the integer is whole
    finite(normal(data=np.where(WIDE > 1, 1e38, 1.0) * 1e-38), SGLD)


def test_a_batch_of_the_default_size_is_no_larger_than_the_data(tmp_path):
    np.save(tmp_path / "rows.npy", Y)
    finite(normal(data=tmp_path / "rows.npy"), SGLD, batches="epochs")


def test_the_columns_of_a_data_frame_name_the_coefficients():
    import pandas as pd

    frame = pd.DataFrame({"age": [0.0, 1.0, 2.0], "income": [1.0, 0.0, 1.0]})
    assert fokker.glm(frame, np.array([0, 1, 1])).labels == {"beta": ["age", "income", "intercept"]}
