"""From what a user gives to what the loop needs: everything that decides the draws, checked once."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from fokker.data.batches import Batches, Order
from fokker.data.sources import Source, as_source, check_batch_size, check_in_memory, fingerprint
from fokker.errors import InputError, SpaceError, StoreError
from fokker.run.gradients import control_variates, minibatch, svrg
from fokker.run.layout import Layout, layout
from fokker.sgmcmc.checks import check_count, check_shape, is_whole
from fokker.sgmcmc.kernel import Gradient, Kernel
from fokker.sgmcmc.schedules import cyclical
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
MOST_WARMUP = 10_000  # iterations of a warm-up that nobody chose
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
            "structure": self.layout.structure,
            "space": {name: _of_space(space) for name, space in self._spaces().items()},
        }

    def _spaces(self) -> dict[str, Any]:
        """The space of every variable that is not free."""
        if self.target.space is None:
            return {}
        from fokker.manifolds.euclidean import Euclidean
        from fokker.manifolds.product import product

        factors = product(self.target.space, self.layout.unravel(self.starts[0])).factors
        named = zip(self.layout.variables, factors, strict=True)
        return {v.name: f.space for v, f in named if not isinstance(f.space, Euclidean)}

    def settings(self) -> dict[str, Any]:
        """What ``run.json`` remembers; a resumed run must agree in all of it but ``draws``."""
        return {
            **self.summary(),
            "start": _digest(np.stack(self.starts)),
            "data": self._data_fingerprint(),
            "log_density": self._log_densities(),
            "functions": self._functions(),
        }

    def _data_fingerprint(self) -> str | None:
        if self.target.log_likelihood is None:
            return None
        if self.source is not None:
            return self.source.fingerprint
        return fingerprint(self.target.data)

    def _probes(self) -> list[np.ndarray]:
        """Points at which functions are compared: the start, where a prior may say nothing, and three around it."""
        rng, start = np.random.default_rng(0), self.starts[0]
        away = [rng.standard_normal(start.shape) * (1 + np.abs(start)) for _ in range(3)]
        return [start, *((start + 0.1 * step).astype(start.dtype) for step in away)]

    def _log_densities(self) -> list[float | None]:
        """The log density of some rows at the probes; None where it is not finite."""
        rows = None if self.target.log_likelihood is None else first_rows(self, 100)
        return [_number(self.target.log_density(jnp.asarray(theta), rows)) for theta in self._probes()]

    def _functions(self) -> dict[str, list[float | None]]:
        """Values of the functions among the settings: of a schedule by iteration, of others at the probes."""
        found = {}
        leaves = {v.name: v for v in self.layout.variables}
        for name, space in self._spaces().items():
            if hasattr(space, "residual"):  # a constraint
                entries, shape = slice(leaves[name].first, leaves[name].last), leaves[name].shape
                values = [space.residual(jnp.asarray(theta[entries]).reshape(shape)) for theta in self._probes()]
                found[f"the constraint of {name}"] = [_number(value) for value in values]
        for owner in (self.kernel, self.gradient):
            settings = {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}  # type: ignore[arg-type]
            for name, f in settings.items():
                if not callable(f):
                    continue
                if name == "schedule":
                    values = [f(jnp.int32(10**k)) for k in range(6)]
                else:
                    values = [f(self.target.params(jnp.asarray(theta))) for theta in self._probes()]
                found[f"{type(owner).__name__}.{name}"] = [_number(value) for value in values]
        return found


def _number(value: Any) -> float | None:
    """One number for all entries of a pytree, each with a weight of its own; None where it is not finite."""
    entries = np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(value)])
    number = float(entries @ np.cos(np.arange(len(entries))))
    return number if np.isfinite(number) else None


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
    return _cast_all(batch, plan.dtype, jnp.asarray)


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
    kernel = sghmc() if kernel is None else kernel
    if gradient is None:  # that of a run that was left the choice, or the default
        gradient = control_variates() if settings["chosen"].get("gradient") == "control_variates" else minibatch()
    for name, given in (("kernel", kernel), ("gradient", gradient)):
        stored = settings[name]["name"]
        if type(given).__name__ != stored:
            raise StoreError(
                f"the run was made with {name}=fokker.{stored}(...), now it is {type(given).__name__}; pass the {name} "
                "of the run, with the settings that it was given then."
            )
    plan = make_plan(
        target,
        kernel,
        gradient,
        init=init,
        draws=max(draws or 0, settings["draws"]),
        **{name: settings[name] for name in SETTINGS},
    )
    return as_chosen(plan, settings["chosen"])


def as_chosen(plan: Plan, chosen: dict[str, Any]) -> Plan:
    """The plan with what was once chosen for it."""
    kernel, gradient, starts = plan.kernel, plan.gradient, plan.starts
    if chosen.get("kernel"):
        kernel = with_settings(kernel, chosen["kernel"])
    if "centre" in chosen:
        assert isinstance(gradient, control_variates)
        gradient = dataclasses.replace(gradient, centre=np.asarray(chosen["centre"], plan.dtype))
    if "starts" in chosen:
        starts = tuple(np.asarray(start, plan.dtype) for start in chosen["starts"])
    return dataclasses.replace(plan, kernel=kernel, gradient=gradient, starts=starts)


def with_settings(kernel: Any, fields: Mapping[str, Any]) -> Any:
    """The kernel with settings from JSON, in which arrays are lists."""
    return dataclasses.replace(kernel, **{k: np.asarray(v) if isinstance(v, list) else v for k, v in fields.items()})


def default_warmup(draws: int, thin: int) -> int:
    """As many iterations as are kept, within a bound."""
    return min(draws * thin, MOST_WARMUP)


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
    warmup: int | None,
    thin: int,
    chains: int,
    batch_size: int | None,
    batches: Order | None,
    share_batches: bool,
    seed: int,
    dtype: str,
) -> Plan:
    """Check and convert everything a user gives. Runs inside the precision context of the run."""
    _check_methods(kernel, gradient)
    for name, value, least in (
        ("draws", draws, 1),
        ("warmup", 0 if warmup is None else warmup, 0),
        ("thin", thin, 1),
        ("chains", chains, 1),
    ):
        if not is_whole(value) or value < least:
            raise InputError(f"{name} must be a whole number >= {least}, got {value!r}.")
    warmup = default_warmup(int(draws), int(thin)) if warmup is None else warmup
    check_count("batch_size", batch_size, 1, optional=True)
    batch_size = None if batch_size is None else int(batch_size)
    if not isinstance(dtype, str) or dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be 'float32' or 'float64', got {dtype!r}.")
    if not is_whole(seed):
        raise InputError(f"seed must be a whole number, got {type(seed).__name__}; a JAX key is not needed.")
    if not 0 <= seed < 2**64:
        raise InputError(f"seed must lie between 0 and 2**64 - 1, got {seed}; others would be taken modulo 2**64.")
    windows, data = None, target.data
    source = None if target.log_likelihood is None else as_source(data)
    starts, lay = _starts(target, init, chains, int(seed), dtype, source)
    _check_space(target, kernel, starts, lay, dtype)
    _check_shapes(target, kernel, starts, lay)
    _check_unused(target, kernel, source, batches, share_batches)
    if batches == "epochs" and gradient.noise != "none":
        raise InputError(
            f"batches='epochs' was given with noise={gradient.noise!r}: within an epoch the noise of batches cancels, "
            "and to compensate for it as if they were independent makes the draws too narrow. Leave batches out, or "
            f"take {type(gradient).__name__}(noise='none')."
        )
    full_data = bool(getattr(kernel, "full_data", False))
    if target.log_likelihood is None:
        if batch_size is not None:
            raise InputError("batch_size was given, but the target has no rows; leave it out.")
    elif source is not None:
        data, batch_size = source, min(100, source.size or 100) if batch_size is None else batch_size
        _check_source(source, kernel, batch_size, 1 if share_batches else chains)
    else:
        data, size = check_in_memory(data)
        data = _cast_all(data, dtype)
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
        if not np.isfinite(centre).all():
            raise InputError("the centre is not finite; leave it out, and the run looks for one.")
        if target.space is not None:
            from fokker.manifolds.product import product

            product(target.space, lay.unravel(starts[0])).check(centre, "the centre")
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
    _check_length(plan)
    return plan


def _check_length(plan: Plan) -> None:
    """That the run keeps draws, and only such as its kernel calls draws."""
    schedule = getattr(plan.kernel, "schedule", None)
    if isinstance(schedule, cyclical) and schedule.exploration > 0:
        rounds = math.lcm(plan.thin, schedule.period) // plan.thin
        kept = plan.warmup + plan.thin * np.arange(1, rounds + 1) - 1
        if (np.asarray(schedule.phase(jnp.asarray(kept % schedule.period))) < schedule.exploration).all():
            raise InputError(
                f"no draw would ever be kept: every {plan.thin}th iteration after a warm-up of {plan.warmup} is in "
                f"the part of the cycle that explores ({schedule.exploration:.0%} of {schedule.period} iterations). "
                f"Take a thin that has no factor in common with {schedule.period}, or another warmup."
            )
    adapt = getattr(plan.kernel, "adapt_steps", None)
    if adapt is not None and adapt > plan.warmup:
        raise InputError(
            f"psgld adapts for {adapt} iterations, which give no draws, and the warm-up has {plan.warmup}; "
            f"pass warmup={adapt} or more."
        )
    if hasattr(plan.kernel, "adapt_steps") and plan.warmup < 1:
        raise InputError("psgld adapts its scales in the warm-up, and warmup is 0; pass warmup=1000, for example.")


def _check_methods(kernel: Any, gradient: Any) -> None:
    """A kernel and an estimator of gradients: settings that can be bound, not their classes, and not each other."""
    for what, given, example in (("kernel", kernel, "fokker.sgld()"), ("gradient", gradient, "fokker.minibatch()")):
        if isinstance(given, type):
            raise InputError(f"{what} is the class {given.__name__}; call it: fokker.{given.__name__}().")
        if not callable(getattr(given, "bind", None)) or not dataclasses.is_dataclass(given):
            raise InputError(
                f"{what} must be settings such as {example}, a dataclass with a method bind, got "
                f"{type(given).__name__}; those of other libraries cannot be run here."
            )
    if isinstance(kernel, (minibatch, control_variates, svrg)):
        raise InputError(f"kernel is an estimator of gradients, {type(kernel).__name__}; pass it as gradient=...")
    if not isinstance(getattr(gradient, "noise", None), str):
        raise InputError(f"gradient estimates no gradients, it is {type(gradient).__name__}; try fokker.minibatch().")
    schedule = getattr(kernel, "schedule", None)
    if callable(schedule):
        try:
            factor = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), np.int32))
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"the schedule could not be evaluated at an iteration: {type(error).__name__}: {error}"
            ) from error
        if getattr(factor, "shape", None) != ():
            raise InputError(f"the schedule must return one number, the factor of the step; got {factor}.")


def _check_shapes(target: Target, kernel: Kernel, starts: tuple[np.ndarray, ...], lay: Layout) -> None:
    """Settings by coordinate fit the parameters, or the points of a space whose points are other than they."""
    size, of = lay.size, "the parameters"
    if target.space is not None and getattr(kernel, "on_manifolds", False):
        from fokker.manifolds.product import product

        size, of = product(target.space, lay.unravel(starts[0])).size, "a point of the space"
    leaves, scales = len(lay.variables), np.shape(getattr(kernel, "scales", 1.0))
    if scales not in ((), (leaves,)):
        raise InputError(
            f"scales must be a number or one for each of the {leaves} leaves of the parameters, in their ravelled "
            f"order; got shape {scales}."
        )
    for name in getattr(kernel, "by_entry", ()):
        check_shape(name, getattr(kernel, name), size, of)


def _check_unused(target: Target, kernel: Kernel, source: Source | None, batches: Any, share_batches: Any) -> None:
    """Nothing is said about batches where there are none, or where their order is the source's own."""
    if batches is not None and batches not in ("epochs", "independent"):
        raise InputError(f"batches must be 'epochs' or 'independent', got {batches!r}.")
    if not isinstance(share_batches, (bool, np.bool_)):
        raise InputError(f"share_batches must be True or False, got {share_batches!r}.")
    name, why = type(kernel).__name__, ""
    if target.log_likelihood is None:
        why = "the target has no rows"
    elif getattr(kernel, "full_data", False):
        why = f"{name} uses all rows in every step"
    for argument, given in (("batches", batches is not None), ("share_batches", bool(share_batches))):
        if why and given:
            raise InputError(f"{argument} was given, but {why}; leave {argument} out.")
    if source is not None and source.streams is not None and batches is not None:
        raise InputError("batches was given, but batches of an iterator come in its own order; leave batches out.")
    if source is not None and batches == "independent":
        raise InputError(
            "batches='independent' needs rows in memory, those on disk are read in epochs; leave batches out, or load "
            "the data."
        )


