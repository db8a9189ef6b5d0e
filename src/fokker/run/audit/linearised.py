"""The law of the discrete chain on the Gaussian approximation of the posterior.

There every constant-step kernel is an affine map z+ = M z + F noise, z = (theta, r). M and F are read off the kernel's
own step by differentiation, gradient noise included, and the stationary covariance P = M P M^T + F F^T follows without
simulation. Batches without replacement have noise whose covariance with that of another step of the same epoch of E
batches is -1 / (E - 1) times its own; the law then depends on how far in its epoch a draw is kept
(``_law_within_epoch``), which matters where ``thin`` has a divisor in common with E.

Kernels that are not linear are replaced by the linear one they amount to near the mean (``linear_kernel``): SGNHT by
SGHMC with the friction at which its thermostat settles, SGRLD and SGRHMC by a constant metric, pSGLD by the
preconditioner that it has learned. A run on a manifold comes here as one in the tangent space (``on_manifold``),
where SGGMC is itself and gSGNHT an SGGMC with friction xi.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import solve_discrete_lyapunov

from fokker.geodesic.gsgnht import gsgnht
from fokker.geodesic.sggmc import sggmc
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
    from fokker.run.audit.gradient_noise import Measured
    from fokker.run.plan import Plan

STREAMS, GRADIENT_STREAM = 4, 3  # of normals; kernels use the first three
LARGEST = 200  # dimensions for which the equation is solved
MOST_PHASES = 100  # of an epoch that are averaged over


class Law(NamedTuple):
    """The stationary law; ``radius`` >= 1 means that there is none."""

    covariance: np.ndarray  # (d, d) of theta
    kinetic: float | None  # mean of the kinetic energy that the kernel reports
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


LINEAR = (sgld, sghmc, psgld, sgfs, sgnht, sgrld, sgrhmc, sggmc, gsgnht)  # kernels that ``linear_kernel`` knows


class Epochs(NamedTuple):
    """Batches without replacement, and when the run kept its draws."""

    batches: int  # of an epoch
    phases: np.ndarray  # steps of its epoch that have been made when a draw is kept, one of each

    @classmethod
    def of(cls, plan: Plan) -> Epochs | None:
        if plan.batches is None or plan.batches.order != "epochs":
            return None
        E = plan.batches.per_epoch
        phases = np.unique((plan.warmup + plan.thin * np.arange(1, min(plan.draws, E) + 1)) % E)
        return cls(E, phases[:: -(-len(phases) // MOST_PHASES)])


class Laws(NamedTuple):
    """What gradient noise does on the Gaussian approximation of the posterior."""

    shares: np.ndarray  # (d,) ascending: eps V / 2 over the injected noise, by direction
    left: float | None  # the part of V that is not compensated, as a share of its trace; None without compensation
    chain: Law | None  # None where there are too many parameters
    noiseless: Law | None  # of the same kernel with full-data gradients; of the posterior for sgfs, which needs noise
    epochs: Epochs | None  # None for independent batches


def gaussian_laws(
    plan: Plan,
    eps: float,
    precision: np.ndarray,
    mean: np.ndarray,
    measured: Measured | None,
    groups: np.ndarray | None = None,
) -> Laws:
    """precision: (d, d) of the posterior, symmetric; mean: (d,); measured: the noise of the gradient, None for none.

    groups: (d,) leaf of each coordinate, for thermostats that are one for each.
    """
    d = len(mean)
    size = rows(plan.target) if plan.target.log_likelihood is not None else 1
    V = np.zeros((d, d)) if measured is None else measured.covariance
    known = None if measured is None else measured.known
    square = np.abs(np.diag(V) + np.diag(precision)) / size**2  # at a draw the full gradient has covariance `precision`
    linear, taken = linear_kernel(plan, eps, mean, Noise(V, known, square), groups)
    quiet = Noise(0 * V, None, square)
    still = linear if isinstance(linear, sgfs) else linear_kernel(plan, eps, mean, quiet, groups)[0]
    root = np.linalg.inv(np.linalg.cholesky(friction_of(still, d)))
    shares = np.linalg.eigvalsh(root @ (eps / 2 * V) @ root.T)
    left = None
    if known is not None:
        left = float(1 - np.trace(np.asarray(as_dense(known, d), float)) / np.trace(V))
    epochs = Epochs.of(plan)
    if d > LARGEST:
        return Laws(shares, left, None, None, epochs)
    chain = gaussian_law(linear, precision, V, taken, epochs)
    if isinstance(linear, sgfs):
        return Laws(shares, left, chain, Law(np.linalg.inv(precision), None, 0.0), epochs)
    return Laws(shares, left, chain, gaussian_law(still, precision, 0 * V), epochs)


def linear_kernel(
    plan: Plan, step_size: float, at: np.ndarray, noise: Noise, groups: np.ndarray | None = None
) -> tuple[Any, Any]:
    """A linear kernel that has the law of the plan's kernel near the point ``at``, and the V^ that goes with it."""
    kernel: Any = plan.kernel
    V, known = noise.covariance, noise.known
    if isinstance(kernel, sgld):
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant()), known
    if isinstance(kernel, sghmc):
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant(), resample_momentum=None), known
    if isinstance(kernel, sggmc):
        return dataclasses.replace(kernel, step_size=step_size, schedule=constant()), known
    if isinstance(kernel, gsgnht):
        return _settled_geodesic(kernel, step_size, V, known, groups)
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
    return _constant_metric(kernel, plan, step_size, at), known


