"""Counter-based random numbers in JAX: threefry2x32 (Salmon et al. 2011) with 13 rounds, one call per number.

Number ``index`` of ``stream`` at ``iteration`` is a pure function of (chain words, iteration, stream << 28 | index),
so it does not depend on threads, on the length of a block or on what was drawn before. Everything is elementwise:
XLA fuses it into the step that uses it (docs/adr/0001-random-numbers.md). ``random.py`` is the same in Numba.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 13
STREAM_SHIFT = 28  # 16 streams of 2^28 numbers an iteration


class Key(NamedTuple):
    """What makes the numbers of one step: who (two words of the chain) and when."""

    words: Array  # (2,) uint32
    iteration: Array  # () uint32


class Given(NamedTuple):
    """Normals that were drawn elsewhere, in place of a key: how two chains are made to share their noise."""

    normals: Array  # (streams, size)


def threefry2x32(k0: Array, k1: Array, x0: Array, x1: Array, rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Two 32-bit words from a 64-bit key and a 64-bit counter, elementwise."""
    u32 = jnp.uint32
    keys = (k0, k1, k0 ^ k1 ^ u32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(rounds):
        x0 = x0 + x1
        turn = ROTATIONS[i % 8]
        x1 = ((x1 << u32(turn)) | (x1 >> u32(32 - turn))) ^ x0
        if i % 4 == 3:
            j = i // 4 + 1
            x0, x1 = x0 + keys[j % 3], x1 + keys[(j + 1) % 3] + u32(j)
    return x0, x1


def as_key(key: Any) -> Key:
    """Our key from a JAX key (typed or raw): its first two words, at iteration 0."""
    if isinstance(key, Key):
        return key
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return Key(words.astype(jnp.uint32)[:2], jnp.uint32(0))


def bits(key: Any, shape: tuple[int, ...], stream: int = 0) -> tuple[Array, Array]:
    """Two independent 32-bit words for every entry of ``shape``."""
    return bits_at(key, jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape), stream)


def bits_at(key: Any, index: Array, stream: int = 0) -> tuple[Array, Array]:
    """The words of these entries, by their place among all of a step, uint32."""
    words, iteration = as_key(key)
    index = index | jnp.uint32(stream << STREAM_SHIFT)
    return threefry2x32(words[0], words[1], jnp.broadcast_to(iteration, index.shape), index)


def _open_unit(word: Array, dtype: Any) -> Array:
    """A uniform in (0, 1] from a word: never 0, so that its logarithm is finite."""
    return word.astype(dtype) * jnp.asarray(2.0**-32, dtype) + jnp.asarray(2.0**-33, dtype)


def uniform(key: Any, shape: tuple[int, ...] = (), stream: int = 0, dtype: Any = jnp.float32) -> Array:
    """Uniforms in (0, 1]; in float32 the values are the same bits as those of ``random.uniform``."""
    return _open_unit(bits(key, shape, stream)[0], dtype)


def _cos_turn(word: Array, dtype: Any) -> tuple[Array, Array]:
    """p, q with p / q = cos(2 pi word / 2^32). The turn is folded to [-1/4, 1/4], where cos is a sine.

    In float32 a rational function of least error, 4e-9. It is a quotient for a reason: XLA makes an elementwise result
    anew for every reader unless its last operation is a dear one, such as a division; a projection reads it twice.
    """
    if dtype == jnp.float64:
        return jnp.cos(word.astype(dtype) * (2 * jnp.pi * 2.0**-32)), jnp.ones((), dtype)
    x = (word.astype(jnp.int32) >> 8).astype(dtype) * jnp.asarray(2.0**-24, dtype)  # [-1/2, 1/2) of a turn
    y = 0.25 - jnp.abs(x)
    y2 = y * y
    return (
        y * (6.283185158411357 + y2 * (-33.01562229065396 + y2 * 31.62015211980561)),
        1.0 + y2 * (1.3251290326562568 + y2 * 0.7643335553574957),
    )


def normal(key: Any, shape: tuple[int, ...] = (), stream: int = 0, dtype: Any = jnp.float32) -> Array:
    """Standard normals: the cosine branch of Box-Muller, one threefry call each; |z| < 6.77."""
    if isinstance(key, Given):
        return key.normals[stream, : math.prod(shape)].reshape(shape).astype(dtype)
    return normal_at(key, jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape), stream, dtype)


def normal_at(key: Any, index: Array, stream: int = 0, dtype: Any = jnp.float32) -> Array:
    """Some of the standard normals of ``normal``, by their place in it, uint32."""
    if isinstance(key, Given):
        return key.normals[stream, index].astype(dtype)
    radius, angle = bits_at(key, index, stream)
    p, q = _cos_turn(angle, dtype)
    return jnp.sqrt(-2.0 * jnp.log(_open_unit(radius, dtype))) * p / q
