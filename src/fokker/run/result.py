"""What a run gives back: labelled draws, and what people ask of them next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fokker.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from fokker.run.layout import Variable
    from fokker.run.plan import Plan
    from fokker.run.store import Store


class Run:
    """Draws with their labels.

    ``draws``: xarray.Dataset with dims (chain, draw, ...) by variable. ``stats``: what the kernel kept beside each
    draw. ``settings``: everything that decided the draws. ``state``: "complete", "interrupted" or "failed"; a stored
    run that was killed, or that the disk had no room for, was interrupted.
    """

    def __init__(
        self,
        draws: Callable[[], xr.Dataset],
        stats: Callable[[], xr.Dataset],
        settings: Mapping[str, Any],
        state: str,
        plan: Plan | None,
        store: Store | None,
    ) -> None:
        self._load_draws, self._load_stats = draws, stats
        self.settings, self.state, self._plan, self._store = settings, state, plan, store

    @classmethod
    def from_memory(
        cls,
        plan: Plan,
        chosen: Mapping[str, Any],
        values: Mapping[str, np.ndarray],
        stats: Mapping[str, np.ndarray],
        state: str,
    ) -> Run:
        import xarray as xr

        draws = dataset(plan.layout.variables, values)
        kept = xr.Dataset({name: (("chain", "draw"), value) for name, value in stats.items()})
        return cls(lambda: draws, lambda: kept, {**plan.summary(), "chosen": dict(chosen)}, state, plan, None)

    @classmethod
    def from_store(cls, store: Store, plan: Plan | None = None, state: str | None = None) -> Run:
        """``state``: how the run ended, where that is known better than from the store."""
        if store.complete:
            state = "complete"
        elif state is None:
            state = "failed" if store.failed else "interrupted"
        return cls(store.posterior, store.sample_stats, store.settings, state, plan, store)

    @property
    def draws(self) -> xr.Dataset:
        return self._load_draws()

    @property
    def stats(self) -> xr.Dataset:
        return self._load_stats()

    def summary(self, names: Sequence[str] | None = None) -> Any:
        """A pandas DataFrame, a row an entry: mean, sd, quantiles, MCSE of the mean, bulk and tail ESS, R-hat.

        Where the step size decreased, mean, sd and quantiles are weighted by it (``weights``), and the ESS is what the
        weighted mean and the weighted quantiles are worth.
        """
        import pandas as pd
        from arviz_stats.base import array_stats

        rows, weights = {}, self.weights
        for label, x in self.entries(names):
            if weights is not None:
                rows[label] = weighted_row(x, weights)
                continue
            with np.errstate(invalid="ignore", divide="ignore"):
                rows[label] = {
                    "mean": x.mean(),
                    "sd": x.std(ddof=1),
                    "5%": np.quantile(x, 0.05),
                    "95%": np.quantile(x, 0.95),
                    "mcse": float(array_stats.mcse(x, chain_axis=0, draw_axis=1, method="mean")),
                    "ess_bulk": float(array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk")),
                    "ess_tail": float(array_stats.ess(x, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))),
                    "r_hat": float(array_stats.rhat(x, chain_axis=0, draw_axis=1)) if len(x) > 1 else np.nan,
                }
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def weights(self) -> np.ndarray | None:
        """(draws,) weights of the draws, of mean 1, where the step size decreased from draw to draw; else None.

        A draw stands for the time that its step covers: sum eps_t f(theta_t) / sum eps_t is the estimate of E f
        (Welling & Teh 2011), since later draws, a smaller step apart, repeat each other more. The draws of a cyclical
        schedule count alike.
        """
        stats = self.stats
        schedule = self.settings["kernel"].get("schedule")
        cycles = isinstance(schedule, Mapping) and schedule["name"] == "cyclical"
        if cycles or "step_size" not in stats or stats.sizes.get("draw", 0) < 2:
            return None
        steps = np.asarray(stats["step_size"][0], np.float64)
        if not (np.diff(steps) <= 0).all() or steps[-1] == steps[0]:
            return None
        return steps / steps.mean()

    def entries(self, names: Sequence[str] | None = None) -> list[tuple[str, np.ndarray]]:
        """(label, (chains, draws) float64) for every scalar entry of the variables asked for."""
        draws = self.draws
        if isinstance(names, str):
            names = [names]
        wanted = list(draws.data_vars) if names is None else list(names)
        unknown = [n for n in wanted if n not in draws.data_vars]
        if unknown:
            raise InputError(f"no variable {unknown[0]!r}; there are {', '.join(map(str, draws.data_vars))}.")
        out = []
        for name in wanted:
            values = np.asarray(draws[name], dtype=np.float64)
            labels = [draws[dim].values for dim in draws[name].dims[2:]]
            for index in np.ndindex(*values.shape[2:]):
                inner = ", ".join(str(labels[axis][i]) for axis, i in enumerate(index))
                out.append((f"{name}[{inner}]" if index else str(name), values[(slice(None), slice(None), *index)]))
        return out

    def to_arviz(self) -> Any:
        """The run for ArviZ: a DataTree on ArviZ 1.x, an InferenceData before."""
        from fokker.run.arviz import to_arviz

        return to_arviz({"posterior": self.draws, "sample_stats": self.stats})

    def audit(self, **options: Any) -> Any:
        """Whether to trust these draws, with the evidence (see ``fokker.run.audit``)."""
        from fokker.run.audit import audit

        return audit(self, **options)

    def plot_trace(self, names: Sequence[str] | None = None, entries: int = 6) -> Any:
        """A matplotlib figure: the density and the path of the first entries, a colour a chain."""
        from fokker.report.plots import plot_trace

        return plot_trace(self, names, entries)

    def __repr__(self) -> str:
        sizes = self.draws.sizes
        variables = ", ".join(
            f"{n}{list(v.shape[2:])}" if v.ndim > 2 else str(n) for n, v in self.draws.data_vars.items()
        )
        return f"<fokker.Run {self.state}: {sizes['chain']} chains x {sizes['draw']} draws of {variables}>"

    def __str__(self) -> str:
        """And in words what the run chose itself."""
        return "\n".join([repr(self), *self.settings.get("chosen", {}).get("why", {}).get("words", [])])


def weighted_row(x: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """The summary of draws (chains, draws) with weights (draws,) of mean 1.

    The standard error of a weighted mean is that of the mean of w (x - m), and the ESS is variance over its square.
    """
    from arviz_stats.base import array_stats

    def error(values: np.ndarray, mean: float) -> float:
        return float(array_stats.mcse(weights * (values - mean), chain_axis=0, draw_axis=1, method="mean"))

    order = np.argsort(x, axis=None)
    level = np.cumsum(np.broadcast_to(weights, x.shape).ravel()[order]) / x.size
    quantile = lambda q: float(x.ravel()[order[min(int(np.searchsorted(level, q)), x.size - 1)]])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = float((weights * x).mean())
        variance = float((weights * (x - mean) ** 2).mean())
        low, high, mcse = quantile(0.05), quantile(0.95), error(x, mean)
        shares = [(x <= low, 0.05), (x <= high, 0.95)]
        tails = [q * (1 - q) / np.square(error(below, float((weights * below).mean()))) for below, q in shares]
        return {
            "mean": mean,
            "sd": np.sqrt(variance),
            "5%": low,
            "95%": high,
            "mcse": mcse,
            "ess_bulk": variance / np.square(mcse),
            "ess_tail": min(tails),
            "r_hat": float(array_stats.rhat(x, chain_axis=0, draw_axis=1)) if len(x) > 1 else np.nan,
        }


def dataset(variables: Sequence[Variable], values: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Arrays (chain, draw, *shape) with their names and coordinates."""
    import xarray as xr  # 70 MB with pandas, which a run that streams to a store does without

    coords: dict[str, Any] = {}
    arrays = {}
    for v in variables:
        arrays[v.name] = (("chain", "draw", *v.dims), values[v.name])
        coords.update(v.coords)
    first = next(iter(values.values()))
    return xr.Dataset(arrays, {"chain": np.arange(first.shape[0]), "draw": np.arange(first.shape[1]), **coords})