def _constant_metric(kernel: Any, plan: Plan, eps: float, at: np.ndarray) -> Any:
    """SGRLD and SGRHMC with the metric they have at one point: SGLD and SGHMC."""
    d, here = len(at), jnp.asarray(at, plan.dtype)
    field, _ = fields_of(plan.target, here, kernel.metric, kernel.metric_inverse)
    G_inverse = np.asarray(as_dense(field(here), d), float)
    if isinstance(kernel, sgrld):
        return sgld(eps, diffusion=G_inverse)
    values, vectors = np.linalg.eigh(G_inverse)
    S_inverse = (vectors / np.sqrt(values)) @ vectors.T  # r = S^-1 r' has mass G and theta moves by G^-1 r'
    A = G_inverse if kernel.friction is None else np.asarray(as_dense(jnp.asarray(kernel.friction), d), float)
    return sghmc(eps, friction=S_inverse @ A @ S_inverse, mass=S_inverse @ S_inverse, integrator=kernel.integrator)


def _settled(kernel: sgnht, plan: Plan, eps: float, V: np.ndarray, known: Any) -> tuple[Any, Any]:
    """SGHMC with friction xi M where the thermostats settle; 2 (xi - A) M / eps of its noise is not injected."""
    d = len(V)
    mass = np.asarray(as_dense(jnp.asarray(kernel.mass, float), d), float)
    unknown = V if known is None else V - np.asarray(as_dense(known, d), float)
    sizes = [v.last - v.first for v in plan.layout.variables]
    group = {"all": np.zeros(d, int), "each": np.arange(d), "leaves": np.repeat(np.arange(len(sizes)), sizes)}
    labels = group[kernel.thermostat] if isinstance(kernel.thermostat, str) else np.asarray(kernel.thermostat)
    heat = np.diag(np.linalg.solve(mass, unknown))
    heat = (np.bincount(labels, heat) / np.bincount(labels))[labels]
    A = np.asarray(kernel.diffusion, float)
    injected = A[labels] if A.ndim else np.broadcast_to(A, (d,))
    xi = np.maximum(injected + eps * heat / 2, 1e-9 * injected)
    taken = 2 * (xi - injected) * mass / eps  # one xi, or a diagonal mass
    if known is not None:
        taken = taken + np.asarray(as_dense(known, d), float)
    return sghmc(
        eps, friction=xi * mass, mass=np.diag(mass) if np.ndim(kernel.mass) < 2 else mass, integrator=kernel.integrator
    ), taken


