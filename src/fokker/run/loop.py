"""The one loop: advances every chain block by block, hands draws to the store and to the progress line.

Between blocks happen storage, checkpoints, health checks and progress; inside, only compiled steps. The next block is
begun before that work on the last one, which then costs no time where a core is free for it. On a CPU every chain runs
its own program, chains on threads; with shared batches all chains run in one program.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fokker.data.prefetch import Prefetch
from fokker.errors import InputError, NonFiniteError, StoreError
from fokker.numeric import random
from fokker.numeric.random_jax import Key
from fokker.run import blocks
from fokker.run.plan import Plan, cast, precision
from fokker.sgmcmc.schedules import cyclical

BLOCK_SECONDS = 0.2  # aimed at; progress comes four times a second


class Advance(NamedTuple):
    """Draws of all chains from one round of blocks."""

    positions: np.ndarray  # (chains, k, d)
    info: dict[str, np.ndarray]  # each (chains, k)
    iterations: np.ndarray  # (k,) the iteration after which each draw was taken


class Sink(Protocol):
    """Where draws go: memory or a store."""

    chunk: int  # draws that are best handed over without crossing a multiple of it
    failed: int  # draws so far whose proposal was refused since inner iterations failed (``failures``)

    def append(self, draws: Advance, chains: Chains) -> None: ...


class _Begun(NamedTuple):
    """A round of blocks that the threads are working on."""

    before: list[Any] | None  # states, once these are known
    draws: int
    thin: int
    blocks: list[Future[blocks.Block]]


@dataclass
class Chains:
    """All chains of a plan: their states and the compiled program that moves them."""

    plan: Plan
    states: list[Any] = field(init=False)  # one per chain, or one with a leading axis
    iteration: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        self._bound = plan.kernel.bind(plan.target, plan.gradient)
        self._gradient = plan.gradient.bind(plan.target) if plan.target.log_likelihood is not None else None
        itemsize = np.dtype(plan.dtype).itemsize
        self._max_steps = blocks.MAX_STEPS
        if plan.source is not None:
            assert plan.batch_size is not None
            row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(plan.source.row))
            self._max_steps = max(
                1, min(self._max_steps, blocks.MAX_BATCH_BYTES // max(1, row_bytes * plan.batch_size))
            )
        self._slabs: dict[int, _Slabs] = {}
        group = plan.chains if plan.share_batches else None
        self.capacity = blocks.capacity_for(plan.layout.size * (group or 1), itemsize, plan.thin, self._max_steps)
        self.data: Any = None  # rows in memory, in the order that batches are cut from
        if plan.batches is not None:
            feed = blocks.Feed("windows", plan.batches.batch_size)
            self.data = blocks.resident(plan.target.data, plan.batches.resident_rows())
        elif plan.source is not None:
            feed = blocks.Feed("stacked")
        elif plan.target.log_likelihood is not None:
            feed = blocks.Feed("whole")
            self.data = jax.tree.map(jnp.asarray, plan.target.data)
        else:
            feed = blocks.Feed("none")
        self._watched = plan.target.log_likelihood is not None and plan.gradient.noise != "none"
        self._advance = blocks.program(self._bound, feed, self.capacity, group, self._watched)
        self._words = [jnp.asarray(random.chain_words(plan.seed, c)) for c in range(plan.chains)]
        self._stacked = jnp.stack(self._words)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(1 if group else min(plan.chains, cores))
        self._ahead: _Begun | None = None
        self._no_index = jnp.zeros(1, jnp.int32)
        inits = [
            self._bound.init(
                jnp.asarray(start),
                Key(jnp.asarray(random.chain_words(plan.seed, c, random.INIT)), jnp.uint32(0)),
            )
            for c, start in enumerate(plan.starts)
        ]
        self.states = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *inits)] if group else inits
        started = time.perf_counter()
        blank, _, _ = self._round(0, 1)  # makes no step: the program is compiled before anything is timed
        self.info_types = {name: str(leaf.dtype) for name, leaf in _named(blank[0].info).items()}
        self.compile_seconds = time.perf_counter() - started

    def close(self) -> None:
        for slabs in self._slabs.values():
            slabs.close()
        self._pool.shutdown(cancel_futures=True)

    # --- moving -----------------------------------------------------------------------------------------------------

    def skip(self, steps: int) -> None:
        """Advance all chains by a number of steps without keeping anything.

        Where gradient noise is compensated its estimate still rests on few batches: what is too much is cut.
        """
        while steps > 0:
            now = min(steps, self._room(self.iteration))
            self._round(1, now, kept=False)
            steps -= now

    def draw(self, count: int, then: int = 0) -> Advance:
        """Advance by at most ``count`` draws, ``thin`` steps each; none come back while a cycle explores.

        ``then``: draws that will be asked for next. They are begun before the present ones are looked at.
        """
        thin = self.plan.thin
        if thin > self._room(self.iteration):
            self.skip(thin - 1)
            return self._collect(*self._round(1, 1), thin=1)
        return self._collect(*self._round(self._fitting(count, self.iteration), thin, then), thin=thin)

    def _fitting(self, count: int, first: int) -> int:
        """Draws that one call makes when it is asked for ``count`` from iteration ``first`` on."""
        return min(count, self.capacity, self._room(first) // self.plan.thin)

    def _room(self, first: int) -> int:
        """Steps that one call may make: to the end of its table of batches, of its slab, to the next refresh."""
        room = self._max_steps
        if self.plan.source is not None:
            room -= first % self._max_steps
        if self._gradient is not None and self._gradient.refresh_every is not None:
            room = min(room, self._gradient.refresh_every - first % self._gradient.refresh_every)
        return room

    def _round(
        self, draws: int, thin: int, then: int = 0, kept: bool = True
    ) -> tuple[list[blocks.Block], list[Any], int]:
        """One call of the program for every chain; gives blocks, the states before, and the draws asked for."""
        before, first, now = self.states, self.iteration, self._ahead
        if now is None or now.before is not before or (now.draws, now.thin) != (draws, thin):
            self._drop_ahead()
            now = self._begin(before, first, draws, thin)
        # A source gives its batches in order, and a refresh changes the states: nothing is begun before these.
        end = first + draws * thin
        follow = 0 if self.plan.source is not None or self._refresh_is_due(end) else self._fitting(then, end)
        self._ahead = self._begin(now.blocks, end, follow, thin) if follow > 0 else None
        done = [block.result() for block in now.blocks]
        self._check_finite(done, before, first, draws, thin)
        if kept:
            self._check_compensation(done, before, first, draws, thin)
        self.states, self.iteration = [block.state for block in done], end
        self._ahead = self._ahead and self._ahead._replace(before=self.states)
        self._refresh()
        return done, before, draws

    def _begin(self, before: list[Any], first: int, draws: int, thin: int) -> _Begun:
        """Hand a round to the threads, from states or from blocks that are still to end with them."""
        # Where batches come from memory their choice is made here, while the threads are busy with what is before.
        units, steps = range(len(before)), draws * thin
        feeds = None if self.plan.source is not None else [self._feed(unit, first, steps) for unit in units]

        def run(unit: int) -> blocks.Block:
            start = before[unit]
            state = start.result().state if isinstance(start, Future) else start
            with precision(self.plan.dtype):  # which JAX keeps by thread
                data, index = feeds[unit] if feeds is not None else self._feed(unit, first, steps)
                words = self._stacked if self.plan.share_batches else self._words[unit]
                block = self._advance(state, words, jnp.uint32(first), jnp.int32(draws), jnp.int32(thin), data, index)
                return jax.block_until_ready(block)

        return _Begun(None, draws, thin, [self._pool.submit(run, unit) for unit in units])

    def _drop_ahead(self) -> None:
        """Forget a round that was begun and is not wanted after all."""
        if self._ahead is not None:
            wait(self._ahead.blocks)
            self._ahead = None

    def _collect(self, done: list[blocks.Block], before: list[Any], draws: int, *, thin: int) -> Advance:
        shared = self.plan.share_batches
        positions = [np.asarray(block.positions)[:draws] for block in done]
        values = positions[0].swapaxes(0, 1) if shared else np.stack(positions)
        infos = [_named(block.info) for block in done]
        info = {
            name: infos[0][name][:draws].swapaxes(0, 1) if shared else np.stack([i[name][:draws] for i in infos])
            for name in infos[0]
        }
        iterations = self.iteration - thin * np.arange(draws - 1, -1, -1)
        schedule = getattr(self.plan.kernel, "schedule", None)
        if isinstance(schedule, cyclical) and schedule.exploration > 0:
            keep = np.asarray(schedule.phase(jnp.asarray(iterations - 1)) >= schedule.exploration)
            values, info, iterations = (
                values[:, keep],
                {k: v[:, keep] for k, v in info.items()},
                iterations[keep],
            )
        return Advance(values, info, iterations)

    def _feed(self, unit: int, first: int, steps: int) -> tuple[Any, Any]:
        """Data and index of one call, in the form that the program's feed expects."""
        plan = self.plan
        chain = 0 if plan.share_batches else unit
        if plan.batches is not None:
            index = np.zeros(self._max_steps, np.int32)
            if steps:
                index[:steps] = plan.batches.starts(chain, first, steps)
            return self.data, jnp.asarray(index)
        if plan.source is not None:
            if chain not in self._slabs:
                self._slabs[chain] = _Slabs(plan, chain, first // self._max_steps, self._max_steps)
            return self._slabs[chain].at(first // self._max_steps), jnp.full(1, first % self._max_steps, jnp.int32)
        return self.data, self._no_index

    def _refresh(self) -> None:
        """Give the gradient estimator its pass over all data, if one is due now."""
        if not self._refresh_is_due(self.iteration):
            return
        gradient = self._gradient
        assert gradient is not None and gradient.refresh is not None
        if self.plan.share_batches:
            each = [jax.tree.map(lambda leaf, c=c: leaf[c], self.states[0]) for c in range(self.plan.chains)]
            fresh = [s._replace(aux=gradient.refresh(s.position, s.aux)) for s in each]
            self.states = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *fresh)]
        else:
            self.states = [s._replace(aux=gradient.refresh(s.position, s.aux)) for s in self.states]

    def _refresh_is_due(self, iteration: int) -> bool:
        gradient = self._gradient
        if gradient is None or gradient.refresh is None or gradient.refresh_every is None:
            return False
        return iteration > 0 and iteration % gradient.refresh_every == 0

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> list[np.ndarray]:
        """The leaves of all states, as they are."""
        return [np.asarray(leaf) for state in self.states for leaf in jax.tree.leaves(state)]

    def source_state(self) -> dict[str, Any]:
        """What the data source needs to go on here, besides the data."""
        source = self.plan.source
        return {} if source is None else source.state(self.iteration // self._max_steps * self._max_steps)

    def restore(self, leaves: list[np.ndarray], iteration: int, source_state: dict[str, Any]) -> None:
        """Continue from a checkpoint of an equal plan."""
        now, treedef = jax.tree.flatten(self.states)
        if [np.shape(leaf) for leaf in leaves] != [np.shape(leaf) for leaf in now]:
            raise StoreError(
                f"the stored state of the chains is not one of this version's {type(self.plan.kernel).__name__}; "
                "finish the run with the version of fokker that began it, or start a new one under another path."
            )
        self._drop_ahead()
        for slabs in self._slabs.values():
            slabs.close()
        self._slabs = {}
        if self.plan.source is not None:
            self.plan.source.restore(source_state)
        self.states = jax.tree.unflatten(treedef, [jnp.asarray(leaf) for leaf in leaves])
        self.iteration = iteration

    # --- health -----------------------------------------------------------------------------------------------------

    def _check_finite(self, done: list[blocks.Block], before: list[Any], first: int, draws: int, thin: int) -> None:
        if not draws:
            return
        good = []  # draws of each block before the first that is not finite
        for block in done:
            finite = np.isfinite(np.asarray(block.positions)[:draws])
            good.append(draws if finite.all() else int(np.argmin(finite.reshape(draws, -1).all(axis=1))))
        unit = int(np.argmin(good))
        if good[unit] < draws:
            raise _Diverged(unit, good[unit], before, first, thin)

    def _check_compensation(
        self, done: list[blocks.Block], before: list[Any], first: int, draws: int, thin: int
    ) -> None:
        """2 D - eps B-hat has to stay positive semidefinite at every step: there is no negative noise to inject."""
        if not draws or not self._watched:
            return
        shares = np.stack([np.asarray(block.info["noise_share"])[:draws].reshape(draws, -1) for block in done])
        most = shares.max(axis=(0, 2))  # of each draw
        if most.max() > 1:
            good = int(np.argmax(most > 1))
            chain = int(np.argmax(shares[:, good].ravel()))
            raise _Uncompensated(good, before, first, thin, chain, float(most[good]))

    def diagnose_compensation(self, failure: _Uncompensated) -> InputError:
        step = float(self.plan.kernel.step_size)  # type: ignore[attr-defined]  # all that compensate have one
        last = failure.first + (failure.good + 1) * failure.thin
        when = f"iteration {last}" if failure.thin == 1 else f"iterations {last - failure.thin + 1} to {last}"
        return InputError(
            f"chain {failure.chain}, {when}: the gradient noise to compensate is {failure.share:.3g} times what a step "
            f"of {step:.4g} injects, so there is nothing left to inject. Take a step of at most "
            f"{step / failure.share:.3g}, more friction, a larger batch or fokker.control_variates(); or noise='none', "
            "which leaves the noise as it is and its effect for run.audit() to measure. Draws before it are kept."
        )

    def diagnose(self, failure: _Diverged) -> NonFiniteError:
        """Replay the failing chain one step at a time and say where and what became non-finite."""
        plan, unit = self.plan, failure.unit
        state, iteration = failure.before[unit], failure.first
        words = self._stacked if plan.share_batches else self._words[unit]

        def advance(state: Any, steps: int) -> Any:
            data, index = self._feed(unit, iteration, steps)
            return self._advance(state, words, jnp.uint32(iteration), jnp.int32(1), jnp.int32(steps), data, index).state

        for _ in range(failure.good):
            state, iteration = advance(state, failure.thin), iteration + failure.thin
        previous = state
        while np.isfinite(np.asarray(state.position)).all():
            previous, state, iteration = state, advance(state, 1), iteration + 1
        position = np.asarray(state.position)
        chain = int(np.argmin(np.isfinite(position).all(axis=-1))) if plan.share_batches else unit
        entries = position[chain] if plan.share_batches else position
        last = np.asarray(previous.position)[chain] if plan.share_batches else np.asarray(previous.position)
        bad = int(np.argmin(np.isfinite(entries)))
        what = [
            name
            for name, leaf in _named_fields(state)
            if name != "position" and not np.isfinite(np.asarray(leaf, dtype=float)).all()
        ]
        also = f" (with {', '.join(what)})" if what else ""
        step = getattr(plan.kernel, "step_size", None)
        return NonFiniteError(
            f"chain {chain}, iteration {iteration}: {plan.layout.entry_names()[bad]} became {entries[bad]}{also}; "
            f"one step before, the largest parameter was {np.abs(last).max():.3g}. The step size is {step}: try a "
            f"smaller one, scale the columns of the data, start nearer to the mode (init=...), or dtype='float64'. "
            f"Draws before it are kept."
        )


class _Slabs:
    """Batches of a source for one chain, ``steps`` iterations at a time, read ahead by a thread."""

    def __init__(self, plan: Plan, chain: int, first: int, steps: int) -> None:
        source, batch_size = plan.source, plan.batch_size
        assert source is not None and batch_size is not None

        needed = plan.warmup + plan.draws * plan.thin  # a finite iterator is not asked for more

        def read(slab: int) -> Any:
            count = steps if slab * steps >= needed else min(steps, needed - slab * steps)
            got = source.batches(chain, slab * steps, count, batch_size, plan.seed)
            fill = lambda leaf: np.pad(leaf, [(0, steps - count)] + [(0, 0)] * (leaf.ndim - 1))
            return jax.tree.map(lambda leaf: fill(cast(leaf, plan.dtype)), got)

        self._index = first - 1
        self._data: Any = None
        self._ahead = Prefetch(read, ((slab,) for slab in itertools.count(first)), depth=1)
        self._incoming = iter(self._ahead)

    def at(self, slab: int) -> Any:
        """The slab; they come in order, and the present one may be asked for again."""
        while self._index < slab:
            self._data = jax.tree.map(jnp.asarray, next(self._incoming))
            self._index += 1
        return self._data

    def close(self) -> None:
        self._ahead.close()


class _Diverged(Exception):
    """A block that holds a non-finite position; turned into a NonFiniteError by ``diagnose``."""

    def __init__(self, unit: int, good: int, before: list[Any], first: int, thin: int) -> None:
        super().__init__(unit, good)
        self.unit, self.good, self.before, self.first, self.thin = unit, good, before, first, thin


class _Uncompensated(Exception):
    """A block with a step that brings more gradient noise than can be compensated."""

    def __init__(self, good: int, before: list[Any], first: int, thin: int, chain: int, share: float) -> None:
        super().__init__(good, chain, share)
        self.good, self.before, self.first, self.thin, self.chain, self.share = good, before, first, thin, chain, share


def run_loop(
    chains: Chains,
    sink: Sink,
    done: int,
    report: Callable[[str, int, Chains, Advance | None], None],
) -> str:
    """Warm-up where needed, then draws until the plan's number is kept. Gives "complete" or "interrupted"."""
    plan = chains.plan
    pace = _Pace()

    def wanted(done: int) -> int:
        """Draws of the next round: to the end of a chunk, of the buffer, or about BLOCK_SECONDS of them."""
        return min(plan.draws - done, sink.chunk - done % sink.chunk, chains.capacity, max(1, pace.steps // plan.thin))

    try:
        while done == 0 and chains.iteration < plan.warmup:
            started, now = time.perf_counter(), min(plan.warmup - chains.iteration, pace.steps)
            chains.skip(now)
            pace.made(now, time.perf_counter() - started)
            report("warm-up", chains.iteration, chains, None)
        count = wanted(done)
        while done < plan.draws:
            started, before = time.perf_counter(), chains.iteration
            then = wanted(done + count)
            got = chains.draw(count, then)
            if kept := got.positions.shape[1]:
                sink.append(got, chains)
            done += kept
            _check_failures(plan, sink.failed, done)
            count = then or wanted(done)
            pace.made(chains.iteration - before, time.perf_counter() - started)
            report("draws", done, chains, got)
    except KeyboardInterrupt:
        return "interrupted"
    except (_Diverged, _Uncompensated) as failure:
        kept = _replay_good(chains, failure)
        if kept is not None and done < plan.draws:
            sink.append(kept, chains)
        if isinstance(failure, _Uncompensated):
            raise chains.diagnose_compensation(failure) from None
        raise chains.diagnose(failure) from None
    return "complete"


def failures(info: Any) -> int:
    """Draws whose proposal was refused since the kernel's inner iterations failed."""
    return int((~np.asarray(info["converged"], bool)).sum()) if "converged" in info else 0


def _check_failures(plan: Plan, failed: int, done: int) -> None:
    """Failed inner iterations are refused proposals, and no error until they are over half of those of a whole run."""
    if 2 * failed > plan.draws * plan.chains:
        raise InputError(
            f"over half of this run's proposals fail: {failed} of {done * plan.chains} so far were refused, since the "
            f"inner iterations of {type(plan.kernel).__name__} did not converge or the way back did not lead back. The "
            f"step size is {getattr(plan.kernel, 'step_size', None)}: try a smaller one, another start (init=...), "
            "dtype='float64', or a constraint with less curvature. Draws before it are kept."
        )


def _replay_good(chains: Chains, failure: _Diverged | _Uncompensated) -> Advance | None:
    """The draws that all chains made before the failing one, from the same block run again up to there."""
    if failure.good == 0 or failure.first < chains.plan.warmup:
        return None
    return chains.draw(failure.good)


class _Pace:
    """Steps that take about BLOCK_SECONDS, from the speed of the last block. Never changes the draws."""

    def __init__(self) -> None:
        self.steps = 10

    def made(self, steps: int, seconds: float) -> None:
        self.steps = max(1, int(steps / max(seconds, 1e-6) * BLOCK_SECONDS))


def _named(info: Any) -> dict[str, np.ndarray]:
    """The scalar fields of an info (NamedTuple or dict); None fields are left out."""
    return {name: np.asarray(leaf) for name, leaf in _named_fields(info) if leaf is not None}


def _named_fields(value: Any) -> list[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else zip(value._fields, value, strict=True)
    return [(name, leaf) for name, leaf in pairs if hasattr(leaf, "dtype")]
