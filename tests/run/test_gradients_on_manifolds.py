"""The noise of gradients on manifolds: its tangent part is what is estimated, and what a step compensates."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fokker
from fokker.errors import InputError, SpaceError
from fokker.geodesic.tangent import noise_at
from fokker.manifolds.product import product
from fokker.sgmcmc.matrix import LowRank
from fokker.target import Target

RNG = np.random.default_rng(0)
Z = (RNG.standard_normal((400, 4)) * [3.0, 1.0, 0.3, 0.1]).astype(np.float32)
X = np.array([0.6, 0.8, 0.0, 0.0], np.float32)
ROWS = Target(lambda x: jnp.zeros(()), lambda x, rows: jnp.tanh(rows @ x), Z, space=fokker.Sphere(4), start=X)
P = np.eye(4) - np.outer(X, X)


def per_row(x, rows):
    return rows / np.cosh(rows @ x)[:, None] ** 2


@pytest.mark.parametrize("centred", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_form_is_of_the_tangent_part(centred):
    """Against NumPy: N^2 / n (1 - n / N) times the covariance of projected row gradients, trace over the dimension."""
    batch, centre = Z[:100], np.array([1.0, 0, 0, 0], np.float32)
    each = per_row(X, batch) - (per_row(centre, batch) if centred else 0)
    S = np.cov((each @ P).T) * 400**2 / 100 * (1 - 100 / 400)
    want = {"scalar": np.trace(S) / 3, "diagonal": np.diag(S), "dense": S, "low_rank": S}
    space = product(ROWS.space, jnp.zeros(4))
    for form, V in want.items():
        kind = fokker.control_variates(centre, form, rank=4) if centred else fokker.minibatch(form, rank=4)
        bound = kind.bind(ROWS)
        noise = bound.estimate(None, jnp.asarray(X), jnp.asarray(batch), bound.init(jnp.asarray(X)))[1]
        got = noise_at(space, jnp.asarray(X), noise)
        got = got.factor @ got.factor.T if isinstance(got, LowRank) else got
        assert_allclose(got, V, rtol=3e-4, atol=3e-4 * np.trace(S))


@pytest.mark.parametrize(
    "noise",
    [jnp.ones(()), jnp.ones(3), jnp.eye(3), LowRank(jnp.eye(3))],
    ids=["scalar", "diagonal", "dense", "low_rank"],
)
def test_on_a_hyperboloid_no_form_of_it_is_compensated(noise):
    """Its metric is not that of R^n: a trace of entries is no noise of the chain."""
    with pytest.raises(SpaceError, match="pass noise='none'"):
        noise_at(product(fokker.Hyperboloid(2), jnp.zeros(3)), jnp.array([1.0, 0.0, 0.0]), noise)


@pytest.mark.slow
def test_more_noise_than_is_injected_names_the_largest_step():
    noisy = fokker.minibatch("dense")
    with pytest.raises(InputError, match=r"Take a step of at most \d") as caught:
        fokker.sample(ROWS, fokker.sggmc(0.05), gradient=noisy, batch_size=50, draws=20, progress=False)
    largest = float(str(caught.value).split("a step of at most ")[1].split(",")[0])
    assert 1e-6 < largest < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("form", ["none", "scalar", "diagonal", "dense", "low_rank"])
@pytest.mark.parametrize("estimator", ["minibatch", "control_variates", "svrg"])
@pytest.mark.parametrize("space", ["sphere", "simplex"])
def test_every_estimator_runs_and_has_the_right_law(estimator, form, space):
    """Small steps: E of the posterior to three standard errors and one in twenty of an sd."""
    if space == "sphere":
        z = (Z / np.linalg.norm(Z, axis=1, keepdims=True) + [1, 0, 0, 0]).astype(np.float32)
        target = Target(lambda x: 0.0, lambda x, rows: rows @ x, z, space=fokker.Sphere(4), start=X)
        total = z.astype(float).sum(0)  # of a von Mises-Fisher law
        length = np.linalg.norm(total)
        truth = fokker.vmf.mean_length(4, length) * total / length
    else:
        kinds = np.repeat(np.arange(3), [100, 180, 120]).astype(np.int32)
        of_rows, start = lambda t, rows: jnp.log(t)[rows], np.ones(3) / 3
        target = Target(lambda t: 0.0, of_rows, kinds, space=fokker.Simplex(3), start=start)
        truth = np.array([101, 181, 121]) / 403
    gradient = getattr(fokker, estimator)(noise=form)
    run = fokker.sample(
        target, fokker.sggmc(2e-3, friction=60.0), gradient=gradient, batch_size=100, draws=1500, warmup=500, thin=10,
        chains=2, progress=False,
    )  # fmt: skip
    x = np.asarray(run.draws["theta"], float)
    n = float(run.summary()["ess_bulk"].min())
    off = np.abs(x.mean((0, 1)) - truth) / x.std((0, 1))
    assert off.max() < 4 / np.sqrt(n) + 0.15, off
    assert float(run.stats["noise_share"].max()) <= 1
