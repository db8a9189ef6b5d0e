"""SGNHT (Ding et al. 2014; Ma, Chen & Fox 2015, eq. 15), with one thermostat or one per group of coordinates.

Groups g of m_g coordinates, thermostats xi_g, H = U + r^T M^-1 r / 2 + sum_g tau m_g / 2 (xi_g - A_g)^2:

    d theta = M^-1 r dt
    d r     = -grad U dt - xi r dt + sqrt(2 A M) dW          (xi and A of the group of each coordinate)
    d xi_g  = (r_g^T M_g^-1 r_g / m_g - 1) / tau dt

Leaves exp(-H) invariant as eps -> 0, and with it exp(-U). A gradient with noise of unknown covariance V = v M
in each group changes nothing but xi, which settles at A + eps v / 2 (v one number per group); V of another
shape is averaged within a group, and the target is then off by O(eps V). What the estimator knows of V is
compensated first. At any eps the stationary chain has r_g^T M_g^-1 r_g / m_g = 1 in the mean, exactly.

Departures from print: the weight of (xi - A)^2 in H is tau m / 2, not 1 / (2 d); mass M and inertia tau are ours,
both 1 in the paper. One step with one gradient is, by ``integrator``,

    "euler"       eq. 15 with everything at the old state. Bias of order eps.
    "symplectic"  r first, then theta and xi with the new r. Bias of order eps.
    "aboba"       half of theta and xi, half kick, exact friction exp(-eps xi) and its noise, half kick with the same
                  gradient, half of theta and xi: a symmetric splitting, bias of order eps^2. On a Gaussian in many
                  dimensions the variance is too small by the factor 1 - eps^2 (mean curvature) / 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError
from fokker.numeric.random_jax import normal
from fokker.sgmcmc.checks import (
    check_choice,
    check_given,
    check_number,
    check_positive,
    check_positive_definite,
    check_schedule,
    check_step_size,
)
from fokker.sgmcmc.kernel import Bound, Gradient
from fokker.sgmcmc.matrix import compensated_normal, inverse, root, sandwich, scale_rows, times
from fokker.sgmcmc.schedules import Schedule, constant, noise_scale

if TYPE_CHECKING:
    from fokker.target import Target

Integrator = Literal["euler", "symplectic", "aboba"]
INTEGRATORS = ("euler", "symplectic", "aboba")
START = 2  # stream of random numbers for the first momentum, beside 0 for the noise of a step


class State(NamedTuple):
    position: Any  # pytree of parameters
    momentum: Array  # (d,)
    xi: Array  # () or (groups,) or (d,)
    iteration: Array  # () int32
    aux: Any  # of the gradient estimator


class Info(NamedTuple):
    step_size: Array  # ()
    gradient_norm: Array  # ()
    noise_share: Array  # () largest share of injected noise that the gradient brings; above 1 it had to be clipped
    kinetic: Array  # () r^T M^-1 r / d; its stationary mean is 1 at any step


@dataclass(frozen=True)
class sgnht:
    """Settings of SGNHT.

    step_size: eps; None lets the run tune it. diffusion: A, a number or one per thermostat. thermostat: "all"
    (one for all coordinates), "each" (one per coordinate), "leaves" (one per array of the parameters), or a
    (d,) array of group numbers 0, 1, ... in the ravelled order. inertia: tau. mass: M, a number, a (d,) diagonal
    or, with one thermostat for all, a (d, d) matrix. integrator: see the module. schedule: factor of the step by
    iteration.
    """

    by_entry: ClassVar[tuple[str, ...]] = ("mass",)  # of shape (), (d,) or (d, d)

    step_size: Any = None
    diffusion: Any = 1.0
    thermostat: Any = "all"
    inertia: Any = 1.0
    mass: Any = 1.0
    integrator: Integrator = "aboba"
    schedule: Schedule = constant()

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, optional=True)
        check_given("diffusion", self.diffusion)
        check_positive("diffusion", self.diffusion)
        check_positive_definite("mass", self.mass)
        check_number("inertia", self.inertia)
        if np.ndim(self.mass) > 1 and not (isinstance(self.thermostat, str) and self.thermostat == "all"):
            raise InputError("mass must be a number or a (d,) diagonal where there are several thermostats.")
        check_schedule(self.schedule)
        check_choice("integrator", self.integrator, INTEGRATORS)
        if isinstance(self.thermostat, str):
            check_choice("thermostat", self.thermostat, ("all", "each", "leaves"))
        else:
            _check_labels(self.thermostat)

    def bind(self, target: Target, gradient: Gradient) -> Bound:
        check_step_size("sgnht", self.step_size)
        grad = gradient.bind(target)
        A, tau, W = jnp.asarray(self.diffusion), jnp.asarray(self.inertia), root(jnp.asarray(self.mass))
        W_inverse = inverse(W)

        def init(position: Any, key: Any) -> State:
            theta = ravel_pytree(position)[0]
            labels = _labels(self.thermostat, target.params(position))
            shape = labels if isinstance(labels, tuple) else (int(labels.max()) + 1,)
            if A.ndim and A.shape != shape:
                raise InputError(f"diffusion must be a number or one per thermostat {shape}, got shape {A.shape}.")
            momentum = times(W.astype(theta.dtype), normal(key, theta.shape, START, theta.dtype))
            xi = jnp.broadcast_to(A.astype(theta.dtype), shape)
            return State(position, momentum, xi, jnp.zeros((), jnp.int32), grad.init(position))

        def step(key: Any, state: State, batch: Any = None) -> tuple[State, Info]:
            theta, unravel = ravel_pytree(state.position)
            d, dtype = theta.size, theta.dtype
            labels = _labels(self.thermostat, target.params(state.position))
            eps = jnp.asarray(self.step_size * self.schedule(state.iteration), dtype)
            heat, into = noise_scale(self.schedule, state.iteration, dtype), W_inverse.astype(dtype)
            noise_rate = 2 * eps * _spread(A.astype(dtype), labels)
            inertia = tau.astype(dtype)
            s, xi = times(into, state.momentum), state.xi  # s = W^-1 r with M = W W^T has unit mass

            def pushed(at: Any, injected: Array, kick: Any) -> tuple[Array, Array, Array, Array, Any]:
                grad_u, noise, aux = grad.estimate(key, at, batch, state.aux)
                taken = None if noise is None else sandwich(scale_rows(kick, into), noise)
                push, share = compensated_normal(key, injected, taken, d, dtype)
                return times(into, grad_u), heat * push, share, jnp.linalg.norm(grad_u), aux

            def drift(theta: Array, xi: Array, s: Array, h: Array) -> tuple[Array, Array]:
                return theta + h * times(into.T, s), xi + h / inertia * (_mean_square(s, labels) - 1)

            if self.integrator == "aboba":
                theta, xi = drift(theta, xi, s, eps / 2)
                friction = _spread(xi, labels)
                keep = jnp.exp(-eps * friction)
                injected = noise_rate * _mean_decay(2 * eps * friction)
                force, push, share, norm, aux = pushed(unravel(theta), injected, eps * (1 + keep) / 2)
                s = keep * (s - eps / 2 * force) + push - eps / 2 * force
                theta, xi = drift(theta, xi, s, eps / 2)
            else:
                force, push, share, norm, aux = pushed(state.position, noise_rate, eps)
                s_next = s - eps * force - eps * _spread(xi, labels) * s + push
                theta, xi = drift(theta, xi, s if self.integrator == "euler" else s_next, eps)
                s = s_next
            info = Info(eps, norm, share, s @ s / d)
            return State(unravel(theta), times(W.astype(dtype), s), xi, state.iteration + 1, aux), info

        return Bound(init, step)


def _labels(thermostat: Any, position: Any) -> Any:
    """(d,) group numbers; or, where no look-up is needed, the shape of xi itself: () or (d,)."""
    d = ravel_pytree(position)[0].size
    if isinstance(thermostat, str):
        if thermostat == "leaves":
            sizes = [np.size(leaf) for leaf in jax.tree.leaves(position)]
            return np.repeat(np.arange(len(sizes)), sizes)
        return () if thermostat == "all" else (d,)
    labels = np.asarray(thermostat)
    if labels.shape != (d,):
        raise InputError(f"thermostat needs one group number per coordinate, ({d},); got shape {labels.shape}.")
    return labels


def _spread(xi: Array, labels: Any) -> Array:
    """The thermostat of each coordinate."""
    return xi if isinstance(labels, tuple) or not xi.ndim else xi[labels]


def _mean_square(s: Array, labels: Any) -> Array:
    """|s_g|^2 / m_g for each group, in the shape of xi."""
    if isinstance(labels, tuple):
        return s * s if labels else s @ s / s.size
    count = np.bincount(labels)
    return jax.ops.segment_sum(s * s, labels, len(count)) / count.astype(s.dtype)


def _mean_decay(y: Array) -> Array:
    """(1 - exp(-y)) / y, 1 at y = 0: the mean of exp(-t) over [0, y]."""
    small = jnp.abs(y) < 1e-5
    return jnp.where(small, 1 - y / 2, -jnp.expm1(-y) / jnp.where(small, 1.0, y))


def _check_labels(labels: Any) -> None:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size or (array < 0).any():
        raise InputError(
            f'thermostat must be "all", "each", "leaves" or a (d,) array of group numbers, got {labels!r}.'
        )
    if not (np.bincount(array) > 0).all():
        raise InputError(f"thermostat groups must be numbered 0, 1, ... without gaps, got {np.unique(array).tolist()}.")
