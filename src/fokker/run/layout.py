"""How a pytree of parameters lies in one vector, and under which names its draws are kept."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fokker.errors import InputError


@dataclass(frozen=True)
class Variable:
    """One leaf: entries first .. last - 1 of the vector, kept as an array of this shape."""

    name: str
    shape: tuple[int, ...]
    first: int
    last: int
    labels: tuple[str, ...] | None = None  # names of the entries of a (k,) leaf

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_dim_{i}" for i in range(len(self.shape)))

    @property
    def coords(self) -> dict[str, list[Any]]:
        if self.labels is not None:
            return {self.dims[0]: list(self.labels)}
        return {dim: list(range(n)) for dim, n in zip(self.dims, self.shape, strict=True)}


@dataclass(frozen=True)
class Layout:
    """The variables of a position and the way back from the vector."""

    variables: tuple[Variable, ...]
    unravel: Callable[[Any], Any]
    size: int
    structure: Any = None  # of the pytree, as JSON (``structure_of``); None where JSON cannot say it

    def split(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """(..., d) -> {name: (..., *shape)}."""
        return {v.name: vectors[..., v.first : v.last].reshape(*vectors.shape[:-1], *v.shape) for v in self.variables}

    def entry_names(self) -> list[str]:
        """One readable name for every entry of the vector: ``beta[age]``, ``sigma``."""
        names = []
        for v in self.variables:
            for index in np.ndindex(*v.shape):
                inner = ", ".join(str(v.labels[i]) if v.labels is not None else str(i) for i in index)
                names.append(f"{v.name}[{inner}]" if v.shape else v.name)
        return names


def layout(position: Any, labels: Mapping[str, Sequence[str]] | None = None) -> Layout:
    """The layout of a pytree of arrays; a bare array is called ``theta``."""
    variables, first = [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(position):
        name = ".".join(_part(p) for p in path) or "theta"
        shape = tuple(np.shape(leaf))
        names = None if labels is None or name not in labels else tuple(labels[name])
        if names is not None and shape != (len(names),):
            raise InputError(f"labels[{name!r}] has {len(names)} names for a parameter of shape {shape}.")
        variables.append(Variable(name, shape, first, first + int(np.prod(shape)), names))
        first = variables[-1].last
    _check_names(variables)
    vector, unravel = ravel_pytree(position)
    return Layout(tuple(variables), unravel, vector.size, structure_of(position))


def _check_names(variables: Sequence[Variable]) -> None:
    """Every leaf has entries, and a name that no other leaf and no axis of the draws has."""
    if not variables:
        raise InputError("the parameters have no entries; pass init= as a pytree of arrays.")
    names = Counter(v.name for v in variables)
    axes = {"chain", "draw"}.union(*(v.dims for v in variables))
    for v in variables:
        if 0 in v.shape:
            raise InputError(
                f"the parameter {v.name} has shape {v.shape}, which has no entries; give it some, or leave it out."
            )
        if names[v.name] > 1:
            raise InputError(
                f"{names[v.name]} parameters would be called {v.name!r}: the keys on the way to a leaf are joined by "
                "dots; rename one in init and in the target."
            )
        if v.name in axes:
            raise InputError(
                f"a parameter cannot be called {v.name!r}, which is the name of an axis of the draws; rename it in "
                "init and in the target."
            )


def _part(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def structure_of(tree: Any) -> Any:
    """How a pytree of dicts, tuples and lists is nested, as JSON; None if it holds anything else.

    ``"leaf"``, or [kind, parts] in the order in which JAX goes through them; parts of a dict are [key, structure].
    """
    if isinstance(tree, dict):
        if type(tree) not in (dict, OrderedDict) or not all(type(key) in (str, int) for key in tree):
            return None
        keys = list(tree) if isinstance(tree, OrderedDict) else sorted(tree)
        kind, parts = type(tree).__name__, [[key, structure_of(tree[key])] for key in keys]
        return None if any(below is None for _, below in parts) else [kind, parts]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        kind, parts = "namedtuple", [[name, structure_of(part)] for name, part in zip(tree._fields, tree, strict=True)]
        return None if any(below is None for _, below in parts) else [kind, parts]
    if tree is None or type(tree) in (tuple, list):
        parts = [structure_of(part) for part in tree or ()]
        return None if None in parts else [type(tree).__name__, parts]
    return "leaf" if jax.tree_util.all_leaves([tree]) else None


def nested(structure: Any, leaves: Iterator[Any]) -> Any:
    """The pytree of a structure with these leaves."""
    if structure == "leaf":
        return next(leaves)
    kind, parts = structure
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(nested(part, leaves) for part in parts)
    if kind == "NoneType":
        return None
    items = {key: nested(part, leaves) for key, part in parts}
    if kind == "namedtuple":
        return namedtuple("Parameters", items)(**items)
    return OrderedDict(items) if kind == "OrderedDict" else items
