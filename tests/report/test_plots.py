"""Pictures: densities integrate to one and lie where the draws are; a trace has a row an entry."""

import numpy as np
from scipy import stats

import fokker
from fokker.report.plots import smooth_density


def test_the_density_is_that_of_the_draws():
    x = np.random.default_rng(0).standard_normal(20_000) * 2 + 5
    grid, height = smooth_density(x)
    assert abs(np.trapezoid(height, grid) - 1) < 1e-2
    assert np.abs(height - stats.norm(5, 2).pdf(grid)).max() < 0.01


def test_draws_that_never_move_have_a_density_too():
    grid, height = smooth_density(np.full(10, 3.0))
    assert np.isfinite(height).all() and abs(grid[height.argmax()] - 3) < 0.1


def test_a_trace_has_a_row_for_each_entry():
    target = fokker.Target.from_log_density(lambda x: -(x**2).sum() / 2, start=np.zeros(3))
    run = fokker.sample(target, fokker.hmc(step_size=0.5), draws=20, warmup=5, chains=2, progress=False)
    figure = run.plot_trace(entries=2)
    assert [axis.get_title() for axis in figure.axes[::2]] == ["theta[0]", "theta[1]"]
    assert len(figure.axes[1].lines) == 2
