"""The law of the discrete chain on the Gaussian approximation of the posterior.

There every constant-step kernel is an affine map z+ = M z + F noise, z = (theta, r). M and F are read off the kernel's
own step by differentiation, gradient noise included, and the stationary covariance P = M P M^T + F F^T follows without
simulation. Batches without replacement have noise e_t whose covariance with e_{t-k} is -(1 - k/E) / (E - 1) times its
own within an epoch of E batches; the same equation then holds with F F^T + M S + (M S)^T for F F^T, where
S = sum_k cov_k M^{k-1}.

Kernels that are not linear are replaced by the linear one they amount to near the mean (``linear_kernel``): SGNHT by
SGHMC with the friction at which its thermostat settles, SGRLD and SGRHMC by a constant metric, pSGLD by the
preconditioner that it has learned.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import solve_discrete_lyapunov

from fokker.numeric.random_jax import Given, normal
from fokker.run.gradients import rows
from fokker.sgmcmc.kernel import BoundGradient
from fokker.sgmcmc.matrix import as_dense
from fokker.sgmcmc.metrics import fields_of
from fokker.sgmcmc.psgld import psgld
from fokker.sgmcmc.schedules import constant
from fokker.sgmcmc.sgfs import sgfs
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgld import sgld
from fokker.sgmcmc.sgnht import sgnht
from fokker.sgmcmc.sgrhmc import sgrhmc
from fokker.sgmcmc.sgrld import sgrld
from fokker.target import Target

if TYPE_CHECKING:
    from fokker.run.plan import Plan

STREAMS, GRADIENT_STREAM = 4, 3  # of normals; kernels use the first three
LARGEST = 200  # dimensions for which the equation is solved


class Law(NamedTuple):
    """The stationary law; ``radius`` >= 1 means that there is none."""

    covariance: np.ndarray  # (d, d) of theta
    kinetic: float | None  # E r^T M^-1 r / d after a step
    radius: float


@dataclass(frozen=True)
class _noisy:
    """grad U = precision (theta) + noise_root eta, with ``known`` the estimate of its covariance."""

    precision: Any
    noise_root: Any
    known: Any
    noise: str = "none"

    def bind(self, target: Target) -> BoundGradient:
        def estimate(key: Any, position: Any, batch: Any, aux: Any) -> tuple[Any, Any, Any]:
            eta = normal(key, position.shape, GRADIENT_STREAM, position.dtype)
            return self.precision @ position + self.noise_root @ eta, self.known, aux

        return BoundGradient(lambda position: None, estimate)


class Noise(NamedTuple):
    """The gradient's noise near the posterior."""

    covariance: np.ndarray  # V (d, d)
    known: Any  # V^ as the estimator gives it, or None
    square: np.ndarray  # (d,) mean square of the stochastic gradient, divided by N^2


def linear_kernel(plan: Plan, step_size: float, at: np.ndarray, noise: Noise) -> tuple[Any, Any]:
    """A linear kernel that has the law of the plan's kernel near the point ``at``, and the V^ that goes with it."""
    kernel: Any = plan.kernel
    V, known = noise.covariance, noise.known
    d = len(V)
    if isinstance(kernel, sgld):
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant()), known
    if isinstance(kernel, sghmc):
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant(), resample_momentum=None), known
    if isinstance(kernel, psgld):
        return sgld(step_size, diffusion=1 / (float(kernel.damping) + np.sqrt(noise.square))), known
    if isinstance(kernel, sgfs):
        precision = kernel.precision
        if precision is None:
            n, N = plan.batch_size, rows(plan.target)
            assert n is not None
            precision = np.asarray(known, float) * (n / (N - n))
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant(), precision=precision), known
    if isinstance(kernel, sgnht):
        return _settled(kernel, plan, step_size, V, known)
    if isinstance(kernel, (sgrld, sgrhmc)):
        here = jnp.asarray(at, plan.dtype)
        field, _ = fields_of(plan.target, here, kernel.metric, kernel.metric_inverse)
        G_inverse = np.asarray(as_dense(field(here), d), float)
        if isinstance(kernel, sgrld):
            return sgld(step_size, diffusion=G_inverse), known
        values, vectors = np.linalg.eigh(G_inverse)
        S_inverse = (vectors / np.sqrt(values)) @ vectors.T  # r = S^-1 r' has mass G and theta moves by G^-1 r'
        A = G_inverse if kernel.friction is None else np.asarray(as_dense(jnp.asarray(kernel.friction), d), float)
        friction, mass = S_inverse @ A @ S_inverse, S_inverse @ S_inverse
        return sghmc(step_size, friction=friction, mass=mass, integrator=kernel.integrator), known
    raise TypeError(f"{type(kernel).__name__} has no linear form")


