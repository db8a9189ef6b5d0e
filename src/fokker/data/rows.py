"""Rows that lie in memory: what counts as such, and whether they can be used."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fokker.errors import InputError


def in_memory(data: Any) -> bool:
    """Whether every leaf is an array in memory (a ``numpy.memmap`` is not)."""
    leaves = jax.tree.leaves(data)
    return bool(leaves) and all(
        isinstance(leaf, (np.ndarray, jax.Array)) and not isinstance(leaf, np.memmap) for leaf in leaves
    )


def check_rows(data: Any) -> int:
    """The number of rows of arrays in memory; InputError for unequal lengths, no rows, NaN, or what is no number."""
    lengths = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        name, array = "data" + jax.tree_util.keystr(path), np.asarray(leaf)
        if array.ndim == 0 or array.dtype.kind not in "fiub":
            raise InputError(
                f"{name} must be an array of numbers with rows first, got {array.dtype} {array.shape}."
            )
        lengths.add(len(array))
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))
            raise InputError(
                f"{name} has values that are not finite, first in row {row}; drop or impute such rows."
            )
    if len(lengths) != 1:
        raise InputError(f"the arrays of data must have the same number of rows, got {sorted(lengths)}.")
    if not (size := lengths.pop()):
        raise InputError("data has no rows.")
    return size