def _settled_geodesic(kernel: gsgnht, eps: float, V: np.ndarray, known: Any, groups: Any) -> tuple[Any, Any]:
    """SGGMC with friction xi where the thermostats settle; 2 (xi - C) / eps of its noise is not injected."""
    d = len(V)
    unknown = np.diag(V) if known is None else np.diag(V - np.asarray(as_dense(known, d), float))
    labels = np.zeros(d, int) if kernel.thermostat == "all" or groups is None else np.asarray(groups)
    heat = (np.bincount(labels, unknown) / np.bincount(labels))[labels]
    C = float(kernel.friction)
    xi = np.maximum(C + eps * heat / 2, 1e-9 * C)
    taken = np.diag(2 * (xi - C) / eps)
    if known is not None:
        taken = taken + np.asarray(as_dense(known, d), float)
    return sggmc(eps, friction=float(xi[0]) if (labels == labels[0]).all() else xi), taken


def friction_of(linear: Any, d: int) -> np.ndarray:
    """F with 2 F the noise that the method injects beside the force, per unit of time: D^-1, C or 2 B, (d, d)."""
    if isinstance(linear, sgld):
        return np.linalg.inv(np.asarray(as_dense(jnp.asarray(linear.diffusion), d), float))
    value = linear.friction if isinstance(linear, (sghmc, sggmc)) else 2 * np.asarray(linear.injected)
    return np.asarray(as_dense(jnp.asarray(value), d), float)


def gaussian_law(
    linear: Any, precision: np.ndarray, V: np.ndarray, known: Any = None, epochs: Epochs | None = None
) -> Law:
    """The law of a linear kernel on exp(-theta^T precision theta / 2), with gradient noise V and its estimate known."""
    d = len(precision)
    with jax.enable_x64(True):
        step = _Step.of(linear, precision, V, known)
        M, F = step.matrices()
        radius = float(np.abs(np.linalg.eigvals(M)).max())
        if radius >= 1:
            return Law(np.full((d, d), np.inf), np.inf, radius)
        if epochs is None or epochs.batches == 1:
            P = solve_discrete_lyapunov(M, np.einsum("isk,jsk->ij", F, F))
            return Law(P[:d, :d], step.mean_kinetic(P, np.zeros((len(M), step.width))), radius)
        at = _law_within_epoch(M, F, epochs.batches)
        P = np.mean([at(phase)[0] for phase in epochs.phases], axis=0)
        before = [at((phase - 1) % epochs.batches) for phase in epochs.phases]  # where the last step came from
        kinetic = step.mean_kinetic(*(np.mean(parts, axis=0) for parts in zip(*before, strict=True)))
        return Law(P[:d, :d], kinetic, radius)


def _law_within_epoch(M: np.ndarray, F: np.ndarray, E: int) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """phase -> Cov(z) and Cov(z, eta) with the next batch's normals eta, after so many steps of an epoch of E batches.

    After p steps Cov(z, eta) = S_p F_g, S_p = c sum_{k < p} M^k, c = -1 / (E - 1), and

        P_{p+1} = M P_p M^T + F F^T + M S_p G + (M S_p G)^T,    G = F_g F_g^T,    P_E = P_0.

    Where M is diagonal all sums are geometric.
    """
    roots, modes = np.linalg.eig(M)
    roots = np.where(np.abs(roots) < 1e-12, 1e-12, roots)
    back, c = np.linalg.inv(modes), -1 / (E - 1)
    F = np.einsum("ij,jsk->isk", back, F)
    F_g = F[:, GRADIENT_STREAM]
    G = F_g @ F_g.conj().T
    left, right = roots[:, None], roots.conj()[None]
    both = left * right
    alpha = c * roots / (1 - roots)
    constant = np.einsum("isk,jsk->ij", F, F.conj()) + (alpha[:, None] + alpha.conj()) * G

    def since_start(p: int) -> np.ndarray:
        """What the noise of the epoch's first p steps has become."""
        fading = alpha[:, None] * (left**p - both**p) / (left - both)
        fading = fading + alpha.conj() * (right**p - both**p) / (right - both)
        return constant * (1 - both**p) / (1 - both) - G * fading

    P_0 = since_start(E) / (1 - both**E)

    def at(phase: int) -> tuple[np.ndarray, np.ndarray]:
        P = both**phase * P_0 + since_start(phase)
        memory = (c * (1 - roots**phase) / (1 - roots))[:, None] * F_g
        return (modes @ P @ modes.conj().T).real, (modes @ memory).real

    return at


