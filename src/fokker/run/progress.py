"""The line that shows a run: rate, time left, R-hat and ESS of a few coordinates, noise of the gradient, notes.

Costs next to nothing: what has to be computed is looked at every two seconds, the noise once, beside the run.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from fokker.run.watch import ess, split_rhat

if TYPE_CHECKING:
    from fokker.run.loop import Advance, Chains
    from fokker.run.plan import Plan

WATCHED = 3  # coordinates
KEPT = 400  # draws of them, thinned as the run goes on
SECONDS_BETWEEN_CHECKS = 2.0
WORTH_THE_NOISE = 5.0  # seconds that a run has to be expected to go on: looking at the noise has to be compiled


class Progress:
    """A rich progress bar, refreshed four times a second; a context manager. ``enabled=False`` is silent."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._bar: Any = None
        self._plan: Plan | None = None
        self._tasks: dict[str, Any] = {}
        self._watched: list[np.ndarray] = []
        self._stride = 1
        self._seen = 0
        self._checked = 0.0
        self._started: tuple[float, int] | None = None
        self._note = ""
        self._verdict = ""
        self._noise: Future[str] | None = None

    def __enter__(self) -> Progress:
        if self._enabled:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            whole = lambda width: Column(no_wrap=True, min_width=width)  # what a narrow screen does not squeeze
            self._bar = RichProgress(
                TextColumn("[bold]{task.description}", table_column=whole(7)),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[count]}", table_column=whole(13)),
                TimeRemainingColumn(compact=True, table_column=whole(5)),
                TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
                refresh_per_second=4,
                speed_estimate_period=10,
            )
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str, keep: bool = False) -> None:
        """Say what is being done before the draws begin; with ``keep`` on a line of its own that stays."""
        if self._bar is None:
            return
        if keep:
            self._bar.console.print(text, markup=False, highlight=False)
            return
        if "note" not in self._tasks:
            self._tasks["note"] = self._bar.add_task("preparing", total=None, count="", note=text)
        self._bar.update(self._tasks["note"], note=text)

    def start(self, plan: Plan, done: int) -> None:
        self._plan = plan
        self._note = "" if plan.source is None or plan.source.resumable else "not resumable: batches from an iterator"
        if self._bar is None:
            return
        if "note" in self._tasks:
            self._bar.remove_task(self._tasks.pop("note"))
        if plan.warmup and not done:
            self._tasks["warm-up"] = self._bar.add_task("warm-up", total=plan.warmup, count="", note="")
        self._tasks["draws"] = self._bar.add_task("draws", total=plan.draws, completed=done, count="", note=self._note)

    def update(self, phase: str, completed: int, chains: Chains, got: Advance | None) -> None:
        """Called by the loop between blocks."""
        if self._bar is None:
            return
        now = time.perf_counter()
        if self._started is None:
            self._started = (now, chains.iteration)
        began, first = self._started
        rate = (chains.iteration - first) * chains.plan.chains / (now - began) if now > began else 0.0
        words = [f"{rate:,.0f} it/s" if rate else "", self._note]
        if got is not None:
            self._watch(got)
            if now - self._checked > SECONDS_BETWEEN_CHECKS:
                left = (chains.plan.draws - completed) * chains.plan.thin * chains.plan.chains
                if self._noise is None and rate and left / rate > WORTH_THE_NOISE:
                    beside = ThreadPoolExecutor(1)
                    self._noise = beside.submit(_noise, chains)
                    beside.shutdown(wait=False)
                self._checked = now
                self._verdict = self._check()
            words[1:1] = [self._verdict, self._noise.result() if self._noise and self._noise.done() else ""]
        total = chains.plan.warmup if phase == "warm-up" else chains.plan.draws
        count, note = f"{completed:,}/{total:,}", "  ".join(w for w in words if w)
        self._bar.update(self._tasks[phase], completed=completed, count=count, note=note)

    def _watch(self, got: Advance) -> None:
        """Keep a thinned record of the first coordinates."""
        new = got.positions[:, (-self._seen) % self._stride :: self._stride, :WATCHED]
        self._seen += got.positions.shape[1]
        self._watched.append(np.array(new))
        if sum(w.shape[1] for w in self._watched) > KEPT:
            self._watched = [np.concatenate(self._watched, axis=1)[:, ::2]]
            self._stride *= 2

    def _check(self) -> str:
        record = np.concatenate(self._watched, axis=1).astype(np.float64)
        if record.shape[1] < 20:
            return ""
        each = [record[:, :, i] for i in range(record.shape[2])]
        words = f"ESS {min(map(ess, each)):,.0f} of {record.shape[0] * record.shape[1]:,} seen"
        if record.shape[0] > 1:
            words = f"R-hat {max(map(split_rhat, each)):.2f}  {words}"
        return words


def _noise(chains: Chains) -> str:
    """In a thread of its own, which has to enter the run's precision for itself."""
    from fokker.run.noise_share import noise_share
    from fokker.run.plan import precision

    try:
        with precision(chains.plan.dtype):
            share = noise_share(chains)
    except Exception as error:  # whatever a target does here: a run does not end for a word on its progress line
        return f"gradient noise not known ({type(error).__name__})"
    return "" if share is None else f"gradient noise {share:.1%} of injected"
