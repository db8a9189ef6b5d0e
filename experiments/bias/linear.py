"""The stationary law of a sampler that is an affine map with Gaussian noise on these targets, without simulation.

One step is z+ = M z + b + F n, n the normals that it draws, whichever library draws them: they are replaced by given
numbers and the map is read off the step itself. A step that is not affine is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import solve_discrete_lyapunov

from experiments.bias.problem import Chain, Problem, TorchChain
from fokker.numeric.random_jax import Given

OUR_STREAMS = 6
DRAWS = 40  # rows of normals that one step of a peer may draw


class Law(NamedTuple):
    """The stationary law of a chain."""

    mean: np.ndarray  # (d,)
    variance: np.ndarray  # (d,)
    cost: float  # gradients per effective draw of the slowest coordinate


class Step(NamedTuple):
    """z+ = M z + b + F n, the position first in z."""

    M: np.ndarray
    b: np.ndarray
    F: np.ndarray


class NoLaw(Exception):
    """The chain has no stationary law: it is not stable."""


def law(chain: Chain | TorchChain, problem: Problem) -> Law:
    step = read_torch(chain, problem.d) if isinstance(chain, TorchChain) else read_jax(chain, problem.d)
    n = step.M.shape[0]
    if np.abs(np.linalg.eigvals(step.M)).max() >= 1:
        raise NoLaw
    P = solve_discrete_lyapunov(step.M, step.F @ step.F.T)
    mean = np.linalg.solve(np.eye(n) - step.M, step.b)
    return Law(mean[: problem.d], np.diag(P)[: problem.d], chain.gradients * autocorrelation_time(step.M, P))


def autocorrelation_time(M: np.ndarray, P: np.ndarray) -> float:
    """In steps, the longer of those of x and (x - E x)^2, x the first coordinate: 1 + 2 sum rho, 1 + 2 sum rho^2."""
    n = M.shape[0]
    row = np.linalg.solve((np.eye(n) - M).T, np.eye(n)[0])  # e^T (I - M)^-1
    linear = 2 * (row @ P[:, 0]) / P[0, 0] - 1
    square, x = 0.0, P[:, 0] / P[0, 0]
    while True:
        square += x[0] ** 2
        x = M @ x
        if np.abs(x).max() < 1e-9:
            return max(linear, 2 * square - 1)


# --- reading JAX steps -----------------------------------------------------------------------------------------------


@contextmanager
def normals_from(table: Any) -> Iterator[None]:
    """``jax.random.normal`` gives rows of the table, (DRAWS, d): one key, one row, and the same key the same row again.

    Keys must be concrete: call the step under ``jax.disable_jit()``.
    """
    original, seen = jax.random.normal, {}

    def given(key: Any, shape: Any = (), dtype: Any = float, **_: Any) -> Any:
        data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        k = seen.setdefault(np.asarray(data).tobytes(), len(seen))
        size = int(np.prod(shape))
        if k >= table.shape[0] or size > table.shape[1]:
            raise ValueError(f"the step draws more than {table.shape} normals")
        return table[k, :size].reshape(shape)

    import blackjax.util

    places, linear_map = [jax.random, blackjax.util], blackjax.util.linear_map
    try:
        for module in places:
            module.normal = given
        # It is compiled there, and so never sees the plain number that its caller gives.
        blackjax.util.linear_map = lambda scale, vector: linear_map(jnp.asarray(scale, vector.dtype), vector)
        yield
    finally:
        for module in places:
            module.normal = original
        blackjax.util.linear_map = linear_map


def read_jax(chain: Chain, d: int) -> Step:
    with jax.enable_x64(True):
        key = jax.random.PRNGKey(0)
        state = chain.init(key, jnp.linspace(-1.0, 2.0, d))
        z0, rebuild = moving(state)
        draws = OUR_STREAMS if chain.ours else DRAWS

        def advance(z: Any, n: Any) -> Any:
            n = n.reshape(draws, d)
            if chain.ours:
                return moving(chain.step(Given(n), rebuild(z)))[0]
            with normals_from(n):
                return moving(chain.step(key, rebuild(z)))[0]

        still = jnp.zeros(draws * d)
        with jax.disable_jit(not chain.ours):
            M, F = jax.jacfwd(advance, argnums=(0, 1))(z0, still)
            step = Step(*map(np.asarray, (M, advance(jnp.zeros_like(z0), still), F)))
            refuse_unless_affine(lambda z, n: advance(jnp.asarray(z), jnp.asarray(n)), step)
        return step


def moving(state: Any) -> tuple[Any, Callable]:
    """The floating-point numbers of a state as one vector, and the way back."""
    leaves, tree = jax.tree.flatten(state)
    floats = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)]
    z, unravel = ravel_pytree([leaves[i] for i in floats])

    def rebuild(z: Any) -> Any:
        new = list(leaves)
        for i, leaf in zip(floats, unravel(z), strict=True):
            new[i] = leaf
        return jax.tree.unflatten(tree, new)

    return z, rebuild


def refuse_unless_affine(advance: Callable, step: Step) -> None:
    rng = np.random.default_rng(1)
    z, n = rng.normal(size=step.M.shape[1]), rng.normal(size=step.F.shape[1])
    want = step.M @ z + step.b + step.F @ n
    if not np.allclose(np.asarray(advance(z, n)), want, rtol=0, atol=1e-9):
        raise ValueError("the step is not an affine map with Gaussian noise")


# --- reading PyTorch steps -------------------------------------------------------------------------------------------


def read_torch(chain: TorchChain, d: int) -> Step:
    """By evaluation at zero and at the unit vectors, which is exact for an affine map."""
    import torch

    shapes = [tuple(part.shape) for part in chain.init(torch.zeros(1, d, dtype=torch.float64))]
    n, draws = sum(int(np.prod(s)) for s in shapes), 4

    def advance(z: np.ndarray, normals: np.ndarray) -> np.ndarray:
        parts = np.split(np.asarray(z, float), np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
        state = tuple(torch.as_tensor(p.reshape(s)) for p, s in zip(parts, shapes, strict=True))
        rows, original = iter(np.asarray(normals, float).reshape(draws, d)), torch.randn_like
        torch.randn_like = lambda like: torch.as_tensor(next(rows)).reshape(like.shape)
        try:
            return np.concatenate([part.numpy().ravel() for part in chain.step(state)])
        finally:
            torch.randn_like = original

    b = advance(np.zeros(n), np.zeros(draws * d))
    M = np.stack([advance(e, np.zeros(draws * d)) - b for e in np.eye(n)], axis=1)
    F = np.stack([advance(np.zeros(n), e) - b for e in np.eye(draws * d)], axis=1)
    refuse_unless_affine(advance, Step(M, b, F))
    return Step(M, b, F)
