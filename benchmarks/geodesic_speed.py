"""How fast the geodesic samplers are: against steps written by hand, against memory and against NUTS.

One thread and one chain on one core, float32. Ratios are medians over five rounds of the ratio within a round,
contestants taking turns; compile time and warm-up are left out and printed. ``--quick`` takes smaller cases, shorter
turns, and the targets that its bars say.

    python benchmarks/geodesic_speed.py [--quick] [--only PART]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from _harness import Bar, Part, Row, rates, ratio, reading, run

HAND, NUMPY = "the same step in a scan by hand", "the same step in NumPy"
N = 1000  # entries of a point on S^999

BARS = (
    # name, part, target, quick target
    Bar(f"SGGMC on S^999 / {HAND}", "sphere", 2.0, 1.5),
    Bar(f"SGGMC on S^999 / {NUMPY}", "sphere", 4.0, 3.0),
    Bar("SGGMC on an Oblique: time over that of memory and normals", "oblique", 1.5, 3.0, at_most=True),
    Bar("GMC on the unit vector: minimum ESS/s / the better NUTS", "nuts", 2.0),
)
BARS_BY_NAME = {bar.name: bar for bar in BARS}


# --- the sphere -------------------------------------------------------------------------------------------------------


def sphere(quick: bool) -> Iterator[Row]:
    """A von Mises-Fisher density on S^999: steps a second."""
    import _sphere as s

    import fokker

    steps = 2_000 if quick else 20_000
    makers = {
        "SGGMC": partial(s.ours, fokker.sggmc(s.STEP, s.FRICTION), N, steps),
        HAND: partial(s.aboba_by_hand, N, steps),
        NUMPY: partial(s.aboba_in_numpy, N, steps // 10),
        "SGGMC (baoab)": partial(s.ours, fokker.sggmc(s.STEP, s.FRICTION, integrator="baoab"), N, steps),
        "gSGNHT": partial(s.ours, fokker.gsgnht(s.STEP, s.FRICTION), N, steps),
        f"{HAND}, without noise": partial(s.aboba_by_hand, N, steps, False),
    }
    works, compiled = s.compile_each(makers)
    rate = rates(works, 0.1 if quick else 0.5, 3 if quick else 5)
    for name, values in rate.items():
        yield reading(f"S^999: {name}", "sphere", float(np.median(values)), "steps/s", lowest=round(min(values)),
                      highest=round(max(values)), compile_seconds=compiled[name])  # fmt: skip
    for other in (HAND, NUMPY):
        yield BARS_BY_NAME[f"SGGMC on S^999 / {other}"].row(ratio(rate["SGGMC"], rate[other]), quick)


# --- many spheres -----------------------------------------------------------------------------------------------------


def oblique(quick: bool) -> Iterator[Row]:
    """Columns of 1,000 entries, 400 MB of points and velocities; against what memory and the generator alone take."""
    import _sphere as s

    import fokker

    columns = 2_000 if quick else 50_000
    makers = {
        "SGGMC": partial(s.ours_on_columns, fokker.sggmc(s.STEP, s.FRICTION), N, columns),
        "SGGMC (baoab)": partial(s.ours_on_columns, fokker.sggmc(s.STEP, s.FRICTION, integrator="baoab"), N, columns),
        "x, v and gradient read, x and v written": partial(s.through_memory, N * columns),
        "as many normals": partial(s.normals_alone, N * columns),
    }
    works, compiled = s.compile_each(makers)
    rate = rates(works, 0.1 if quick else 1.0, 3 if quick else 5)
    each = {name: [1 / r for r in values] for name, values in rate.items()}
    for name, values in each.items():
        yield reading(f"Oblique({N}, {columns}): {name}", "oblique", float(np.median(values)), "seconds",
                      lowest=float(f"{min(values):.3g}"), compile_seconds=compiled[name])  # fmt: skip
    limit = np.add(each["x, v and gradient read, x and v written"], each["as many normals"])
    bar = BARS_BY_NAME["SGGMC on an Oblique: time over that of memory and normals"]
    yield bar.row(ratio(each["SGGMC"], limit), quick)
    yield reading("SGGMC (baoab) on an Oblique: time over that of memory and normals", "oblique",
                  ratio(each["SGGMC (baoab)"], limit), "ratio")  # fmt: skip


# --- GMC against NUTS -------------------------------------------------------------------------------------------------


def nuts(quick: bool) -> Iterator[Row]:
    """Each side over its settings once; the three best of each in five interleaved rounds, where they must pass."""
    import _sphere as s

    problem, draws = s.Regression(), 2_000
    sides: dict[str, dict[str, Any]] = {
        "GMC": {
            f"step {eps}, {steps} steps": s.OurGMC(problem, eps, steps, draws)
            for steps, sizes in ((3, (0.013, 0.015, 0.0165)), (4, (0.01, 0.011, 0.0125)), (5, (0.008, 0.009, 0.01)))
            for eps in sizes
        },
        "NUTS of BlackJAX": {
            f"acceptance {target}, {'dense' if dense else 'diagonal'}": s.BlackJAXNuts(problem, target, dense, draws)
            for target in (0.65, 0.8, 0.9) for dense in (False, True)
        },
        "NUTS of NumPyro": {
            f"acceptance {target}": s.NumPyroNuts(problem, target, False, draws // 4) for target in (0.65, 0.8)
        },
    }  # fmt: skip
    finalists = {}
    for side, settings in sides.items():
        seen = {}
        for name, contestant in settings.items():
            begun = time.perf_counter()
            contestant.prepare()
            contestant.warmup_seconds = round(time.perf_counter() - begun, 1)
            begun = time.perf_counter()
            seen[name] = float(s.ess(contestant()).min()) / (time.perf_counter() - begun)
        finalists[side] = sorted(seen, key=lambda name: -seen[name])[:3]
    kept: dict[tuple[str, str], list[tuple[np.ndarray, float]]] = {}
    for _ in range(5):
        for side, names in finalists.items():
            for name in names:
                begun = time.perf_counter()
                found = sides[side][name]()
                kept.setdefault((side, name), []).append((found, time.perf_counter() - begun))
    pooled = {key: np.concatenate([found for found, _ in rounds], axis=1) for key, rounds in kept.items()}
    # what all runs of NUTS say together is the truth that both sides are held to
    truth = np.concatenate([found for (side, _), found in pooled.items() if side != "GMC"], axis=1)
    mean, sd = truth.mean((0, 1)), truth.std((0, 1))
    best: dict[str, list[float]] = {}
    for (side, name), rounds in kept.items():
        found = pooled[side, name]
        by_round = [float(s.ess(x).min()) / seconds for x, seconds in rounds]
        ratios, shift = found.std((0, 1)) / sd, np.abs((found.mean((0, 1)) - mean) / sd)
        passes = bool(ratios.min() > 0.93 and ratios.max() < 1.07 and shift.max() < 0.07)
        squares = [float(s.ess((x - mean) ** 2).min()) / seconds for x, seconds in rounds]
        yield reading(f"unit vector: {side}, {name}", "nuts", float(np.median(by_round)), "minimum ESS/s",
                      passes=passes, of_squares=round(float(np.median(squares))),
                      worst_sd_ratio=round(float(ratios[np.argmax(np.abs(np.log(ratios)))]), 3),
                      worst_error_of_the_mean_in_sds=round(float(shift.max()), 3),
                      compile_and_warmup_seconds=sides[side][name].warmup_seconds)  # fmt: skip
        if passes and np.median(by_round) > np.median(best.get(side, [0.0])):
            best[side] = by_round
    never = [float("nan")] * 5
    theirs = max((best.get(side, never) for side in sides if side != "GMC"), key=lambda r: np.nan_to_num(np.median(r)))
    yield BARS_BY_NAME["GMC on the unit vector: minimum ESS/s / the better NUTS"].row(
        ratio(best.get("GMC", never), theirs)
    )


PARTS = {"sphere": Part(sphere), "oblique": Part(oblique), "nuts": Part(nuts, in_quick=False)}

if __name__ == "__main__":
    run("geodesic_speed", __doc__.splitlines()[0], BARS, PARTS)
