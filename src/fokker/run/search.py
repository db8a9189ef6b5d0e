"""The setting of least autocorrelation time within a budget of error, on the quadratic around the mode.

On a quadratic with constant gradient noise the chain's law is known exactly (``linear_chain``), direction by direction,
for every step size and friction. What a coordinate gets is the average over the directions, weighted by their shares of
its variance. A setting is admitted when the worst coordinate's sd is predicted to be off by no more than the budget;
of those the one is taken whose worst coordinate forgets fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fokker.run.linear_chain import law
from fokker.run.local_shape import Directions, Shape, directions

if TYPE_CHECKING:
    from fokker.run.local_noise import Noise

DIRECTION_BUDGET = 0.2  # of the variance along any one direction: sds of linear combinations within 10 %
LOOSE = 3.0  # the same where no matrix can precondition, and a stiff contrast would cost every coordinate dear
WHITENED = 200  # parameters up to which a matrix may: its products cost d^2 a step
THERMOSTATS = ("sgnht", "gsgnht")
PRODUCTS = {"sgld": 2, "sghmc": 4, "sgnht": 5}  # with (d, d) matrices in one step that is preconditioned by one
# eps a_max of SGLD, else eps sqrt(a_max); 2 is where it explodes
LARGEST_STEP = {"sgld": 1.5, "sghmc": 1.5, "sgnht": 1.3, "sggmc": 1.5, "gsgnht": 1.3}
LEAST_INJECTED = 0.1  # share A / xi of SGNHT's noise that is injected, at least
LARGEST_SHARE = 0.5  # of injected noise that the compensation of gradient noise may take away; V^ begins with one batch
NODES = 24  # curvatures at which the laws are computed; in between they are interpolated


@dataclass(frozen=True)
class Problem:
    """What is tuned: the method, its gradient's noise, and what the user's own settings fix."""

    method: str  # "sgld", "sghmc", "sgnht", "sggmc", "gsgnht"
    integrator: str
    noise: Noise
    epoch: int | None  # batches of an epoch without replacement; None where successive batches are independent
    kept: float | None  # friction rate (SGNHT: A) that the user gave; None where it is open


@dataclass(frozen=True)
class Frame:
    """A preconditioner and what the curvature looks like through it: theta = root x."""

    name: str
    root: np.ndarray  # (d,) or (d, d): root root^T is D of SGLD, M^-1 of the others
    view: Directions
    cost: float = 1.0  # of a step, against one with a diagonal
    loose: bool = False  # whether single directions may be far off
    scales: Any = 1.0  # of the leaves, where that is what the root is made of


@dataclass(frozen=True)
class Settings:
    """A point of the search with its prediction."""

    frame: Frame
    eps: float
    friction: float  # rate; for SGNHT the mean of xi
    injected: float  # alpha = A / xi of SGNHT, else 1
    sd_error: float  # predicted sd / true sd - 1 of the worst coordinate
    steps: float  # autocorrelation time of the worst coordinate, the mean of tau and tau of the square; inf: none found
    steps_square: float  # tau of the square alone, of the worst coordinate
    slowest: float  # tau of the slowest direction
    noise_part: float  # of the predicted error of variance of the worst coordinate, what gradient noise brings
    off: float  # predicted |variance / true variance - 1| along the worst direction

    @property
    def price(self) -> float:
        """Steps for an effective draw, in units of a step without a matrix."""
        return self.steps * self.frame.cost


# --- preconditioners ------------------------------------------------------------------------------------------------


def open_frames(shape: Shape, method: str, batch_size: int | None) -> list[Frame]:
    """The preconditioners that are compared: conditional sds, marginal sds, none, the covariance.

    Diagonals to six digits, as they are stored.
    """
    roots = {"conditional": 1 / np.sqrt(shape.diagonal)}
    if shape.hessian is not None:
        roots["marginal"] = np.sqrt(np.diag(shape.covariance()))
        roots["none"] = np.full(shape.size, np.exp(np.log(roots["marginal"]).mean()))
    rounded = {name: np.sqrt([float(f"{v:.6g}") for v in root**2]) for name, root in roots.items()}
    loose = shape.hessian is None or shape.size > WHITENED
    frames = [Frame(name, root, directions(shape, root), loose=loose) for name, root in rounded.items()]
    if not loose and shape.size > 1:
        root = np.linalg.cholesky(shape.covariance())
        of_gradient = 10 * (batch_size or 100)  # two products with the batch, whose rows are not in the nearest cache
        cost = 1 + PRODUCTS[method] * shape.size / of_gradient
        frames.append(Frame("whitened", root, directions(shape, root), cost))
    return frames


def leaf_frames(shape: Shape, leaves: np.ndarray, own: Any = None) -> list[Frame]:
    """For spaces: one scale for all, or one for each leaf, the geometric mean of its sds; or the user's own.

    leaves: (d,) the leaf of each coordinate. Of a manifold no more can be scaled: other metrics have no flow here.
    """
    if own is not None:
        root = np.broadcast_to(np.asarray(own, float), (leaves.max() + 1,))[leaves]
        return [Frame("given", root, directions(shape, root), loose=True)]
    loose = shape.hessian is None or shape.size > WHITENED
    one = np.ones(shape.size)
    frames = [Frame("one scale", one, directions(shape, one), loose=loose)]
    if leaves.max() > 0 and shape.hessian is not None:
        logs = np.log(np.diag(shape.covariance())) / 2
        scales = np.exp([logs[leaves == k].mean() for k in range(leaves.max() + 1)])
        scales = np.array([float(f"{v:.6g}") for v in scales])
        root = scales[leaves]
        frames.append(Frame("by leaf", root, directions(shape, root), loose=loose, scales=scales))
    return frames


def given_frame(shape: Shape, method: str, own: Any) -> Frame:
    """The user's own D of SGLD or M of the others; a number, a diagonal or a matrix."""
    value = np.asarray(own, float)
    if value.ndim == 2:
        L = np.linalg.cholesky(value)
        root = L if method == "sgld" else np.linalg.inv(L).T
    else:
        value = np.broadcast_to(value, (shape.size,))
        root = np.sqrt(value) if method == "sgld" else 1 / np.sqrt(value)
    return Frame("given", root, directions(shape, root), loose=True)


