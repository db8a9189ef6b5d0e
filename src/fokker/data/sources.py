"""Data larger than memory: batches from arrays on disk, from tables, from any iterator.

Order of rows (``PagedSource``). A page is a run of rows that lie together on disk: a chunk of Zarr, a row group of
Parquet, a record batch of Arrow, a megabyte of a memory map. In every epoch of every stream, keyed by (seed, stream,
epoch):

1. the pages are put in random order, one after the other, and the sequence of rows is turned by a random number of
   rows: every row is now equally likely at every place;
2. the sequence is cut into pools of ``pool_bytes``, whole batches each;
3. a pool is read into memory, its rows are put in random order and cut into batches.

So each row comes at most once an epoch (the last N mod n rows of the sequence are left out), each row is in the batch
of an iteration with probability n / N exactly, and iteration i is had without the ones before it, at the price of
reading one pool.

What it does to the law. A batch is drawn from the rows of one pool, not of all data. Given the pool, the minibatch
gradient is biased by (mean over the pool - mean over all rows), the same for all batches of that pool: noise that
stays for pool / batch_size iterations and that a step size therefore does not average away as it does with
independent noise. If rows lie in no particular order this is as small as the sampling error of a pool (variance
V / rows of the pool, against V / n of a batch). If the file is sorted, by label say, a pool of few pages is a poor
sample and draws are too wide: write the file in random order once, or raise ``pool_bytes`` until a pool holds at least
some dozens of pages. If everything fits into one pool, this is plain shuffling without replacement.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fokker.errors import InputError
from fokker.numeric import random
from fokker.sgmcmc.checks import check_count

Batch = Any  # a pytree of NumPy arrays with one leading axis of rows

POOL_BYTES = 64 << 20
STATES_KEPT = 32  # of an iterator: more than there are blocks in flight
PAGE_BYTES = 1 << 20  # of a memory map, which has no pages of its own worth the name


class Source(Protocol):
    """What the run needs of data that it does not hold itself."""

    @property
    def size(self) -> int | None:
        """Rows; None if nobody knows."""

    @property
    def row(self) -> Any:
        """One row as a pytree of ``jax.ShapeDtypeStruct``."""

    @property
    def fingerprint(self) -> str:
        """The same for the same data; the store remembers it."""

    @property
    def resumable(self) -> bool:
        """Whether a run can be continued from ``batches`` (and ``state``) alone."""

    @property
    def streams(self) -> int | None:
        """How many chains can have batches of their own; None: any number."""

    def rows(self, first: int, last: int) -> Batch:
        """Rows first .. last - 1 in their stored order, for passes over all data."""

    def batches(self, stream: int, first: int, count: int, batch_size: int, seed: int) -> Batch:
        """The batches of iterations first .. first + count - 1, each leaf (count, batch_size, ...)."""

    def state(self, iteration: int) -> dict[str, Any]:
        """What ``restore`` needs, besides the data, to go on at an iteration at which a block has begun or ended."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class _Pages(NamedTuple):
    """Rows on disk: where pages begin, what a row looks like, and how to read some."""

    bounds: np.ndarray  # int64 (pages + 1,), first row of each page and the number of rows
    tree: Any  # structure of a batch
    leaves: list[jax.ShapeDtypeStruct]  # of one row
    names: list[str]  # of the leaves, for messages
    read: Any  # (first, last, out: list of arrays) -> None
    origin: str  # for messages


