"""BlackJAX's, posteriors' and SGMCMCJax's samplers as rows of the bias table, each run by its own code.

SGMCMCJax 0.2.13 does not import on today's JAX, from which ``host_callback`` is gone. Its progress bar alone uses that;
an empty module in its place lets the rest run, and the page says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bias.problem import FRICTION, Chain, Problem, Sampler, TorchChain

STEPS = 10  # of a trajectory, where a kernel makes several: BlackJAX's default
HOST_CALLBACK = "jax.experimental.host_callback"


def log_density_gradient(problem: Problem, x: Any, z: Any) -> Any:
    """-grad U with noise from the normals z, (d,)."""
    a, mean, root = (jnp.asarray(v, x.dtype) for v in (problem.a, problem.mean, problem.V**0.5))
    return -a * (x - mean) + root * z


# --- BlackJAX: the caller gives a batch to each step, here the normals of the gradient's noise ------------------------


def blackjax_chain(which: str, problem: Problem, eps: float, friction: float = FRICTION) -> Chain:
    import blackjax

    gradient = partial(log_density_gradient, problem)
    if which == "sgld":
        kernel, rest, gradients = blackjax.sgld(gradient), (), 1
    elif which == "sghmc":
        kernel = blackjax.sghmc(gradient, STEPS, friction, problem.known_number)
        rest, gradients = (), STEPS
    else:
        kernel, rest, gradients = blackjax.sgnht(gradient, FRICTION, problem.known_number), (), 1

    def step(key: Any, state: Any) -> Any:
        mine, theirs = jax.random.split(key)
        x = getattr(state, "position", state)
        return kernel.step(theirs, state, jax.random.normal(mine, x.shape, x.dtype), eps, *rest)

    def init(key: Any, x: Any) -> Any:
        state = kernel.init(x, key)
        return state._replace(xi=jnp.asarray(state.xi, x.dtype)) if which == "sgnht" else state

    return Chain(init, step, lambda state: getattr(state, "position", state), gradients)


# --- SGMCMCJax -------------------------------------------------------------------------------------------------------


@cache
def sgmcmcjax_kernels() -> tuple[ModuleType, str]:
    """Its kernels, and the error that a plain import gives ("" if there is none)."""
    try:
        return import_module("sgmcmcjax.kernels"), ""
    except ImportError as error:
        what = str(error).split(" (")[0]
        if "host_callback" not in what:
            raise
    sys.modules[HOST_CALLBACK] = ModuleType(HOST_CALLBACK)
    try:
        return import_module("sgmcmcjax.kernels"), what
    finally:
        del sys.modules[HOST_CALLBACK]


def sgmcmcjax_chain(which: str, problem: Problem, eps: float, friction: float = FRICTION) -> Chain:
    """Its r is eps times ours where its step is eps^2: friction and noise are scaled to be the same sampler."""
    kernels, _ = sgmcmcjax_kernels()
    diffusion = getattr(kernels, which)

    def estimate(i: Any, key: Any, x: Any, svrg: Any) -> tuple[Any, Any]:
        return log_density_gradient(problem, x, jax.random.normal(key, x.shape, x.dtype)), svrg

    start = lambda key, x: estimate(0, key, x, kernels.SVRGState())
    gradients = 1
    if which == "sghmc":
        # beta: what gradient noise brings, eps^2 V, in units of 2 eps^2
        beta = problem.known_number * eps**2 / 2
        parts = diffusion(eps**2, friction * eps, beta)
        init, kernel, position = kernels._build_sghmc_kernel(*parts, estimate, start, STEPS)
        gradients = STEPS
    else:
        parts = {
            "sgld": lambda: diffusion(eps),
            "psgld": lambda: diffusion(eps),
            "sgldAdam": lambda: diffusion(eps),
            "baoab": lambda: diffusion(eps, FRICTION),
            "badodab": lambda: diffusion(eps, FRICTION),
            "sgnht": lambda: diffusion(eps**2, FRICTION * eps),
        }[which]()
        init, kernel, position = kernels._build_langevin_kernel(*parts, estimate, start)

    def settle(state: Any, dtype: Any) -> Any:
        """Numbers become arrays of one type, as a compiled loop needs them."""
        return jax.tree.map(lambda v: jnp.asarray(v, dtype), state)

    def advance(key: Any, state: Any) -> Any:
        i, inner = state
        return i + 1, settle(kernel(i, key, inner), position(inner).dtype)

    # Step 0 draws a momentum in its sgnht; the others count from it.
    return Chain(
        lambda key, x: (jnp.int32(0), settle(init(key, x), x.dtype)),
        advance,
        lambda state: position(state[1]),
        gradients,
    )


# --- posteriors, in PyTorch ------------------------------------------------------------------------------------------


def posteriors_chain(which: str, problem: Problem, eps: float) -> TorchChain:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of tensordict, about its own defaults
        import posteriors

    a, mean, root = (torch.as_tensor(v, dtype=torch.float64) for v in (problem.a, problem.mean, problem.V**0.5))

    def log_posterior(x: Any, z: Any) -> tuple[Any, Any]:
        return (-a * (x - mean) ** 2 / 2 + root * z * x).sum(), torch.zeros(0)

    beta = problem.known_number
    method = getattr(posteriors.sgmcmc, which)
    settings = {
        "sgld": dict(beta=beta),
        "sghmc": dict(alpha=FRICTION, beta=beta),
        "baoa": dict(alpha=FRICTION),
        "sgnht": dict(alpha=FRICTION, beta=beta),
        "sglrw": {},
    }[which]
    transform = method.build(log_posterior, lr=eps, **settings)
    make = {
        "sgld": "SGLDState",
        "sghmc": "SGHMCState",
        "baoa": "BAOAState",
        "sgnht": "SGNHTState",
        "sglrw": "SGLRWState",
    }
    State = getattr(method, make[which])
    fields = {"sgld": 1, "sglrw": 1, "sghmc": 2, "baoa": 2, "sgnht": 3}[which]

    def one(*state: Any) -> tuple:
        after, _ = transform.update(State(*state), torch.randn_like(state[0]))
        return tuple(getattr(after, name) for name in ("params", "momenta", "xi")[:fields])

    def init(x: Any) -> tuple:
        momenta, xi = torch.randn_like(x), torch.full(x.shape[:1], FRICTION, dtype=x.dtype)
        return (x, momenta, xi)[:fields]

    many = torch.func.vmap(one, randomness="different")
    return TorchChain(init, lambda state: many(*state))


def rows(library: str, make: Callable, which: dict[str, dict]) -> list[Sampler]:
    """Samplers by the names that the library gives them."""
    return [Sampler(library, name, partial(make, name), **rest) for name, rest in which.items()]


def by_default(library: str, make: Callable, note: str) -> Sampler:
    """SGHMC with the library's own friction. The gradient then brings more noise than there is to inject, so that
    nothing can be subtracted."""
    chain = partial(make, "sghmc", friction=DEFAULT_FRICTION)
    return Sampler(library, f"sghmc, friction {DEFAULT_FRICTION}", chain, True, told=False, note=note)


DEFAULT_FRICTION = 0.01  # of both libraries that draw the momentum anew for every trajectory
FRESH = f"draws the momentum anew every {STEPS} steps"
ONE_BATCH = f"{FRESH} and has one batch for all of them"
SAMPLERS = [
    *rows(
        "BlackJAX",
        blackjax_chain,
        {
            "sgld": dict(linear=True, told=False),
            "sghmc": dict(linear=True, note=ONE_BATCH),
            "sgnht": dict(linear=False),
        },
    ),
    by_default("BlackJAX", blackjax_chain, ONE_BATCH),
    *rows(
        "posteriors",
        posteriors_chain,
        {
            "sgld": dict(linear=True),
            "sghmc": dict(linear=True),
            "baoa": dict(linear=True, told=False),
            "sgnht": dict(linear=False),
            "sglrw": dict(linear=False, told=False),
        },
    ),
    *rows(
        "SGMCMCJax",
        sgmcmcjax_chain,
        {
            "sgld": dict(linear=True, told=False),
            "sghmc": dict(linear=True, note=FRESH),
            "baoab": dict(linear=True, told=False),
            "sgnht": dict(linear=False, told=False),
            "badodab": dict(linear=False, told=False),
            "psgld": dict(linear=False, told=False),
            "sgldAdam": dict(linear=False, told=False),
        },
    ),
    by_default("SGMCMCJax", sgmcmcjax_chain, FRESH),
]
