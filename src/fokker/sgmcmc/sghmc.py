"""SGHMC (Chen, Fox & Guestrin 2014; Ma, Chen & Fox 2015, eq. 12): H = U + r^T M^-1 r / 2, D = diag(0, C),
Q = [[0, -I], [I, 0]].

    d theta = M^-1 r dt,    d r = -grad U dt - C M^-1 r dt + sqrt(2 C) dW

Leaves exp(-U(theta) - r^T M^-1 r / 2) invariant as eps -> 0. With g the stochastic gradient, V its covariance
and V^ the estimate of V, one step with one gradient is, by ``integrator``,

    "euler"       theta+ = theta + eps M^-1 r,  r+ = r - eps g - eps C M^-1 r + Normal(0, 2 eps C - eps^2 V^)
                  As printed in eq. 12. Bias of order eps; unstable unless C > eps a for every curvature a.
    "symplectic"  the same r+ first, then theta+ = theta + eps M^-1 r+. Bias of order eps^2 in theta, eps in r.
    "aboba"       half drift, half kick, exact friction and noise r+ = c r + Normal(0, M - c M c^T), half kick with
                  the same gradient, half drift; c = exp(-eps C M^-1). Bias of order eps^2.
    "baoab"       kick, half drift, exact friction and noise, half drift. Bias of order eps^2. The momentum kept lags
                  half a kick behind that of the symmetric form, whose two half kicks at one position are merged
                  here; the positions are the same.

On a Gaussian U the law of theta under "aboba" and "baoab" has no bias at any stable step, eps^2 a < 4 M,
without gradient noise. Under "aboba" gradient noise enters r where the injected noise does, with the factor
eps (1 + c) / 2, and is compensated exactly there; under "baoab" it passes through a half drift first, and the
compensation leaves a bias of order eps^2. Without compensation the temperature is too high by the factor
1 + eps V / (2 C), to first order, in each.

``resample_momentum`` = k draws r ~ Normal(0, M) anew every k steps (optional in Algorithm 1). Two departures
keep the bias at order eps^2 for a fixed time k eps: under "symplectic" and "baoab" the first kick afterwards
is half a kick, as in leapfrog, and under "symplectic" the fresh r has the covariance
(M^-1 - eps/2 M^-1 C M^-1)^-1 that the scheme gives to r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import (
    check_choice,
    check_count,
    check_number,
    check_positive_definite,
    check_schedule,
    check_step_size,
)
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import as_dense, compensated_normal, inverse, root, sandwich, scale_rows, times
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target

Integrator = Literal["euler", "symplectic", "aboba", "baoab"]
INTEGRATORS = ("euler", "symplectic", "aboba", "baoab")
RESAMPLE, START = 1, 2  # streams of random numbers, beside 0 for the noise of a step


class State(NamedTuple):
    position: Any  # pytree of parameters
    momentum: Array  # (d,)
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # ()
    noise_share: Array  # () largest share of injected noise that the gradient brings; above 1 it had to be clipped
    kinetic: Array  # () r^T M^-1 r / d, of law 1; in the splittings right after the noise, where it is least biased


@dataclass(frozen=True)
class sghmc:
    """Settings of SGHMC.

    step_size: eps; None lets the run tune it. friction: C, mass: M, each a number, a (d,) diagonal or a (d,
    d) matrix in the ravelled order of the parameters. integrator: see the module. resample_momentum: None, or
    the number of steps between fresh momenta. schedule: factor of the step by iteration.
    """

    by_entry: ClassVar[tuple[str, ...]] = ("friction", "mass")  # of shape (), (d,) or (d, d)

    step_size: Any = None
    friction: Any = 1.0
    mass: Any = 1.0
    integrator: Integrator = "symplectic"
    resample_momentum: int | None = None
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_positive_definite("friction", self.friction)
        check_positive_definite("mass", self.mass)
        check_choice("integrator", self.integrator, INTEGRATORS)
        check_count("resample_momentum", self.resample_momentum, 1, optional=True)
        check_schedule(self.schedule)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sghmc", self.step_size)
        grad = gradient.bind(target)
        C, M = jnp.asarray(self.friction), jnp.asarray(self.mass)
        C_root, M_root, M_inverse = root(C), root(M), inverse(M)
        W, W_inverse, rates = _modes(C, M)

        def init(position: Any, key: Any) -> State:
            theta = ravel_pytree(position)[0]
            momentum = times(M_root.astype(theta.dtype), normal(key, theta.shape, START, theta.dtype))
            return State(position, momentum, jnp.zeros((), jnp.int32), grad.init(position))

        def fresh_momentum(key: Any, theta: Array, eps: Array) -> Array:
            """Normal(0, M), or the law of the scheme's own momentum where that is off by order eps."""
            z = normal(key, theta.shape, RESAMPLE, theta.dtype)
            if self.integrator == "symplectic":
                z = z / jnp.sqrt(1 - eps / 2 * rates.astype(theta.dtype))
            return times(W.astype(theta.dtype), z)

        def start(key: Any, state: State) -> tuple[Array, Any, Array, Array, Any]:
            """theta, unravel, r, the share of a whole kick that comes first in this step, eps."""
            theta, unravel = ravel_pytree(state.position)
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), theta.dtype)
            if self.resample_momentum is None:
                return theta, unravel, state.momentum, jnp.ones((), theta.dtype), eps
            fresh = state.iteration % self.resample_momentum == 0
            momentum = jax.lax.cond(fresh, lambda: fresh_momentum(key, theta, eps), lambda: state.momentum)
            return theta, unravel, momentum, jnp.where(fresh, 0.5, 1.0).astype(theta.dtype), eps

        def unsplit_step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel, r, part, eps = start(key, state)
            dtype = theta.dtype
            velocity = lambda r: times(M_inverse.astype(dtype), r)
            kick = eps if self.integrator == "euler" else eps * part
            grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
            friction = C.astype(dtype)
            taken = None if noise is None else sandwich(kick, noise)
            injected_root = jnp.sqrt(2 * eps) * C_root.astype(dtype)
            push, share = compensated_normal(
                key, 2 * eps * friction, taken, theta.size, dtype, injected_root=injected_root
            )
            push = noise_scale(self.schedule, state.iteration, dtype) * push
            r_next = r - kick * grad_u - eps * times(friction, velocity(r)) + push
            theta = theta + eps * velocity(r if self.integrator == "euler" else r_next)
            info = Info(eps, jnp.linalg.norm(grad_u), share, r_next @ velocity(r_next) / theta.size)
            return State(unravel(theta), r_next, state.iteration + 1, aux), info

        def split_step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel, r, part, eps = start(key, state)
            dtype = theta.dtype
            # s = W^-1 r has unit mass and friction `rates` in each coordinate.
            out_of, into, keep = W.astype(dtype), W_inverse.astype(dtype), jnp.exp(-eps * rates.astype(dtype))
            drift = lambda theta, s: theta + eps / 2 * times(into.T, s)
            injected = -jnp.expm1(-2 * eps * rates.astype(dtype))
            heat = noise_scale(self.schedule, state.iteration, dtype)
            s = times(into, r)
            if self.integrator == "aboba":
                theta = drift(theta, s)
                grad_u, noise, aux = grad.estimate(key, unravel(theta), batch, state.aux)
                taken = None if noise is None else sandwich(scale_rows(eps * (1 + keep) / 2, into), noise)
                push, share = compensated_normal(key, injected, taken, theta.size, dtype)
                half_kick = eps / 2 * times(into, grad_u)
                s_mid = keep * (s - half_kick) + heat * push
                s = s_mid - half_kick
                theta = drift(theta, s)
            else:
                kick = eps * part
                grad_u, noise, aux = grad.estimate(key, state.position, batch, state.aux)
                taken = None if noise is None else sandwich(scale_rows(kick * keep, into), noise)
                push, share = compensated_normal(key, injected, taken, theta.size, dtype)
                s = s - kick * times(into, grad_u)
                theta = drift(theta, s)
                s = s_mid = keep * s + heat * push
                theta = drift(theta, s)
            info = Info(eps, jnp.linalg.norm(grad_u), share, s_mid @ s_mid / theta.size)
            return State(unravel(theta), times(out_of, s), state.iteration + 1, aux), info

        return Bound(init, split_step if self.integrator in ("aboba", "baoab") else unsplit_step)


def _modes(C: Array, M: Array) -> tuple[Array, Array, Array]:
    """W, W^-1 and rates with M = W W^T and C = W diag(rates) W^T, so that C M^-1 = W diag(rates) W^-1."""
    if C.ndim < 2 and M.ndim < 2:
        return jnp.sqrt(M), 1 / jnp.sqrt(M), C / M
    d = max(C.shape + M.shape)
    L = jnp.linalg.cholesky(as_dense(M, d))
    L_inverse = jax.scipy.linalg.solve_triangular(L, jnp.eye(d, dtype=L.dtype), lower=True)
    rates, turn = jnp.linalg.eigh(sandwich(L_inverse, as_dense(C, d)))
    return L @ turn, turn.T @ L_inverse, rates
