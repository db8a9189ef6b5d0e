"""A run on disk: draws that stream into a Zarr v3 group, and the checkpoint that goes with them.

    run.zarr/
      zarr.json                        the root group; its consolidated metadata names the groups below and no others
      posterior/    sample_stats/      arrays (chain, draw, ...), one chunk file for all chains and ``chunk`` draws
      warmup_posterior/ ...            the same for kept warm-up draws, if any were asked for
      run.json                         what the run is: settings, variables, sizes
      checkpoint/commit.json           how many draws count, and which file holds the state after the last of them
      checkpoint/state-<serial>.npz    that state
      audit/audit.json                 what the audit measured

The commit. Chunk files and the state are each written under another name and renamed; last, one rename replaces
commit.json, which names the state file and its checksum. So whatever instant a writer is killed at, commit.json, the
draws below its length and the state agree, and no more is lost than the chunk in hand. A partial chunk is written at
``flush`` and rewritten when it is full: its first rows stay the same bytes, so either version of the file will do.
Draws beyond the committed length that a killed writer left behind are never read, and are written again.

Every chunk ends in its CRC-32C, a codec of Zarr, so that readers of any kind notice a damaged one.

Files are also forced to the device (fsync), which matters only if the power fails: always when a partial chunk is
replaced, otherwise as often as keeps its cost below 2 % of the time. The last commit of that kind is remembered in
checkpoint/synced.json; ``recover=True`` goes back to it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

import google_crc32c
import numpy as np

from fokker.errors import InputError, StoreError

if TYPE_CHECKING:
    import xarray

FORMAT, VERSION = "fokker run", 1
CHUNK_BYTES = 4 << 20  # of all variables together: large enough for the disk, small enough to lose
CHUNK_DRAWS = 20_000  # and never longer than this
COMMIT_SECONDS = 5.0  # a slow run writes its partial chunk this often
SYNC_SHARE = 0.02  # of the time, at most, goes into forcing files to the device
OURS = (
    "zarr.json", "run.json", "posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats", "checkpoint", "audit",
)  # fmt: skip
PARTIAL = ".partial"  # ends the name of a file that is being written


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


class Checkpoint(NamedTuple):
    """Where a run stands: ``state`` is the one after the last of ``draws`` draws, at ``iteration``."""

    draws: int
    iteration: int
    state: list[np.ndarray]
    warmup: int  # kept warm-up draws
    extra: dict[str, Any]  # small things that must match the state, as the writer gave them


class Store:
    """A run on disk. ``Store.create`` and ``Store.open`` make one; one writer at a time, any number of readers."""

    def __init__(
        self, path: Path, description: dict[str, Any], record: dict[str, Any], lock: BinaryIO | None
    ):
        self.path = path
        self._description = description
        self._record = record
        self._lock = lock  # held by a writer
        self._failed = False
        variables = [
            Variable(v["name"], tuple(v["shape"]), tuple(v["dims"]), v["coords"], v["dtype"])
            for v in description["variables"]
        ]
        arrays = {("posterior", v.name): v for v in variables}
        arrays |= {
            ("sample_stats", name): Variable(name, dtype=dtype)
            for name, dtype in description["stats"].items()
        }
        chains, chunk = description["chains"], description["chunk"]
        self._main = _Draws(path, "", arrays, chains, description["draws"], chunk, record["draws"])
        self._warmup = _Draws(path, "warmup_", arrays, chains, description["warmup"], chunk, record["warmup"])
        self._pending: tuple[list[np.ndarray], int, dict[str, Any]] | None = (
            None  # handed in, not yet committed
        )
        self._committed_at = time.monotonic()
        self._synced_at, self._sync_cost = -np.inf, 0.0
        self._unsynced: list[Path] = []
        synced = path / "checkpoint" / "synced.json"
        self._synced_state = (
            synced.with_name(_read_json(synced)["state"]["file"]) if lock and synced.exists() else None
        )

    # -- making and opening ------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        variables: Sequence[Variable],
        stats: Mapping[str, Any],
        *,
        chains: int,
        draws: int,
        settings: Mapping[str, Any],
        warmup: int = 0,
        overwrite: bool = False,
        chunk: int | None = None,
    ) -> Store:
        """An empty store for ``draws`` draws of ``chains`` chains, and ``warmup`` warm-up draws if these are kept.

        stats: {name: dtype}, one number a draw and chain. settings: anything that JSON can say. chunk: draws in one
        chunk; None takes about 4 MB and at most 20,000 draws. What is at ``path`` is replaced only if it is a store
        and ``overwrite`` is set; anything else that is there is left alone, always.
        """
        path = Path(path)
        stats = {name: np.dtype(dtype).name for name, dtype in stats.items()}
        _check_variables(variables, stats)
        for name, count, least in (("chains", chains, 1), ("draws", draws, 1), ("warmup", warmup, 0)):
            if count < least:
                raise InputError(f"{name} must be at least {least}, got {count}.")
        if chunk is None:
            per_draw = sum(chains * _bytes(v.shape, v.dtype) for v in variables) + sum(
                chains * np.dtype(d).itemsize for d in stats.values()
            )
            chunk = min(CHUNK_DRAWS, max(1, CHUNK_BYTES // max(1, per_draw)))
        if chunk < 1:
            raise InputError(f"chunk must be at least 1 draw, got {chunk}; chunk=None chooses a length.")
        description = {
            "format": FORMAT,
            "format_version": VERSION,
            "chains": chains,
            "draws": draws,
            "warmup": warmup,
            "chunk": min(chunk, max(draws, warmup)),
            "variables": [
                asdict(v) | {"coords": {k: list(c) for k, c in v.coords.items()}} for v in variables
            ],
            "stats": stats,
            "settings": dict(settings),
        }
        text = _json(description, "settings")
        _clear(path, overwrite)
        lock = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            _replace(path / "run.json", text)  # first: from here on the folder is known to be ours
            (path / "checkpoint").mkdir()
            (path / "audit").mkdir()
            lock = _take_lock(path)
            store = cls(path, json.loads(text), {"serial": 0, "draws": 0, "warmup": 0, "iteration": 0}, lock)
            for part in store._parts():
                part.create()
            store._write_root()
            store._commit([], 0, {})
        except OSError as error:
            if lock is not None:
                lock.close()
            raise StoreError(
                f"cannot create a store at {path}: {error.strerror or error}; "
                "try another path, or free space and pass overwrite=True."
            ) from error
        return store

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, write: bool = False, recover: bool = False) -> Store:
        """The store at ``path``, to read, or with ``write=True`` to continue it after its last commit.

        recover: use the last commit that was forced to the device, if the last one of all is damaged.
        """
        path = Path(path)
        description = _read_description(path)
        lock = _take_lock(path) if write else None
        try:
            record = _read_record(path, description, "synced.json" if recover else "commit.json", state=write)
        except StoreError as error:
            if lock is not None:
                lock.close()
            if recover:
                raise
            try:
                older = _read_record(path, description, "synced.json", state=write)
            except StoreError:
                raise error from None
            raise StoreError(
                f"{error} An older commit of {older['draws']} draws is whole: recover=True goes back to it."
            ) from error
        store = cls(path, description, record, lock)
        if write:
            try:
                store._continue()
            except BaseException as error:
                store._release()
                if isinstance(error, OSError):
                    store._fail(error)
                raise
        return store

    def _continue(self) -> None:
        """What a killed, interrupted or recovered writer left is made ready for the next draw."""
        for part in self._parts():
            part.set_length(part.draws)
            part.load_partial()
        self._write_root()
        _replace(self.path / "checkpoint" / "commit.json", _json(self._record))

    # -- writing -----------------------------------------------------------------------------------------------

    def until_chunk_end(self, warmup: bool = False) -> int:
        """Draws until the present chunk (or the run) is full; 0 when all draws are there."""
        return self._part(warmup).until_chunk_end()

    def append(
        self,
        values: Mapping[str, np.ndarray],
        stats: Mapping[str, np.ndarray],
        state: Sequence[np.ndarray],
        iteration: int,
        *,
        extra: Mapping[str, Any] | None = None,
        warmup: bool = False,
    ) -> None:
        """k more draws, values[name]: (chains, k, *shape), stats[name]: (chains, k), and the state after them.

        k may be 0 (a state without new draws). Commits when a chunk has become full, or after five seconds; appends
        that end at chunk ends (``until_chunk_end``) write nothing twice. The arrays may be reused after the call.
        """
        self._need_writable()
        part = self._part(warmup)
        count = part.check(values, stats)
        state = [np.asarray(leaf) for leaf in state]
        for leaf in state:
            if leaf.dtype.kind not in "biufc":
                raise InputError(
                    f"a checkpoint holds numbers, got an array of dtype {leaf.dtype}; convert it, for example with "
                    "jax.random.key_data."
                )
        done, full = 0, False
        try:
            while done < count:
                take = min(count - done, part.until_chunk_end())
                part.put(values, stats, done, take)
                done += take
                if part.at_chunk_end():
                    self._note_written(part.write())
                    full = True
            if full or time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._flush(state, iteration, dict(extra or {}))
            else:
                self._pending = [np.array(leaf) for leaf in state], iteration, dict(extra or {})
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Write and commit everything that was appended, a partial chunk too."""
        self._need_writable()
        if self._pending is None:
            return
        try:
            self._flush(*self._pending)
        except OSError as error:
            self._fail(error)

    def update_settings(self, **changes: Any) -> None:
        """Change entries of the settings in run.json, such as what a warm-up chose."""
        self._need_writable()
        description = self._description | {"settings": self._description["settings"] | changes}
        self._write_json(self.path / "run.json", description, "settings")
        self._description = json.loads(_json(description, "settings"))

    def write_audit(self, audit: Mapping[str, Any]) -> None:
        """Keep what the audit measured; a reader may do so too, after the run."""
        self._write_json(self.path / "audit" / "audit.json", dict(audit), "audit")

    def close(self) -> None:
        """Commit what is there, cut the arrays to it, and let others write. A reader has nothing to close.

        After a failed write (full disk) nothing more is written: what was committed stays readable by ``open``.
        """
        if self._lock is None:
            return
        try:
            if not self._failed:
                self.flush()
                for part in self._parts():
                    part.set_length(part.committed)
                self._write_root()
        except OSError as error:
            self._fail(error)
        finally:
            self._release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Draws that are safely on disk."""
        return self._record["draws"]

    @property
    def draws(self) -> int:
        """Draws that the run is to have."""
        return self._description["draws"]

    @property
    def chains(self) -> int:
        return self._description["chains"]

    @property
    def chunk(self) -> int:
        """Draws in one chunk."""
        return self._description["chunk"]

    @property
    def complete(self) -> bool:
        return self.committed == self.draws

    @property
    def settings(self) -> dict[str, Any]:
        return self._description["settings"]

    def checkpoint(self) -> Checkpoint:
        """The state of the last commit, and how many draws belong to it."""
        name = self._record["state"]["file"]
        data = _read_state(self.path, self._record["state"])
        with np.load(io.BytesIO(data), allow_pickle=False) as leaves:
            state = [leaves[f"leaf_{i}"] for i in range(len(leaves.files))]
        if len(state) != self._record["state"]["leaves"]:
            raise StoreError(
                f"{self.path / 'checkpoint' / name} holds {len(state)} arrays, not as its record says."
            )
        record = self._record
        return Checkpoint(record["draws"], record["iteration"], state, record["warmup"], record["extra"])

    def audit(self) -> dict[str, Any] | None:
        """What ``write_audit`` kept, or None."""
        file = self.path / "audit" / "audit.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def groups(self) -> dict[str, xarray.Dataset]:
        """The groups that hold draws, {"posterior": ..., "sample_stats": ...}, up to the committed length; lazy."""
        return {
            part.prefix + group: self._dataset(part, group)
            for part in self._parts()
            for group in ("posterior", "sample_stats")
        }

    def posterior(self) -> xarray.Dataset:
        """Draws up to the committed length, read from disk when their values are looked at."""
        return self._dataset(self._main, "posterior")

    def sample_stats(self) -> xarray.Dataset:
        return self._dataset(self._main, "sample_stats")

    def _dataset(self, part: _Draws, group: str) -> xarray.Dataset:
        import xarray

        data = xarray.open_dataset(
            str(self.path),
            engine="zarr",
            group=part.prefix + group,
            consolidated=False,
            cache=False,
            decode_cf=False,
        )
        return data.isel(draw=slice(0, part.committed))

    def verify(self) -> None:
        """Read every committed chunk and compare its checksum."""
        for part in self._parts():
            part.verify()

    # -- inside ------------------------------------------------------------------------------------------------

    def _parts(self) -> list[_Draws]:
        return [self._main, self._warmup] if self._warmup.draws else [self._main]

    def _part(self, warmup: bool) -> _Draws:
        return self._warmup if warmup else self._main

    def _need_writable(self) -> None:
        if self._failed:
            raise StoreError(
                f"an earlier write to {self.path} failed; its {self.committed} committed draws are safe: "
                "free space, then resume it."
            )
        if self._lock is None:
            raise StoreError(
                f"{self.path} is open for reading only; Store.open(path, write=True) continues a run."
            )

    def _flush(self, state: Sequence[np.ndarray], iteration: int, extra: dict[str, Any]) -> None:
        for part in self._parts():
            if not part.at_chunk_end() and part.length != part.committed:
                self._note_written(part.write())
        self._commit(state, iteration, extra)

    def _note_written(self, written: list[tuple[Path, bool]]) -> None:
        """Chunk files are forced to the device later, unless they replace one that a commit may rely on."""
        for file, replaced in written:
            self._unsynced.append(file)
            if replaced:
                self._synced_at = -np.inf

    def _commit(self, state: Sequence[np.ndarray], iteration: int, extra: dict[str, Any]) -> None:
        folder = self.path / "checkpoint"
        serial = self._record["serial"] + 1
        buffer = io.BytesIO()
        leaves: dict[str, Any] = {f"leaf_{i}": leaf for i, leaf in enumerate(state)}
        np.savez(buffer, **leaves)
        data = buffer.getbuffer()
        file = folder / f"state-{serial}.npz"
        record = {
            "serial": serial,
            "draws": self._main.length,
            "warmup": self._warmup.length,
            "iteration": iteration,
            "extra": extra,
            "state": {"file": file.name, "leaves": len(state), "bytes": len(data), "crc32": zlib.crc32(data)},
        }
        text = _json(record, "extra")
        start = time.monotonic()
        sync = start - self._synced_at >= self._sync_cost / SYNC_SHARE
        _replace(file, data)
        if sync:
            for written in (*self._unsynced, file, *{f.parent for f in self._unsynced}, folder):
                _sync(written)
        _replace(folder / "commit.json", text, sync=sync)
        if sync:
            _replace(folder / "synced.json", text, sync=True)
            self._unsynced.clear()
            self._synced_at = time.monotonic()
            self._sync_cost = self._synced_at - start
            self._synced_state = file
        for old in folder.glob("state-*"):
            if old not in (file, self._synced_state):
                old.unlink()
        self._record = json.loads(text)
        for part in self._parts():
            part.committed = part.length
        self._pending = None
        self._committed_at = time.monotonic()

    def _fail(self, error: OSError) -> NoReturn:
        self._failed = True
        where = error.filename or self.path
        lost = sum(part.length - part.committed for part in self._parts())
        raise StoreError(
            f"cannot write {where}: {error.strerror or error}. {self.committed} of {self.draws} draws are committed "
            f"and stay readable, {lost} are not; a chunk takes {self._main.chunk_bytes()} bytes. "
            "Free space, then resume the run."
        ) from error

    def _write_json(self, file: Path, content: dict[str, Any], what: str) -> None:
        text = _json(content, what)
        try:
            _replace(file, text, sync=True)
        except OSError as error:
            raise StoreError(
                f"cannot write {file} ({len(text)} bytes): {error.strerror or error}."
            ) from error

    def _write_root(self) -> None:
        """The root group, with the metadata of all below it, so that other readers look at nothing else."""
        nodes: dict[str, Any] = {}
        for part in self._parts():
            for group in ("posterior", "sample_stats"):
                folder = self.path / (part.prefix + group)
                for file in [folder / "zarr.json", *sorted(folder.glob("*/zarr.json"))]:
                    nodes[file.parent.relative_to(self.path).as_posix()] = json.loads(file.read_text("utf-8"))
        consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
        root = _GROUP | {"attributes": {"inference_library": "fokker"}, "consolidated_metadata": consolidated}
        _replace(self.path / "zarr.json", _json(root))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _Draws:
    """The arrays of posterior and sample_stats: full chunks are on disk, the chunk in hand is in memory."""

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
        self.length = self.committed = committed
        self._buffers: dict[tuple[str, str], np.ndarray] = {}

    def folder(self, key: tuple[str, str]) -> Path:
        return self.path / (self.prefix + key[0]) / key[1]

    def file(self, key: tuple[str, str], index: int) -> Path:
        return self.folder(key) / ".".join(["c", "0", str(index), *("0" for _ in self.arrays[key].shape)])

    def chunk_bytes(self) -> int:
        return sum(self.file_bytes(v) for v in self.arrays.values())

    def file_bytes(self, variable: Variable) -> int:
        return self.chains * self.chunk * _bytes(variable.shape, variable.dtype) + 4

    def at_chunk_end(self) -> bool:
        return self.length % self.chunk == 0 or self.length == self.draws

    def until_chunk_end(self) -> int:
        return min(self.chunk - self.length % self.chunk, self.draws - self.length)

    def check(self, values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]) -> int:
        """The number of draws handed in, once names and shapes are as declared."""
        count = -1
        for group, given in (("posterior", values), ("sample_stats", stats)):
            names = {name for g, name in self.arrays if g == group}
            if names != set(given):
                raise InputError(f"{group} needs {sorted(names)}, got {sorted(given)}.")
            for name, array in given.items():
                count = array.shape[1] if count < 0 and array.ndim > 1 else count
                need = (self.chains, count, *self.arrays[group, name].shape)
                if array.shape != need:
                    raise InputError(f"{group}/{name} must have shape {need}, got {array.shape}.")
        if count > self.draws - self.length:
            raise InputError(
                f"the store is for {self.draws} {self.prefix.strip('_')} draws and holds {self.length}; "
                f"{count} more do not fit."
            )
        return count

    def put(
        self, values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray], first: int, count: int
    ) -> None:
        """Rows first .. first + count - 1 of what was handed in go into the chunk in hand."""
        at = self.length % self.chunk
        for key, variable in self.arrays.items():
            given = (values if key[0] == "posterior" else stats)[key[1]]
            if key not in self._buffers:
                shape = (self.chains, self.chunk, *variable.shape)
                self._buffers[key] = np.full(
                    shape, _fill(variable.dtype), np.dtype(variable.dtype).newbyteorder("<")
                )
            elif at == 0:
                self._buffers[key].fill(_fill(variable.dtype))
            self._buffers[key][:, at : at + count] = given[:, first : first + count]
        self.length += count

    def write(self) -> list[tuple[Path, bool]]:
        """The chunk in hand onto disk; its files, and whether each took the place of another."""
        index = (self.length - 1) // self.chunk
        written = []
        for key, buffer in self._buffers.items():
            file = self.file(key, index)
            content = buffer.reshape(-1).view(np.uint8)
            replaced = file.exists()
            _replace(file, content, google_crc32c.value(content).to_bytes(4, "little"))
            written.append((file, replaced))
        return written

    def load_partial(self) -> None:
        """Continue: the committed rows of a partial chunk come back into memory."""
        if self.at_chunk_end():
            return
        at = self.length % self.chunk
        for key, variable in self.arrays.items():
            content = self.read(key, self.length // self.chunk)
            dtype = np.dtype(variable.dtype).newbyteorder("<")
            buffer = np.frombuffer(content, dtype).reshape(self.chains, self.chunk, *variable.shape).copy()
            buffer[:, at:] = _fill(variable.dtype)
            self._buffers[key] = buffer

    def read(self, key: tuple[str, str], index: int) -> bytes:
        """The bytes of one chunk, compared with their checksum."""
        file = self.file(key, index)
        content = file.read_bytes()
        if google_crc32c.value(content[:-4]) != int.from_bytes(content[-4:], "little"):
            raise StoreError(
                f"{file} is damaged: its checksum does not match. Draws {index * self.chunk} to "
                f"{(index + 1) * self.chunk - 1} cannot be trusted; restore the file from a copy or run again."
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
                        f"{self.path} is truncated: {file.relative_to(self.path)} {found}, though {self.committed} "
                        "draws were committed. Restore the file from a copy, or run again with overwrite=True."
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
            _replace(folder / "zarr.json", _json(_GROUP))
            members = [v for (g, _), v in self.arrays.items() if g == group]
            coords: dict[str, np.ndarray] = {"chain": np.arange(self.chains), "draw": np.arange(self.draws)}
            for variable in members:
                shape = (self.chains, self.draws, *variable.shape)
                chunks = (self.chains, self.chunk, *variable.shape)
                _write_array_metadata(
                    folder / variable.name, shape, chunks, variable.dtype, ("chain", "draw", *variable.dims)
                )
                coords |= {dim: np.asarray(labels) for dim, labels in variable.coords.items()}
            for dim, labels in coords.items():
                _write_coordinate(folder / dim, dim, labels)

    def set_length(self, length: int) -> None:
        """Give every array (and the draw numbers) this length, which hides or shows what lies beyond."""
        for group in ("posterior", "sample_stats"):
            folder = self.path / (self.prefix + group)
            for name in [n for g, n in self.arrays if g == group] + ["draw"]:
                file = folder / name / "zarr.json"
                metadata = json.loads(file.read_text("utf-8"))
                axis = metadata["dimension_names"].index("draw")
                if metadata["shape"][axis] != length:
                    metadata["shape"][axis] = length
                    _replace(file, _json(metadata))


# -- Zarr v3, as much of it as is needed -----------------------------------------------------------------------------

_GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


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
    _replace(folder / "zarr.json", _json(metadata))


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
        _replace(folder / "c.0", content, google_crc32c.value(content).to_bytes(4, "little"))


def _fill(dtype: str) -> Any:
    """What a reader sees where nothing was written; integers have no NaN."""
    return np.nan if np.dtype(dtype).kind == "f" else (False if dtype == "bool" else 0)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


# -- files -----------------------------------------------------------------------------------------------------------


def _replace(file: Path, *content: Any, sync: bool = False) -> None:
    """Write under another name, then rename: a reader sees the old file or the new one, never a part."""
    partial = file.with_name(file.name + PARTIAL)
    try:
        with open(partial, "wb", buffering=0) as out:
            for piece in content:
                _write_whole(out, piece)
            if sync:
                os.fsync(out.fileno())
        os.replace(partial, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        size = sum(memoryview(piece).nbytes for piece in content)
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} ({size} bytes)", str(file)) from error
    if sync:
        _sync(file.parent)


def _write_whole(out: BinaryIO | io.RawIOBase, piece: Any) -> None:
    """A raw write may take a part only, when the disk fills up or a signal comes."""
    rest = memoryview(piece).cast("B")
    while rest:
        written = out.write(rest)
        rest = rest[written:]


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the device."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no way to open a folder, and renames there are not deferred
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _take_lock(path: Path) -> BinaryIO:
    """The writer's lock; the system frees it when the process ends, however it ends."""
    lock = open(path / "checkpoint" / "lock", "ab")
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StoreError(
                f"{path} is being written by another process (or another object of this one); wait for it or close it."
            ) from None
    return lock


