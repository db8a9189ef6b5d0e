"""Whole runs of the logistic regression, timed and weighed. As a script: store so many draws, print the peak memory."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from _harness import peak_memory

import fokker
from fokker.run.chunks import Variable
from fokker.run.loop import Chains, run_loop
from fokker.run.progress import Progress
from fokker.run.sample import _Memory, _ToStore
from fokker.run.store import Store


def driven(chains: Chains, path: Path | None) -> tuple[float, int]:
    """Seconds of the loop for all draws of the plan, with its progress line; and the characters that this wrote."""
    plan, screen = chains.plan, io.StringIO()
    store = None
    if path is not None:
        variables = [Variable(v.name, v.shape, v.dims, v.coords, plan.dtype) for v in plan.layout.variables]
        store = Store.create(path, variables, chains.info_types, chains=plan.chains, draws=plan.draws, settings={})
    sink = _Memory(plan) if store is None else _ToStore(plan, store, chains)
    with contextlib.redirect_stdout(screen), Progress() as bar:
        bar.start(plan, 0)
        begun = time.perf_counter()
        run_loop(chains, sink, 0, bar.update)
        if store is not None:
            store.close()
        seconds = time.perf_counter() - begun
    return seconds, len(screen.getvalue())


def alone(chains: Chains) -> float:
    """Seconds of the compiled program for as many steps, called with batches chosen beforehand, its draws dropped."""
    plan, state, first = chains.plan, chains.states[0], chains.iteration
    each = min(chains.capacity, plan.draws)
    data, index = chains._feed(0, first, each * plan.thin)
    words = chains._words[0]
    begun = time.perf_counter()
    for done in range(0, plan.draws, each):
        now = jnp.int32(min(each, plan.draws - done))
        block = chains._advance(state, words, jnp.uint32(first), now, jnp.int32(plan.thin), data, index)
        state = jax.block_until_ready(block).state
    return time.perf_counter() - begun


def stored(size: int, draws: int, folder: str) -> tuple[float, float]:
    """Peak memory of a run that stores every draw, after it and after its last draw was read."""
    from _logistic import kernels, problem

    p = problem(size)
    target = fokker.glm(p.X, p.y, intercept=False)
    kernel = kernels(size)["sgld"]
    run = fokker.sample(target, kernel, draws=draws, warmup=0, chains=1, store=Path(folder) / "run.zarr")
    peak = peak_memory()
    beta = run.draws["beta"]
    assert beta.shape[1] == draws and np.isfinite(beta[0, -1].values).all()
    return peak, peak_memory()


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        peaks = stored(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print(*peaks)
