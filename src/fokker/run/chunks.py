"""The draws of a run as arrays of a Zarr v3 group: full chunks on disk, the chunk in hand in memory.

An array (chain, draw, ...) is cut along ``draw`` only. A chunk file is the bytes of (chains, chunk, ...),
little endian, not compressed (draws hardly shrink), then their CRC-32C, which is a codec of Zarr: a reader of
any kind notices a damaged chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from fokker.errors import InputError, StoreError
from fokker.run.files import replace, to_json

DRAW_NUMBERS = 8192  # in one chunk of the coordinate "draw"
GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


@dataclass(frozen=True)
class Variable:
    """One array of the posterior: a draw of one chain has ``shape``, whose axes are called ``dims``.

    ``coords`` labels axes by name, {dim: labels}. ``dtype`` is a NumPy name: a float, an integer or bool.
    """

    name: str
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    dtype: str = "float32"


class Draws:
    """The arrays of posterior and sample_stats: full chunks are on disk, the chunk in hand is in memory.

    How many draws there are is for the caller to know and to say: rows beyond these, which an interrupted call may have
    left in memory or on disk, mean nothing and are written again. So there is nothing to undo.
    """

    def __init__(
        self,
        path: Path,
        prefix: str,
        arrays: dict[tuple[str, str], Variable],
        chains: int,
        draws: int,
        chunk: int,
        committed: int,
    ):
        self.path, self.prefix, self.arrays = path, prefix, arrays
        self.chains, self.draws, self.chunk = chains, draws, chunk
        self.committed = committed
        self._buffers: dict[tuple[str, str], np.ndarray] = {}
        self._in_hand: int | None = None  # the chunk that they hold

    def folder(self, key: tuple[str, str]) -> Path:
        return self.path / (self.prefix + key[0]) / key[1]

    def file(self, key: tuple[str, str], index: int) -> Path:
        return self.folder(key) / ".".join(["c", "0", str(index), *("0" for _ in self.arrays[key].shape)])

    def chunk_bytes(self) -> int:
        return sum(self.file_bytes(v) for v in self.arrays.values())

    def file_bytes(self, variable: Variable) -> int:
        return self.chains * self.chunk * bytes_of(variable.shape, variable.dtype) + 4

    def at_chunk_end(self, length: int) -> bool:
        return length % self.chunk == 0 or length == self.draws

    def until_chunk_end(self, length: int) -> int:
        return min(self.chunk - length % self.chunk, self.draws - length)

    def in_memory_only(self, length: int) -> bool:
        """Whether some of the draws up to ``length`` are not on disk. A chunk leaves the hand only when it is there."""
        on_disk = self.at_chunk_end(length) or length == self.committed or self._in_hand != length // self.chunk
        return not on_disk

    def check(self, values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray], length: int) -> int:
        """The number of draws handed in after ``length`` others, once names and shapes are as declared."""
        count = -1
        for group, given in (("posterior", values), ("sample_stats", stats)):
            names = {name for g, name in self.arrays if g == group}
            if names != set(given):
                raise InputError(f"{group} needs {sorted(names)}, got {sorted(given)}.")
            for name, array in given.items():
                count = array.shape[1] if count < 0 and array.ndim > 1 else count
                need = (self.chains, count, *self.arrays[group, name].shape)
                dtype = self.arrays[group, name].dtype
                if array.shape != need or array.dtype != np.dtype(dtype):
                    raise InputError(
                        f"{group}/{name} must be {dtype} of shape {need}, got {array.dtype} of {array.shape}."
                    )
        if count > self.draws - length:
            raise InputError(
                f"the store is for {self.draws} {self.prefix.strip('_')} draws and holds {length}; "
                f"{count} more do not fit."
            )
        return count

    def put(
        self, length: int, values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray], first: int, count: int
    ) -> None:
        """Rows first .. first + count - 1 of what was handed in become the draws after ``length`` others."""
        self.take(length)
        at = length % self.chunk
        for key, buffer in self._buffers.items():
            given = (values if key[0] == "posterior" else stats)[key[1]]
            buffer[:, at : at + count] = given[:, first : first + count]

    def take(self, length: int) -> None:
        """Have the chunk in hand that goes on after ``length`` draws, with those of them that belong to it."""
        index, at = divmod(length, self.chunk)
        if index == self._in_hand:
            return
        self._in_hand = None  # until all of it is there
        for key, variable in self.arrays.items():
            dtype = np.dtype(variable.dtype).newbyteorder("<")
            if key not in self._buffers:
                self._buffers[key] = np.empty((self.chains, self.chunk, *variable.shape), dtype)
            if at:
                self._buffers[key].reshape(-1)[:] = np.frombuffer(self.read(key, index), dtype)
        self._in_hand = index

    def write(self, length: int) -> list[Path]:
        """The chunk in hand onto disk, with the draws up to ``length``; its files."""
        index = (length - 1) // self.chunk
        assert index == self._in_hand
        written = []
        for key, buffer in self._buffers.items():
            buffer[:, length - index * self.chunk :] = _fill(self.arrays[key].dtype)
            file = self.file(key, index)
            content = buffer.reshape(-1).view(np.uint8)
            checksum = google_crc32c.value(content).to_bytes(4, "little")
            replace(file, content, checksum, durable=file.exists())  # a commit may rely on the one replaced
            written.append(file)
        return written

    def read(self, key: tuple[str, str], index: int) -> bytes:
        """The bytes of one chunk, compared with their checksum."""
        file = self.file(key, index)
        content = file.read_bytes()
        if google_crc32c.value(content[:-4]) != int.from_bytes(content[-4:], "little"):
            raise StoreError(
                f"{file} is damaged: its checksum does not match. Draws {index * self.chunk} to "
                f"{(index + 1) * self.chunk - 1} are not to be trusted; restore it from a copy or run again."
            )
        return content[:-4]

    def check_files(self) -> None:
        """Every committed chunk must be there in its full size."""
        for key, variable in self.arrays.items():
            need = self.file_bytes(variable)
            for index in range(-(-self.committed // self.chunk)):
                file = self.file(key, index)
                size = file.stat().st_size if file.exists() else None
                if size != need:
                    found = "is missing" if size is None else f"has {size} bytes, not {need}"
                    raise StoreError(
                        f"{self.path} is truncated: {file.relative_to(self.path)} {found}, though "
                        f"{self.committed} draws were committed. Restore the file from a copy, or run again "
                        "with overwrite=True."
                    )

    def verify(self) -> None:
        self.check_files()
        for key in self.arrays:
            for index in range(-(-self.committed // self.chunk)):
                self.read(key, index)

    def create(self) -> None:
        """Groups, arrays and coordinates, at the length that the run is to have."""
        for group in ("posterior", "sample_stats"):
            folder = self.path / (self.prefix + group)
            folder.mkdir()
            replace(folder / "zarr.json", to_json(GROUP))
            members = [v for (g, _), v in self.arrays.items() if g == group]
            coords: dict[str, np.ndarray] = {"chain": np.arange(self.chains)}
            for variable in members:
                shape = (self.chains, self.draws, *variable.shape)
                chunks = (self.chains, self.chunk, *variable.shape)
                _write_array_metadata(
                    folder / variable.name, shape, chunks, variable.dtype, ("chain", "draw", *variable.dims)
                )
                coords |= {dim: np.asarray(labels) for dim, labels in variable.coords.items()}
            for dim, labels in coords.items():
                _write_coordinate(folder / dim, dim, labels)
            _write_array_metadata(folder / "draw", (self.draws,), (DRAW_NUMBERS,), "int64", ("draw",))
            _number_draws(folder / "draw", self.draws)

    def set_length(self, length: int) -> None:
        """Give every array (and the draw numbers) this length, which hides or shows what lies beyond."""
        for group in ("posterior", "sample_stats"):
            folder = self.path / (self.prefix + group)
            _number_draws(folder / "draw", length)
            for name in [n for g, n in self.arrays if g == group] + ["draw"]:
                file = folder / name / "zarr.json"
                metadata = json.loads(file.read_text("utf-8"))
                axis = metadata["dimension_names"].index("draw")
                if metadata["shape"][axis] != length:
                    metadata["shape"][axis] = length
                    replace(file, to_json(metadata))


def _write_array_metadata(
    folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, dims: tuple[str, ...]
) -> None:
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "crc32c"},
    ]
    if dtype == "string":
        codecs[0] = {"name": "vlen-utf8"}
    elif np.dtype(dtype).itemsize == 1:
        codecs[0] = {"name": "bytes"}  # a byte has no order
    fill = "" if dtype == "string" else _fill(dtype)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},  # one folder, no tree
        "fill_value": "NaN" if fill != fill else fill,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": dims,
    }
    folder.mkdir()
    replace(folder / "zarr.json", to_json(metadata))


def _number_draws(folder: Path, length: int) -> None:
    """The numbers of draws, as far as they are not there; a chunk of them is the same for a run of any length."""
    for index in range(-(-length // DRAW_NUMBERS)):
        file = folder / f"c.{index}"
        if not file.exists():
            content = np.arange(index * DRAW_NUMBERS, (index + 1) * DRAW_NUMBERS, dtype="<i8").tobytes()
            replace(file, content, google_crc32c.value(content).to_bytes(4, "little"))


def _write_coordinate(folder: Path, dim: str, labels: np.ndarray) -> None:
    """The labels of one axis, in one chunk."""
    dtype = "string" if labels.dtype.kind in "USO" else labels.dtype.name
    _write_array_metadata(folder, labels.shape, (max(1, labels.size),), dtype, (dim,))
    if dtype == "string":  # vlen-utf8: how many, then each with its length in bytes before it
        texts = [str(label).encode() for label in labels]
        content = len(texts).to_bytes(4, "little") + b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    else:
        content = labels.astype(labels.dtype.newbyteorder("<")).tobytes()
    if labels.size:
        replace(folder / "c.0", content, google_crc32c.value(content).to_bytes(4, "little"))


def _fill(dtype: str) -> Any:
    """What a reader sees where nothing was written; integers have no NaN."""
    return np.nan if np.dtype(dtype).kind == "f" else (False if dtype == "bool" else 0)


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def check_variables(variables: Sequence[Variable], stats: Mapping[str, str]) -> None:
    sizes: dict[str, int] = {}
    coords: dict[str, list[Any]] = {}
    names = [v.name for v in variables]
    for name in [*names, *stats]:
        if not re.fullmatch(r"[^/\\.\0][^/\\\0]*", name) or name in ("chain", "draw", "zarr.json"):
            raise InputError(f"{name!r} cannot name a variable: use a word without slashes, other than chain and draw.")
    if len(set(names)) != len(names):
        raise InputError(f"the names of variables must differ, got {names}.")
    for v in variables:
        if len(v.shape) != len(v.dims) or min(v.shape, default=1) < 1:
            raise InputError(
                f"{v.name} has shape {v.shape} and dims {v.dims}: one name for each axis, each of 1 or more."
            )
        for dim, size in zip(v.dims, v.shape, strict=True):
            if sizes.setdefault(dim, size) != size or dim in ("chain", "draw", *names):
                raise InputError(f"axis {dim!r} of {v.name} has length {size}; the name is taken by something else.")
        for dim, labels in v.coords.items():
            if dim not in v.dims or len(labels) != sizes[dim]:
                raise InputError(f"{v.name} has {len(labels)} labels for {dim!r}, its axes are {sizes}.")
            if coords.setdefault(dim, list(labels)) != list(labels):
                raise InputError(f"axis {dim!r} of {v.name} is labelled otherwise by another variable.")
    for name, dtype in [*((v.name, v.dtype) for v in variables), *stats.items()]:
        if np.dtype(dtype).kind not in "biuf":
            raise InputError(f"{name} has dtype {dtype}; a store holds floats, integers and bool.")