def _starts(
    target: Target, init: Any, chains: int, seed: int, dtype: str, source: Source | None
) -> tuple[tuple[np.ndarray, ...], Layout]:
    """Where the chains begin: one pytree for all, a list of pytrees, or a function of a JAX key."""
    if init is None:
        init = target.start
    if init is None:
        raise InputError(
            "the run needs a start: pass init= as a pytree of arrays, a list of one per chain, or a function of a key, "
            "such as lambda key: fokker.random_params(space, key)."
        )
    if callable(init):
        keys = jax.random.split(jax.random.key(int(np.uint64(seed).astype(np.int64))), chains)
        points = [init(keys[c]) for c in range(chains)]
    elif isinstance(init, list) and init and _one_per_chain(target, init, chains, source):
        if len(init) != chains:
            raise InputError(
                f"init is a list of {len(init)} starts for {chains} chains; give one for each (chains={len(init)}), "
                "one pytree for all (a vector as numpy.asarray(init)), or a function of a key."
            )
        points = init
    else:
        points = [init] * chains
    try:
        with np.errstate(over="ignore"):  # what is beyond the precision is refused below
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
            raise InputError(f"the start of chain {c} has values that are not finite in {dtype}.")
    return vectors, lay


def _one_per_chain(target: Target, init: list[Any], chains: int, source: Source | None) -> bool:
    """Whether a list holds starts; a list may also be the parameters themselves, which the target's functions tell."""

    def fits(point: Any) -> bool:
        try:
            jax.eval_shape(target.log_prior, point)
            if target.log_likelihood is not None:
                row = source.row if source is not None else jax.tree.map(lambda leaf: np.asarray(leaf[0]), target.data)
                batch = jax.tree.map(lambda leaf: np.zeros((2, *leaf.shape), leaf.dtype), row)
                jax.eval_shape(target.log_likelihood, point, batch)
        except Exception:  # of any kind: the functions are the user's
            return False
        return True

    one, whole = fits(init[0]), fits(init)
    return one if one != whole else len(init) == chains > 1 and not np.isscalar(init[0])


