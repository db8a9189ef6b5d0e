"""The curl behind a sampler: Theorem 2 of Ma, Chen & Fox (2015), carried out in one, two or three dimensions.

A diffusion dz = f dt + sqrt(2 D) dW with stationary density p has a current without sources,

    F_i = f_i p - sum_j d(D_ij p)/dz_j,       sum_i dF_i/dz_i = 0,                          eqs. (S.4), (S.6)

and every skew Q with sum_j d(Q_ij p)/dz_j = F_i makes it a case of the recipe. Two ways to one such Q:

    (Qp)^_ij(k) = (k_j F^_i - k_i F^_j) / (2 pi i |k|^2)                          eq. (S.8), any dimension
    Q_21 = -(1/p) int_-inf^z2 F_1(z_1, s) ds = (1/p) int_-inf^z1 F_2(s, z_2) ds   eq. (S.11), two dimensions

Only the divergence of Q p is determined. In two dimensions that leaves one constant, fixed here by Q p -> 0
at the corner of the box; in three any Q' p without divergence may be added, so "a" Q is returned; in one Q is
zero.

Departure from print: (S.11) has the wrong sign on both lines and before the derivative of D_12 p, and lacks
1/p on the second integral of each line; its lower limits have to be where p vanishes. Theorem 2 writes
theta_j for z_j.

Cost: one evaluation of the drift's derivatives per point and a Fourier transform; memory grows with the
points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import cumulative_simpson

from fokker.errors import InputError
from fokker.recipe.check import evaluate
from fokker.recipe.recipe import Field

_STATIONARY = 1e-8  # largest p R, relative to the largest sum of its terms
_CLOSES = 1e-6  # largest divergence residual of the answer, relative to the largest F
_TAIL = 1e-7  # largest amplitude of F in the upper third of frequencies, relative to the largest
_PERIODIC = 1e-9  # largest difference between opposite faces of a periodic box


@dataclass(frozen=True)
class Grid:
    """A box [lower, upper) with `points` per axis (a number, or one for each axis), in 1 to 3 dimensions, on which
    `recover_curl` evaluates its functions.

    The box has to hold the density (below 1e-8 of its maximum at every face: six or seven sd each way of a normal) and
    the spacing to resolve it (two or three points an sd and more where it bends). `periodic` says that the density
    lives on a torus of that size; the box is then one period.

    >>> Grid((-7.0, -7.0), (7.0, 7.0), 128).shape
    (128, 128)
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    points: int | tuple[int, ...]
    periodic: bool = False

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, tuple(float(a) for a in np.atleast_1d(getattr(self, name))))
        n = len(self.lower)
        if not 1 <= n <= 3 or len(self.upper) != n:
            raise InputError(
                f"a grid has 1, 2 or 3 axes with a lower and an upper end each, got lower = {self.lower} and "
                f"upper = {self.upper}; in more dimensions use fokker.check, which needs no grid"
            )
        points = np.atleast_1d(self.points)
        if points.size == 1:
            points = np.repeat(points, n)
        object.__setattr__(self, "points", tuple(int(m) for m in points))
        if len(self.shape) != n or min(self.shape) < 8:
            raise InputError(f"a grid needs 8 points or more on each of its {n} axes, got {self.shape}")
        if not all(np.isfinite([a, b]).all() and a < b for a, b in zip(self.lower, self.upper, strict=True)):
            raise InputError(f"each axis needs lower < upper, got lower = {self.lower} and upper = {self.upper}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.points  # type: ignore[return-value]  # made a tuple above

    @property
    def axes(self) -> tuple[np.ndarray, ...]:
        """The coordinates along each axis."""
        ends = zip(self.lower, self.upper, self.shape, strict=True)
        return tuple(np.linspace(a, b, m, endpoint=False) for a, b, m in ends)

    @property
    def mesh(self) -> np.ndarray:
        """The points, (n, *shape)."""
        return np.stack(np.meshgrid(*self.axes, indexing="ij"))

    @property
    def wave_numbers(self) -> np.ndarray:
        """k in exp(2 pi i k . z), (n, *shape)."""
        ends = zip(self.lower, self.upper, self.shape, strict=True)
        k = [np.fft.fftfreq(m, d=(b - a) / m) for a, b, m in ends]
        return np.stack(np.meshgrid(*k, indexing="ij"))


@dataclass(frozen=True, eq=False)
class Curl:
    """A skew Q whose recipe is the given diffusion, on a grid; `matrix` evaluates it anywhere in the box."""

    grid: Grid
    Q: np.ndarray  # (n, n, *shape); NaN where p is below `floor` of its maximum: (Qp) / p means nothing there
    Qp: np.ndarray  # (n, n, *shape), Q times p, everywhere
    density: np.ndarray  # (*shape), p scaled to a maximum of 1
    current: np.ndarray  # (n, *shape), F on the same scale
    residual: float  # largest |sum_j d(Q_ij p)/dz_j - F_i|, relative to the largest |F|
    inside: np.ndarray  # (*shape) bool, where Q is given
    log_density: Callable[[Array], Array]
    log_maximum: float

    @property
    def reversible(self) -> bool:
        """Whether there was no current, so that Q = 0 will do."""
        return not np.any(self.Qp)

    @cached_property
    def _coefficients(self) -> np.ndarray:
        return np.fft.fftn(self.Qp, axes=range(2, self.Qp.ndim)) / self.density.size

    def matrix(self, z: Any) -> Array:
        """Q at a point z, (n,) -> (n, n), by trigonometric interpolation of Q p. `Recipe` takes it as its Q.

        Meant for float64, and for points where the density is above the floor.
        """
        z = jnp.asarray(z)
        lower, upper = jnp.asarray(self.grid.lower, z.dtype), jnp.asarray(self.grid.upper, z.dtype)
        turns = (z - lower) / (upper - lower)
        value = jnp.asarray(self._coefficients)
        for axis in reversed(range(z.size)):
            m = self.grid.shape[axis]
            value = value @ jnp.exp(2j * jnp.pi * np.fft.fftfreq(m, d=1 / m) * turns[axis])
        return value.real.astype(z.dtype) / jnp.exp(self.log_density(z) - self.log_maximum)

    def __str__(self) -> str:
        n, share = len(self.grid.shape), self.density[self.inside].sum() / self.density.sum()
        what = "Q = 0: the diffusion is reversible" if self.reversible else f"a skew Q in {n} dimensions"
        return (
            f"{what}, on {' x '.join(map(str, self.grid.shape))} points; divergence residual "
            f"{self.residual:.1e} of the largest current; given where {100 * share:.4g} % of the "
            "probability lies."
        )

    __repr__ = __str__


def recover_curl(
    drift: Callable[[Array], Array],
    D: Field,
    log_density: Callable[[Array], Array],
    grid: Grid,
    *,
    method: Literal["fourier", "integral"] = "fourier",
    floor: float = 1e-4,
    edge: float = 1e-8,
) -> Curl:
    """A curl Q such that drift = -(D + Q) grad H + Gamma with H = -log_density, on a grid, in float64.

    `drift(z)` is (n,), `D(z)` is (n, n) or a constant, `log_density(z)` a scalar up to a constant. `grid` is the
    box and the points on which they are evaluated: `fokker.Grid(lower, upper, points)`. `method`
    is the Fourier construction, or in two dimensions the integral along the second axis, of order four in the
    spacing. Q is given where p exceeds `floor` of its maximum.

    Raises `InputError` where there is no such Q, or none that this grid can hold: the drift does not leave
    the density invariant; p exceeds `edge` of its maximum at a face of a box that is not periodic; the
    functions differ on opposite faces of one that is; a current winds around the torus; the grid is too
    coarse.
    """
    n = len(grid.shape)
    if method not in ("fourier", "integral"):
        raise InputError(f"method has to be 'fourier' or 'integral', got {method!r}")
    if method == "integral" and (n != 2 or grid.periodic):
        raise InputError("the integral is for two dimensions and a density that vanishes at the edge; use 'fourier'")
    if not 0 < floor < 1:
        raise InputError(f"the floor is a fraction of the largest density, between 0 and 1, got {floor}")
    z = grid.mesh.reshape(n, -1).T  # (points, n)
    far = _far_faces(grid) if grid.periodic else np.zeros((0, n))
    terms = evaluate(drift, D, lambda x: -log_density(x), np.concatenate([z, far]))
    here = {name: values[: len(z)] for name, values in terms.items()}
    log_maximum = float(-here["energy"].min())
    p = np.exp(-here["energy"] - log_maximum)
    _require_stationary(here, p, z)
    F = (p * here["current"].T).reshape(n, *grid.shape)
    # What rounding leaves of a current that vanishes is not a current.
    F = np.where(np.abs(F).max() > 1e-12 * (p * here["current_size"]).max(), F, 0.0)
    p = p.reshape(grid.shape)
    if grid.periodic:
        _require_periodic(terms, grid)
        _require_resolution(F, grid)
        _require_no_winding(F)
    else:
        _require_room(p, F, grid, edge)
        if n > 1:  # on the line any current is refused below, however well resolved
            _require_resolution(F, grid)
    if n == 1 and np.any(F):
        raise InputError(
            f"in one dimension the only skew Q is 0, and nothing else can carry this current of {np.abs(F).max():.2g} "
            "(on the scale of a density of height 1); the drift keeps the density up to that alone"
        )

    k = grid.wave_numbers
    Qp = np.zeros((n, n, *grid.shape))
    if method == "integral":
        spacing = (grid.upper[1] - grid.lower[1]) / grid.shape[1]
        integral = cumulative_simpson(F[0], dx=spacing, axis=1, initial=0.0)
        Qp[0, 1], Qp[1, 0] = integral, -integral
    else:
        Qp = _fourier(F, k)
        if n == 2 and not grid.periodic:
            Qp -= Qp[:, :, :1, :1].copy()

    residual = _closes(Qp, F, k)
    limit = _CLOSES if method == "fourier" else 1e-2  # the integral is of order four only
    if residual > limit:
        raise InputError(
            f"the grid does not hold the answer: the divergence of Q p misses the current by {residual:.2g} of its "
            f"maximum (limit {limit:.0e}) with {grid.shape} points; take more points and a wider box"
        )
    inside = p > floor
    return Curl(
        grid=grid,
        Q=np.divide(Qp, p, out=np.full_like(Qp, np.nan), where=np.broadcast_to(inside, Qp.shape)),
        Qp=Qp,
        density=p,
        current=F,
        residual=residual,
        inside=inside,
        log_density=log_density,
        log_maximum=log_maximum,
    )


def _fourier(F: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Q p with mean zero, (n, n, *shape), from F (n, *shape) by (S.8)."""
    n, axes = len(F), tuple(range(1, F.ndim))
    F_hat = np.fft.fftn(F, axes=axes)
    k2 = (k**2).sum(0)
    k2.flat[0] = 1.0  # the mean of F is zero, and so is that of Q p
    Qp = np.zeros((n, *F.shape))
    for i, j in combinations(range(n), 2):
        Qp[i, j] = np.fft.ifftn((k[j] * F_hat[i] - k[i] * F_hat[j]) / (2j * np.pi * k2)).real
        Qp[j, i] = -Qp[i, j]
    return Qp


def _closes(Qp: np.ndarray, F: np.ndarray, k: np.ndarray) -> float:
    """The largest |sum_j d(Q_ij p)/dz_j - F_i|, relative to the largest |F|."""
    if not np.any(F):
        return 0.0
    axes = tuple(range(2, Qp.ndim))
    divergence = np.fft.ifftn((2j * np.pi * k * np.fft.fftn(Qp, axes=axes)).sum(1), axes=tuple(range(1, F.ndim))).real
    return float(np.abs(divergence - F).max() / np.abs(F).max())


def _require_stationary(terms: dict[str, np.ndarray], p: np.ndarray, z: np.ndarray) -> None:
    sources = p * np.abs(terms["drift_part"] - terms["gamma_part"] + terms["friction_part"])
    size = (p * terms["size"]).max()
    if sources.max() > _STATIONARY * size:
        k = int(sources.argmax())
        raise InputError(
            "this drift does not leave the density invariant, so no Q exists: its current has a source of "
            f"{sources[k] / size:.2g} of the terms that should cancel (limit {_STATIONARY:.0e}), worst at z "
            f"= {np.array2string(z[k], precision=4)}. fokker.check(drift, D, H, z) looks closer and names "
            "common mistakes"
        )


def _require_room(p: np.ndarray, F: np.ndarray, grid: Grid, edge: float) -> None:
    speed = np.abs(F).max(0)
    for axis in range(p.ndim):
        for index, end, where in ((0, "lower", grid.lower), (-1, "upper", grid.upper)):
            # Theorem 2 asks for an integrable current; what is left of it at a face would be wrapped around.
            for values, limit, what in ((p, edge, "density"), (speed, 100 * edge * speed.max(), "current")):
                highest = np.take(values, index, axis).max()
                if highest > limit:
                    raise InputError(
                        f"the box is too small: at its {end} face, z_{axis + 1} = {where[axis]:.6g}, the "
                        f"{what} is still {highest / values.max():.2g} of its maximum (limit "
                        f"{limit / values.max():.0e}); widen that axis and keep the spacing, or say "
                        "periodic=True if the density lives on a torus"
                    )


def _far_faces(grid: Grid) -> np.ndarray:
    """The upper faces of the box, axis after axis, (points, n): the lower ones, moved by a period."""
    faces = []
    for axis in range(len(grid.shape)):
        face = np.take(grid.mesh, 0, axis + 1).reshape(len(grid.shape), -1).T.copy()
        face[:, axis] = grid.upper[axis]
        faces.append(face)
    return np.concatenate(faces)


def _require_periodic(terms: dict[str, np.ndarray], grid: Grid) -> None:
    """Compare what was found on each lower face of the grid with what was found on the upper one, after it."""
    count = int(np.prod(grid.shape))
    for name, what in (("energy", "log density"), ("current", "current")):
        values = terms[name].reshape(len(terms[name]), -1)
        inside, start = values[:count].reshape(*grid.shape, -1), count
        for axis in range(len(grid.shape)):
            lower = np.take(inside, 0, axis).reshape(-1, values.shape[1])
            upper = values[start : start + len(lower)]
            start += len(lower)
            gap = np.abs(upper - lower).max()
            if gap > _PERIODIC * (1 + np.abs(values).max()):
                raise InputError(
                    f"the box is said to be periodic, but the {what} at z_{axis + 1} = {grid.lower[axis]:.6g} and "
                    f"at {grid.upper[axis]:.6g} differs by {gap:.2g}; give the box the length of a period, or "
                    "leave periodic out"
                )


def _require_resolution(F: np.ndarray, grid: Grid) -> None:
    """The current has to be smooth on the scale of the spacing: little of it in the upper third of frequencies."""
    spectrum = np.abs(np.fft.fftn(F, axes=tuple(range(1, F.ndim)))).max(0)
    m = np.meshgrid(*(np.abs(np.fft.fftfreq(points)) for points in grid.shape), indexing="ij")
    tail = spectrum[np.any(np.stack(m) > 1 / 3, axis=0)].max() / max(spectrum.max(), np.finfo(float).tiny)
    if tail > _TAIL:
        raise InputError(
            f"the grid is too coarse: frequencies near its limit still carry {tail:.2g} of the current's largest "
            f"amplitude (limit {_TAIL:.0e}) with {grid.shape} points; take more points, or a smaller box if the "
            "density leaves it room"
        )


def _require_no_winding(F: np.ndarray) -> None:
    mean, largest = F.reshape(len(F), -1).mean(1), np.abs(F).max()
    if np.any(np.abs(mean) > _CLOSES * largest):
        raise InputError(
            f"the current has the mean {np.array2string(mean, precision=3)} (largest |F| = {largest:.2g}): it winds "
            "around the torus, where no periodic Q has such a divergence. The density is invariant all the same"
        )
