"""From what a user gives to what the loop needs: everything that decides the draws, checked once."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fokker.data.batches import Batches, Order
from fokker.data.sources import Source, as_source, check_batch_size, check_in_memory, fingerprint
from fokker.errors import InputError, SpaceError
from fokker.run.gradients import control_variates, minibatch
from fokker.run.layout import Layout, layout
from fokker.sgmcmc.kernel import Gradient, Kernel
from fokker.sgmcmc.sghmc import sghmc
from fokker.sgmcmc.sgnht import sgnht

if TYPE_CHECKING:
    from fokker.target import Target

KNOWN_ELSEWHERE = {
    "num_samples": "draws",
    "n_samples": "draws",
    "num_warmup": "warmup",
    "tune": "warmup",
    "burn_in": "warmup",
    "num_chains": "chains",
    "random_seed": "seed",
    "rng_key": "seed",
    "random_state": "seed",
    "progress_bar": "progress",
    "progressbar": "progress",
    "init_params": "init",
    "initvals": "init",
    "minibatch_size": "batch_size",
    "thinning": "thin",
}
SETTINGS = ("warmup", "thin", "chains", "batch_size", "batches", "share_batches", "seed", "dtype")


@dataclass(frozen=True)
class Plan:
    """What decides the draws of a run. Two equal plans give the same draws."""

    target: Target  # on ravelled vectors
    kernel: Kernel
    gradient: Gradient
    layout: Layout
    starts: tuple[np.ndarray, ...]  # (d,) of every chain
    draws: int
    warmup: int
    thin: int
    seed: int
    dtype: str
    batches: Batches | None  # windows of rows in memory
    source: Source | None  # rows that are not in memory
    batch_size: int | None
    share_batches: bool

    @property
    def chains(self) -> int:
        return len(self.starts)

    def summary(self) -> dict[str, Any]:
        """The settings, without what needs a pass over the data."""
        return {
            "kernel": describe(self.kernel),
            "gradient": describe(self.gradient),
            "draws": self.draws,
            "warmup": self.warmup,
            "thin": self.thin,
            "chains": self.chains,
            "seed": self.seed,
            "dtype": self.dtype,
            "batch_size": self.batch_size,
            "batches": None if self.batches is None else self.batches.order,
            "share_batches": self.share_batches,
            "resumable": self.source is None or self.source.resumable,
            "variables": {v.name: list(v.shape) for v in self.layout.variables},
        }

    def settings(self) -> dict[str, Any]:
        """What ``run.json`` remembers; a resumed run must agree in all of it but ``draws``."""
        return {
            **self.summary(),
            "start": _digest(np.stack(self.starts)),
            "data": self._data_fingerprint(),
            "log_density": self._log_density_fingerprint(),
        }

    def _data_fingerprint(self) -> str | None:
        if self.target.log_likelihood is None:
            return None
        if self.source is not None:
            return self.source.fingerprint
        return fingerprint(self.target.data)

    def _log_density_fingerprint(self) -> float:
        theta = jnp.asarray(self.starts[0])
        if self.target.log_likelihood is None:
            return float(self.target.log_prior(theta))
        return float(self.target.log_density(theta, first_rows(self, 100)))


def first_rows(plan: Plan, count: int) -> Any:
    """At most ``count`` rows of the data, to look at shapes and values; a pytree of JAX arrays."""
    source = plan.source
    if source is None:
        batch = jax.tree.map(lambda leaf: leaf[:count], plan.target.data)
    elif source.resumable and source.streams is None:
        assert source.size is not None
        batch = source.rows(0, min(count, source.size))
    else:  # an iterator, which cannot be asked without being used up
        batch = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), source.row)
    return jax.tree.map(lambda leaf: jnp.asarray(cast(np.asarray(leaf), plan.dtype)), batch)


def precision(dtype: str) -> AbstractContextManager[Any]:
    """The context in which a run of this precision computes; nothing is changed outside it."""
    return jax.enable_x64(True) if dtype == "float64" else nullcontext()


def plan_again(
    settings: Mapping[str, Any],
    target: Target,
    kernel: Kernel | None,
    gradient: Gradient | None,
    init: Any = None,
    draws: int | None = None,
) -> Plan:
    """The plan of a run from its settings and what cannot be stored."""
    plan = make_plan(
        target,
        sghmc() if kernel is None else kernel,
        minibatch() if gradient is None else gradient,
        init=init,
        draws=max(draws or 0, settings["draws"]),
        **{name: settings[name] for name in SETTINGS},
    )
    return as_chosen(plan, settings["chosen"])


def as_chosen(plan: Plan, chosen: dict[str, Any]) -> Plan:
    """The plan with what was once chosen for it."""
    kernel, gradient, starts = plan.kernel, plan.gradient, plan.starts
    values = {name: np.asarray(v) if isinstance(v, list) else v for name, v in chosen.get("kernel", {}).items()}
    if values:
        kernel = dataclasses.replace(kernel, **values)  # type: ignore[type-var]
    if "centre" in chosen:
        assert isinstance(gradient, control_variates)
        gradient = dataclasses.replace(gradient, centre=np.asarray(chosen["centre"], plan.dtype))
    if "starts" in chosen:
        starts = tuple(np.asarray(start, plan.dtype) for start in chosen["starts"])
    return dataclasses.replace(plan, kernel=kernel, gradient=gradient, starts=starts)


def refuse_unknown(unknown: Mapping[str, Any], known: list[str]) -> None:
    """An InputError that names the argument that was probably meant."""
    for name in unknown:
        near = KNOWN_ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
        hint = f"did you mean {near}=?" if near else f"known are {', '.join(known)}."
        raise InputError(f"sample got an unknown argument {name}=; {hint}")


def make_plan(
    target: Target,
    kernel: Kernel,
    gradient: Gradient,
    *,
    init: Any,
    draws: int,
    warmup: int,
    thin: int,
    chains: int,
    batch_size: int | None,
    batches: Order | None,
    share_batches: bool,
    seed: int,
    dtype: str,
) -> Plan:
    """Check and convert everything a user gives. Runs inside the precision context of the run."""
    for name, value, least in (
        ("draws", draws, 1),
        ("warmup", warmup, 0),
        ("thin", thin, 1),
        ("chains", chains, 1),
    ):
        if not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(f"{name} must be a whole number >= {least}, got {value!r}.")
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be 'float32' or 'float64', got {dtype!r}.")
    if not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed must be a whole number, got {type(seed).__name__}; a JAX key is not needed.")
    starts, lay = _starts(target, init, chains, seed, dtype)
    _check_space(target, kernel, starts, lay)
    full_data = bool(getattr(kernel, "full_data", False))
    windows, data = None, target.data
    source = None if target.log_likelihood is None else as_source(data)
    if target.log_likelihood is None:
        if batch_size is not None:
            raise InputError("batch_size was given, but the target has no rows; leave it out.")
    elif source is not None:
        data, batch_size = source, 100 if batch_size is None else batch_size
        _check_source(source, kernel, batch_size, 1 if share_batches else chains)
    else:
        data, size = check_in_memory(data)
        data = jax.tree.map(lambda leaf: cast(leaf, dtype), data)
        if full_data and batch_size is not None:
            raise InputError(f"{type(kernel).__name__} uses all rows in every step; leave batch_size out.")
        if not full_data:
            batch_size = min(size, max(100, size // 1000)) if batch_size is None else batch_size
            white = gradient.noise != "none" or isinstance(kernel, sgnht)  # a thermostat, too, takes noise for white
            order = batches or ("independent" if white else "epochs")
            row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(data)) // size
            windows = Batches.of(size, batch_size, row_bytes, int(seed), order)
    flat = dataclasses.replace(target, data=data).ravelled(lay.unravel)
    if isinstance(gradient, control_variates) and gradient.centre is not None:
        centre = np.asarray(jax.flatten_util.ravel_pytree(gradient.centre)[0], dtype)
        if centre.shape != (lay.size,):
            raise InputError(f"the centre has {centre.size} entries, the parameters have {lay.size}.")
        gradient = dataclasses.replace(gradient, centre=centre)
    plan = Plan(
        flat,
        kernel,
        gradient,
        lay,
        starts,
        int(draws),
        int(warmup),
        int(thin),
        int(seed),
        dtype,
        windows,
        source,
        batch_size,
        share_batches,
    )
    _check_target(plan)
    return plan


def _starts(target: Target, init: Any, chains: int, seed: int, dtype: str) -> tuple[tuple[np.ndarray, ...], Layout]:
    """Where the chains begin: one pytree for all, a list of pytrees, or a function of a JAX key."""
    if init is None:
        init = target.start
    if init is None:
        raise InputError(
            "the run needs a start: pass init= as a pytree of arrays, a list of one per chain, or a function of a key."
        )
    if callable(init):
        keys = jax.random.split(jax.random.key(seed), chains)
        points = [init(keys[c]) for c in range(chains)]
    elif isinstance(init, list) and len(init) == chains and chains > 1 and not np.isscalar(init[0]):
        points = init
    else:
        points = [init] * chains
    try:
        points = [jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), p) for p in points]
    except (TypeError, ValueError) as error:
        raise InputError(f"init must be a pytree of numbers or arrays: {error}") from error
    lay = layout(points[0], target.labels)
    shapes = [jax.tree.map(jnp.shape, p) for p in points]
    if any(s != shapes[0] for s in shapes):
        raise SpaceError(f"the chains' starts have different shapes: {shapes}.")
    vectors = tuple(np.asarray(jax.flatten_util.ravel_pytree(p)[0]) for p in points)
    for c, vector in enumerate(vectors):
        if not np.isfinite(vector).all():
            raise InputError(f"the start of chain {c} has values that are not finite.")
    return vectors, lay


def _check_target(plan: Plan) -> None:
    """Shapes of the log density, once, before anything is compiled; and that it is finite at the starts."""
    theta, target = jnp.asarray(plan.starts[0]), plan.target
    try:
        prior = jax.eval_shape(target.log_prior, theta)
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise InputError(f"log_prior could not be evaluated at init: {type(error).__name__}: {error}") from error
    if prior.shape != ():
        what = "log_prior" if target.log_likelihood is not None else "the log density"
        raise InputError(f"{what} must return a scalar, got shape {prior.shape}; sum it over its entries.")
    if target.log_likelihood is None:
        return
    batch = first_rows(plan, 3)
    few = len(jax.tree.leaves(batch)[0])
    try:
        rows = jax.eval_shape(target.log_likelihood, theta, batch)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise InputError(
            f"log_likelihood could not be evaluated on a batch of {few} rows: {type(error).__name__}: {error}"
        ) from error
    if rows.shape != (few,):
        raise InputError(
            f"log_likelihood must return one number per row, got shape {rows.shape} for {few} rows; do not sum over "
            "rows, or wrap a one-datum function with fokker.per_row(f)."
        )
    value = target.log_density(theta, batch)
    if not np.isfinite(value):
        raise InputError(f"the log density at init is {float(value)}; start where it is finite (init=...).")


def _check_space(target: Target, kernel: Kernel, starts: tuple[np.ndarray, ...], lay: Layout) -> None:
    """The space mirrors the parameters, the starts lie in it, and the kernel can move there."""
    if target.space is None:
        return
    from fokker.manifolds.euclidean import Euclidean
    from fokker.manifolds.product import product

    space = product(target.space, lay.unravel(starts[0]))
    for start in starts:
        space.check(start)
    bounded = [f for f in space.factors if not isinstance(f.space, Euclidean)]
    if bounded and not getattr(kernel, "on_manifolds", False):
        raise SpaceError(
            f"{type(kernel).__name__} moves in flat space and would leave {bounded[0].space}, where {bounded[0].name} "
            "lies; take fokker.sggmc(), fokker.gsgnht() or, with all data, fokker.gmc()."
        )


def _check_source(source: Source, kernel: Kernel, batch_size: int, streams: int) -> None:
    if getattr(kernel, "full_data", False):
        raise InputError(
            f"{type(kernel).__name__} needs all rows in memory in every step; use a minibatch method "
            "(fokker.sghmc, fokker.sgld) for data that stays on disk."
        )
    if source.size is None:
        raise InputError(
            "the number of rows of an iterator is not known, and the likelihood is scaled by it: "
            "pass data=fokker.IteratorSource(iterator, size=N)."
        )
    check_batch_size(batch_size, source.size)
    if source.streams is not None and streams > source.streams:
        raise InputError(
            f"{streams} chains cannot each have batches of their own from an iterator; pass share_batches=True."
        )


def cast(leaf: np.ndarray, dtype: str) -> np.ndarray:
    """Floating numbers in the precision of the run; others as they are."""
    return leaf.astype(dtype, copy=False) if np.issubdtype(leaf.dtype, np.floating) else leaf


def describe(settings: Any) -> dict[str, Any]:
    """A kernel's or estimator's settings as JSON: what cannot be written is replaced by a digest or a name."""
    fields = {f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
    return {"name": type(settings).__name__, **fields}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return describe(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', type(value).__name__)}"
    array = np.asarray(value)
    return array.tolist() if array.size <= 1000 else _digest(array)


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(json.dumps([str(array.dtype), list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
