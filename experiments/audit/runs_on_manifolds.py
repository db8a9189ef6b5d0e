"""Fourteen runs on manifolds whose posterior is known without sampling: six that are right, eight broken in eight ways.

Truth: closed form (von Mises-Fisher, Dirichlet, normal and gamma), quadrature (Bingham on the sphere), and importance
sampling from uniform frames (matrix Langevin).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad

from experiments.audit.runs import Case, Posterior, scaled
from fokker.geodesic.gmc import gmc
from fokker.geodesic.gsgnht import gsgnht
from fokker.geodesic.sggmc import sggmc
from fokker.manifolds.constrained import Positive
from fokker.manifolds.simplex import Simplex
from fokker.manifolds.sphere import Sphere
from fokker.manifolds.stiefel import Stiefel
from fokker.numeric.vmf import mean_length
from fokker.run.gradients import control_variates, minibatch
from fokker.target import Target

# --- posteriors -----------------------------------------------------------------------------------------------------

KAPPA = 4.0


@cache
def direction() -> Posterior:
    """The mean direction of 2,000 unit vectors in R^5 under a uniform prior, whose scatter differs by axis."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((2000, 5)) * [0.3, 1.0, 0.1, 0.5, 0.05] + [1.5, 0.5, 0, 0, 0]
    z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    total = KAPPA * z.astype(float).sum(0)
    k = np.linalg.norm(total)
    mu, A = total / k, float(mean_length(5, k))
    along = 1 - A**2 - 4 * A / k
    target = Target(lambda x: jnp.zeros(()), lambda x, rows: KAPPA * rows @ x, z, space=Sphere(5), start=mu)
    return Posterior(target, A * mu, np.sqrt(along * mu**2 + A / k * (1 - mu**2)))


@cache
def shares() -> Posterior:
    """Shares of five kinds after 2,000 of them were seen, under a flat prior."""
    kinds = np.random.default_rng(2).choice(5, 2000, p=[0.35, 0.3, 0.2, 0.1, 0.05]).astype(np.int32)
    alpha = 1 + np.bincount(kinds, minlength=5)
    mean, total = alpha / alpha.sum(), alpha.sum()
    target = Target(
        lambda t: jnp.zeros(()), lambda t, rows: jnp.log(t)[rows], kinds, space=Simplex(5), start=np.full(5, 0.2)
    )
    return Posterior(target, mean, np.sqrt(mean * (1 - mean) / (total + 1)))


@cache
def frames() -> Posterior:
    """Matrix Langevin with concentrations 4 and 2 on frames of two vectors in R^4."""
    F = np.zeros((4, 2))
    F[0, 0], F[1, 1] = 4.0, 2.0
    rng = np.random.default_rng(3)
    Q, R = np.linalg.qr(rng.standard_normal((400_000, 4, 2)))
    x = Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None]
    weight = np.exp((x * F).sum((1, 2)))
    weight /= weight.sum()
    x = x.reshape(len(x), -1)
    mean = weight @ x
    target = Target(lambda X: jnp.sum(jnp.asarray(F, X.dtype) * X), None, space=Stiefel(4, 2), start=np.eye(4, 2))
    return Posterior(target, mean, np.sqrt(weight @ (x - mean) ** 2))


@cache
def mixed() -> Posterior:
    """A direction, a mean and a precision: von Mises-Fisher rows beside normal ones with a conjugate prior."""
    rng, N, kappa = np.random.default_rng(4), 1000, 6.0
    z = rng.standard_normal((N, 3)) + [1.0, 0, 1.0]
    z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    y = (5 + 2 * rng.standard_normal(N)).astype(np.float32)
    y64 = y.astype(float)
    total = kappa * z.astype(float).sum(0)
    k = np.linalg.norm(total)
    mu, A = total / k, float(mean_length(3, k))
    shape, rate = (N - 1) / 2 + 1, 0.5 * ((y64 - y64.mean()) ** 2).sum() + 1  # exp(-precision) as prior, flat in mean

    def rows(p: Any, batch: Any) -> Any:
        of_y = 0.5 * jnp.log(p["precision"]) - 0.5 * p["precision"] * (batch["y"] - p["mean"]) ** 2
        return of_y + kappa * batch["z"] @ p["direction"]

    target = Target(
        lambda p: -p["precision"],
        rows,
        {"y": y, "z": z},
        space={"direction": Sphere(3), "precision": Positive()},
        start={"direction": mu, "mean": np.float32(5), "precision": np.float32(0.25)},
    )
    around = np.sqrt((1 - A**2 - 2 * A / k) * mu**2 + A / k * (1 - mu**2))
    of_mean = np.sqrt(rate / (shape - 1) / N)
    return Posterior(
        target,
        np.concatenate([A * mu, [y64.mean(), shape / rate]]),
        np.concatenate([around, [of_mean, np.sqrt(shape) / rate]]),
    )


