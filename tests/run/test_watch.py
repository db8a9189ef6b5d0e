"""R-hat and ESS of the progress line against arviz-stats."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.signal import lfilter

from fokker.run.watch import ess, split_rhat


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("chains, draws", [(4, 1000), (2, 2001)])
def test_as_arviz_stats(rho, chains, draws):
    x = lfilter([1], [1, -rho], np.random.default_rng(0).standard_normal((chains, draws)))
    axes = {"chain_axis": 0, "draw_axis": 1}
    assert split_rhat(x) == pytest.approx(float(array_stats.rhat(x, method="split", **axes)), rel=1e-9)
    assert ess(x) == pytest.approx(float(array_stats.ess(x, method="mean", **axes)), rel=0.02)


def test_chains_that_disagree():
    x = np.random.default_rng(1).standard_normal((4, 400)) + np.array([[0.0], [0], [0], [3]])
    assert split_rhat(x) > 1.3 and ess(x) < 20


def test_chains_that_stand_still():
    assert np.isnan(split_rhat(np.ones((4, 100)))) and np.isnan(ess(np.ones((4, 100))))
