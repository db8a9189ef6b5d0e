"""``sample``, ``resume`` and ``open``: the doors of a run."""

from __future__ import annotations

import inspect
import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fokker.errors import InputError, StoreError
from fokker.run.chunks import Variable
from fokker.run.gradients import control_variates, minibatch
from fokker.run.loop import Advance, Chains, failures, run_loop
from fokker.run.plan import Plan, as_chosen, make_plan, plan_again, precision, refuse_unknown
from fokker.run.progress import Progress
from fokker.run.result import Run
from fokker.run.store import Store
from fokker.sgmcmc.checks import check_count, check_number
from fokker.sgmcmc.sghmc import sghmc

if TYPE_CHECKING:
    from collections.abc import Collection

    from fokker.data.batches import Order
    from fokker.sgmcmc.kernel import Gradient, Kernel
    from fokker.target import Target


def sample(
    target: Target,
    kernel: Kernel | None = None,
    *,
    gradient: Gradient | None = None,
    init: Any = None,
    draws: int = 1000,
    warmup: int | None = None,
    thin: int | None = None,
    chains: int = 4,
    batch_size: int | None = None,
    batches: Order | None = None,
    share_batches: bool = False,
    sd_error: float | None = None,
    seed: int = 0,
    dtype: str = "float32",
    store: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    origin: dict[str, str] | None = None,
    **unknown: Any,
) -> Run:
    """Draw from a posterior.

    target: what is sampled. kernel: how to move (``fokker.sghmc()``, the default, ``fokker.sgld(...)``, ...); a kernel
    without a step size is tuned first. gradient: how a batch becomes a gradient; left out, a run that is tuned takes
    ``fokker.control_variates()`` where that is predicted to pay, and any other ``fokker.minibatch()``.
    init: pytree of arrays, a list of one per chain, or a function of a JAX key; where the run tunes the step, chains
    that are to begin at one point begin at draws near the mode. draws: kept draws per chain, one every ``thin``
    iterations after ``warmup`` iterations (default: as many as are kept, at most 10,000). thin: left out, a run that
    is tuned takes what makes its draws nearly independent, within a bound, and any other 1.
    batch_size: rows a step (default: a thousandth of the rows in memory, at least 100; of rows on disk 100).
    sd_error: largest relative error of a posterior sd, as predicted, that tuning may trade for speed (default: 0.04,
    and 0.01 where ``thin`` is left open too).
    batches: "epochs" or "independent" (docs: how rows are mixed). share_batches: all chains see the same rows, which is
    faster and makes their errors common. dtype: "float32" or "float64". store: a folder to stream draws to; such a run
    can be resumed after any interruption and its draws do not change. overwrite: replace a run that is stored there.
    origin: words to keep in the store, such as the file that began the run.
    Ctrl-C returns what there is.
    """
    refuse_unknown(unknown, [p for p in inspect.signature(sample).parameters if p != "unknown"])
    for name, value in (("overwrite", overwrite), ("progress", progress)):
        if not isinstance(value, (bool, np.bool_)):
            raise InputError(f"{name} must be True or False, got {value!r}.")
    if not (store is None or isinstance(store, (str, os.PathLike))):
        raise InputError(f"store must be the path of a folder, got {type(store).__name__}.")
    if not hasattr(target, "log_prior"):
        raise InputError(
            f"target must be a fokker.Target, got {type(target).__name__}; "
            "for a plain log density use fokker.Target.from_log_density(f)."
        )
    check_number("sd_error", sd_error, below=1, optional=True)
    move: Kernel = sghmc() if kernel is None else kernel
    if sd_error is not None and (getattr(move, "step_size", 1.0) is not None or getattr(move, "full_data", False)):
        why = "leaves the density as it is at every step" if getattr(move, "full_data", False) else "has its step size"
        raise InputError(
            f"sd_error was given, which says how exact a step that the run chooses is to be, but {type(move).__name__} "
            f"{why}; leave sd_error out."
        )
    estimator: Gradient = minibatch() if gradient is None else gradient
    given = {"gradient": gradient, "thin": thin, "warmup": warmup}
    undecided = [name for name, value in given.items() if value is None]
    with precision(dtype):
        plan = make_plan(
            target, move, estimator, init=init, draws=draws, warmup=warmup, thin=1 if thin is None else thin,
            chains=chains, batch_size=batch_size, batches=batches, share_batches=share_batches, seed=seed, dtype=dtype,
        )  # fmt: skip
        keep = None if store is None else Path(store)
        if keep is not None:
            Store.check_free(keep, overwrite=overwrite)  # before the work, not after it
        with Progress(enabled=progress) as bar:
            plan, chosen = _settle(plan, bar, sd_error, undecided)
            return _run(plan, chosen, keep, overwrite, bar, origin)