def bingham(kappa: float) -> Posterior:
    """exp(kappa x_0^2) on the sphere in R^3: two modes, at the poles."""
    density = lambda t: np.exp(kappa * (t * t - 1))
    second = quad(lambda t: t * t * density(t), -1, 1)[0] / quad(density, -1, 1)[0]
    start = np.array([0.9, 0.3, np.sqrt(1 - 0.9)])
    target = Target(lambda x: kappa * x[0] ** 2, None, space=Sphere(3), start=start)
    return Posterior(target, np.zeros(3), np.sqrt([second, (1 - second) / 2, (1 - second) / 2]))


@cache
def shallow() -> Posterior:
    return bingham(2.0)


@cache
def poles() -> Posterior:
    return bingham(40.0)


# --- the runs -------------------------------------------------------------------------------------------------------

LONG = {"draws": 2000, "warmup": 4000, "thin": 30}
INDEPENDENT = {**LONG, "batches": "independent"}

RIGHT = (
    Case(
        "sggmc, tuned, control variates", "", mixed, sggmc(), {"draws": 2000, "gradient": control_variates(), "thin": 8}
    ),
    Case(
        "sggmc, large batch, sphere",
        "",
        direction,
        sggmc(5e-4, friction=300.0),
        {**LONG, "thin": 60, "batch_size": 500},
    ),
    Case(
        "gsgnht, large batch, sphere",
        "",
        direction,
        gsgnht(5e-4, friction=300.0, inertia=1e-5),
        {**INDEPENDENT, "thin": 60, "batch_size": 500},
    ),
    Case(
        "sggmc, compensated, simplex",
        "",
        shares,
        sggmc(3e-4, friction=200.0),
        {**LONG, "gradient": minibatch("dense"), "batch_size": 200},
    ),
    Case("gmc, tuned, frames", "", frames, gmc(), {"draws": 2000}),
    Case("gmc, both poles", "", shallow, gmc(0.7, leapfrog_steps=4), {"draws": 3000, "warmup": 200}),
)

BROKEN = (
    Case(
        "sggmc, sphere",
        "step too large",
        direction,
        sggmc(0.02, friction=150.0),
        {**LONG, "thin": 5, "batch_size": 2000},
    ),
    Case(
        "gsgnht, sphere",
        "noise that a thermostat hides",
        direction,
        gsgnht(2e-3, friction=20.0, inertia=1e-4),
        {**INDEPENDENT, "batch_size": 50},
    ),
    Case(
        "sggmc, factor 2, sphere",
        "wrong scale N/n",
        direction,
        sggmc(5e-4, friction=300.0),
        {**LONG, "thin": 60, "gradient": scaled(2.0), "batch_size": 1000},
    ),
    Case("sggmc, step lost in rounding", "stuck", direction, sggmc(1e-18), {**LONG, "batch_size": 500}),
    Case("sggmc, poles of a sphere", "one mode of two", poles, sggmc(0.05, friction=5.0), {**LONG, "thin": 10}),
    Case(
        "sggmc, 20 steps a batch",
        "steps_per_batch > 1",
        direction,
        sggmc(5e-4, friction=300.0, steps_per_batch=20),
        {**INDEPENDENT, "thin": 5, "batch_size": 100},
    ),
    Case(
        "sggmc, simplex",
        "too short",
        shares,
        sggmc(5e-5, friction=200.0),
        {"draws": 150, "warmup": 50, "thin": 2, "batch_size": 500},
    ),
    Case(
        "sggmc, batches of 20, simplex",
        "tangent noise not compensated",
        shares,
        sggmc(3e-4, friction=100.0),
        {**INDEPENDENT, "batch_size": 20},
    ),
)
