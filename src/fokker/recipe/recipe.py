"""The recipe of Ma, Chen & Fox (2015): from a Hamiltonian and two matrices to a diffusion that samples it.

    dz = f(z) dt + sqrt(2 D(z)) dW                                                     eq. (2), Ito
    f  = -(D + Q) grad H + Gamma,   Gamma_i = sum_j d(D + Q)_ij / dz_j                 eq. (3)

Law: exp(-H) (with respect to Lebesgue measure) is stationary for every symmetric positive semidefinite D(z)
and every skew Q(z); it is the only stationary density where the diffusion is ergodic, as it is for D > 0. The
updates of this file are Euler steps, so they keep exp(-H) in the limit of a small step.

Departure from print: eqs. (6), (9), (14) and (17) subtract Gamma, which has to be added as in (3). The paper
says that 2 D - eps B is positive semidefinite for every small step eps; it is so only if the range of B lies
in the range of D.

The recipe is written to be read and checked against, not to be fast: a step costs n passes of forward
differentiation for Gamma and an eigendecomposition, O(n^3). The kernels of `fokker.sgmcmc` are the fast ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError

State = Any  # a pytree of floating-point arrays; its entries in ravelled order are z, of shape (n,)
Field = Callable[[State], Array] | Any  # a function of the state, or the constant it returns

# Largest asymmetry or negative eigenvalue, relative to the largest entry, that rounding explains: matrices
# are often inverted in float32 before they come here.
_MATRIX_TOLERANCE = 1e-6
_GAMMA_TOLERANCE = 1e-8


class StepInfo(NamedTuple):
    """What a minibatch step says of its noise 2 D - eps B; arrays, so that they may leave a program."""

    smallest_eigenvalue: Array  # () of 2 D - eps B
    indefinite: Array  # () bool: that eigenvalue is negative, by more than rounding
    largest_step: Array  # () largest eps for which 2 D - eps B is PSD: inf if B = 0, 0 if B leaves range(D)
    escapes: Array  # () bool: B reaches a direction in which D injects no noise
    clipped: Array  # () int: negative eigenvalues that were set to zero

    def require(self, eps: Any = None) -> None:
        """Raise `InputError` if 2 D - eps B was not PSD; for use outside compiled programs."""
        if not bool(self.indefinite):
            return
        given = "this step" if eps is None else f"eps = {float(eps):.6g}"
        what = f"2 D - eps B has the eigenvalue {float(self.smallest_eigenvalue):.6g} at {given}, it needs to be >= 0: "
        if bool(self.escapes):
            raise InputError(
                what + "the gradient noise reaches a direction in which D injects none (the range of B must lie "
                "in the range of D), so no step can compensate it; the largest step that would do is 0. "
                "Add friction there (D > 0), or leave bhat out and accept the bias of order eps."
            )
        largest = float(self.largest_step)
        if not largest > 0:
            raise InputError(what + "D itself is not positive semidefinite; see `Recipe.validate`.")
        raise InputError(
            what + "the gradient's noise exceeds the noise to inject. The largest step that would do is "
            f"{largest:.10g}; take that, a larger batch, a larger D, or on_indefinite='clip'."
        )


@dataclass(frozen=True, init=False, eq=False)
class Recipe:
    """(H, D, Q) and what follows from them: the drift, the full-data update and the minibatch update.

    H(z) is a scalar. D and Q are functions of the state, or constant arrays, of shape (n, n). The state may
    be a pytree: H, D and Q are called with the pytree, while rows and columns of the matrices follow the
    entries in the order of `jax.flatten_util.ravel_pytree` (fields of a tuple in their order, keys of a dict
    sorted).

    `gamma` is a closed form of Gamma (a pytree like the state) for those who have one; it is compared with
    automatic differentiation at once and therefore needs `at`, an example state, or `points`, states stacked
    along a leading axis. With either of the two the shapes and the algebra of D and Q are checked as well
    (see `validate`).

    >>> import jax, jax.numpy as jnp
    >>> langevin = Recipe(lambda z: z @ z / 2, D=jnp.eye(2), Q=jnp.zeros((2, 2)))
    >>> langevin.drift(jnp.array([1.0, -2.0])).tolist()
    [-1.0, 2.0]
    """

    H: Callable[[State], Array]
    D: Field
    Q: Field
    closed_form: Callable[[State], State] | None

    def __init__(
        self,
        H: Callable[[State], Array],
        D: Field,
        Q: Field,
        *,
        gamma: Callable[[State], State] | None = None,
        at: State = None,
        points: State = None,
    ) -> None:
        if not callable(H):
            raise InputError(f"H has to be a function of the state, got {type(H).__name__}")
        for name, field in (("D", D), ("Q", Q)):
            if not callable(field) and (np.ndim(field) != 2 or np.shape(field)[0] != np.shape(field)[1]):
                raise InputError(
                    f"a constant {name} has to be a square matrix, got shape {np.shape(field)}; "
                    "for a multiple of the identity write scale * jnp.eye(n)"
                )
        object.__setattr__(self, "H", H)
        object.__setattr__(self, "D", D)
        object.__setattr__(self, "Q", Q)
        object.__setattr__(self, "closed_form", gamma)
        if at is not None or points is not None:
            self.validate(at, points=points)
        elif gamma is not None:
            raise InputError(
                "a closed form of Gamma is compared with automatic differentiation before it is used: "
                "pass at=<an example state>, or points=<states stacked along a leading axis>"
            )

    # The pieces, in the paper's order.

    def matrices(self, z: State) -> tuple[Array, Array]:
        """D(z) and Q(z), each (n, n)."""
        x, unravel = flatten(z)
        return matrix(self.D, x, unravel, "D"), matrix(self.Q, x, unravel, "Q")

    def gamma(self, z: State) -> State:
        """Gamma_i = sum_j d(D + Q)_ij / dz_j: the closed form if one was given, else by forward
        differentiation.
        """
        x, unravel = flatten(z)
        return unravel(self._gamma(x, unravel))

    def drift(self, z: State) -> State:
        """f = -(D + Q) grad H + Gamma, eq. (3); a pytree like z."""
        x, unravel = flatten(z)
        gradient = jax.grad(scalar(self.H, unravel))(x)
        return unravel(self._drift(x, unravel, gradient))

    def gradient_noise(self, z: State, noise: Any) -> Array:
        """B(z) = (D + Q) diag(V, 0) (D + Q)^T, (n, n): what noise of covariance V in grad H brings into z,
        per eps^2.

        `noise` is V as a vector (its diagonal) or a matrix. Where it is smaller than n it belongs to the
        leading coordinates of the ravelled state: the parameters, if the state is (parameters, momentum,
        ...).
        """
        x, unravel = flatten(z)
        a = matrix(self.D, x, unravel, "D") + matrix(self.Q, x, unravel, "Q")
        return _spread(a, noise)

    def largest_step(self, z: State, noise: Any) -> Array:
        """The largest eps, (), for which 2 D - eps B is positive semidefinite at z. `noise` as in
        `gradient_noise`.

        inf if there is no noise, 0 if it reaches a direction in which D injects none.
        """
        x, unravel = flatten(z)
        D = matrix(self.D, x, unravel, "D")
        return _largest_step(D, _spread(D + matrix(self.Q, x, unravel, "Q"), noise))[0]

    # The updates.

    def step(self, z: State, eps: Any, key: Array) -> State:
        """Full-data update, eq. (6) with Gamma added: z + eps f(z) + N(0, 2 eps D). Returns a pytree like z.

        A D that is not PSD at z raises; inside a compiled program, where nothing can be raised, the state
        becomes NaN.
        """
        x, unravel = flatten(z)
        gradient = jax.grad(scalar(self.H, unravel))(x)
        return self.stochastic_step(z, eps, key, grad_h=unravel(gradient))[0]

    def stochastic_step(
        self,
        z: State,
        eps: Any,
        key: Array,
        *,
        grad_h: State,
        noise: Any = None,
        bhat: Any = None,
        on_indefinite: Literal["raise", "clip"] = "raise",
    ) -> tuple[State, StepInfo]:
        """Minibatch update, eq. (9) with Gamma added: z + eps [-(D + Q) grad H~ + Gamma] + N(0, eps (2 D -
        eps B)).

        `grad_h` is the noisy gradient of H at z, a pytree like z. B is what is subtracted from the injected
        noise because the gradient brings it already: `bhat`, (n, n), or (D + Q) diag(V, 0) (D + Q)^T from
        `noise` = V as in `gradient_noise`; without either it is 0 and the gradient's noise is left to bias
        the law at order eps.

        Where 2 D - eps B has an eigenvalue below -1e-12 of its largest (or below rounding, in float32) the
        default is an `InputError` that names the largest step; inside a compiled program the state becomes
        NaN and the info says why (`info.require(eps)` raises the same error outside). 'clip' sets such
        eigenvalues to zero, counts them in `info.clipped`, and injects more noise than is right.
        """
        if on_indefinite not in ("raise", "clip"):
            raise InputError(f"on_indefinite has to be 'raise' or 'clip', got {on_indefinite!r}")
        if noise is not None and bhat is not None:
            raise InputError("give noise (the covariance V of the gradient) or bhat (the matrix B), not both")
        if not _is_traced(eps) and not (np.ndim(eps) == 0 and 0 < float(eps) < np.inf):
            raise InputError(f"the step eps has to be a positive number, got {eps!r}")
        x, unravel = flatten(z)
        gradient = like(grad_h, z, "grad_h")
        D = matrix(self.D, x, unravel, "D")
        if bhat is not None:
            B = jnp.asarray(bhat, x.dtype)
            if B.shape != D.shape:
                raise InputError(f"bhat has to be of shape {D.shape}, one row per entry of the state, got {B.shape}")
        elif noise is not None:
            B = _spread(D + matrix(self.Q, x, unravel, "Q"), noise)
        else:
            B = jnp.zeros_like(D)
        eps = jnp.asarray(eps, x.dtype)

        covariance = _symmetric(2 * D - eps * B)
        w, v = jnp.linalg.eigh(covariance)
        indefinite = w[0] < -_rounding(x) * jnp.abs(w).max()
        largest, escapes = _largest_step(D, B)
        clip = on_indefinite == "clip"
        info = StepInfo(
            smallest_eigenvalue=w[0],
            indefinite=indefinite,
            largest_step=largest,
            escapes=escapes,
            clipped=jnp.sum(w < -_rounding(x) * jnp.abs(w).max()) if clip else jnp.zeros((), int),
        )
        if not clip and not _is_traced(indefinite):
            info.require(eps)

        root = v * jnp.sqrt(jnp.maximum(w, 0.0))
        if not clip:
            root = jnp.where(indefinite, jnp.nan, root)
        injected = jnp.sqrt(eps) * root @ jax.random.normal(key, x.shape, x.dtype)
        return unravel(x + eps * self._drift(x, unravel, gradient) + injected), info

    # The checks.

    def validate(
        self, at: State = None, *, points: State = None, count: int = 8, scale: float = 0.1, seed: int = 0
    ) -> None:
        """Raise `InputError` unless, in float64, H is scalar, D symmetric PSD, Q skew, a closed Gamma right.

        Looked at: `points`, states stacked along a leading axis; or the example state `at` and `count` - 1
        states drawn around it with standard deviation `scale` and the given seed.
        """
        with jax.enable_x64(True):
            states = points_around(at, count, scale=scale, seed=seed) if points is None else stacked(points)
            first = jax.tree.map(lambda leaf: leaf[0], states)

            def pieces(z):
                x, unravel = flatten(z)
                a = divergence_of(x, unravel, D=self.D, Q=self.Q)
                closed = a if self.closed_form is None else like(self.closed_form(z), z, "gamma")
                return (scalar(self.H, unravel)(x), *self.matrices(z), a, closed)

            H, D, Q, automatic, closed = (np.asarray(a) for a in jax.jit(jax.vmap(pieces))(states))
            names = names_of_entries(first)

        def state(k: int) -> str:
            return "\nat the state " + shown(jax.tree.map(lambda leaf: leaf[k], states))

        looked_at = {"H": H, "D": D, "Q": Q, "Gamma": automatic, "the closed form of Gamma": closed}
        for name, values in looked_at.items():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
            if bad.any():
                raise InputError(
                    f"{name} is not finite at {bad.sum()} of {len(values)} states; if they lie outside the "
                    f"support, pass states inside it as points={state(int(bad.argmax()))}"
                )
        for k, (d, q) in enumerate(zip(D, Q, strict=True)):
            limit = _MATRIX_TOLERANCE * max(np.abs(d).max(), np.finfo(float).tiny)
            i, j = np.unravel_index(np.abs(d - d.T).argmax(), d.shape)
            if abs(d[i, j] - d[j, i]) > limit:
                raise InputError(
                    f"D has to be symmetric, got D[{names[i]}, {names[j]}] = {d[i, j]:.6g} and "
                    f"D[{names[j]}, {names[i]}] = {d[j, i]:.6g}; what is skew belongs into Q{state(k)}"
                )
            smallest = np.linalg.eigvalsh((d + d.T) / 2)[0]
            if smallest < -limit:
                raise InputError(
                    f"D has to be positive semidefinite, its smallest eigenvalue is {smallest:.6g}; "
                    f"write it as A A^T, or test for a sign{state(k)}"
                )
            i, j = np.unravel_index(np.abs(q + q.T).argmax(), q.shape)
            if abs(q[i, j] + q[j, i]) > _MATRIX_TOLERANCE * max(np.abs(q).max(), np.finfo(float).tiny):
                raise InputError(
                    f"Q has to be skew, got Q[{names[i]}, {names[j]}] = {q[i, j]:.6g} and "
                    f"Q[{names[j]}, {names[i]}] = {q[j, i]:.6g}; write it as A - A^T{state(k)}"
                )
        # The floor: rounding of a Gamma that vanishes is not held against a closed form of zero.
        size = max(np.abs(automatic).max(), np.abs(closed).max(), 1e-5 * np.abs(D + Q).max())
        error = np.abs(automatic - closed)
        if error.max() > _GAMMA_TOLERANCE * size:
            k, i = np.unravel_index(error.argmax(), error.shape)
            raise InputError(
                f"the closed form of Gamma is {closed[k, i]:.10g} at entry {names[i]}, differentiation gives "
                f"{automatic[k, i]:.10g}. Gamma_i is the sum over j of d(D + Q)_ij / dz_j, the second "
                f"index, and it is added to the drift; mend the closed form or leave gamma out{state(k)}"
            )

    def _gamma(self, x: Array, unravel: Callable) -> Array:
        if self.closed_form is not None:
            z = unravel(x)
            return like(self.closed_form(z), z, "gamma")
        return divergence_of(x, unravel, D=self.D, Q=self.Q)

    def _drift(self, x: Array, unravel: Callable, gradient: Array) -> Array:
        a = matrix(self.D, x, unravel, "D") + matrix(self.Q, x, unravel, "Q")
        return -a @ gradient + self._gamma(x, unravel)


# States as vectors.


def flatten(z: State) -> tuple[Array, Callable[[Array], State]]:
    """The state as a vector (n,), and the way back. Leaves have to be floating-point."""
    leaves, treedef = jax.tree.flatten(z)
    if not leaves:
        raise InputError("the state has no entries")
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for a in arrays:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            raise InputError(f"states are made of floating-point numbers, got {a.dtype}; write 1.0 for 1")
    return ravel_pytree(jax.tree.unflatten(treedef, arrays))


def like(tree: State, z: State, name: str) -> Array:
    """`tree` as a vector (n,), after a look at its shapes: they have to be those of the state."""
    got, want = jax.tree.map(jnp.shape, tree), jax.tree.map(jnp.shape, z)
    if got != want:
        raise InputError(f"{name} has to be a pytree like the state: needed the shapes {want}, got {got}")
    return flatten(tree)[0]


def scalar(H: Callable[[State], Array], unravel: Callable) -> Callable[[Array], Array]:
    """H as a function of the vector (n,), after a look at what it returns."""

    def energy(x: Array) -> Array:
        value = jnp.asarray(H(unravel(x)))
        if value.shape != ():
            raise InputError(f"H has to return one number, got an array of shape {value.shape}; is a sum missing?")
        return value

    return energy


def matrix(field: Field, x: Array, unravel: Callable, name: str) -> Array:
    """D or Q at the state x, (n, n)."""
    value = jnp.asarray(field(unravel(x)) if callable(field) else field, x.dtype)
    if value.shape != (x.size, x.size):
        raise InputError(
            f"{name} has to be of shape {(x.size, x.size)}, one row per entry of the state, got {value.shape}"
        )
    return value


def divergence(field: Callable[[Array], Array], x: Array) -> Array:
    """(div A)_i = sum_j dA_ij / dx_j of a matrix field, (n,): the sum of (dA/dx_j) e_j, one pass per j."""
    return over_basis(lambda e: jax.jvp(field, (x,), (e,))[1] @ e, x).sum(0)


def over_basis(f: Callable[[Array], Array], x: Array, at_once: int = 32) -> Array:
    """f at each unit vector, stacked; some of them at once, so that memory stays at `at_once` matrices."""
    basis = jnp.eye(x.size, dtype=x.dtype)
    return jax.vmap(f)(basis) if x.size <= at_once else jax.lax.map(f, basis, batch_size=at_once)


def divergence_of(x: Array, unravel: Callable, **fields: Field) -> Array:
    """The divergence of the sum of the named matrix fields, (n,); a constant costs nothing."""
    varying = {name: field for name, field in fields.items() if callable(field)}
    if not varying:
        return jnp.zeros_like(x)
    summed = lambda y: jnp.stack([matrix(a, y, unravel, name) for name, a in varying.items()]).sum(0)
    return divergence(summed, x)


# States to look at.


def points_around(z: State, count: int, *, scale: float, seed: int) -> State:
    """z and count - 1 states drawn around it, z + scale N(0, I), stacked along a leading axis, float64."""
    if z is None:
        raise InputError("pass an example state, or points=<states stacked along a leading axis>")
    if count < 1 or not scale > 0:
        raise InputError(f"needed count >= 1 and scale > 0, got count = {count} and scale = {scale}")
    flatten(z)
    rng = np.random.default_rng(seed)

    def draw(leaf: Any) -> np.ndarray:
        centre = np.asarray(leaf, np.float64)
        offsets = scale * rng.normal(size=(count, *centre.shape))
        offsets[0] = 0.0
        return centre + offsets

    return jax.tree.map(draw, z)


def stacked(points: State) -> State:
    """The given states as float64, after a look at their common leading axis."""
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(points)}
    if len(lengths) != 1 or None in lengths or 0 in lengths:
        raise InputError(
            "points are states stacked along a leading axis, the same for every leaf; got leading axes "
            f"{sorted(map(str, lengths))}. One state alone is passed as `at`"
        )
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), points)


def names_of_entries(z: State) -> list[str]:
    """What to call each entry of the ravelled state in a message: `.momentum[2]`."""
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(z)[0]:
        for index in np.ndindex(np.shape(leaf)):
            names.append(jax.tree_util.keystr(path) + (f"[{', '.join(map(str, index))}]" if index else "") or "z")
    return names


def shown(z: State, entries: int = 6) -> str:
    """The state in a message: its first entries by name."""
    names, values = names_of_entries(z), np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(z)])
    text = ", ".join(f"{name} = {value:.4g}" for name, value in zip(names[:entries], values, strict=False))
    return text + (f", ... ({len(names)} entries)" if len(names) > entries else "")


# The noise.


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _symmetric(a: Array) -> Array:
    return (a + a.T) / 2


def _rounding(x: Array) -> float:
    """What a zero eigenvalue may come out as, relative to the largest: 1e-12, or what the dtype allows."""
    return max(1e-12, 8 * x.size * float(jnp.finfo(x.dtype).eps))


def _spread(a: Array, noise: Any) -> Array:
    """a diag(V, 0) a^T for a = D + Q, (n, n) -> (n, n)."""
    v = jnp.asarray(noise, a.dtype)
    m = v.shape[0] if v.ndim else 0
    if v.ndim not in (1, 2) or v.shape != (m,) * v.ndim or not 1 <= m <= len(a):
        raise InputError(
            f"the noise covariance has to be a vector (m,) or a matrix (m, m) with m <= {len(a)}, got shape "
            f"{v.shape}; for a scalar write scale * jnp.ones(m)"
        )
    leading = a[:, :m]
    return (leading * v if v.ndim == 1 else leading @ v) @ leading.T


def _largest_step(D: Array, B: Array) -> tuple[Array, Array]:
    """Largest eps with 2 D - eps B >= 0, and whether B leaves the range of D (then it is 0).

    In the range of D it is 2 / lambda_max(D^-1/2 B D^-1/2).
    """
    D, B = _symmetric(D), _symmetric(B)
    w, v = jnp.linalg.eigh(D)
    top = jnp.abs(w).max()
    inside = w > _rounding(D[0]) * top
    null = jnp.where(inside, 0.0, v)
    whitened = jnp.where(inside, v / jnp.sqrt(jnp.where(inside, w, 1.0)), 0.0)
    # The entries of B come with rounding; what is left of it outside the range of D is compared with its
    # square root.
    escapes = jnp.abs(null.T @ B @ null).max() > 1e-2 * jnp.sqrt(jnp.finfo(D.dtype).eps) * jnp.abs(B).max()
    strongest = jnp.linalg.eigvalsh(_symmetric(whitened.T @ B @ whitened))[-1]
    largest = jnp.where(strongest > 0, 2 / jnp.where(strongest > 0, strongest, 1.0), jnp.inf)
    indefinite = w[0] < -_rounding(D[0]) * top
    return jnp.where(escapes | indefinite, 0.0, largest), escapes
