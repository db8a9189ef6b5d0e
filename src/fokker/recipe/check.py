"""Does a sampler leave exp(-H) invariant? The stationary Fokker-Planck equation, evaluated at many points.

For dz = f dt + sqrt(2 D) dW (Ma, Chen & Fox 2015, eqs. (2) and (4)) the probability current at p = exp(-H) is
F p with

    F = f - div D + D grad H,       (div D)_i = sum_j dD_ij / dz_j,

and exp(-H) is stationary if and only if (1/p) div(F p) = 0 everywhere,

    R = div F - F . grad H = 0,

for smooth f, D and H that decay at infinity; where F itself is zero the diffusion is reversible. Neither Q
nor Gamma is needed, so a sampler that was written by hand can be tested. Everything is differentiated forward
in float64.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.errors import InputError
from fokker.recipe.recipe import (
    Field,
    State,
    divergence_of,
    flatten,
    like,
    matrix,
    over_basis,
    points_around,
    scalar,
    shown,
    stacked,
)

# Up to this size the divergence is exact, O(n^4) for a state-dependent D; beyond, random probes estimate it.
EXACT_UP_TO = 200
_PROBES = 64
FEW = 200_000  # states up to which the compiler is spared its optimisations: they take longer than the work
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_STANDARD_ERRORS = 5.0
_MATRIX_TOLERANCE = 1e-6  # as in `Recipe.validate`: what inverting a matrix in float32 explains


@dataclass(frozen=True, eq=False)
class CheckResult:
    """What `check` found. True if the residual vanishes; printed, it says what that means and what not.

    Residuals are relative: |R| divided by the sum of the absolute values of the terms that have to cancel in
    it, so that neither the unit of time nor the number of data changes the verdict.
    """

    ok: bool
    reversible: bool  # the current F vanishes too: no curl
    residual: float  # the largest, relative; with probes, the one that exceeds its own noise most
    absolute: float  # |R| there
    worst_point: State
    limit: float  # what the relative residual may be there
    points: int
    dimension: int
    exact: bool  # the divergence was taken exactly, not estimated by random probes
    resolution: float  # the relative residual that would have been noticed at every point
    hints: tuple[str, ...]  # changes that would make the residual vanish

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        how = "exact divergence" if self.exact else f"by random probes, which notice {self.resolution:.1e}"
        measured = (
            f"Relative residual {self.residual:.2g} (limit {self.limit:.1g}; |R| = {self.absolute:.2g}), "
            f"the worst of {self.points} points in dimension {self.dimension}, {how}."
        )
        if self.ok:
            head = "RIGHT: this drift and diffusion leave exp(-H) invariant at every point looked at."
            kind = (
                "The current vanishes, so the dynamics are reversible: no curl."
                if self.reversible
                else "The current circulates without a source, so the dynamics are irreversible: a curl."
            )
            caveat = (
                "This does not show that the chain finds its way everywhere (ergodicity; HMC needs its "
                "momentum drawn anew), nor how large the bias of a finite step is, nor anything between the "
                "points."
            )
            return _filled(head, measured, kind, caveat)
        head = "WRONG: this drift and diffusion do not leave exp(-H) invariant."
        where = f"Worst at {shown(self.worst_point)}."
        if self.hints:
            advice = "The residual would vanish if " + "; or if ".join(self.hints) + "."
        elif self.residual < 1e-4:
            advice = (
                "A residual this small may come from constants that were computed in float32 (an inverse, a "
                "Cholesky factor) before the check: compute them with NumPy, in float64."
            )
        else:
            advice = "Compare the drift with that of fokker.Recipe(H, D, Q), whose Gamma comes by differentiation."
        return _filled(head, measured, where, advice)

    __repr__ = __str__


def check(
    drift: Callable[[State], State],
    D: Field,
    H: Callable[[State], Array],
    at: State = None,
    *,
    points: State = None,
    count: int = 20,
    scale: float = 1.0,
    seed: int = 0,
    tolerance: float = 1e-9,
    probes: int | None = None,
) -> CheckResult:
    """Whether dz = drift dt + sqrt(2 D) dW leaves exp(-H) invariant.

    `drift(z)` is a pytree like the state z, `D(z)` an (n, n) matrix in ravelled order or such a constant,
    `H(z)` a scalar. Looked at are the example state `at` and count - 1 states around it, at + scale N(0, I);
    or `points`, states stacked along a leading axis, where the support is not the whole space.

    Up to 200 dimensions the divergence is exact, and `tolerance` is for the relative residual. Beyond, or
    where `probes` is given, it is estimated from that many random directions per point: a right sampler then
    passes if its estimates are within 5 standard errors of zero, and `resolution` tells what may have
    escaped.

    >>> import jax.numpy as jnp
    >>> H = lambda z: z @ z / 2
    >>> bool(check(lambda z: -z, jnp.eye(2), H, jnp.zeros(2)))
    True
    >>> check(lambda z: -z, 2 * jnp.eye(2), H, jnp.zeros(2)).hints
    ('D were multiplied by 0.5 (noise and friction are not of one size)',)
    """
    if not (callable(drift) and callable(H)):
        raise InputError("drift and H have to be functions of the state")
    if not 0 < tolerance < 1:
        raise InputError(f"the tolerance is relative, between 0 and 1, got {tolerance}")
    if probes is not None and probes < 2:
        raise InputError(f"an estimate with an error needs 2 probes or more, got {probes}")
    with jax.enable_x64(True):
        states = points_around(at, count, scale=scale, seed=seed) if points is None else stacked(points)
        n = flatten(jax.tree.map(lambda leaf: leaf[0], states))[0].size
    if probes is None and n > EXACT_UP_TO:
        probes = _PROBES
    terms = evaluate(drift, D, H, states, probes=probes, seed=seed)
    return _verdict(terms, states, n, tolerance, exact=probes is None)


def evaluate(
    drift: Callable,
    D: Field,
    H: Callable,
    states: State,
    *,
    probes: int | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """`_local_terms` at states stacked along a leading axis, in float64; raises where they are unusable."""
    with jax.enable_x64(True):
        count = len(jax.tree.leaves(states)[0])
        n = flatten(jax.tree.map(lambda leaf: leaf[0], states))[0].size
        at_once = min(count, 1024) if n <= 32 else 1  # so many that compiling is quick, so few that memory is small
        keys = jax.random.split(jax.random.key(seed), count)
        constant = None if callable(D) else jnp.asarray(D, float)  # an argument, lest the compiler folds it

        @partial(jax.jit, compiler_options=UNOPTIMISED if count <= FEW else None)
        def mapped(states: State, keys: Array, constant: Array | None) -> dict[str, Array]:
            field = D if constant is None else constant
            local = lambda zk: _local_terms(drift, field, H, zk[0], zk[1], probes)
            return jax.lax.map(local, (states, keys), batch_size=at_once)

        terms = {name: np.asarray(value) for name, value in mapped(states, keys, constant).items()}
    at = lambda k: shown(jax.tree.map(lambda leaf: leaf[k], states))
    finite = np.all([np.isfinite(value.reshape(count, -1)).all(1) for value in terms.values()], axis=0)
    if not finite.all():
        raise InputError(
            f"drift, D, H or their derivatives are not finite at {int((~finite).sum())} of {count} points; "
            "if those lie outside the support, pass points=<states inside it, stacked>; the first is "
            f"{at(int(finite.argmin()))}"
        )
    if terms["asymmetry"].max() > _MATRIX_TOLERANCE:
        raise InputError(f"D has to be symmetric; it is not at {at(int(terms['asymmetry'].argmax()))}")
    if terms["smallest"].min() < -_MATRIX_TOLERANCE:
        raise InputError(f"D has to be positive semidefinite; it is not at {at(int(terms['smallest'].argmin()))}")
    return terms


def _local_terms(drift: Callable, D: Field, H: Callable, z: State, key: Array, probes: int | None) -> dict[str, Array]:
    """At one point: the current F (n,) and R = drift_part - gamma_part + friction_part, with their size.

    The parts are div v - v . grad H of v = f, div D and D grad H. With probes div v is the mean of w .
    (dv/dz) w over random signs w; the second derivatives of D take two such vectors.
    """
    x, unravel = flatten(z)
    energy = scalar(H, unravel)

    def fields(y: Array, sign: Array | None = None) -> Array:  # (n,) -> (3, n)
        f = like(drift(unravel(y)), unravel(y), "drift")
        if sign is None or not callable(D):
            gamma = divergence_of(y, unravel, D=D)
        else:
            gamma = jax.jvp(lambda x: matrix(D, x, unravel, "D"), (y,), (sign,))[1] @ sign
        return jnp.stack([f, gamma, matrix(D, y, unravel, "D") @ jax.grad(energy)(y)])

    if probes is None:
        own = over_basis(lambda e: jax.jvp(fields, (x,), (e,))[1] @ e, x)  # (n, 3): the derivatives dv_i / dz_i
        divergences, size, error = own.sum(0), jnp.abs(own).sum(), jnp.zeros(())
    else:
        signs = jax.random.rademacher(key, (probes, 2, x.size), x.dtype)
        one = lambda wu: jax.jvp(lambda y: fields(y, wu[1]), (x,), (wu[0],))[1] @ wu[0]
        estimates = jax.lax.map(one, signs)  # (probes, 3)
        divergences = estimates.mean(0)
        size = jnp.abs(divergences).sum()
        error = jnp.std(estimates @ jnp.array([1.0, -1.0, 1.0]), ddof=1) / jnp.sqrt(probes)
    v, gradient = fields(x), jax.grad(energy)(x)
    parts = divergences - v @ gradient
    diffusion = matrix(D, x, unravel, "D")
    largest = jnp.maximum(jnp.abs(diffusion).max(), jnp.finfo(x.dtype).tiny)
    return {
        "energy": energy(x),
        "current": v[0] - v[1] + v[2],
        "current_size": jnp.abs(v).sum(),
        "drift_part": parts[0],
        "gamma_part": parts[1],
        "friction_part": parts[2],
        "size": size + (jnp.abs(v) * jnp.abs(gradient)).sum(),
        "standard_error": error,
        "asymmetry": jnp.abs(diffusion - diffusion.T).max() / largest,  # relative, like the next
        "smallest": jnp.linalg.eigvalsh((diffusion + diffusion.T) / 2)[0] / largest,
    }


def _verdict(terms: dict[str, np.ndarray], states: State, n: int, tolerance: float, *, exact: bool) -> CheckResult:
    a, b, c = terms["drift_part"], terms["gamma_part"], terms["friction_part"]
    # Where all terms happen to be small (a mode) the typical size of the problem takes their place.
    size = terms["size"] + np.median(terms["size"])
    size = np.where(size > 0, size, 1.0)
    limit = tolerance + _STANDARD_ERRORS * terms["standard_error"] / size
    vanishes = lambda residual: bool(np.all(np.abs(residual) <= limit * size))

    residual = a - b + c
    ok = vanishes(residual)
    worst = int((np.abs(residual) / (limit * size)).argmax())
    current_size = terms["current_size"] + np.median(terms["current_size"])
    return CheckResult(
        ok=ok,
        reversible=bool(np.all(np.abs(terms["current"]).sum(1) <= tolerance * current_size)),
        residual=float(abs(residual[worst]) / size[worst]),
        absolute=float(abs(residual[worst])),
        worst_point=jax.tree.map(lambda leaf: leaf[worst], states),
        limit=float(limit[worst]),
        points=len(a),
        dimension=n,
        exact=exact,
        resolution=float(limit.max()),
        hints=() if ok or not exact else tuple(_hints(a, b, c, vanishes)),
    )


def _hints(a: np.ndarray, b: np.ndarray, c: np.ndarray, vanishes: Callable[[np.ndarray], bool]) -> list[str]:
    """The mistakes that people make, tried one by one: R is linear in the drift and in the diffusion."""
    hints = []
    if vanishes(a + c):
        hints.append("the divergence of D were added to the drift (Gamma is missing)")
    elif vanishes(a + b + c):
        hints.append("twice the divergence of D were added to the drift (Gamma has the wrong sign)")
    if vanishes(a - b):
        hints.append("D grad H were subtracted from the drift (the noise has no friction to balance it)")
    elif vanishes(a - b - c):
        hints.append("2 D grad H were subtracted from the drift (friction has the wrong sign)")
    slope = c - b
    factor = -(a @ slope) / (slope @ slope) if np.any(slope) else 0.0
    if vanishes(a):
        hints.append("D were zero (the drift alone leaves exp(-H) invariant, the noise does not)")
    elif factor > 0 and vanishes(a + factor * slope):
        hints.append(f"D were multiplied by {factor:.6g} (noise and friction are not of one size)")
    return hints


def _filled(*parts: str) -> str:
    return "\n".join(textwrap.fill(part, 100) for part in parts)