class _Step(NamedTuple):
    """One step of a linear kernel as a function of z and of all its normals."""

    size: int  # of z
    d: int
    width: int  # normals of a stream: d, or as many times that as steps are made with one batch
    advance: Callable[[Any, Any], tuple[Any, Any]]  # z, normals (STREAMS, width) -> z+, kinetic energy or None

    @classmethod
    def of(cls, linear: Any, precision: np.ndarray, V: np.ndarray, known: Any) -> _Step:
        wide = lambda value: jnp.asarray(value, jnp.float64)
        values, vectors = np.linalg.eigh(V)
        root = wide(vectors * np.sqrt(np.maximum(values, 0.0)))
        gradient = _noisy(wide(precision), root, None if known is None else jax.tree.map(wide, known))
        bound = _widened(linear).bind(Target.from_log_density(lambda theta: jnp.zeros(())), gradient)
        width = len(V) * getattr(linear, "steps_per_batch", 1)
        state = bound.init(jnp.zeros(len(V)), Given(jnp.zeros((STREAMS, width))))
        moving = ("point", "velocity") if isinstance(linear, sggmc) else ("position", "momentum")
        fields = [name for name in moving if hasattr(state, name)]
        z0, unravel = ravel_pytree([getattr(state, name) for name in fields])

        def advance(z: Any, normals: Any) -> tuple[Any, Any]:
            now = state._replace(**dict(zip(fields, unravel(z), strict=True)))
            after, info = bound.step(Given(normals), now, None)
            return ravel_pytree([getattr(after, name) for name in fields])[0], getattr(info, "kinetic", None)

        return cls(len(z0), len(V), width, advance)

    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """M (n, n) and F (n, STREAMS, d) with z+ = M z + F normals."""
        z, normals = jnp.zeros(self.size), jnp.zeros((STREAMS, self.width))
        M, F = jax.jit(jax.jacfwd(lambda z, normals: self.advance(z, normals)[0], argnums=(0, 1)))(z, normals)
        return np.asarray(M), np.asarray(F)

    def mean_kinetic(self, P: np.ndarray, memory: np.ndarray) -> float | None:
        """The stationary mean of the kinetic energy as the kernel reports it, wherever in its step that is.

        It is a quadratic form q of (z, normals), and E q = sum over j of q(L_j) with L the root of their covariance.
        """
        if self.size == self.d:
            return None
        n, k = self.size, STREAMS * self.width
        covariance = np.eye(n + k)
        covariance[:n, :n] = P
        gradient = slice(n + GRADIENT_STREAM * self.width, n + GRADIENT_STREAM * self.width + memory.shape[1])
        covariance[:n, gradient], covariance[gradient, :n] = memory, memory.T
        values, vectors = np.linalg.eigh(covariance)
        columns = jnp.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)
        kinetic = jax.vmap(lambda z, normals: self.advance(z, normals)[1])
        return float(jax.jit(kinetic)(columns[:, :n], columns[:, n:].reshape(-1, STREAMS, self.width)).sum())


def _widened(linear: Any) -> Any:
    """The kernel with its arrays in float64."""
    arrays = {f.name: getattr(linear, f.name) for f in dataclasses.fields(linear)}
    wide = {name: np.asarray(value, float) for name, value in arrays.items() if hasattr(value, "dtype")}
    return dataclasses.replace(linear, **wide)
