"""Blocks made ahead of their use by one background thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterate over make(*arguments) for every entry of ``plan``, keeping ``depth`` results ready.

    ``plan`` and ``make`` run in the thread, one call after the other, in order. An exception there comes out of the
    iteration at its place. Leaving the ``with`` block (by Ctrl-C too) ends the thread after the call that it is in;
    if that takes longer than five seconds (an iterator that waits for data) it is left to end by itself.

        with Prefetch(make, plan) as blocks:
            for block in blocks:
                ...
    """

    def __init__(self, make: Callable[..., T], plan: Iterable[tuple[Any, ...]], depth: int = 2):
        self._ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        # A daemon: a consumer that is gone without closing must not keep the process alive.
        self._thread = threading.Thread(target=self._work, args=(make, plan), name="fokker-prefetch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        while not self._stop.is_set():
            kind, value = self._ready.get()
            if kind == "block":
                yield value
                continue
            self.close()
            if kind == "error":
                raise value

    def close(self) -> None:
        """End the thread; what it had ready is dropped."""
        self._stop.set()
        deadline = time.monotonic() + 5.0
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._ready.get(timeout=0.01)  # room for the one that it may be waiting to hand over
            except queue.Empty:
                continue
        while not self._ready.empty():
            self._ready.get_nowait()

    def _work(self, make: Callable[..., T], plan: Iterable[tuple[Any, ...]]) -> None:
        try:
            for arguments in plan:
                if self._stop.is_set():
                    return
                self._hand_over("block", make(*arguments))
            self._hand_over("end", None)
        except BaseException as error:
            self._hand_over("error", error)

    def _hand_over(self, kind: str, value: Any) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