def _settled(kernel: sgnht, plan: Plan, eps: float, V: np.ndarray, known: Any) -> tuple[Any, Any]:
    """SGHMC with friction xi M where the thermostats settle; 2 (xi - A) M / eps of its noise is not injected."""
    d = len(V)
    mass = np.broadcast_to(np.asarray(kernel.mass, float), (d,))
    unknown = V if known is None else V - np.asarray(as_dense(known, d), float)
    sizes = [v.last - v.first for v in plan.layout.variables]
    group = {"all": np.zeros(d, int), "each": np.arange(d), "leaves": np.repeat(np.arange(len(sizes)), sizes)}
    labels = group[kernel.thermostat] if isinstance(kernel.thermostat, str) else np.asarray(kernel.thermostat)
    heat = np.diag(unknown) / mass
    heat = (np.bincount(labels, heat) / np.bincount(labels))[labels]
    A = np.asarray(kernel.diffusion, float)
    injected = A[labels] if A.ndim else np.broadcast_to(A, (d,))
    xi = np.maximum(injected + eps * heat / 2, 1e-9 * injected)
    taken = np.diag(2 * (xi - injected) * mass / eps)
    if known is not None:
        taken = taken + np.asarray(as_dense(known, d), float)
    return sghmc(eps, friction=xi * mass, mass=mass, integrator=kernel.integrator), taken


def friction_of(linear: Any, d: int) -> np.ndarray:
    """F with 2 F the noise that the method injects beside the force, per unit of time: D^-1, C or 2 B, (d, d)."""
    if isinstance(linear, sgld):
        return np.linalg.inv(np.asarray(as_dense(jnp.asarray(linear.diffusion), d), float))
    value = linear.friction if isinstance(linear, sghmc) else 2 * np.asarray(linear.injected)
    return np.asarray(as_dense(jnp.asarray(value), d), float)


def gaussian_law(linear: Any, precision: np.ndarray, V: np.ndarray, known: Any, epoch: int | None = None) -> Law:
    """The law of a linear kernel on exp(-theta^T precision theta / 2); epoch: batches without replacement, E of them."""
    d = len(precision)
    with jax.enable_x64(True):
        wide = lambda value: jnp.asarray(value, jnp.float64)
        values, vectors = np.linalg.eigh(V)
        root = wide(vectors * np.sqrt(np.maximum(values, 0.0)))
        linear = dataclasses.replace(
            linear,
            **{
                f.name: np.asarray(v, float)
                for f in dataclasses.fields(linear)
                if hasattr(v := getattr(linear, f.name), "dtype")
            },
        )
        gradient = _noisy(wide(precision), root, None if known is None else jax.tree.map(wide, known))
        bound = linear.bind(Target.from_log_density(lambda theta: 0.0), gradient)
        still = jnp.zeros((STREAMS, d))
        state = bound.init(jnp.zeros(d), Given(still))
        fields = [name for name in ("position", "momentum") if hasattr(state, name)]
        z0, unravel = ravel_pytree([getattr(state, name) for name in fields])

        def advance(z: Any, normals: Any) -> Any:
            now = state._replace(**dict(zip(fields, unravel(z), strict=True)))
            after, _ = bound.step(Given(normals), now, None)
            return ravel_pytree([getattr(after, name) for name in fields])[0]

        M, F = (np.asarray(J) for J in jax.jit(jax.jacfwd(advance, argnums=(0, 1)))(z0, still))
        F = F.reshape(len(z0), STREAMS, d)
    roots, modes = np.linalg.eig(M)
    radius = float(np.abs(roots).max())
    if radius >= 1:
        return Law(np.full((d, d), np.inf), np.inf, radius)
    from_gradient = F[:, GRADIENT_STREAM]
    injected = F[:, :GRADIENT_STREAM].reshape(len(z0), -1)
    G = from_gradient @ from_gradient.T
    source = injected @ injected.T + G
    if epoch is not None and epoch > 1:
        memory = (modes * _epoch_sum(roots, epoch)) @ np.linalg.inv(modes)
        cross = M @ memory.real @ G
        source = source + cross + cross.T
    P = solve_discrete_lyapunov(M, source)
    kinetic = None
    if len(z0) > d:
        mass = np.asarray(as_dense(jnp.asarray(linear.mass), d), float)
        kinetic = float(np.trace(np.linalg.solve(mass, P[d:, d:])) / d)
    return Law(P[:d, :d], kinetic, radius)


def _epoch_sum(root: np.ndarray, E: int) -> np.ndarray:
    """sum over k = 1 .. E - 1 of -(1 - k/E) / (E - 1) root^(k-1)."""
    k = np.arange(1, E)
    weights = -(1 - k / E) / (E - 1)
    return np.array([(weights * r ** (k - 1)).sum() for r in root])