def _json(content: Any, what: str = "metadata") -> bytes:
    """JSON; NumPy numbers and arrays become numbers and lists. ``what`` names the content in the error."""
    try:
        return json.dumps(content, indent=1, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} must be made of numbers, texts, lists and dicts that JSON can say: {error}."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _read_description(path: Path) -> dict[str, Any]:
    """run.json of a store, once it is clear that there is one."""
    if not path.exists():
        raise StoreError(f"there is no store at {path}; check the path.")
    if not path.is_dir():
        raise StoreError(
            f"{path} is a file, not a store; a store is a folder that a run with store=... wrote."
        )
    file = path / "run.json"
    if not file.exists():
        part = (path / "posterior").exists() or (path / "checkpoint").exists()
        raise StoreError(
            f"{file} is missing, so "
            + (
                f"{path} is truncated; restore that file from a copy."
                if part
                else f"{path} is not a store of a run."
            )
        )
    try:
        description = _read_json(file)
        ours = description["format"] == FORMAT
        version = description.get("format_version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{file} was not written by a run ({error}); {path} is not a store, or damaged."
        ) from error
    if not ours:
        raise StoreError(f"{file} is of format {description['format']!r}, a store has {FORMAT!r}.")
    if version != VERSION:
        raise StoreError(
            f"{path} has format version {version!r}, this fokker reads version {VERSION}; "
            "use the version of fokker that wrote it, or a newer one."
        )
    return description


