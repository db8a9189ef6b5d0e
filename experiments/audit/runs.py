"""Thirty runs whose posterior is known without sampling: ten that are right, twenty that are broken in six ways.

Truth: closed form (linear regression), importance sampling from the Laplace approximation with 100,000 points
(logistic and Poisson regression), and a grid in two dimensions (mixture).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from fokker.linear_models import glm
from fokker.run.gradients import control_variates, minibatch, prior_gradient
from fokker.run.sample import sample
from fokker.sgmcmc.hmc import hmc
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.target import Target


class Posterior(NamedTuple):
    """A target with the truth about it, in the order of the ravelled parameters."""

    target: Target
    mean: np.ndarray  # (d,)
    sd: np.ndarray  # (d,)


@dataclass(frozen=True)
class Case:
    """One run: what is sampled how, and what is wrong with it ("" for nothing)."""

    name: str
    wrong: str
    posterior: Callable[[], Posterior]
    kernel: Any
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, seed: int = 1) -> Any:
        return sample(self.posterior().target, self.kernel, progress=False, seed=seed, **self.settings)


@dataclass(frozen=True)
class scaled:
    """A gradient whose likelihood part is multiplied by a wrong factor, as with N/n mistaken."""

    factor: float
    noise: str = "none"

    def bind(self, target: Target) -> BoundGradient:
        right = minibatch().bind(target)

        def estimate(key: Any, position: Any, batch: Any, aux: Any) -> tuple[Any, Any, Any]:
            grad_u, noise, aux = right.estimate(key, position, batch, aux)
            prior = prior_gradient(target, position)
            return -prior + self.factor * (grad_u + prior), noise, aux

        return BoundGradient(right.init, estimate)


def error_of(run: Any, posterior: Posterior) -> tuple[float, float]:
    """The largest relative error of an sd and the largest error of a mean, in sd, of a run's draws."""
    x = np.concatenate([np.asarray(v, float).reshape(*v.shape[:2], -1) for v in run.draws.data_vars.values()], axis=2)
    x = x.reshape(-1, x.shape[2])
    ratio = x.std(0) / posterior.sd - 1
    shift = (x.mean(0) - posterior.mean) / posterior.sd
    return float(ratio[np.argmax(np.abs(ratio))]), float(shift[np.argmax(np.abs(shift))])


# --- posteriors -----------------------------------------------------------------------------------------------------


@cache
def logistic() -> Posterior:
    """2,000 rows, 5 coefficients, two of the columns correlated."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, 5))
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    y = rng.random(2000) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.3, 0.0, 2.0]))
    return _by_importance(glm(X, y.astype(float), intercept=False))


@cache
def poisson() -> Posterior:
    """1,000 rows, 4 coefficients."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((1000, 3)) * 0.6
    y = rng.poisson(np.exp(X @ [0.8, -0.5, 0.2] + 1.0))
    return _by_importance(glm(X, y, "poisson"))


@cache
def gaussian() -> Posterior:
    """Linear regression with known noise: 5,000 rows, 20 coefficients, condition number about 60."""
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    X = rng.standard_normal((5000, 20)) @ (turn * np.geomspace(0.4, 3.0, 20) @ turn.T)
    y = X @ rng.standard_normal(20) + rng.standard_normal(5000)
    covariance = np.linalg.inv(X.T @ X + np.eye(20) / 100)
    return Posterior(glm(X, y, "gaussian", intercept=False), covariance @ X.T @ y, np.sqrt(np.diag(covariance)))


