"""fokker's samplers as rows of the bias table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bias.problem import FRICTION, Chain, Problem, Sampler
from fokker import Target, hmc, level_set, psgld, rmhmc, rmld, sgfs, sghmc, sgld, sgnht, sgrhmc, sgrld
from fokker.numeric.random_jax import normal
from fokker.sgmcmc.kernel import BoundGradient

GRADIENT_STREAM = 5  # of random numbers, apart from those of the kernels
LEAPFROG = 10
ADAPT = 500  # steps in which pSGLD learns; they are not counted


@dataclass(frozen=True)
class noisy:
    """The problem's gradient; ``known`` is what the kernel is told of its noise."""

    problem: Problem
    noise: str = "diagonal"

    def bind(self, target: Target) -> BoundGradient:
        def estimate(key: Any, x: Any, batch: Any, aux: Any) -> tuple[Any, Any, Any]:
            p = self.problem
            grad_u = -jax.grad(target.log_prior)(x)
            if p.mode != "exact":
                z = normal(key, x.shape, GRADIENT_STREAM, x.dtype)
                grad_u = grad_u + jnp.asarray(p.V**0.5, x.dtype) * z
            return grad_u, None if p.known is None else jnp.asarray(p.known, x.dtype), aux

        return BoundGradient(lambda x: None, estimate)


def potential(problem: Problem) -> Callable:
    return lambda x: (jnp.asarray(problem.a, x.dtype) * (x - jnp.asarray(problem.mean, x.dtype)) ** 2).sum() / 2


def chain(kernel: Callable[[Problem, float], Any], gradients: int, problem: Problem, eps: float) -> Chain:
    target = Target.from_log_density(lambda x: -potential(problem)(x))
    made = kernel(problem, eps)
    full_data = getattr(made, "full_data", False)
    bound = made.bind(target, None if full_data else noisy(problem))
    return Chain(
        lambda key, x: bound.init(x, key),
        lambda key, state: bound.step(key, state, None)[0],
        lambda state: state.position,
        gradients,
        ours=True,
    )


def row(name: str, kernel: Callable[[Problem, float], Any], linear: bool, gradients: int = 1, **rest: Any) -> Sampler:
    return Sampler("fokker", name, partial(chain, kernel, gradients), linear, **rest)


def metric(problem: Problem) -> Any:
    """The level-set metric of the recipe paper's supplement, with its constants."""
    return level_set(potential(problem))


def momentum(integrator: str) -> Callable:
    return lambda p, eps: sghmc(eps, friction=FRICTION, integrator=integrator)


def thermostat(integrator: str, which: str = "all") -> Callable:
    return lambda p, eps: sgnht(eps, diffusion=FRICTION, thermostat=which, integrator=integrator)


exact = dict(noisy=False, told=False)
SAMPLERS = [
    row("sgld", lambda p, eps: sgld(eps), True),
    row("psgld", lambda p, eps: psgld(eps, adapt_steps=ADAPT), False),
    row("sgfs", lambda p, eps: sgfs(eps, precision=p.a), True, start=0.1, note="given the right precision"),
    row("sghmc euler", momentum("euler"), True),
    row("sghmc symplectic", momentum("symplectic"), True),
    row("sghmc aboba", momentum("aboba"), True),
    row("sghmc baoab", momentum("baoab"), True),
    row("sgnht euler", thermostat("euler"), False),
    row("sgnht symplectic", thermostat("symplectic"), False),
    row("sgnht aboba", thermostat("aboba"), False),
    row("sgnht aboba, a thermostat each", thermostat("aboba", "each"), False),
    row("sgrld, level-set metric", lambda p, eps: sgrld(eps, metric_inverse=metric(p)), False, start=0.02),
    row("sgrhmc, level-set metric", lambda p, eps: sgrhmc(eps, metric_inverse=metric(p)), False, start=0.03),
    row(
        "sgrhmc euler, level-set metric",
        lambda p, eps: sgrhmc(eps, metric_inverse=metric(p), integrator="euler"),
        False,
        start=0.03,
    ),
    row(
        "hmc",
        lambda p, eps: hmc(eps, leapfrog_steps=LEAPFROG),
        False,
        LEAPFROG + 1,
        **exact,
        start=0.1,
        note="in 20 dimensions its trajectory is about half a period of the stiffest coordinate, whose square then "
        "mixes slowly: hence the wide error",
    ),
    row("rmld, level-set metric", lambda p, eps: rmld(eps, metric_inverse=metric(p)), False, **exact, start=0.02),
    row(
        "rmhmc, level-set metric",
        lambda p, eps: rmhmc(eps, leapfrog_steps=LEAPFROG, metric_inverse=metric(p)),
        False,
        LEAPFROG + 1,
        **exact,
        start=0.1,
        note="counted by leapfrog steps; each of them evaluates the metric several times more",
    ),
]
