"""The law of a discrete chain without simulation: its transition operator on a grid, from the sampler's own step.

A step is a function of the state and of standard normals. States are (angle,), (angle, momentum) or (angle, momentum,
thermostat); a function of them is a trigonometric polynomial of the angle times polynomials of the others, known by its
values at the nodes of a grid. Its mean after one step is an integral over the normals, by the rule of Gauss: a matrix P
on values at nodes, whose left eigenvector to the eigenvalue 1 is the stationary law. Nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[Any, Any, Any], Any]  # step size, state (k,), normals (q,) -> state (k,)
CHUNK = 2_000_000  # entries of P made at once


@dataclass(frozen=True)
class Angle:
    """n equal steps of a full turn, n odd, and the n trigonometric functions that they tell apart."""

    n: int = 31

    @property
    def nodes(self) -> np.ndarray:
        return 2 * np.pi * np.arange(self.n) / self.n

    def basis(self, y: np.ndarray) -> np.ndarray:
        ky = y[..., None] * np.arange(1, self.n // 2 + 1)
        return np.concatenate([np.ones_like(y)[..., None], np.cos(ky), np.sin(ky)], -1)


@dataclass(frozen=True)
class Normal:
    """n nodes of Gauss and Hermite for Normal(mean, sd^2), and polynomials up to degree n - 1."""

    n: int = 14
    mean: float = 0.0
    sd: float = 1.0

    @property
    def nodes(self) -> np.ndarray:
        return self.mean + self.sd * gauss(self.n)[0]

    def basis(self, y: np.ndarray) -> np.ndarray:
        u = (y - self.mean) / self.sd
        h = [np.ones_like(u), u]
        for k in range(1, self.n - 1):  # orthonormal: sqrt(k + 1) h_{k+1} = u h_k - sqrt(k) h_{k-1}
            h.append((u * h[k] - np.sqrt(k) * h[k - 1]) / np.sqrt(k + 1))
        return np.stack(h[: self.n], -1)


def gauss(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the standard normal law."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    return x, w / w.sum()


def product(axes: Sequence[np.ndarray]) -> np.ndarray:
    """All combinations, (., len(axes))."""
    return np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], -1)


def transition(step: Step, eps: float, axes: Sequence[Angle | Normal], normals: int = 1, rule: int = 14) -> np.ndarray:
    """P with (P f)(z) = E f(step(z)), for values f at the nodes: (nodes, nodes)."""
    z, w = gauss(rule)
    noises = product([z] * normals)
    weights = np.prod(product([w] * normals), -1)
    nodes = product([axis.nodes for axis in axes])
    with jax.enable_x64(True):
        after = _many(step)(jnp.asarray(eps), jnp.asarray(nodes), jnp.asarray(noises))
    after = np.asarray(after)  # (nodes, noises, k)
    if not np.isfinite(after).all():
        raise FloatingPointError(f"the step is not finite at eps = {eps}")
    to_values = [np.linalg.inv(axis.basis(axis.nodes)) for axis in axes]
    blocks = []
    size = max(1, CHUNK // (len(noises) * len(nodes)))
    for first in range(0, len(nodes), size):
        part = after[first : first + size]
        shares = [axis.basis(part[..., i]) @ to_values[i] for i, axis in enumerate(axes)]  # of every node in f(after)
        letters = "abc"[: len(axes)]
        inputs = ",".join(f"ik{letter}" for letter in letters)
        block = np.einsum(f"k,{inputs}->i{letters}", weights, *shares, optimize=True)
        blocks.append(block.reshape(len(part), -1))
    return np.concatenate(blocks)


_compiled: dict[Step, Any] = {}


def _many(step: Step) -> Any:
    if step not in _compiled:
        over_noise = jax.vmap(step, in_axes=(None, None, 0))
        _compiled[step] = jax.jit(jax.vmap(over_noise, in_axes=(None, 0, None)))
    return _compiled[step]


def stationary(P: np.ndarray) -> np.ndarray:
    """Weights of the nodes with weights @ P = weights and sum 1."""
    n = len(P)
    A = P.T - np.eye(n)
    A[0] = 1.0
    return np.linalg.solve(A, np.eye(n)[0])


def averages(P: np.ndarray, f: np.ndarray, start: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Mean and mean square of (f(Z_1) + ... + f(Z_L)) / L from Z_0 ~ start, exactly: (len(lengths), 2).

    E_z S_L = P (f + E S_{L-1}) and E_z S_L^2 = P (f^2 + 2 f E S_{L-1} + E S_{L-1}^2).
    """
    first, second, found = np.zeros_like(f), np.zeros_like(f), []
    for n in range(1, max(lengths) + 1):
        both = P @ np.stack([f + first, f * f + 2 * f * first + second], -1)
        first, second = both.T
        if n in lengths:
            found.append([start @ first / n, start @ second / n**2])
    return np.array(found)
