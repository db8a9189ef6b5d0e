"""Known samplers as their (H, D, Q), in the order of Ma, Chen & Fox (2015), section 3 and supplement D.

After them those of Liu, Zhu & Song (2016), section 3.2, on a manifold seen through a chart. Each function takes
the potential U = -log posterior of a position (a pytree, d entries) and returns a `Recipe` that leaves
exp(-H) invariant, so the position has the density exp(-U). The state is the position itself, `Phase` or
`Thermostat`; matrices follow position, momentum, xi in this order. `TABLE` lists the methods with where their
D and Q live, and `draw_map` draws it (the paper's Fig. S.4).

These are the executable specifications of the kernels in `fokker.sgmcmc` and `fokker.geodesic`, which are the
ones to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.errors import InputError
from fokker.recipe.recipe import Recipe, State, flatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Potential = Callable[[State], Array]  # U(position), a scalar
MatrixOf = Callable[[State], Array]  # of a position: (d, d)
Chart = Callable[[State], Array]  # of a position, the coordinates: a point of the manifold in R^n, (n,)


class Phase(NamedTuple):
    """Position and momentum."""

    position: State
    momentum: State  # like the position


class Thermostat(NamedTuple):
    """Position, momentum, and the friction xi that adapts itself."""

    position: State
    momentum: State  # like the position
    xi: Array  # () for one thermostat, (groups,) or (d,) for several


def sgld(potential: Potential, D: Any = 1.0) -> Recipe:
    """Stochastic gradient Langevin dynamics, eq. (13) and (S.15): H = U, D constant, Q = 0.

    d position = -D grad U dt + sqrt(2 D) dW.
    D: scalar, (d,) or (d, d).
    """
    return Recipe(potential, lambda z: _matrix(D, _size(z), "D"), lambda z: jnp.zeros((_size(z), _size(z))))


def sgrld(potential: Potential, metric_inverse: MatrixOf) -> Recipe:
    """Stochastic gradient Riemannian Langevin dynamics, eq. (14) and (S.16): H = U, D = G^-1, Q = 0.

    d position = (-G^-1 grad U + Gamma) dt + sqrt(2 G^-1) dW, Gamma_i = sum_j dG^-1_ij / dposition_j.
    `metric_inverse(position)` is G^-1, (d, d). Departure from print: (14) subtracts Gamma.
    """
    return Recipe(potential, metric_inverse, lambda z: jnp.zeros((_size(z), _size(z))))


def hmc(potential: Potential, mass: Any = 1.0) -> Recipe:
    """Hamiltonian Monte Carlo, eq. (10) and (S.12): H = U + r^T M^-1 r / 2, D = 0, Q = [[0, -I], [I, 0]].

    d position = M^-1 r dt, dr = -grad U dt. Not ergodic unless r is drawn anew now and then.
    mass M: scalar, (d,) or (d, d).
    """
    return sghmc(potential, friction=0.0, mass=mass)


def sghmc(potential: Potential, friction: Any, mass: Any = 1.0) -> Recipe:
    """Stochastic gradient Hamiltonian Monte Carlo, eq. (12) and (S.14): H and Q of HMC, D = diag(0, C).

    d position = M^-1 r dt, dr = (-grad U - C M^-1 r) dt + sqrt(2 C) dW.
    friction C, mass M: scalar, (d,) or (d, d).
    """

    def H(z: Phase) -> Array:
        r = flatten(z.momentum)[0]
        return potential(z.position) + r @ jnp.linalg.solve(_matrix(mass, r.size, "mass"), r) / 2

    def D(z: Phase) -> Array:
        d = _size(z.position)
        return _momentum_block(_matrix(friction, d, "friction"))

    return Recipe(H, D, lambda z: _coupling(jnp.eye(_size(z.position))))


def sgnht(potential: Potential, friction: float, inertia: float = 1.0) -> Recipe:
    """Stochastic gradient Nose-Hoover thermostat, eq. (15) and (S.17), xi of shape ().

    H = U + r.r / 2 + (tau d / 2) (xi - A)^2, D = diag(0, A I, 0), and in Q the blocks
    Q_{position r} = -I, Q_{r xi} = r / (tau d), with their negative transposes:
    d position = r dt, dr = (-grad U - xi r) dt + sqrt(2 A) dW, dxi = (r.r / d - 1) / tau dt.
    friction A, inertia tau: scalars. Departures from print: (xi - A)^2 has the weight d/2, not 1/(2d) (both
    texts), and the factor r after the bracket of (S.17) does not belong there.
    """
    return _thermostat(potential, friction, inertia, lambda d: (0,) * d)


def msgnht(potential: Potential, friction: Any, inertia: float = 1.0) -> Recipe:
    """The thermostat with a xi of its own for each coordinate, xi of shape (d,).

    H = U + r.r / 2 + (tau / 2) sum_i (xi_i - A)^2, D = diag(0, A I, 0), Q_{r xi} = diag(r) / tau:
    dxi_i = (r_i^2 - 1) / tau dt. friction A: scalar or (d,); inertia tau: scalar.
    """
    return _thermostat(potential, friction, inertia, lambda d: tuple(range(d)))


def grouped_sgnht(potential: Potential, friction: Any, groups: tuple[int, ...], inertia: float = 1.0) -> Recipe:
    """The thermostat with one xi per group of coordinates, xi of shape (groups,).

    `groups` numbers the group of each coordinate of the ravelled position, from 0 without gaps. With m_g of
    them in group g, H has the term (tau m_g / 2) (xi_g - A)^2 and Q_{r_i xi_g} = r_i / (tau m_g) for i in g:
    dxi_g = (|r_g|^2 / m_g - 1) / tau dt. friction A: scalar or (groups,); inertia tau: scalar.
    """
    groups = tuple(int(g) for g in groups)
    if not groups or sorted(set(groups)) != list(range(max(groups) + 1)):
        raise InputError(f"groups have to be numbered from 0 without gaps, one number per coordinate, got {groups}")
    return _thermostat(potential, friction, inertia, lambda d: groups)


def rmhmc(potential: Potential, metric: MatrixOf, friction: Any = 0.0) -> Recipe:
    """Riemann manifold HMC: H = U + log|G| / 2 + r^T G^-1 r / 2, Q = [[0, -I], [I, 0]], D = diag(0, C).

    dr_i = -d_i U - tr(G^-1 d_i G) / 2 + r^T G^-1 (d_i G) G^-1 r / 2 - (C G^-1 r)_i. The metric G(position)
    lives in H alone: Q stays constant, and so does D, which is zero without friction.
    """

    def H(z: Phase) -> Array:
        r, G = flatten(z.momentum)[0], metric(z.position)
        return potential(z.position) + jnp.linalg.slogdet(G)[1] / 2 + r @ jnp.linalg.solve(G, r) / 2

    def D(z: Phase) -> Array:
        return _momentum_block(_matrix(friction, _size(z.position), "friction"))

    return Recipe(H, D, lambda z: _coupling(jnp.eye(_size(z.position))))


def gsgrhmc(potential: Potential, metric_inverse: MatrixOf) -> Recipe:
    """Generalised stochastic gradient Riemann HMC, section 3.2 and Algorithm 1, for any metric G(position).

    H = U + r.r / 2, D = diag(0, G^-1), Q = [[0, -G^-1/2], [G^-1/2, 0]] with the symmetric root:
    d position = G^-1/2 r dt, dr = (-G^-1/2 grad U + Gamma_r - G^-1 r) dt + sqrt(2 G^-1) dW,
    Gamma_r,i = sum_j d(G^-1/2)_ij / dposition_j. `metric_inverse(position)` is G^-1, (d, d).
    Departure from print: (17) has the signs of Gamma and of the friction wrong; Algorithm 1 is right.
    """
    return adaptive(potential, lambda q: symmetric_root(metric_inverse(q)), metric_inverse)


def adaptive(potential: Potential, F: MatrixOf, A: MatrixOf | Any) -> Recipe:
    """What gSGRHMC is a case of: any smooth F(position), square, and any PSD A(position).

    H = U + r.r / 2, D = diag(0, A), Q = [[0, -F], [F^T, 0]]:
    d position = F r dt, dr = (-F^T grad U + div(F^T) - A r) dt + sqrt(2 A) dW,
    div(F^T)_i = sum_j dF_ji / dposition_j. Gradient noise V reaches r as F^T V F.
    F: a function to (d, d), not needed symmetric. A: such a function, or a constant (scalar, (d,),
    (d, d)), which is legal and cheaper.
    """

    def H(z: Phase) -> Array:
        r = flatten(z.momentum)[0]
        return potential(z.position) + r @ r / 2

    def D(z: Phase) -> Array:
        return _momentum_block(_matrix(A(z.position) if callable(A) else A, _size(z.position), "A"))

    return Recipe(H, D, lambda z: _coupling(F(z.position)))


def sggmc(potential: Potential, chart: Chart, friction: Any) -> Recipe:
    """Stochastic gradient geodesic Monte Carlo in coordinates (Liu, Zhu & Song 2016, eq. 5).

    H = U + log|G| / 2 + p^T G^-1 p / 2, D = diag(0, M^T C M), Q = [[0, -I], [I, 0]]:
    dq = G^-1 p dt, dp = (-grad [U + log|G| / 2 + p^T G^-1 p / 2] - M^T C M G^-1 p) dt + sqrt(2 M^T C M) dW.
    `chart(q)` is the point x of the manifold in R^n, an isometric embedding: M = dx / dq, G = M^T M. The momentum is
    p = M^T v for the velocity v of x. U is minus the log density by dq, and U + log|G| / 2 that by the Hausdorff
    measure.
    friction C: scalar, (n,) or (n, n), over the entries of x.
    """

    def D(z: Phase) -> Array:
        M = _chart_basis(chart, z.position)
        return _momentum_block(M.T @ _matrix(friction, len(M), "friction") @ M)

    return Recipe(_geodesic_energy(potential, chart), D, lambda z: _coupling(jnp.eye(_size(z.position))))


def gsgnht(potential: Potential, chart: Chart, friction: float, inertia: float = 1.0) -> Recipe:
    """Geodesic stochastic gradient thermostat in coordinates (Liu, Zhu & Song 2016, eq. 6), xi of shape ().

    H of SGGMC + (tau m / 2) (xi - C)^2, D = diag(0, C G, 0), and in Q the blocks Q_{q p} = -I and
    Q_{p xi} = p / (tau m) with their negative transposes: dp as in SGGMC with xi for the friction,
    dxi = (p^T G^-1 p / m - 1) / tau dt. m is the number of coordinates q, the dimension of the manifold.
    friction C, inertia tau: scalars.
    """
    energy = _geodesic_energy(potential, chart)

    def H(z: Thermostat) -> Array:
        return energy(Phase(z.position, z.momentum)) + inertia * _size(z.position) / 2 * (z.xi - friction) ** 2

    def D(z: Thermostat) -> Array:
        m = _size(z.position)
        M = _chart_basis(chart, z.position)
        return jnp.zeros((2 * m + 1, 2 * m + 1)).at[m : 2 * m, m : 2 * m].set(friction * M.T @ M)

    def Q(z: Thermostat) -> Array:
        m = _size(z.position)
        heat = flatten(z.momentum)[0] / (inertia * m)
        Q = jnp.zeros((2 * m + 1, 2 * m + 1)).at[: 2 * m, : 2 * m].set(_coupling(jnp.eye(m)))
        return Q.at[m : 2 * m, -1].set(heat).at[-1, m : 2 * m].set(-heat)

    return Recipe(H, D, Q)


def _geodesic_energy(potential: Potential, chart: Chart) -> Callable[[Phase], Array]:
    """That of RMHMC with the metric of the chart."""
    metric = lambda q: (lambda M: M.T @ M)(_chart_basis(chart, q))
    return rmhmc(potential, metric).H


def _chart_basis(chart: Chart, position: State) -> Array:
    """M = dx / dq, (n, m): its columns span the tangent space."""
    q, unravel = flatten(position)
    return jax.jacfwd(lambda q: chart(unravel(q)))(q)


def _thermostat(
    potential: Potential, friction: Any, inertia: float, groups_of: Callable[[int], tuple[int, ...]]
) -> Recipe:
    """SGNHT for coordinates in groups: `groups_of(d)` numbers the group of each."""

    def layout(z: Thermostat) -> tuple[np.ndarray, np.ndarray]:  # (d, groups) members, (groups,) sizes
        labels = np.asarray(groups_of(_size(z.position)))
        if labels.size != _size(z.position):
            raise InputError(f"groups number {labels.size} coordinates, the position has {_size(z.position)}")
        members = np.eye(labels.max() + 1)[labels]
        if _size(z.xi) != members.shape[1]:
            raise InputError(f"xi has {_size(z.xi)} entries, {members.shape[1]} are needed")
        return members, members.sum(0)

    def H(z: Thermostat) -> Array:
        r, xi = flatten(z.momentum)[0], flatten(z.xi)[0]
        return potential(z.position) + r @ r / 2 + inertia / 2 * layout(z)[1] @ (xi - friction) ** 2

    def D(z: Thermostat) -> Array:
        members = layout(z)[0]
        per_coordinate = members @ jnp.broadcast_to(jnp.asarray(friction), members.shape[1:])
        return jnp.diag(jnp.concatenate([jnp.zeros(len(members)), per_coordinate, jnp.zeros(members.shape[1])]))

    def Q(z: Thermostat) -> Array:
        members, sizes = layout(z)
        d, g = members.shape
        heat = flatten(z.momentum)[0][:, None] * members / (inertia * sizes)  # (d, groups)
        zero = jnp.zeros
        return jnp.block(
            [
                [zero((d, d)), -jnp.eye(d), zero((d, g))],
                [jnp.eye(d), zero((d, d)), heat],
                [zero((g, d)), -heat.T, zero((g, g))],
            ]
        )

    return Recipe(H, D, Q)


# Matrices.


def _size(tree: State) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def _matrix(value: Any, d: int, name: str) -> Array:
    """A scalar, a diagonal (d,) or a matrix (d, d) as a matrix."""
    a = jnp.asarray(value)
    if a.shape not in ((), (d,), (d, d)):
        raise InputError(f"{name} has to be a scalar, of shape ({d},) or ({d}, {d}), got {a.shape}")
    return a if a.ndim == 2 else jnp.diag(jnp.broadcast_to(a, (d,)))


def _momentum_block(C: Array) -> Array:
    """[[0, 0], [0, C]]."""
    return jnp.block([[jnp.zeros_like(C), jnp.zeros_like(C)], [jnp.zeros_like(C), C]])


def _coupling(F: Array) -> Array:
    """[[0, -F], [F^T, 0]]."""
    return jnp.block([[jnp.zeros_like(F), -F], [F.T, jnp.zeros_like(F)]])


@jax.custom_jvp
def symmetric_root(P: Array) -> Array:
    """The symmetric S with S S = P, for a symmetric positive definite P, (d, d).

    Differentiable where eigenvalues coincide too (an isotropic metric), unlike the eigenvectors that it is
    made of: dS solves S dS + dS S = dP.
    """
    w, v = jnp.linalg.eigh(P)
    return (v * jnp.sqrt(w)) @ v.T


@symmetric_root.defjvp
def _symmetric_root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    root = symmetric_root(*primals)
    return root, _lyapunov(root, *tangents)


@jax.custom_jvp
def _lyapunov(S: Array, R: Array) -> Array:
    """The X with S X + X S = R, for a symmetric positive definite S; differentiable as often as one likes."""
    w, v = jnp.linalg.eigh(S)
    return v @ ((v.T @ R @ v) / (w[:, None] + w)) @ v.T


@_lyapunov.defjvp
def _lyapunov_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (S, R), (dS, dR) = primals, tangents
    X = _lyapunov(S, R)
    return X, _lyapunov(S, dR - dS @ X - X @ dS)


# The table and its map.


@dataclass(frozen=True)
class Method:
    """A row of the table: what the method is called, where its D and Q live, and an example to look at."""

    name: str
    build: Callable[..., Recipe]
    diffusion: Literal["zero", "constant", "adaptive"]
    curl: Literal["zero", "constant", "adaptive"]
    reference: str
    example: Callable[[Potential, int], Recipe]  # the method with some settings, for a position (d,), d >= 2
    state: Callable[[Array], State]  # a state for that example, from a position


def _tilted(q: Array) -> Array:
    """The inverse metric of the examples: I + q q^T / (2 + 2 q.q), (d,) -> (d, d)."""
    return jnp.eye(q.size) + jnp.outer(q, q) / (2 + 2 * q @ q)


def _sheared(q: Array) -> Array:
    """The F of the example of `adaptive`, not symmetric: I + sin(q_i) above the diagonal, (d,) -> (d, d)."""
    return jnp.eye(q.size) + jnp.triu(jnp.broadcast_to(jnp.sin(q)[:, None] / 2, (q.size, q.size)), 1)


def _bowl(q: Array) -> Array:
    """The chart of the examples, of a paraboloid: (d,) -> (d + 1,)."""
    return jnp.append(q, q @ q / 2)


_plain = lambda q: q
_phase = lambda q: Phase(q, jnp.ones_like(q) / 2)
_thermostats = lambda xi: lambda q: Thermostat(*_phase(q), xi(q))
_two_groups = lambda d: tuple(int(2 * i >= d) for i in range(d))
_PAPER = "Ma, Chen & Fox 2015"

# fmt: off
TABLE: tuple[Method, ...] = (
    Method("SGLD", sgld, "constant", "zero", "Welling & Teh 2011",
           lambda u, d: sgld(u, 0.7), _plain),
    Method("SGRLD", sgrld, "adaptive", "zero", "Patterson & Teh 2013",
           lambda u, d: sgrld(u, _tilted), _plain),
    Method("HMC", hmc, "zero", "constant", "Duane et al. 1987",
           lambda u, d: hmc(u, 1.5), _phase),
    Method("RMHMC", rmhmc, "zero", "constant", "Girolami & Calderhead 2011",
           lambda u, d: rmhmc(u, _tilted), _phase),
    Method("SGHMC", sghmc, "constant", "constant", "Chen, Fox & Guestrin 2014",
           lambda u, d: sghmc(u, 0.8, 1.5), _phase),
    Method("SGNHT", sgnht, "constant", "adaptive", "Ding et al. 2014",
           lambda u, d: sgnht(u, 0.8, inertia=1.5), _thermostats(lambda q: jnp.asarray(0.8))),
    Method("SGNHT per coordinate", msgnht, "constant", "adaptive", "Ding et al. 2014",
           lambda u, d: msgnht(u, 0.8), _thermostats(lambda q: 0.8 * jnp.ones_like(q))),
    Method("SGNHT per group", grouped_sgnht, "constant", "adaptive", "this package",
           lambda u, d: grouped_sgnht(u, np.array([0.8, 1.1]), _two_groups(d), inertia=1.5),
           _thermostats(lambda q: jnp.array([0.8, 1.1]))),
    Method("gSGRHMC", gsgrhmc, "adaptive", "adaptive", _PAPER,
           lambda u, d: gsgrhmc(u, _tilted), _phase),
    Method("any F(θ), A(θ)", adaptive, "adaptive", "adaptive", "this package",
           lambda u, d: adaptive(u, _sheared, _tilted), _phase),
    Method("SGGMC", sggmc, "adaptive", "constant", "Liu, Zhu & Song 2016",
           lambda u, d: sggmc(u, _bowl, 0.8 + np.arange(d + 1) / d), _phase),
    Method("gSGNHT", gsgnht, "adaptive", "adaptive", "Liu, Zhu & Song 2016",
           lambda u, d: gsgnht(u, _bowl, 0.8, inertia=1.5), _thermostats(lambda q: jnp.asarray(0.8))),
)
# fmt: on


def draw_map(ax: Axes | None = None) -> Axes:
    """Draw the table as the map of D x Q, after the paper's Fig. S.4, and return the axes.

    Needs matplotlib (`pip install fokker[plot]`). Without `ax` they belong to a new `.figure`, which no
    window shows.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if ax is None:
        ax = Figure(figsize=(7.2, 5.4), layout="constrained").add_subplot()
    places = ("zero", "constant", "adaptive")
    for i, diffusion in enumerate(places):
        for j, curl in enumerate(places):
            rows = [m for m in TABLE if (m.diffusion, m.curl) == (diffusion, curl)]
            still = diffusion == curl == "zero"
            new = any(m.reference == _PAPER for m in rows)
            colour = "#f2c879" if new else "#cfe0ee" if rows else "#ffffff"
            cell = Rectangle((i - 0.5, j - 0.5), 1, 1, facecolor=colour, edgecolor="#7a8794", linewidth=0.8)
            ax.add_patch(cell).set_clip_on(False)
            text = "\n".join(m.name for m in rows) if rows else "nothing moves" if still else "not yet filled"
            ax.text(i, j, text, ha="center", va="center", fontsize=10, color="#1c2833" if rows else "#98a2ac")
    ax.set(xlim=(-0.5, 2.5), ylim=(-0.5, 2.5), xlabel="diffusion D(z)", ylabel="curl Q(z)")
    ax.set_xticks(range(3), places)
    ax.set_yticks(range(3), places)
    ax.tick_params(length=0, pad=8)
    ax.spines[:].set_visible(False)
    return ax
