"""The benchmarks run, say what they should, and the page of speed shows what was measured."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def load(path):
    """A script as a module, with its folder on the path as when it is run."""
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(path.parent))


harness = load(ROOT / "benchmarks" / "_harness.py")
SCRIPTS = {name: load(ROOT / "benchmarks" / f"{name}.py") for name in ("sampler_speed", "geodesic_speed")}


def check_rows(speed, rows, quick):
    """Every row has a name and a number, and what it says of its bar is what follows from the number."""
    bars = {bar.name: bar for bar in speed.BARS}
    assert rows
    for row in rows:
        assert isinstance(row["measured"], float) and row["part"] in speed.PARTS, row
        if row["target"] is None:
            assert row["met"] is None and row["unit"] and row["name"] not in bars
            continue
        bar = bars[row["name"]]
        assert row["target"] == (bar.quick if quick else bar.target)
        over = row["measured"] >= row["target"]
        assert row["met"] == (row["measured"] <= row["target"] if bar.at_most else over)


def test_a_bar_is_met_on_its_own_side_only():
    least, most = harness.Bar("a", "p", 2.0), harness.Bar("b", "p", 2.0, at_most=True)
    assert [least.row(x)["met"] for x in (1.9, 2.0, 3.0, math.nan)] == [False, True, True, False]
    assert [most.row(x)["met"] for x in (1.9, 2.0, 3.0, math.nan)] == [True, True, False, False]


def test_a_benchmark_is_met_if_every_bar_was_measured_and_met():
    bars = harness.Bar("a", "p", 2.0), harness.Bar("b", "p", 2.0, at_most=True)
    good = [bars[0].row(3.0), harness.reading("c", "p", 1.0, "s"), bars[1].row(1.0)]
    assert harness.all_met(bars, good)
    assert not harness.all_met(bars, good[:2])
    assert not harness.all_met(bars, [bars[0].row(1.0), bars[1].row(1.0)])


def test_the_ratio_is_taken_within_rounds():
    assert harness.ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0]) == 3.0


@pytest.mark.parametrize("name", SCRIPTS)
def test_names_of_bars_are_distinct(name):
    bars = SCRIPTS[name].BARS
    assert len({bar.name for bar in bars}) == len(bars)


def test_the_law_of_the_chain_is_that_of_simulated_recursions():
    """SGLD and SGHMC with epochs, by summing the autocovariance of the noise lag by lag."""
    import numpy as np

    from fokker.run.linear_chain import law

    gaussian = load(ROOT / "benchmarks" / "_gaussian.py")
    A, V = np.diag([1.0, 2.0]), np.diag([0.5, 3.0])
    for method, integrator, eps, friction in (("sgld", "", 0.1, 0.0), ("sghmc", "symplectic", 0.3, 1.5)):
        for epoch in (None, 20):
            total = gaussian.covariance(method, integrator, A, V, eps, friction, epoch)
            alone = law(method, integrator, np.diag(A), eps, friction, epoch)
            want = (alone.variance + alone.from_gradient * np.diag(V)) / np.diag(A)
            np.testing.assert_allclose(gaussian.marginal_sds(A, total) ** 2, want, rtol=1e-9)


def test_noise_that_batches_of_a_run_have_in_common_adds_to_the_variance():
    """SGLD in one dimension with a moving average as gradient noise: eps^2 (V + 2 rho C_1 + ...) / (1 - rho^2)."""
    import numpy as np

    gaussian = load(ROOT / "benchmarks" / "_gaussian.py")
    a, V, C, eps = 2.0, 5.0, (1.5, -0.7), 0.1
    one = lambda x: np.array([[x]])
    total = gaussian.covariance("sgld", "", one(a), one(V), eps, 0.0, None, lags=[one(c) for c in C])
    rho = 1 - eps * a
    want = (2 * eps + eps**2 * (V + 2 * rho * C[0] + 2 * rho**2 * C[1])) / (1 - rho**2)
    np.testing.assert_allclose(total[0, 0], want, rtol=1e-12)


def test_the_thermostat_takes_up_gradient_noise():
    """To first order in the step, xi is A + eps v / 2 for noise of covariance v I."""
    import numpy as np

    gaussian = load(ROOT / "benchmarks" / "_gaussian.py")
    A, v, eps, diffusion = np.eye(2), 40.0, 1e-3, 2.0
    xi = gaussian.thermostat(A, v * np.eye(2), eps, diffusion, None)
    assert abs(xi - (diffusion + eps * v / 2)) < 2e-3 * diffusion


@pytest.mark.parametrize("name", SCRIPTS)
def test_results_are_of_one_full_run(name):
    speed, results = SCRIPTS[name], json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert results["benchmark"] == name and results["quick"] is False
    assert {"processor", "cores", "load", "versions", "date"} <= set(results["machine"])
    check_rows(speed, results["rows"], quick=False)
    judged = [row["name"] for row in results["rows"] if row["target"] is not None]
    assert sorted(judged) == sorted(bar.name for bar in speed.BARS)
    assert results["met"] == harness.all_met(speed.BARS, results["rows"])


def test_the_page_is_up_to_date():
    maker = load(ROOT / "docs" / "make_speed.py")
    assert maker.PAGE.read_text(encoding="utf-8") == maker.page(maker.recorded()), "run python docs/make_speed.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_quick_run_says_what_it_measured(name):
    """About 40 s. Its ratios are not judged here: beside other tests they mean nothing."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    speed, record = SCRIPTS[name], RESULTS / f"{name}.json"
    before = record.read_bytes()
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout.splitlines()
    *rows, last = [json.loads(line) for line in lines]
    check_rows(speed, rows, quick=True)
    asked = [bar for bar in speed.BARS if bar.quick is not None]
    assert sorted(r["name"] for r in rows if r["target"] is not None) == sorted(bar.name for bar in asked)
    assert last["benchmark"] == name and last["quick"] is True and last["met"] == harness.all_met(asked, rows)
    assert record.read_bytes() == before


@pytest.mark.slow
def test_the_cost_of_directional_statistics_is_measured():
    """Readings alone: a number above 0 for every case, and for ive too where it works."""
    command = [sys.executable, str(ROOT / "benchmarks" / "vmf_speed.py"), "--quick"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout.splitlines()
    *rows, last = [json.loads(line) for line in lines]
    assert all(row["measured"] > 0 and row["unit"] and row["target"] is None for row in rows)
    assert {row["part"] for row in rows} == {"numbers", "arrays", "draws"}
    assert sum("ratio of two ive" in row["name"] for row in rows) == 4 * (2 + 3)
    assert last["benchmark"] == "vmf_speed" and last["quick"] is True


@pytest.mark.slow
def test_tuning_on_a_manifold_is_half_as_good_as_a_grid_or_better():
    """One posterior and kernel, two seeds: sds within 10 % and half the ESS/s of the grid's best, at least."""
    script = ROOT / "benchmarks" / "tuning_manifolds.py"
    command = [sys.executable, str(script), "--quick", "--kernel", "sggmc"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent, check=True)
    row, last = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    assert row["met"] and last["met"], row
    assert all(0.9 <= ratio <= 1.1 for ratio in row["tuned_sd_ratios"])
