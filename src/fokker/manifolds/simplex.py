"""The probability simplex, through the sphere."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from fokker.errors import SpaceError
from fokker.manifolds.sphere import Sphere


@dataclass(frozen=True)
class Simplex:
    """theta_k >= 0, sum theta = 1; densities with respect to Lebesgue measure on K - 1 of the K entries.

    theta = x^2 with x on the unit sphere, log_volume = sum log |x_k|: Dirichlet(alpha) becomes the density
    prod |x_k|^{2 alpha_k - 1}. It is singular at 0 where alpha_k < 1/2: there ``fokker.scir`` is the tool.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 2:
            raise SpaceError(f"Simplex(k) needs k >= 2 entries, got {self.k}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.k,)

    @property
    def carrier(self) -> Sphere:
        return Sphere(self.k)

    def value(self, x: Array) -> Array:
        return x * x

    def embed(self, theta: Array) -> Array:
        return jnp.sqrt(theta)

    def log_volume(self, x: Array) -> Array:
        return jnp.sum(jnp.log(jnp.abs(x)))

    def off(self, theta: Array) -> Array:
        return jnp.where(jnp.min(theta) > 0, jnp.abs(jnp.sum(theta) - 1), jnp.inf)