@cache
def mixture(size: int = 40) -> Posterior:
    """y ~ N(a, 2) / 2 + N(a + b, 2) / 2 with a ~ N(0, 10), b ~ N(0, 1) (Welling & Teh 2011): two modes."""
    rng = np.random.default_rng(4)
    y = np.where(rng.random(size) < 0.5, 0.0, 4.0) + np.sqrt(2) * rng.standard_normal(size)

    def rows(params: Any, batch: Any) -> Any:
        a, b = params[0], params[1]
        return jnp.logaddexp(-((batch["y"] - a) ** 2) / 4, -((batch["y"] - a - b) ** 2) / 4)

    target = Target(
        log_prior=lambda params: -(params[0] ** 2) / 20 - params[1] ** 2 / 18,
        log_likelihood=rows,
        data={"y": y},
        start=np.array([0.0, 4.0]),
    )
    grid = np.stack(np.meshgrid(np.linspace(-3, 7, 501), np.linspace(-8, 8, 801), indexing="ij"), -1).reshape(-1, 2)
    with jax.enable_x64(True):
        data = {"y": jnp.asarray(y)}
        value = np.concatenate(
            [
                np.asarray(jax.vmap(lambda t: target.log_density(t, data))(jnp.asarray(g)))
                for g in np.array_split(grid, 20)
            ]
        )
    weight = np.exp(value - value.max())
    weight /= weight.sum()
    mean = weight @ grid
    return Posterior(target, mean, np.sqrt(weight @ (grid - mean) ** 2))


def _by_importance(target: Target, count: int = 100_000) -> Posterior:
    """Mean and sd with weights from a multivariate t (5) about the mode."""
    with jax.enable_x64(True):
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), target.data)
        d = len(target.start["beta"])
        log_density = jax.jit(lambda beta: target.log_density({"beta": beta}, data))
        grad = jax.jit(jax.grad(log_density))
        mode = minimize(lambda b: -float(log_density(b)), np.zeros(d), jac=lambda b: -np.asarray(grad(b))).x
        covariance = np.linalg.inv(-np.asarray(jax.hessian(log_density)(jnp.asarray(mode))))
        rng = np.random.default_rng(0)
        z = rng.standard_normal((count, d)) / np.sqrt(rng.chisquare(5, (count, 1)) / 5)
        x = mode + z @ np.linalg.cholesky(covariance).T
        many = jax.jit(jax.vmap(log_density))
        value = np.concatenate([np.asarray(many(jnp.asarray(part))) for part in np.array_split(x, 100)])
    log_weight = value + (5 + d) / 2 * np.log1p((z**2).sum(1) / 5)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 0.2 * count
    mean = weight @ x
    return Posterior(target, mean, np.sqrt(weight @ (x - mean) ** 2))


# --- the runs -------------------------------------------------------------------------------------------------------

LONG = {"draws": 2000, "warmup": 5000, "thin": 20}
HMC = {"draws": 1000, "warmup": 200}
CENTRED = control_variates()


def at_mode(posterior: Callable[[], Posterior]) -> Any:
    """A start in the middle of a regression's posterior."""
    return lambda key: {"beta": posterior().mean}


def small_mixture() -> Posterior:
    return mixture(8)


def large_mixture() -> Posterior:
    return mixture(200)


RIGHT = (
    Case(
        "sgld, control variates", "", logistic, sgld(step_size=2e-4), {**LONG, "gradient": CENTRED, "batch_size": 100}
    ),
    Case("sgld, large batch", "", logistic, sgld(step_size=1e-4), {**LONG, "thin": 50, "batch_size": 500}),
    Case("sghmc", "", logistic, sghmc(step_size=3e-3, friction=60.0), {**LONG, "thin": 80, "batch_size": 200}),
    Case("sgnht", "", logistic, sgnht(step_size=3e-3, diffusion=30.0), {**LONG, "thin": 60, "batch_size": 200}),
    Case("hmc", "", logistic, hmc(step_size=0.03, leapfrog_steps=5), HMC),
    Case(
        "sghmc, aboba",
        "",
        gaussian,
        sghmc(step_size=5e-4, friction=150.0, integrator="aboba"),
        {**LONG, "thin": 100, "batch_size": 250},
    ),
    Case(
        "sgld, compensated",
        "",
        poisson,
        sgld(step_size=2e-5),
        {**LONG, "thin": 50, "gradient": minibatch("dense"), "batch_size": 100},
    ),
    Case(
        "sghmc, control variates",
        "",
        poisson,
        sghmc(step_size=4e-3, friction=50.0),
        {**LONG, "gradient": CENTRED, "batch_size": 50},
    ),
    Case(
        "sgld, control variates, 20 d",
        "",
        gaussian,
        sgld(step_size=2e-6),
        {**LONG, "thin": 200, "warmup": 20_000, "gradient": CENTRED, "batch_size": 100},
    ),
    Case("hmc, both modes", "", small_mixture, hmc(step_size=0.4, leapfrog_steps=12), {"draws": 4000, "warmup": 200}),
)