def _read_record(path: Path, description: dict[str, Any], name: str, *, state: bool) -> dict[str, Any]:
    """A commit record, once the draws that it counts (and with ``state`` the state that it names) are there."""
    file = path / "checkpoint" / name
    if not file.exists():
        raise StoreError(
            f"{file} is missing: the run ended before it began, or the store is truncated; "
            "start it again with overwrite=True."
        )
    try:
        record = _read_json(file)
        counts = [record[key] for key in ("serial", "draws", "warmup", "iteration")]
        whole = (
            all(isinstance(count, int) and count >= 0 for count in counts)
            and record["draws"] <= description["draws"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged: {error!r}. Restore it from a copy.") from error
    if not whole:
        raise StoreError(f"{file} is damaged: it counts {record['draws']} of {description['draws']} draws.")
    reader = Store(path, description, record, None)
    for part in reader._parts():
        part.check_files()
    if state:
        _read_state(path, record["state"])
    return record


def _read_state(path: Path, entry: Mapping[str, Any]) -> bytes:
    """The bytes of a state file, compared with its record."""
    file = path / "checkpoint" / entry["file"]
    if not file.exists():
        raise StoreError(f"{path} is truncated: its last state, {file.name}, is missing from checkpoint/.")
    data = file.read_bytes()
    if len(data) != entry["bytes"] or zlib.crc32(data) != entry["crc32"]:
        raise StoreError(f"{file} is damaged: its size or checksum is not what the commit recorded.")
    return data


def _clear(path: Path, overwrite: bool) -> None:
    """Make room for a new store, or refuse."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise StoreError(f"{path} is a file; a store needs a folder of its own: choose another path.")
    names = sorted(entry.name for entry in path.iterdir() if entry.name != "run.json" + PARTIAL)
    if not names:
        return
    try:
        description = _read_description(path)
    except StoreError as error:
        if "format version" not in str(error):
            raise StoreError(
                f"{path} holds something else ({', '.join(names[:5])}); choose another path."
            ) from error
        description = {"draws": "some"}
    if not overwrite:
        raise StoreError(
            f"{path} holds a run of {description['draws']} draws; resume it, choose another path, "
            "or pass overwrite=True to delete it."
        )
    foreign = [n for n in names if n.removesuffix(PARTIAL) not in OURS or (path / n).is_symlink()]
    if foreign:
        raise StoreError(
            f"{path} is a store, but also holds {', '.join(foreign[:5])}, which no run wrote; "
            "nothing was deleted: move that away or choose another path."
        )
    (path / "checkpoint").mkdir(exist_ok=True)
    _take_lock(path).close()
    _delete((path / n for n in names if n != "run.json"))
    (path / "run.json").unlink()  # last: until then the folder is known to be a store


def _delete(entries: Iterable[Path]) -> None:
    for entry in entries:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _check_variables(variables: Sequence[Variable], stats: Mapping[str, str]) -> None:
    sizes: dict[str, int] = {}
    names = [v.name for v in variables]
    for name in [*names, *stats]:
        if not re.fullmatch(r"[^/\\.\0][^/\\\0]*", name) or name in ("chain", "draw", "zarr.json"):
            raise InputError(
                f"{name!r} cannot name a variable: use a word without slashes, other than chain and draw."
            )
    if len(set(names)) != len(names):
        raise InputError(f"the names of variables must differ, got {names}.")
    for v in variables:
        if len(v.shape) != len(v.dims) or min(v.shape, default=1) < 1:
            raise InputError(
                f"{v.name} has shape {v.shape} and dims {v.dims}: one name for each axis, each of 1 or more."
            )
        for dim, size in zip(v.dims, v.shape, strict=True):
            if sizes.setdefault(dim, size) != size or dim in ("chain", "draw", *names):
                raise InputError(
                    f"axis {dim!r} of {v.name} has length {size}; the name is taken by something else."
                )
        for dim, labels in v.coords.items():
            if dim not in v.dims or len(labels) != sizes[dim]:
                raise InputError(
                    f"{v.name} has {len(labels)} labels for {dim!r}, its axes are {dict(zip(v.dims, v.shape))}."
                )
    for name, dtype in [*((v.name, v.dtype) for v in variables), *stats.items()]:
        if np.dtype(dtype).kind not in "biuf":
            raise InputError(f"{name} has dtype {dtype}; a store holds floats, integers and bool.")