class PagedSource:
    """Rows on disk, read in pools of pages. Any iteration can be had alone.

    Memory: ``pool_bytes`` for each stream that is read (four chains with batches of their own: four pools), and the
    block of batches handed out. A batch comes from one pool; see the module's text for the order of rows.
    """

    resumable = True
    streams = None

    def __init__(self, pages: _Pages, pool_bytes: int = POOL_BYTES):
        check_count("pool_bytes", pool_bytes, 1)
        self._pages = pages
        self._row_bytes = sum(_row_bytes(leaf) for leaf in pages.leaves)
        largest = int(np.diff(pages.bounds).max()) * self._row_bytes
        if largest > pool_bytes:
            raise InputError(
                f"a page of {pages.origin} (chunk, row group or record batch) takes {largest} bytes in memory, more "
                f"than pool_bytes={pool_bytes}; raise pool_bytes to several times that, or write the data in smaller "
                "pages."
            )
        self._pool_bytes = pool_bytes
        self._pools: dict[int, tuple[tuple[int, ...], list[np.ndarray], np.ndarray]] = {}
        self._fingerprint: str | None = None

    @property
    def size(self) -> int:
        return int(self._pages.bounds[-1])

    @property
    def row(self) -> Any:
        return jax.tree.unflatten(self._pages.tree, self._pages.leaves)

    @property
    def fingerprint(self) -> str:
        """A hash of shapes, dtypes and 16 rows: cheap, and blind to changes elsewhere."""
        if self._fingerprint is None:
            picked = np.unique(np.linspace(0, self.size - 1, 16).astype(np.int64))
            rows = [self._read(int(i), int(i) + 1) for i in picked]
            self._fingerprint = _hash(
                [str(self._pages.tree), str(self.size)],
                [np.concatenate([row[leaf] for row in rows]) for leaf in range(len(self._pages.leaves))],
            )
        return self._fingerprint

    def rows(self, first: int, last: int) -> Batch:
        """Rows first .. last - 1 in their stored order."""
        if not 0 <= first <= last <= self.size:
            raise InputError(f"rows {first} to {last} were asked for, {self._pages.origin} has {self.size}.")
        leaves = self._read(first, last)
        self._check_finite(leaves, lambda i: first + i)
        return jax.tree.unflatten(self._pages.tree, leaves)

    def batches(self, stream: int, first: int, count: int, batch_size: int, seed: int) -> Batch:
        """The batches of iterations first .. first + count - 1 of a stream, each leaf (count, batch_size, ...)."""
        check_batch_size(batch_size, self.size)
        out = [np.empty((count, batch_size, *leaf.shape), leaf.dtype) for leaf in self._pages.leaves]
        per_epoch = self.size // batch_size
        per_pool = max(1, self._pool_bytes // (self._row_bytes * batch_size))
        done = 0
        while done < count:
            epoch, position = divmod(first + done, per_epoch)
            pool, start = divmod(position, per_pool)
            take = min(count - done, per_epoch - position, per_pool - start)
            leaves, order = self._pool(stream, seed, epoch, pool, per_pool, batch_size)
            picked = order[start * batch_size : (start + take) * batch_size]
            for leaf, rows in zip(out, leaves, strict=True):
                flat = leaf[done : done + take].reshape(take * batch_size, *rows.shape[1:])
                np.take(rows, picked, axis=0, out=flat, mode="clip")  # "clip": the one mode that fills in place
            done += take
        return jax.tree.unflatten(self._pages.tree, out)

    def state(self, iteration: int) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass  # a batch depends on its iteration alone

    def _pool(
        self, stream: int, seed: int, epoch: int, pool: int, per_pool: int, batch_size: int
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """The rows of a pool, and the order in which they are handed out."""
        asked = (seed, epoch, pool, batch_size)
        if stream not in self._pools or self._pools[stream][0] != asked:
            self._pools.pop(stream, None)  # its memory goes to the next
            per_epoch = self.size // batch_size
            first, last = pool * per_pool * batch_size, min((pool + 1) * per_pool, per_epoch) * batch_size
            leaves = [np.empty((last - first, *leaf.shape), leaf.dtype) for leaf in self._pages.leaves]
            at = 0
            places = []
            for lo, hi in self._places(_key(seed, stream, epoch, 0), first, last):
                self._pages.read(lo, hi, [leaf[at : at + hi - lo] for leaf in leaves])
                places.append((at, lo))
                at += hi - lo

            def where(i: int) -> int:
                begin, lo = places[bisect_right(places, (i, self.size)) - 1]
                return lo + i - begin

            self._check_finite(leaves, where)
            order = random.permutation(_key(seed, stream, epoch, 1 + pool), last - first)
            self._pools[stream] = asked, leaves, order
            return leaves, order
        return self._pools[stream][1:]

    def _places(self, key: np.ndarray, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Where places first .. last - 1 of an epoch's sequence lie on disk, as runs of rows."""
        bounds = self._pages.bounds
        order = random.permutation(key, len(bounds) - 1)
        ends = np.cumsum(np.diff(bounds)[order])  # places at which pages end in the sequence, before it is turned
        turn = int(random.integers(key, np.zeros(1, np.int64), np.full(1, 2, np.int64), self.size)[0])
        at = (first + turn) % self.size
        left = last - first
        while left:
            slot = int(np.searchsorted(ends, at, side="right"))
            take = min(left, int(ends[slot]) - at)
            lo = int(bounds[order[slot] + 1]) - (int(ends[slot]) - at)
            yield lo, lo + take
            at = (at + take) % self.size
            left -= take

    def _read(self, first: int, last: int) -> list[np.ndarray]:
        leaves = [np.empty((last - first, *leaf.shape), leaf.dtype) for leaf in self._pages.leaves]
        self._pages.read(first, last, leaves)
        return leaves

    def _check_finite(self, leaves: list[np.ndarray], where: Any) -> None:
        for name, leaf in zip(self._pages.names, leaves, strict=True):
            _check_finite(leaf, f"{self._pages.origin}{name}", where)


def array_source(data: Any, *, pool_bytes: int = POOL_BYTES) -> PagedSource:
    """A pytree of arrays that are read by slices: NumPy memory maps, Zarr arrays, anything with shape, dtype, [a:b].

    Arrays that know their chunks are read by chunks; others have pages of about a megabyte.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(data)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    arrays = [leaf for _, leaf in paths]
    size = _check_leaves(names, arrays)
    rows = [jax.ShapeDtypeStruct(a.shape[1:], np.dtype(a.dtype).newbyteorder("=")) for a in arrays]
    chunked = [getattr(a, "shards", None) or getattr(a, "chunks", None) for a in arrays]
    if any(chunked):
        page = max(chunks[0] for chunks in chunked if chunks)
    else:
        check_count("pool_bytes", pool_bytes, 1)
        page = max(1, min(PAGE_BYTES, pool_bytes // 16) // max(1, sum(_row_bytes(r) for r in rows)))
    bounds = np.append(np.arange(0, size, page, dtype=np.int64), size)

    def read(first: int, last: int, out: list[np.ndarray]) -> None:
        for array, target in zip(arrays, out, strict=True):
            target[...] = array[first:last]

    return PagedSource(_Pages(bounds, tree, rows, names, read, "data"), pool_bytes)


def zarr_source(store: Any, arrays: Sequence[str] | None = None, *, pool_bytes: int = POOL_BYTES) -> PagedSource:
    """A Zarr array (batches are arrays), or arrays of a Zarr group (batches are {name: array}); path or open object.

    arrays: which of the group, None for all. Pages are chunks (shards, where there are any) along the first axis.
    """
    import zarr

    if isinstance(store, str | os.PathLike):
        if not Path(store).exists():
            raise InputError(f"there is no Zarr store at {store}; check the path.")
        store = zarr.open(os.fspath(store), mode="r")
    if isinstance(store, zarr.Array):
        return array_source(store, pool_bytes=pool_bytes)
    known = dict(store.arrays())
    missing = sorted(set(arrays or ()) - set(known))
    if missing or not known:
        raise InputError(f"the Zarr group has arrays {sorted(known)}; {missing or 'at least one'} is needed.")
    return array_source({name: known[name] for name in (arrays or sorted(known))}, pool_bytes=pool_bytes)


Columns = str | Sequence[str] | Mapping[str, "str | Sequence[str]"] | None


def parquet_source(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Columns = None,
    *,
    pool_bytes: int = POOL_BYTES,
) -> PagedSource:
    """Numeric columns of Parquet files (one, several, or a folder of them, read in the order of their names).

    columns: "a" gives batches (n,), or (n, k) for a column of fixed-size lists; ["a", "b"] gives (n, 2), of their
    common dtype; {"x": ["a", "b"], "y": "label"} gives a dict of such; None gives {name: column} for all. Pages are
    row groups.
    """
    parquet = _arrow("pyarrow.parquet")
    names_of_files = _files(paths, (".parquet", ".pq"))
    files = [parquet.ParquetFile(path) for path in names_of_files]
    sizes = [f.metadata.row_group(g).num_rows for f in files for g in range(f.metadata.num_row_groups)]
    groups = [(i, g) for i, f in enumerate(files) for g in range(f.metadata.num_row_groups)]
    mine = threading.local()  # a ParquetFile is not made for several threads: two that read from one can crash

    def page(index: int, names: list[str]) -> Any:
        i, group = groups[index]
        opened = vars(mine).setdefault("opened", {})
        if i not in opened:
            opened[i] = parquet.ParquetFile(names_of_files[i], metadata=files[i].metadata)
        return opened[i].read_row_group(group, columns=names, use_threads=False)

    return _table_source(files[0].schema_arrow, sizes, page, columns, str(paths), pool_bytes)


def arrow_source(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Columns = None,
    *,
    pool_bytes: int = POOL_BYTES,
) -> PagedSource:
    """Numeric columns of Arrow IPC (Feather) files, memory-mapped; ``columns`` as in ``parquet_source``.

    Pages are record batches.
    """
    arrow = _arrow("pyarrow")
    ipc = _arrow("pyarrow.ipc")
    files = [ipc.open_file(arrow.memory_map(str(p))) for p in _files(paths, (".arrow", ".feather", ".ipc"))]
    batches = [(f, b) for f in files for b in range(f.num_record_batches)]
    sizes = [f.get_batch(b).num_rows for f, b in batches]

    def page(index: int, names: list[str]) -> Any:
        file, batch = batches[index]
        return file.get_batch(batch).select(names)

    return _table_source(files[0].schema, sizes, page, columns, str(paths), pool_bytes)


def _table_source(
    schema: Any, sizes: list[int], page: Any, columns: Columns, origin: str, pool_bytes: int
) -> PagedSource:
    """Pages of a table, read column by column. page(index, names) -> a table or record batch."""
    picked: Any = {name: name for name in schema.names} if columns is None else columns
    is_leaf = lambda c: isinstance(c, list | tuple | str)
    paths, tree = jax.tree_util.tree_flatten_with_path(picked, is_leaf=is_leaf)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    leaves = [[leaf] if isinstance(leaf, str) else list(leaf) for _, leaf in paths]
    single = [isinstance(leaf, str) for _, leaf in paths]
    needed = list(dict.fromkeys(name for leaf in leaves for name in leaf))
    missing = sorted(set(needed) - set(schema.names))
    if missing or not needed:
        raise InputError(f"{origin} has columns {schema.names}; {missing or 'none'} were asked for.")
    kinds = {name: _column_kind(schema.field(name), origin) for name in needed}
    rows = []
    for leaf, one in zip(leaves, single, strict=True):
        width, dtype = kinds[leaf[0]][0], np.result_type(*(kinds[name][1] for name in leaf))
        if not one and any(kinds[name][0] is not None for name in leaf):
            raise InputError(f"columns {leaf} of {origin} cannot be stacked: some hold lists; ask for those alone.")
        shape = (len(leaf),) if not one else () if width is None else (width,)
        rows.append(jax.ShapeDtypeStruct(shape, dtype))
    if sum(sizes) == 0:
        raise InputError(f"{origin} has no rows.")
    bounds = np.concatenate([[0], np.cumsum([n for n in sizes if n], dtype=np.int64)])
    full = [i for i, n in enumerate(sizes) if n]  # empty row groups have no place in the order

    def read(first: int, last: int, out: list[np.ndarray]) -> None:
        index = int(np.searchsorted(bounds, first, side="right")) - 1
        while first < last:
            begin, end = int(bounds[index]), min(int(bounds[index + 1]), last)
            table = page(full[index], needed).slice(first - begin, end - first)
            content = {name: _column(table, name, origin) for name in needed}
            done = len(out[0]) - (last - first)
            for target, leaf, one in zip(out, leaves, single, strict=True):
                if one:
                    target[done : done + end - first] = content[leaf[0]].reshape(end - first, *target.shape[1:])
                else:
                    for k, name in enumerate(leaf):
                        target[done : done + end - first, k] = content[name]
            first, index = end, index + 1

    return PagedSource(_Pages(bounds, tree, rows, names, read, origin), pool_bytes)


def _column_kind(column: Any, origin: str) -> tuple[int | None, np.dtype]:
    """(length of the lists or None, dtype) of a column of a schema."""
    types = _arrow("pyarrow.types")
    kind, width = column.type, None
    if types.is_fixed_size_list(kind):
        kind, width = kind.value_type, kind.list_size
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(
            f"column {column.name!r} of {origin} is of type {column.type}; numbers or fixed-size lists of numbers are "
            "needed: leave it out with columns=[...], or encode it."
        )
    return width, np.dtype(kind.to_pandas_dtype())


def _column(table: Any, name: str, origin: str) -> np.ndarray:
    """The values of a column, (n,) or (n * k,) for lists."""
    column = table.column(name)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    parts = [column]
    if _arrow("pyarrow.types").is_fixed_size_list(column.type):
        parts.append(column.flatten())
        column = parts[1]
    if any(part.null_count for part in parts):
        raise InputError(f"column {name!r} of {origin} has missing values; drop those rows or fill them in.")
    return column.to_numpy(zero_copy_only=False)


class IteratorSource:
    """Batches from any iterable or iterator: a torch DataLoader, a generator, a queue.

    Rows are used in the order in which they come and cut anew into batches of ``batch_size``, so the iterator's own
    batches may have any lengths; shuffling is its business. An iterable (a list, a DataLoader) is started again when it
    ends and for every run. An iterator (a generator) that ends is an error, and it serves one run. There is one stream:
    chains share the batches. ``size`` is the number of rows N that one pass stands for, which scales the likelihood
    (taken from ``len(batches.dataset)`` if there is such).

    A run on it can be resumed only if it offers ``state() -> dict`` (of JSON values) and ``restore(state)``, after
    which it yields what it would have yielded next. Every run then begins with the state in which it was given.
    """

    streams = 1

    def __init__(self, batches: Iterable[Any], size: int | None = None):
        if not hasattr(batches, "__iter__"):
            raise InputError(f"batches must be an iterable, got {type(batches).__name__}.")
        check_count("size", size, 1, optional=True)
        self._iterable = batches
        self._iterator = iter(batches)
        self._again = self._iterator is not batches
        self.resumable = callable(getattr(batches, "state", None)) and callable(getattr(batches, "restore", None))
        self.restartable = self.resumable or self._again
        if size is None and hasattr(getattr(batches, "dataset", None), "__len__"):
            size = len(batches.dataset)  # type: ignore[attr-defined]
        self.size = size
        self._tree: Any = None
        self._leaves: list[np.ndarray] = []  # of the batch in hand
        self._used = self._length = 0  # rows of it
        self._before: Any = None  # state of the iterator before that batch
        self._next_iteration = 0
        self._states: dict[int, dict[str, Any]] = {}
        self._first = batches.state() if self.resumable else None  # type: ignore[attr-defined]
        self._begun = False  # rows were handed out
        self._lock = threading.Lock()  # an earlier run's thread may still be waiting for rows

    @property
    def row(self) -> Any:
        if self._tree is None:
            self._pull()
        return jax.tree.unflatten(self._tree, [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in self._leaves])

    @property
    def fingerprint(self) -> str:
        """Of shapes and dtypes alone: what an iterator will yield cannot be known."""
        return _hash(["iterator", str(self.row), str(self.size)], [])

    def rows(self, first: int, last: int) -> Batch:
        raise InputError(
            "a pass over all data is needed (control variates, SVRG, or a full-data kernel), but the data comes from "
            "an iterator; give arrays, a Zarr or Parquet path, or use gradient=fokker.minibatch()."
        )

    def batches(self, stream: int, first: int, count: int, batch_size: int, seed: int) -> Batch:
        """The next ``count`` batches, each leaf (count, batch_size, ...); iterations must come in order.

        Iteration 0 is the beginning of a run, for which everything is started again.
        """
        if stream != 0:
            raise InputError("an iterator has one stream of batches; let the chains share it: share_batches=True.")
        with self._lock:
            if first == 0 and self._begun:
                self._start_again()
            return self._next(first, count, batch_size)

    def _next(self, first: int, count: int, batch_size: int) -> Batch:
        if first != self._next_iteration:
            raise InputError(
                f"an iterator cannot go to iteration {first}, it stands at {self._next_iteration}; "
                "only one with state() and restore(state) can be taken up again."
            )
        if self.size is not None:
            check_batch_size(batch_size, self.size)
        self._remember(first)
        self._begun = True
        row = jax.tree.leaves(self.row)
        out = [np.empty((count * batch_size, *leaf.shape), leaf.dtype) for leaf in row]
        done = 0
        while done < count * batch_size:
            if self._used == self._length:
                self._pull()
            take = min(count * batch_size - done, self._length - self._used)
            for target, leaf in zip(out, self._leaves, strict=True):
                target[done : done + take] = leaf[self._used : self._used + take]
            self._used += take
            done += take
        self._next_iteration = first + count
        self._remember(self._next_iteration)
        return jax.tree.unflatten(self._tree, [a.reshape(count, batch_size, *a.shape[1:]) for a in out])

    def state(self, iteration: int) -> dict[str, Any]:
        """Where the iterator stood at an iteration at which a block began or ended, one of the last few.

        Blocks may have been taken ahead meanwhile.
        """
        if not self.resumable:
            return {}
        if iteration not in self._states:
            raise InputError(f"no block began at iteration {iteration}; known are {sorted(self._states)}.")
        return self._states[iteration]

    def restore(self, state: Mapping[str, Any]) -> None:
        if not self.resumable:
            raise InputError(
                "the batches come from an iterator without state() and restore(state), so the run cannot be resumed."
            )
        with self._lock:
            self._next_iteration = state["iteration"]
            self._begun = self._next_iteration > 0
            self._states = {self._next_iteration: dict(state)}
            self._used = self._length = 0
            self._iterable.restore(state["before"])  # type: ignore[attr-defined]
            self._iterator = iter(self._iterable)
            if state["used"]:
                self._pull()
                self._used = state["used"]

    def _start_again(self) -> None:
        if self.resumable:
            self._iterable.restore(self._first)  # type: ignore[attr-defined]
        elif not self._again:
            raise InputError(
                f"this iterator of batches was used by an earlier run, up to iteration {self._next_iteration}, and "
                "cannot be started again; make a new one for every run, fokker.IteratorSource(iterator, size=N), or "
                "give something that can be iterated again (a list, a DataLoader)."
            )
        self._iterator = iter(self._iterable)
        self._next_iteration = self._used = self._length = 0
        self._states = {}

    def _remember(self, iteration: int) -> None:
        if self.resumable:
            for old in list(self._states)[: 1 - STATES_KEPT]:
                del self._states[old]
            at_end = self._used == self._length
            before = self._iterable.state() if at_end else self._before  # type: ignore[attr-defined]
            self._states[iteration] = {
                "iteration": iteration, "before": before, "used": 0 if at_end else self._used,
            }  # fmt: skip

    def _pull(self) -> None:
        """The next batch of the iterator into hand."""
        if self.resumable:
            self._before = self._iterable.state()  # type: ignore[attr-defined]
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self._again:
                raise InputError(
                    f"the iterator of batches ended before iteration {self._next_iteration} was complete; give an "
                    "iterable that can be started again (a list, a DataLoader), or one that goes on for ever."
                ) from None
            self._iterator = iter(self._iterable)
            batch = next(self._iterator, None)
            if batch is None:
                raise InputError("the iterable of batches yields nothing; it needs at least one batch.") from None
        paths, tree = jax.tree_util.tree_flatten_with_path(batch)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        leaves = [_numpy(leaf) for _, leaf in paths]
        self._length = _check_leaves(names, leaves)
        if self._tree is None:
            self._tree = tree
        elif tree != self._tree or any(
            a.shape[1:] != b.shape[1:] or a.dtype != b.dtype for a, b in zip(leaves, self._leaves, strict=False)
        ):
            raise InputError(
                f"a batch near iteration {self._next_iteration} has another structure, shape or dtype than the first."
            )
        for name, leaf in zip(names, leaves, strict=True):
            _check_finite(leaf, f"batch{name}", lambda i: i)
        self._leaves, self._used = leaves, 0


# What a user gives.


def as_source(data: Any, *, pool_bytes: int = POOL_BYTES, size: int | None = None) -> Source | None:
    """A source for what a user gave as data, or None if it is a pytree of arrays in memory.

    A path is opened by its suffix (.zarr, .parquet, .arrow, .feather, .npy); Zarr objects, and pytrees with a memory
    map, a Zarr array or an HDF5 data set among their leaves, are read by slices; what can be iterated but is no array
    or container (a generator, a DataLoader) yields batches. ``size`` is N for those.
    """
    if hasattr(data, "batches") and hasattr(data, "rows"):
        return data
    if isinstance(data, str | os.PathLike):
        return _open(Path(data), pool_bytes)
    if type(data).__module__.startswith("zarr."):
        return zarr_source(data, pool_bytes=pool_bytes)
    if hasattr(data, "__next__"):
        return IteratorSource(data, size)
    leaves, tree = jax.tree.flatten(data)
    if jax.tree_util.treedef_is_leaf(tree) and not hasattr(data, "shape") and hasattr(data, "__iter__"):
        return IteratorSource(data, size)
    on_disk = [isinstance(x, np.memmap) or type(x).__module__.split(".")[0] in ("zarr", "h5py") for x in leaves]
    return array_source(data, pool_bytes=pool_bytes) if any(on_disk) else None


def check_in_memory(data: Any) -> tuple[Any, int]:
    """A pytree of arrays in memory as NumPy arrays, and its number of rows; wholly checked."""
    paths, tree = jax.tree_util.tree_flatten_with_path(data)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    leaves = [_numpy(leaf) for _, leaf in paths]
    size = _check_leaves(names, leaves)
    for name, leaf in zip(names, leaves, strict=True):
        _check_finite(leaf, f"data{name}", lambda i: i)
    return jax.tree.unflatten(tree, leaves), size


def check_batch_size(batch_size: int, size: int) -> None:
    if not 1 <= batch_size <= size:
        raise InputError(
            f"batch_size must be between 1 and the number of rows, got batch_size={batch_size} for {size} rows."
        )


def fingerprint(data: Any, most_bytes: int = 16 << 20) -> str:
    """A hash of a pytree of arrays in memory: all of it, or evenly spaced rows if it is larger than ``most_bytes``."""
    leaves, tree = jax.tree.flatten(data)
    arrays = [np.asarray(leaf) for leaf in leaves]
    every = -(-sum(a.nbytes for a in arrays) // most_bytes) or 1
    return _hash([str(tree), *(str(a.shape) for a in arrays)], [a[::every] if a.ndim else a for a in arrays])


def _open(path: Path, pool_bytes: int) -> Source:
    if not path.exists():
        raise InputError(f"there is no data at {path}; check the path.")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return parquet_source(path, pool_bytes=pool_bytes)
    if suffix in (".arrow", ".feather", ".ipc"):
        return arrow_source(path, pool_bytes=pool_bytes)
    if suffix == ".npy":
        return array_source(np.load(path, mmap_mode="r", allow_pickle=False), pool_bytes=pool_bytes)
    if suffix == ".zarr" or any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return zarr_source(path, pool_bytes=pool_bytes)
    raise InputError(
        f"{path} is of no known kind: .zarr, .parquet, .arrow, .feather and .npy can be read from disk; "
        "load anything else into arrays, or write it as one of these."
    )


def _files(paths: Any, suffixes: tuple[str, ...]) -> list[Path]:
    given = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(p) for p in paths]
    files = []
    for path in given:
        if not path.exists():
            raise InputError(f"there is no data at {path}; check the path.")
        files += sorted(p for p in path.iterdir() if p.suffix in suffixes) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{paths} holds no file that ends in {' or '.join(suffixes)}.")
    return files


def _arrow(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            "tables are read with pyarrow, which is not installed; try: pip install 'fokker[parquet]'."
        ) from error


def _numpy(leaf: Any) -> np.ndarray:
    """An array of NumPy, also from a torch tensor."""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().numpy()
    return np.asarray(leaf)


def _check_leaves(names: Sequence[str], arrays: Sequence[Any]) -> int:
    """The number of rows that all leaves share; names are those of the leaves in the pytree."""
    if not arrays:
        raise InputError("data must hold at least one array, got an empty pytree.")
    for name, array in zip(names, arrays, strict=True):
        if not hasattr(array, "dtype") or np.dtype(array.dtype).kind not in "biufc":
            kind = getattr(array, "dtype", type(array).__name__)
            raise InputError(
                f"data{name} has dtype {kind}; numbers are needed: encode texts, dates and categories as numbers."
            )
        if len(array.shape) == 0:
            raise InputError(
                f"data{name} is a single number; every array of the data needs a leading axis of rows (a list of "
                "numbers counts as many single ones: wrap it in numpy.asarray)."
            )
    sizes = {f"data{name}": array.shape[0] for name, array in zip(names, arrays, strict=True)}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the leading axes of the data must agree, got rows {sizes}.")
    size = arrays[0].shape[0]
    if size == 0:
        raise InputError("the data has no rows; at least one is needed.")
    return size


def _check_finite(array: np.ndarray, name: str, where: Any) -> None:
    """where(i) is the row in the data of row i of the array."""
    if array.dtype.kind not in "fc" or not len(array):
        return
    some = max(1, (1 << 20) // max(1, array[0].nbytes))  # rows at a time, so that the check itself stays small
    if not all(np.isfinite(array[i : i + some]).all() for i in range(0, len(array), some)):
        bad = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
        raise InputError(
            f"{name} has {bad.size} rows (of {len(array)} looked at) that are not finite, the first is row "
            f"{where(int(bad[0]))}; drop these rows or fill in the missing values."
        )


def _row_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize


def _hash(texts: Sequence[str], arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256("\n".join(texts).encode())
    for array in arrays:
        digest.update(str(array.dtype).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def _key(seed: int, stream: int, epoch: int, purpose: int) -> np.ndarray:
    """The words that key one decision of one epoch: 0 the order of pages, 1 + p the order within pool p."""
    words = random.chain_words(seed, stream, random.BATCHES)
    return np.array(random.threefry2x32(words[0], words[1], epoch, purpose, 20), dtype=np.uint32)