def _check_target(plan: Plan) -> None:
    """Shapes of the log density, once, before anything is compiled; and that it is finite at the starts."""
    theta, target = jnp.asarray(plan.starts[0]), plan.target
    try:
        prior = jax.eval_shape(target.log_prior, theta)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise InputError(f"log_prior could not be evaluated at init: {type(error).__name__}: {error}") from error
    what = "log_prior" if target.log_likelihood is not None else "the log density"
    _check_value(what, prior)
    if prior.shape != ():
        raise InputError(f"{what} must return a scalar, got shape {prior.shape}; sum it over its entries.")
    if target.log_likelihood is None:
        return _check_finite(plan, None)
    batch = first_rows(plan, 3)
    few = len(jax.tree.leaves(batch)[0])
    try:
        rows = jax.eval_shape(target.log_likelihood, theta, batch)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise InputError(
            f"log_likelihood could not be evaluated on a batch of {few} rows: {type(error).__name__}: {error}"
        ) from error
    _check_value("log_likelihood", rows)
    if rows.shape != (few,):
        raise InputError(
            f"log_likelihood must return one number per row, got shape {rows.shape} for {few} rows; do not sum over "
            "rows, or wrap a one-datum function with fokker.per_row(f)."
        )
    _check_finite(plan, batch)


