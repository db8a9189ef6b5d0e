"""Files that are either whole or not there, the lock of a writer, and JSON."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fokker.errors import InputError, StoreError

PARTIAL = ".partial"  # ends the name of a file that is being written


def replace(file: Path, *content: Any, durable: bool = False) -> None:
    """Write under another name, then rename: a reader sees the old file or the new one, never a part."""
    partial = file.with_name(file.name + PARTIAL)
    try:
        with open(partial, "wb", buffering=0) as out:
            for piece in content:
                _write_whole(out, piece)
            if durable:
                os.fsync(out.fileno())
        os.replace(partial, file)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        size = sum(memoryview(piece).nbytes for piece in content)
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} ({size} bytes)", str(file)) from error
    if durable:
        sync(file.parent)


def _write_whole(out: BinaryIO | io.RawIOBase, piece: Any) -> None:
    """A raw write may take a part only, when the disk fills up or a signal comes."""
    rest = memoryview(piece).cast("B")
    while rest:
        written = out.write(rest)
        rest = rest[written:]


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the device."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no way to open a folder, and renames there are not deferred
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(path: Path) -> BinaryIO:
    """The writer's lock; the system frees it when the process ends, however it ends."""
    lock = open(path / "checkpoint" / "lock", "ab")  # noqa: SIM115  (held as long as the store)
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StoreError(
                f"{path} is being written by another process, or by another object of this one; "
                "wait until that is done, or close it."
            ) from None
    return lock


def to_json(content: Any, what: str = "metadata") -> bytes:
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


def read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
