"""The progress line: the share of gradient noise that it shows, and that it shows it."""

import io

import numpy as np
import pytest
from rich.console import Console

import fokker
from fokker.run import progress
from fokker.run.loop import Chains
from fokker.run.noise_share import BATCHES, noise_share
from fokker.run.plan import make_plan

N, BATCH, EPS = 1000, 20, 1e-4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 2)).astype(np.float32)
Y = (X @ [1.0, -1.0] + RNG.standard_normal(N)).astype(np.float32)
TARGET = fokker.glm(X, Y, "gaussian", intercept=False, names=["a", "b"])


def chains(kernel, share_batches=False, warmup=0):
    plan = make_plan(
        TARGET, kernel, fokker.minibatch(), init=None, draws=10, warmup=warmup, thin=1, chains=2,
        batch_size=BATCH, batches=None, share_batches=share_batches, seed=0, dtype="float32",
    )  # fmt: skip
    return Chains(plan)


def covariance_of_gradient():
    """V at the start, beta = 0: N^2 / n (1 - n / N) times the covariance of the rows' gradients."""
    return N**2 / BATCH * (1 - BATCH / N) * np.cov((X * Y[:, None]).T)


@pytest.mark.parametrize("share_batches", [False, True])
@pytest.mark.parametrize(
    "kernel, friction",
    [
        (fokker.sgld(EPS, diffusion=np.array([[2.0, 0.5], [0.5, 1.0]])), np.linalg.inv([[2.0, 0.5], [0.5, 1.0]])),
        (fokker.sghmc(EPS, friction=np.array([3.0, 5.0])), np.diag([3.0, 5.0])),
        (fokker.sgnht(EPS, diffusion=4.0), 4 * np.eye(2)),
    ],
    ids=["sgld", "sghmc", "sgnht"],
)
def test_the_share_is_eps_v_over_what_is_injected(kernel, friction, share_batches):
    exact = np.mean(EPS / 2 * np.diag(covariance_of_gradient()) / np.diag(friction))
    # four standard deviations of a variance of so many nearly normal numbers, in one dimension
    assert noise_share(chains(kernel, share_batches=share_batches)) == pytest.approx(
        exact, rel=4 * np.sqrt(2 / BATCHES)
    )


def test_no_share_where_none_is_known():
    assert noise_share(chains(fokker.psgld(EPS, adapt_steps=1), warmup=1)) is None
    assert noise_share(chains(fokker.sgnht(EPS, diffusion=np.ones(1), thermostat="leaves"))) is not None


def test_the_line_shows_rate_agreement_and_noise(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_CHECKS", 0.0)
    monkeypatch.setattr(progress, "WORTH_THE_NOISE", 0.0)
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(file=shown, force_terminal=True, width=200))
    fokker.sample(TARGET, fokker.sgld(EPS), batch_size=BATCH, draws=20_000, warmup=100, chains=2, thin=600)
    for words in ("it/s", "R-hat 1.0", "ESS", "of injected"):
        assert words in shown.getvalue()


@pytest.mark.parametrize(
    "gradient",
    [pytest.param(fokker.minibatch(), marks=pytest.mark.slow),
     pytest.param(fokker.control_variates(), marks=pytest.mark.slow), fokker.svrg(50)],
    ids=repr,
)  # fmt: skip
def test_the_noise_of_a_run_in_double_precision_is_looked_at_in_double_precision(monkeypatch, gradient):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_CHECKS", 0.0)
    monkeypatch.setattr(progress, "WORTH_THE_NOISE", 0.0)
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(file=shown, force_terminal=True, width=200))
    settings = {"batch_size": BATCH, "warmup": 10, "chains": 1, "dtype": "float64", "draws": 200}
    thin = 100 if isinstance(gradient, fokker.svrg) else 100_000
    run = fokker.sample(TARGET, fokker.sgld(EPS), gradient=gradient, thin=thin, **settings)
    assert run.state == "complete" and "not known" not in shown.getvalue()


def test_a_noise_that_cannot_be_had_is_said_and_ends_nothing(monkeypatch):
    def broken(chains):
        raise ValueError

    monkeypatch.setattr("fokker.run.noise_share.noise_share", broken)
    assert progress._noise(chains(fokker.sgld(EPS))) == "gradient noise not known (ValueError)"
