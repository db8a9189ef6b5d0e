"""What a benchmark is made of: bars, rows, cores, rounds, and parts that run in processes of their own.

A benchmark prints one line of JSON per row and a last line for all. A row with a target is a bar; one without is there
to be read. The full run writes its rows to ``results/NAME.json``, with the machine and the versions; a quick run has
smaller cases and targets of its own, never decides, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("fokker", "jax", "jaxlib", "numpy", "scipy", "numba", "blackjax", "numpyro", "posteriors", "torch")
ROUNDS = 5
Row = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """What is asked for: at least ``target``, or at most. ``quick``: the target of the smaller case, if it has one."""

    name: str
    part: str
    target: float
    quick: float | None = None
    at_most: bool = False

    def row(self, measured: float, quick: bool = False, **details: Any) -> Row:
        target = self.quick if quick else self.target
        assert target is not None, f"{self.name} has no quick case"
        met = measured <= target if self.at_most else measured >= target  # a NaN meets nothing
        return {"name": self.name, "measured": _digits(measured), "target": target, "met": bool(met),
                "sense": "at most" if self.at_most else "at least", "part": self.part, **details}  # fmt: skip


def reading(name: str, part: str, measured: float, unit: str, **details: Any) -> Row:
    """A row without a target."""
    return {"name": name, "measured": _digits(measured), "target": None, "met": None, "unit": unit, "part": part,
            **details}  # fmt: skip


def all_met(bars: Iterable[Bar], rows: Iterable[Row]) -> bool:
    """Whether every bar has exactly one row, and every one is met."""
    judged = [row for row in rows if row["target"] is not None]
    return sorted(b.name for b in bars) == sorted(r["name"] for r in judged) and all(r["met"] for r in judged)


# --- measuring ------------------------------------------------------------------------------------------------------


def rates(contestants: Mapping[str, Callable[[], int]], seconds: float, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Units of work a second of each contestant in each round. A call does some work and gives how much.

    In every round each has a turn of about ``seconds``, so a slow spell of the machine falls on neighbours alike.
    """
    out: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            done, begun, now = 0, time.perf_counter(), 0.0
            while now < seconds:
                done += work()
                now = time.perf_counter() - begun
            out[name].append(done / now)
    return out


def ratio(one: Iterable[float], other: Iterable[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def peak_memory() -> float:
    """Peak resident set of this process so far, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024.0 * int(line.split()[1])
    raise OSError("this system does not say what a process's peak memory was")


def machine() -> dict[str, Any]:
    """Where and when the rows were measured."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(names),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "load": [round(x, 2) for x in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _digits(value: float) -> float | None:
    """Four significant digits; None, which JSON can say, for what was not measured."""
    return None if math.isnan(value) else float(f"{value:.4g}")


# --- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Rows that are measured together, in a process that sees ``cores`` cores from its start (XLA looks then)."""

    run: Callable[[bool], Iterator[Row]]  # quick -> rows
    cores: int = 1
    in_quick: bool = True


def run(name: str, description: str, bars: tuple[Bar, ...], parts: Mapping[str, Part]) -> None:
    """The command line of a benchmark: all parts, one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller cases and targets; decides nothing")
    parser.add_argument("--only", choices=list(parts), help="this part alone; writes no results")
    parser.add_argument("--part", choices=list(parts), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        for row in parts[options.part].run(options.quick):
            say(row)
        return
    start = machine()
    wanted = [p for p in parts if options.only in (None, p) and (parts[p].in_quick or not options.quick)]
    rows, seconds = [], {}
    for part in wanted:
        begun = time.perf_counter()
        for row in _child([part, *(["--quick"] if options.quick else [])], parts[part].cores):
            rows.append(row)
            say(row)
        seconds[part] = round(time.perf_counter() - begun, 1)
    asked = [b for b in bars if not options.quick or b.quick is not None]
    last = {"benchmark": name, "quick": options.quick, "met": all_met(asked, rows), "seconds": seconds}
    if not options.quick and options.only is None:
        RESULTS.mkdir(exist_ok=True)
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({**last, "machine": start})[:-1]
        (RESULTS / f"{name}.json").write_text(f'{head},\n "rows": [\n  {lines}\n ]}}\n', encoding="utf-8")
    say(last)


def say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def _child(arguments: list[str], cores: int) -> Iterator[Row]:
    """The rows that this script prints as a child on so many cores; none if the machine lends fewer."""
    with on_cores(cores) as given:
        if given < cores:
            print(f"part {arguments[0]} needs {cores} cores, this process has {given}", file=sys.stderr)
            return
        command = [sys.executable, sys.argv[0], "--part", *arguments]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        yield json.loads(line)
    if child.wait():
        raise SystemExit(f"part {arguments[0]} failed with code {child.returncode}")


@contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Processes started inside see the last ``count`` of this process's cores; gives how many they are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[-count:]))
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)