BROKEN = (
    Case(
        "sgld, control variates",
        "step too large",
        logistic,
        sgld(step_size=2e-3),
        {**LONG, "gradient": CENTRED, "batch_size": 100},
    ),
    Case("sghmc", "step too large", gaussian, sghmc(step_size=7e-3, friction=100.0), {**LONG, "batch_size": 1000}),
    Case(
        "sgld, control variates",
        "step too large",
        poisson,
        sgld(step_size=2e-4),
        {**LONG, "gradient": CENTRED, "batch_size": 100},
    ),
    Case(
        "sghmc, euler",
        "step too large",
        logistic,
        sghmc(step_size=1.5e-2, friction=20.0, integrator="euler"),
        {**LONG, "batch_size": 500},
    ),
    Case("sgld, step lost in rounding", "stuck", logistic, sgld(step_size=1e-18), {**LONG, "batch_size": 100}),
    Case("hmc, nothing accepted", "stuck", logistic, hmc(step_size=0.6, leapfrog_steps=8), HMC),
    Case(
        "sghmc, tiny step from the mode",
        "stuck",
        poisson,
        sghmc(step_size=2e-6, friction=50.0),
        {**LONG, "batch_size": 100, "init": at_mode(poisson)},
    ),
    Case(
        "sgld, batches of 50",
        "too noisy",
        logistic,
        sgld(step_size=3e-4),
        {**LONG, "batch_size": 50, "batches": "independent"},
    ),
    Case(
        "sghmc, low friction",
        "too noisy",
        gaussian,
        sghmc(step_size=1e-3, friction=30.0),
        {**LONG, "thin": 50, "batch_size": 250},
    ),
    Case(
        "sgld, batches of 20",
        "too noisy",
        poisson,
        sgld(step_size=5e-5),
        {**LONG, "batch_size": 20, "batches": "independent"},
    ),
    Case(
        "sgnht, uneven noise",
        "too noisy",
        gaussian,
        sgnht(step_size=2e-3, diffusion=10.0),
        {**LONG, "thin": 100, "batch_size": 50, "batches": "independent"},
    ),
    Case("hmc", "one mode of two", mixture, hmc(step_size=0.1, leapfrog_steps=5), {"draws": 2000, "warmup": 200}),
    Case("sgld", "one mode of two", large_mixture, sgld(step_size=1e-3), {**LONG, "batch_size": 100}),
    Case("sghmc", "one mode of two", large_mixture, sghmc(step_size=0.02, friction=10.0), {**LONG, "batch_size": 100}),
    Case(
        "sgld, factor 2",
        "wrong scale N/n",
        logistic,
        sgld(step_size=5e-5),
        {**LONG, "thin": 100, "gradient": scaled(2.0), "batch_size": 500},
    ),
    Case(
        "sghmc, factor 1/2",
        "wrong scale N/n",
        poisson,
        sghmc(step_size=3e-3, friction=60.0),
        {**LONG, "gradient": scaled(0.5), "batch_size": 200},
    ),
    Case(
        "sghmc, factor 0.7",
        "wrong scale N/n",
        gaussian,
        sghmc(step_size=5e-4, friction=150.0, integrator="aboba"),
        {**LONG, "thin": 100, "gradient": scaled(0.7), "batch_size": 250},
    ),
    Case(
        "sgld, control variates",
        "too short",
        gaussian,
        sgld(step_size=2e-6),
        {"draws": 300, "warmup": 20_000, "gradient": CENTRED, "batch_size": 100},
    ),
    Case(
        "sghmc",
        "too short",
        logistic,
        sghmc(step_size=3e-3, friction=60.0),
        {"draws": 200, "warmup": 2000, "batch_size": 200},
    ),
    Case(
        "hmc",
        "too short",
        poisson,
        hmc(step_size=0.01, leapfrog_steps=2),
        {"draws": 40, "warmup": 5, "init": at_mode(poisson)},
    ),
)
