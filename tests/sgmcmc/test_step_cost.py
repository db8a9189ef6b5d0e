"""A step with numbers or diagonals for settings costs O(d): nothing in its program has d^2 entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fokker.linear_models import glm
from fokker.run.gradients import minibatch
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import INTEGRATORS, sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht

D, BATCH = 300, 10
SPREAD = np.linspace(0.5, 2.0, D).astype(np.float32)
KERNELS = [
    sgld(0.1),
    sgld(0.1, diffusion=SPREAD),
    psgld(0.1, adapt_steps=10),
    sgfs(0.1),
    *(sghmc(0.1, integrator=name) for name in INTEGRATORS),
    *(sghmc(0.1, SPREAD, SPREAD, name, resample_momentum=5) for name in INTEGRATORS),
    *(sgnht(0.1, thermostat=kind, mass=SPREAD) for kind in ("all", "each", "leaves", np.arange(D) // 100)),
]


def sizes(program):
    """Entries of every array that a program makes, in its inner programs too."""
    for equation in program.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "jaxpr"):
                    yield from sizes(inner.jaxpr)


def largest_array(kernel, gradient, target):
    bound = kernel.bind(target, gradient)
    position = {"beta": jnp.zeros(D)}
    state = bound.init(position, jax.random.key(0))
    batch = jax.tree.map(lambda rows: jnp.asarray(rows[:BATCH]), target.data)
    return max(sizes(jax.make_jaxpr(bound.step)(jax.random.key(0), state, batch).jaxpr))


@pytest.fixture(scope="module")
def target():
    rng = np.random.default_rng(0)
    return glm(rng.normal(size=(50, D)).astype(np.float32), rng.integers(0, 2, 50), intercept=False)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_no_step_makes_a_matrix_it_does_not_need(kernel, target):
    for noise in ("none", "scalar", "diagonal"):
        if type(kernel) is sgfs and noise == "none":
            continue
        assert largest_array(kernel, minibatch(noise), target) <= BATCH * D


def test_a_dense_setting_shows(target):
    """The measure sees a matrix where there is one."""
    assert largest_array(sgld(0.1, diffusion=np.eye(D)), minibatch(), target) >= D**2
    assert largest_array(sgld(0.1), minibatch("dense"), target) >= D**2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_a_step_keeps_shapes_and_precision(x64, kernel, dtype):
    """float32 parameters stay float32 where 64 bits are on, and a state can be carried by a loop."""
    rng = np.random.default_rng(0)
    precise = glm(rng.normal(size=(50, D)).astype(dtype), rng.integers(0, 2, 50), intercept=False)
    for noise in ("diagonal", "low_rank"):
        if type(kernel) is sgfs and noise == "low_rank":
            continue
        bound = kernel.bind(precise, minibatch(noise, rank=2))
        state = jax.eval_shape(bound.init, {"beta": jnp.zeros(D, dtype)}, jax.random.key(0))
        batch = jax.tree.map(lambda rows: jnp.asarray(rows[:BATCH]), precise.data)
        after, info = jax.eval_shape(bound.step, jax.random.key(0), state, batch)
        assert jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, after) == jax.tree.map(
            lambda _: True, state
        )
        assert all(leaf.dtype == dtype and leaf.shape == () for leaf in info)
