"""What a call of ``fokker.vmf`` costs, beside ``scipy.special.ive`` where that works.

A ratio of Bessel functions by SciPy is two calls of ``ive``; log c is one and a logarithm. One core. Contestants take
turns over five rounds; a ratio is the median over rounds of the ratio within a round.

    python benchmarks/vmf_speed.py [--quick] [--only PART]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from _harness import Part, Row, rates, ratio, reading, run

from fokker import vmf

CASES = {2: 20.0, 50: 50.0, 200: 300.0, 1000: 2000.0}  # d: kappa, where ive is neither 0 nor inf
BEYOND = {5000: 3000.0, 100_000: 1e5}  # where it is 0
MANY = 10_000  # values of kappa in an array


def by_ive(d: int, kappa: Any) -> Any:
    from scipy.special import ive

    return ive(d / 2, kappa) / ive(d / 2 - 1, kappa)


def calls(f: Callable[[], Any], count: int) -> int:
    for _ in range(count):
        f()
    return count


def finished(f: Callable[[Any], Any], x: Any) -> Any:
    return f(x).block_until_ready()


def counted(f: Callable[[], np.ndarray]) -> int:
    return len(f())


def calls_a_second(works: dict[str, Callable[[], int]], quick: bool) -> dict[str, list[float]]:
    for work in works.values():
        work()
    return rates(works, 0.02 if quick else 0.3, 3 if quick else 5)


def numbers(quick: bool) -> Iterator[Row]:
    """One number at a time."""
    for d, kappa in {**CASES, **BEYOND}.items():
        works = {
            "mean_length": partial(calls, partial(vmf.mean_length, d, kappa), 50),
            "mean_length_slope": partial(calls, partial(vmf.mean_length_slope, d, kappa), 50),
            "log_normaliser": partial(calls, partial(vmf.log_normaliser, d, kappa), 50),
            "concentration": partial(calls, partial(vmf.concentration, d, vmf.mean_length(d, kappa)), 50),
        }
        if d in CASES:
            works["ratio of two ive"] = partial(calls, partial(by_ive, d, kappa), 50)
        rate = calls_a_second(works, quick)
        for name, values in rate.items():
            yield reading(f"{name}, d = {d}, one number", "numbers", 1e6 / float(np.median(values)), "us")
        if d in CASES:
            times = ratio(rate["ratio of two ive"], rate["mean_length"])
            yield reading(f"mean_length / ratio of two ive, d = {d}, one number", "numbers", times, "times the time")


def arrays(quick: bool) -> Iterator[Row]:
    """Many values of kappa at once, in NumPy and in compiled JAX, float64 both."""
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        for d, kappa in {**CASES, **BEYOND}.items():
            kappas = kappa * np.linspace(0.9, 1.1, MANY)
            of_jax = jax.jit(partial(vmf.mean_length, d))
            inside = jnp.asarray(kappas)
            works = {
                "mean_length": partial(calls, partial(vmf.mean_length, d, kappas), 1),
                "mean_length of JAX": partial(calls, partial(finished, of_jax, inside), 1),
            }
            if d in CASES:
                works["ratio of two ive"] = partial(calls, partial(by_ive, d, kappas), 1)
            rate = calls_a_second(works, quick)
            for name, values in rate.items():
                nanoseconds = 1e9 / MANY / float(np.median(values))
                yield reading(f"{name}, d = {d}, {MANY:,} numbers", "arrays", nanoseconds, "ns a number")
            if d in CASES:
                for name in ("mean_length", "mean_length of JAX"):
                    times = ratio(rate["ratio of two ive"], rate[name])
                    label = f"{name} / ratio of two ive, d = {d}, {MANY:,} numbers"
                    yield reading(label, "arrays", times, "times the time")


def draws(quick: bool) -> Iterator[Row]:
    """Draws by NumPy, beside SciPy's where it has them."""
    from scipy.stats import vonmises_fisher

    rng = np.random.default_rng(0)
    for d, kappa in {3: 20.0, 50: 50.0, **({} if quick else {5000: 3e4})}.items():
        mu, count = np.eye(1, d)[0], 10_000 if d < 1000 else 100
        works = {"sample": partial(counted, partial(vmf.sample, rng, mu, kappa, count))}
        if d < 1000:
            law = vonmises_fisher(mu, kappa)
            works["SciPy's rvs"] = partial(counted, partial(law.rvs, count, random_state=rng))
        for name, values in calls_a_second(works, quick).items():
            yield reading(f"{name}, d = {d}", "draws", 1e9 / d / float(np.median(values)), "ns an entry of a draw")


PARTS = {"numbers": Part(numbers), "arrays": Part(arrays), "draws": Part(draws)}

if __name__ == "__main__":
    run("vmf_speed", __doc__.splitlines()[0], (), PARTS)
