"""What a run chooses that is told nothing: gradient, thinning, warm-up; and that its draws can be trusted."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.errors import StoreError
from fokker.run import choose
from fokker.run.choose import MOST_THIN, WORTH_IT, choose_thin
from fokker.run.tune import tune
from tests.run.test_tune import a_plan, silent

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((2000, 3)).astype(np.float32)
TARGET = fokker.glm(ROWS, ROWS @ np.float32([1, -1, 0.5]) + RNG.standard_normal(2000), "gaussian", intercept=False)
QUIET = dict(progress=False, chains=2, draws=60)


def beta(run):
    return np.asarray(run.draws["beta"])


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    path = tmp_path_factory.mktemp("bare") / "run.zarr"
    return path, fokker.sample(TARGET, store=path, **QUIET)


def test_control_variates_and_nearly_independent_draws_are_chosen(bare):
    _, run = bare
    chosen = run.settings["chosen"]
    assert run.settings["gradient"]["name"] == chosen["gradient"] == "control_variates"
    assert chosen["why"]["gain_of_control_variates"] > WORTH_IT
    assert "control variates" in chosen["why"]["words"][0]
    assert run.settings["thin"] == chosen["thin"] == np.ceil(chosen["why"]["predicted_autocorrelation_time"])
    assert run.settings["warmup"] == 60 * run.settings["thin"]
    assert abs(chosen["why"]["predicted_sd_error"]) <= 0.01


def test_a_run_that_was_told_nothing_resumes_to_the_same_bits(bare):
    path, run = bare
    more = fokker.resume(path, TARGET, draws=90, progress=False)
    assert (beta(more)[:, :60] == beta(run)).all()
    explicit = fokker.sample(
        TARGET, more._plan.kernel, gradient=more._plan.gradient, init=[{"beta": s} for s in more._plan.starts],
        thin=run.settings["thin"], warmup=run.settings["warmup"], **QUIET | dict(draws=90),
    )  # fmt: skip
    assert (beta(more) == beta(explicit)).all()
    with pytest.raises(StoreError, match=r"gradient=fokker.control_variates\(...\), now it is svrg"):
        fokker.resume(path, TARGET, gradient=fokker.svrg(), draws=120, progress=False)


def test_what_is_given_is_kept():
    run = fokker.sample(TARGET, gradient=fokker.minibatch(), thin=1, warmup=5, **QUIET)
    assert [run.settings[name] for name in ("thin", "warmup")] == [1, 5]
    assert run.settings["gradient"]["name"] == "minibatch" and set(run.settings["chosen"]) == {
        "kernel",
        "why",
        "starts",
    }
    run = fokker.sample(TARGET, fokker.sgld(step_size=1e-4), **QUIET)  # not tuned: nothing is chosen
    assert [run.settings[name] for name in ("thin", "warmup")] == [1, 60]
    assert run.settings["gradient"]["name"] == "minibatch" and run.settings["chosen"] == {}


def test_where_batches_are_all_rows_control_variates_gain_nothing():
    run = fokker.sample(TARGET, batch_size=2000, **QUIET)
    assert run.settings["gradient"]["name"] == "minibatch"
    assert run.settings["chosen"]["why"]["gain_of_control_variates"] == pytest.approx(1, abs=0.01)


def test_gradients_that_were_compared_are_not_compared_again_in_the_advice(monkeypatch):
    """A gain that is not worth its price is told once, with the price; noise that limits the step asks for rows."""
    monkeypatch.setattr(choose, "WORTH_IT", np.inf)
    why = tune(a_plan(TARGET, fokker.sghmc(), batch_size=20, draws=500), silent, None, ["gradient"])[1]["why"]
    assert why["gain_of_control_variates"] > 1.5 and "at twice the work" in why["words"][0]
    assert "a larger batch_size=" in why["advice"] and "control_variates()" not in why["advice"]


def test_thinning_follows_the_autocorrelation_time_as_far_as_costs_allow(bare):
    plan = bare[1]._plan
    assert choose_thin(plan, 6.2).thin == 7 and choose_thin(plan, 0.4).thin == 1
    assert choose_thin(plan, 1e9).thin == MOST_THIN
    large = dataclasses.replace(plan, batch_size=10**7, draws=1000)
    assert choose_thin(large, 1e9).thin < 100
    changing = dataclasses.replace(plan, thin=1, kernel=fokker.sgld(1e-3, schedule=fokker.cyclical(100)))
    assert choose_thin(changing, 50.0).thin == 1


# The laws above on posteriors that people meet; the audit is the judge, several seeds.


def logistic():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 5))
    return fokker.glm(X, rng.random(100_000) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.25, 0.0, 0.0])), "bernoulli")


def poisson():
    rng = np.random.default_rng(1)
    X = 0.5 * rng.standard_normal((500, 5))
    return fokker.glm(X, rng.poisson(np.exp(0.5 + X @ [0.5, -0.5, 0.25, 0.0, 0.3])), "poisson")


def heavy_tails():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((2000, 8)).astype(np.float32)
    y = (X @ np.linspace(-1, 1, 8) + 0.5 * rng.standard_t(4, 2000)).astype(np.float32)

    def log_likelihood(p, rows):
        z = (rows["y"] - rows["X"] @ p["slope"]) * jnp.exp(-p["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4) - p["log_scale"]

    return fokker.Target(
        lambda p: -0.005 * jnp.sum(p["slope"] ** 2) - 0.5 * p["log_scale"] ** 2,
        log_likelihood, {"X": X, "y": y}, start={"slope": np.zeros(8), "log_scale": np.array(0.0)},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("target", [logistic, poisson, heavy_tails])
def test_the_shortest_call_ends_in_draws_that_can_be_trusted(target, seed):
    audit = fokker.sample(target(), seed=seed, progress=False).audit(seconds=60)
    assert audit.verdict == "green", audit


def test_the_shortest_call_on_a_small_posterior_is_green():
    audit = fokker.sample(poisson(), progress=False).audit(seconds=60)
    assert audit.verdict == "green", audit
