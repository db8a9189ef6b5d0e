"""A run on disk: draws that stream into a Zarr v3 group, and the checkpoint that goes with them.

    run.zarr/
      zarr.json                      the root group; its metadata names the groups below and nothing else
      posterior/    sample_stats/    arrays (chain, draw, ...); a chunk file has ``chunk`` draws of all chains
      warmup_posterior/ ...          the same for warm-up draws, if these are kept
      run.json                       what the run is: settings, variables, sizes
      checkpoint/commit.json         how many draws count, and which file has the state after the last of them
      checkpoint/state-<serial>.npz  that state
      audit/audit.json               what the audit measured

The commit. Chunk files and the state are each written under another name and renamed; last, one rename
replaces commit.json, which names the state file and its checksum. So whatever instant a writer is killed at,
commit.json, the draws that it counts and the state agree, and no more is lost than the chunk in hand. A
partial chunk is written at ``flush`` and rewritten when it is full: its first rows stay the same bytes, so
either version of the file will do. Draws beyond the committed length that a killed writer left are never
read, and are written again.

In memory it is the same: what was handed in counts from the one assignment that makes the numbers of draws, the
state and the iteration pending, all together. An exception before it, Ctrl-C too, leaves the earlier ones.

A commit is also forced to the device (fsync), which matters only if the power fails, when that is expected to
cost less than 2 % of the time since the last such commit, and once a minute. It is remembered in
checkpoint/synced.json; ``recover=True`` goes back to it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from fokker.errors import InputError, StoreError
from fokker.run.chunks import GROUP, Draws, Variable, bytes_of, check_variables
from fokker.run.files import PARTIAL, read_json, replace, sync, take_lock, to_json

if TYPE_CHECKING:
    import xarray

FORMAT, VERSION = "fokker run", 1
CHUNK_BYTES = 8 << 20  # of all variables together: large enough for the disk, small enough to lose
CHUNK_DRAWS = 40_000  # and never longer than this
COMMIT_SECONDS = 5.0  # a slow run writes its partial chunk this often
SYNC_SHARE, SYNC_SECONDS = (
    0.02,
    60.0,
)  # of the time may go into forcing files to the device; at least this often
OURS = {"zarr.json", "run.json", "checkpoint", "audit"} | {
    warmup + group for warmup in ("", "warmup_") for group in ("posterior", "sample_stats")
}


class Checkpoint(NamedTuple):
    """Where a run stands: ``state`` is the one after the last of ``draws`` draws, at ``iteration``.

    Before the first commit of a run ``state`` is empty.
    """

    draws: int
    iteration: int
    state: list[np.ndarray]
    warmup: int  # kept warm-up draws
    extra: dict[str, Any]  # small things that must match the state, as the writer gave them


class Store:
    """A run on disk, from ``Store.create`` or ``Store.open``; one writer at a time, any number of readers."""

    def __init__(self, path: Path, description: dict[str, Any], record: dict[str, Any], lock: BinaryIO | None):
        self.path = path
        self._description = description
        self._record = record
        self._lock = lock  # held by a writer
        self._broken = False  # a write failed
        self._serial = record["serial"]  # of the last state file that was begun
        variables = [
            Variable(v["name"], tuple(v["shape"]), tuple(v["dims"]), v["coords"], v["dtype"])
            for v in description["variables"]
        ]
        arrays = {("posterior", v.name): v for v in variables}
        arrays |= {("sample_stats", name): Variable(name, dtype=dtype) for name, dtype in description["stats"].items()}
        chains, chunk = description["chains"], description["chunk"]
        self._main = Draws(path, "", arrays, chains, description["draws"], chunk, record["draws"])
        self._warmup = Draws(path, "warmup_", arrays, chains, description["warmup"], chunk, record["warmup"])
        self._pending: Checkpoint | None = None  # handed in, not yet committed
        self._committed_at = time.monotonic()
        self._synced_at, self._sync_cost = -np.inf, 0.0  # seconds that the last one took
        self._synced_chunks = 0
        self._unsynced: list[Path] = []
        synced = path / "checkpoint" / "synced.json"
        known = lock and synced.exists()
        self._synced_states = [synced.with_name(read_json(synced)["state"]["file"])] if known else []

    # making and opening

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
        """An empty store for ``draws`` draws of ``chains`` chains, and ``warmup`` warm-up draws if kept.

        stats: {name: dtype}, one number a draw and chain. settings: anything that JSON can say. chunk: draws
        in one chunk; None takes about 8 MB and at most 40,000 draws. What is at ``path`` is replaced only if
        it is a store and ``overwrite`` is set; anything else that is there is left alone, always.
        """
        path = Path(path)
        stats = {name: np.dtype(dtype).name for name, dtype in stats.items()}
        check_variables(variables, stats)
        for name, count, least in (("chains", chains, 1), ("draws", draws, 1), ("warmup", warmup, 0)):
            if count < least:
                raise InputError(f"{name} must be at least {least}, got {count}.")
        if chunk is None:
            per_draw = sum(chains * bytes_of(v.shape, v.dtype) for v in variables) + sum(
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
            "variables": [asdict(v) | {"coords": {k: list(c) for k, c in v.coords.items()}} for v in variables],
            "stats": stats,
            "settings": dict(settings),
        }
        text = to_json(description, "settings")
        _clear(path, overwrite)
        lock = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            replace(path / "run.json", text)  # first: from here on the folder is known to be ours
            (path / "checkpoint").mkdir()
            (path / "audit").mkdir()
            lock = take_lock(path)
            store = cls(path, json.loads(text), {"serial": 0, "draws": 0, "warmup": 0, "iteration": 0}, lock)
            for part in store._parts():
                part.create()
            store._write_root()
            store._pending = Checkpoint(0, 0, [], 0, {})
            store._commit()
        except BaseException as error:
            if lock is not None:
                lock.close()
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"cannot create a store at {path}: {error.strerror or error}; "
                "try another path, or free space and pass overwrite=True."
            ) from error
        return store

    @staticmethod
    def check_free(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """StoreError if ``create`` would refuse the path; nothing is changed."""
        _to_clear(Path(path), overwrite)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, write: bool = False, recover: bool = False) -> Store:
        """The store at ``path``, to read, or with ``write=True`` to continue it after its last commit.

        recover: use the last commit that was forced to the device, if the last one of all is damaged.
        """
        path = Path(path)
        description = _read_description(path)
        lock = take_lock(path) if write else None
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
            part.take(part.committed)
        self._write_root()
        replace(self.path / "checkpoint" / "commit.json", to_json(self._record))

    # writing

    def until_chunk_end(self, warmup: bool = False) -> int:
        """Draws until the present chunk (or the run) is full; 0 when all draws are there."""
        part = self._part(warmup)
        return part.until_chunk_end(self._length(part))

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
        """k more draws, values[name] (chains, k, *shape) and stats[name] (chains, k), and the state then.

        k may be 0 (a state without new draws). Commits when a chunk has become full, or after five seconds;
        appends that end where chunks do (``until_chunk_end``) write nothing twice. The arrays may be reused
        after the call. extra: small things that must match the state, such as where an iterator stands.
        """
        self._need_writable()
        part = self._part(warmup)
        before = at = self._length(part)
        count = part.check(values, stats, before)
        kept = json.loads(to_json(dict(extra or {}), "extra"))
        state = [np.array(leaf) for leaf in state]
        for leaf in state:
            if leaf.dtype.kind not in "biufc":
                raise InputError(
                    f"a checkpoint holds numbers, got an array of dtype {leaf.dtype}; convert it, "
                    "for example with jax.random.key_data."
                )
        full = False
        try:
            while at < before + count:
                take = min(before + count - at, part.until_chunk_end(at))
                part.put(at, values, stats, at - before, take)
                at += take
                if part.at_chunk_end(at):
                    self._unsynced += part.write(at)
                    full = True
            of_main, of_warmup = (self._length(self._main), at) if warmup else (at, self._length(self._warmup))
            self._pending = Checkpoint(of_main, iteration, state, of_warmup, kept)
            if full or time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._flush()
        except OSError as error:
            self._fail(error, at - self._length(part))

    def flush(self) -> None:
        """Write and commit everything that was appended, a partial chunk too."""
        self._need_writable()
        if self._pending is None:
            return
        try:
            self._flush()
        except OSError as error:
            self._fail(error)

    def update_settings(self, **changes: Any) -> None:
        """Change entries of the settings in run.json, such as what a warm-up chose."""
        self._need_writable()
        description = self._description | {"settings": self._description["settings"] | changes}
        self._write_json(self.path / "run.json", description, "settings")
        self._description = json.loads(to_json(description, "settings"))

    def extend(self, draws: int) -> None:
        """Make room for more draws than the run was to have."""
        self._need_writable()
        if draws < self.draws:
            raise InputError(f"the run is for {self.draws} draws already; {draws} would be fewer.")
        changed = {"draws": draws, "settings": self._description["settings"] | {"draws": draws}}
        self._description = self._description | changed
        self._write_json(self.path / "run.json", self._description, "settings")
        self._main.draws = draws
        self._main.set_length(draws)
        self._write_root()

    def write_audit(self, audit: Mapping[str, Any]) -> None:
        """Keep what the audit measured; a reader may do so too, after the run."""
        self._write_json(self.path / "audit" / "audit.json", dict(audit), "audit")

    def close(self, failed: bool | None = None) -> None:
        """Commit what is there, cut the arrays to it, and let others write. A reader has nothing to close.

        failed: whether an error ended the run, which ``failed`` then remembers; None leaves that as it was. After a
        failed write (full disk) nothing more is written, not even this; what was committed stays readable.
        """
        if self._lock is None:
            return
        try:
            if not self._broken:
                self.flush()
                if failed is not None and failed != self.failed:
                    record = self._record | {"failed": failed}
                    replace(self.path / "checkpoint" / "commit.json", to_json(record))
                    self._record = record
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

    # reading

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
    def failed(self) -> bool:
        """Whether an error ended the run after the last commit."""
        return self._record.get("failed", False)

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
            raise StoreError(f"{self.path / 'checkpoint' / name} holds {len(state)} arrays, not as its record says.")
        record = self._record
        return Checkpoint(record["draws"], record["iteration"], state, record["warmup"], record["extra"])

    def audit(self) -> dict[str, Any] | None:
        """What ``write_audit`` kept, or None."""
        file = self.path / "audit" / "audit.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def groups(self) -> dict[str, xarray.Dataset]:
        """The groups that hold draws, {"posterior": ..., ...}, up to the committed length; lazy."""
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

    def _dataset(self, part: Draws, group: str) -> xarray.Dataset:
        import xarray

        def load(drop: Iterable[str] = ()) -> xarray.Dataset:
            data = xarray.open_dataset(
                str(self.path),
                engine="zarr",
                group=part.prefix + group,
                consolidated=False,
                cache=False,
                decode_cf=False,
                drop_variables=drop,
            )
            return data.isel(draw=slice(0, part.committed))

        try:
            return load()
        except ValueError:  # a writer died while it cut the arrays: each by itself is as long as it must be
            names = [*(name for g, name in part.arrays if g == group), "draw"]
            each = [load([other for other in names if other != name]) for name in names]
            return xarray.merge(each, compat="equals", join="exact")

    def verify(self) -> None:
        """Read every committed chunk and compare its checksum."""
        for part in self._parts():
            part.verify()

    # inside

    def _parts(self) -> list[Draws]:
        return [self._main, self._warmup] if self._warmup.draws else [self._main]

    def _part(self, warmup: bool) -> Draws:
        return self._warmup if warmup else self._main

    def _length(self, part: Draws) -> int:
        """Draws that were handed in, up to the state that belongs to them."""
        if self._pending is None:
            return part.committed
        return self._pending.warmup if part is self._warmup else self._pending.draws

    def _need_writable(self) -> None:
        if self._broken:
            raise StoreError(
                f"an earlier write to {self.path} failed; its {self.committed} committed draws are safe: "
                "free space, then resume it."
            )
        if self._lock is None:
            raise StoreError(f"{self.path} is open for reading only; Store.open(path, write=True) continues a run.")

    def _flush(self) -> None:
        for part in self._parts():
            if part.in_memory_only(length := self._length(part)):
                self._unsynced += part.write(length)
        self._commit()

    def _sync_is_due(self, now: float) -> bool:
        """Whether to force what is pending to the device, by what the last time cost."""
        elapsed = now - self._synced_at
        expected = self._sync_cost * (1 + len(self._unsynced) / (1 + self._synced_chunks))
        return expected <= SYNC_SHARE * elapsed or elapsed > SYNC_SECONDS

    def _commit(self) -> None:
        """What is pending, which is on disk but for its state, is from now on what counts. May be called again."""
        reached = self._pending
        assert reached is not None
        folder = self.path / "checkpoint"
        self._serial += 1  # also after an interrupted commit, whose state commit.json may already name
        buffer = io.BytesIO()
        leaves: dict[str, Any] = {f"leaf_{i}": leaf for i, leaf in enumerate(reached.state)}
        np.savez(buffer, **leaves)
        data = buffer.getbuffer()
        file = folder / f"state-{self._serial}.npz"
        record = {
            "serial": self._serial,
            "draws": reached.draws,
            "warmup": reached.warmup,
            "iteration": reached.iteration,
            "extra": reached.extra,
            "state": {"file": file.name, "leaves": len(leaves), "bytes": len(data), "crc32": zlib.crc32(data)},
        }
        text = to_json(record, "extra")
        start = time.monotonic()
        durable = self._sync_is_due(start)
        replace(file, data)
        if durable:
            for written in (*self._unsynced, file, *{f.parent for f in self._unsynced}, folder):
                sync(written)
        replace(folder / "commit.json", text, durable=durable)
        if durable:
            self._synced_states.append(file)  # until the next line is done, synced.json may name either
            replace(folder / "synced.json", text, durable=True)
            chunks = len(self._unsynced)
            self._unsynced.clear()
            self._synced_at, self._synced_chunks = time.monotonic(), chunks
            self._sync_cost = self._synced_at - start
            self._synced_states = [file]
        self._record = json.loads(text)
        for old in folder.glob("state-*"):
            if old not in (file, *self._synced_states):
                old.unlink()
        for part in self._parts():
            part.committed = self._length(part)
        self._pending = None  # last: as long as it is there, flush commits it again
        self._committed_at = time.monotonic()

    def _fail(self, error: OSError, handed_in: int = 0) -> NoReturn:
        self._broken = True
        where = error.filename or self.path
        lost = handed_in + sum(self._length(part) - part.committed for part in self._parts())
        raise StoreError(
            f"cannot write {where}: {error.strerror or error}. {self.committed} of {self.draws} draws are "
            f"committed and stay readable, {lost} are not; a chunk takes {self._main.chunk_bytes()} bytes. "
            "Free space, then resume the run."
        ) from error

    def _write_json(self, file: Path, content: dict[str, Any], what: str) -> None:
        text = to_json(content, what)
        try:
            replace(file, text, durable=True)
        except OSError as error:
            raise StoreError(f"cannot write {file} ({len(text)} bytes): {error.strerror or error}.") from error

    def _write_root(self) -> None:
        """The root group, with the metadata of all below it, so that other readers look at nothing else."""
        nodes: dict[str, Any] = {}
        for part in self._parts():
            for group in ("posterior", "sample_stats"):
                folder = self.path / (part.prefix + group)
                for file in [folder / "zarr.json", *sorted(folder.glob("*/zarr.json"))]:
                    nodes[file.parent.relative_to(self.path).as_posix()] = json.loads(file.read_text("utf-8"))
        consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
        root = GROUP | {"attributes": {"inference_library": "fokker"}, "consolidated_metadata": consolidated}
        replace(self.path / "zarr.json", to_json(root))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _read_description(path: Path) -> dict[str, Any]:
    """run.json of a store, once it is clear that there is one."""
    if not path.exists():
        raise StoreError(f"there is no store at {path}; check the path.")
    if not path.is_dir():
        raise StoreError(f"{path} is a file, not a store; a store is a folder that a run with store=... wrote.")
    file = path / "run.json"
    if not file.exists():
        part = (path / "posterior").exists() or (path / "checkpoint").exists()
        raise StoreError(
            f"{file} is missing, so "
            + (f"{path} is truncated; restore that file from a copy." if part else f"{path} is not a store of a run.")
        )
    try:
        description = read_json(file)
        ours = description["format"] == FORMAT
        version = description.get("format_version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{file} was not written by a run ({error}); {path} is not a store, or damaged.") from error
    if not ours:
        raise StoreError(f"{file} is of format {description['format']!r}, a store has {FORMAT!r}.")
    if version != VERSION:
        raise StoreError(
            f"{path} has format version {version!r}, this fokker reads version {VERSION}; "
            "use the version of fokker that wrote it, or a newer one."
        )
    return description


def _read_record(path: Path, description: dict[str, Any], name: str, *, state: bool) -> dict[str, Any]:
    """A commit record, once the draws that it counts (with ``state``, also its state) are there."""
    file = path / "checkpoint" / name
    if not file.exists():
        raise StoreError(
            f"{file} is missing: the run ended before it began, or the store is truncated; "
            "start it again with overwrite=True."
        )
    try:
        record = read_json(file)
        counts = [record[key] for key in ("serial", "draws", "warmup", "iteration")]
        whole = (
            all(isinstance(count, int) and count >= 0 for count in counts) and record["draws"] <= description["draws"]
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


def _to_clear(path: Path, overwrite: bool) -> list[str]:
    """What would have to be deleted to make room for a new store; StoreError where that is not to be done."""
    if not path.exists() and not path.is_symlink():
        return []
    if not path.is_dir():
        raise StoreError(f"{path} is a file; a store needs a folder of its own: choose another path.")
    names = sorted(entry.name for entry in path.iterdir() if entry.name != "run.json" + PARTIAL)
    if not names:
        return []
    try:
        description = _read_description(path)
    except StoreError as error:
        if "format version" not in str(error):
            raise StoreError(f"{path} holds something else ({', '.join(names[:5])}); choose another path.") from error
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
    return names


def _clear(path: Path, overwrite: bool) -> None:
    """Make room for a new store, or refuse."""
    names = _to_clear(path, overwrite)
    if not names:
        return
    (path / "checkpoint").mkdir(exist_ok=True)
    take_lock(path).close()
    _delete(path / n for n in names if n != "run.json")
    (path / "run.json").unlink()  # last: until then the folder is known to be a store


def _delete(entries: Iterable[Path]) -> None:
    for entry in entries:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