def _check_finite(plan: Plan, batch: Any) -> None:
    for c, start in enumerate(plan.starts):
        value = float(plan.target.log_density(jnp.asarray(start), batch))
        if not np.isfinite(value):
            raise InputError(
                f"the log density at the start of chain {c} is {value}; start where it is finite (init=...)."
            )


def _check_value(name: str, value: Any) -> None:
    """What a function of the target returns: one array of floating numbers."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise InputError(f"{name} must return one array, got a {type(value).__name__}; return that array alone.")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(f"{name} must return floating numbers, got {value.dtype}, which has no gradient.")


def _check_space(target: Target, kernel: Kernel, starts: tuple[np.ndarray, ...], lay: Layout, dtype: str) -> None:
    """The space mirrors the parameters, the starts lie in it, and the kernel can move there."""
    if target.space is None:
        return
    from fokker.manifolds.euclidean import Euclidean
    from fokker.manifolds.hyperboloid import Hyperboloid
    from fokker.manifolds.manifold import Manifold
    from fokker.manifolds.product import product

    space = product(target.space, lay.unravel(starts[0]))
    for f in space.factors:
        if isinstance(f.space, Hyperboloid) and dtype != "float64":
            raise SpaceError(
                f"{f.space}, where {f.name} lies, needs more digits than {dtype} has; pass dtype='float64'."
            )
    for start in starts:
        space.check(start)
    name = type(kernel).__name__
    bounded = [f for f in space.factors if not isinstance(f.space, Euclidean)]
    implicit = [f for f in space.factors if not isinstance(f.carrier, Manifold)]
    if implicit and not getattr(kernel, "on_constraints", False):
        how = "follows geodesics" if getattr(kernel, "on_manifolds", False) else "moves in flat space"
        raise SpaceError(
            f"{name} {how}, and of {implicit[0].space}, where {implicit[0].name} lies, only a constraint is known; "
            "take fokker.chmc(), which needs all data, or a manifold whose geodesics are known."
        )
    if bounded and not getattr(kernel, "on_manifolds", False):
        raise SpaceError(
            f"{name} moves in flat space and would leave {bounded[0].space}, where {bounded[0].name} lies; take "
            "fokker.sggmc(), fokker.gsgnht() or, with all data, fokker.gmc()."
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


def cast(leaf: np.ndarray, dtype: str, name: str = "data") -> np.ndarray:
    """Floating numbers in the precision of the run, others as they are; InputError if the run cannot hold them."""
    kind, held = leaf.dtype.kind, leaf.dtype
    if kind == "f":
        held = np.dtype(dtype)
    elif kind in "iu" and dtype == "float32":
        held = np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype))  # 32 bits of 64, unless the user chose otherwise
    if leaf.size and not np.can_cast(leaf.dtype, held):
        limits = np.finfo(held) if kind == "f" else np.iinfo(held)
        if leaf.min() < limits.min or leaf.max() > limits.max:
            raise InputError(
                f"{name} has values from {leaf.min():.6g} to {leaf.max():.6g}, which {held} does not hold; pass "
                f"dtype='float64', or {'scale them' if kind == 'f' else 'code them by smaller numbers'}."
            )
    return leaf.astype(held, copy=False) if kind == "f" else leaf


def _cast_all(data: Any, dtype: str, then: Callable[[np.ndarray], Any] = np.asarray) -> Any:
    """Every leaf ``cast`` under its name, and what ``then`` makes of it."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: then(cast(np.asarray(leaf), dtype, "data" + keystr(path))), data
    )


def describe(settings: Any) -> dict[str, Any]:
    """A kernel's or estimator's settings as JSON: what cannot be written is replaced by a digest or a name."""
    fields = {f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
    return {"name": type(settings).__name__, **fields}


def _of_space(space: Any) -> Any:
    """As ``describe``, without functions, which are known by their values (``Plan._functions``), not by a name."""
    if not dataclasses.is_dataclass(space):
        return _plain(type(space))
    return {name: v for name, v in describe(space).items() if not callable(getattr(space, name, None))}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return describe(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and len(value) <= 1000:
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