def resume(
    path: str | Path,
    target: Target | None = None,
    kernel: Kernel | None = None,
    *,
    gradient: Gradient | None = None,
    init: Any = None,
    draws: int | None = None,
    progress: bool = True,
) -> Run:
    """Continue a stored run to its end; with ``draws`` larger than before, beyond it.

    The finished draws are bit for bit those of a run that was never interrupted. The same target, kernel and gradient
    are needed again (settings that were tuned are taken from the store); a fingerprint of settings, data and one value
    of the log density is compared, and StoreError says what differs.
    """
    check_count("draws", draws, 1, optional=True)
    kept = Store.open(_path(path), write=True)
    try:
        return _continue(kept, path, target, kernel, gradient, init, draws, progress)
    except BaseException:
        kept.close()
        raise


def _continue(
    kept: Store,
    path: str | Path,
    target: Target | None,
    kernel: Kernel | None,
    gradient: Gradient | None,
    init: Any,
    draws: int | None,
    progress: bool,
) -> Run:
    settings = kept.settings
    if target is None:
        raise InputError("resume needs the target again: fokker.resume(path, target, kernel).")
    if draws is not None and draws < settings["draws"]:
        raise InputError(f"the run at {path} is to have {settings['draws']} draws; draws={draws} would be fewer.")
    if init is None and target.start is None:
        raise InputError(
            f"the run at {path} began at an init= of yours; pass the same one again: resume(..., init=...)."
        )
    with precision(settings["dtype"]):
        plan = plan_again(settings, target, kernel, gradient, init, draws)
        if not settings["resumable"]:
            raise StoreError(
                f"the run at {path} read batches from an iterator that cannot be rewound; start a new run."
            )
        _compare(settings, plan.settings(), path)
        if plan.draws > settings["draws"]:
            kept.extend(plan.draws)
        chains = Chains(plan)
        done = kept.checkpoint()
        if done.draws < plan.draws:
            _compare_versions(kept, path, done.draws)
        if done.draws:
            chains.restore(done.state, done.iteration, done.extra)
        with Progress(enabled=progress) as bar:
            return _loop(plan, settings["chosen"], chains, kept, done.draws, bar)


def open(path: str | Path) -> Run:
    """A stored run, finished or not, for reading: draws, summary, plots; no target is needed."""
    return Run.from_store(Store.open(_path(path)))


def _path(given: Any) -> Path:
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"a run is opened by the path of its folder, got {type(given).__name__}.")
    return Path(given)


def _settle(
    plan: Plan, bar: Progress, sd_error: float | None = None, undecided: Collection[str] = ()
) -> tuple[Plan, dict[str, Any]]:
    """Find what the user left open: the length of adaptation, the centre of control variates, the step size, and
    with it what is ``undecided``.

    What was found is given back as JSON too, so that ``as_chosen`` can do the same without searching again.
    """
    chosen: dict[str, Any] = {}
    if getattr(plan.kernel, "adapt_steps", 0) is None:
        chosen["kernel"] = {"adapt_steps": plan.warmup}
    if isinstance(plan.gradient, control_variates) and plan.gradient.centre is None:
        from fokker.run.mode import find_mode

        bar.note("looking for a centre for the control variates")
        chosen["centre"] = np.asarray(find_mode(plan.target, plan.starts[0])).tolist()
    plan = as_chosen(plan, chosen)
    if getattr(plan.kernel, "step_size", 1.0) is None:
        from fokker.run.tune import tune

        plan, tuned = tune(plan, bar.note, sd_error, undecided)
        chosen = {**chosen, **tuned, "kernel": {**chosen.get("kernel", {}), **tuned["kernel"]}}
    return plan, chosen


def _compare(stored: dict[str, Any], now: dict[str, Any], path: str | Path) -> None:
    for name, value in now.items():
        if name == "draws" or name not in stored:  # an older store does not know all of them
            continue
        same = _alike(stored.get(name), value) if name in ("log_density", "functions") else stored.get(name) == value
        if not same:
            raise StoreError(
                f"the run at {path} cannot be continued with this {name}: stored {stored.get(name)!r}, "
                f"given {value!r}. "
                "Pass the same target, data, kernel and init as in the run, or start a new one under another path."
            )