# --- the search -----------------------------------------------------------------------------------------------------


def search(problem: Problem, frame: Frame, budget: float, ceiling: float) -> Settings:
    """The best setting with a step below ``ceiling``, on a coarse grid and then on a fine one."""
    a, kept = frame.view.curvature, problem.kept
    top = min(LARGEST_STEP[problem.method] / (a[-1] if problem.method == "sgld" else np.sqrt(a[-1])), ceiling)
    if problem.method == "sgld":
        friction = np.ones(1)
    elif problem.method in ("sghmc", "sggmc") and kept is not None:
        friction = np.array([kept])
    else:
        friction = np.geomspace(0.05 * np.sqrt(a[0]), 30 * np.sqrt(a[-1]), 24)
    coarse = _best(problem, frame, top * np.geomspace(1e-7, 1.0, 71), friction, budget)
    fine_eps = np.minimum(coarse.eps * np.geomspace(0.75, 1.33, 13), top)
    fine_friction = friction if len(friction) == 1 else coarse.friction * np.geomspace(0.75, 1.33, 9)
    return min(coarse, _best(problem, frame, fine_eps, fine_friction, budget), key=lambda s: s.steps)


def _best(problem: Problem, frame: Frame, eps: np.ndarray, friction: np.ndarray, budget: float) -> Settings:
    """Predictions for all pairs of ``eps`` and ``friction``, and the best of them."""
    method, noise, view = problem.method, problem.noise, frame.view
    V, known = noise.along(view.columns), noise.compensated_along(view.columns)
    excess = V - known
    nodes, mix = _nodes(view.curvature)
    shape = (len(eps), len(friction), 1)
    e, c = np.broadcast_to(eps[:, None, None], shape), np.broadcast_to(friction[None, :, None], shape)
    laws = law(method, problem.integrator, nodes, e, c, problem.epoch, noise.centred)
    alpha = np.ones(shape[:2])
    if method in THERMOSTATS:  # the thermostat makes the kinetic energy right in the mean over directions
        alpha = (1 - laws.kinetic_from_gradient @ (excess @ mix / len(mix))) / (laws.kinetic @ mix.mean(0))

    injected = alpha[..., None] * (laws.variance @ (view.weights @ mix).T)  # (eps, friction, coordinates)
    brought = laws.from_gradient @ ((view.weights * excess) @ mix).T
    balanced = V if method in THERMOSTATS else known  # noise that something else makes up for: a thermostat, or V^
    unsure = noise.doubt * (laws.from_gradient @ ((view.weights * balanced) @ mix).T)
    sd_error = _worse_side(injected + brought, unsure)
    by_direction = alpha[..., None] * (laws.variance @ mix.T) + (laws.from_gradient @ mix.T) * excess
    tau, tau_square = laws.tau @ (view.weights @ mix).T, laws.tau_square @ (view.weights @ mix).T
    steps = ((tau + tau_square) / 2).max(-1)

    ok = laws.stable.all(-1) & (np.abs(sd_error).max(-1) <= budget)
    off = np.abs(by_direction - 1).max(-1)
    ok &= off <= (LOOSE if frame.loose else DIRECTION_BUDGET)
    ok &= e[..., 0] * known.max(initial=0.0) <= 2 * LARGEST_SHARE * (1.0 if method == "sgld" else c[..., 0] * alpha)
    if method in THERMOSTATS:
        ok &= (alpha >= LEAST_INJECTED) & (alpha <= 2)
        if problem.kept is not None:  # of each step the one xi at which A is what the user gave
            miss = np.abs(np.log(np.maximum(alpha * c[..., 0], 1e-300) / problem.kept))
            ok &= miss <= miss.min(axis=1, keepdims=True) + 1e-12
    i, j = np.unravel_index(np.argmin(np.where(ok, steps, np.inf)), ok.shape)
    worst = int(np.argmax(np.abs(sd_error[i, j])))
    total = abs(injected[i, j, worst] + brought[i, j, worst] - 1)
    from_noise = abs(brought[i, j, worst]) + unsure[i, j, worst]
    return Settings(
        frame, float(eps[i]), float(friction[j]), float(alpha[i, j]), float(sd_error[i, j, worst]),
        float(steps[i, j]) if ok.any() else float("inf"), float(tau_square[i, j].max()), float(laws.tau[i, j].max()),
        float(min(1.0, from_noise / max(total + unsure[i, j, worst], 1e-12))), float(off[i, j]),
    )  # fmt: skip


def _worse_side(variance: np.ndarray, unsure: np.ndarray) -> np.ndarray:
    """sd - 1 at that end of variance +- unsure which is farther from 1."""
    high, low = np.sqrt(np.maximum(variance + unsure, 0.0)) - 1, np.sqrt(np.maximum(variance - unsure, 0.0)) - 1
    return np.where(np.abs(high) >= np.abs(low), high, low)


def _nodes(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures at which laws are computed, and the (k, nodes) matrix that interpolates linearly in log a."""
    if len(a) <= NODES:
        return a, np.eye(len(a))
    if a[-1] <= a[0] * (1 + 1e-9):
        return a[:1], np.ones((len(a), 1))
    nodes = np.geomspace(a[0], a[-1], NODES)
    nodes[0], nodes[-1] = a[0], a[-1]
    place = np.interp(np.log(a), np.log(nodes), np.arange(NODES))
    left = np.minimum(place.astype(int), NODES - 2)
    mix = np.zeros((len(a), NODES))
    mix[np.arange(len(a)), left] = 1 - (place - left)
    mix[np.arange(len(a)), left + 1] += place - left
    return nodes, mix
