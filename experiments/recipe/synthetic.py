"""What the synthetic experiments of Ma, Chen & Fox (2015, section 4.1 and supplement F.1) have in common.

Their targets, the metric G^-1 = D sqrt|U + C| with D = 1.5 and C = 0.5, gradients with noise of variance 1, and the two
rules for gSGRHMC that are wrong: eq. (16), which leaves Gamma out, and eq. (17) with its printed signs. Step sizes,
noise and chain lengths are not in the paper; ours are stated where they are set. Wrong rules live here, not in the
package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fokker import Target, level_set
from fokker.numeric.random_jax import Key, normal
from fokker.sgmcmc.kernel import Bound, BoundGradient

GRADIENT_STREAM = 5  # of random numbers, apart from those of the kernels
NOISE = 1.0  # V, the variance of the gradient's noise, known to every sampler
SCALE, OFFSET = 1.5, 0.5  # D and C of the metric


# --- targets --------------------------------------------------------------------------------------------------------


def one_peak(theta):
    """U = theta^2 / 2, theta (1,)."""
    return (theta**2).sum() / 2


def two_peaks(theta):
    """U = theta^4 - 2 theta^2, theta (1,)."""
    return (theta**4 - 2 * theta**2).sum()


def banana(theta):
    """U = theta_1^4 / 10 + (4 (theta_2 + 1.2) - theta_1^2)^2 / 2, theta (2,)."""
    return theta[0] ** 4 / 10 + (4 * (theta[1] + 1.2) - theta[0] ** 2) ** 2 / 2


BANANA_MOMENTS = {"E θ₁²": 1.0688150, "E θ₁⁴": 2.5, "E θ₂": -0.9327963, "Var θ₂": 0.1473519}


def banana_draws(rng: np.random.Generator, count: int) -> np.ndarray:
    """Exact draws, (count, 2): theta_1^4 / 10 ~ Gamma(1/4), and theta_2 given theta_1 is normal."""
    first = rng.choice([-1.0, 1.0], count) * (10 * rng.gamma(0.25, size=count)) ** 0.25
    return np.stack([first, (first**2 + rng.normal(size=count)) / 4 - 1.2], axis=1)


def density(potential: Callable, grid: np.ndarray) -> np.ndarray:
    """exp(-U) / Z on a grid of a line, Z by the trapezoidal rule over [-8, 8]."""
    u = lambda x: np.asarray(jax.vmap(lambda x: potential(x[None]))(jnp.asarray(x)), float)
    wide = np.linspace(-8.0, 8.0, 16_001)
    return np.exp(-u(grid)) / np.trapezoid(np.exp(-u(wide)), wide)


def metric(potential: Callable, smoothing: float) -> level_set:
    """G^-1 of supplement F.1, from the exact U: a G that saw the minibatch would be correlated with the gradient."""
    return level_set(potential, SCALE, OFFSET, smoothing)


# --- gradients and the wrong rules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class noisy_gradient:
    """The exact gradient plus Normal(0, variance), a variance that the sampler is told unless ``told`` is False."""

    variance: float = NOISE
    told: bool = True

    @property
    def noise(self) -> str:
        return "scalar" if self.told else "none"

    def bind(self, target: Target) -> BoundGradient:
        def estimate(key: Any, position: Any, batch: Any, aux: Any) -> tuple[Any, Any, Any]:
            z = normal(key, position.shape, GRADIENT_STREAM, position.dtype)
            grad_u = -jax.grad(target.log_prior)(position)
            known = jnp.asarray(self.variance, position.dtype) if self.told else None
            return grad_u + self.variance**0.5 * z, known, aux

        return BoundGradient(lambda position: None, estimate)


class State(NamedTuple):
    position: Any  # (d,)
    momentum: Any  # (d,)


@dataclass(frozen=True)
class wrong_sgrhmc:
    """theta+ = theta + eps S r,
    r+ = r + eps (-S g + correction Gamma + damping A r) + Normal(0, eps (2 A - eps S V S)).

    S = G^{-1/2}, A = G^-1, both scalar. Eq. (16) is correction 0, damping -1; eq. (17) as printed is correction -1,
    damping +1. Algorithm 1, which is right, would be correction +1, damping -1.
    """

    step_size: float
    metric_inverse: Callable
    correction: float
    damping: float

    def bind(self, target: Target, gradient: Any) -> Bound:
        grad, eps = gradient.bind(target), self.step_size
        root = lambda theta: jnp.sqrt(self.metric_inverse(theta))

        def init(position: Any, key: Any) -> State:
            return State(position, normal(key, position.shape, 2, position.dtype))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, None]:
            theta, r = state
            g, V, _ = grad.estimate(key, theta, batch, None)
            S, gamma = jax.value_and_grad(root)(theta)
            A = S * S
            push = jnp.sqrt(eps * (2 * A - eps * S * V * S)) * normal(key, theta.shape, 0, theta.dtype)
            drift = -S * g + self.correction * gamma + self.damping * A * r
            return State(theta + eps * S * r, r + eps * drift + push), None

        return Bound(init, step)


# --- many chains ------------------------------------------------------------------------------------------------------


def positions(
    kernel: Any, potential: Callable, start: np.ndarray, draws: int, *, thin: int = 1, burn: int = 0, seed: int = 0
) -> np.ndarray:
    """Positions (draws, chains, d) of one chain from each row of ``start``, every ``thin`` steps after ``burn``."""
    bound = kernel.bind(Target.from_log_density(lambda theta: -potential(theta)), noisy_gradient())
    words = np.random.default_rng([seed, 1]).integers(0, 2**32, (len(start), 2), dtype=np.uint32)

    def one_chain(words: Any, position: Any) -> Any:
        def advance(state: Any, first: Any, count: int) -> Any:
            return jax.lax.fori_loop(
                0, count, lambda t, s: bound.step(Key(words, first + t.astype(jnp.uint32)), s)[0], state
            )

        def draw(state: Any, first: Any) -> Any:
            state = advance(state, first, thin)
            return state, state.position

        state = bound.init(position, Key(words, jnp.uint32(2**32 - 1)))
        state = advance(state, jnp.uint32(0), burn)
        firsts = jnp.uint32(burn) + jnp.uint32(thin) * jnp.arange(draws, dtype=jnp.uint32)
        return jax.lax.scan(draw, state, firsts)[1]

    run = jax.jit(jax.vmap(one_chain, out_axes=1))
    return np.asarray(run(jnp.asarray(words), jnp.asarray(start, jnp.float32)))