def _versions() -> dict[str, str]:
    """Of the packages at whose fixed versions draws are the same bits."""
    import jaxlib
    import numba

    import fokker

    return {
        "fokker": fokker.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def _compare_versions(kept: Store, path: str | Path, draws: int) -> None:
    """Other versions may round otherwise: the run goes on, says so, and keeps it in its settings."""
    now, since = _versions(), kept.settings.get("resumed_with", [])
    before = since[-1]["versions"] if since else kept.settings.get("versions", {})
    changed = [f"{name} {before[name]} (now {now[name]})" for name in now if before.get(name, now[name]) != now[name]]
    if changed:
        warnings.warn(
            f"the run at {path} was made with {', '.join(changed)}. Its draws from here on have the right law but may "
            "differ in their last bits from those of a run that was never interrupted; for the same bits install the "
            "old versions.",
            UserWarning,
            stacklevel=4,
        )
        kept.update_settings(resumed_with=[*since, {"draws": draws, "versions": now}])


def _alike(stored: Any, now: Any) -> bool:
    """Numbers, or None, in lists and dicts: equal but for rounding."""
    if isinstance(now, dict):
        return isinstance(stored, dict) and stored.keys() == now.keys() and all(_alike(stored[k], now[k]) for k in now)
    if isinstance(now, list):
        return isinstance(stored, list) and len(stored) == len(now) and all(map(_alike, stored, now))
    if now is None or stored is None:
        return now is stored
    return bool(np.isclose(stored, now, rtol=1e-4, atol=1e-6))


def _run(
    plan: Plan, chosen: dict[str, Any], path: Path | None, overwrite: bool, bar: Progress, origin: dict[str, str] | None
) -> Run:
    chains = Chains(plan)
    if path is None:
        return _loop(plan, chosen, chains, None, 0, bar)
    kept = Store.create(
        path,
        [Variable(v.name, v.shape, v.dims, v.coords, plan.dtype) for v in plan.layout.variables],
        chains.info_types,
        chains=plan.chains,
        draws=plan.draws,
        settings={**plan.settings(), "chosen": chosen, "versions": _versions(), "origin": origin},
        overwrite=overwrite,
    )
    return _loop(plan, chosen, chains, kept, 0, bar)


def _loop(plan: Plan, chosen: dict[str, Any], chains: Chains, kept: Store | None, done: int, bar: Progress) -> Run:
    sink = _Memory(plan) if kept is None else _ToStore(plan, kept, chains)
    with kept or nullcontext():  # closes it, too, if Ctrl-C comes a second time
        try:
            bar.start(plan, done)
            state = run_loop(chains, sink, done, bar.update)
        except KeyboardInterrupt:  # while the loop looked into a failure
            state = "interrupted"
        except Exception as error:
            error.run = _finish(plan, chosen, chains, sink, kept, "failed")  # type: ignore[attr-defined]
            raise
        finally:
            chains.close()
        return _finish(plan, chosen, chains, sink, kept, state)


def _finish(plan: Plan, chosen: dict[str, Any], chains: Chains, sink: Any, kept: Store | None, state: str) -> Run:
    if kept is None:
        values, stats = sink.datasets()
        return Run.from_memory(plan, chosen, values, stats, state)
    kept.close(failed=state == "failed")
    return Run.from_store(kept, plan, state)


class _Memory:
    """Draws kept in lists until the run ends."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._positions: list[np.ndarray] = []
        self._info: list[dict[str, np.ndarray]] = []
        self.chunk, self.failed = plan.draws, 0

    def append(self, draws: Advance, chains: Chains) -> None:
        self._positions.append(draws.positions)
        self._info.append(draws.info)
        self.failed += failures(draws.info)

    def datasets(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        plan = self._plan
        empty = np.zeros((plan.chains, 0, plan.layout.size), plan.dtype)
        values = plan.layout.split(np.concatenate([empty, *self._positions], axis=1))
        names = self._info[0] if self._info else {}
        return values, {name: np.concatenate([i[name] for i in self._info], axis=1) for name in names}


class _ToStore:
    """Draws streamed to the store; blocks end where its chunks end."""

    def __init__(self, plan: Plan, store: Store, chains: Chains) -> None:
        self._plan, self._store, self.chunk = plan, store, store.chunk
        counted = store.committed and "converged" in chains.info_types  # else xarray need not be loaded
        self.failed = failures(store.sample_stats()) if counted else 0

    def append(self, draws: Advance, chains: Chains) -> None:
        self._store.append(
            self._plan.layout.split(draws.positions),
            draws.info,
            chains.checkpoint(),
            chains.iteration,
            extra=chains.source_state(),
        )
        self.failed += failures(draws.info)
