"""The compiled part of a run: one program that advances a chain by any number of steps.

Two nested loops with run-time bounds: ``draws`` times (``thin`` steps, then keep the position). The same program
serves warm-up (one draw that nobody keeps), thinning, tails and resumption, so a draw never depends on how a run was
cut into blocks. Only the last step before a kept draw computes its info.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fokker.numeric.random_jax import Key
from fokker.run import one_kernel
from fokker.sgmcmc.kernel import Bound

MAX_STEPS = 65_536  # of one call; bounds the table of batch starts
MAX_DRAW_BYTES = 1 << 23  # of the buffer of kept positions, as a chunk of the store; every call makes a new one
ONE_BY_ONE = 8  # chains that share batches and are faster one after the other than vmapped
MAX_BATCH_BYTES = 1 << 24  # of streamed batches that one call may use


class Block(NamedTuple):
    """What one call gives back."""

    state: Any
    positions: Array  # (capacity, d), of which the first ``draws`` are filled
    info: Any  # leaves (capacity, ...)


@dataclass(frozen=True)
class Feed:
    """How batches reach the step.

    ``"windows"``: ``data`` is the resident copy, padded cyclically by a batch, and ``index`` (steps,) holds first
    rows. ``"whole"``: every step sees all of ``data``. ``"stacked"``: ``data`` holds batches, leaves (steps, n, ...),
    and ``index`` (1,) says which is the first of the call. ``"none"``: the target has no rows.
    """

    kind: str
    batch_size: int = 0

    def batch(self, data: Any, index: Array, i: Array) -> Any:
        if self.kind == "windows":
            start = index[i]
            return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, self.batch_size), data)
        if self.kind == "stacked":
            return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index[0] + i, keepdims=False), data)
        return data if self.kind == "whole" else None


def program(
    bound: Bound, feed: Feed, capacity: int, chains: int | None = None, watched: bool = False
) -> Callable[..., Block]:
    """advance(state, words, first, draws, thin, data, index) -> Block, compiled once for all lengths.

    words: (2,) of the chain; first: iteration of the first step; draws * thin steps are made, draws <= capacity.
    With ``chains`` the state and words have a leading axis of that length, and all chains share the batches: a few
    move one after the other, many in one vmapped step (docs/adr/0002-kernels-gradients-and-blocks.md).

    The inner loop carries nothing but the state; what is kept is looked at outside it, where the method allows that.
    ``watched``: gradient noise is compensated, and a draw's ``noise_share`` is the largest of its ``thin`` steps.
    """

    if chains is None:
        return one_kernel.compiled(_advance(bound, feed, capacity, lambda one, *of_chains: one(*of_chains), watched))
    vmapped = _advance(bound, feed, capacity, lambda one, *of_chains: jax.vmap(one)(*of_chains), watched)
    if chains > ONE_BY_ONE:
        return jax.jit(vmapped)
    turn_by_turn = lambda one, *of_chains: jax.lax.map(lambda c: one(*c), of_chains)
    in_turn = _advance(bound, feed, capacity, turn_by_turn, watched)
    return one_kernel.compiled(in_turn, otherwise=vmapped)


def _advance(
    bound: Bound, feed: Feed, capacity: int, over_chains: Callable[..., Any], watched: bool
) -> Callable[..., Block]:
    """The program; ``over_chains(f, *arrays)`` says how a function of one chain acts on all of them."""

    def one_step(words: Array, iteration: Array, state: Any, batch: Any) -> tuple[Any, Any]:
        def one(words: Array, state: Any) -> tuple[Any, Any]:
            state, info = bound.step(Key(words, iteration), state, batch)
            return state, scalars(info)

        return over_chains(one, words, state)

    def observe(state: Any) -> Any:
        assert bound.observe is not None
        return over_chains(bound.observe, state)

    def advance(state: Any, words: Array, first: Array, draws: Array, thin: Array, data: Any, index: Array) -> Block:
        def step(i: Array, state: Any) -> tuple[Any, Any]:
            return one_step(words, (first + i).astype(jnp.uint32), state, feed.batch(data, index, i))

        def steps(i: Array, last: Array, state: Any) -> Any:
            return jax.lax.fori_loop(i, last, lambda i, s: step(i, s)[0], state)

        def to_next_draw_watched(k: Array, state: Any) -> tuple[Any, Any]:
            def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
                state, info = step(i, carry[0])
                return state, jnp.maximum(carry[1], info["noise_share"])

            last = k * thin + thin - 1
            none = jnp.zeros_like(jax.eval_shape(lambda s: step(last, s)[1]["noise_share"], state))
            state, most = jax.lax.fori_loop(k * thin, last, one, (state, none))
            state, info = step(last, state)
            return state, info | {"noise_share": jnp.maximum(most, info["noise_share"])}

        def to_next_draw(k: Array, state: Any) -> tuple[Any, Any]:
            if bound.observe is not None:
                state = steps(k * thin, k * thin + thin, state)
                return state, observe(state)
            if watched:
                return to_next_draw_watched(k, state)
            return step(k * thin + thin - 1, steps(k * thin, k * thin + thin - 1, state))

        def draw(k: Array, carry: tuple[Any, Array, Any]) -> tuple[Any, Array, Any]:
            state, info = to_next_draw(k, carry[0])
            positions = jax.lax.dynamic_update_index_in_dim(carry[1], state.position, k, 0)
            infos = jax.tree.map(lambda all_, one: jax.lax.dynamic_update_index_in_dim(all_, one, k, 0), carry[2], info)
            return state, positions, infos

        shapes = jax.eval_shape(lambda s: to_next_draw(jnp.zeros((), jnp.int32), s)[1], state)
        infos = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)
        positions = jnp.zeros((capacity, *state.position.shape), state.position.dtype)
        return Block(*jax.lax.fori_loop(0, draws, draw, (state, positions, infos)))

    return advance


def scalars(info: Any) -> dict[str, Array]:
    """The numbers of an info (NamedTuple, dict or None). What has a shape is not kept (BlackJAX keeps momenta)."""
    pairs = {} if info is None else info if isinstance(info, dict) else info._asdict()
    return {name: leaf for name, leaf in pairs.items() if isinstance(leaf, jax.Array) and leaf.ndim == 0}


def capacity_for(d: int, itemsize: int, thin: int, max_steps: int) -> int:
    """Kept draws of one call: bounded by the steps of the call and by memory, at least one."""
    return max(1, min(max_steps // thin, MAX_DRAW_BYTES // (d * itemsize)))


def resident(data: Any, rows: np.ndarray) -> Any:
    """The rows that lie in memory, in the order that windows are cut from."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), data)
